"""Time conversions against `cp` and against what people use today: python benchmarks/bench.py [--write].

Needs no network. Inputs are made once, in --data (about 14 GB; up to 25 GB while it runs). A peer is timed where its
environment is: benchmarks/.peers/NAME (a virtual environment that has it), or for the scripts the environment that runs this.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from results import Result, environment, write
from rows import ROWS, Row
from timing import Contestant, interleave, remove

HERE = Path(__file__).parent
NEEDS = {"mergekit": "mergekit", "transformers": "transformers"}  # the others are scripts around torch and safetensors


def main() -> int:
    options = _options()
    options.data.mkdir(parents=True, exist_ok=True)
    about, results = environment(sys.executable), []
    print(about, flush=True)
    for row in ROWS:
        if options.only and row.name not in options.only:
            continue
        if options.skip and row.name in options.skip:
            continue
        result = _run(row, options)
        results.append(result)
        print(result, flush=True)
    if options.write:
        write(HERE / "RESULTS.md", about, results, options.pairs)
    return 0 if all(r.met for r in results) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="timed runs of each contestant (default 5)")
    parser.add_argument("--only", action="append", choices=[r.name for r in ROWS], help="this row; may be repeated")
    parser.add_argument("--skip", action="append", choices=[r.name for r in ROWS], help="not this row; may be repeated")
    parser.add_argument("--data", type=Path, default=HERE / ".data", help="where inputs are made and outputs written")
    parser.add_argument("--no-peers", action="store_true", help="against cp alone")
    parser.add_argument("--write", action="store_true", help="write benchmarks/RESULTS.md")
    return parser.parse_args()


def _run(row: Row, options: argparse.Namespace) -> Result:
    """Make what the row needs, run it in turns with its yardstick and peers, and leave nothing but the input."""
    print(f"{row.name}: {row.title}", file=sys.stderr, flush=True)
    scratch = options.data / "scratch-out"
    remove([*options.data.glob("scratch-*")])
    source = _source(row, options.data)
    ours = Contestant(
        "convert",
        [*_command(), *_filled(row.arguments, source, scratch)],
        [scratch, scratch.with_suffix(".safetensors")],
    )
    contestants, absent = [ours], []
    if row.yardstick:
        contestants.append(_yardstick(row, ours, source, options.data))
    for peer in () if options.no_peers else row.peers:
        python = _python(peer)
        if python is None:
            absent.append(peer)
            continue
        out = scratch if peer in ("transformers", "mergekit") else scratch.with_suffix(".safetensors")
        contestants.append(Contestant(peer, [python, str(HERE / "peers.py"), peer, str(source), str(out)], [out]))
    interleave(contestants, options.pairs, lambda text: print(text, file=sys.stderr, flush=True))
    remove([*options.data.glob("scratch-*")])
    return Result(row, tuple(contestants), tuple(absent))


def _command() -> list[str]:
    script = Path(sys.executable).parent / "convert"
    return [str(script)] if script.exists() else [sys.executable, "-m", "converter"]


def _filled(arguments: Sequence[str], source: Path | None, out: Path) -> list[str]:
    path = out if "--max-shard-size" in arguments else out.with_suffix(".safetensors")
    places = {"{in}": str(source), "{out}": str(path)}
    return [places.get(a, a) for a in arguments]


def _source(row: Row, data: Path) -> Path | None:
    """Make the input; one whose name ends in `<` is what the row of that name writes."""
    if not row.input:
        return None
    name = row.input.rstrip("<")
    subprocess.run([sys.executable, str(HERE / "inputs.py"), name, str(data)], check=True)
    path = data / name / "model.safetensors"
    path = path if path.exists() else data / name
    if row.input.endswith("<"):
        made = data / "scratch-back.safetensors"
        forward = next(r for r in ROWS if r.name == name)
        _must([*_command(), *_filled(forward.arguments, path, made)])
        return made
    return path


def _yardstick(row: Row, ours: Contestant, source: Path | None, data: Path) -> Contestant:
    """Copy the input, or what the conversion writes, and sync the copy."""
    assert source is not None
    copied, target = source, data / "scratch-copy"
    if row.yardstick == "output":
        copied = data / "scratch-size.safetensors"
        _must([a if a != str(data / "scratch-out.safetensors") else str(copied) for a in ours.command])
    if copied.is_dir():
        script = 'mkdir "$2" && cp "$1"/*.safetensors "$2"/ && sync "$2"/*'
    else:
        script = 'cp "$1" "$2" && sync "$2"'
    return Contestant("cp + sync", ["sh", "-c", script, "sh", str(copied), str(target)], [target])


def _must(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _python(peer: str) -> str | None:
    """Find the interpreter of a peer's environment."""
    own = HERE / ".peers" / NEEDS.get(peer, "torch") / "bin" / "python"
    if own.exists():
        return str(own)
    found = subprocess.run(
        [sys.executable, "-c", f"import {NEEDS.get(peer, 'torch')}"], capture_output=True, check=False
    )
    return sys.executable if found.returncode == 0 else None


if __name__ == "__main__":
    os.chdir(HERE.parent)
    sys.exit(main())
