"""The maps and the schema are found from a checkout, an editable install and an installed wheel."""

import importlib.metadata
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(p.relative_to(ROOT / "maps").with_suffix("").as_posix() for p in (ROOT / "maps").rglob("*.yaml"))
MAPS = [f for f in FILES if not f.startswith("shared/")]  # the others are fragments, which maps include


def run(*command: object, cwd: Path, path: Path | None = None) -> str:
    """Run a command far from the checkout, with at most one folder on the path, and give what it prints."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"NO_COLOR": "1", "COLUMNS": "200"}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def prove(program: list[object], cwd: Path, path: Path | None = None) -> None:
    """List the maps, check one (which reads the schema), and make a stub from another, by name."""
    listed = run(*program, "maps", cwd=cwd, path=path)
    assert [m for m in MAPS if m not in listed] == []
    run(*program, "check", "gpt2", cwd=cwd, path=path)
    stub = cwd / "stub.safetensors"
    run(*program, "stub", "--map", "llama", stub, cwd=cwd, path=path)
    assert stub.stat().st_size > 1000
    stub.unlink()


def home(cwd: Path, path: Path | None = None) -> Path:
    return Path(run(sys.executable, "-c", "import converter; print(converter.__file__)", cwd=cwd, path=path).strip())


def test_checkout(tmp_path):
    assert home(tmp_path, ROOT) == ROOT / "converter" / "__init__.py"
    prove([sys.executable, "-m", "converter"], tmp_path, ROOT)


def test_editable_install(tmp_path):
    """The environment that `make test` builds is one; here it is used without the checkout on the path."""
    try:
        origin = importlib.metadata.distribution("checkpoint-convert").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("this environment does not have the package installed")
    if not json.loads(origin or "{}").get("dir_info", {}).get("editable"):
        pytest.skip("the package of this environment is not an editable install")
    assert home(tmp_path) == ROOT / "converter" / "__init__.py"
    prove([sys.executable, "-m", "converter"], tmp_path)
    for script in ("convert", "checkpoint-convert"):
        prove([Path(sys.executable).parent / script], tmp_path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_has_what_it_needs_and_no_more(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"converter/maps/{f}.yaml" for f in FILES} <= set(names)
    assert "converter/schemas/map.schema.json" in names
    assert "converter/py.typed" in names
    assert len(names) == len(set(names))
    assert {n.split("/")[0].partition("-")[0] for n in names} == {"converter", "checkpoint_convert"}


def test_installed_wheel(wheel, tmp_path):
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-deps", "--target", site, wheel, cwd=tmp_path)
    assert home(tmp_path, site) == site / "converter" / "__init__.py"
    prove([sys.executable, "-m", "converter"], tmp_path, site)
    prove([site / "bin" / "convert"], tmp_path, site)
