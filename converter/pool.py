"""A few threads that take tasks from one iterator, stop together, and pass on what was raised."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

W = TypeVar("W")
TICK = 0.1  # seconds until the waiting thread looks for a signal


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
            self._run_threads()
        if self._failure is not None:
            raise self._failure
        return self.weight

    def _run_threads(self) -> None:
        """Run one thread a worker and wait for their own word that they are done.

        ``Thread.join`` that a KeyboardInterrupt cuts short takes a running thread for an ended one ever after
        (CPython 3.11), so each thread sets an event instead. The wait is cut up, since the system may give a signal to
        another thread, and then nothing wakes this one, which alone can raise KeyboardInterrupt.
        """
        ended = [threading.Event() for _ in self._crew]
        begun = 0
        try:
            for worker, event in zip(self._crew, ended):
                begun += 1
                threading.Thread(target=self._work_and_tell, args=(worker, event), daemon=True).start()
            for event in ended:
                while not event.wait(TICK):
                    pass
        except BaseException:
            self._stop.set()
            for event in ended[: begun - 1]:
                event.wait()
            ended[begun - 1].wait(timeout=10)  # the start of the last one may have been cut short: it may never come
            raise

    def _work_and_tell(self, worker: W, ended: threading.Event) -> None:
        try:
            self._work(worker)
        finally:
            ended.set()

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
            # Without the lock: a signal between two lines of the main thread may have left it taken. Of two failures
            # at the same moment either may be told.
            self._failure = self._failure or error
            self._stop.set()
