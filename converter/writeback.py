"""Written bytes on their way to the disk while others are still computed: advice to the system, which cannot fail."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

WINDOW = 8 << 20  # written bytes that are sent on their way to the disk together
BEHIND = 8  # windows that may be on their way before the oldest has to have arrived
_START, _WAIT = 2, 5  # of sync_file_range(2): begin writing; wait for what is being written before and after that


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

    def __init__(self, forget: bool = False) -> None:
        self._forget = forget
        self._call = _sync_file_range()
        self._lock = threading.Lock()
        self._fresh: dict[int, tuple[int, int, int]] = {}  # by descriptor: bytes written, and the range that has them
        self._sent: deque[tuple[int, int, int]] = deque()  # descriptor, start, bytes

    def wrote(self, fd: int, start: int, stop: int, nbytes: int) -> None:
        """Note a range of which ``nbytes`` have been written, and send what is whole and fills a window."""
        if self._call is None:
            return
        late = None
        with self._lock:
            held, low, high = self._fresh.get(fd, (0, start, stop))
            held, low, high = held + nbytes, min(low, start), max(high, stop)
            if held < WINDOW or high - low > held + held // 8:  # pages that others will still write to would go twice
                self._fresh[fd] = held, low, high
                return
            self._fresh.pop(fd, None)
            if self._forget:
                self._sent.append((fd, low, high - low))
                late = self._sent.popleft() if len(self._sent) > BEHIND else None
        self._call(fd, low, high - low, _START)
        if late is not None:
            fd, low, nbytes = late
            self._call(fd, low, nbytes, _START | _WAIT)
            with suppress(OSError):
                os.posix_fadvise(fd, low, nbytes, os.POSIX_FADV_DONTNEED)
