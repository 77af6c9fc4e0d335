"""A live torch module as named tensors: under the names that its code has, whatever wraps it, each tensor once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from converter.errors import MismatchError, Problem, UsageError
from converter.live_fit import Entry
from converter.spec import DTYPES, parse_dtype
from converter.transfer import Memory

_SHARDED = ("FullyShardedDataParallel",)


@dataclass(frozen=True)
class Slot:
    """A place of a module that holds a tensor: the module, the name of the attribute, the tensor that is there now."""

    name: str
    module: torch.nn.Module
    attribute: str
    tensor: torch.Tensor
    persistent: bool

    @property
    def parameter(self) -> bool:
        """Tell a parameter from a buffer."""
        return self.attribute in self.module._parameters

    def put(self, tensor: torch.Tensor) -> None:
        """Hold another tensor; a dict assignment, which cannot fail."""
        (self.module._parameters if self.parameter else self.module._buffers)[self.attribute] = tensor  # type: ignore[assignment]


@dataclass(frozen=True)
class Model:
    """The tensors of a model: all slots by name, and the names of each tensor, first name first."""

    slots: Mapping[str, Slot]
    groups: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]

    def entries(self, dtype: str | None = None) -> dict[str, Entry]:
        """Describe every slot; ``dtype`` (a safetensors name) is what floating tensors shall become."""
        firsts = {n: first for first, names in self.groups.items() for n in names}
        out = {}
        for name, slot in self.slots.items():
            t = slot.tensor
            trouble = unreadable(t)
            have = code(t) if not trouble else ""
            want = dtype if dtype and have and DTYPES[have].kind == "float" else have
            shape = tuple(t.shape) if not trouble or _known(t) else ()
            required = any(self.slots[n].persistent for n in self.groups[firsts[name]])
            if not trouble and want == have and not t.is_meta:
                trouble = unwritable(t)
            out[name] = Entry(name, firsts[name], want, shape, required, t.is_meta, trouble)
        return out


def read_model(model: Any) -> Model:
    """List the tensors of a module; raises UsageError for what is no module, or one whose tensors are sharded."""
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"a torch.nn.Module is needed, this is {type(model).__name__}")
    slots = {s.name: s for s in _walk(model, "", set())}
    groups: dict[int, list[str]] = {}
    for name, slot in slots.items():
        groups.setdefault(id(slot.tensor), []).append(name)
    idle = [n for n, s in slots.items() if not s.persistent and s.tensor.is_meta]
    notes = (f"on the meta device, and in no checkpoint: {', '.join(idle[:8])} (non-persistent)",) if idle else ()
    return Model(slots, {names[0]: tuple(names) for names in groups.values()}, notes)


def unwrap(module: torch.nn.Module) -> torch.nn.Module:
    """Take off what only wraps: data parallel and compiled modules. Raises UsageError for sharded ones."""
    while True:
        if type(module).__name__ in _SHARDED:
            raise UsageError(
                "FullyShardedDataParallel: each process has a part of its tensors; load before it is wrapped"
            )
        if isinstance(module, torch.nn.DataParallel | torch.nn.parallel.DistributedDataParallel):
            module = module.module
        elif isinstance(inner := module._modules.get("_orig_mod"), torch.nn.Module):
            module = inner
        else:
            return module


def _walk(module: torch.nn.Module, prefix: str, above: set[int]) -> Iterator[Slot]:
    module = unwrap(module)
    if id(module) in above:  # a module that contains itself
        return
    for attribute, parameter in module._parameters.items():
        if parameter is not None:
            yield Slot(prefix + attribute, module, attribute, parameter, True)
    for attribute, buffer in module._buffers.items():
        if buffer is not None:
            yield Slot(
                prefix + attribute, module, attribute, buffer, attribute not in module._non_persistent_buffers_set
            )
    for name, child in module._modules.items():
        if child is not None:
            yield from _walk(child, f"{prefix}{name}.", above | {id(module)})


def computed(model: torch.nn.Module) -> dict[str, str]:
    """Name the tensors that a parametrization computes, with what it computes them from."""
    out: dict[str, str] = {}
    for path, module in unwrap(model).named_modules():
        stored = [n for n, _ in module.named_parameters(prefix=path)]
        for name in getattr(module, "parametrizations", None) or {}:
            full = f"{path}.{name}" if path else name
            out[full] = ", ".join(n for n in stored if f"parametrizations.{name}." in n)
    return out


def refuse_computed(model: torch.nn.Module, wanted: Iterator[str]) -> None:
    """Raise MismatchError if a name is that of a tensor that a parametrization computes."""
    found = computed(model)
    problems = [
        Problem(
            f"is computed by a parametrization from {found[n]}: load before it is registered, remove it "
            "(torch.nn.utils.parametrize.remove_parametrizations), or let the map name these",
            "parametrized",
            n,
        )
        for n in wanted
        if n in found
    ]
    if problems:
        raise MismatchError(problems)


def code(tensor: torch.Tensor) -> str:
    """Give the safetensors name of a tensor's dtype, "" if the format has none."""
    return parse_dtype(str(tensor.dtype)) or ""


def _known(tensor: torch.Tensor) -> bool:
    return not torch.nn.parameter.is_lazy(tensor)


def unreadable(tensor: torch.Tensor) -> str:
    """Say why a tensor is not one that bytes can be read from or put into."""
    if not _known(tensor):
        return "is not initialised (a lazy module): run the model once before"
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return f"is {'quantised' if tensor.is_quantized else 'sparse'}, which has no plain bytes"
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and hasattr(
        tensor, "__tensor_flatten__"
    ):
        return f"is a {type(tensor).__name__}, which has no plain bytes"
    return "" if code(tensor) else f"is {tensor.dtype}, which the converter does not know"


def unwritable(tensor: torch.Tensor) -> str:
    """Say why a tensor cannot be written in place: found out before, so that writing cannot fail."""
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return "was made in inference mode, where nothing may change it: build the model outside, or load inside"
    if any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride())):
        return "is expanded: several of its entries share one place in memory"
    return ""


def empty(dtype: str, shape: tuple[int, ...]) -> tuple[torch.Tensor, Memory]:
    """Make a tensor in host memory, with its bytes as an end of transfers."""
    tensor = torch.empty(shape, dtype=getattr(torch, DTYPES[dtype].numpy), device="cpu")
    return tensor, memory_of(tensor)


def memory_of(tensor: torch.Tensor) -> Memory:
    """Give the bytes of a contiguous tensor in host memory."""
    return Memory(memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy()))  # type: ignore[arg-type]
