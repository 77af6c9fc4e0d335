"""Accounting: nothing is lost and nothing is moved twice, shown on the plan before a byte is written.

Four statements are checked, always. Their cost is counted in blocks and ranges, whatever the number of elements:

1. each tensor of the input has one fate: a step moves it, a step compares it, or it is dropped by name
   (:func:`unaccounted`);
2. through each recipe, every element of every source comes out in exactly one place, but for those that an op says it
   lets go (after a comparison, or by a trim) or gives several times, and every element of every output is made once
   (:func:`check_books`);
3. the tensors of an output file fill its data, without a hole or an overlap (:func:`check_space`);
4. the moves that are run are these blocks, each once, from there to there (:func:`check_moves`).

So every byte of the output is written exactly once, and a move that is lost, doubled or shifted is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from operator import itemgetter

from converter.errors import FormatError, Problem
from converter.formats.text import many_objects
from converter.layout import Dims, Strides, balanced, covers, inner, normalise
from converter.moves import Copy, Gather, Moves, Runs, lower
from converter.ops.base import Applied
from converter.packed import in_bytes
from converter.spec import DTYPES, nbytes
from converter.steps import Plan
from converter.values import FileSource, Produce
from converter.virtual import CONSTANT, Block, Virtual, made_once

Space = Mapping[int, tuple[int, int]]  # of each output file, where its data begins and ends
Origin = tuple[object, ...]  # an input file, and how its elements are changed on the way; or what makes a constant
Piece = tuple[int, int, Origin, int, Dims]  # output file, byte; origin, byte; (steps, bytes there, bytes here)


def unaccounted(plan: Plan) -> list[Problem]:
    """List tensors of the input that no step of a plan reads and nothing drops, and those that are moved too often.

    A tensor is moved once, and once more for each name that the input's metadata record as an alias of it, and for each
    tied name that is written without being an alias.
    """
    moved: dict[str, int] = {}
    read: set[str] = set(plan.fates.dropped)
    for step in plan.steps:
        if step.kind == "move":
            for name in step.source_names():
                moved[name] = moved.get(name, 0) + 1
        else:
            read.update(step.source_names())
    aliases = list(plan.header.metadata.values())
    most = 1 + sum(1 for t in plan.fates.tied if t.alias is None)
    out = [
        Problem(_defect("no step of the plan reads it"), "account", name)
        for name in plan.header.tensors
        if name not in moved and name not in read
    ]
    return out + [
        Problem(_defect(f"{times} steps of the plan move it"), "account", name)
        for name, times in moved.items()
        if times > 1 and times > most + aliases.count(name)
    ]


def check_books(sources: Sequence[tuple[int, ...]], done: Applied[Virtual]) -> None:
    """Check what a recipe makes of sources of some shapes; raises FormatError if an element is lost or doubled.

    Each output must have every element once; and of each source, what comes out and what ops let go must be what there
    was and what ops gave again.
    """
    kept = [v for family in done.families for v in family.items]
    for v in kept:
        if not made_once(v):
            raise _refused(f"the ops do not make each element of a tensor {list(v.shape)} exactly once")
    landed, again = _by_source([*kept, *done.gone]), _by_source(done.more)
    for slot, shape in enumerate(sources):
        pieces, total = landed.get(slot, []), prod(shape)
        fits = balanced(pieces, again[slot], total) if slot in again else covers(pieces, total)
        if not fits:
            raise _refused(f"the ops do not pass on each element of source {slot + 1}, {list(shape)}, exactly once")


def _by_source(values: Iterable[Virtual]) -> dict[int, list[tuple[int, Strides]]]:
    """Where the elements of values stand in their sources."""
    out: dict[int, list[tuple[int, Strides]]] = {}
    for value in values:
        for b in value.blocks:
            if b.slot >= 0:  # of what is computed, the books are those of what it is computed from
                out.setdefault(b.slot, []).append((b.first.src, inner(b.first.dims)))
    return out


def _last(block: Block) -> int:
    return block.dst + sum((n - 1) * ds for n, ds, _ in block.dims)


def lower_checked(produces: Sequence[Produce], space: Space | None = None) -> Moves:
    """Say what has to be moved to write the tensors, and check it against them before any of it is run.

    Raises what :func:`converter.moves.lower` raises, and FormatError if anything would be written twice, or not at all,
    or from the wrong place.
    """
    moves = lower(produces)
    if space is not None:
        check_space(produces, space)
    check_moves(produces, moves)
    return moves


def check_space(produces: Iterable[Produce], space: Space) -> None:
    """Check that tensors fill the data of their files; raises FormatError."""
    ends = {file: start for file, (start, _) in space.items()}
    for file, at, size, name in sorted((p.file, p.offset, nbytes(p.dtype, p.value.shape), p.name) for p in produces):
        if ends.get(file) != at:
            raise _refused(f"{name} would be at byte {at} of a file that is filled to {ends.get(file)}")
        ends[file] += size
    for file, (_, stop) in space.items():
        if ends[file] != stop:
            raise _refused(f"the tensors of file {file + 1} end at byte {ends[file]}, its data at {stop}")


@many_objects()
def check_moves(produces: Sequence[Produce], moves: Moves) -> None:
    """Check that moves are the blocks of tensors, each once; raises FormatError that says where they are not."""
    wanted, found = _canonical(_blocks(produces)), _canonical(_moved(moves))
    if wanted == found:
        return
    k = next((k for k, (a, b) in enumerate(zip(wanted, found)) if a != b), min(len(wanted), len(found)))
    file, at = min(piece[:2] for pieces in (wanted, found) for piece in pieces[k : k + 1])
    name = next(
        (p.name for p in produces if p.file == file and 0 <= at - p.offset < nbytes(p.dtype, p.value.shape)), ""
    )
    raise _refused(f"the moves are not what the plan says, at byte {at} of file {file + 1}", name)


def _blocks(produces: Iterable[Produce]) -> Iterator[Piece]:
    for p in produces:
        if DTYPES[p.dtype].kind == "packed":
            dtype, value, sources = in_bytes(p.dtype, p.value, p.sources)
            p = Produce(p.name, p.file, p.offset, dtype, value, sources)
        for block in p.value.blocks:
            yield _piece(p, block)


def _moved(moves: Moves) -> Iterator[Piece]:
    for m in moves.items:
        if isinstance(m, Copy):
            yield m.dst_file, m.dst_offset, (m.src_file,), m.src_offset, _run(m.nbytes)
        elif isinstance(m, Runs):
            c = m.first
            yield c.dst_file, c.dst_offset, (c.src_file,), c.src_offset, normalise([*m.dims, (c.nbytes, 1, 1)])
        elif isinstance(m, Gather):
            # Blocks of one tensor are disjoint, so those of the right number within a range fill it.
            within = all(m.start <= b.dst and _last(b) < m.stop for b in m.blocks)
            if not within or sum(b.size for b in m.blocks) != m.stop - m.start:
                raise _refused(f"elements {m.start} to {m.stop} are not each made once", m.produce.name)
            for block in m.blocks:
                yield _piece(m.produce, block)
        else:
            yield _piece(m.produce, m.block)


def _piece(produce: Produce, block: Block) -> Piece:
    """A block as bytes: of a file, as they are; else element by element, with what makes them."""
    size = DTYPES[produce.dtype].bits // 8
    file, at = produce.file, produce.offset + block.dst * size
    beside = tuple((o.value.hex(), o.chain, produce.sources[o.slot] if o.slot >= 0 else None) for o in block.operands)
    made: Origin = (produce.dtype, block.chain, beside)
    if block.slot == CONSTANT:
        return file, at, ("constant", block.value.hex(), *made), block.src, _scaled(block.dims, size, 1, 0)
    source = produce.sources[block.slot]
    if not isinstance(source, FileSource):
        return file, at, (source, *made), block.src, _scaled(block.dims, size, 1, 0)
    if source.dtype == produce.dtype and not block.chain:
        dims = _scaled(block.dims, size, size, size)
        return file, at, (source.file,), source.offset + block.src * size, dims
    return file, at, (source, *made), block.src, _scaled(block.dims, size, 1, 0)


@lru_cache(maxsize=4096)
def _scaled(dims: Dims, size: int, width: int, run: int) -> Dims:
    """Dims in bytes, with those within an element if it is ``run`` bytes that are moved as they are."""
    out = [(n, ds * size, ss * width) for n, ds, ss in dims]
    return normalise([*out, (run, 1, 1)] if run else out)


def _canonical(pieces: Iterable[Piece]) -> list[Piece]:
    """Sort pieces by where they go, and join runs of bytes that continue each other."""
    out: list[Piece] = []
    for piece in sorted(pieces, key=itemgetter(0, 1)):
        longer = _joined(out[-1], piece) if out else None
        if longer is None:
            out.append(piece)
        else:
            out[-1] = longer
    return out


def _joined(a: Piece, b: Piece) -> Piece | None:
    """Make one of two runs of bytes that continue each other in both files."""
    file, at, origin, src, dims = a
    if len(origin) > 1 or b[2] != origin or b[0] != file:
        return None
    n = dims[0][0] if dims else 1
    if (at + n, src + n) != (b[1], b[3]) or dims != _run(n):
        return None
    more = b[4][0][0] if b[4] else 1
    return (file, at, origin, src, _run(n + more)) if b[4] == _run(more) else None


def _run(n: int) -> Dims:
    return ((n, 1, 1),) if n > 1 else ()


def _refused(text: str, name: str | None = None) -> FormatError:
    return FormatError(Problem(_defect(text), "account", name or None))


def _defect(text: str) -> str:
    return f"{text}: a defect of this program, found before anything was written"
