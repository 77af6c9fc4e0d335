"""Run the peers' own code and write the cases again: python tests/peers/make.py [PEER ...]

Each script beside this one has an environment of its own under .env, made with pip from its REQUIREMENTS and kept. A
script writes into a fresh folder, and what it wrote replaces the cases of these names.
"""

from __future__ import annotations

import argparse
import ast
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CASES, ENVS = HERE / "cases", HERE / ".env"
CALL = "import importlib, pathlib, sys; importlib.import_module('peers.' + sys.argv[1]).main(pathlib.Path(sys.argv[2]))"


def requirements(script: Path) -> tuple[str, ...] | None:
    """What a script needs, without running it; None where it says nothing, and so is no peer."""
    for node in ast.parse(script.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "REQUIREMENTS":
            return tuple(ast.literal_eval(node.value))
    return None


def scripts() -> dict[str, tuple[str, ...]]:
    found = {p.stem: requirements(p) for p in sorted(HERE.glob("*.py"))}
    return {name: needs for name, needs in found.items() if needs is not None}


def environment(peer: str, needs: tuple[str, ...], share: Path | None) -> Path:
    """Give the interpreter of a peer's environment; install only if its requirements are not those of the last time."""
    folder = ENVS / peer
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    if stamp.exists() and stamp.read_text().split("\n") == list(needs):
        return python
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    if share is not None:
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "shared.pth").write_text(f"{share.resolve()}\n")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    torch = [n for n in needs if n.startswith("torch==")]  # alone and first: pip takes the build this machine prefers
    for some in (torch, [n for n in needs if n not in torch]):
        if some:
            subprocess.run([*pip, *some], check=True)
    stamp.write_text("\n".join(needs))
    return python


def run(peer: str, python: Path, folder: Path) -> None:
    """Run a script as a module of the package `peers`, so that `import litgpt` in litgpt.py means the library."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    env |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([python, "-c", CALL, peer, folder], check=True, cwd=HERE.parent, env=env)


def same(a: Path, b: Path) -> bool:
    names = sorted(p.name for p in a.iterdir())
    return b.is_dir() and names == sorted(p.name for p in b.iterdir()) and not filecmp.cmpfiles(a, b, names, False)[1]


def main() -> None:
    found = scripts()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"which (default: all of {', '.join(found)})")
    parser.add_argument("--share", type=Path, metavar="FOLDER", help="site-packages that new environments may use too")
    options = parser.parse_args()
    for peer in options.peers or found:
        if peer not in found:
            parser.error(f"no peer {peer!r}: there are {', '.join(found)}")
        python = environment(peer, found[peer], options.share)
        with tempfile.TemporaryDirectory() as temporary:
            made = Path(temporary)
            run(peer, python, made)
            cases = sorted(p.parent for p in made.rglob("case.json"))
            changed = [c for c in cases if not same(c, CASES / c.relative_to(made))]
            for case in changed:
                shutil.rmtree(CASES / case.relative_to(made), ignore_errors=True)
                shutil.copytree(case, CASES / case.relative_to(made))
        print(f"{peer}: {len(cases)} cases, {len(changed)} changed", flush=True)


if __name__ == "__main__":
    main()
