"""What an op is: one frozen dataclass with its parameters, its schema, `infer`, `apply` and its inverse.

An op knows tensors, never names. It works on a *flow*, a tuple of values; a value is a family of tensors of one
shape, one for each value of its bound indices. `infer` moves a flow of symbolic (or plain) shapes through the op;
`apply` moves arrays, written against :class:`converter.arrays.Array` so that the same code runs eagerly and as byte
ranges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

from converter.arrays import Array
from converter.dims import Dim, SizeError, render_shape
from converter.ops.parameters import inline, open_sizes, put
from converter.ops.results import Result

Shape = tuple[Dim, ...]
Fresh = Callable[[str], Dim]
Dtypes = tuple[tuple[str | None, ...], tuple[str | None, ...]]  # as the terms of either side state them


MAX_PARTS = 1_000  # of an axis that is cut, and axes that are permuted


class OpError(SizeError):
    """An op that cannot be read, or that does not fit the shapes it is given."""


@dataclass(frozen=True)
class Value:
    """A family of tensors: bound indices with their counts, and the shape of each member (None: not stated)."""

    bound: tuple[tuple[str, Dim], ...]
    shape: Shape | None

    def without(self, index: str) -> tuple[tuple[str, Dim], ...]:
        """The bound indices less one; raises OpError when it is not bound."""
        if index not in dict(self.bound):
            has = ", ".join(i for i, _ in self.bound) or "none"
            raise OpError(f"index '{index}' is not bound here (bound: {has})")
        return tuple(b for b in self.bound if b[0] != index)


Flow = tuple[Value, ...]


@dataclass(frozen=True)
class Inferred:
    """What `infer` finds: the new flow, the inverse with its sizes (None: there is none), and equations that must
    hold.
    """

    flow: Flow
    inverse: Op | None
    equations: tuple[tuple[Dim, Dim], ...] = ()


A = TypeVar("A", bound=Array)


@dataclass(frozen=True)
class Family(Generic[A]):
    """The arrays of a value: bound indices with counts, and the members in row-major order over them."""

    bound: tuple[tuple[str, int], ...]
    items: tuple[A, ...]

    def map(self, f: Callable[[A], A]) -> Family[A]:
        """Apply a function to each member."""
        return Family(self.bound, tuple(f(x) for x in self.items))

    def along(self, index: str) -> tuple[tuple[tuple[str, int], ...], list[tuple[A, ...]]]:
        """Group the members along one index: the other bound indices, and for each of their values the members in
        order.
        """
        at = [i for i, _ in self.bound].index(index)
        inner = 1
        for _, n in self.bound[at + 1 :]:
            inner *= n
        count = self.bound[at][1]
        outer = len(self.items) // (inner * count) if inner * count else 0
        groups = [
            tuple(self.items[(o * count + k) * inner + i] for k in range(count))
            for o in range(outer)
            for i in range(inner)
        ]
        return self.bound[:at] + self.bound[at + 1 :], groups


@dataclass(frozen=True)
class DataCheck(Generic[A]):
    """Two arrays whose bytes must be equal, known only when the data flows; ``what`` says why in a few words."""

    what: str
    left: A
    right: A
    axis: int = 0  # the arrays begin at entry `start` of this axis of the tensor
    start: int = 0


@dataclass(frozen=True)
class Applied(Generic[A]):
    """What `apply` makes: the new families and the checks on the data that it relies on.

    For the books: every element that goes in comes out once, but for ``gone``, what is let go, and ``more``, what comes
    out once more.
    """

    families: tuple[Family[A], ...]
    checks: tuple[DataCheck[A], ...] = ()
    gone: tuple[A, ...] = ()
    more: tuple[A, ...] = ()


@dataclass(frozen=True)
class OpContext:
    """What parsing an op may need of its rule: sizes that are named in the map, counts of indices, parts on the `to`
    side, dtypes that the terms of either side state.
    """

    sizes: frozenset[str] = frozenset()
    counts: Mapping[str, Dim] = ()  # type: ignore[assignment]
    parts: int = 1
    dtypes: Dtypes = ((), ())

    def count(self, index: Any) -> Dim:
        """The count of a declared index; raises OpError."""
        if not isinstance(index, str) or index not in self.counts:
            raise OpError(f"'{index}' is not an index of the map")
        return self.counts[index]


@dataclass(frozen=True)
class Op(ABC):
    """Base of all ops; see the module's text for the four things a subclass defines."""

    word: ClassVar[str]
    bare: ClassVar[bool] = False  # may stand without an argument
    lossless: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def schema(cls) -> dict[str, Any] | None:
        """Give the JSON Schema of the argument, None for an op that has none."""

    @classmethod
    @abstractmethod
    def parse(cls, argument: Any, context: OpContext) -> Self:
        """Read the argument as YAML gives it (None for the bare word); raises OpError."""

    @abstractmethod
    def infer(self, flow: Flow, fresh: Fresh) -> Inferred:
        """Move shapes through the op; ``fresh`` makes a size that nothing names. Raises OpError for shapes that do
        not fit.
        """

    def complete(self, flow: Flow, fresh: Fresh) -> Flow:
        """Give values that state no shape the one that follows from the others."""
        return flow

    @abstractmethod
    def apply(self, families: tuple[Family[A], ...]) -> Applied[A]:
        """Move arrays through the op; all sizes that it needs must be numbers."""

    @abstractmethod
    def argument(self) -> Any:
        """Give the argument as YAML has it, None for the bare word."""

    def results(self, flow: tuple[Result, ...]) -> tuple[Result, ...]:
        """Say what the values are made of that an op which takes the whole flow makes of it."""
        first = flow[0]
        return (first if len(set(flow)) == 1 else Result(frozenset().union(*(r.leaves for r in flow))),)

    def objection(self, flow: tuple[frozenset[str], ...]) -> str | None:
        """Say why values of these dtypes are not taken, None where they are."""
        return None

    @property
    def exact(self) -> bool:
        """Whether the inverse gives back every bit."""
        return self.lossless

    def bind(self, known: Mapping[str, int]) -> Self:
        """Put in the sizes that are known."""
        changes = {f.name: new for f in fields(self) if (new := put(old := getattr(self, f.name), known)) is not old}
        return replace(self, **changes) if changes else self

    def sizes(self) -> frozenset[str]:
        """Collect the names of the sizes that the op still needs."""
        return frozenset().union(*(open_sizes(getattr(self, f.name)) for f in fields(self)))

    def yaml(self) -> Any:
        """Give the op as a map would have it."""
        argument = self.argument()
        return self.word if argument is None else {self.word: argument}

    def __str__(self) -> str:
        return inline(self.yaml())


