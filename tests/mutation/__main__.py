"""Change the code in small ways and see that tests fail: `python -m mutation [WORD ...] [--sample N] [--all]`, in `tests`."""

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from random import Random

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent
sys.path.insert(0, str(ROOT))  # the checkout, whatever is installed

MODULES = ("dims", "names", "forms", "readings", "regexes", "rules", "planning", "verify", "moves")
FOLDERS = ("ops", "formats")
KNOWN = Path(__file__).parent / "survivors.md"
LAWS = "tests/mutation/laws.py"
FLOOR = 90  # percent
# What takes long, or works in other processes, where no change would be.
LEFT_OUT = [
    "architectures",
    "bounds",
    "breaks",
    "examples_live",
    "faults_kill",
    "house",
    "llama_logits",
    "packaging",
    "peers",
    "readme",
    "real_glassllm",
    "real_minilm",
    "real_sizes",
    "real_smollm2",
]
# Of files that have other tests too; some of them write files that are larger than a mutant may.
ALSO = (
    "cases/test_memory.py::test_memory_03",
    "test_fuzz.py::test_a_fault",
    "test_fuzz.py::test_what_was_found_and",
    "test_hostile_maps.py::test_an_attack",
    "test_hostile_maps.py::test_memory",
    "test_include.py::test_a_file_that_is_too_large",
    "test_live.py::test_peak_memory",
    "test_maps.py::test_a_",
    "test_maps.py::test_an_",
    "test_maps.py::test_data",
    "test_maps.py::test_every",
    "test_maps.py::test_headers",
    "test_maps.py::test_sizes",
    "test_maps.py::test_the_example",
)


def files(words: Sequence[str] = ()) -> list[str]:
    """The files that are changed, or those with one of the words in their path."""
    found = [ROOT / f"converter/{m}.py" for m in MODULES]
    for folder in FOLDERS:
        found += sorted((ROOT / "converter" / folder).glob("*.py"))
    paths = [str(p) for p in found]
    return [p for p in paths if not words or any(w in p.removeprefix(str(ROOT)) for w in words)]


def known() -> dict[tuple[str, str, str], str]:
    """Survivors with a reason: (file, line before, line after) -> the reason."""
    out, file = {}, ""
    for line in KNOWN.read_text().splitlines():
        if line.startswith("## "):
            file = line[3:].strip()
        elif line.startswith("| `"):
            before, after, reason = (cell.strip() for cell in line.strip("| ").split(" | "))
            out[file, before.strip("`"), after.strip("`")] = reason
    return out


def name(mutant: object) -> tuple[str, str, str]:
    """What the list of survivors calls a mutant; bars would part the cells of a table."""
    before, after = (t.replace("|", "¦").replace("`", "´") for t in mutant.change)  # type: ignore[attr-defined]
    return str(Path(mutant.file).relative_to(ROOT)), before, after  # type: ignore[attr-defined]


def survivors(output: str) -> set[tuple[str, str, str]]:
    """What survived, by the output of a run."""
    found = re.findall(r"^([\w/.]+):\d+: \w+, survived .*\n  - (.*)\n  \+ (.*)$", output, re.M)
    return set(found)


def sample(groups: dict[str, list], size: int, seed: int) -> list:
    """Take mutants of each file in proportion, at random."""
    whole = sum(map(len, groups.values()))
    chosen = []
    for file, found in groups.items():
        share = min(len(found), ceil(size * len(found) / whole))
        chosen += sorted(Random(f"{seed} {Path(file).name}").sample(found, share), key=lambda m: m.start)
    return chosen


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only files with one of the words in their path")
    parser.add_argument("--sample", type=int, default=600, help="how many mutants; default 600")
    parser.add_argument("--all", action="store_true", help="every mutant")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="default: one for each core")
    parser.add_argument("--budget", type=float, default=30, help="seconds of tests for one mutant; default 30")
    parser.add_argument(
        "--slowest", type=float, default=10, help="tests that take more seconds are left out; default 10"
    )
    parser.add_argument("--verbose", action="store_true", help="say what killed each mutant")
    parser.add_argument(
        "--tests", nargs="+", default=["tests", LAWS], help="files of tests; default: all that are quick"
    )
    parser.add_argument("--again", type=Path, help="an earlier output: only what survived there")
    parser.add_argument("--known", action="store_true", help="try those again that the list has a reason for")
    return parser.parse_args(arguments)


