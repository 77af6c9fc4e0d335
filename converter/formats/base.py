"""What every format shares: the protocol of a reader, an opened checkpoint, and how faults of the system are told."""

from __future__ import annotations

import errno
import os
import resource
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Protocol

from converter.errors import FormatError, Problem
from converter.formats.decode import Decoded
from converter.formats.text import show
from converter.spec import FileStamp, Head, Header
from converter.transfer import End

HEAD = 512  # bytes that tell what a file is


class Format(Protocol):
    """One kind of checkpoint file: how to know it by name and content, and how to read the header of one file."""

    @property
    def name(self) -> str:
        """What messages call the format."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Endings of file names, the usual one first."""

    @property
    def index_suffix(self) -> str:
        """Ending of the name of an index, whose shards are then all of this format."""

    def claims(self, head: bytes) -> bool:
        """Tell from the first 512 bytes of a file whether its content is of this format."""

    def read_header(self, path: str, root: str | None = None) -> Header:
        """Read and check the header of one file; raises FormatError.

        ``root`` says which state dict of a wrapped pickle is meant; a format without such raises UsageError for one.
        """


def bad(path: str, message: str, kind: str = "format") -> FormatError:
    """Make the error that says what is wrong with a file."""
    return FormatError(Problem(message, kind, show(path)))


@contextmanager
def faults(path: str, doing: str) -> Iterator[None]:
    """Turn an OSError inside the block into a FormatError that names the path and what was being done to it."""
    try:
        yield
    except FileNotFoundError:
        raise bad(path, "no such file", "io") from None
    except OSError as e:
        raise bad(path, f"{doing}: {(e.strerror or str(e)).lower()}", "io") from e
    except ValueError as e:  # a NUL in a path
        if "null" not in str(e):
            raise
        raise bad(path, "no such file", "io") from None


class Descriptors:
    """File descriptors of some files, each opened at its first use; threads may share it."""

    def __init__(self, paths: Sequence[str], flags: int, doing: str) -> None:
        self._paths, self._flags, self._doing = tuple(paths), flags | os.O_CLOEXEC | os.O_NONBLOCK, doing
        self._open: dict[int, int] = {}
        self._lock = threading.Lock()

    def get(self, i: int) -> int:
        """Give the descriptor of file ``i``; raises FormatError if it cannot be opened."""
        fd = self._open.get(i)
        if fd is not None:
            return fd
        with self._lock, faults(self._paths[i], self._doing):
            if i not in self._open:
                self._open[i] = self._open_file(self._paths[i])
            return self._open[i]

    def peek(self, i: int) -> int | None:
        """Give the descriptor of file ``i`` if it is open."""
        return self._open.get(i)

    def close(self, i: int | None = None) -> None:
        """Close one file, or all; one that is used again is opened again."""
        with self._lock:
            for k in list(self._open) if i is None else [i] if i in self._open else []:
                os.close(self._open.pop(k))

    def _open_file(self, path: str) -> int:
        try:
            return os.open(path, self._flags)
        except OSError as e:
            if e.errno != errno.EMFILE:
                raise
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError, ValueError):
            if soft != hard:
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return os.open(path, self._flags)


class Input(Protocol):
    """What tensors are read from: an open checkpoint, or a live model."""

    @property
    def header(self) -> Header:
        """Everything but the data."""

    @property
    def path(self) -> str:
        """The path as the user gave it."""

    @property
    def root(self) -> str | None:
        """Which state dict of a wrapped pickle."""

    def fd(self, i: int) -> End:
        """Give the descriptor of file ``i`` of the header, or what stands for it."""

    def name(self, i: int) -> str:
        """Name it in messages."""

    def check_unchanged(self) -> None:
        """Raise FormatError if it is not what it was when it was planned."""


