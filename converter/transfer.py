"""Bytes between files: positioned reads and writes that finish or say why not, and copies inside the kernel."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from converter.errors import FormatError, Problem
from converter.writeback import Writeback

STEP = 16 << 20  # bytes a system call moves at most, so that an interrupt is seen soon
BOUNCE = 256 << 10  # bytes a write takes at most: for more, Linux looks for huge pages, which are slow to come by

_seek = threading.Lock()


def by_copy_file_range(src: int, src_offset: int, dst: int, dst_offset: int, nbytes: int) -> int:
    """Copy inside the kernel, within or across file systems as far as it can; returns the bytes copied."""
    return os.copy_file_range(src, dst, nbytes, src_offset, dst_offset)


def by_sendfile(src: int, src_offset: int, dst: int, dst_offset: int, nbytes: int) -> int:
    """Copy inside the kernel through a pipe; it writes at the file position, so one thread at a time."""
    with _seek:
        os.lseek(dst, dst_offset, os.SEEK_SET)
        return os.sendfile(dst, src, src_offset, nbytes)


class WriteError(OSError):
    """What went wrong in a copy was the writing."""


def by_memory(src: int, src_offset: int, dst: int, dst_offset: int, nbytes: int) -> int:
    """Copy through a small buffer; raises WriteError, and OSError where reading fails."""
    data = os.pread(src, min(nbytes, BOUNCE), src_offset)
    try:
        _write(dst, memoryview(data), dst_offset)
    except OSError as error:
        raise WriteError(error.errno, error.strerror) from error
    return len(data)


def _write(fd: int, data: memoryview, offset: int) -> None:
    size = len(data)
    done = os.pwrite(fd, data if size <= BOUNCE else data[:BOUNCE], offset)
    while done < size:
        many = os.pwrite(fd, data[done : done + BOUNCE], offset + done)
        if not many:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        done += many


class Bytes(Protocol):
    """Bytes that are no file as it stands: memory, or a file that is decoded on the way."""

    def read(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer; raises OSError, and EOFError if there are fewer bytes."""

    def write(self, buffer: memoryview, offset: int) -> None:
        """Take the bytes of a buffer."""