def table(counts: dict[str, list[int]]) -> Iterator[str]:
    """The score by module."""
    total = [sum(c[k] for c in counts.values()) for k in range(3)]
    for file, (tried, killed, listed) in [*counts.items(), ("all", total)]:
        survived = f"{tried - killed - listed:4} survived" if tried > killed + listed else " " * 13
        yield f"{file:36} {tried:5} mutants {killed:5} killed {100 * killed / tried:6.1f} %  {listed:3} listed {survived}"


def work(options: argparse.Namespace, items: Sequence[object]) -> int:
    from mutation.mutants import mutants
    from mutation.runner import Runner

    paths, begun = files(options.words), time.monotonic()
    runner = Runner(items, paths, options.budget, options.slowest, options.jobs)
    bad = [i.nodeid for i, ok in zip(items, runner.record.passed) if not ok]  # type: ignore[attr-defined]
    print(
        f"{len(items)} tests in {time.monotonic() - begun:.0f} s; they fail without a change: {bad or 'none'}",
        flush=True,
    )
    groups = {p: list(mutants(p, Path(p).read_text())) for p in paths}
    whole = sum(map(len, groups.values()))
    everything = options.all or options.again
    chosen = [m for g in groups.values() for m in g] if everything else sample(groups, options.sample, options.seed)
    if options.again:
        before = survivors(options.again.read_text())
        chosen = [m for m in chosen if name(m) in before]
    print(f"{len(chosen)} of {whole} mutants", flush=True)
    counts = {str(Path(p).relative_to(ROOT)): [0, 0, 0] for p in paths}
    reasons = known()
    listed = [] if options.known else [m for m in chosen if name(m) in reasons]
    for m in listed:
        counts[name(m)[0]][0] += 1
        counts[name(m)[0]][2] += 1
    Random(0).shuffle(todo := [m for m in chosen if m not in listed])
    for v in runner.run(todo):
        file, before, after = name(v.mutant)
        counts[file][0] += 1
        counts[file][1] += v.killed
        if not v.killed:
            why = f"{v.tests} tests run it" if v.tests else "no test runs it"
            print(f"{file}:{v.mutant.line}: {v.mutant.kind}, survived ({why})\n  - {before}\n  + {after}", flush=True)
        elif options.verbose:
            print(f"{file}:{v.mutant.line}: {v.mutant.kind}, killed by {v.by} after {v.tests}: {after}", flush=True)
    runner.close()
    print(*table({f: c for f, c in counts.items() if c[0]}), sep="\n")
    print(f"{time.monotonic() - begun:.0f} s")
    tried, killed, _ = (sum(c[k] for c in counts.values()) for k in range(3))
    return int(100 * killed < FLOOR * tried)


def main() -> int:
    options = parse()
    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"  # a process with threads does not fork well
    import pytest

    from mutation.runner import FLAGS, Collected, quiet_hypothesis

    quiet_hypothesis()
    codes = [1]

    def collected(items: Sequence[object]) -> None:
        codes[0] = work(options, items)

    left_out = [f"--ignore=tests/test_{n}.py" for n in LEFT_OUT] + [f"--deselect=tests/{n}" for n in ALSO]
    pytest.main([*FLAGS, "-m", "not slow", *left_out, *options.tests], plugins=[Collected(collected)])
    return codes[0]


if __name__ == "__main__":
    sys.exit(main())
