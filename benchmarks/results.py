"""What a run of the benchmarks found, as lines on the terminal and as RESULTS.md."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rows import MIB, Row
from timing import Contestant

PACKAGES = ("checkpoint-convert", "numpy", "ml_dtypes", "safetensors", "torch", "transformers")
YARDSTICK, TODAY = "cp + sync", ("gpt2", "rename", "qwen2")  # the scripts among the peers


@dataclass(frozen=True)
class Result:
    """The contestants of one row, ours first, and the peers that are not installed."""

    row: Row
    contestants: tuple[Contestant, ...]
    absent: tuple[str, ...] = ()

    @property
    def ours(self) -> Contestant:
        return self.contestants[0]

    @property
    def yardstick(self) -> Contestant | None:
        return next((c for c in self.contestants if c.name == YARDSTICK), None)

    @property
    def verdicts(self) -> list[tuple[str, bool]]:
        """Each part of the bound, with the figure measured, and whether it holds."""
        bound, ours = self.row.bound, self.ours
        if ours.failed:
            return [(f"failed: {ours.failed}", False)]
        unit = self.yardstick.wall if self.yardstick else 0.0
        allowed = bound.times * unit + bound.plus
        out = [(f"{ours.wall:.2f} s of {allowed:.2f} s", ours.wall <= allowed)]
        if bound.peak:
            out.append((f"{ours.peak / MIB:.0f} MiB of {bound.peak // MIB} MiB", ours.peak <= bound.peak))
        for c in self.contestants:
            if bound.faster and c.name in TODAY and c.runs:
                ratio = c.wall / ours.wall
                out.append((f"{ratio:.1f} x faster than the script, of {bound.faster:g} x", ratio >= bound.faster))
        return out

    @property
    def met(self) -> bool:
        """Tell whether the bound holds."""
        return all(holds for _, holds in self.verdicts)

    def __str__(self) -> str:
        lines = [f"{self.row.title}"]
        for c in self.contestants:
            lines.append("  " + "  ".join(_cells(c, self.ours)))
        lines += [f"  {name}: not installed, left out" for name in self.absent]
        lines += [f"  bound {'met' if holds else 'MISSED'}: {text}" for text, holds in self.verdicts]
        return "\n".join(lines)


def _cells(c: Contestant, ours: Contestant) -> list[str]:
    if c.failed or not c.runs:
        return [f"{c.name:14}", f"failed: {c.failed}"]
    walls = [r.wall for r in c.runs]
    ratio = f"{c.wall / ours.wall:6.2f} x" if c is not ours and ours.runs else " " * 8
    span = f"({min(walls):.2f} to {max(walls):.2f})"
    return [f"{c.name:14}", f"{c.wall:7.2f} s {span:18}", f"cpu {c.cpu:6.2f} s", f"peak {c.peak / MIB:7.0f} MiB", ratio]


def environment(python: str) -> str:
    """Describe machine, date and versions."""
    cpu = next((v for k, v in _pairs("/proc/cpuinfo") if k == "model name"), platform.processor())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    disk = subprocess.run(["df", "--output=fstype", "."], capture_output=True, text=True, check=False).stdout.split()
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return "\n".join(
        (
            f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, load {os.getloadavg()[0]:.1f} at the start",
            f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GB, {disk[-1] if disk else 'unknown'}",
            f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
            ", ".join(found),
        )
    )


def _pairs(path: str) -> list[tuple[str, str]]:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return []
    return [(k.strip(), v.strip()) for k, _, v in (line.partition(":") for line in lines)]


def write(path: Path, about: str, results: Sequence[Result], pairs: int) -> None:
    """Write RESULTS.md: one table against cp and the bounds, one against the peers."""
    lines = ["# Results", "", "Made by `make bench` (`python benchmarks/bench.py --write`), not by hand.", ""]
    lines += [f"- {line}" for line in about.splitlines()]
    lines += [
        f"- whole processes, warm input, {pairs} runs of each in turns, medians (least to most), outputs durable",
        "- cp: `cp F O && sync O`; F is the input, or a file of the size of the output where the row says so",
        "",
        "| work | convert | cpu | peak | cp + sync | ratio | bound | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_line(r) for r in results]
    peers = [(r, c) for r in results for c in r.contestants[1:] if c.name != YARDSTICK]
    if peers:
        lines += ["", "| work | way | takes | times convert | peak | peak of convert |", "|---|---|---|---|---|---|"]
        for r, c in peers:
            what = "the script people write" if c.name in TODAY else WAYS[c.name]
            took = (
                f"{_span(c)} | {c.wall / r.ours.wall:.1f} x | {c.peak / MIB:.0f} MiB"
                if c.runs
                else f"failed: {c.failed} | | "
            )
            lines.append(f"| {r.row.title} | {what} | {took} | {r.ours.peak / MIB:.0f} MiB |")
    absent = sorted({name for r in results for name in r.absent})
    if absent:
        lines += ["", f"Not installed, left out: {', '.join(absent)}."]
    path.write_text("\n".join(lines) + "\n")


WAYS = {
    "transformers": "transformers: from_pretrained, save_pretrained",
    "mergekit": "mergekit: passthrough",
}


def _span(c: Contestant) -> str:
    walls = [r.wall for r in c.runs]
    return f"{c.wall:.2f} s ({min(walls):.2f} to {max(walls):.2f})"


def _line(r: Result) -> str:
    if r.ours.failed:
        return f"| {r.row.title} | failed: {r.ours.failed} | | | | | {r.row.bound} | missed |"
    unit = r.yardstick
    against = (
        f"{_span(unit)}{', size of the output' if r.row.yardstick == 'output' else ''}" if unit and unit.runs else ""
    )
    ratio = f"{r.ours.wall / unit.wall:.2f}" if unit and unit.runs else ""
    verdict = "met" if r.met else "missed: " + "; ".join(text for text, holds in r.verdicts if not holds)
    cells = (
        r.row.title,
        _span(r.ours),
        f"{r.ours.cpu:.2f} s",
        f"{r.ours.peak / MIB:.0f} MiB",
        against,
        ratio,
        r.row.bound,
        verdict,
    )
    return f"| {' | '.join(map(str, cells))} |"