# Shared pieces of the ops.

DIM_SCHEMA: dict[str, Any] = {"type": "integer", "description": "an axis, counted from 0 (negative: from the end)"}
SIZE_SCHEMA: dict[str, Any] = {"type": ["integer", "string"], "description": "an integer expression of sizes"}
INDEX_SCHEMA: dict[str, Any] = {"type": "string", "description": "an index of the map"}


def parse_size(value: Any) -> Dim:
    """Read an integer expression of sizes; raises OpError."""
    from converter.expressions import ExpressionError, parse

    if isinstance(value, bool) or not isinstance(value, int | str):
        raise OpError(f"{value!r} is not a size (an integer or an expression)")
    try:
        size = value if isinstance(value, int) else parse(value).dim()
    except ExpressionError as e:
        raise OpError(str(e)) from None
    check_size(size, f"'{value}'")
    return size


def parse_permutation(value: Any, what: str, least: int = 1) -> tuple[int, ...]:
    """Read a permutation of 0..n-1, of ``least`` entries or more; raises OpError."""
    if isinstance(value, list) and len(value) > MAX_PARTS:
        raise OpError(f"a list of {len(value)} (at most {MAX_PARTS}, {what})")
    numbers = isinstance(value, list) and all(isinstance(v, int) and not isinstance(v, bool) for v in value)
    if not numbers or len(value) < least or sorted(value) != list(range(len(value))):
        end = max(len(value), least) - 1 if numbers else "n"
        raise OpError(f"{value!r} is not a permutation of 0..{end} ({what})")
    return tuple(value)


def check_size(size: Dim, what: str) -> None:
    """Refuse a size below 0; raises OpError."""
    if isinstance(size, int) and size < 0:
        raise OpError(f"{what} is a size of {size}, below 0")


def parse_dim(value: Any) -> int:
    """Read an axis number; raises OpError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise OpError(f"dim is {value!r}, not a number of an axis")
    return value


def fields_of(argument: Any, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """Check the keys of an argument that is a mapping; raises OpError."""
    if not isinstance(argument, dict):
        raise OpError(f"takes a mapping with {', '.join(required)}, not {argument!r}")
    unknown = sorted(map(str, set(argument) - {*required, *optional}))
    missing = [k for k in required if k not in argument]
    if unknown or missing:
        raise OpError(
            f"{'unknown key ' + unknown[0] if unknown else 'needs ' + missing[0]} (keys: "
            f"{', '.join([*required, *optional])})"
        )
    return argument


def axis_of(dim: int, rank: int) -> int:
    """Turn an axis number into one from 0; raises OpError when there is no such axis."""
    if not -rank <= dim < rank:
        raise OpError(f"there is no axis {dim} in a tensor of {rank} {'axis' if rank == 1 else 'axes'}")
    return dim % rank


def one(flow: Flow, word: str) -> Value:
    """Give the only value of a flow; raises OpError when there are several."""
    if len(flow) != 1:
        raise OpError(f"{word} takes one value here, there are {len(flow)}")
    return flow[0]


def same_bound(flow: Flow, word: str) -> tuple[tuple[str, Dim], ...]:
    """Give the bound indices that all values share; raises OpError when they differ."""
    if len({v.bound for v in flow}) > 1:
        kinds = " and ".join(sorted({"[" + ", ".join(i for i, _ in v.bound) + "]" for v in flow}))
        raise OpError(f"{word} joins values that are bound over different indices: {kinds}")
    return flow[0].bound


def equal_shapes(shapes: Sequence[Shape], word: str, but: int | None = None) -> tuple[tuple[Dim, Dim], ...]:
    """State that shapes agree (on every axis but one); raises OpError where numbers already differ."""
    first = shapes[0]
    out: list[tuple[Dim, Dim]] = []
    for other in shapes[1:]:
        if len(other) != len(first):
            raise OpError(f"{word} joins shapes {render_shape(first)} and {render_shape(other)}")
        for k, (a, b) in enumerate(zip(first, other)):
            if k != but and a != b:
                if isinstance(a, int) and isinstance(b, int):
                    raise OpError(f"{word} joins shapes {render_shape(first)} and {render_shape(other)}")
                out.append((a, b))
    return tuple(out)
