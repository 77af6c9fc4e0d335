"""The words of torch's pickles, each as torch has it, and what is made of them."""

import importlib
import itertools

import pytest

from converter.errors import FormatError
from converter.formats import torch_pickle
from converter.formats.pickles import Global, OddKey, PickleError
from converter.formats.torch_pickle import TORCH_PICKLE, packed
from converter.formats.torch_values import Other, Storage, Tensor, reading

torch = pytest.importorskip("torch")

STORAGES = {
    "Float": ("F32", 4), "Double": ("F64", 8), "Half": ("F16", 2), "BFloat16": ("BF16", 2), "Long": ("I64", 8),
    "Int": ("I32", 4), "Short": ("I16", 2), "Char": ("I8", 1), "Byte": ("U8", 1), "Bool": ("BOOL", 1),
    "ComplexFloat": ("C64", 8),
}  # fmt: skip
ODD = {"QInt8": 1, "QUInt8": 1, "QInt32": 4, "QUInt4x2": 1, "QUInt2x4": 1, "ComplexDouble": 16}
WITHOUT = {
    "_rebuild_sparse_tensor": "sparse",
    "_rebuild_sparse_csr_tensor": "sparse",
    "_rebuild_qtensor": "quantised",
    "_rebuild_meta_tensor_no_storage": "meta (it has no data)",
    "_rebuild_nested_tensor": "nested",
    "_rebuild_wrapper_subclass": "a tensor subclass",
    "_rebuild_device_tensor_from_numpy": "on a device that keeps its data elsewhere",
    "_rebuild_device_tensor_from_cpu_tensor": "on a device that keeps its data elsewhere",
}
WORDS = {
    "collections": "OrderedDict defaultdict Counter",
    "torch": "Size device Tensor float32 bfloat16 float8_e4m3fn complex32 complex128 qint8 quint8 qint32 quint4x2 "
    "per_tensor_affine per_channel_affine per_channel_affine_float_qparams per_tensor_symmetric per_channel_symmetric "
    "strided sparse_coo " + " ".join(f"{s}Storage" for s in (*STORAGES, *ODD)),
    "torch.cuda": "FloatStorage HalfStorage ByteStorage",
    "torch.nn.parameter": "Parameter Buffer",
    "torch.serialization": "_get_layout",
    "torch._tensor": "_rebuild_from_type_v2",
    "torch._utils": "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter "
    "_rebuild_parameter_with_state " + " ".join(WITHOUT),
    "torch.storage": "UntypedStorage TypedStorage",
    "_codecs": "encode",
    "builtins": "set complex bytearray dict list int float str",
}
KNOWN = [(m, n) for m, names in WORDS.items() for n in names.split()]
PYTHON2 = [("__builtin__", n) for n in ("set", "complex", "bytearray")]
FLOAT = Global("torch", "FloatStorage")


def means(size=1000):
    return reading({}, size)


def storage(count=12, kind="Float"):
    return means().persistent(("storage", Global("torch", f"{kind}Storage"), "0", "cpu", count))


def call(name, *args, module="torch._utils"):
    return means().call(Global(module, name), args)


@pytest.mark.parametrize(("module", "name"), KNOWN)
def test_a_word_is_known_and_torch_has_it(module, name):
    assert means().known(Global(module, name))
    if not name.startswith(
        ("_rebuild_sparse_csr", "per_tensor_sym", "per_channel_sym", "_rebuild_device_tensor_from_cpu")
    ):
        assert hasattr(importlib.import_module(module), name)
    assert not means().known(Global(module, f"{name}x"))
    assert not means().known(Global(f"{module}x", name))
    assert not means().known(Global("os", name))