class Checkpoint:
    """An opened input: its path as the user gave it, the name of its format, its header, and its files for reading.

    ``folder`` is where a config.json of it would be. Use it as a context manager, or call :meth:`close`.
    """

    def __init__(self, path: str, header: Header, format_name: str, folder: str, root: str | None = None) -> None:
        self.path, self.header, self.format, self.folder, self.root = path, header, format_name, folder, root
        self._files = Descriptors([f.path for f in header.files], os.O_RDONLY, "cannot be read")

    def fd(self, i: int) -> End:
        """Give a read-only descriptor of file ``i`` of the header, opened at the first use, or what decodes it.

        Raises FormatError if the file cannot be opened or is not the one that the header was read from.
        """
        fd = self._files.peek(i)
        if fd is None:
            fd = self._files.get(i)
            self._compare(self.header.files[i], os.fstat(fd))
        how = self.header.files[i].decode
        return Decoded(fd, how) if how else fd

    def name(self, i: int) -> str:
        """Give the path of file ``i`` of the header."""
        return self.header.files[i].path

    @property
    def fds(self) -> tuple[End, ...]:
        """Descriptors of all files, parallel to ``header.files``."""
        return tuple(self.fd(i) for i in range(len(self.header.files)))

    def check_unchanged(self) -> None:
        """Raise FormatError if any file, the index too, is not what it was when the header was read.

        What is looked at: size, modification time, the bytes that the header was read from, and whether the file at
        the path is still the one that is open.
        """
        index = self.header.index
        for i, stamp in enumerate((*self.header.files, *([index] if index is not None else []))):
            with open_regular(stamp.path) as (fd, found):
                self._compare(stamp, found)
                if stamp.head is not None:
                    _compare_head(stamp, stamp.head, fd)
            used = self._files.peek(i)
            if used is not None:
                opened = os.fstat(used)
                self._compare(stamp, opened)
                if (opened.st_dev, opened.st_ino) != (found.st_dev, found.st_ino):
                    raise bad(stamp.path, "was replaced while it was in use", "changed")

    def _compare(self, stamp: FileStamp, found: os.stat_result) -> None:
        if found.st_size != stamp.size:
            message = f"was changed while it was in use: {found.st_size} bytes, {stamp.size} when its header was read"
            raise bad(stamp.path, message, "changed")
        if found.st_mtime_ns != stamp.mtime_ns:
            raise bad(stamp.path, "was changed while it was in use: its modification time is another", "changed")

    def close(self) -> None:
        """Close every descriptor."""
        self._files.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _compare_head(stamp: FileStamp, head: Head, fd: int) -> None:
    if Head.of(head.start, read_exactly(stamp.path, fd, head.size, head.start)) != head:
        raise bad(stamp.path, "was changed while it was in use: its header is another", "changed")


@contextmanager
def open_regular(path: str) -> Iterator[tuple[int, os.stat_result]]:
    """Open a regular file for reading, as (descriptor, stat); raises FormatError for anything else."""
    with faults(path, "cannot be read"):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise bad(path, "is a folder" if stat.S_ISDIR(found.st_mode) else "is not a regular file")
        yield fd, found
    finally:
        os.close(fd)


def read_exactly(path: str, fd: int, size: int, offset: int) -> bytes:
    """Read ``size`` bytes at ``offset``; raises FormatError if the file ends before."""
    parts = []
    with faults(path, "cannot be read"):
        while size:
            part = os.pread(fd, size, offset)
            if not part:
                raise bad(path, "was cut short while it was being read", "changed")
            parts.append(part)
            size, offset = size - len(part), offset + len(part)
    return b"".join(parts)


_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "is a Git LFS pointer, not the weights: run `git lfs pull`, or download it again"),
    (b"PK\x03\x04", "is a zip archive (as torch.save writes), not a safetensors file"),
    (b"\x89HDF\r\n\x1a\n", "is an HDF5 file, not a safetensors file"),
    (b"GGUF", "is a GGUF file, not a safetensors file"),
    (b"\x93NUMPY", "is a numpy file, not a safetensors file"),
    (b"\x1f\x8b", "is compressed with gzip, not a safetensors file"),
    (b"<!doctype html", "is an HTML page (a failed download?), not a safetensors file"),
    (b"<html", "is an HTML page (a failed download?), not a safetensors file"),
    (b"<?xml", "is an XML text (a failed download?), not a safetensors file"),
)


def foreign(head: bytes) -> str | None:
    """Say what a file is if its first bytes are known to be of something that is not safetensors."""
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "is a pickle, not a safetensors file"
    low = head.lower()
    return next((words for start, words in _SIGNATURES if head.startswith(start) or low.startswith(start)), None)


def is_text(head: bytes) -> bool:
    """Tell whether a file's first bytes are text: the length field of a safetensors file has zero bytes."""
    return len(head) >= 8 and all(c > 31 or c in b"\t\r\n" for c in head[:HEAD])
