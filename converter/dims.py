"""Integer expressions of named sizes: the symbolic dims that shapes are made of.

A :data:`Dim` is an ``int`` or a :class:`Poly`, a polynomial with integer coefficients over names. Arithmetic on either
gives a plain ``int`` as soon as nothing symbolic is left, so that one piece of code serves symbols and numbers alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add, mul
from typing import Union

MAX_TERMS, MAX_DEGREE, MAX_SIZE = 500, 64, 2**63  # of a polynomial; of a number in it
Monomial = tuple[str, ...]
Dim = Union[int, "Poly"]


class SizeError(ValueError):
    """Sizes that do not fit together, or that nobody could mean."""


@dataclass(frozen=True)
class Poly:
    """A polynomial: pairs of a sorted monomial (names, repeated for powers) and a nonzero coefficient, in sorted
    order. ``text`` is how a map writes it, for messages.
    """

    terms: tuple[tuple[Monomial, int], ...]
    text: str = field(default="", compare=False, repr=False)

    @staticmethod
    def of(name: str) -> Poly:
        """Make the polynomial that is one name."""
        return Poly((((name,), 1),))

    def __add__(self, other: Dim) -> Dim:
        return _make([*self.terms, *_terms(other)])

    def __sub__(self, other: Dim) -> Dim:
        return self + other * -1

    def __mul__(self, other: Dim) -> Dim:
        if len(self.terms) * len(_terms(other)) > MAX_TERMS**2:
            raise SizeError(f"a polynomial of more than {MAX_TERMS} terms")
        return _make([(tuple(sorted(m + n)), a * b) for m, a in self.terms for n, b in _terms(other)])

    def __rsub__(self, other: Dim) -> Dim:
        return self * -1 + other

    __radd__ = __add__
    __rmul__ = __mul__

    def __str__(self) -> str:
        if self.text:
            return self.text
        text = ""
        for monomial, c in sorted(self.terms, key=lambda t: (not t[0], t[1] < 0)):
            factors = [str(abs(c))] if abs(c) != 1 or not monomial else []
            factors += [f"({n})" if " " in n and (len(monomial) > 1 or abs(c) != 1) else n for n in monomial]
            text += ("-" if c < 0 else "+" if text else "") + "*".join(factors)
        return text or "0"


def _terms(d: Dim) -> tuple[tuple[Monomial, int], ...]:
    return d.terms if isinstance(d, Poly) else (((), d),) if d else ()


def _make(terms: list[tuple[Monomial, int]]) -> Dim:
    total: dict[Monomial, int] = {}
    for monomial, c in terms:
        total[monomial] = total.get(monomial, 0) + c
    left = tuple(sorted((m, c) for m, c in total.items() if c))
    if len(left) > MAX_TERMS:
        raise SizeError(f"a polynomial of more than {MAX_TERMS} terms")
    if any(len(m) > MAX_DEGREE or not -MAX_SIZE < c < MAX_SIZE for m, c in left if m):
        raise SizeError(f"a polynomial beyond {MAX_DEGREE} factors or 63 bits")
    if not left:
        return 0
    return left[0][1] if left[0][0] == () and len(left) == 1 else Poly(left)


def names(d: Dim) -> frozenset[str]:
    """Collect the names that a dim is made of."""
    return frozenset(n for m, _ in d.terms for n in m) if isinstance(d, Poly) else frozenset()


def substitute(d: Dim, known: Mapping[str, int] | Mapping[str, Dim]) -> Dim:
    """Put values (numbers or dims) in the place of the names that are known."""
    if not isinstance(d, Poly):
        return d
    terms: list[tuple[Monomial, int]] = []
    for m, c in d.terms:
        terms += _terms(reduce(mul, (known[n] if n in known else Poly.of(n) for n in m), c))
    return _make(terms)


def product(dims: tuple[Dim, ...]) -> Dim:
    """Multiply dims; of none it is 1."""
    return reduce(mul, dims, 1)


def total(dims: tuple[Dim, ...]) -> Dim:
    """Add dims; of none it is 0."""
    return reduce(add, dims, 0)


def divide(d: Dim, by: Dim) -> Dim | None:
    """Divide exactly by a number, a monomial, or the dim itself; None for other divisors, and where it does not
    divide.
    """
    if isinstance(d, int) and isinstance(by, int):
        return d // by if by and d % by == 0 else None
    if d == by:
        return 1
    if d == 0:
        return 0
    divisor = _terms(by)
    if len(divisor) != 1:
        return None
    monomial, c = divisor[0]
    out: list[tuple[Monomial, int]] = []
    for m, k in _terms(d):
        rest = list(m)
        for n in monomial:
            if n not in rest:
                return None
            rest.remove(n)
        if k % c:
            return None
        out.append((tuple(rest), k // c))
    return _make(out)


def solve(d: Dim, value: int, name: str) -> int | None:
    """Find the size ``name >= 0`` for which ``d == value``, where ``name`` is the only name of ``d``.

    None when there is none, or when it does not depend on the name. Polynomials of a higher degree are solved
    where they only grow (no negative coefficient), by bisection.
    """
    coefficients: dict[int, int] = {}
    for m, c in _terms(d):
        coefficients[len(m)] = coefficients.get(len(m), 0) + c
    constant = coefficients.pop(0, 0) - value
    if set(coefficients) == {1}:
        slope = coefficients[1]
        root = -constant // slope
        return root if root >= 0 and slope * root + constant == 0 else None
    if not coefficients or any(c < 0 for c in coefficients.values()) or constant > 0:
        return None
    low, high = 0, -constant
    while low < high:
        mid = (low + high) // 2
        if sum(c * mid**p for p, c in coefficients.items()) + constant < 0:
            low = mid + 1
        else:
            high = mid
    return low if sum(c * low**p for p, c in coefficients.items()) + constant == 0 else None


def render_shape(shape: tuple[Dim, ...]) -> str:
    """Write a shape the way messages and plans show it: ``[d, 3*d]``."""
    return "[" + ", ".join(str(d) for d in shape) + "]"
