"""Bytes between files: positioned reads and writes that finish or say why not, and copies inside the kernel."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

from converter.errors import FormatError, Problem

STEP = 16 << 20  # bytes a system call moves at most, so that an interrupt is seen soon
BOUNCE = 256 << 10  # bytes a write takes at most: for more, Linux looks for huge pages, which are slow to come by
WINDOW = 8 << 20  # written bytes that are sent on their way to the disk together
BEHIND = 8  # windows that may be on their way before the oldest has to have arrived

_START, _WAIT = 2, 5  # of sync_file_range(2): begin writing; wait for what is being written before and after that

_seek = threading.Lock()


def by_copy_file_range(src: int, src_offset: int, dst: int, dst_offset: int, nbytes: int) -> int:
    """Copy inside the kernel, within or across file systems as far as it can; returns the bytes copied."""
    return os.copy_file_range(src, dst, nbytes, src_offset, dst_offset)


def by_sendfile(src: int, src_offset: int, dst: int, dst_offset: int, nbytes: int) -> int:
    """Copy inside the kernel through a pipe; it writes at the file position, so one thread at a time."""
    with _seek:
        os.lseek(dst, dst_offset, os.SEEK_SET)
        return os.sendfile(dst, src, src_offset, nbytes)


def by_memory(src: int, src_offset: int, dst: int, dst_offset: int, nbytes: int) -> int:
    """Copy through a small buffer."""
    data = os.pread(src, min(nbytes, BOUNCE), src_offset)
    _write(dst, memoryview(data), dst_offset)
    return len(data)


def _write(fd: int, data: memoryview, offset: int) -> None:
    done, size = 0, len(data)
    while done < size:
        many = os.pwrite(fd, data[done : done + BOUNCE], offset + done)
        if not many:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        done += many


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    call: Any = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    found: Callable[[int, int, int, int], int] | None = call
    return found


class Writeback:
    """Sends what has been written on its way to the disk early, so that the sync at the end has little left to do.

    With ``forget``, what has arrived is dropped from the page cache, for an output that would fill it. All of this is
    advice: nothing fails here, and where the system lacks the call, nothing happens. Safe to use from several threads.
    """

    def __init__(self, write_fd: Callable[[int], int], forget: bool = False) -> None:
        self._write_fd, self._forget = write_fd, forget
        self._call = _sync_file_range()
        self._lock = threading.Lock()
        self._fresh: dict[int, tuple[int, int, int]] = {}  # by file: bytes written, and the range that has them
        self._sent: deque[tuple[int, int, int]] = deque()  # file, start, bytes

    def wrote(self, file: int, offset: int, nbytes: int) -> None:
        """Note a range that has been written, and send it if it fills a window."""
        if self._call is None:
            return
        late = None
        with self._lock:
            held, low, high = self._fresh.get(file, (0, offset, offset))
            held, low, high = held + nbytes, min(low, offset), max(high, offset + nbytes)
            if held < WINDOW:
                self._fresh[file] = held, low, high
                return
            self._fresh.pop(file, None)
            if self._forget and high - low <= 2 * held:  # else what lies between may still be written
                self._sent.append((file, low, high - low))
                late = self._sent.popleft() if len(self._sent) > BEHIND else None
        self._call(self._write_fd(file), low, high - low, _START)
        if late is not None:
            file, low, nbytes = late
            self._call(self._write_fd(file), low, nbytes, _START | _WAIT)
            os.posix_fadvise(self._write_fd(file), low, nbytes, os.POSIX_FADV_DONTNEED)


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
    file for messages; ``forget``: the output is not to stay in the page cache. Safe to use from several threads.
    """

    def __init__(
        self,
        read_fd: Callable[[int], int],
        write_fd: Callable[[int], int],
        name: Callable[[int], str],
        forget: bool = False,
    ) -> None:
        self.read_fd, self.write_fd, self.name = read_fd, write_fd, name
        self._writeback = Writeback(write_fd, forget)
        self._methods: dict[tuple[int, int], int] = {}

    def read(self, file: int, buffer: memoryview, offset: int) -> None:
        """Fill a buffer from an input file; raises FormatError if it ends before."""
        fd, done, size = self.read_fd(file), 0, len(buffer)
        while done < size:
            try:
                many = os.preadv(fd, [buffer[done:] if done else buffer], offset + done)
            except OSError as error:
                raise self._failed("read", self.name(file), error) from error
            if not many:
                raise self._ended(file, offset + done, size - done)
            done += many

    def write(self, file: int, buffer: memoryview, offset: int) -> None:
        """Write a buffer to an output file; raises FormatError if that fails (no space, ...)."""
        fd = self.write_fd(file)
        try:
            _write(fd, buffer, offset)
        except OSError as error:
            raise self._failed("write", "the output", error) from error
        self._writeback.wrote(file, offset, len(buffer))

    def copy(self, src_file: int, src_offset: int, dst_file: int, dst_offset: int, nbytes: int) -> None:
        """Copy bytes from an input to an output file by the first way that works for the two.

        A way that fails is not tried again for the same two files, whatever its error: the last one, through memory,
        tells real errors from those of a file system that lacks the call. Raises FormatError.
        """
        src, dst = self.read_fd(src_file), self.write_fd(dst_file)
        done = 0
        while done < nbytes:
            method = self._methods.get((src, dst), 0)
            try:
                many = COPIES[method](src, src_offset + done, dst, dst_offset + done, min(STEP, nbytes - done))
            except OSError as error:
                if method + 1 == len(COPIES):
                    raise self._failed("copy", self.name(src_file), error) from error
                self._methods[src, dst] = max(method + 1, self._methods.get((src, dst), 0))
                continue
            if not many:
                if method + 1 == len(COPIES):
                    raise self._ended(src_file, src_offset + done, nbytes - done)
                many = COPIES[-1](src, src_offset + done, dst, dst_offset + done, min(STEP, nbytes - done))
                if not many:
                    raise self._ended(src_file, src_offset + done, nbytes - done)
            done += many
        self._writeback.wrote(dst_file, dst_offset, nbytes)

    def _ended(self, file: int, offset: int, missing: int) -> FormatError:
        return FormatError(
            Problem(
                f"the file ends at byte {offset}, with {missing} more to read: it has shrunk", "read", self.name(file)
            )
        )

    def _failed(self, what: str, subject: str, error: OSError) -> FormatError:
        return FormatError(Problem(f"cannot {what}: {error.strerror or error}", what, subject))