def test_other_words_are_not_known():
    assert all(means().known(Global(*word)) for word in PYTHON2)
    for word in (
        *(
            ("torch", "load"),
            ("torch.cuda", "float32"),
            ("torch.cuda", "Size"),
            ("torch.cuda", "strided"),
            ("torch", "Storage"),
        ),
        *(
            ("torch._utils", "Size"),
            ("torch", "set"),
            ("builtins", "eval"),
            ("builtins", "frozenset"),
            ("torch", "OddStorage"),
        ),
        *(("__builtin__", "dict"), ("torch.storage", "FloatStorage"), ("torch.nn.parameter", "UninitializedParameter")),
    ):
        assert not means().known(Global(*word)), word


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [*STORAGES, *ODD, "Untyped"])
def test_a_storage_has_the_dtype_and_size_of_its_kind(kind):
    found = storage(3, kind)
    assert found.key == "0"
    assert found.count == 3
    assert (found.dtype, found.size) == STORAGES.get(kind, ("", ODD.get(kind, 1)))
    assert found.nbytes == 3 * (STORAGES[kind][1] if kind in STORAGES else ODD.get(kind, 1))
    assert found.without == (
        ""
        if kind not in ODD
        else "of dtype complex128, which no output can hold"
        if kind == "ComplexDouble"
        else "quantised"
    )
    if kind in STORAGES:
        assert getattr(torch, f"{kind}Storage")(3).nbytes() == found.nbytes


def test_a_storage_named_twice_is_one():
    seen = {}
    means = reading(seen, 9)
    first = means.persistent(("storage", FLOAT, "k", "cpu", 3, None))
    assert means.persistent(("storage", FLOAT, "k", "cuda:0", 5)) is first
    assert seen == {"k": first}


@pytest.mark.parametrize(
    ("pid", "says"),
    [
        (["storage", FLOAT, "0", "cpu", 1], "which is no storage"),
        (("storage", FLOAT, "0", "cpu"), "which is no storage"),
        (("module", FLOAT, "0", "cpu", 1), "which is no storage"),
        (("storage", "FloatStorage", "0", "cpu", 1), "unknown kind"),
        (("storage", FLOAT, 0, "cpu", 1), "unknown kind"),
        (("storage", FLOAT, "0", "cpu", True), "unknown kind"),
        (("storage", FLOAT, "0", "cpu", -1), "unknown kind"),
        (("storage", FLOAT, "0", "cpu", 1, ("k", 0, 1)), "a view of another"),
    ],
)
def test_what_is_no_storage(pid, says):
    with pytest.raises(PickleError, match=says):
        means().persistent(pid)


def test_an_empty_storage():
    assert storage(0).nbytes == 0


@pytest.mark.parametrize("name", WITHOUT)
def test_tensors_without_bytes_say_why(name):
    assert call(name, 1, 2, 3) == Tensor(without=WITHOUT[name])


def test_a_tensor_by_each_of_its_words():
    s = storage()
    want = Tensor(s, 1, (2, 3), (3, 1), "F32")
    assert call("_rebuild_tensor", s, 1, (2, 3), (3, 1)) == want
    assert call("_rebuild_tensor_v2", s, 1, (2, 3), (3, 1), False, {}) == want
    assert call("_rebuild_tensor_v2", s, 1, (2, 3), (3, 1), True, {}, None) == want
    flags = {"conj": True}
    assert call("_rebuild_tensor_v2", s, 1, (2, 3), (3, 1), True, {}, flags) == Tensor(
        s, 1, (2, 3), (3, 1), "F32", True
    )
    flags = {"neg": True}
    assert call("_rebuild_tensor_v2", s, 1, (2, 3), (3, 1), True, {}, flags) == Tensor(
        s, 1, (2, 3), (3, 1), "F32", False, True
    )
    raw = storage(24, "Untyped")
    for kind, dtype in (("float16", "F16"), ("uint16", "U16"), ("float8_e5m2", "F8_E5M2")):
        made = call("_rebuild_tensor_v3", raw, 0, (2,), (1,), False, {}, Global("torch", kind))
        assert made == Tensor(raw, 0, (2,), (1,), dtype)
        assert call("_rebuild_tensor_v3", raw, 0, (2,), (1,), False, {}, Global("torch", kind), {"neg": True}).neg
    odd = call("_rebuild_tensor_v3", raw, 0, (2,), (1,), False, {}, Global("torch", "complex128"))
    assert odd == Tensor(without="of dtype torch.complex128, which no output can hold")
    for word in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
        assert call(word, want, True, {}) is want
    assert call("_rebuild_tensor", storage(4, "QInt8"), 0, (2,), (1,)) == Tensor(without="quantised")
    assert call("_rebuild_tensor", raw, 0, (2,), (1,)) == Tensor(without="without a dtype")
    assert call("_rebuild_tensor", s, 2**63 - 1, (2,), (1,)).offset == 2**63 - 1


