"""Live torch modules: loaded by the plan that converts files, all of it or nothing, and exported again."""

import logging
import subprocess
import sys

import numpy as np
import pytest
from lab import Lab, arr, read, same, write

import converter

torch = pytest.importorskip("torch")
nn = torch.nn

KEEP = "rest: keep\nrules: []\n"
MAP = """
indices: {layer: n_layer}
drop: {from: ['h.{layer}.mask']}
rules:
  - {from: wte, to: embed.weight, shape: v d}
  - {from: 'h.{layer}.w', to: 'blocks.{layer}.weight', shape: d d, ops: [transpose]}
  - {from: 'h.{layer}.b', to: 'blocks.{layer}.bias', shape: d}
  - {from: head, to: head.weight, shape: v d, tied: wte}
"""


class Net(nn.Module):
    def __init__(self, layers=12, d=4, v=7, tie=True):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.blocks = nn.ModuleList(nn.Linear(d, d) for _ in range(layers))
        self.head = nn.Linear(d, v, bias=False)
        if tie:
            self.head.weight = self.embed.weight


def tensors(layers=12):
    out = {"wte": arr(7, 4) / 100}
    for i in range(layers):
        out |= {f"h.{i}.w": arr(4, 4, start=20 * i) / 100, f"h.{i}.b": arr(4, start=7 * i) / 100}
        out[f"h.{i}.mask"] = arr(1, 2)
    return {k: x.astype("<f4") for k, x in out.items()}


def state(model):
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def unchanged(model, before):
    now = model.state_dict()
    return all(torch.equal(now[k], v) for k, v in before.items())


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


def refused(lab, model, text=KEEP, **options):
    """Loading fails and leaves the model as it was; gives the error."""
    before = state(model)
    with pytest.raises(converter.ConvertError) as e:
        converter.load(model, lab.source, map=lab.map(text), **options)
    assert unchanged(model, before)
    return e.value


@pytest.mark.parametrize("stage", [True, False])
def test_everything_lands_where_it_belongs(lab, stage):
    t = tensors()
    write(lab.source, t)
    net = Net()
    held = dict(net.named_parameters())
    net.blocks[3].weight.requires_grad_(False)
    report = converter.load(net, lab.source, map=lab.map(MAP), stage=stage)
    assert [len(x) for x in (report.loaded, report.dropped, report.tied)] == [25, 12, 1]
    assert not [*report.missing, *report.unexpected, *report.shape_mismatch, *report.problems]
    for i in range(12):
        assert np.array_equal(net.blocks[i].weight.detach().numpy(), t[f"h.{i}.w"].T)
        assert np.array_equal(net.blocks[i].bias.detach().numpy(), t[f"h.{i}.b"])
    assert dict(net.named_parameters()) == held
    assert net.head.weight is net.embed.weight
    assert not net.blocks[3].weight.requires_grad
    assert net.blocks[4].weight.requires_grad
    assert report.bytes_written == sum(p.nbytes for p in net.parameters())


def test_the_report_is_folded_and_ends_in_one_sentence(lab):
    write(lab.source, tensors())
    report = converter.load(Net(), lab.source, map=lab.map(MAP))
    lines = str(report).splitlines()
    assert lines[0] == "loaded: wte -> embed.weight F32 [7, 4]"
    assert "loaded: h.{0..11}.w (12) -> blocks.{0..11}.weight (12) F32 [4, 4] (transpose)" in lines
    assert "dropped: h.{0..11}.mask (12)" in lines
    assert lines[-1].startswith("25 tensors loaded, 12 dropped, 1 tied, 0 missing, 0 unexpected, 0 mismatched; ")
    assert isinstance(report, converter.LoadReport)
    report.raise_for_problems()


def test_every_assignment_is_logged(lab, caplog):
    write(lab.source, tensors(2))
    with caplog.at_level(logging.INFO, "converter.live"):
        converter.load(Net(2), lab.source, map=lab.map(MAP))
    assert "h.1.w -> blocks.1.weight F32 [4, 4] (transpose)" in caplog.messages
    assert "wte -> embed.weight F32 [7, 4] (as it is)" in caplog.messages
    assert "head.weight = embed.weight (tied)" in caplog.messages


