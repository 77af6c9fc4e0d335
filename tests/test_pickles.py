"""Torch pickles as inputs: the same tensors as torch itself reads (what people have met is in tests/cases)."""

import io
import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from lab import Lab, arr, read, same, write

from converter.errors import FormatError
from converter.formats import open_checkpoint, torch_files
from converter.formats.pickles import Global, PickleError, Reading, RefusedError, describe, read_pickle

torch = pytest.importorskip("torch")

KEEP = "rest: keep\nrules: []\n"
TIED = (
    "rules:\n  - {from: wte.weight, to: wte.weight}\n  - {from: lm_head.weight, to: lm_head.weight, tied: wte.weight}\n"
)


class Bench(Lab):
    """A laboratory whose inputs are pickles."""

    def saved(self, value, name="in.pt", **options) -> Path:
        torch.save(value, self.folder / name, **options)
        return self.folder / name

    def gives(self, value, want, *flags, text=KEEP, **options):
        """Convert what torch saves; the output holds exactly these tensors."""
        path = value if isinstance(value, Path) else self.saved(value, **options)
        self.output.unlink(missing_ok=True)
        r = self.run("--map", self.map(text), path, self.output, *flags)
        assert r.code == 0, r.err
        same(read(self.output), want)
        return r

    def refuses(self, value, *says, flags=(), text=KEEP, code=3, **options):
        path = value if isinstance(value, Path) else self.saved(value, **options)
        before = {*self.folder.iterdir(), self.map(text)}
        r = self.run("--map", self.map(text), path, self.output, *flags)
        assert r.code == code, (r.code, r.err)
        assert not [s for s in says if s not in r.err], r.err
        assert "Traceback" not in r.err
        assert set(self.folder.iterdir()) == before, "something was left behind"
        return r.err


@pytest.fixture
def lab(tmp_path):
    return Bench(tmp_path)


def tensor(*shape, start=0):
    return torch.from_numpy(arr(*shape, start=start))


def f4(*values):
    return np.array(values, "<f4")


# What is read.


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_the_two_containers(lab, new):
    values = {"w": tensor(2, start=1), "b": tensor(3, 4), "n": torch.tensor([5, -6]), "s": torch.tensor(2.5)}
    want = {k: v.numpy() for k, v in values.items()}
    lab.gives(values, want, _use_new_zipfile_serialization=new)


def test_every_dtype_is_read_as_torch_reads_it(lab):
    kinds = [
        *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
        *("uint16", "uint32", "uint64", "complex64", "float8_e4m3fn", "float8_e5m2"),
    ]
    values = {k: torch.tensor([0, 1, 0, 1]).to(getattr(torch, k)) for k in kinds}
    path = lab.saved(values)
    r = lab.run("--map", lab.map(KEEP), path, lab.output)
    assert r.code == 0, r.err
    with open_checkpoint(lab.output) as got:
        data = lab.output.read_bytes()
        for name, entry in got.header.tensors.items():
            assert data[entry.start : entry.stop] == values[name].view(torch.uint8).numpy().tobytes(), name


def test_a_state_dict_with_parameters_and_metadata(lab):
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    want = {k: v.numpy() for k, v in net.state_dict().items()}
    lab.gives(net.state_dict(), want)
    lab.gives(dict(net.named_parameters()), {k: v.detach().numpy() for k, v in net.named_parameters()})


def test_views_are_read_by_range_and_packed(lab):
    big = tensor(10, 10)
    values = {"slice": big[2:4], "col": big[:, 3], "t": big.t(), "exp": torch.ones(1, 3).expand(4, 3)}
    want = {k: np.ascontiguousarray(v.numpy()) for k, v in values.items()}
    lab.gives(values, want)
    assert sum(v.nbytes for v in read(lab.output).values()) == 568
    with open_checkpoint(lab / "in.pt") as checkpoint:
        assert checkpoint.header.tensors["col"].strides == (10,)
        assert checkpoint.header.tensors["slice"].strides is None