def v2(**changed):
    return ({"s": storage(), "o": 0, "shape": (2,), "strides": (1,), "grad": False, "hooks": {}} | changed).values()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([*v2()][:4], "in a way that torch does not have"),
        ([*v2()][:5], "in a way that torch does not have"),
        ([*v2(), None, None], "in a way that torch does not have"),
        (v2(s="0"), "without a storage"),
        (v2(shape=[2]), "shape and strides are no tuples"),
        (v2(strides=[1]), "shape and strides are no tuples"),
        (v2(strides=(1, 1)), "are no sizes"),
        (v2(shape=(2.0,)), "are no sizes"),
        (v2(shape=(True,)), "are no sizes"),
        (v2(strides=(-1,)), "are no sizes"),
        (v2(o=-1), "are no sizes"),
        (v2(o=2**63), "are no sizes"),
        (v2(grad=1), "flags of an unknown kind"),
        ([*v2(), ["conj"]], "flags of an unknown kind"),
    ],
)
def test_what_is_no_tensor(args, says):
    with pytest.raises(PickleError, match=says):
        call("_rebuild_tensor_v2", *args)


def test_a_tensor_of_another_type():
    inner = tuple(v2())
    word = Global("torch._utils", "_rebuild_tensor_v2")

    def of(*kind):
        return call("_rebuild_from_type_v2", word, Global(*kind), inner, {}, module="torch._tensor")

    for kind in (("torch", "Tensor"), ("torch.nn.parameter", "Parameter"), ("torch.nn.parameter", "Buffer")):
        assert not of(*kind).without
    assert of("torch", "Size").without == "a torch.Size"


def test_plain_containers():
    def of(name, *args):
        return call(name, *args, module="collections")

    pairs = [("a", 1), (("b", 2), 3)]
    for name in ("OrderedDict", "Counter", "dict"):
        assert of(name) == {}
        assert of(name, pairs) == {"a": 1, "('b', 2)": 3}
        given = {"a": 1}
        assert of(name, given) == given
        assert of(name, given) is not given
        assert of(name, ("a", 1)) == {}
        with pytest.raises(PickleError, match=f"makes a {name} of 2 things"):
            of(name, pairs, pairs)
    assert of("defaultdict", Global("builtins", "list")) == {}
    assert of("defaultdict", None, pairs) == {}  # its items are set one by one
    with pytest.raises(PickleError, match="makes a defaultdict of 3 things"):
        of("defaultdict", None, pairs, None)
    assert type(next(iter(of("dict", [(("b", 2), 3)])))) is OddKey
    assert call("set", [1], module="builtins") == set()
    assert call("Size", (2, 3), module="torch") == (2, 3)
    assert call("device", "cpu", module="torch") == Other("torch.device")
    assert call("encode", "a", "latin1", module="_codecs") == Other("_codecs.encode")
    for module, name in (
        ("torch", "float32"),
        ("torch", "FloatStorage"),
        ("torch.cuda", "FloatStorage"),
        ("torch", "strided"),
    ):
        with pytest.raises(PickleError, match=f"calls {module}.{name}, which is no function"):
            call(name, module=module)


