"""A few threads that take tasks from one iterator, stop together, and pass on what was raised."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

W = TypeVar("W")


class Pool(Generic[W]):
    """Run (weight, task) pairs, in order of hand-out, on one thread for each worker."""

    def __init__(
        self,
        crew: Sequence[W],
        tasks: Iterator[tuple[int, Callable[[W], None]]],
        done: Callable[[int], None] | None = None,
    ) -> None:
        self.weight = 0
        self._crew, self._tasks, self._done = crew, tasks, done
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> int:
        """Run all tasks and return the sum of their weights; raises what a task, the iterator or ``done`` raised.

        An exception, KeyboardInterrupt too, stops the others after the task they are at; all threads have ended when
        this returns or raises.
        """
        if len(self._crew) == 1:
            self._work(self._crew[0])
        else:
            threads = [threading.Thread(target=self._work, args=(w,), daemon=True) for w in self._crew]
            try:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            except BaseException:
                self._stop.set()
                for thread in threads:
                    if thread.ident is not None:
                        thread.join()
                raise
        if self._failure is not None:
            raise self._failure
        return self.weight

    def _work(self, worker: W) -> None:
        try:
            while not self._stop.is_set():
                with self._lock:
                    weight, task = next(self._tasks, (0, None))
                if task is None:
                    return
                task(worker)
                with self._lock:
                    self.weight += weight
                    if self._done is not None and weight:
                        self._done(weight)
        except BaseException as error:
            self._stop.set()
            with self._lock:
                self._failure = self._failure or error