@pytest.mark.parametrize("memory", ["1KB", "256MiB"])
def test_views_go_through_ops_as_packed_tensors_do(lab, memory):
    base = tensor(6, 5, 7, 3)
    views = {
        "a": base.permute(2, 0, 3, 1),
        "b": base[1:5, ::2, 1:6:3].transpose(0, 3),
        "c": base[2].unsqueeze(1).expand(5, 4, 7, 3),
        "d": base[:, 2],
    }
    text = "rules:\n" + "".join(f"  - {{from: {k}, to: {k}.t, ops: [{{transpose: OP}}]}}\n" for k in views)
    for v in views.values():
        text = text.replace("OP", str(list(range(v.dim()))[::-1]), 1)
    want = {f"{k}.t": np.ascontiguousarray(v.numpy().transpose()) for k, v in views.items()}
    lab.gives(views, want, "--memory", memory, "--verify", text=text)


def test_one_storage_under_two_names(lab):
    """Two copies where the map keeps both, one where it ties them."""
    e = tensor(3, 2)
    values = {"wte.weight": e, "lm_head.weight": e}
    lab.gives(values, {k: e.numpy() for k in values})
    lab.gives(values, {"wte.weight": e.numpy()}, text=TIED)
    assert lab.run("--map", lab.map(TIED), lab.saved({"wte.weight": e, "lm_head.weight": e.flip(0)}), lab.output).code


def test_one_storage_with_other_strides_is_no_tie(lab):
    square = tensor(3, 3)
    lab.refuses({"wte.weight": square, "lm_head.weight": square.t()}, "differs", text=TIED, code=1)


def test_lazy_signs_are_applied(lab):
    """Conjugated and negated."""
    c = torch.tensor([1 + 2j, 3 - 4j, -0.0j])
    values = {"c": c.conj(), "n": torch._neg_view(torch.tensor([1.0, -2.0])), "plain": c}
    path = lab.saved(values)
    assert lab.run("--map", lab.map(KEEP), path, lab.output).code == 0
    with open_checkpoint(lab.output) as got:
        data = lab.output.read_bytes()
        for name, e in got.header.tensors.items():
            want = torch.view_as_real(values[name].resolve_conj()) if name != "n" else values[name].resolve_neg()
            assert data[e.start : e.stop] == want.contiguous().numpy().tobytes(), name


def test_big_endian_files_are_swapped(lab):
    buffer = io.BytesIO()
    torch.save({"a": tensor(300, 7, start=1), "h": torch.tensor([258], dtype=torch.int64)}, buffer)
    with zipfile.ZipFile(buffer) as given, zipfile.ZipFile(lab / "in.pt", "w") as made:
        for info in given.infolist():
            data = given.read(info)
            if info.filename.endswith("byteorder"):
                data = b"big"
            elif info.filename.endswith("data/0"):
                data = np.frombuffer(data, "<u4").byteswap().tobytes()
            elif info.filename.endswith("data/1"):
                data = np.frombuffer(data, "<u8").byteswap().tobytes()
            made.writestr(info.filename, data)
    lab.gives(lab / "in.pt", {"a": arr(300, 7, start=1), "h": np.array([258])})
    text = "rules:\n  - {from: a, to: a, ops: [transpose]}\n  - {from: h, to: h}\n"
    want = {"a": np.ascontiguousarray(arr(300, 7, start=1).T), "h": np.array([258])}
    lab.gives(lab / "in.pt", want, "--verify", text=text)