def test_a_model_with_the_names_of_the_checkpoint_is_told_that_it_needs_no_map(lab):
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    write(lab.source, {n: arr(*p.shape) for n, p in model.state_dict().items()})
    text = """
    indices: {i: n}
    rules:
      - {from: '{i}.weight', to: 'l.{i}.w', shape: _o _i, ops: [transpose]}
      - {from: '{i}.bias', to: 'l.{i}.b', shape: _o}
    """
    last = str(refused(lab, model, text)).splitlines()[-1]
    assert last.startswith("4 of 4 names that the model alone has have the form of the 'from' side, ")
    assert last.endswith("the map leads to the 'to' side: does this model need a map?")


# What does not fit, and what must not change (more of it in tests/cases/test_report.py).


def test_names_are_compared_whole(lab):
    model = nn.ModuleDict({"fc1": nn.Linear(2, 2)})
    write(lab.source, {"fc1.weight": arr(2, 2), "fc1.bias": arr(2), "fc1.weight.absmax": arr(1)})
    assert [x.name for x in refused(lab, model).report.unexpected] == ["fc1.weight.absmax"]
    report = converter.load(model, lab.source, map=lab / "map.yaml", allow_unexpected=True)
    assert [x.name for x in report.unexpected] == ["fc1.weight.absmax"]
    assert len(report.loaded) == 2


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(3, 2)
        self.lm_head = nn.Linear(2, 3, bias=False)
        self.lm_head.weight = self.wte.weight


TIES = (
    "rules:\n  - {from: wte.weight, to: wte.weight}\n  - {from: lm_head.weight, to: lm_head.weight, tied: wte.weight}\n"
)


@pytest.mark.parametrize("stage", [True, False])
@pytest.mark.parametrize("text", [TIES, KEEP], ids=["by the map", "by the model alone"])
def test_tied_parameters_stay_one(lab, text, stage):
    ones, zeros = np.ones((3, 2), "<f4"), np.zeros((3, 2), "<f4")
    for given, fits in (
        ({"wte.weight": ones}, True),
        ({"wte.weight": ones, "lm_head.weight": ones}, True),
        ({"wte.weight": zeros, "lm_head.weight": ones}, False),
    ):
        write(lab.source, given)
        model = Tied()
        if fits:
            report = converter.load(model, lab.source, map=lab.map(text), stage=stage)
            assert not report.missing
            assert bool(report.tied) == (len(given) == 1 or text == TIES)
            assert torch.equal(model.wte.weight, torch.ones(3, 2))
        else:
            e = refused(lab, model, text, stage=stage)
            assert "lm_head.weight" in str(e)
            assert "wte.weight" in str(e)
        assert model.wte.weight is model.lm_head.weight


def test_what_the_map_ties_becomes_one_parameter(lab):
    write(lab.source, tensors())
    net = Net(tie=False)
    converter.load(net, lab.source, map=lab.map(MAP))
    assert net.head.weight is net.embed.weight


def test_a_model_that_ties_names_of_two_sources_compares_them_after_ops(lab):
    text = "rules:\n  - {from: a, to: wte.weight, shape: v d, ops: [transpose]}\n  - {from: b, to: lm_head.weight}\n"
    write(lab.source, {"a": arr(2, 3), "b": np.ascontiguousarray(arr(2, 3).T)})
    converter.load(Tied(), lab.source, map=lab.map(text))
    write(lab.source, {"a": arr(2, 3), "b": arr(3, 2)})
    assert "in the model they are one tensor" in str(refused(lab, Tied(), text))


@pytest.mark.parametrize("stage", [True, False])
def test_a_value_that_does_not_fit_the_dtype_of_the_model(lab, stage):
    write(lab.source, {"weight": np.array([[1.0001], [70000]], "<f4"), "bias": np.zeros(2, "<f4")})
    model = nn.Linear(1, 2).half()
    e = refused(lab, model, stage=stage)
    assert "1 value does not fit F16" in str(e)
    report = converter.load(model, lab.source, map=lab.map(KEEP), stage=stage, allow_overflow=True)
    assert model.weight.dtype == torch.float16
    assert model.weight.flatten().tolist() == [1.0, float("inf")]
    assert [(c.name, c.dtype, c.to, c.overflow) for c in report.cast] == [
        ("weight", "F32", "F16", 1),
        ("bias", "F32", "F16", 0),
    ]