def test_calls_copy_no_more_items_than_the_stream_has_bytes():
    word = Global("torch", "Size")
    means = reading({}, 6)
    for args in (((1, 2),), ((3,),), ((4, 5, 6),)):
        means.call(word, args)
    with pytest.raises(PickleError, match="again and again"):
        means.call(word, ((7,),))
    for one in ([1], {"a": 1}, (1,)):
        with pytest.raises(PickleError, match="again and again"):
            reading({}, 0).call(Global("collections", "OrderedDict"), (one,))
    reading({}, 0).call(Global("torch", "device"), ("cpu",))


def test_packed_is_what_torch_calls_contiguous():
    for axes in (0, 1, 2, 3):
        for shape in itertools.product((0, 1, 2, 3), repeat=axes):
            for strides in itertools.product((0, 1, 2, 3, 6), repeat=axes):
                want = torch.empty_strided(shape, strides).is_contiguous()
                assert packed(shape, strides) is want, (shape, strides)


# What lies where.


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_ranges_are_those_of_the_elements(tmp_path, new):
    base = torch.arange(60, dtype=torch.int16)
    views = {
        "all": base, "part": base[7:19], "two": base[20:40:5], "t": base[:12].reshape(3, 4).t(), "one": base[59:],
        "none": base[:0], "spread": base[5].expand(2, 3), "scalar": base[6],
    }  # fmt: skip
    path = tmp_path / "a.pt"
    torch.save(
        views
        | {"note": "x", "step": 1, "flag": True, "l": [1], "t.u": (), "o": torch.device("cpu"), "n": None, "f": 1.5},
        path,
        _use_new_zipfile_serialization=new,
    )
    header = TORCH_PICKLE.read_header(str(path))
    data = path.read_bytes()
    start = header.tensors["all"].start
    assert data[start : start + 120] == base.numpy().tobytes()
    for name, view in views.items():
        e = header.tensors[name]
        assert (e.dtype, e.shape) == ("I16", tuple(view.shape))
        assert e.strides == (None if view.is_contiguous() else view.stride())
        assert e.start == start + (2 * view.storage_offset() if view.numel() else 0)
        reach = sum((n - 1) * s for n, s in zip(view.shape, view.stride())) + 1
        assert e.stop - e.start == 2 * (reach if view.numel() else 0)
    assert header.others == {
        "note": "text", "step": "an int", "flag": "a bool", "l": "a list", "t.u": "a tuple", "o": "an other", "n": "None", "f": "a float",
    }  # fmt: skip
    for name in header.others:
        e = header.tensors[name]
        assert (e.dtype, e.shape, e.start, e.stop) == ("U8", (0,), 0, 0)


def test_how_much_tensors_may_exceed_their_storages(tmp_path, monkeypatch):
    path = tmp_path / "a.pt"
    torch.save({"a": torch.ones(2)[:1].expand(4), "b": torch.ones(1).expand(6), "c": torch.ones(9)[:2]}, path)
    monkeypatch.setattr(torch_pickle, "EXPANDED", 8 + 20)
    assert list(TORCH_PICKLE.read_header(str(path)).tensors) == ["a", "b", "c"]
    monkeypatch.setattr(torch_pickle, "EXPANDED", 8 + 19)
    with pytest.raises(FormatError, match="b: needs 24 bytes, its storage has 4: it is one value spread out"):
        TORCH_PICKLE.read_header(str(path))


def test_elements_that_63_bits_cannot_count():
    one = Storage("0", "U8", 1)
    for shape, says in (((2**62, 2), "too large: its elements"), ((2**62 - 1, 2), "it is one value spread out")):
        entries = torch_pickle._Entries("p", torch_pickle.Contents(None, lambda s: 0, False, None), 0, 0)
        with pytest.raises(FormatError, match=says):
            entries.header({"a": Tensor(one, 0, shape, (0, 0), "U8")})


