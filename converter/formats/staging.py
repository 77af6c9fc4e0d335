"""Temporaries beside an output: made exclusively, locked while in use, replaced when a killed run left them.

The lock is ``flock(2)`` on the temporary itself, so it ends with its process, however that ends. Names come from the
output's own name only.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from converter.errors import Problem, UsageError
from converter.formats.base import bad, faults
from converter.formats.text import show

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@dataclass(frozen=True)
class Claim:
    """A temporary file or folder that this process made and holds the lock of."""

    path: Path
    fd: int

    def release(self, places: Iterable[Path]) -> None:
        """Remove the temporary, if it is at one of some places, and give up the lock."""
        for path in places:
            with suppress(OSError):
                if _is_at(self.fd, path):
                    remove(path)
        os.close(self.fd)


def claim(path: Path, folder: bool, output: str, salvage: Callable[[], None] = lambda: None) -> Claim:
    """Make the temporary and lock it.

    What a killed run left there is removed first, after ``salvage``. Raises UsageError if another process is at work on
    ``output``, FormatError if the temporary cannot be made.
    """
    with faults(output, "cannot be written"):
        for _ in range(100):
            fd = _make(path, folder)
            fresh = fd is not None
            if fd is None:
                fd = _open_left(path, folder, output)
            if fd is None:
                continue
            try:
                if not _lock(fd):
                    raise _busy(output)
                if _is_at(fd, path):
                    if fresh:
                        return Claim(path, fd)
                    salvage()
                    remove(path)
            except OSError:
                Claim(path, fd).release([path] if fresh else [])
                raise
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
    raise bad(output, f"cannot be written: {show(str(path))} keeps coming back", "io")


def lock_folder(path: Path, output: str) -> int:
    """Lock a folder that is there, giving the descriptor that holds the lock; raises UsageError if another holds it."""
    with faults(output, "cannot be written"):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if _lock(fd) and _is_at(fd, path):
            return fd
        os.close(fd)
    raise _busy(output)


def _busy(output: str) -> UsageError:
    return UsageError(Problem("another conversion is writing it now", "busy", show(output)))


def _make(path: Path, folder: bool) -> int | None:
    """Make and open the temporary, None if it is there already."""
    try:
        if not folder:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        path.mkdir()
    except FileExistsError:
        return None
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        path.rmdir()
        raise


def _open_left(path: Path, folder: bool, output: str) -> int | None:
    """Open the temporary of another run, None if it is gone; raises FormatError for what is no such thing."""
    flags = os.O_RDONLY | os.O_DIRECTORY if folder else os.O_RDWR
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
            raise bad(output, f"cannot be written: {show(str(path))} is in the way", "io") from None
        raise


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as e:
        if e.errno not in _NO_LOCKS:  # some network file systems have no locks: go on without
            raise
    return True


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder."""
    if stat.S_ISDIR(path.lstat().st_mode):
        shutil.rmtree(path)
    else:
        path.unlink()


def write_all(fd: int, data: bytes, offset: int) -> None:
    """Write all of ``data`` at ``offset``."""
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done


def make_file(path: Path, data: bytes) -> None:
    """Make a small file that is on the disk when this returns; raises OSError, also if it is there already."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        write_all(fd, data, 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable, where the file system and its permissions let folders be synced."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(fd)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(fd)


@cache
def _libc() -> ctypes.CDLL | None:
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return None
    return ctypes.CDLL(None, use_errno=True)


def allocate(fd: int, size: int) -> None:
    """Reserve the blocks of a file and set its size; where blocks cannot be reserved, only the size is set.

    Not ``os.posix_fallocate``: where the file system cannot, that writes to every block. Raises OSError.
    """
    reserve = getattr(_libc(), "fallocate", None)
    if reserve is not None and size:
        reserve.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        if reserve(fd, 0, 0, size) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EINTR):
            raise OSError(code, os.strerror(code))
    os.ftruncate(fd, size)


def exchange(one: Path, other: Path) -> bool:
    """Swap two paths in one step (``renameat2``, ``RENAME_EXCHANGE``); False if the system or file system cannot."""
    rename = getattr(_libc(), "renameat2", None)
    if rename is None:
        return False
    rename.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return bool(rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)