@pytest.mark.parametrize("stage", [True, False])
def test_meta_models_hold_the_staged_tensors(lab, stage):
    write(lab.source, tensors())
    with torch.device("meta"):
        net = Net()
    net.embed.weight.requires_grad_(False)
    converter.load(net, lab.source, map=lab.map(MAP), stage=stage)
    assert not any(p.is_meta for p in net.parameters())
    assert net.head.weight is net.embed.weight
    assert not net.embed.weight.requires_grad
    assert isinstance(net.blocks[0].weight, nn.Parameter)
    assert np.array_equal(net.blocks[11].weight.detach().numpy(), tensors()["h.11.w"].T)


def test_what_stays_on_meta_is_an_error_even_if_missing_is_allowed(lab):
    write(lab.source, {"weight": arr(2, 2)})
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(converter.ConvertError, match="bias: gets no value and is on the meta device"):
        converter.load(model, lab.source, map=lab.map(KEEP), allow_missing=True)
    assert model.weight.is_meta


def test_wrappers_are_taken_off(lab):
    write(lab.source, {"0.weight": arr(2, 2), "0.bias": arr(2)})
    for wrap in (torch.compile, nn.DataParallel, lambda m: nn.DataParallel(torch.compile(m))):
        model = nn.Sequential(nn.Linear(2, 2))
        report = converter.load(wrap(model), lab.source, map=lab.map(KEEP))
        assert sorted(x.destination for x in report.loaded) == ["0.bias", "0.weight"]
        assert model[0].weight.flatten().tolist() == [0, 1, 2, 3]
    inner = nn.Sequential(torch.compile(nn.Linear(2, 2)))
    assert len(converter.load(inner, lab.source, map=lab.map(KEEP)).loaded) == 2
    write(lab.source, {"0.weight": arr(2, 2), "_orig_mod.0.bias": arr(2)})
    refused(lab, torch.compile(nn.Sequential(nn.Linear(2, 2))))


# Options.


def test_params_are_held_against_the_file(lab):
    write(lab.source, tensors(3))
    assert "h.3.b" in str(refused(lab, Net(4), MAP, params={"n_layer": 4}))
    assert "out of range" in str(refused(lab, Net(2), MAP, params={"n_layer": 2}))
    assert "d = 5" in str(refused(lab, Net(3), MAP, set={"d": 5}))
    with pytest.raises(converter.UsageError):
        converter.load(Net(3), lab.source, map=lab.map(MAP), params={"d": 4}, set={"d": 5})
    converter.load(Net(3), lab.source, map=lab.map(MAP), params={"n_layer": 3, "d": 4})


def test_a_model_with_other_layers_than_the_file(lab):
    write(lab.source, tensors(3))
    e = refused(lab, Net(5), MAP)
    assert sorted(x.name for x in e.report.missing) == [f"blocks.{i}.{p}" for i in (3, 4) for p in ("bias", "weight")]
    net = Net(5)
    before = state(net)
    report = converter.load(net, lab.source, map=lab.map(MAP), allow_missing=True)
    assert len(report.missing) == 4
    assert torch.equal(net.blocks[4].weight, before["blocks.4.weight"])
    assert not torch.equal(net.blocks[2].weight, before["blocks.2.weight"])
    e = refused(lab, Net(2), MAP)
    assert sorted(x.name for x in e.report.unexpected) == ["h.2.b", "h.2.w"]
    assert len(converter.load(Net(2), lab.source, map=lab.map(MAP), allow_unexpected=True).loaded) == 5


