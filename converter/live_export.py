"""A live model as an input: a header of its tensors, and their bytes, read where they are."""

from __future__ import annotations

import threading
from collections import OrderedDict

import torch

from converter.errors import MismatchError, Problem
from converter.live_model import Model, code, memory_of, unreadable
from converter.spec import Header, TensorEntry
from converter.transfer import Memory

HELD = 64 << 20  # bytes of tensors that had to be copied to be read (other devices, other strides) and are kept


class Source:
    """What an export reads from; each tensor is a file of its own. Raises MismatchError for tensors without values."""

    path = ""
    root = None

    def __init__(self, model: Model) -> None:
        firsts = [model.slots[first] for first, names in model.groups.items() if self._stored(model, names)]
        self._tensors = [s.tensor.detach() for s in firsts]
        problems = [Problem(text, "model", s.name) for s in firsts if (text := _without_bytes(s.tensor))]
        if problems:
            raise MismatchError(problems)
        self.header = Header(
            {
                s.name: TensorEntry(s.name, code(s.tensor), tuple(s.tensor.shape), k, 0, s.tensor.nbytes)
                for k, s in enumerate(firsts)
            },
            {n: first for first, names in model.groups.items() if self._stored(model, names) for n in names[1:]},
        )
        self._names = [s.name for s in firsts]
        self._held: OrderedDict[int, Memory] = OrderedDict()
        self._lock = threading.Lock()

    @staticmethod
    def _stored(model: Model, names: tuple[str, ...]) -> bool:
        return any(model.slots[n].persistent for n in names)

    def fd(self, i: int) -> Memory:
        """Give the bytes of tensor ``i``; one that is not packed in host memory is copied, and kept for a while."""
        tensor = self._tensors[i]
        if tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            return memory_of(tensor)
        with self._lock:
            if i not in self._held:
                self._held[i] = memory_of(tensor.cpu().resolve_conj().resolve_neg().contiguous())
                while len(self._held) > 1 and sum(len(m.view) for m in self._held.values()) > HELD:
                    self._held.popitem(last=False)
            self._held.move_to_end(i)
            return self._held[i]

    def name(self, i: int) -> str:
        """Name tensor ``i``."""
        return self._names[i]

    def check_unchanged(self) -> None:
        """Whoever trains a model while it is written has been warned."""


def _without_bytes(tensor: torch.Tensor) -> str:
    trouble = unreadable(tensor)
    return "is on the meta device and has no values" if tensor.is_meta and not trouble else trouble
