"""Written bytes on their way to the disk while others are still computed: advice to the system, which cannot fail."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from queue import Full, Queue
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
    advice: nothing fails here, and where the system lacks the call, nothing happens. Safe to use from several threads;
    a thread of its own does the sending, which waits for the disk when that has enough to do. :meth:`close` ends it.
    """

    def __init__(self, forget: bool = False) -> None:
        self._forget = forget
        self._call = _sync_file_range()
        self._lock = threading.Lock()
        self._fresh: dict[int, tuple[int, int, int]] = {}  # by descriptor: bytes written, and the range that has them
        self._due: Queue[tuple[int, int, int] | None] = Queue(BEHIND)  # descriptor, start, stop
        self._started = self._ended = False
        self._done = threading.Event()

    def wrote(self, fd: int, start: int, stop: int, nbytes: int) -> None:
        """Note a range of which ``nbytes`` have been written, and send what is whole and fills a window."""
        if self._call is None:
            return
        with self._lock:
            held, low, high = self._fresh.get(fd, (0, start, stop))
            held, low, high = held + nbytes, min(low, start), max(high, stop)
            if held < WINDOW or high - low > held + held // 8:  # pages that others will still write to would go twice
                self._fresh[fd] = held, low, high
                return
            self._fresh.pop(fd, None)
            if not self._started:
                threading.Thread(target=self._send, args=(self._call,), daemon=True).start()
                self._started = True  # after it: an interrupt in between must not leave an end that never comes
        self._due.put((fd, low, high))

    def close(self) -> None:
        """Send no more; the descriptors may be closed then."""
        if self._started:
            self._ended = True
            with suppress(Full):
                self._due.put_nowait(None)
            self._done.wait()

    def _send(self, call: Callable[[int, int, int, int], int]) -> None:
        sent: deque[tuple[int, int, int]] = deque()
        try:
            for window in self._windows():
                call(*window, _START)
                if not self._forget:
                    continue
                sent.append(window)
                if len(sent) > BEHIND:
                    late = sent.popleft()
                    call(*late, _START | _WAIT)
                    with suppress(OSError):
                        os.posix_fadvise(*late, os.POSIX_FADV_DONTNEED)
        finally:
            self._done.set()

    def _windows(self) -> Iterator[tuple[int, int, int]]:
        """Part what is due, until the end."""
        while not self._ended and (due := self._due.get()) is not None:
            fd, start, stop = due
            for low in range(start, stop, WINDOW):
                if self._ended:
                    return
                yield fd, low, min(WINDOW, stop - low)