def test_a_source_that_is_missing_is_told_once(lab):
    given = tensors(3)
    del given["h.1.b"]
    write(lab.source, given)
    e = refused(lab, Net(3), MAP)
    assert [p.subject for p in e.problems] == ["h.1.b"]
    assert [(x.name, x.reason) for x in e.report.missing] == [("blocks.1.bias", "h.1.b is missing from the checkpoint")]
    assert len(converter.load(Net(3), lab.source, map=lab.map(MAP), allow_missing=True).loaded) == 6


def test_what_only_an_absent_optional_rule_names_keeps_its_value(lab):
    text = "rules:\n  - {from: w, to: weight}\n  - {from: b, to: bias, optional: true}\n"
    write(lab.source, {"w": arr(2, 2)})
    model = nn.Linear(2, 2)
    bias = model.bias.detach().clone()
    report = converter.load(model, lab.source, map=lab.map(text))
    assert not report.missing
    assert report.absent == ("b",)
    assert torch.equal(model.bias, bias)


def test_the_dtype_of_a_model_is_changed_when_asked(lab):
    write(lab.source, tensors(2))
    net = Net(2)
    held = net.embed.weight
    net.blocks[0].weight.grad = torch.ones(4, 4)
    converter.load(net, lab.source, map=lab.map(MAP), dtype="bfloat16")
    assert {p.dtype for p in net.parameters()} == {torch.bfloat16}
    assert net.embed.weight is held is net.head.weight
    assert net.blocks[0].weight.grad.dtype == torch.bfloat16
    assert torch.equal(net.embed.weight, torch.from_numpy(tensors(2)["wte"]).bfloat16())


def test_whole_numbers_are_not_cast(lab):
    model = nn.BatchNorm1d(2)
    given = {k: v.numpy() for k, v in model.state_dict().items()}
    write(lab.source, given)
    assert len(converter.load(model, lab.source, map=lab.map(KEEP)).loaded) == 5
    write(lab.source, given | {"num_batches_tracked": np.float32(3)})
    assert "num_batches_tracked: the checkpoint gives F32, the model has I64" in str(refused(lab, model))


def test_terms_of_two_dtypes_join_in_the_dtype_of_the_model(lab):
    text = "rules:\n  - {from: [a, b], to: weight, shape: [n d, m d], ops: [{concat: 0}]}\n"
    write(lab.source, {"a": arr(1, 2, dtype="<f2"), "b": arr(2, 2, start=5)})
    model = nn.Linear(2, 3, bias=False)
    report = converter.load(model, lab.source, map=lab.map(text))
    assert model.weight.tolist() == [[0, 1], [5, 6], [7, 8]]
    assert str(report).splitlines()[0] == "loaded: a, b -> weight F32 [3, 2] ({concat: 0})"


def test_the_other_direction(lab):
    text = "rules:\n  - {from: weight, to: w, shape: a b, ops: [transpose]}\n"
    write(lab.source, {"w": arr(2, 3)})
    model = nn.Linear(2, 3, bias=False)
    converter.load(model, lab.source, map=lab.map(text), reverse=True)
    assert np.array_equal(model.weight.detach().numpy(), arr(2, 3).T)
    converter.export(model, lab.output, map=lab / "map.yaml", reverse=True)
    same(read(lab.output), {"w": arr(2, 3)})


def test_a_pickle_goes_into_a_model(lab):
    torch.save({"model": {"weight": torch.ones(2, 2).t(), "bias": torch.ones(2)}, "step": 1}, lab / "in.pt")
    model = nn.Linear(2, 2)
    converter.load(model, lab / "in.pt", map=lab.map(KEEP), root="model")
    assert model.weight.tolist() == [[1, 1], [1, 1]]


# What a model may be.


def test_parametrised_modules_get_a_clear_answer(lab):
    model = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    write(lab.source, {"weight": arr(2, 2), "bias": arr(2)})
    said = str(refused(lab, model))
    assert "weight: is computed by a parametrization from parametrizations.weight.original0, " in said
    assert "remove_parametrizations" in said
    text = "rules:\n  - {from: b, to: bias}\n  - {from: g, to: parametrizations.weight.original0}\n"
    write(lab.source, {"b": arr(2), "g": arr(2, 1), "v": arr(2, 2)})
    text += "  - {from: v, to: parametrizations.weight.original1}\n"
    assert len(converter.load(model, lab.source, map=lab.map(text)).loaded) == 3