def test_shards_with_an_index(lab):
    folder = lab / "many"
    folder.mkdir()
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    big = tensor(4, 4)
    torch.save({"a": tensor(2, 3), "v": big.t()}, folder / names[0])
    torch.save({"b": tensor(4, start=9), "c": torch.tensor([1 + 2j]).conj(), "d": tensor(2)}, folder / names[1])
    where = {"a": names[0], "v": names[0], "b": names[1], "c": names[1], "d": names[1]}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    text = "drop: {from: [c]}\nrest: keep\nrules: []\n"
    want = {"a": arr(2, 3), "v": np.ascontiguousarray(big.numpy().T), "b": arr(4, start=9), "d": arr(2)}
    lab.gives(folder, want, text=text)


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_headers_do_not_read_data_and_need_no_torch(lab, new):
    """Neither torch nor numpy is imported to read what is in 64 MiB of weights, and the memory does not show them."""
    path = lab.saved({"w": torch.zeros(64 << 20, dtype=torch.uint8)}, _use_new_zipfile_serialization=new)
    code = (
        "import sys\nfrom converter.formats import open_checkpoint\n"
        f"c = open_checkpoint({str(path)!r})\nassert c.header.tensors['w'].shape == (64 << 20,)\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "print(next(x.split()[1] for x in open('/proc/self/status') if x.startswith('VmHWM')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 45 << 10


def test_inspect_shows_a_pickle(lab):
    path = lab.saved({"model": {"w": tensor(2, 3)}, "step": 3})
    r = lab.run("inspect", "--root", "model", path)
    assert r.code == 0, r.err
    assert "[2, 3]" in r.out
    assert lab.run("inspect", path).code == 3


# Which state dict.


def test_a_root_further_down(lab):
    deep = {"trainer": {"net": {"w": torch.ones(1)}}, "log": []}
    lab.refuses(deep, "--root trainer.net")
    lab.gives(deep, {"w": f4(1)}, "--root", "trainer.net")


def test_a_root_of_safetensors_is_refused(lab):
    write(lab.source, {"w": arr(2)})
    r = lab.run("--map", lab.map(KEEP), "--root", "model", lab.source, lab.output)
    assert r.code == 2
    assert "--root model is for torch pickles" in r.err


def test_entries_that_are_no_tensors_are_dropped_by_name_or_refused(lab):
    values = {"w": torch.ones(1), "step": 3, "name": "x", "none": None}
    lab.refuses(values, "step: is an int, not a tensor", "name: is text, not a tensor", "none: is None, not a tensor")
    r = lab.gives(values, {"w": f4(1)}, text="drop: {from: [step, name, none]}\nrest: keep\nrules: []\n")
    assert "dropped: step" in r.out


# What is refused.


@pytest.mark.filterwarnings("ignore")
def test_sparse_quantised_and_meta(lab):
    lab.refuses({"s": torch.eye(2).to_sparse()}, "s: is sparse")
    lab.refuses({"q": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}, "q: is quantised")
    lab.refuses({"m": torch.ones(2, device="meta")}, "m: is meta", "no data")
    lab.refuses({"c": torch.ones(2, dtype=torch.complex128)}, "complex128")


def test_integer_keys(lab):
    lab.refuses({1: torch.ones(1), "w": torch.ones(1)}, "key 1 is not text")
    lab.refuses({("a", 1): torch.ones(1), "w": torch.ones(1)}, "key ('a', 1) is not text")
    lab.refuses({"": torch.ones(1)}, "the empty text is no name")


def test_broken_files(lab):
    whole = lab.saved({"w": tensor(100, 100)}).read_bytes()
    for name, data, says in (
        ("half.pt", whole[: len(whole) // 2], "truncated"),
        ("none.bin", b"", "is empty (0 bytes)"),
        ("lfs.bin", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
        ("noise.pt", b"\x80\x02" + b"q" * 40, "no sound pickle"),
        ("zip.pt", None, "not one that torch.save wrote"),
    ):
        if data is None:
            with zipfile.ZipFile(lab / name, "w") as z:
                z.writestr("a", b"b")
        else:
            (lab / name).write_bytes(data)
        lab.refuses(lab / name, says)


def test_legacy_files_that_are_cut(lab):
    whole = lab.saved({"w": tensor(100)}, _use_new_zipfile_serialization=False).read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 60, 20):
        (lab / "cut.bin").write_bytes(whole[:size])
        lab.refuses(lab / "cut.bin", "cut.bin: ")


def test_stride_bombs(lab):
    lab.refuses({"w": torch.ones(1).expand(10**12)}, "w: needs 4000000000000 bytes, its storage has 4", "refused")
    many = {f"w{i}": torch.ones(1).expand(1 << 26) for i in range(20)}
    lab.refuses(many, "refused")


def test_shapes_that_reach_beyond_their_storage(lab):
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(3)}, buffer)
    with zipfile.ZipFile(buffer) as given, zipfile.ZipFile(lab / "in.pt", "w") as made:
        for info in given.infolist():
            made.writestr(info.filename, given.read(info).replace(b"K\x03\x85", b"K\x09\x85"))
    lab.refuses(lab / "in.pt", "w: [9] with strides [1] reaches to element 9 of a storage of 3")


def test_compressed_and_scripted_archives(lab):
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(3)}, buffer)
    with zipfile.ZipFile(buffer) as given, zipfile.ZipFile(lab / "in.pt", "w", zipfile.ZIP_DEFLATED) as made:
        for info in given.infolist():
            made.writestr(info.filename, given.read(info))
    lab.refuses(lab / "in.pt", "compressed")
    with zipfile.ZipFile(buffer) as given, zipfile.ZipFile(lab / "jit.pt", "w") as made:
        for info in given.infolist():
            made.writestr(info.filename, given.read(info))
        made.writestr("archive/constants.pkl", b"")
    lab.refuses(lab / "jit.pt", "TorchScript")


# The machine.

NOTHING = Reading(lambda word: False, lambda word, args: None, lambda pid: None)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, 255, 256, 65536, -1, 2**40, -(2**70), 0.5, "text", "ü" * 300, b"", b"x" * 300),
        *((), (1,), (1, 2, 3, 4), [1, [2]], {"a": {"b": [1]}}, {"k": ("x",) * 2}, {1, 2}, frozenset([1])),
    ],
    ids=lambda v: repr(v)[:20],
)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_is_read_as_pickle_reads_it(value, protocol):
    if isinstance(value, set | frozenset | bytes) and protocol < 4:
        pytest.skip("written as calls")
    data = pickle.dumps(value, protocol)
    assert read_pickle(b"--" + data + b"--", 2, NOTHING) == (value, 2 + len(data))


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02cposix\nsystem\n.", b"\x80\x02(S'a'\n.", b"\x80\x02R.", b"\x80\x02.", b"\x80\x02}(K\x01u.", b"",
        b"\x80\x02X\xff\xff\xff\x7fa.", b"\x80\x02h\x00.", b"\x80\x02)\x81.", b"\x80\x02]]e.", b"\x80\x02\x82\x01.",
        b"\x80\x02K\x01\x85\x85b.", b"\x80\x02u.", b"\x80\x02\x8b\xff\xff\xff\xff.",
    ],
)  # fmt: skip
def test_unsound_streams_are_refused(data):
    with pytest.raises(PickleError):
        read_pickle(data, 0, NOTHING)


