"""Several files of the same names are one checkpoint, and the number of each file stands before its names."""

import json
from pathlib import Path

import pytest
import torch
from lab import Lab, arr, metadata, read, same, shards, write
from safetensors.torch import load_file

from converter.errors import ConvertError
from converter.formats import open_checkpoint

MAP = """
indices: {rank: n_rank}
rules:
  - {from: '{rank}/w', to: w, shape: r d, ops: [{concat: {dim: 0, over: rank}}]}
  - {from: '{rank}/norm', to: norm, shape: d, ops: [{same: rank}]}
"""


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


def part(k: int) -> dict:
    return {"w": arr(2, 3, start=10 * k), "norm": arr(3)}


def whole(n: int) -> dict:
    return {"w": torch.cat([torch.from_numpy(part(k)["w"]) for k in range(n)]).numpy(), "norm": arr(3)}


def names(path: object) -> list[str]:
    with open_checkpoint(str(path)) as checkpoint:
        return list(checkpoint.header.tensors)


def test_twelve_ranks_and_back(lab):
    for k in range(12):
        write(lab / f"part.{k:02}.safetensors", part(k))
    r = lab.run("--map", lab.map(MAP), "--verify", lab / "part.{rank}.safetensors", lab.output)
    assert r.code == 0, r.err
    same(read(lab.output), whole(12))
    r = lab.run("--map", lab.map(MAP), "--reverse", "--set", "n_rank=12", lab.output, lab / "back.safetensors")
    assert r.code == 0, r.err
    same(read(lab / "back.safetensors"), {f"{k}/{n}": x for k in range(12) for n, x in part(k).items()})
    r = lab.run("--map", lab.map(MAP), "--reverse", lab.output, lab / "never.safetensors")
    assert "--set n_rank=" in r.err


def test_ranks_come_in_the_order_of_their_numbers(lab):
    for k in range(12):
        write(lab / f"n.{k}.safetensors", part(k))
    assert names(lab / "n.{rank}.safetensors") == [f"{k}/{n}" for k in range(12) for n in part(k)]


def test_pickles(lab):
    for k in range(3):
        state = {n: torch.from_numpy(x) for n, x in part(k).items()}
        torch.save({"model": state, "step": 1}, lab / f"consolidated.{k:02}.pth")
    r = lab.run("--map", lab.map(MAP), "--root", "model", lab / "consolidated.{rank}.pth", lab.output)
    assert r.code == 0, r.err
    same(read(lab.output), whole(3))
    assert (
        lab.run("inspect", "--root", "model", lab / "consolidated.{rank}.pth")
        .out.splitlines()[-1]
        .endswith("in 3 files")
    )


def test_files_as_meta_releases_them(lab):
    """The case of the peer, as the files that it was made from: pickles, with params.json beside them."""
    case = Path(__file__).parent / "peers" / "cases" / "meta" / "llama3_ranks"
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, x in load_file(case / "from.safetensors").items():
        rank, _, rest = name.partition("/")
        parts.setdefault(rank, {})[rest] = x
    for rank, part in parts.items():
        torch.save(part, lab / f"consolidated.{int(rank):02}.pth")
    flags = ["--map", "meta/llama3_ranks", "--config", case / "config.json", "--verify"]
    r = lab.run(*flags, lab / "consolidated.{rank}.pth", lab.output)
    assert r.code == 0, r.err
    same(read(lab.output), read(case / "to.safetensors"))


def test_holes_in_folders_and_several_of_them(lab):
    for t in range(2):
        for p in (3, 4):
            write(lab / f"tp_{t}" / f"pp{p:03}.safetensors", {"w": arr(1, start=t + p)})
    (lab / "tp_x").mkdir()
    (lab / "tp_5").mkdir()
    assert names(lab / "tp_{t}" / "pp{p}.safetensors") == ["0/3/w", "0/4/w", "1/3/w", "1/4/w"]
    with open_checkpoint(str(lab / "tp_{t}" / "pp{p}.safetensors")) as checkpoint:
        assert checkpoint.folder == str(lab.folder)
    with open_checkpoint(str(lab / "tp_0" / "pp{p}.safetensors")) as checkpoint:
        assert checkpoint.folder == str(lab / "tp_0")