def test_what_cannot_be_written_is_told_before(lab):
    write(lab.source, {"x": arr(3, 2)})

    def with_buffer(value):
        module = nn.Module()
        module.register_buffer("x", value)
        return module

    assert "is expanded" in str(refused(lab, with_buffer(torch.zeros(1, 2).expand(3, 2))))
    with pytest.raises(converter.ConvertError, match="is sparse"):
        converter.load(with_buffer(torch.eye(2).to_sparse()), lab.source, map=lab.map(KEEP))
    with torch.inference_mode():
        frozen = with_buffer(torch.zeros(3, 2))
    assert "inference mode" in str(refused(lab, frozen))
    strided = with_buffer(torch.zeros(2, 3).t())
    converter.load(strided, lab.source, map=lab.map(KEEP))
    assert np.array_equal(strided.x.numpy(), arr(3, 2))
    write(lab.folder / "linear.safetensors", {"weight": arr(2, 3), "bias": arr(2)})
    with pytest.raises(converter.ConvertError, match="lazy"):
        converter.load(nn.LazyLinear(2), lab.folder / "linear.safetensors", map=lab.map(KEEP))
    with pytest.raises(converter.UsageError, match=r"a torch\.nn\.Module is needed"):
        converter.load({"x": 1}, lab.source, map=lab.map(KEEP))


def test_scalars_and_empty_tensors(lab):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.s, self.e = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(0, 3))

    given = {"s": np.array(2.5, "<f4"), "e": np.zeros((0, 3), "<f4")}
    write(lab.source, given)
    model = Odd()
    converter.load(model, lab.source, map=lab.map(KEEP))
    assert model.s.item() == 2.5
    converter.export(model, lab.output, map=lab.map(KEEP))
    same(read(lab.output), given)


def test_buffers_that_no_checkpoint_holds(lab):
    model = nn.Linear(2, 2)
    model.register_buffer("cache", torch.ones(3), persistent=False)
    write(lab.source, {"weight": arr(2, 2), "bias": arr(2)})
    assert not converter.load(model, lab.source, map=lab.map(KEEP)).missing
    converter.export(model, lab.output, map=lab.map(KEEP))
    assert sorted(read(lab.output)) == ["bias", "weight"]


# Faults.


def test_a_reader_that_fails_at_any_tensor_leaves_the_model_as_it_was(lab, monkeypatch):
    from converter import transfer
    from converter.transfer import Files

    write(lab.source, tensors(3))
    net, real, left = Net(3), Files.read, [0]
    monkeypatch.setattr(transfer, "_readv", lambda *_: -1)  # every piece is then read by what fails below

    def failing(self, file, buffer, offset):
        left[0] -= 1
        if not left[0]:
            raise converter.FormatError("the disk is gone")
        real(self, file, buffer, offset)

    monkeypatch.setattr(Files, "read", failing)
    for limit in range(1, 40):
        left[0] = limit
        before = state(net)
        try:
            converter.load(net, lab.source, map=lab.map(MAP), jobs=1)
        except converter.FormatError:
            assert unchanged(net, before)
        else:
            break
    assert 5 < limit < 39


def test_a_streamed_load_that_fails_says_that_the_model_is_a_mixture(lab, monkeypatch):
    from converter import live_write

    write(lab.source, tensors(3))
    net, real, calls = Net(3), live_write.execute, []

    def failing(produces, *args, **options):
        calls.append(1)
        if produces and len(calls) == 4:
            raise converter.FormatError("the disk is gone")
        return real(produces, *args, **options)

    monkeypatch.setattr(live_write, "execute", failing)
    monkeypatch.setattr(live_write, "BATCH", 1)
    with pytest.raises(converter.FormatError, match=r"a mixture now: 2 of its 7 tensors"):
        converter.load(net, lab.source, map=lab.map(MAP), stage=False)


# Export.


