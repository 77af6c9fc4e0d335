"""Put values into a live model: all staged and then committed, or streamed tensor by tensor after every check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from converter.accounting import lower_checked
from converter.casting import widens
from converter.errors import FormatError, MismatchError, Problem
from converter.execute import Outcome, execute
from converter.formats import Checkpoint
from converter.live_fit import Fitted
from converter.live_model import Model, Slot, empty
from converter.lowering import Lowering
from converter.signals import undisturbed
from converter.spec import DTYPES
from converter.transfer import Memory
from converter.values import Produce
from converter.writing import data_problems

BATCH = 64 << 20  # bytes of small tensors that are streamed together
Refusal = Callable[[Sequence[Problem], Mapping[str, Any]], MismatchError]


@dataclass(frozen=True)
class Put:
    """What is put where: the model, the plan that fits it, and how to read."""

    model: Model
    fitted: Fitted
    lowering: Lowering
    checkpoint: Checkpoint
    jobs: int
    memory: int
    progress: Callable[[int], None] | None

    def run(
        self, produces: Sequence[Produce], buffers: Mapping[int, Memory], compare: bool, told: bool = True
    ) -> Outcome:
        """Read, compute and compare; buffers are those of the numbers of the produces' files."""
        compares = self.fitted.compares(self.lowering) if compare else []
        return execute(
            lower_checked(produces), compares, self.checkpoint.fd, buffers.__getitem__, jobs=self.jobs,
            memory=self.memory, allow_overflow=True, progress=self.progress if told else None,
            name=self.checkpoint.name,
        )  # fmt: skip

    def check(self, outcome: Outcome, refusal: Refusal) -> None:
        """Raise what the data showed."""
        problems = data_problems(self.fitted.plan, outcome)
        if problems:
            raise refusal(problems, outcome.casts)

    def group(self, produce: Produce) -> list[Slot]:
        """The slots of the tensor that a value is for."""
        return [self.model.slots[n] for n in self.model.groups[self.fitted.place[produce.name]]]


def staged(put: Put, refusal: Refusal) -> Outcome:
    """Read everything, check everything, then change the model in one step that cannot fail."""
    produces = put.fitted.produces(put.lowering)
    held = {p.file: empty(p.dtype, p.value.shape) for p in produces}
    outcome = put.run(produces, {k: memory for k, (_, memory) in held.items()}, compare=True)
    put.check(outcome, refusal)
    put.checkpoint.check_unchanged()
    steps = [_assignment(put.group(p), held[p.file][0]) for p in produces]
    with undisturbed(), torch.no_grad():
        for step in steps:
            step()
        _retie(put)
    return outcome


def streamed(put: Put, refusal: Refusal) -> Outcome:
    """Check everything, then put tensors into the model batch by batch."""
    produces = put.fitted.produces(put.lowering)
    casts = dict(_rehearse(put, produces, refusal))
    put.checkpoint.check_unchanged()
    done = 0
    try:
        for batch in batches(produces):
            done += _stream(put, batch)
        put.checkpoint.check_unchanged()
    except FormatError as e:
        text = f"the model is a mixture now: {done} of its {len(produces)} tensors had been put in when reading failed"
        raise FormatError((*e.problems, Problem(text, "mixture"))) from e
    with undisturbed():
        _retie(put)
    return Outcome(sum(nbytes(p) for p in produces), casts, ())


def _stream(put: Put, batch: Sequence[Produce]) -> int:
    """Read some tensors and put them into the model; what holds them goes before the next are read."""
    held = {p.file: empty(p.dtype, p.value.shape) for p in batch}
    put.run(batch, {k: memory for k, (_, memory) in held.items()}, compare=False)
    steps = [_assignment(put.group(p), held[p.file][0]) for p in batch]
    with undisturbed(), torch.no_grad():
        for step in steps:
            step()
    return len(batch)


def _rehearse(put: Put, produces: Sequence[Produce], refusal: Refusal) -> Mapping[str, Any]:
    """Make every check of the data before anything is put in: comparisons, and casts that could lose a value."""
    outcome = put.run((), {}, compare=True, told=False)
    put.check(outcome, refusal)
    casts = dict(outcome.casts)
    risky = [p for p in produces if not all(s.dtype == p.dtype or widens(s.dtype, p.dtype) for s in p.sources)]
    for batch in batches(risky):
        held = {p.file: empty(p.dtype, p.value.shape) for p in batch}
        outcome = put.run(batch, {k: memory for k, (_, memory) in held.items()}, compare=False, told=False)
        put.check(outcome, refusal)
        casts |= outcome.casts
    return casts


def batches(produces: Sequence[Produce]) -> Iterator[list[Produce]]:
    """Part tensors into runs of at most BATCH bytes, or one larger tensor."""
    batch: list[Produce] = []
    size = 0
    for p in produces:
        if batch and size + nbytes(p) > BATCH:
            yield batch
            batch, size = [], 0
        batch.append(p)
        size += nbytes(p)
    if batch:
        yield batch


def nbytes(produce: Produce) -> int:
    """Bytes of the tensor that is made."""
    total = DTYPES[produce.dtype].bits
    for n in produce.value.shape:
        total *= n
    return total // 8


def _assignment(slots: Sequence[Slot], value: torch.Tensor) -> Callable[[], None]:
    """Prepare all that could fail; what is returned puts a value into the slots of one tensor and cannot."""
    old = slots[0].tensor
    if old.is_meta:
        new = value
        if isinstance(old, torch.nn.Parameter):
            new = torch.nn.Parameter(value, requires_grad=old.requires_grad)
            new.__dict__.update(old.__dict__)
        return partial(_put, slots, new)
    if old.dtype == value.dtype:
        return partial(_copy, old, value)
    grad = old.grad.to(value.dtype) if old.grad is not None else None
    return partial(_exchange, old, value.to(old.device), grad)


def _put(slots: Sequence[Slot], value: torch.Tensor) -> None:
    for slot in slots:
        slot.put(value)


def _copy(old: torch.Tensor, value: torch.Tensor) -> None:
    old.copy_(value)


def _exchange(old: torch.Tensor, value: torch.Tensor, grad: torch.Tensor | None) -> None:
    old.data = value
    if old.grad is not None and grad is not None:
        old.grad.data = grad


def _retie(put: Put) -> None:
    """Let the names that the map ties hold one tensor."""
    for name, first in put.fitted.retie.items():
        slot, of = put.model.slots[name], put.model.slots[first]
        slot.put((of.module._parameters if of.parameter else of.module._buffers)[of.attribute])  # type: ignore[arg-type]
