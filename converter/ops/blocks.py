"""What `dequantize` and `quantize` share: a weight and its scale, one number for each block of its last two axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, NamedTuple

from converter.dims import Dim, names, render_shape
from converter.ops.base import SIZE_SCHEMA, A, Flow, Fresh, Op, OpError, Shape, fields_of, parse_size
from converter.spec import DTYPES, dtype_names, parse_dtype

# Dtypes of weights, and their largest numbers: OCP 8-bit Floating Point Specification (2023), and for those without
# infinity and negative zero Noune et al., "8-bit Numerical Formats for Deep Neural Networks" (2022).
LARGEST = {"F8_E4M3": 448.0, "F8_E5M2": 57344.0, "F8_E4M3FNUZ": 240.0, "F8_E5M2FNUZ": 57344.0}
SCALES = ("F32", "BF16", "F16", "F8_E8M0")  # dtypes of scales; each holds its numbers in float32 exactly
DEFAULT = "F8_E4M3"
HELD_BY = frozenset(["F32", "BF16", "F64"])  # as wide in range as a scale, and wider in precision than float8

BLOCK_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "block": {
            "type": "array",
            "items": SIZE_SCHEMA,
            "minItems": 2,
            "maxItems": 2,
            "description": "rows and columns that share a scale; at the ends of the axes a block may be smaller",
        },
        "dtype": {
            "enum": [n for n in dtype_names() if parse_dtype(n) in LARGEST],
            "description": "dtype of the weight; default float8_e4m3fn, or what its term states",
        },
    },
    "required": ["block"],
    "additionalProperties": False,
}


class Span(NamedTuple):
    """Some of an axis that is cut into blocks of one size: from and to which element, and from and to which block."""

    start: int
    stop: int
    first: int
    last: int

    @property
    def size(self) -> int:
        """Elements of each block."""
        return (self.stop - self.start) // (self.last - self.first)


@dataclass(frozen=True)
class Blockwise(Op):
    """A weight of dtype ``dtype`` with a scale for each block of ``rows`` by ``columns``."""

    rows: Dim
    columns: Dim
    dtype: str = DEFAULT
    lossless: ClassVar[bool] = False

    @classmethod
    def schema(cls) -> dict[str, Any] | None:
        """Give the JSON Schema: the block, and the dtype of the weight."""
        return BLOCK_SCHEMA

    @classmethod
    def read(cls, argument: Any, stated: tuple[str | None, ...], kept: bool) -> tuple[Dim, Dim, str]:
        """Read `block` and `dtype` where the terms of the weight's side state dtypes; raises OpError.

        A scale that is not ``kept`` on both sides has to be found, and then it is float32.
        """
        given = fields_of(argument, ["block"], ["dtype"])
        block = given["block"]
        if not isinstance(block, list) or len(block) != 2:
            raise OpError(f"block is {block!r}, not the rows and columns of a block")
        rows, columns = (parse_size(n) for n in block)
        if 0 in (rows, columns):
            raise OpError("a block has one row and one column, or more")
        own = parse_dtype(given["dtype"]) if isinstance(given.get("dtype"), str) else None
        if "dtype" in given and own not in LARGEST:
            raise OpError(f"dtype is {given['dtype']!r}, not {_kinds()}")
        terms = [d for d in stated[:1] if d not in (None, "keep")]
        if own is not None and terms not in ([], [own]):
            raise OpError(f"dtype is {own} here and {terms[0]} on the term of the weight")
        dtype = own or (terms[0] if terms else DEFAULT)
        if dtype not in LARGEST:
            raise OpError(f"the weight is stated to be {dtype}, not {_kinds()}")
        if not kept and not {*stated[1:]} <= {None, "keep", "F32"}:
            raise OpError(f"the scale is stated to be {stated[1]}, and one that has to be found is F32")
        return rows, columns, dtype

    def argument(self) -> Any:
        """Give the block, and the dtype where it is not the usual one."""
        block = [n if isinstance(n, int) else str(n) for n in (self.rows, self.columns)]
        return {"block": block} | ({"dtype": DTYPES[self.dtype].numpy} if self.dtype != DEFAULT else {})

    # Shapes.

    def grid(self, shape: Shape, fresh: Fresh) -> Shape:
        """Give the shape of the scale of a weight; raises OpError for one of fewer than two axes."""
        if len(shape) < 2:
            raise OpError(f"{self.word} takes a weight of two axes or more, this one has {len(shape)}")
        if any(isinstance(n, int) and n < 1 for n in (self.rows, self.columns)):
            raise OpError(f"{self.word}: a block of {self.rows} by {self.columns} has no elements")
        return (*shape[:-2], _count(shape[-2], self.rows, fresh), _count(shape[-1], self.columns, fresh))

    def pair(self, flow: Flow, fresh: Fresh) -> tuple[Flow, tuple[tuple[Dim, Dim], ...]]:
        """Hold a scale's shape against its weight's, and give it one if it has none; raises OpError."""
        weight, scale = flow
        if weight.bound != scale.bound:
            raise OpError(f"{self.word}: a weight and its scale are bound over the same indices")
        if weight.shape is None:
            return flow, ()
        grid = self.grid(weight.shape, fresh)
        if scale.shape is None:
            return (weight, type(scale)(scale.bound, grid)), ()
        odd = [(a, b) for a, b in zip(scale.shape, grid) if a != b]
        if len(grid) != len(scale.shape) or any(isinstance(a, int) and isinstance(b, int) for a, b in odd):
            raise OpError(
                f"{self.word}: a weight of {render_shape(weight.shape)} in blocks of {self.rows} by {self.columns} "
                f"has a scale of {render_shape(grid)}, not {render_shape(scale.shape)}"
            )
        return flow, tuple(odd)

    # Arrays.

    def numbers(self) -> tuple[int, int]:
        """Give the sizes of a block; raises OpError where they are not known."""
        if not isinstance(self.rows, int) or not isinstance(self.columns, int):
            raise OpError(f"the size of the block {self.rows} by {self.columns} is not known")
        return self.rows, self.columns

    def scaled(self, kind: str, weight: A, scale: A) -> A:
        """Let every element take the scale of its block: ``multiply`` by it, or ``divide``."""
        axis = len(weight.shape) - 2

        def make(part: A, r: Span, c: Span) -> A:
            factors = _cut(scale, axis, (r.first, r.last), (c.first, c.last))
            rows = _as_rows(part, r.size, c.size).scale_rows(kind, factors.reshape((prod(factors.shape),)))
            return _as_weight(rows, part.shape, r.size, c.size)

        return self._joined(weight, make) if prod(weight.shape) else weight

    def scales(self, weight: A) -> A:
        """Compute the scale of each block."""

        def make(part: A, r: Span, c: Span) -> A:
            found = _as_rows(part, r.size, c.size).row_scales(LARGEST[self.dtype])
            return found.reshape((*part.shape[:-2], r.last - r.first, c.last - c.first))

        if not prod(weight.shape):
            return weight.reshape([n for n in self.grid(weight.shape, _known) if isinstance(n, int)])
        return self._joined(weight, make)

    def _joined(self, weight: A, make: Callable[[A, Span, Span], A]) -> A:
        """Join what is made of the parts of a weight: its whole blocks, and those at the ends of its axes."""
        rows, columns = self.numbers()
        axis = len(weight.shape) - 2
        lines: list[A] = []
        for r in spans(weight.shape[axis], rows):
            line = [
                make(_cut(weight, axis, (r.start, r.stop), (c.start, c.stop)), r, c)
                for c in spans(weight.shape[axis + 1], columns)
            ]
            lines.append(line[0].concat(line[1:], axis + 1))
        return lines[0].concat(lines[1:], axis)


def no_scale(dtypes: frozenset[str], word: str) -> str | None:
    """Say which dtype is none of those that scales have."""
    odd = sorted(dtypes - {*SCALES})
    return f"has a scale of {odd[0]}, and {word} takes {', '.join(SCALES)}" if odd else None


def _kinds() -> str:
    return f"{' or '.join(DTYPES[d].numpy for d in ('F8_E4M3', 'F8_E5M2'))} (or one of their FNUZ kinds)"


def _count(size: Dim, block: Dim, fresh: Fresh) -> Dim:
    """Divide, rounding up; where that is no polynomial it is an expression, by its text."""
    from converter.expressions import parse

    if isinstance(size, int) and isinstance(block, int):
        return -(-size // block)
    if any(n.startswith("_") for n in names(size) | names(block)):
        return fresh("blocks")
    more = block - 1 if isinstance(block, int) else f"({block}) - 1"
    return parse(f"(({size}) + {more}) // ({block})").dim()


def _known(name: str) -> Dim:
    raise OpError(f"{name} are not known")


def spans(size: int, block: int) -> Iterator[Span]:
    """Part an axis into its whole blocks, and the shorter one at its end."""
    whole = size // block
    if whole:
        yield Span(0, whole * block, 0, whole)
    if size % block:
        yield Span(whole * block, size, whole, whole + 1)


def _cut(x: A, axis: int, rows: tuple[int, int], columns: tuple[int, int]) -> A:
    return x.slice(axis, *rows).slice(axis + 1, *columns)


def _as_rows(x: A, rows: int, columns: int) -> A:
    """Make a matrix of a weight, each row a block of it; blocks are in row-major order, and so are their elements."""
    *lead, height, width = x.shape
    first = prod(lead)
    parts = x.reshape((first, height // rows, rows, width // columns, columns)).transpose((0, 1, 3, 2, 4))
    return parts.reshape((first * (height // rows) * (width // columns), rows * columns))


def _as_weight(x: A, shape: tuple[int, ...], rows: int, columns: int) -> A:
    """Turn the matrix of blocks into the weight again."""
    parts = x.reshape((prod(shape[:-2]), shape[-2] // rows, shape[-1] // columns, rows, columns))
    return parts.transpose((0, 1, 3, 2, 4)).reshape(shape)