@pytest.mark.parametrize("tied", ["omit", "copy"])
def test_load_export_load_gives_the_same_bytes(lab, tied):
    t = tensors()
    write(lab.source, t)
    net = Net()
    converter.load(net, lab.source, map=lab.map(MAP))
    report = converter.export(net, lab.output, map=lab / "map.yaml", tied=tied, verify=True)
    want = {k: v for k, v in t.items() if "mask" not in k} | ({"head": t["wte"]} if tied == "copy" else {})
    same(read(lab.output), want)
    assert len(report.loaded) == 25 + (tied == "copy")
    again = Net()
    assert not converter.load(again, lab.output, map=lab / "map.yaml").missing
    assert unchanged(again, state(net))
    with pytest.raises(converter.UsageError, match="exists already"):
        converter.export(net, lab.output, map=lab / "map.yaml")
    converter.export(net, lab / "many", map=lab / "map.yaml", max_shard_size=300)
    assert (lab / "many" / "model.safetensors.index.json").exists()


def test_an_export_of_other_strides_dtypes_and_ties(lab):
    net = Net(2).bfloat16()
    net.blocks[0].weight = nn.Parameter(torch.arange(16.0).reshape(4, 4).bfloat16().t())
    converter.export(net, lab.output, map=lab.map(MAP), dtype="float32")
    got = read(lab.output)
    assert np.array_equal(got["h.0.w"], arr(4, 4))
    assert sorted(got) == ["h.0.b", "h.0.w", "h.1.b", "h.1.w", "wte"]
    untied = Net(2, tie=False)
    lab.output.unlink()
    with pytest.raises(converter.ConvertError, match="although the map ties them"):
        converter.export(untied, lab.output, map=lab.map(MAP))
    assert not lab.output.exists()


def test_an_export_without_values_or_with_more_than_the_map(lab):
    with torch.device("meta"):
        net = Net(1)
    with pytest.raises(converter.ConvertError, match="on the meta device and has no values"):
        converter.export(net, lab.output, map=lab.map(MAP))
    net = Net(1)
    net.extra = nn.Linear(2, 2)
    with pytest.raises(converter.ConvertError, match=r"extra\.weight: unexpected"):
        converter.export(net, lab.output, map=lab.map(MAP))
    assert not lab.output.exists()


# What it costs.

PEAK = """
import gc, sys, torch, converter
def peak():
    return next(int(x.split()[1]) for x in open("/proc/self/status") if x.startswith("VmHWM")) / 1024
n, mode = int(sys.argv[1]), sys.argv[2]
class Big(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.p = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(1 << 18)) for _ in range(n))
with torch.device("meta" if mode == "meta" else "cpu"):
    model = Big()
small = Big.__new__(Big); torch.nn.Module.__init__(small)
converter.load(model, sys.argv[3], map=sys.argv[4], stage=mode != "stream", jobs=1, memory=1 << 20)
print(peak())
"""


def test_peak_memory(lab):
    """Of loads of n MiB into a meta model, staged beside a model, and streamed into it: n, 2n and n + 64 MiB."""
    peaks = {}
    for n in (0, 256):
        write(lab.source, {f"p.{i}": np.ones(1 << 18, "<f4") for i in range(n)} or {"p": arr(1)})
        for mode in ("meta", "stage", "stream"):
            given = [str(n), mode, str(lab.source), str(lab.map(KEEP if n else "rest: drop\nrules: []\n"))]
            done = subprocess.run([sys.executable, "-c", PEAK, *given], capture_output=True, text=True)
            if n:
                assert done.returncode == 0, done.stderr
            peaks[mode, n] = float(done.stdout or 0)
    base = peaks["meta", 256] - 256
    assert base < 300, peaks
    assert peaks["stage", 256] - peaks["meta", 256] < 256 + 40, peaks
    assert peaks["stream", 256] - peaks["meta", 256] < 64 + 40, peaks


def test_without_torch_the_functions_say_so():
    code = (
        "import sys; sys.modules['torch'] = None\nimport converter\nfrom converter import *\n"
        "try:\n    load(None, 'x', map='gpt2')\nexcept converter.UsageError as e:\n    print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "converter.load needs torch" in done.stdout, done.stderr
