"""Maps and checkpoints come from strangers."""

import os
import pickle

import pytest
from lab import header, read, write

from .field import KEEP, f32, state
from .test_shard import folder


def test_security_01_index_path_traversal(case):
    secret = write(case / "outside" / "secret.safetensors", {"w": f32(42)})
    for name in (
        "../outside/secret.safetensors",
        str(secret),
        "C:\\x.safetensors",
        "..\\outside\\secret.safetensors",
        "sub/../../outside/secret.safetensors",
        "",
        ".",
    ):
        given = folder(case, {"w": name}, {})
        err = case.refused(KEEP, given, 3, "weight_map: w is in '", case.clean(name))
        assert len(err.splitlines()) == 1
        if name == str(secret):
            case.texts.pop()  # it names the folder of this run
    # Plain names in sub-folders are fine, and so are links, wherever they lead: a hub cache is made of them.
    given = folder(case, {"w": "sub/s1.safetensors"}, {"sub/s1.safetensors": {"w": f32(1)}})
    case.gives(KEEP, given, {"w": f32(1)})
    given = folder(case, {"w": "s1.safetensors"}, {})
    (given / "s1.safetensors").symlink_to("../outside/secret.safetensors")
    case.gives(KEEP, given, {"w": f32(42)})


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


def test_security_03_pickle_code(case):
    torch = pytest.importorskip("torch")
    mark = case / "MARK"
    bare = case / "model.bin"
    bare.write_bytes(pickle.dumps(Touch(mark)))
    value = {"w": torch.ones(2), "x": Touch(mark)}
    for given in (case.saved(value), case.saved(value, "old.pt", _use_new_zipfile_serialization=False), bare):
        err = case.refused(KEEP, given, 3, "posix.system", "save the tensors alone")
        assert len(err.splitlines()) == 1
        assert not mark.exists()


def test_security_04_stride_bomb(case):
    torch = pytest.importorskip("torch")
    bomb = case.saved({"w": torch.ones(1).expand(10**12)})
    assert bomb.stat().st_size < 4096
    case.refused(KEEP, bomb, 3, "w: needs 4000000000000 bytes, its storage has 4")
    case.gives(KEEP, case.saved({"w": torch.tensor([[1.0, 2, 3]]).expand(4, 3)}), {"w": f32(*[[1, 2, 3]] * 4)})


def test_security_07_output_names_stay_inside(case):
    names = ["../../x", "/etc/x", "a/b", "model-00001-of-00003.safetensors"]
    given = {name: f32(k) for k, name in enumerate(names)}
    before = set(state(case.folder))
    out = case / "out"
    case.converts(KEEP, given, "--max-shard-size", "1", output=out)
    files = [f"model-{k:05}-of-00004.safetensors" for k in range(1, 5)]
    assert sorted(state(out)) == sorted([*files, "model.safetensors.index.json"])
    new = {n for n in set(state(case.folder)) - before if not n.startswith("out")}
    assert new == {"in.safetensors", "map.yaml"}
    assert [n for f in files for n in header(out / f) if n != "__metadata__"] == names
    assert [float(x[0]) for f in files for x in read(out / f).values()] == [0, 1, 2, 3]