class Memory:
    """Memory of somebody else as an end of transfers."""

    def __init__(self, view: memoryview) -> None:
        self.view = view

    def read(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer."""
        if offset + len(buffer) > len(self.view):
            raise EOFError
        buffer[:] = self.view[offset : offset + len(buffer)]

    def write(self, buffer: memoryview, offset: int) -> None:
        """Take the bytes of a buffer."""
        self.view[offset : offset + len(buffer)] = buffer


End = int | Bytes  # a descriptor, or what stands for one
Ends = Callable[[int], End]


def read_file(fd: int, buffer: memoryview, offset: int) -> int:
    """Fill a buffer from a descriptor; returns the bytes read, fewer if the file ends before. Raises OSError."""
    done, size = 0, len(buffer)
    while done < size:
        many = os.preadv(fd, [buffer[done:] if done else buffer], offset + done)
        if not many:
            break
        done += many
    return done


def _readv(fd: int, buffer: memoryview, offset: int) -> int:
    """Read once; an error or an end is left to whoever reads again."""
    try:
        return os.preadv(fd, (buffer,), offset)
    except OSError:
        return -1


CopyFunction = Callable[[int, int, int, int, int], int]
COPIES: tuple[CopyFunction, ...] = tuple(
    f
    for f, needs in ((by_copy_file_range, "copy_file_range"), (by_sendfile, "sendfile"), (by_memory, "pread"))
    if hasattr(os, needs)
)


class Worker:
    """What one thread works with: the files, and what it has found out so far.

    ``counts``: by tensor, what its cast could not keep (a :class:`converter.casts.Counts`); ``differences``: (number of
    the comparison, count, index of the first element, its two values as text) of chunks that differ.
    """

    def __init__(self, files: Files) -> None:
        self.files = files
        self.counts: dict[str, tuple[int, int, int]] = {}
        self.differences: list[tuple[int, int, int, tuple[str, str]]] = []


class Files:
    """The open files of one run, by number, and what is known about copying between them.

    ``read_fd`` and ``write_fd`` give the descriptor of an input or output file; ``name`` gives the name of an input
    file for messages, ``output`` is that of the output; ``forget``: the output is not to stay in the page cache. Safe
    to use from several threads.
    """

    def __init__(
        self,
        read_fd: Ends,
        write_fd: Ends,
        name: Callable[[int], str],
        output: str = "the output",
        forget: bool = False,
    ) -> None:
        self.read_fd, self.write_fd, self.name, self.output = read_fd, write_fd, name, output
        self._writeback = Writeback(forget)
        self._methods: dict[tuple[int, int], int] = {}
        # The system lets one thread at a time write to a file. Here the others wait asleep, there they would be awake.
        self._turns: dict[int, threading.Lock] = {}

    def _turn(self, file: int) -> threading.Lock:
        return self._turns.setdefault(file, threading.Lock())

    def close(self) -> None:
        """Send nothing more on its way to the disk."""
        self._writeback.close()

    def read(self, file: int, buffer: memoryview, offset: int) -> None:
        """Fill a buffer from an input file; raises FormatError if it ends before."""
        end, done = self.read_fd(file), len(buffer)
        try:
            if isinstance(end, int):
                done = read_file(end, buffer, offset)
            else:
                end.read(buffer, offset)
        except OSError as error:
            raise self._failed("read", self.name(file), error) from error
        except EOFError:
            done = 0
        if done < len(buffer):
            raise self._ended(file, offset + done, len(buffer) - done)

    def write(self, file: int, buffer: memoryview, offset: int) -> None:
        """Write a buffer to an output file; raises FormatError if that fails (no space, ...)."""
        end = self.write_fd(file)
        try:
            if isinstance(end, int):
                with self._turn(file):
                    _write(end, buffer, offset)
            else:
                end.write(buffer, offset)
        except OSError as error:
            raise self._failed("written", self.output, error) from error
        if isinstance(end, int):
            self._writeback.wrote(end, offset, offset + len(buffer), len(buffer))

    def read_pieces(self, file: int, buffer: memoryview, step: int, starts: Iterable[int]) -> None:
        """Fill a buffer, ``step`` bytes at a time, from as many places of an input file."""
        end, at = self.read_fd(file), 0
        for start in starts:
            piece = buffer[at : at + step]
            if not isinstance(end, int) or _readv(end, piece, start) != step:
                self.read(file, piece, start)
            at += step

    def write_pieces(self, file: int, buffer: memoryview, step: int, starts: Sequence[int]) -> None:
        """Write a buffer, ``step`` bytes at a time, to as many places of an output file, in rising order."""
        end, at = self.write_fd(file), 0
        if not isinstance(end, int) or step > BOUNCE or len(starts) < 2:
            for start in starts:
                self.write(file, buffer[at : at + step], start)
                at += step
            return
        try:
            with self._turn(file):
                for start in starts:
                    _write(end, buffer[at : at + step], start)
                    at += step
        except OSError as error:
            raise self._failed("written", self.output, error) from error
        self._writeback.wrote(end, starts[0], starts[-1] + step, len(buffer))

    def copy(self, src_file: int, src_offset: int, dst_file: int, dst_offset: int, nbytes: int) -> None:
        """Copy bytes from an input to an output file by the first way that works for the two.

        A way that fails is not tried again for the same two files, whatever its error: the last one, through memory,
        tells real errors from those of a file system that lacks the call. Raises FormatError.
        """
        src, dst = self.read_fd(src_file), self.write_fd(dst_file)
        if isinstance(dst, Memory):
            self.read(src_file, dst.view[dst_offset : dst_offset + nbytes], src_offset)
            return
        if isinstance(src, Memory):
            self.write(dst_file, src.view[src_offset : src_offset + nbytes], dst_offset)
            return
        if not isinstance(src, int) or not isinstance(dst, int):
            self._pass(src_file, src_offset, dst_file, dst_offset, nbytes)
            return
        done = 0
        while done < nbytes:
            method = self._methods.get((src, dst), 0)
            try:
                many = COPIES[method](src, src_offset + done, dst, dst_offset + done, min(STEP, nbytes - done))
            except OSError as error:
                if method + 1 == len(COPIES):
                    if isinstance(error, WriteError):
                        raise self._failed("written", self.output, error) from error
                    raise self._failed("read", self.name(src_file), error) from error
                self._methods[src, dst] = max(method + 1, self._methods.get((src, dst), 0))
                continue
            if not many:
                if method + 1 == len(COPIES):
                    raise self._ended(src_file, src_offset + done, nbytes - done)
                many = COPIES[-1](src, src_offset + done, dst, dst_offset + done, min(STEP, nbytes - done))
                if not many:
                    raise self._ended(src_file, src_offset + done, nbytes - done)
            done += many
        self._writeback.wrote(dst, dst_offset, dst_offset + nbytes, nbytes)

    def _pass(self, src_file: int, src_offset: int, dst_file: int, dst_offset: int, nbytes: int) -> None:
        """Copy through a small buffer; its size is a multiple of every element's."""
        buffer = memoryview(bytearray(min(nbytes, BOUNCE)))
        for at in range(0, nbytes, BOUNCE):
            piece = buffer[: min(BOUNCE, nbytes - at)]
            self.read(src_file, piece, src_offset + at)
            self.write(dst_file, piece, dst_offset + at)

    def _ended(self, file: int, offset: int, missing: int) -> FormatError:
        return FormatError(
            Problem(
                f"the file ends at byte {offset}, with {missing} more to read: it has shrunk", "read", self.name(file)
            )
        )

    def _failed(self, what: str, subject: str, error: OSError) -> FormatError:
        return FormatError(Problem(f"cannot be {what}: {(error.strerror or str(error)).lower()}", "io", subject))
