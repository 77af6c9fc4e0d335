"""Values that several threads need: each is made by the first that asks, and kept while there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any


class Shared:
    """Values by key, of at most ``limit`` bytes together; the one that was not asked for the longest goes first."""

    def __init__(self, limit: int) -> None:
        self.limit, self._bytes = limit, 0
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Give the value of a key (an array); ``make`` is called without any lock but that of the key."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
        with entry.lock:
            if entry.value is None:
                entry.value = make()
                self._keep(key, entry)
            return entry.value

    def _keep(self, key: Hashable, entry: _Entry) -> None:
        with self._lock:
            if self._entries.get(key) is entry:
                self._bytes += entry.value.nbytes
            while self._bytes > self.limit and len(self._entries) > 1:
                _, old = self._entries.popitem(last=False)
                self._bytes -= old.value.nbytes if old.value is not None else 0


class _Entry:
    """A value, None until it is made."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: Any = None
