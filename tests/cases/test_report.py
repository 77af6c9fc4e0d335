"""Live models: what was loaded, what was not, and that nothing changes unless everything fits."""

import copy

import numpy as np
import pytest
from lab import arr

import converter

from .field import f32

torch = pytest.importorskip("torch")
nn = torch.nn


def names(fates):
    return sorted(x.name for x in fates)


def test_report_01_nothing_loaded(case):
    given = {"model.weight": arr(2, 2), "model.bias": arr(2)}
    report = case.load_refused(nn.Linear(2, 2), given, "strip prefix model.")
    assert report.loaded == ()
    with pytest.raises(converter.ConvertError, match="strip prefix model"):
        report.raise_for_problems()
    assert names(report.missing) == ["bias", "weight"]
    assert names(report.unexpected) == ["model.bias", "model.weight"]


def test_report_04_broadcast(case):
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(4, 2))
    report = case.load_refused(model, {"w": f32([7, 8])}, "[1, 2]", "[4, 2]")
    assert names(report.shape_mismatch) == ["w"]
    case.load_refused(model, {"w": f32(7)}, "[1]", "[4, 2]")


def test_report_05_unexpected_with_valid_prefix(case):
    model = nn.ModuleDict({"fc1": nn.Linear(2, 2)})
    given = {"fc1.weight": arr(2, 2), "fc1.bias": arr(2), "fc1.weight.absmax": arr(1)}
    report = case.load_refused(model, given, "fc1.weight.absmax")
    assert names(report.unexpected) == ["fc1.weight.absmax"]
    assert names(report.missing) == []


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(3, 2)
        self.lm_head = nn.Linear(2, 3, bias=False)
        self.lm_head.weight = self.wte.weight


def test_report_06_tied_parameters(case):
    text = "rules: [{from: wte.weight, to: wte.weight}, {from: lm_head.weight, to: lm_head.weight, tied: wte.weight}]"
    one, zero = np.ones((3, 2), "<f4"), np.zeros((3, 2), "<f4")
    for given in ({"wte.weight": one}, {"wte.weight": one, "lm_head.weight": one}):
        model = Tied()
        report = case.load(model, given, text)
        assert [(t.name, t.of) for t in report.tied] == [("lm_head.weight", "wte.weight")]
        assert names(report.missing) == []
        assert model.wte.weight is model.lm_head.weight
        assert model.wte.weight.tolist() == one.tolist()
    model = Tied()
    differ = {"wte.weight": zero, "lm_head.weight": one}
    case.load_refused(model, differ, "lm_head.weight", "wte.weight", "differs", text=text)
    # The model says it too, where the map does not.
    case.load_refused(model, differ, "lm_head.weight", "wte.weight", "differs")
    assert model.wte.weight is model.lm_head.weight


def test_report_09_dtype_change_on_load(case):
    given = {"weight": f32([1.0001], [70000]), "bias": f32(0, 0)}
    model = nn.Linear(1, 2).half()
    case.load_refused(model, given, "weight", "1 value does not fit F16")
    report = case.load(model, given, allow_overflow=True)
    assert [(c.name, c.dtype, c.to, c.overflow) for c in report.cast] == [
        ("weight", "F32", "F16", 1),
        ("bias", "F32", "F16", 0),
    ]
    assert "weight: 1 value did not fit F16" in str(report)
    assert model.weight.dtype == model.bias.dtype == torch.float16
    assert model.weight.tolist() == [[1.0], [float("inf")]]


def test_report_10_meta_leftovers(case):
    given = {"weight": f32([1, 2], [3, 4]), "bias": f32(5, 6)}
    with torch.device("meta"):
        model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    report = case.load(model, given)
    assert len(report.loaded) == 2
    assert model.weight.tolist() == [[1, 2], [3, 4]]
    assert model.bias.tolist() == [5, 6]
    half = {"weight": given["weight"]}
    for options in ({}, {"allow_missing": True}):
        report = case.load_refused(other, half, "bias", **options)
    assert other.weight.is_meta
    assert other.bias.is_meta


def test_report_11_wrapped_live_model(case):
    given = {"weight": f32([1, 2], [3, 4]), "bias": f32(5, 6)}
    for wrap in (torch.compile, nn.DataParallel):
        model = wrap(nn.Linear(2, 2))
        assert not set(given) & set(model.state_dict())
        report = case.load(model, given)
        assert sorted(x.destination for x in report.loaded) == ["bias", "weight"]
        assert all(v.tolist() == given[k.split(".")[-1]].tolist() for k, v in model.state_dict().items())
        mixed = {"weight": given["weight"], "_orig_mod.bias": given["bias"]}
        report = case.load_refused(model, mixed, "_orig_mod.bias")
        assert names(report.unexpected) == ["_orig_mod.bias"]


def test_report_12_all_or_nothing(case):
    model = nn.ParameterDict({k: nn.Parameter(torch.zeros(1)) for k in "abc"})
    given = {"a": f32(1), "b": f32(2), "c": f32(3, 4)}
    before = copy.deepcopy(model.state_dict())
    case.load_refused(model, given, "c: ", "[2]", "[1]")
    assert all(v.tolist() == [0] for v in before.values())
    assert [model[k].item() for k in "abc"] == [0, 0, 0]
