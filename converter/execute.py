"""Run moves and comparisons: the only loop that touches data.

Tasks are handed out in the order of the output to a few threads, each with its share of the memory; what they write
does not depend on how many there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from converter.errors import FormatError, MismatchError, Problem
from converter.moves import Compare, Copy, Gather, Moves, Runs, Tile
from converter.pool import Pool
from converter.shared import Shared
from converter.transfer import STEP, Ends, Files, Worker
from converter.values import ScaleSource

if TYPE_CHECKING:
    from converter.casts import Counts
    from converter.compare import Difference

MIN_MEMORY = 1 << 20  # bytes a thread needs; with less memory in all there are fewer threads, and at least one
BATCH = 256  # small copies that make one task
BATCH_BYTES = 4 << 20

Task = Callable[[Worker], None]


@dataclass(frozen=True)
class Outcome:
    """What a run did: bytes written, by tensor what casts could not keep, and the comparisons that failed."""

    bytes_written: int
    casts: Mapping[str, Counts]
    differences: tuple[Difference, ...]


class CastOverflowError(MismatchError):
    """Casts made finite values infinite; ``outcome`` has everything else that the run found."""

    def __init__(self, problems: Iterable[Problem], outcome: Outcome) -> None:
        super().__init__(problems)
        self.outcome = outcome


def execute(
    moves: Moves,
    compares: Sequence[Compare],
    read_fd: Ends,
    write_fd: Ends,
    *,
    jobs: int = 1,
    memory: int = 256 << 20,
    allow_overflow: bool = False,
    progress: Callable[[int], None] | None = None,
    name: Callable[[int], str] | None = None,
    output: str = "the output",
) -> Outcome:
    """Run moves and compare values.

    ``read_fd`` and ``write_fd`` give the descriptors of input and output files, or what stands for them
    (:class:`converter.transfer.Bytes`), by number (asked often, from all threads); ``name`` the name of an input file
    for messages, ``output`` is what they call the output. ``jobs``: threads; ``memory``: bytes for the buffers of all
    of them, at least MIN_MEMORY; ``progress`` is called with bytes just written, one call at a time.

    Raises CastOverflowError, a MismatchError, after all is done, if finite values did not fit their dtype and
    ``allow_overflow`` is false; FormatError if reading or writing fails. What was written then is incomplete.
    """
    files = Files(read_fd, write_fd, name or (lambda file: f"input file {file}"), output, moves.nbytes > _cacheable())
    workers = max(1, min(jobs, memory // MIN_MEMORY))
    memory = max(MIN_MEMORY, memory)
    shared = Shared(memory // 16 if _uses_scales(moves, compares) else 0)
    share = (memory - shared.limit) // workers
    crew = [_worker(files, share, moves.computes or bool(compares), shared) for _ in range(workers)]
    try:
        written = Pool(crew, _tasks(moves, compares, share), progress).run()
    except OSError as error:  # from a caller's read_fd or write_fd
        said = (error.strerror or str(error)).lower()
        raise FormatError(Problem(f"cannot be read or written: {said}", "io", output)) from error
    finally:
        files.close()
    outcome = _outcome(written, crew, compares)
    problems = [
        Problem(f"{c.overflow} finite values do not fit its dtype", "overflow", tensor)
        for tensor, c in outcome.casts.items()
        if c.overflow
    ]
    if problems and not allow_overflow:
        raise CastOverflowError(problems, outcome)
    return outcome


def _cacheable() -> int:
    """Give the bytes of output that may stay in the page cache for whoever reads them: a quarter of the memory."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    except (ValueError, OSError):
        return 1 << 62


def _worker(files: Files, share: int, computes: bool, shared: Shared) -> Worker:
    """Make a worker; where all is copied in the kernel it needs no memory, and the run no numpy."""
    if not computes:
        return Worker(files)
    from converter.pieces import Workspace

    return Workspace(files, share, shared)


def _uses_scales(moves: Moves, compares: Sequence[Compare]) -> bool:
    """Whether something is computed from all elements of a block: then it is kept for whoever needs it next."""
    every = (m.produce.sources for m in moves.items if isinstance(m, (Tile, Gather)))
    return any(isinstance(s, ScaleSource) for sources in (*every, *(c.sources for c in compares)) for s in sources)


def _outcome(written: int, crew: Sequence[Worker], compares: Sequence[Compare]) -> Outcome:
    """Put together what the workers found."""
    counts: dict[str, tuple[int, ...]] = {}
    chunks: dict[int, list[tuple[int, int, tuple[str, str]]]] = {}
    for worker in crew:
        for tensor, found in worker.counts.items():
            counts[tensor] = tuple(a + b for a, b in zip(found, counts.get(tensor, (0, 0, 0))))
        for number, count, first, texts in worker.differences:
            chunks.setdefault(number, []).append((count, first, texts))
    if not counts and not chunks:
        return Outcome(written, {}, ())
    from converter.casts import Counts
    from converter.compare import difference

    casts = {tensor: Counts(*found) for tensor, found in sorted(counts.items())}
    return Outcome(written, casts, tuple(difference(compares[n], found) for n, found in sorted(chunks.items())))


def _tasks(moves: Moves, compares: Sequence[Compare], share: int) -> Iterator[tuple[int, Task]]:
    """Yield (bytes written, task), in file order, then comparisons."""
    batch: list[Copy] = []
    held = 0
    for move in moves.items:
        if isinstance(move, (Copy, Runs)):
            for copy in _steps(move):
                batch.append(copy)
                held += copy.nbytes
                if held >= BATCH_BYTES or len(batch) == BATCH:
                    yield held, _Copies(tuple(batch))
                    batch, held = [], 0
            continue
        if batch:
            yield held, _Copies(tuple(batch))
            batch, held = [], 0
        yield from _computed(move, share)
    if batch:
        yield held, _Copies(tuple(batch))
    for number, compare in enumerate(compares):
        from converter.compare import compare_tasks
        from converter.pieces import usable

        yield from compare_tasks(number, compare, usable(share))


def _computed(move: Tile | Gather, share: int) -> Iterator[tuple[int, Task]]:
    from converter.pieces import usable
    from converter.tiles import gather_tasks, tile_tasks

    return tile_tasks(move, usable(share)) if isinstance(move, Tile) else gather_tasks(move, usable(share))


def _steps(move: Copy | Runs) -> Iterator[Copy]:
    """Cut copies to what one system call moves."""
    for c in move if isinstance(move, Runs) else (move,):
        if c.nbytes <= STEP:
            yield c
        else:
            at = 0
            while at < c.nbytes:  # cuts are at whole pages of the output
                size = min(STEP - (c.dst_offset + at) % STEP, c.nbytes - at)
                yield Copy(c.src_file, c.src_offset + at, c.dst_file, c.dst_offset + at, size)
                at += size


@dataclass(frozen=True, slots=True)
class _Copies:
    copies: tuple[Copy, ...]

    def __call__(self, work: Worker) -> None:
        for c in self.copies:
            work.files.copy(c.src_file, c.src_offset, c.dst_file, c.dst_offset, c.nbytes)
