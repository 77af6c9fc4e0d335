"""A laboratory for faults: conversions in processes of their own, which die, are interrupted or fail at a chosen step.

A step is a call that changes a file system or reads a file (``os.open``, ``os.pwrite``, ``os.rename``, ``fallocate``,
``renameat2``, ...). One warm process forks a child for each run, so that a run costs milliseconds. Run as a program,
this file is that process.
"""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
READS = ["open", "pread", "preadv"]
WRITES = ["pwrite", "copy_file_range", "sendfile", "fsync", "ftruncate"]
NAMES = ["fchmod", "chmod", "chown", "mkdir", "rmdir", "unlink", "link", "rename", "replace"]
TEMPORARY = ".tmp-convert"


class Done(NamedTuple):
    """How a run ended: exit code (negative: the signal that killed it), what it said, and the steps that it took."""

    code: int
    out: str
    err: str
    steps: list[str]


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file (its bytes) and folder (None) below a folder, temporaries too."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*") if p.exists()
    }


def settled(folder: Path) -> dict[str, bytes | None]:
    """The same less temporaries and what is in them."""
    return {name: data for name, data in contents(folder).items() if TEMPORARY not in name}


class Warm:
    """A process that has imported everything and forks a child for each run."""

    def __init__(self) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, *arguments: Any, **fault: Any) -> Done:
        """Run the command line. ``fault`` is at most one of the things that :class:`Steps` does, and settings."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([[str(a) for a in arguments], fault]) + "\n")
        self._process.stdin.flush()
        return Done(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


class Steps:
    """Counts the steps of this process and does something at one of them.

    ``at``: the number of the step, from 1. ``do``: ``kill`` before it; ``half``: kill in the middle of it, if it
    writes; a signal number: raise it before the step; an errno name: let the step, and ``times`` - 1 more of its kind,
    fail. ``only``: count calls of this name alone. ``lacks``: names of calls that the system does not have.
    """

    def __init__(
        self, at: int = 0, do: str | int = "kill", only: str = "", times: int = 1, lacks: Sequence[str] = ()
    ) -> None:
        self.at, self.do, self.only, self.times, self.lacks = at, do, only, times, lacks
        self.seen: list[str] = []
        self._lock = threading.Lock()

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            with self._lock:
                counts = not self.only or name == self.only
                if counts:
                    self.seen.append(name)
                number = len(self.seen)
            if counts and self.at <= number < self.at + self.times and self.at:
                self._fault(name, call, args)
            if name in self.lacks:
                raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
            return call(*args, **options)

        return step

    def _fault(self, name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self.do in ("kill", "half"):
            if self.do == "half" and name == "pwrite":
                call(args[0], memoryview(args[1])[: len(args[1]) // 2], args[2])
            os.kill(os.getpid(), signal.SIGKILL)
        if isinstance(self.do, int):
            signal.raise_signal(self.do)
        else:
            code = getattr(errno, self.do)
            raise OSError(code, os.strerror(code))

    def install(self) -> None:
        """Put the counters in the place of the calls, those through ctypes too."""
        from converter.formats import staging

        for name in (*READS, *WRITES, *NAMES):
            setattr(os, name, self.wrap(name, getattr(os, name)))
        fcntl.flock = self.wrap("flock", fcntl.flock)
        libc, steps = staging._libc(), self

        class Libc:
            def __init__(self) -> None:
                for name in ("fallocate", "renameat2"):
                    if name not in steps.lacks:
                        setattr(self, name, self._checked(name))

            def _checked(self, name: str) -> Callable[..., int]:
                call = steps.wrap(name, getattr(libc, name))

                def step(*args: Any) -> int:
                    try:
                        return int(call(*args))
                    except OSError as e:
                        staging.ctypes.set_errno(e.errno)
                        return -1

                return step

        fake = Libc()
        staging._libc = lambda: fake


def _child(arguments: list[str], fault: dict[str, Any], report: int) -> None:
    import resource

    from converter.cli import main

    cwd, limit = fault.pop("cwd", None), fault.pop("file_size", None)
    if cwd is not None:
        os.chdir(cwd)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    steps = Steps(**fault)
    pwrite = os.pwrite
    steps.install()
    code = 70
    try:
        main(arguments)
    except SystemExit as e:
        code = int(e.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        pwrite(report, json.dumps(steps.seen).encode(), 0)
        os._exit(code)


def serve() -> None:
    """Fork a child for each line of stdin and say how it ended."""
    import numpy  # noqa: F401

    import converter.cli
    import converter.compare
    import converter.proof
    import converter.run
    import converter.tiles  # noqa: F401

    for line in sys.stdin:
        arguments, fault = json.loads(line)
        ends = [os.memfd_create(name) for name in ("out", "err", "steps")]
        child = os.fork()
        if not child:
            try:
                os.dup2(ends[0], 1)
                os.dup2(ends[1], 2)
                _child(arguments, fault, ends[2])
            finally:
                os._exit(71)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out, err, seen = (os.pread(fd, 1 << 22, 0).decode() for fd in ends)
        for fd in ends:
            os.close(fd)
        print(json.dumps([code, out, err, json.loads(seen or "[]")]), flush=True)


if __name__ == "__main__":
    serve()