def test_a_memo_index_takes_no_memory():
    value, _ = read_pickle(b"\x80\x02K\x07r\xff\xff\xff\x7f.", 0, NOTHING)
    assert value == 7


U8, I4 = (lambda n: n.to_bytes(8, "little")), (lambda n: n.to_bytes(4, "little", signed=True))
OPCODES = {
    "PROTO": b"\x80\x04K\x01.",
    "FRAME": b"\x80\x04\x95" + U8(3) + b"K\x01.",
    "POP": b"K\x01K\x020.",
    "POP of a mark": b"K\x01(0.",
    "POP_MARK": b"K\x01(K\x02K\x031.",
    "DUP": b"K\x012\x86.",
    "NONE": b"N.",
    "BINPUT": b"]q\xffK\x01h\xff\x86.",
    "LONG_BINPUT": b"]r\xff\xff\xff\x00K\x01j\xff\xff\xff\x00\x86.",
    "MEMOIZE": b"]\x94K\x01\x94K\x02h\x01h\x00\x87.",
    "NEWTRUE": b"\x88.",
    "NEWFALSE": b"\x89.",
    "BININT": b"J\xfe\xff\xff\xff.",
    "BININT1": b"K\xff.",
    "BININT2": b"M\xff\xff.",
    "LONG1": b"\x8a\x02\x00\xff.",
    "LONG1 of nothing": b"\x8a\x00.",
    "LONG4": b"\x8b" + I4(3) + b"\x01\x02\x83.",
    "BINFLOAT": b"G\x40\x09\x21\xfb\x54\x44\x2d\x18.",
    "BINUNICODE": b"X\x02\x00\x00\x00\xc3\xa9.",
    "SHORT_BINUNICODE": b"\x8c\x02\xc3\xa9.",
    "BINUNICODE8": b"\x8d" + U8(2) + b"\xc3\xa9.",
    "a lone surrogate": b"\x8c\x03\xed\xa0\x80.",
    "a lone surrogate, long": b"X\x03\x00\x00\x00\xed\xa0\x80.",
    "a lone surrogate, longer": b"\x8d" + U8(3) + b"\xed\xa0\x80.",
    "SHORT_BINSTRING": b"U\x02ab.",
    "BINSTRING": b"T" + I4(2) + b"ab.",
    "SHORT_BINBYTES": b"C\x02\xff\x00.",
    "BINBYTES": b"B\x02\x00\x00\x00\xff\x00.",
    "BINBYTES8": b"\x8e" + U8(2) + b"\xff\x00.",
    "EMPTY_DICT": b"}.",
    "EMPTY_LIST": b"].",
    "EMPTY_TUPLE": b").",
    "EMPTY_SET": b"\x8f.",
    "TUPLE1": b"K\x01\x85.",
    "TUPLE2": b"K\x01K\x02\x86.",
    "TUPLE3": b"K\x01K\x02K\x03\x87.",
    "TUPLE": b"(K\x01K\x02K\x03K\x04t.",
    "TUPLE of nothing": b"(t.",
    "LIST": b"(K\x01K\x02l.",
    "marks in marks": b"(K\x01(K\x02K\x03tl.",
    "FROZENSET": b"(K\x01K\x02\x91.",
    "SETITEM": b"}K\x01K\x02s.",
    "SETITEMS": b"}(K\x01K\x02K\x03K\x04u.",
    "APPEND": b"]K\x01a.",
    "APPENDS": b"](K\x01K\x02e.",
    "ADDITEMS": b"\x8f(K\x01K\x02\x90.",
}


