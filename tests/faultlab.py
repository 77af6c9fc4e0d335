"""A laboratory for faults: conversions in processes of their own, which die, are interrupted or fail at a chosen step.

A step is a call that changes a file system or reads a file (``os.open``, ``os.pwrite``, ``os.rename``, ``fallocate``,
``renameat2``, ...). One warm process forks a child for each run, so that a run costs milliseconds. Run as a program,
this file is that process.
"""

import errno
import fcntl
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lab import arr, write

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
        """Run the command line with a fault of :class:`Steps` or :class:`Lines`.

        And perhaps as another ``user`` (a number), in a folder (``cwd``), with a limit for files (``file_size``).
        """
        self.start(*arguments, **fault)
        return self.finish()

    def start(self, *arguments: Any, **fault: Any) -> None:
        """Begin a run that :meth:`finish` waits for."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([[str(a) for a in arguments], fault]) + "\n")
        self._process.stdin.flush()

    def finish(self) -> Done:
        """Wait for the run to end."""
        assert self._process.stdout is not None
        return Done(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


MAP = """\
version: 1
name: test
indices: {i: n}
rules:
  - {from: 'h.{i}.w', to: 'b.{i}.w', shape: p q, ops: [transpose]}
  - {from: e, to: embed, shape: v q}
"""
# How many shards: some, fewer, one; the sizes are in multiples of what the layers take.
SHARDS, FEWER, ONE = (["--max-shard-size", size] for size in ("10B", "15B", "1GB"))


class Situation(NamedTuple):
    """Where the output goes, how, and what is there before: made with these flags, and these other files."""

    output: str
    flags: list[str]
    before: list[str] | None = None
    beside: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


# Here either the old files or the new ones are there, and no other.
WHOLE = {
    "a file": Situation("o.safetensors", []),
    "a file in place of another": Situation("o.safetensors", ["--force"], []),
    "shards": Situation("o", SHARDS),
    "shards in place of as many": Situation("o", [*SHARDS, "--force"], SHARDS, ("config.json",)),
    "shards in place of fewer": Situation("o", [*SHARDS, "--force"], FEWER),
    "shards among other files": Situation("o", SHARDS, None, ("config.json", "README.md")),
    "shards in place of one file": Situation("o", [*SHARDS, "--force"], ONE, ("config.json",)),
    "shards into an empty folder": Situation("o/", SHARDS, None, ("",)),
    "one file in place of shards": Situation("o", ["--force"], SHARDS, ("config.json",)),
    "one file in place of one": Situation("o", ["--force"], ONE, ("config.json",)),
}
LONG = list(WHOLE)[:4]  # a hundred points each; the others end in other ways, and that is where theirs are
LAYERS = {True: 45, False: 9}
# Here files are moved one by one: what a loader finds is the old set, the new set, or nothing that it takes for one.
ONE_BY_ONE = {
    "as many, and a sub-folder": Situation("o", [*SHARDS, "--force"], SHARDS, ("config.json", "sub/x.txt")),
    "as many, and no exchange": Situation("o", [*SHARDS, "--force"], SHARDS, (), ("renameat2", "link")),
    "fewer, and a sub-folder": Situation("o", [*SHARDS, "--force"], FEWER, ("sub/x.txt",)),
    "one file by shards, no exchange": Situation("o", [*SHARDS, "--force"], ONE, ("config.json",), ("renameat2",)),
    "shards by one file, no exchange": Situation("o", ["--force"], SHARDS, ("config.json",), ("renameat2",)),
    "other files, and a sub-folder": Situation("o", SHARDS, None, ("config.json", "sub/x.txt")),
}


class Place:
    """A folder with a map, two inputs, and what a situation has there before."""

    def __init__(self, folder: Path, warm: Warm, situation: Situation, long: bool = False) -> None:
        self.folder, self.warm, self.situation = folder, warm, situation
        self.output = folder / situation.output
        self.layers = LAYERS[long]
        (folder / "map.yaml").write_text(MAP)
        for name, start in (("in", 0), ("old", 5000)):
            tensors = {"e": arr(7, 3, start=start + 900)}
            tensors |= {f"h.{i}.w": arr(2, 3, start=start + 10 * i) for i in range(self.layers)}
            write(folder / f"{name}.safetensors", tensors)
        if situation.before is not None:
            assert self.convert(*situation.before, source="old").code == 0
        for name in situation.beside:
            (self.output / name).parent.mkdir(parents=True, exist_ok=True)
            if name:
                (self.output / name).write_text(name)
        self.old = contents(folder)
        shutil.copytree(folder, folder.with_name("template"))
        self.steps = self.convert(lacks=situation.lacks).steps
        self.filled = max(k for k, name in enumerate(self.steps, 1) if name in ("preadv", "copy_file_range"))
        self.new = contents(folder)
        assert self.new != self.old
        assert not [n for n in self.new if TEMPORARY in n]

    def convert(self, *flags, source="in", **fault):
        return self.warm.run(*self.command(*flags, source=source), **fault)

    def command(self, *flags, source="in"):
        """The words of the conversion, with these flags in the place of its own."""
        flags = [f"{int(f[:-1]) * self.layers}B" if f in ("10B", "15B") else f for f in flags or self.situation.flags]
        paths = [self.folder / f"{source}.safetensors", f"{self.folder}/{self.situation.output}"]
        return ["--map", self.folder / "map.yaml", *paths, "--jobs", "1", *flags]

    def reset(self) -> None:
        output = self.folder / self.situation.output.rstrip("/")
        if output.is_dir():
            shutil.rmtree(output)
        output.unlink(missing_ok=True)
        for left in self.folder.glob(f".*{TEMPORARY}"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        template = self.folder.with_name("template") / output.name
        if template.is_dir():
            shutil.copytree(template, output)
        elif template.exists():
            shutil.copy2(template, output)

    def points(self, many: int) -> list[tuple[int, str]]:
        """Some steps until all data are written, all from there on, and some in which a write is cut in half."""
        early = sorted({1 + k * self.filled // many for k in range(many)})
        found = [(k, "kill") for k in [*early, *range(self.filled + 1, len(self.steps) + 2)]]
        writes = [k for k, name in enumerate(self.steps, 1) if name == "pwrite"]
        return found + [(k, "half") for k in writes[:: max(1, len(writes) // 8)]]

    def again(self) -> None:
        """The next run works, whatever the killed one left, and leaves nothing of it."""
        again = settled(self.folder) == self.new or self.situation.before is not None
        flags = [f for f in self.situation.flags if f != "--force"]
        done = self.convert(*flags, *(["--force"] if again else ["--quiet"]))
        assert (done.code, done.err) == (0, "")
        assert contents(self.folder) == self.new


class Steps:
    """Counts the steps of this process and does something at one of them.

    ``at``: the number of the step, from 1. ``do``: ``kill`` before it; ``half``: kill in the middle of it, if it
    writes; a signal number: raise it before the step; an errno name: let the step, and ``times`` - 1 more after it,
    fail; a path: wait there until somebody has written into that pipe. ``only``: the calls that count, all if empty.
    ``lacks``: names of calls that the system does not have.
    """

    def __init__(
        self,
        at: int = 0,
        do: str | int = "kill",
        only: Sequence[str] = (),
        times: int = 1,
        lacks: Sequence[str] = (),
    ) -> None:
        self.at, self.do, self.only, self.times, self.lacks = at, do, only, times, lacks
        self.seen: list[str] = []
        self._lock = threading.Lock()

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            with self._lock:
                counts = not self.only or name in self.only
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
        elif self.do.startswith("/"):
            Path(self.do).read_bytes()
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


class Lines:
    """Sends this process SIGINT at line number ``at`` of those that it runs in some files of the package."""

    def __init__(self, at: int, files: Sequence[str]) -> None:
        self.at, self.files, self.count = at, tuple(files), 0
        self.seen: list[str] = []

    def install(self) -> None:
        """Trace this thread from here on."""
        sys.settrace(self._call)

    def _call(self, frame: Any, event: str, argument: object) -> Any:
        return self._line if frame.f_code.co_filename.endswith(self.files) else None

    def _line(self, frame: Any, event: str, argument: object) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self.at:
                sys.settrace(None)
                self.seen.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
                os.kill(os.getpid(), signal.SIGINT)
        return self._line


def _child(arguments: list[str], fault: dict[str, Any], report: int) -> None:
    import resource

    from converter.cli import main
    from converter.signals import leave_at_once

    sys.argv = ["convert", *arguments]
    leave_at_once()
    cwd, limit, user = fault.pop("cwd", None), fault.pop("file_size", None), fault.pop("user", None)
    if cwd is not None:
        os.chdir(cwd)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if user is not None:
        os.setgroups([])
        os.setuid(user)
    steps = Lines(**fault) if "files" in fault else Steps(**fault)
    write_all = os.write
    steps.install()
    code = 70
    try:
        main()
    except SystemExit as e:
        code = int(e.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.settrace(None)
        sys.stdout.flush()
        sys.stderr.flush()
        write_all(report, json.dumps(steps.seen if steps.seen else getattr(steps, "count", [])).encode())
        os._exit(code)


def rehearse(folder: Path) -> None:
    """Run the command line once in each way, so that what is imported late is there."""
    from contextlib import redirect_stderr, redirect_stdout, suppress

    from converter.cli import main

    (folder / "m.yaml").write_text("version: 1\nname: m\nrules: [{from: e, to: E, shape: v d, ops: [transpose]}]\n")
    write(folder / "i.safetensors", {"e": arr(2, 3)})
    for flags in (["--verify", "--jobs", "1"], ["--force", "--max-shard-size", "1B"]):
        output = folder / ("o.safetensors" if "--verify" in flags else "o")
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            with suppress(SystemExit):
                main(["--map", str(folder / "m.yaml"), str(folder / "i.safetensors"), str(output), *flags])
            assert output.exists()


def forked(arguments: list[str], fault: dict[str, Any]) -> Done:
    """Run the command line in a fork of this process, with a fault."""
    pipes = [os.pipe() for _ in ("out", "err", "steps")]
    for _, end in pipes:
        fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 1 << 20)  # so that nobody has to read before the child has ended
    child = os.fork()
    if not child:
        try:
            os.dup2(pipes[0][1], 1)
            os.dup2(pipes[1][1], 2)
            _child(arguments, fault, pipes[2][1])
        finally:
            os._exit(71)
    for _, end in pipes:
        os.close(end)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    out, err, seen = (Path(f"/dev/fd/{fd}").read_text() for fd, _ in pipes)
    for fd, _ in pipes:
        os.close(fd)
    return Done(code, out, err, json.loads(seen or "[]"))


def serve() -> None:
    """Fork a child for each line of stdin and say how it ended."""
    with tempfile.TemporaryDirectory() as folder:  # whatever is imported late is imported now
        rehearse(Path(folder))
    gc.collect()
    gc.freeze()  # so that children share these pages
    gc.disable()
    for line in sys.stdin:
        print(json.dumps(forked(*json.loads(line))), flush=True)


if __name__ == "__main__":
    serve()
