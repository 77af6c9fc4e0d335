"""A rule's chain of ops: what each source goes through, what all go through together, what each target comes out of.

The same chain is inferred on symbolic shapes when a map is read, inferred again on numbers when a checkpoint is
planned, and applied to arrays (eager ones, or byte ranges).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from converter.dims import Dim
from converter.ops.base import A, Applied, DataCheck, Family, Flow, Fresh, Op, OpError, Value
from converter.ops.results import Result

Stage = tuple[Op, ...]  # one op for each value of the flow, or one op that joins or parts the flow (`joint`)


def joint(op: Op) -> bool:
    """Say whether an op works on the whole flow at once: joins the terms of a list, or parts a value into terms."""
    words = ("concat", "same", "split", "replicate", "dequantize", "quantize")
    return op.word in words and getattr(op, "over", None) is None


@dataclass(frozen=True)
class Chain:
    """The ops of one rule in one direction: per source term, for the rule, per target term."""

    heads: tuple[tuple[Op, ...], ...]
    stages: tuple[Stage, ...]
    tails: tuple[tuple[Op, ...], ...]

    def bind(self, known: Mapping[str, int]) -> Chain:
        """Put in the sizes that are known."""
        return Chain(
            *(
                tuple(tuple(op.bind(known) for op in ops) for ops in part)
                for part in (self.heads, self.stages, self.tails)
            )
        )

    def ops(self) -> tuple[Op, ...]:
        """All ops in the order of the flow; equal ops of several terms once."""
        return tuple(dict.fromkeys(op for part in (self.heads, self.stages, self.tails) for ops in part for op in ops))

    @property
    def exact(self) -> bool:
        """Whether the way back gives every bit again."""
        return all(op.exact for op in self.ops())


@dataclass(frozen=True)
class Inference:
    """What a chain makes of shapes: the target values, the chain back (or why there is none), and equations."""

    targets: Flow
    inverse: Chain | str
    equations: tuple[tuple[Dim, Dim], ...]


def infer(chain: Chain, sources: Flow, fresh: Fresh) -> Inference:
    """Move shapes through a chain; raises OpError where they do not fit."""
    equations: list[tuple[Dim, Dim]] = []
    lost: list[Op] = []

    def through(ops: tuple[Op, ...], value: Value) -> tuple[Value, tuple[Op, ...]]:
        back: list[Op] = []
        for op in ops:
            if joint(op):
                raise OpError(
                    f"{op.word} without `over` joins or parts a list: it stands in the rule's ops, not a term's"
                )
            found = op.infer((value,), fresh)
            (value,) = found.flow
            equations.extend(found.equations)
            back.insert(0, found.inverse) if found.inverse is not None else lost.append(op)
        return value, tuple(back)

    begun = [through(ops, v) for ops, v in zip(chain.heads, sources)]
    flow: Flow = tuple(v for v, _ in begun)
    stages: list[Stage] = []
    for stage in chain.stages:
        if joint(stage[0]):
            found = stage[0].infer(flow, fresh)
            flow = found.flow
            equations.extend(found.equations)
            stages.insert(0, (found.inverse,)) if found.inverse is not None else lost.append(stage[0])
            continue
        ops = stage * len(flow) if len(stage) == 1 else stage
        if len(ops) != len(flow):
            raise OpError(f"{len(flow)} values reach {stage[0].word}, which is stated for {len(ops)}")
        moved = [through((op,), v) for op, v in zip(ops, flow)]
        flow = tuple(v for v, _ in moved)
        stages.insert(0, tuple(op for _, back in moved for op in back))
    if len(flow) != len(chain.tails):
        raise OpError(f"the ops give {len(flow)} {_values(flow)}, `to` has {len(chain.tails)}")
    ended = [through(ops, v) for ops, v in zip(chain.tails, flow)]
    if lost:
        back: Chain | str = f"{lost[0].word} loses information (`{lost[0]}`)"
    else:
        back = Chain(tuple(b for _, b in ended), tuple(stages), tuple(b for _, b in begun))
    return Inference(tuple(v for v, _ in ended), back, tuple(equations))


def _values(flow: Flow) -> str:
    return "value" if len(flow) == 1 else "values"


def apply(chain: Chain, sources: tuple[Family[A], ...]) -> Applied[A]:
    """Move arrays through a chain whose sizes are all numbers: the target families, and all checks and books."""
    checks: list[DataCheck[A]] = []
    gone: list[A] = []
    more: list[A] = []

    def take(op: Op, families: tuple[Family[A], ...]) -> tuple[Family[A], ...]:
        done = op.apply(families)
        checks.extend(done.checks)
        gone.extend(done.gone)
        more.extend(done.more)
        return done.families

    def through(ops: tuple[Op, ...], family: Family[A]) -> Family[A]:
        for op in ops:
            (family,) = take(op, (family,))
        return family

    families = tuple(through(ops, f) for ops, f in zip(chain.heads, sources))
    for stage in chain.stages:
        if joint(stage[0]):
            families = take(stage[0], families)
        else:
            ops = stage * len(families) if len(stage) == 1 else stage
            families = tuple(through((op,), f) for op, f in zip(ops, families))
    ended = tuple(through(ops, f) for ops, f in zip(chain.tails, families))
    return Applied(ended, tuple(checks), tuple(gone), tuple(more))


def results(chain: Chain, dtypes: Sequence[str] = ()) -> tuple[Result, ...]:
    """Say what each target term is made of; raises OpError where an op does not take sources of these ``dtypes``."""

    def take(op: Op, flow: tuple[Result, ...]) -> None:
        objection = op.objection(tuple(r.dtypes(dtypes) for r in flow)) if dtypes else None
        if objection:
            raise OpError(objection)

    flow = tuple(Result(frozenset([k])) for k in range(len(chain.heads)))
    for ops, result in zip(chain.heads, flow):
        for op in ops:
            take(op, (result,))
    for stage in chain.stages:
        if joint(stage[0]):
            take(stage[0], flow)
            flow = stage[0].results(flow)
            continue
        for op, result in zip(stage * len(flow) if len(stage) == 1 else stage, flow):
            take(op, (result,))
    for ops, result in zip(chain.tails, flow):
        for op in ops:
            take(op, (result,))
    return flow


def complete(chain: Chain, sources: Flow, fresh: Fresh) -> Flow:
    """Give the sources that state no shape the one that follows from another term's, where an op ties the two."""
    back: list[list[Op]] = [[] for _ in sources]

    def through(k: int, op: Op, value: Value) -> Value:
        found = op.infer((value,), fresh)
        back[k].insert(0, found.inverse or op)
        return found.flow[0]

    flow = list(sources)
    for k, ops in enumerate(chain.heads):
        for op in ops:
            flow[k] = through(k, op, flow[k])
    for stage in chain.stages:
        if joint(stage[0]):
            flow = list(stage[0].complete(tuple(flow), fresh))
            break
        for k, op in enumerate(stage * len(flow) if len(stage) == 1 else stage):
            flow[k] = through(k, op, flow[k])
    out = list(sources)
    for k, value in enumerate(flow):
        if sources[k].shape is None and value.shape is not None:
            for op in back[k]:
                (value,) = op.infer((value,), fresh).flow
            out[k] = Value(sources[k].bound, value.shape)
    return tuple(out)