@pytest.mark.parametrize("name", OPCODES)
def test_an_opcode_is_read_as_pickle_reads_it(name):
    data = OPCODES[name]
    value, at = read_pickle(data, 0, NOTHING)
    assert at == len(data)
    want = pickle.loads(data)
    assert (value, type(value)) == (want, type(want))
    for cut in range(len(data)):  # it is refused wherever it is cut
        with pytest.raises(PickleError):
            read_pickle(data[:cut], 0, NOTHING)


WORDS = Reading(lambda word: word.module == "m", lambda word, args: {word.name: args}, lambda pid: {"id": pid})


@pytest.mark.parametrize(
    ("data", "want"),
    [
        (b"cm\na\n.", Global("m", "a")),
        (b"\x8c\x01m\x8c\x01a\x93.", Global("m", "a")),
        (b"cm\na\nK\x01\x85R.", {"a": (1,)}),
        (b"cm\na\nK\x01\x85\x81.", {"a": (1,)}),
        (b"K\x07Q.", {"id": 7}),
        (b"cm\na\n)RK\x01b.", {"a": ()}),
        (b"}(K\x01\x85K\x02u.", {"(1,)": 2}),
        (b"\x8f(K\x01\x85\x90.", {"(1,)"}),
        (b"(K\x01\x85\x91.", {"(1,)"}),
    ],
)
def test_words_are_looked_up_and_calls_are_values(data, want):
    value, _ = read_pickle(data, 0, WORDS)
    assert value == want


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"cn\na\n.", "n.a"),
        (b"K\x01K\x02\x93.", "names something by what is no text"),
        (b"\x8c\x01mK\x02\x93.", "names something by what is no text"),
        (b"K\x01)R.", "calls what is no name"),
        (b"cm\na\n]R.", "calls what is no name"),
        (b"K\x01K\x01b.", "gives attributes to what has none"),
        (b"cm\na\nK\x01b.", "gives attributes to what has none"),
        (b"]K\x01b.", "gives attributes to what has none"),
        (b")K\x01b.", "gives attributes to what has none"),
        (b"\x8fK\x01b.", "gives attributes to what has none"),
        (b"](K\x01K\x02u.", "sets items of what is no dict"),
        (b"](u.", "sets items of what is no dict"),
        (b"}(K\x01u.", "sets items of what is no dict"),
        (b"}K\x01a.", "appends to what is no list"),
        (b")(e.", "appends to what is no list"),
        (b"](K\x01\x90.", "adds to what is no set"),
        (b"](\x90.", "adds to what is no set"),
        (b"K\x01t.", "has no mark where one is needed"),
        (b"K\x01\x86.", "too little is on its stack"),
        (b"K\x01(\x85.", "too little is on its stack"),
        (b"(K\x01\x86.", "too little is on its stack"),
        (b"(.", "too little is on its stack"),
        (b"\x8b\xff\xff\xff\xff.", "is cut short"),
        (b"\x8c\x02a.", None),
        (b"\x8c\x03a.", "is cut short"),
        (b"T\xff\xff\xff\xff.", "is cut short"),
        (b"}]K\x01s.", "has [] for a key"),
        (b"I1\n.", "has the opcode 0x49, which no checkpoint needs"),
        (b"h\x01.", "is no sound pickle (byte 2)"),
        (b"X\x01\x00", "is no sound pickle (byte 1)"),
    ],
)
def test_what_a_stream_does_wrong_is_said(data, says):
    with pytest.raises(PickleError) as e:
        read_pickle(data, 0, WORDS)
    assert says is None or says in str(e.value)
    assert isinstance(e.value, RefusedError) == (says == "n.a")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**128 - 1, str(2**128 - 1)),
        (2**128, "an integer of 129 bits"),
        ([1, 2, 3, 4], "[1, 2, 3, 4]"),
        ([1, 2, 3, 4, 5], "[1, 2, 3, 4, ...]"),
        ((1, 2, 3, 4, 5), "(1, 2, 3, 4, ...)"),
        ({1, 2, 3, 4, 5}, "{1, 2, 3, 4, ...}"),
        (dict.fromkeys(range(5), 0), "{0: 0, 1: 0, 2: 0, 3: 0, ...}"),
        ([[[1]]], "[[[...]]]"),
        ([[1]], "[[1]]"),
        (Global("a", "b"), "a.b"),
        (object(), "<object>"),
        ([Global("a" * 50, "b" * 50)], f"[{'a' * 50}.{'b' * 28}"),
    ],
)
def test_a_value_in_a_few_words(value, text):
    assert describe(value) == text