def test_each_may_be_a_folder_with_an_index(lab):
    for k in range(2):
        shards(lab / f"rank{k}", [{"a": arr(2, start=k)}, {"b": arr(2, start=k + 5)}])
    assert names(lab / "rank{k}") == ["0/a", "0/b", "1/a", "1/b"]


def test_a_config_beside_them_is_found(lab):
    for k in range(2):
        write(lab / f"part.{k}.safetensors", part(k))
    (lab / "config.json").write_text(json.dumps({"width": 4}))
    r = lab.run("--map", lab.map("params: {d: {config: width}}\n" + MAP), lab / "part.{k}.safetensors", lab.output)
    assert r.code == 1
    assert "expected [r, d] with d = 4 (from config.json" in r.err


def test_aliases_and_metadata_are_those_of_each(lab):
    for k in range(2):
        said = {"head": "w", "format": "pt", "made by": f"hand {k}"}
        write(lab / f"part.{k}.safetensors", {"w": arr(2, start=k)}, said)
    text = """
    indices: {rank: n_rank}
    rules:
      - {from: '{rank}/w', to: 'w.{rank}', shape: d}
      - {from: '{rank}/head', to: 'head.{rank}', shape: d, tied: '{rank}/w'}
    """
    r = lab.run("--map", lab.map(text), lab / "part.{k}.safetensors", lab.output)
    assert r.code == 0, r.err
    assert metadata(lab.output) == {"format": "pt", "made by": "hand 0", "head.0": "w.0", "head.1": "w.1"}


def test_a_gap_is_missing_tensors(lab):
    for k in (0, 2):
        write(lab / f"part.{k}.safetensors", part(k))
    r = lab.run("--map", lab.map(MAP), lab / "part.{k}.safetensors", lab.output)
    assert r.code == 1
    assert "1/w: missing from the input" in r.err
    assert not lab.output.exists()


def test_names_that_only_have_such_a_name_in_them_are_other_files(lab):
    for k in range(2):
        write(lab / f"part.{k}.safetensors", part(k))
    for other in ("part.2.safetensors.bak", "part.3.safetensors2", "apart.4.safetensors", "part.5xsafetensors"):
        write(lab / other, part(0))
    assert {n.split("/")[0] for n in names(lab / "part.{k}.safetensors")} == {"0", "1"}


def test_what_is_refused(lab):
    assert lab.run("inspect", lab / "part.{k}.pth").err == (
        "part.{k}.pth: no such files: none has a number in the place of {k}\n"
    )
    for k in ("x", "1x", "-1", "1" * 10, ""):
        write(lab / f"part.{k}.safetensors", part(0))
    for path in (
        lab / "part.{k}.safetensors",
        lab / "part.{k}.safetensors" / "w",
        lab / "nowhere" / "part.{k}.safetensors",
    ):
        with pytest.raises(ConvertError, match="none has a number"):
            names(path)
    write(lab / "part.1.safetensors", part(0))
    write(lab / "part.01.safetensors", part(0))
    with pytest.raises(ConvertError, match="have the same number"):
        names(lab / "part.{k}.safetensors")
    write(lab / "p.0.safetensors", part(0))
    r = lab.run("--map", lab.map(MAP), "--force", lab / "p.{k}.safetensors", lab / "p.0.safetensors")
    assert r.code == 2
    same(read(lab / "p.0.safetensors"), part(0))


def test_a_file_whose_name_has_braces_is_that_file(lab):
    write(lab / "a{b}.safetensors", {"w": arr(1)})
    write(lab / "a1.safetensors", {"v": arr(1)})
    assert names(lab / "a{b}.safetensors") == ["w"]
    assert names(lab / "a{c}.safetensors") == ["1/v"]


def test_a_folder_of_a_number_without_the_file_does_not_count(lab):
    write(lab / "p.0" / "w.safetensors", part(0))
    (lab / "p.1").mkdir()
    assert {n.split("/")[0] for n in names(lab / "p.{k}" / "w.safetensors")} == {"0"}


def test_what_is_no_tensor_is_told_with_its_number(lab):
    for k in range(2):
        torch.save({"w": torch.ones(2), "step": 7}, lab / f"part.{k}.pt")
    with open_checkpoint(str(lab / "part.{k}.pt")) as checkpoint:
        assert sorted(checkpoint.header.others) == ["0/step", "1/step"]
