"""Time whole processes: wall clock, processor time and peak memory of each, in turns, so that what disturbs one disturbs all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

LEFT_OUT = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONPATH", "PYTHONSTARTUP")


@dataclass(frozen=True)
class Run:
    """One process: seconds on the wall, seconds of processor time, peak resident memory in bytes."""

    wall: float
    cpu: float
    peak: int


@dataclass
class Contestant:
    """A command that is timed; ``outputs`` are removed before and after each run."""

    name: str
    command: Sequence[str]
    outputs: Sequence[Path] = ()
    environment: dict[str, str] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    failed: str = ""

    @property
    def wall(self) -> float:
        """Median seconds."""
        return median(r.wall for r in self.runs)

    @property
    def cpu(self) -> float:
        """Median seconds of processor time."""
        return median(r.cpu for r in self.runs)

    @property
    def peak(self) -> int:
        """Largest peak memory."""
        return max(r.peak for r in self.runs)


def interleave(contestants: Sequence[Contestant], pairs: int, note: Callable[[str], None]) -> None:
    """Run each contestant once without a clock, then ``pairs`` times in turns, whose order alternates."""
    for c in contestants:
        _one(c, keep=False)
    for number in range(pairs):
        for c in contestants if number % 2 == 0 else reversed(contestants):
            if not c.failed:
                run = _one(c, keep=True)
                note(f"  {c.name}: {run.wall:.2f} s" if run else f"  {c.name}: failed")


def remove(paths: Sequence[Path]) -> None:
    """Remove files and folders, and wait until the disk has heard of it."""
    found = [p for p in paths if p.exists()]
    for path in found:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if found:
        os.sync()


def _one(c: Contestant, keep: bool) -> Run | None:
    remove(c.outputs)
    env = {k: v for k, v in os.environ.items() if k not in LEFT_OUT} | c.environment
    begun = time.perf_counter()
    with subprocess.Popen(c.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
    remove(c.outputs)
    if process.returncode:
        c.failed = (said.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"])[-1][:160]
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    run = Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit)
    if keep:
        c.runs.append(run)
    return run