# The containers.


def resaved(lab, change, new=True, value=None):
    """What torch saves, with each record changed by a function of its name and bytes (None: without it)."""
    buffer = io.BytesIO()
    torch.save({"w": tensor(3)} if value is None else value, buffer)
    with zipfile.ZipFile(buffer) as given, zipfile.ZipFile(lab / "in.pt", "w") as made:
        for info in given.infolist():
            folder, _, name = info.filename.partition("/")
            data = change(name, given.read(info))
            if data is not None:
                made.writestr(f"{folder}/{name}", data)
    return lab / "in.pt"


def test_records_that_any_reader_asks_for(lab):
    lab.gives(resaved(lab, lambda n, d: d), {"w": arr(3)})
    lab.gives(resaved(lab, lambda n, d: None if n == "byteorder" else d), {"w": arr(3)})
    lab.gives(resaved(lab, lambda n, d: None if n == ".data/serialization_id" else d), {"w": arr(3)})
    for what in ("version", ".storage_alignment"):
        lab.refuses(resaved(lab, lambda n, d, what=what: b"x" if n == what else d), "one that is no number")
    lab.refuses(resaved(lab, lambda n, d: None if n == "version" else d), "it has no version")
    lab.gives(resaved(lab, lambda n, d: b" 3\n" if n == "version" else d), {"w": arr(3)})
    lab.refuses(resaved(lab, lambda n, d: b"middle" if n == "byteorder" else d), "an unknown byte order: middle")
    lab.refuses(resaved(lab, lambda n, d: None if n == "data/0" else d), "has no record data/0")
    lab.refuses(resaved(lab, lambda n, d: d[:-1] if n == "data/0" else d), "truncated: storage 0 has 11 bytes of 12")
    lab.gives(resaved(lab, lambda n, d: d + b"x" if n == "data/0" else d), {"w": arr(3)})
    lab.refuses(resaved(lab, lambda n, d: None if n == "data.pkl" else d), "it has no data.pkl")