def test_which_files_are_claimed():
    for head, claims in (
        (b"PK\3\4", True), (b"PK\3\5", False), (b"\x80\1", False), (b"\x80\2", True), (b"\x80\3", True),
        (b"\x80\4", True), (b"\x80\5", True), (b"\x80\5\x95", True), (b"\x80\6", False), (b"\x80", False), (b"", False), (b"\x81\2", False),
    ):  # fmt: skip
        assert TORCH_PICKLE.claims(head) is claims, head


# Which state dict.

ONE, SHARED = torch.ones(1), [1]
SEVERAL = "holds several things: %s; these look like state dicts: %s; say which one: %s"


@pytest.mark.parametrize(
    ("value", "root", "says"),
    [
        (ONE, None, "holds one tensor without a name, not a state dict (names to tensors)"),
        ([ONE], None, "holds a list, not a state dict (names to tensors)"),
        ({"a": {"w": ONE}, "b": {"v": ONE, "u": ONE}, "n": 1}, None, SEVERAL % ("a, b, n", "a (1 tensor), b (2 tensors)", "--root a or --root b")),
        ({"a": [ONE], 1: 2}, None, "holds several things: a, 1; say which one: no part of it is a state dict"),
        ({"c": [[ONE]], "a": SHARED, "b": SHARED}, None, "holds several things: c, a, b; say which one: no part of it is a state dict"),
        ({"a": {"w": ONE, "n": 1}}, None, "holds several things: a; say which one: no part of it is a state dict"),
        ({"a": (1, {"x": [ONE]})}, None, "holds several things: a; say which one: no part of it is a state dict"),
        ({"a": {"b": {"c": {"w": ONE}}}}, None, SEVERAL % ("a", "a.b.c (1 tensor)", "--root a.b.c")),
        ({"a": {"b": {"c": {"d": {"w": ONE}}}}}, None, "holds several things: a; say which one: no part of it is a state dict"),
        ({"a": {"w": ONE}}, "b", "--root b is not in it: it has a; these look like state dicts: a"),
        ({"a": {"w": ONE}, "c": {"w": ONE}}, "b", "--root b is not in it: it has a, c; these look like state dicts: a, c"),
        ({"a": {"w": ONE}, "n": 3}, "n", "--root n is not a state dict: it has a, n; these look like state dicts: a"),
        ({"a": {"w": ONE}}, "a.w.x", "--root a.w.x is not in it: it has a; these look like state dicts: a"),
        ({"a": {"w": 1}}, "a", "--root a is not a state dict: it has a"),
        ({"w": ONE}, "x", "--root x is not in it: it has w"),
    ],
)  # fmt: skip
def test_what_there_is_to_choose_from_is_said(tmp_path, value, root, says):
    path = tmp_path / "a.pt"
    torch.save(value, path)
    with pytest.raises(FormatError) as e:
        TORCH_PICKLE.read_header(str(path), root)
    assert str(e.value).endswith(f"a.pt: {says}")


@pytest.mark.parametrize(
    ("value", "root", "names"),
    [
        ({"w": ONE, "x": [1, {}], "y": {"z": ()}}, None, ["w", "x", "y"]),
        ({"w": ONE}, None, ["w"]),
        ({}, None, []),
        ({"a": {}, "b": {"w": ONE}}, "a", []),
        ({"a": {"w": ONE, "n": 1}}, "a", ["w", "n"]),
        ({"a.b": {"w": ONE}, "a": {"b": {"v": ONE}}}, "a.b", ["w"]),
        ({"a": {"b": {"c": {"d": {"w": ONE}}}}}, "a.b.c.d", ["w"]),
    ],
)
def test_which_is_read(tmp_path, value, root, names):
    path = tmp_path / "a.pt"
    torch.save(value, path)
    assert sorted(TORCH_PICKLE.read_header(str(path), root).tensors) == sorted(names)


def test_a_dict_that_is_in_itself(tmp_path):
    inner = {"n": 1}
    inner["self"] = inner
    path = tmp_path / "a.pt"
    torch.save({"w": ONE, "loop": inner}, path)
    assert set(TORCH_PICKLE.read_header(str(path)).tensors) == {"w", "loop"}
