"""Drives a target: with atheris, guided by what new code an input reaches; without it, by new kinds of messages."""

import faulthandler
import hashlib
import io
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from fuzz.guard import Find, TooLong, shape_of

CORPUS = Path(__file__).parent / "corpus"
PATIENCE = 120  # seconds without a word after which the process says where it hangs, and ends


class Run:
    """One target with its budget: counts, times and keeps what is found, each kind once."""

    def __init__(self, target: Any, seed: int, runs: int, seconds: float, keep: Path | None, stop: bool) -> None:
        self.target, self.random, self.keep, self.stop = target, Random(seed), keep, stop
        self.runs, self.seconds = runs, seconds
        self.done, self.finds = 0, dict[str, bytes]()
        self.begun = self.said = time.monotonic()
        self.kinds: set[str] = set()

    @property
    def over(self) -> bool:
        """Whether the budget is spent."""
        took = time.monotonic() - self.begun
        if self.stop and self.finds:
            return True
        return bool(self.runs and self.done >= self.runs) or bool(self.seconds and took >= self.seconds)

    def one(self, data: bytes) -> bool:
        """Try one input; gives whether something new came of it."""
        self.done += 1
        try:
            kind = self.target.check(data)
        except (KeyboardInterrupt, SystemExit):
            raise
        except (Exception, TooLong) as e:
            kind = self._found(e, data)
        new = kind not in self.kinds
        self.kinds.add(kind)
        now = time.monotonic()
        if now - self.said > 15:
            self.said = now
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            print(self.summary(), flush=True)
        return new

    def _found(self, error: BaseException, data: bytes) -> str:
        if isinstance(error, Find):
            kind = shape_of(str(error))
        else:
            last = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
        if kind not in self.finds:
            self.finds[kind] = data
            where = ""
            if self.keep is not None:
                path = self.keep / f"{self.target.name}-{hashlib.sha256(data).hexdigest()[:12]}"
                path.write_bytes(data)
                where = f" ({path})"
            print(f"FOUND{where}: {error!r:.600}", flush=True)
            if not isinstance(error, Find):
                traceback.print_exception(error, limit=-4, file=sys.stdout)
        return kind

    def summary(self) -> str:
        """One line with the figures."""
        took = max(time.monotonic() - self.begun, 1e-9)
        return (
            f"{self.target.name}: {self.done} executions in {took:.0f} s, {self.done / took:.0f}/s, "
            f"{len(self.kinds)} kinds of outcome, {len(self.finds)} finds"
        )


def seeds(target: Any) -> list[bytes]:
    """What was found before, and what the target begins with."""
    found = [p.read_bytes() for p in sorted((CORPUS / target.name).iterdir())]
    return [*found, *getattr(target, "seeds", list)()]


def plain(run: Run) -> None:
    """Make inputs anew, or from those that showed something new, until the budget is spent."""
    random, target = run.random, run.target
    pool = seeds(target)
    for data in pool:
        if run.over and run.stop:
            return
        run.one(data)
    while not run.over:
        fresh = not pool or random.random() < 0.3
        data = target.generate(random) if fresh else target.mutate(random.choice(pool), random)
        if run.one(data):
            pool.append(data)


def guided(run: Run, seed: int, corpus: Path) -> NoReturn:
    """Let libFuzzer choose, by the code that an input reaches; it does not come back, so the process ends here."""
    import atheris

    target = run.target
    for data in seeds(target):
        (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)

    def one(data: bytes) -> None:
        run.one(data)
        if run.over:
            print(run.summary(), flush=True)
            shutil.rmtree(corpus.parent, ignore_errors=True)
            os._exit(1 if run.finds else 0)

    def mutator(data: bytes, limit: int, number: int) -> bytes:
        random = Random(number)
        choice = random.random()
        if choice < 0.15:
            out = target.generate(random)
        elif choice < 0.9:
            out = target.mutate(bytes(data), random)
        else:
            out = atheris.Mutate(data, limit)
        return out if len(out) <= limit else bytes(data)

    flags = [
        sys.argv[0],
        str(corpus),
        f"-seed={seed or 1}",
        "-max_len=20000",
        "-len_control=0",
        "-timeout=0",
        "-rss_limit_mb=0",
    ]
    atheris.Setup([*flags, "-verbosity=0", "-print_final_stats=0"], one, custom_mutator=mutator)
    atheris.Fuzz()
    os._exit(1)


def instrumented(load: Callable[[], Any]) -> Any:
    """Import the package so that atheris sees which of its code runs."""
    import atheris

    with redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["converter"]):
        return load()