def test_records_and_pickles_beyond_all_measure(lab, monkeypatch):
    path = lab.saved({"w": tensor(3)})
    with zipfile.ZipFile(path) as z:
        size = z.getinfo("in/data.pkl").file_size
    monkeypatch.setattr(torch_files, "MAX_PICKLE", size)
    lab.gives(path, {"w": arr(3)})
    monkeypatch.setattr(torch_files, "MAX_PICKLE", size - 1)
    lab.refuses(path, f"the record data.pkl has {size} bytes, more than the limit of {size - 1}")


def legacy(*objects, data=b""):
    return b"".join(o if isinstance(o, bytes) else pickle.dumps(o, 2) for o in objects) + data


MAGIC = 0x1950A86A20F9469CFC6C
ABOUT = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
ONE = b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x00kX\x03\x00\x00\x00cpuK\x02NtQK\x00K\x02\x85K\x01\x85\x89}tRs."
VALUES = np.array([1.5, -2], "<f4").tobytes()


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ((MAGIC, 1001, ABOUT, ONE, ["k"], U8(2) + VALUES), None),
        ((MAGIC, 1001, ABOUT, ONE, ["k"], U8(2) + VALUES + b"more"), None),
        ((MAGIC, 1001, {"little_endian": False}, ONE, ["k"], U8(2) + VALUES), "swapped"),
        ((MAGIC, 1001, {}, ONE, ["k"], U8(2) + VALUES), None),
        ((MAGIC + 1, 1001, ABOUT, ONE, ["k"], U8(2) + VALUES), "not one that torch.save wrote"),
        ((float(MAGIC), 1001, ABOUT, ONE, ["k"], U8(2) + VALUES), "not one that torch.save wrote"),
        ((MAGIC, 1002, ABOUT, ONE, ["k"], U8(2) + VALUES), "in a version that is not known: 1002"),
        ((MAGIC, 1001.0, ABOUT, ONE, ["k"], U8(2) + VALUES), "in a version that is not known: <float>"),
        ((MAGIC, 1001, [], ONE, ["k"], U8(2) + VALUES), "is no sound pickle of torch.save"),
        ((MAGIC, 1001, ABOUT, ONE, ("k",), U8(2) + VALUES), "is no sound pickle of torch.save"),
        ((MAGIC, 1001, ABOUT, ONE, ["k", 1], U8(2) + VALUES), "is no sound pickle of torch.save"),
        ((MAGIC, 1001, ABOUT, ONE, [], U8(2) + VALUES), "is no sound pickle of torch.save"),
        ((MAGIC, 1001, ABOUT, ONE, ["k", []], U8(2) + VALUES), "is no sound pickle of torch.save"),
        ((MAGIC, 1001, ABOUT, ONE, ["k", "k"], U8(2) + VALUES), "is no sound pickle of torch.save"),
        ((MAGIC, 1001, ABOUT, ONE, ["j"], U8(2) + VALUES), "is no sound pickle of torch.save"),
        ((MAGIC, 1001, ABOUT, ONE, ["k"], U8(3) + VALUES), "storage k has 3 elements, its pickle says 2"),
        ((MAGIC, 1001, ABOUT, ONE, ["k"], U8(2) + VALUES[:-1]), "truncated: storage k ends at byte"),
        ((MAGIC, 1001, ABOUT, ONE, ["k"], U8(2)[:-1]), "truncated: storage k ends at byte"),
    ],
)
def test_the_parts_of_a_legacy_file(lab, parts, says):
    path = lab / "in.pt"
    path.write_bytes(legacy(*parts))
    if says in (None, "swapped"):
        want = np.frombuffer(VALUES, "<f4")
        lab.gives(path, {"w": want.byteswap() if says else want})
        with open_checkpoint(path) as c:
            assert path.read_bytes()[c.header.tensors["w"].start :][:8] == VALUES
    else:
        lab.refuses(path, says)


