"""Rearrange: einops notation, `'(g h d) e -> g (h d) e'`: reshape, permute, reshape.

Only the notation is taken from einops (https://einops.rocks); both sides name the same axes, an integer is an axis of
that size, a 1 may come and go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from converter.dims import Dim, Poly, divide, product, render_shape
from converter.ops.base import A, Applied, Family, Flow, Fresh, Inferred, Op, OpContext, OpError, Shape, Value

Groups = tuple[tuple[str, ...], ...]
_TOKEN = re.compile(r"\s*(\(|\)|[A-Za-z_][A-Za-z0-9_]*|[0-9]+|\S)")


def parse_side(text: str) -> Groups:
    """Read one side of a pattern into groups of axis names; raises OpError."""
    groups: list[tuple[str, ...]] = []
    inside: list[str] | None = None
    for token in _TOKEN.findall(text):
        if token == "(" and inside is None:
            inside = []
        elif token == ")" and inside is not None:
            groups.append(tuple(n for n in inside if n != "1"))
            inside = None
        elif not re.fullmatch(r"[A-Za-z0-9_]+", token):
            raise OpError(f"'{token}' is out of place in '{text.strip()}'")
        elif inside is not None:
            inside.append(token)
        else:
            groups.append((token,) if token != "1" else ())
    if inside is not None:
        raise OpError(f"'{text.strip()}' has a bracket that is not closed")
    names = [n for g in groups for n in g]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise OpError(f"axis '{twice[0]}' stands twice in '{text.strip()}'")
    return tuple(groups)


@dataclass(frozen=True)
class Rearrange(Op):
    """Take axes apart, permute them and put them together; ``known`` holds the sizes of axes that are sizes of the
    map.
    """

    left: Groups
    right: Groups
    known: tuple[tuple[str, Dim], ...] = ()
    word: ClassVar[str] = "rearrange"
    bare: ClassVar[bool] = True

    @classmethod
    def schema(cls) -> dict[str, Any] | None:
        """Give the JSON Schema of a pattern, which stands in place of an op's name."""
        return {"type": "string", "pattern": "->", "description": "einops notation, '(h hd) d -> h hd d'"}

    @classmethod
    def parse(cls, argument: Any, context: OpContext) -> Self:
        """Read a pattern; names that are sizes of the map are those sizes."""
        sides = str(argument).split("->")
        if len(sides) != 2:
            raise OpError(f"'{argument}' needs one '->'")
        left, right = parse_side(sides[0]), parse_side(sides[1])
        a, b = ({n for g in side for n in g} for side in (left, right))
        if a != b:
            odd = min(a ^ b)
            raise OpError(f"'{argument}': axis '{odd}' stands on one side only")
        known = tuple(
            (n, int(n) if n.isdigit() else Poly.of(n)) for n in sorted(a) if n.isdigit() or n in context.sizes
        )
        return cls(left, right, known)

    def shape_of_left(self) -> Shape:
        """The input shape as the pattern states it; axes that are no sizes of the map come as local names (`_x`)."""
        sizes = dict(self.known)
        return tuple(product(tuple(sizes.get(n, Poly.of(f"_{n}")) for n in g)) for g in self.left)

    def solve(self, shape: Shape | None, fresh: Fresh) -> tuple[dict[str, Dim], tuple[tuple[Dim, Dim], ...]]:
        """Find the size of each axis from the input shape, and the equations that follow; raises OpError."""
        sizes: dict[str, Dim] = dict(self.known)
        if shape is None:
            for n in (n for g in self.left for n in g if n not in sizes):
                sizes[n] = fresh(n)
            return sizes, ()
        if len(shape) != len(self.left):
            raise OpError(f"'{self}' takes {len(self.left)} axes, the shape is {render_shape(shape)}")
        equations: list[tuple[Dim, Dim]] = []
        for axis, (group, have) in enumerate(zip(self.left, shape)):
            open_names = [n for n in group if n not in sizes]
            for n in open_names[1:]:
                sizes[n] = fresh(n)
            factor = product(tuple(sizes[n] for n in group if n in sizes))
            if open_names:
                part = divide(have, factor)
                if part is None and isinstance(have, int) and isinstance(factor, int) and factor:
                    raise OpError(f"'{self}': {have} is not divisible by {factor} ({' '.join(group)})")
                sizes[open_names[0]] = part if part is not None else fresh(open_names[0])
                factor = factor * sizes[open_names[0]]
            if isinstance(have, int) and isinstance(factor, int) and have != factor:
                raise OpError(f"'{self}': axis {axis} is {have}, the pattern says {' * '.join(group) or 1} = {factor}")
            if have != factor:
                equations.append((factor, have))
        return sizes, tuple(equations)

    def infer(self, flow: Flow, fresh: Fresh) -> Inferred:
        """Compute the new axes as products; the old ones give equations."""
        (value,) = flow
        sizes, equations = self.solve(value.shape, fresh)
        shape = tuple(product(tuple(sizes[n] for n in g)) for g in self.right)
        inverse = Rearrange(self.right, self.left, tuple(sorted(sizes.items())))
        return Inferred((Value(value.bound, shape),), inverse, equations)

    def apply(self, families: tuple[Family[A], ...]) -> Applied[A]:
        """Reshape, permute and reshape each member."""
        (family,) = families
        return Applied((family.map(self._apply),))

    def _apply(self, x: A) -> A:
        def unknown(name: str) -> Dim:
            raise OpError(f"'{self}': the size of '{name}' is not known")

        sizes, _ = self.solve(tuple(x.shape), unknown)
        left = [n for g in self.left for n in g]
        right = [n for g in self.right for n in g]
        apart = x.reshape(tuple(_number(sizes[n]) for n in left)).transpose(tuple(left.index(n) for n in right))
        return apart.reshape(tuple(_number(product(tuple(sizes[n] for n in g))) for g in self.right))

    def argument(self) -> Any:
        """Give the pattern."""
        return f"{_write(self.left)} -> {_write(self.right)}"

    def yaml(self) -> Any:
        """Give the pattern, which is its own name."""
        return self.argument()


def _number(d: Dim) -> int:
    if not isinstance(d, int):
        raise OpError(f"size {d} is not known")
    return d


def _write(groups: Groups) -> str:
    return " ".join(g[0] if len(g) == 1 else "(" + " ".join(g) + ")" if g else "1" for g in groups)
