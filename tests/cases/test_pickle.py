"""Torch pickles: which part, what is in it, and what is refused."""

import argparse
import io
import zipfile

import numpy as np
import pytest
from lab import read

from .field import KEEP, f32
from .test_format import POINTER

torch = pytest.importorskip("torch")


def one(value):
    return torch.tensor([float(value)])


def alone(text):
    assert len(text.splitlines()) == 1, text


def test_pickle_01_refused_global(case):
    value = {"args": argparse.Namespace(a=1), "best": np.float64(0.5), "model": {"w": torch.ones(2)}}
    for flags in (("--root", "model"), ()):
        alone(case.refused(KEEP, case.saved(value), 3, "argparse.Namespace", "save the tensors alone", flags=flags))


def test_pickle_03_legacy_nozip(case):
    value, want = {"w": torch.tensor([1.0, 2.0])}, {"w": f32(1, 2)}
    case.gives(KEEP, case.saved(value, _use_new_zipfile_serialization=False), want)
    first = case.output.read_bytes()
    case.gives(KEEP, case.saved(value), want)
    assert case.output.read_bytes() == first


def test_pickle_04_whole_module(case):
    says = ["a whole module", "torch.nn.modules.linear.Linear", "save model.state_dict() instead"]
    for zipped in (True, False):
        path = case.saved(torch.nn.Linear(2, 2), _use_new_zipfile_serialization=zipped)
        alone(case.refused(KEEP, path, 3, *says))


NESTED = {
    "state_dict": {"model.w": one(1)},
    "epoch": 3,
    "optimizer": {"state": {0: {"exp_avg": one(9)}}, "param_groups": [{"lr": 0.001}]},
    "hyper_parameters": {"d": 2},
}


def test_pickle_06_nested_root(case):
    text = "strip: {from: [model.]}\n" + KEEP
    path = case.saved(NESTED)
    case.gives(text, path, {"w": f32(1)}, "--root", "state_dict")
    keys = "state_dict, epoch, optimizer, hyper_parameters"
    case.refused(text, path, 3, keys, "look like state dicts: state_dict", "--root state_dict")
    for wrong in ("weights", "epoch", "optimizer"):
        case.refused(text, path, 3, f"--root {wrong}", "state_dict", flags=("--root", wrong))


def test_pickle_07_two_candidates(case):
    path = case.saved({"model": {"w": one(1)}, "ema": {"w": one(2)}})
    alone(case.refused(KEEP, path, 3, "model (1 tensor), ema (1 tensor)", "--root model or --root ema"))
    case.gives(KEEP, path, {"w": f32(2)}, "--root", "ema")


def test_pickle_10_gpu_tagged(case):
    buffer = io.BytesIO()
    torch.save({"w": torch.arange(4.0)}, buffer)
    cpu = b"X\x03\x00\x00\x00cpu"
    for device in ("cuda:0", "npu:0"):
        with zipfile.ZipFile(buffer) as given, zipfile.ZipFile(case / "in.pt", "w") as made:
            for info in given.infolist():
                data = given.read(info)
                if info.filename.endswith("data.pkl"):
                    assert cpu in data
                    data = data.replace(cpu, b"X" + len(device).to_bytes(4, "little") + device.encode())
                made.writestr(info.filename, data)
        case.gives(KEEP, case / "in.pt", {"w": f32(0, 1, 2, 3)})


def test_pickle_11_views(case):
    big = torch.arange(100, dtype=torch.float32).reshape(10, 10)
    path = case.saved({"slice": big[2:4], "col": big[:, 3], "t": big.t(), "exp": torch.ones(1, 3).expand(4, 3)})
    want = {
        "slice": f32(range(20, 30), range(30, 40)),
        "col": f32(*range(3, 100, 10)),
        "t": f32(*(range(k, 100, 10) for k in range(10))),
        "exp": np.ones((4, 3), "<f4"),
    }
    case.gives(KEEP, path, want)
    assert sum(x.nbytes for x in read(case.output).values()) == 568


def test_pickle_13_lazy_conj(case):
    path = case.saved({"c": torch.tensor([1 + 2j]).conj()})
    case.gives(KEEP, path, {"c": np.array([1 - 2j], "<c8")})


@pytest.mark.filterwarnings("ignore")
def test_pickle_14_sparse_quantized_meta(case):
    for value, says in (
        ({"s": torch.eye(2).to_sparse()}, ["s: is sparse"]),
        ({"q": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}, ["q: is quantised"]),
        ({"m": torch.ones(2, device="meta")}, ["m: is meta", "no data"]),
    ):
        alone(case.refused(KEEP, case.saved(value), 3, *says))


def test_pickle_15_integer_keys(case):
    alone(case.refused(KEEP, case.saved({1: one(1), "w": one(2)}), 3, "key 1 is not text"))
    alone(case.refused(KEEP, case.saved({("a", 1): one(1), "w": one(2)}), 3, "key ('a', 1) is not text"))


def test_pickle_17_zero3_placeholders(case):
    text = "rules: [{from: fc.weight, to: fc.weight, shape: 2 2}, {from: fc.bias, to: fc.bias, shape: 2}]"
    hint = "ZeRO-3 placeholder"
    empty = {"fc.weight": torch.empty(0), "fc.bias": torch.empty(0)}
    says = ["fc.weight: shape is [0], expected [2, 2]", "fc.bias: shape is [0], expected [2]", hint, "consolidat"]
    case.refused(text, case.saved(empty), 1, *says)
    whole = {"fc.weight": torch.ones(2, 2), "fc.bias": torch.empty(0)}
    assert hint not in case.refused(text, case.saved(whole), 1, "fc.bias: shape is [0], expected [2]")


def test_pickle_18_broken_files(case):
    whole = case.saved({"w": torch.ones(100, 100)}).read_bytes()
    for name, data, says in (
        ("half.pt", whole[: len(whole) // 2], "truncated"),
        ("none.bin", b"", "is empty (0 bytes)"),
        ("lfs.bin", POINTER, "is a Git LFS pointer"),
    ):
        (case / name).write_bytes(data)
        alone(case.refused(KEEP, case / name, 3, f"{name}: ", says))
