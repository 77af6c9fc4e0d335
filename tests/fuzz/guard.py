"""What no input may make the program do: run long, take much memory, touch files of others, run code."""

import json
import os
import re
import resource
import signal
import sys
import sysconfig
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 2.0  # of CPU that one input may take
TRACED = 4  # times as long is let pass while memory is traced, which slows everything down
HANG = 30  # seconds after which it is ended
MEMORY = 16 << 20  # bytes that a small input may take ...
FACTOR = 60  # ... and these for each byte of a larger one
SPACE = 2 << 30  # bytes of address space beside what is there at the beginning

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = re.compile(
    r"os\.(rename|remove|mkdir|rmdir|link|symlink|chmod|chown|truncate|utime|setxattr|removexattr|system|exec|fork|"
    r"forkpty|posix_spawn|spawn|kill|killpg|putenv|unsetenv|chdir|fchdir|chflags|lockf|startfile).*|"
    r"(subprocess|socket|ctypes|shutil|webbrowser|urllib|smtplib|ftplib|pty|syslog|fcntl|mmap|pickle|winreg|sqlite3)\..*"
)
CODE = frozenset(("exec", "compile", "import", "code.__new__", "marshal.loads", "marshal.load", "function.__new__"))
LIBRARIES = tuple({sysconfig.get_paths()[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")} | {sys.prefix})
PACKAGE = str(Path(__file__).parent.parent.parent)


class Find(Exception):
    """An input that breaks a property; the text says which."""


class TooLong(BaseException):
    """An input that does not end; no handler of the program may swallow it."""


class Guard:
    """Watches what happens while the program has an input; one for a process, since hooks stay for good."""

    def __init__(self) -> None:
        self._folders: tuple[str, ...] = ()
        self._writable: tuple[str, ...] = ()
        self._code = False
        self._thread: int | None = None
        self._seen: list[str] = []
        sys.addaudithook(self._hook)
        signal.signal(signal.SIGALRM, _too_long)

    def limit(self) -> None:
        """Bound the address space of this process: a huge allocation is then a MemoryError, and a find."""
        with open("/proc/self/statm") as f:
            now = int(f.read().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (now + SPACE, hard))

    @contextmanager
    def watch(
        self, size: int, folders: tuple[str, ...], *, writable: tuple[str, ...] = (), code: bool = False,
        memory: bool = False,
    ) -> Iterator[None]:  # fmt: skip
        """Watch one piece of work on ``size`` bytes of input; raises Find.

        Only ``folders`` may be read and ``writable`` ones be written; ``code`` may be run, ``memory`` is measured.
        """
        if memory:
            tracemalloc.start()
        self._seen, self._folders, self._writable, self._code = [], folders, writable, code
        signal.setitimer(signal.ITIMER_REAL, HANG)
        begun = time.thread_time()
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None
            took = time.thread_time() - begun
            signal.setitimer(signal.ITIMER_REAL, 0)
            peak = tracemalloc.get_traced_memory()[1] if memory else 0
            if memory:
                tracemalloc.stop()
        if self._seen:
            raise Find(f"did what no input may do: {'; '.join(dict.fromkeys(self._seen))[:500]}")
        if took > SECONDS * (TRACED if memory else 1):
            raise Find(f"took {took:.1f} s of CPU")
        if peak > MEMORY + FACTOR * size:
            raise Find(f"took {peak >> 20} MiB for {size} bytes")

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._thread is None or self._thread != threading.get_ident():
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int):
                return
            text = os.path.abspath(os.fsdecode(path))
            writes = isinstance(flags, int) and flags & WRITES
            ours = self._writable if writes else (*self._folders, *self._writable, *LIBRARIES, PACKAGE)
            if not text.startswith(ours):
                self._seen.append(f"open {text} {'for writing' if writes else 'for reading'}")
        elif event in ("os.listdir", "os.scandir"):
            if not isinstance(arguments[0], int) and not os.fsdecode(arguments[0] or ".").startswith(
                (*self._folders, *self._writable, *LIBRARIES, PACKAGE)
            ):
                self._seen.append(f"{event} {arguments[0]}")
        elif (not self._code and event in CODE) or (not self._writable and FORBIDDEN.fullmatch(event)):
            self._seen.append(f"{event} {json.dumps([str(a)[:80] for a in arguments])}")


def _too_long(signum: int, frame: object) -> None:
    raise TooLong(f"more than {HANG} s")


def shape_of(message: str) -> str:
    """Give what kind of message it is: names, numbers and what is quoted in it are left out."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]+|\{[^}]*\}+", "_", message.split("\n")[0])
    return re.sub(r"\S*[0-9]\S*|\b(NaN|-?Infinity|-?inf|null|true|false)\b", "#", re.sub(r"^[^ ]*: ", "", text))[:90]