def test_a_legacy_file_is_read_to_the_end_of_its_pickles_however_long(lab, monkeypatch):
    """The pickles are looked for in the first 4 MiB, then in 32, then in all; here in bytes."""
    big = {f"k{i}": "x" * 100 + str(i) for i in range(60_000)}
    path = lab / "in.pt"
    filler = pickle.dumps(ABOUT | {"big": big}, 2)
    assert 4 << 20 < len(filler) < 32 << 20
    path.write_bytes(legacy(MAGIC, 1001, filler, ONE, ["k"], U8(2) + VALUES, data=b"z" * (33 << 20)))
    assert list(torch_pickle_names(path)) == ["w"]
    with open(path, "r+b") as f:
        f.truncate(5 << 20)
    with pytest.raises(FormatError):
        torch_pickle_names(path)


def torch_pickle_names(path):
    with open_checkpoint(path) as c:
        return list(c.header.tensors)


def test_numbers_of_two_parts_of_big_endian_files_are_swapped_by_part(lab):
    value = torch.tensor([1 + 2j, -3.5j])
    swapped = value.numpy().view("<u4").byteswap().tobytes()
    path = resaved(lab, lambda n, d: {"byteorder": b"big", "data/0": swapped}.get(n, d), value={"c": value})
    lab.gives(path, {"c": value.numpy()})


def test_the_other_place_of_the_version(lab):
    path = resaved(lab, lambda n, d: d)
    with zipfile.ZipFile(path, "a") as z:
        z.writestr("archive/.data/version", "3\n")
    lab.gives(path, {"w": arr(3)})
    for version in ("3", "x"):
        with zipfile.ZipFile(resaved(lab, lambda n, d: None if n == "version" else d), "a") as z:
            z.writestr("archive/.data/version", version)
        if version == "3":
            lab.gives(path, {"w": arr(3)})
    lab.output.unlink()
    lab.refuses(path, "one that is no number")


def test_shards_with_entries_that_are_no_tensors(lab):
    folder = lab / "many"
    folder.mkdir()
    torch.save({"a": tensor(2), "step": 3, "note": "x"}, folder / "pytorch_model-1.bin")
    for names, says in ((("a", "step"), "step: is an int, not a tensor"), (("a",), None)):
        where = dict.fromkeys(names, "pytorch_model-1.bin")
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))
        if says:
            err = lab.refuses(folder, says)
            assert "note" not in err
        else:
            lab.gives(folder, {"a": arr(2)})


def test_bytes_of_big_endian_files_stand_as_they_are(lab):
    values = {"u": torch.arange(5, dtype=torch.uint8), "b": torch.tensor([True, False])}
    path = resaved(lab, lambda n, d: b"big" if n == "byteorder" else d, value=values)
    lab.gives(path, {k: v.numpy() for k, v in values.items()})
    with open_checkpoint(path) as c:
        assert [f.decode for f in c.header.files] == [""]


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_tensors_come_in_the_order_of_their_bytes(lab, new):
    big = tensor(3, 4)
    path = lab.saved({"last": big[2], "first": big[0], "middle": big[1]}, _use_new_zipfile_serialization=new)
    with open_checkpoint(path) as checkpoint:
        assert list(checkpoint.header.tensors) == ["first", "middle", "last"]


def test_a_class_is_a_whole_module_only_with_parameters_and_modules(lab):
    for text, whole in ((b"_modules", False), (b"_parameters", False), (b"_parameters_modules", True)):
        lab.source.with_suffix(".pt").write_bytes(
            b"\x80\x02cmodels\nNet\nX" + len(text).to_bytes(4, "little") + text + b"\x85R."
        )
        r = lab.run("--map", lab.map(KEEP), lab.source.with_suffix(".pt"), lab.output)
        assert ("holds a whole module" in r.err) is whole, r.err
        assert ("which is no tensor" in r.err) is not whole, r.err


def test_an_empty_zip_is_no_pickle(lab):
    path = lab / "in.pt"
    zipfile.ZipFile(path, "w").close()
    r = lab.run("--map", lab.map(KEEP), path, lab.output)
    assert (r.code, r.err) == (3, "in.pt: is not a torch pickle\n")
