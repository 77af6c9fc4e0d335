"""What torch writes into a pickle, as values: storages, tensors over them, and what stands beside them.

The words are those of torch/_utils.py (``_rebuild_*``) and torch/serialization.py (persistent ids). Where torch would
call a function, a value is made that says what the call asks for; nothing of torch is needed or run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from converter.formats.pickles import Global, PickleError, Reading, as_key, describe
from converter.spec import DTYPES, parse_dtype

_STORAGES = {
    "Float": "F32", "Double": "F64", "Half": "F16", "BFloat16": "BF16", "Long": "I64", "Int": "I32", "Short": "I16",
    "Char": "I8", "Byte": "U8", "Bool": "BOOL", "ComplexFloat": "C64",
}  # fmt: skip
_ODD = {  # storages of elements that no output can hold, with their bytes
    "QInt8": ("quantised", 1), "QUInt8": ("quantised", 1), "QInt32": ("quantised", 4), "QUInt4x2": ("quantised", 1),
    "QUInt2x4": ("quantised", 1), "ComplexDouble": ("of dtype complex128, which no output can hold", 16),
}  # fmt: skip
_WITHOUT = {
    "_rebuild_sparse_tensor": "sparse",
    "_rebuild_sparse_csr_tensor": "sparse",
    "_rebuild_qtensor": "quantised",
    "_rebuild_meta_tensor_no_storage": "meta (it has no data)",
    "_rebuild_nested_tensor": "nested",
    "_rebuild_wrapper_subclass": "a tensor subclass",
    "_rebuild_device_tensor_from_numpy": "on a device that keeps its data elsewhere",
    "_rebuild_device_tensor_from_cpu_tensor": "on a device that keeps its data elsewhere",
}
_PLAIN = {
    ("collections", "OrderedDict"), ("collections", "defaultdict"), ("collections", "Counter"), ("torch", "Size"),
    ("torch", "device"), ("torch", "Tensor"), ("torch.nn.parameter", "Parameter"), ("torch.nn.parameter", "Buffer"),
    ("torch.serialization", "_get_layout"), ("torch._tensor", "_rebuild_from_type_v2"), ("_codecs", "encode"),
    ("builtins", "set"), ("builtins", "complex"), ("builtins", "bytearray"), ("__builtin__", "set"),
    ("__builtin__", "complex"), ("__builtin__", "bytearray"), ("builtins", "dict"), ("builtins", "list"),
    ("builtins", "int"), ("builtins", "float"), ("builtins", "str"), ("torch.storage", "UntypedStorage"),
    ("torch.storage", "TypedStorage"),
}  # fmt: skip
_TENSORS = {"_rebuild_tensor": (4,), "_rebuild_tensor_v2": (6, 7), "_rebuild_tensor_v3": (7, 8)}  # and their arguments
_WRAPPERS = ("_rebuild_parameter", "_rebuild_parameter_with_state")


@dataclass(frozen=True)
class Storage:
    """Bytes by name: the key of a record, the safetensors dtype of its elements ("" for others), how many, their size.

    ``without`` says why elements of another dtype cannot be taken.
    """

    key: str
    dtype: str
    count: int
    size: int = 1
    without: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.count * self.size


@dataclass(frozen=True)
class Tensor:
    """A tensor over a storage, offset and strides in elements; ``without`` says why it has no bytes of its own."""

    storage: Storage | None = None
    offset: int = 0
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dtype: str = ""
    conj: bool = False
    neg: bool = False
    without: str = ""


@dataclass(frozen=True)
class Other:
    """Anything that is no tensor and no plain data."""

    what: str


def reading(seen: dict[str, Storage], size: int) -> Reading:
    """Give the meaning of the words of a checkpoint; storages are noted in ``seen`` by their keys.

    ``size`` is that of the stream in bytes: no sound one makes more items, and a call copies those of its arguments.
    """
    copied = 0

    def persistent(pid: Any) -> Storage:
        storage = _storage(pid)
        return seen.setdefault(storage.key, storage)

    def call(word: Global, args: tuple[Any, ...]) -> Any:
        nonlocal copied
        copied += sum(len(a) for a in args if isinstance(a, list | dict | tuple))
        if copied > size:
            raise PickleError("copies its items again and again")
        return _call(word, args)

    return Reading(_known, call, persistent)


def _known(word: Global) -> bool:
    if word in _PLAIN:
        return True
    if word.module == "torch._utils":
        return word.name in (*_TENSORS, *_WRAPPERS, *_WITHOUT)
    if word.module in ("torch", "torch.cuda"):
        if word.name.endswith("Storage"):
            return word.name.removesuffix("Storage") in (*_STORAGES, *_ODD)
        return word.module == "torch" and (parse_dtype(word.name) is not None or word.name in _TORCH)
    return False


_TORCH = {
    "complex32", "complex128", "qint8", "quint8", "qint32", "quint4x2", "per_tensor_affine", "per_channel_affine",
    "per_channel_affine_float_qparams", "per_tensor_symmetric", "per_channel_symmetric", "strided", "sparse_coo",
}  # fmt: skip


def _call(word: Global, args: tuple[Any, ...]) -> Any:
    if word.module == "torch._utils":
        if word.name in _WITHOUT:
            return Tensor(without=_WITHOUT[word.name])
        return args[0] if word.name in _WRAPPERS else _tensor(word.name, args)
    if word.name == "_rebuild_from_type_v2":
        function, kind, inner, _ = args
        made = _call(function, inner)
        plain = kind in (("torch", "Tensor"), ("torch.nn.parameter", "Parameter"), ("torch.nn.parameter", "Buffer"))
        return made if plain else replace(made, without=f"a {describe(kind)}")
    if word.name in ("OrderedDict", "defaultdict", "Counter", "dict"):
        if len(args) > 1 + (word.name == "defaultdict"):
            raise PickleError(f"makes a {word.name} of {len(args)} things")
        return _dict(args[0]) if args and isinstance(args[0], list | dict) else {}
    if word.module in ("torch", "torch.cuda") and word.name not in ("Size", "device", "Tensor"):
        raise PickleError(f"calls {word}, which is no function")
    if word.name == "set":
        return set()
    if word.name == "Size":
        return tuple(args[0])
    return Other(str(word))


def _dict(items: list[Any] | dict[Any, Any]) -> dict[Any, Any]:
    return dict(items) if isinstance(items, dict) else {as_key(key): value for key, value in items}


def _storage(pid: Any) -> Storage:
    if type(pid) is not tuple or len(pid) < 5 or pid[0] != "storage":
        raise PickleError(f"refers to {describe(pid)}, which is no storage")
    _, kind, key, _, count, *view = pid
    if type(kind) is not Global or type(key) is not str or type(count) is not int or count < 0:
        raise PickleError("has a storage of an unknown kind")
    if view and view[0] is not None:
        raise PickleError("has a storage that is a view of another, as torch before 0.4 wrote; save it anew")
    name = kind.name.removesuffix("Storage")
    if name == "Untyped":
        return Storage(key, "", count)
    if name in _ODD:
        without, size = _ODD[name]
        return Storage(key, "", count, size, without)
    return Storage(key, _STORAGES[name], count, DTYPES[_STORAGES[name]].bits // 8)


def _tensor(word: str, args: tuple[Any, ...]) -> Tensor:
    if len(args) not in _TENSORS[word]:
        raise PickleError("has a tensor that is made in a way that torch does not have")
    storage, offset, shape, strides, *more = args
    if not isinstance(storage, Storage):
        raise PickleError("has a tensor without a storage")
    if type(shape) is not tuple or type(strides) is not tuple:
        raise PickleError("has a tensor whose shape and strides are no tuples")
    sizes = (*shape, *strides, offset)
    if len(shape) != len(strides) or any(type(n) is not int or not 0 <= n < 1 << 63 for n in sizes):
        raise PickleError("has a tensor whose shape and strides are no sizes")
    dtype: str = storage.dtype
    if word == "_rebuild_tensor_v3":
        dtype = parse_dtype(more.pop(2).name) or ""
        if not dtype:
            return Tensor(without=f"of dtype {describe(args[6])}, which no output can hold")
    bits: Any = more[2] if len(more) > 2 and more[2] is not None else {}
    if type(bits) is not dict or (more and type(more[0]) is not bool):
        raise PickleError("has a tensor with flags of an unknown kind")
    if storage.without or not dtype:
        return Tensor(without=storage.without or "without a dtype")
    return Tensor(storage, offset, shape, strides, dtype, bool(bits.get("conj")), bool(bits.get("neg")))
