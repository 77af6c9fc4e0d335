"""Every map makes, bit for bit, what the other project's own code makes of the same checkpoint, and the way back too.

The cases are made by tests/peers (`make peers`) and committed, so that nothing of the peers is needed here. A new case
is found by being there; a map without one fails.
"""

import ast
import json
import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from lab import run

from converter.mapfile import shipped_maps
from converter.spec import DTYPES

PEERS = Path(__file__).parent / "peers"
FOLDERS = {p.parent.relative_to(PEERS / "cases").as_posix(): p.parent for p in (PEERS / "cases").rglob("case.json")}
ABOUT: dict[str, Any] = {name: json.loads((folder / "case.json").read_text()) for name, folder in FOLDERS.items()}
each_case = pytest.mark.parametrize("case", sorted(FOLDERS))
Raw = dict[str, tuple[str, tuple[int, ...], bytes]]


def map_of(case: str) -> str:
    return case.partition("@")[0]


def raw(path: Path) -> Raw:
    """The tensors of a file as dtype, shape and bytes."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {
        n: (e["dtype"], tuple(e["shape"]), data[8 + length + e["data_offsets"][0] : 8 + length + e["data_offsets"][1]])
        for n, e in header.items()
    }


def differences(got: Raw, want: Raw) -> list[str]:
    """What differs, by name: one line a tensor says more than two dicts of bytes."""
    out = [f"{name}: not made" for name in want.keys() - got.keys()]
    out += [f"{name}: made, the peer has none" for name in got.keys() - want.keys()]
    for name in got.keys() & want.keys():
        if got[name][:2] != want[name][:2]:
            out.append(f"{name}: {got[name][:2]}, the peer has {want[name][:2]}")
        elif got[name][2] != want[name][2]:
            out.append(f"{name}: other bytes")
    return sorted(out)


def convert(case: str, source: Path, back: bool) -> tuple[Raw, dict[str, Any]]:
    """Convert one way with the flags of the case; give the tensors and the report."""
    flags = ABOUT[case]["flags"]
    if isinstance(flags, dict):
        flags = flags.get("reverse" if back else "forward", [])
    config = FOLDERS[case] / "config.json"
    more = [*(["--reverse"] if back else []), *(["--config", config] if config.exists() else []), *flags]
    with tempfile.TemporaryDirectory() as folder:
        output, report = Path(folder) / "out.safetensors", Path(folder) / "report.json"
        r = run("--map", map_of(case), *more, "--report", report, source, output)
        assert r.code == 0, r.err
        return raw(output), json.loads(report.read_text())


@cache
def forward(case: str) -> tuple[Raw, dict[str, Any]]:
    return convert(case, FOLDERS[case] / "from.safetensors", back=False)


def test_every_shipped_map_has_a_case():
    assert {map_of(case) for case in FOLDERS} == set(shipped_maps()), "write it in tests/peers, and run `make peers`"


@each_case
def test_forward_is_what_the_peer_makes(case):
    assert not differences(forward(case)[0], raw(FOLDERS[case] / "to.safetensors"))


@each_case
def test_back_is_what_the_peer_makes(case):
    """Without a file that says otherwise, the input, less what the way there reported as dropped or tied."""
    about = ABOUT[case]
    if not about["both"]:
        assert about["why"]
        pytest.skip(about["why"])
    want_file = FOLDERS[case] / "back.safetensors"
    if want_file.exists():
        want = raw(want_file)
    else:
        report = forward(case)[1]
        gone = {*report["dropped"], *(t["name"] for t in report["tied"])}
        want = {n: x for n, x in raw(FOLDERS[case] / "from.safetensors").items() if n not in gone}
    got, _ = convert(case, FOLDERS[case] / "to.safetensors", back=True)
    assert not differences(got, want)


@each_case
def test_a_case_could_tell(case):
    """Values that repeat, or tensors that are alike though nothing says that they are, would hide an exchange."""
    report = forward(case)[1]
    alike = {t["name"] for t in report["tied"]} | {x["source"] for x in report["loaded"] if "same" in str(x["ops"])}
    seen: dict[bytes, str] = {}
    for name, (dtype, shape, data) in raw(FOLDERS[case] / "from.safetensors").items():
        bits = DTYPES[dtype].bits
        if name in alike or name in report["dropped"] or bits < 8 or len(data) * 8 <= bits:
            continue
        size = bits // 8
        distinct = len({data[i : i + size] for i in range(0, len(data), size)})
        assert distinct > min(len(data) // size, 2 ** min(bits, 12)) // 2, f"{name}: {distinct} values in {shape}"
        assert data not in seen, f"{name} is {seen[data]}"
        seen[data] = name


@each_case
def test_a_case_is_small_and_says_what_it_is(case):
    about = ABOUT[case]
    assert set(about) == {"peer", "version", "code", "lines", "flags", "both", "why"}
    assert all(isinstance(about[k], str) for k in ("peer", "version", "code", "why"))
    assert about["peer"]
    assert about["version"]
    assert about["code"]
    assert about["lines"] > 0
    assert sum(p.stat().st_size for p in FOLDERS[case].iterdir()) < 200_000
    assert {p.name for p in FOLDERS[case].iterdir()} <= {
        "case.json", "from.safetensors", "to.safetensors", "back.safetensors", "config.json",
    }  # fmt: skip


@pytest.mark.parametrize("script", sorted(p.name for p in PEERS.glob("*.py")))
def test_a_peer_is_pinned(script):
    """make.py finds peers by this constant, without running them."""
    tree = ast.parse((PEERS / script).read_text())
    needs = [
        ast.literal_eval(n.value)
        for n in tree.body
        if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "REQUIREMENTS"
    ]
    if script in ("__init__.py", "make.py", "case.py"):
        assert not needs
    else:
        assert needs
        assert all("==" in need for need in needs[0])
        assert any(isinstance(n, ast.FunctionDef) and n.name == "main" for n in tree.body)
