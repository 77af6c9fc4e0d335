"""Sets of element positions as nested strides, and how they change when a tensor is cut and laid out anew.

A *dim* is ``(n, dst, src)``: ``n`` steps, each ``dst`` elements further in the tensor's row-major order and ``src``
elements further in its source. A start and a tuple of dims describe every element of a block at the cost of a few
integers. All functions here are exact for every input and touch no data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import gcd, prod

Dim = tuple[int, int, int]
Dims = tuple[Dim, ...]
Part = tuple[int, tuple[Dim, ...]]  # along one axis: the first coordinate, and dims whose `dst` counts coordinates
Strides = tuple[tuple[int, int], ...]  # (steps, stride)
Piece = tuple[int, Strides]  # the first position of a set, and how it goes on

PRIME = (1 << 61) - 1


def normalise(dims: Iterable[Dim]) -> Dims:
    """Sort dims by descending ``dst`` stride, drop those of one step, join those that continue each other."""
    out: list[Dim] = []
    for n, ds, ss in sorted((d for d in dims if d[0] != 1), key=lambda d: -d[1]):
        if out and out[-1][1] == n * ds and out[-1][2] == n * ss:
            out[-1] = (out[-1][0] * n, ds, ss)
        else:
            out.append((n, ds, ss))
    return tuple(out)


def count(dims: Iterable[Dim]) -> int:
    """Count the elements of a block."""
    total = 1
    for n, _, _ in dims:
        total *= n
    return total


@lru_cache(maxsize=4096)
def outer(dims: Dims) -> Strides:
    """Give the steps of a block in the tensor alone."""
    return tuple((n, ds) for n, ds, _ in dims)


@lru_cache(maxsize=4096)
def inner(dims: Dims) -> Strides:
    """Give the steps of a block in its source alone."""
    return tuple((n, ss) for n, _, ss in dims)


def span(dims: Iterable[Dim]) -> int:
    """Give the distance in the tensor between the first and the last element of a block."""
    return sum((n - 1) * ds for n, ds, _ in dims)


def relay(
    dst: int, src: int, dims: Dims, lengths: Sequence[int], box: Sequence[tuple[int, int]], strides: Sequence[int]
) -> Iterator[tuple[int, int, Dims]]:
    """Cut a block to a box of a tensor of shape ``lengths`` and lay it out with new strides.

    ``box`` has a (start, stop) for each axis; element ``(i, j, ...)`` goes to ``(i - start_i) * strides_i + ...``.
    Yields (dst, src, dims) of the pieces, whose dims are normalised.
    """
    units = [1] * len(lengths)
    for axis in range(len(lengths) - 1, 0, -1):
        units[axis - 1] = units[axis] * lengths[axis]
    for coords, at in _coordinates(dst, src, dims, units, 0):
        for clipped, start in _clip_all(coords, at, box, 0):
            new_dst = 0
            new_dims: list[Dim] = []
            for (first, steps), (low, _), stride in zip(clipped, box, strides):
                new_dst += (first - low) * stride
                new_dims.extend((n, ds * stride, ss) for n, ds, ss in steps)
            yield new_dst, start, normalise(new_dims)


def split_rows(dst: int, src: int, dims: Dims, width: int) -> Iterator[tuple[int, Dims, int, Dims, int]]:
    """Cut a block of a matrix of ``width`` columns into pieces whose steps stay in a row or go from row to row.

    Yields (first row, dims that count rows, first column, dims within the row, src).
    """
    for ((row, rows), (column, columns)), start in _coordinates(dst, src, dims, (width, 1), 0):
        yield row, rows, column, columns, start


def _coordinates(
    dst: int, src: int, dims: Dims, units: Sequence[int], level: int
) -> Iterator[tuple[tuple[Part, ...], int]]:
    """Yield pieces as one Part an axis, from axis ``level`` inwards, and where the piece begins in the source."""
    if level == len(units):
        yield (), src
        return
    unit = units[level]
    for at, start, cut in _cut(dst, src, dims, unit):
        first, rest = divmod(at, unit)
        outer = tuple((n, ds // unit, ss) for n, ds, ss in cut if ds % unit == 0)
        inner = tuple(d for d in cut if d[1] % unit)
        for parts, begin in _coordinates(rest, start, inner, units, level + 1):
            yield ((first, outer), *parts), begin


def _cut(dst: int, src: int, dims: Dims, unit: int) -> Iterator[tuple[int, int, Dims]]:
    """Cut a block so that in each piece no step that is not a multiple of ``unit`` crosses a multiple of it."""
    inner = [d for d in dims if d[1] % unit]
    reach = span(inner)
    if dst % unit + reach < unit:
        yield dst, src, dims
        return
    n, ds, ss = widest = max(inner, key=lambda d: d[1])
    rest = tuple(d for d in dims if d is not widest)
    low = reach - (n - 1) * ds
    period = unit // gcd(ds, unit)
    if unit % ds == 0 and dst % ds + low < ds:
        head = min(n, -(dst % unit // ds) % period)
        body = (n - head) // period
        if head:
            yield dst, src, (*rest, (head, ds, ss))
        if body:
            yield dst + head * ds, src + head * ss, (*rest, (body, unit, ss * period), (period, ds, ss))
        done = head + body * period
        if done < n:
            yield dst + done * ds, src + done * ss, (*rest, (n - done, ds, ss))
    elif n >= 2 * period:
        body = n // period
        yield from _cut(dst, src, (*rest, (body, ds * period, ss * period), (period, ds, ss)), unit)
        if n % period:
            done = body * period
            yield from _cut(dst + done * ds, src + done * ss, (*rest, (n % period, ds, ss)), unit)
    else:
        step = 0
        while step < n:
            at = (dst + step * ds) % unit
            many = min(n - step, max(1, (unit - 1 - low - at) // ds + 1))
            piece = (*rest, (many, ds, ss)) if many > 1 else rest
            yield from _cut(dst + step * ds, src + step * ss, piece, unit)
            step += many


def _clip_all(
    parts: tuple[Part, ...], src: int, box: Sequence[tuple[int, int]], axis: int
) -> Iterator[tuple[tuple[Part, ...], int]]:
    """Cut each axis of a piece to its range of the box."""
    if axis == len(parts):
        yield (), src
        return
    first, steps = parts[axis]
    for at, start, kept in _clip(first, src, steps, *box[axis]):
        for rest, begin in _clip_all(parts, start, box, axis + 1):
            yield ((at, kept), *rest), begin


def _clip(first: int, src: int, steps: Dims, start: int, stop: int) -> Iterator[tuple[int, int, Dims]]:
    """Keep the coordinates from ``start`` to ``stop`` of one axis."""
    reach = span(steps)
    if start <= first and first + reach < stop:
        yield first, src, steps
        return
    if first >= stop or first + reach < start:
        return
    n, ds, ss = widest = max(steps, key=lambda d: d[1])
    rest = tuple(d for d in steps if d is not widest)
    low = reach - (n - 1) * ds
    begin = max(0, -((first + low - start) // ds))  # the steps that reach into the range
    end = min(n - 1, (stop - 1 - first) // ds)
    whole = max(begin, -((first - start) // ds))  # the steps that lie in it
    last = min(end, (stop - 1 - low - first) // ds)
    if whole <= last:
        for step in range(begin, whole):
            yield from _clip(first + step * ds, src + step * ss, rest, start, stop)
        yield first + whole * ds, src + whole * ss, (*rest, (last - whole + 1, ds, ss))
        begin = last + 1
    for step in range(begin, end + 1):
        yield from _clip(first + step * ds, src + step * ss, rest, start, stop)


def covers(pieces: Iterable[Piece], total: int) -> bool:
    """Tell whether pieces hold each of ``0..total-1`` exactly once, at a cost per piece.

    Pieces that are ranges are laid end to end. Those that interleave are counted, and the polynomials ``sum(x**i)`` of
    both sides are compared at two points modulo a prime of 61 bits (Schwartz-Zippel: two that differ agree at a random
    point with a chance of total / 2**61).
    """
    done = end = 0  # below `done` each is held once; from there to `end` reaches a group of pieces that interleave
    group: list[Piece] = []
    for start, dims in sorted(pieces):
        if group and start >= end:
            if not _fills(group, done, end):
                return False
            done, group = end, []
        if not group and start != done:
            return False
        size = _dense(dims) if not group else 0
        if size:
            done = end = start + size
        else:
            group.append((start, dims))
            end = max(end, start + 1 + sum((n - 1) * stride for n, stride in dims))
    return (not group or _fills(group, done, end)) and end == total


def balanced(pieces: Iterable[Piece], again: Iterable[Piece], total: int) -> bool:
    """Tell whether pieces hold each of ``0..total-1`` once, and what ``again`` holds once more; see :func:`covers`."""
    return _equal(sorted(pieces), sorted([(0, ((total, 1),)), *again]))


def _dense(dims: Strides) -> int:
    """Give the length of a piece that is one range, in whatever order, and 0 for another."""
    unit = 1
    for n, stride in sorted(dims, key=lambda d: d[1]):
        if stride != unit:
            return 0
        unit *= n
    return unit


def _fills(pieces: Sequence[Piece], start: int, stop: int) -> bool:
    held = sum(prod(n for n, _ in dims) for _, dims in pieces)
    return held == stop - start and _equal(pieces, [(start, ((stop - start, 1),))])


def _equal(one: Sequence[Piece], other: Sequence[Piece]) -> bool:
    points = (1_234_567_890_123_456_789, 987_654_321_098_765_431)
    return all(_polynomial(x, one) == _polynomial(x, other) for x in points)


def _polynomial(x: int, pieces: Sequence[Piece]) -> int:
    """Evaluate the sum of ``x**i`` over the positions of pieces, sorted by their starts, modulo PRIME."""
    total, at, power = 0, 0, 1
    powers: dict[int, int] = {}
    factors: dict[Strides, int] = {}
    for start, dims in pieces:
        step = start - at
        if step not in powers:
            powers[step] = pow(x, step, PRIME)
        if dims not in factors:
            factors[dims] = _factor(x, dims)
        at, power = start, power * powers[step] % PRIME
        total += power * factors[dims]
    return total % PRIME


def _factor(x: int, dims: Strides) -> int:
    value = 1
    for n, stride in dims:
        ratio = pow(x, stride, PRIME)
        if ratio == 1:
            value = value * n % PRIME
        else:
            value = value * (pow(ratio, n, PRIME) - 1) * pow(ratio - 1, -1, PRIME) % PRIME
    return value
