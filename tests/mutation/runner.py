"""Runs tests on mutants: one process has everything imported and all tests collected, and forks for each mutant.

In a fork, a change inside a function is put into the function that is there already; one of code that runs on import
(a table, a default) has the package and the tests imported anew. Which tests run a line is known from one run of all.
"""

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pickle
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import types
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

from mutation.mutants import Mutant

ROOT = Path(__file__).parent.parent.parent
SURVIVED, NOT_THERE = 70, 71  # exit codes of a fork; any other is a kill
SPACE, FILE = 4 << 30, 1 << 30  # bytes of memory and of one file: a change may make something that has no end
PATIENCE, FACTOR = 5.0, 20  # seconds that any test may take; times what it took before
Functions = dict[tuple[str, str, int], list[Any]]
FLAGS = ["-q", "-p", "no:cacheprovider", "--assert=plain", "--capture=no", "--tb=no", "--no-header"]


class Verdict(NamedTuple):
    """What became of a mutant: the test that killed it, or how many tests it survived."""

    mutant: Mutant
    killed: bool
    by: str
    tests: int


class Record(NamedTuple):
    """What one run of all tests showed: for each, seconds and whether it passed; for each line, who runs it."""

    seconds: list[float]
    passed: list[bool]
    lines: dict[tuple[str, int], frozenset[int]]


class Collected:
    """A plugin that takes the collected tests, and gives them to ``work`` instead of running them."""

    def __init__(self, work: Any) -> None:
        self.work = work

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "runs(file, ...): runs lines of these files where nobody sees it")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.work(session.items)
        return True


def passes(item: Any) -> bool:
    """Run a test with all that it needs set up and torn down."""
    return not any(r.failed for r in runtestprotocol(item, log=False, nextitem=None))


def quiet_hypothesis() -> None:
    """Properties try the same examples each time, keep none, and stop at the first that fails."""
    from hypothesis import Phase, settings

    settings.register_profile("mutants", database=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutants")


def fork(work: Any, folder: Path) -> int:
    """Do something in a child that has output and temporary files of its own; gives its process id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = str(folder)
        space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + SPACE
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
        code = work()
    except BaseException:
        code = 1
    os._exit(code)


def record(items: Sequence[Any], files: Sequence[str], folder: Path, jobs: int) -> Record:
    """Run all tests once, in children that share them, and see who runs which line of the files."""

    def part(first: int) -> int:
        import coverage

        watch = coverage.Coverage(data_file=None, include=files, config_file=False)
        watch.start()
        runs = {}
        for i in range(first, len(items), jobs):
            watch.switch_context(str(i))
            begun = time.perf_counter()
            passed = passes(items[i])
            runs[i] = time.perf_counter() - begun, passed
        watch.stop()
        data = watch.get_data()
        lines = [(f, n, who) for f in files for n, who in data.contexts_by_lineno(f).items()]
        (folder / f"record{first}").write_bytes(pickle.dumps((runs, lines)))
        return 0

    children = []
    for k in range(jobs):
        (folder / f"part{k}").mkdir()
        children.append(fork(lambda k=k: part(k), folder / f"part{k}"))
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        sys.exit(f"the run of all tests ended with {codes}")
    runs, lines = dict[int, tuple[float, bool]](), dict[tuple[str, int], frozenset[int]]()
    for k in range(jobs):
        some, found = pickle.loads((folder / f"record{k}").read_bytes())
        runs |= some
        for f, n, who in found:
            lines[f, n] = lines.get((f, n), frozenset()) | {int(c) for c in who if c}
    return Record([runs[i][0] for i in range(len(items))], [runs[i][1] for i in range(len(items))], lines)


class Runner:
    """Has the tests and the record of them; tries mutants."""

    def __init__(self, items: Sequence[Any], files: Sequence[str], budget: float, slowest: float, jobs: int) -> None:
        self.items, self.budget, self.jobs = items, budget, jobs
        self.folder = Path(
            tempfile.mkdtemp(prefix="mutants-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        )
        for file in files:
            importlib.import_module(module_name(file))
        self.record = record(items, files, self.folder, jobs)
        usable = [i for i, ok in enumerate(self.record.passed) if ok and self.record.seconds[i] <= slowest]
        self.usable = frozenset(usable)
        self.kills = dict.fromkeys(usable, 0)
        self.unseen = {i: m.args for i in usable for m in items[i].iter_markers("runs")}
        self.functions = functions_of(files)
        self.caches = [o for o in gc.get_objects() if type(o).__name__ == "_lru_cache_wrapper"]
        gc.freeze()

    def inside(self, mutant: Mutant) -> bool:
        """Tell whether a change is in a function that tests run; what runs on import alone has to be imported anew."""
        return any((mutant.file, n) in self.record.lines for n in range(mutant.lines[0], mutant.lines[1] + 1))

    def tests_of(self, mutant: Mutant) -> list[int]:
        """The tests that run a line of the mutant (for code that runs on import: any line of the file), those of its
        own file of tests and quick ones first, as many as the budget of seconds allows.
        """
        if mutant.function and self.inside(mutant):
            keys = [(mutant.file, n) for n in range(mutant.lines[0], mutant.lines[1] + 1)]
        else:
            keys = [k for k in self.record.lines if k[0] == mutant.file]
        who = frozenset().union(*(self.record.lines.get(k, ()) for k in keys)) & self.usable
        who |= {i for i, where in self.unseen.items() if mutant.file.removesuffix(".py").endswith(where)}
        seconds, total, chosen = self.record.seconds, 0.0, []
        own = {i: not belongs(mutant.file, self.items[i].path) for i in who}
        for i in sorted(who, key=lambda i: (own[i], seconds[i] / (1 + self.kills[i]))):
            total += seconds[i]
            if chosen and total > self.budget:
                break
            chosen.append(i)
        return chosen

    def run(self, all_mutants: Sequence[Mutant]) -> Iterator[Verdict]:
        """Try mutants, several at once; verdicts come as they fall."""
        waiting, active = list(reversed(all_mutants)), list[Try]()
        while waiting or active:
            while waiting and len(active) < self.jobs:
                active.append(Try(self, waiting.pop()))
            select.select([t.pipe for t in active], [], [], 0.5)
            for t in list(active):
                verdict = t.look()
                if verdict is not None:
                    active.remove(t)
                    yield verdict

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Try:
    """One mutant in a child, which writes a byte for each test that passes."""

    def __init__(self, runner: Runner, mutant: Mutant) -> None:
        self.runner, self.mutant = runner, mutant
        self.tests, self.done = runner.tests_of(mutant), 0
        self.inside = bool(mutant.function) and runner.inside(mutant)
        self.folder = Path(tempfile.mkdtemp(dir=runner.folder))
        self.pipe, self.out = os.pipe()
        self.pid = fork(self._work, self.folder)
        os.close(self.out)
        self.since = time.monotonic() + (0 if self.inside else 20)

    def _work(self) -> int:
        items = self.runner.items
        gc.disable()
        for cache in self.runner.caches:
            cache.cache_clear()
        if self.inside:
            if not put_in(self.mutant, self.runner.functions):
                return NOT_THERE
            return self._try([items[i] for i in self.tests])
        return anew(self.mutant, [items[i] for i in self.tests], self._try)

    def _try(self, items: Sequence[Any]) -> int:
        for item in items:
            if not passes(item):
                return 1
            os.write(self.out, b".")
        return SURVIVED

    def look(self) -> Verdict | None:
        """See how far it is; ends a test that takes too long."""
        ready = select.select([self.pipe], [], [], 0)[0]
        news = os.read(self.pipe, 4096) if ready else b""
        if news:
            self.done += len(news)
            self.since = time.monotonic()
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        late = False
        if not pid and self.done < len(self.tests):
            usual = self.runner.record.seconds[self.tests[self.done]]
            late = time.monotonic() - self.since > PATIENCE + FACTOR * usual
        if not pid and not late:
            return None
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if not pid:
            os.waitpid(self.pid, 0)
        self.done += len(os.read(self.pipe, 1 << 16)) if select.select([self.pipe], [], [], 0)[0] else 0
        os.close(self.pipe)
        shutil.rmtree(self.folder, ignore_errors=True)
        return self._verdict(None if late else os.waitstatus_to_exitcode(status))

    def _verdict(self, code: int | None) -> Verdict:
        if code == SURVIVED:
            return Verdict(self.mutant, False, "", len(self.tests))
        if self.done < len(self.tests):
            killer = self.tests[self.done]
            self.runner.kills[killer] += 1
            by = self.runner.items[killer].nodeid
        else:
            by = "the import"
        return Verdict(self.mutant, True, by + (" (too long)" if code is None else ""), self.done + 1)


def belongs(file: str, tests: Path) -> bool:
    """Tell whether a file of tests is about a file of the package, or the folder that it is in: by its name."""
    parts = Path(file).relative_to(ROOT / "converter").with_suffix("").parts
    return any(word in tests.stem for word in (*parts[:-1], *parts[-1].split("_")))


def module_name(file: str) -> str:
    """The dotted name of a file of the package."""
    parts = Path(file).relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def place(code: types.CodeType) -> tuple[str, str, int]:
    """What tells a function of a file from the others."""
    return code.co_filename, code.co_qualname, code.co_firstlineno


def functions_of(files: Collection[str]) -> Functions:
    """The functions of some files that are in memory, by their places."""
    found: Functions = {}
    for f in gc.get_objects():
        if type(f) is types.FunctionType and f.__code__.co_filename in files:
            found.setdefault(place(f.__code__), []).append(f)
    return found


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and all inside."""
    yield code
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            yield from codes(c)


def put_in(mutant: Mutant, functions: Functions) -> bool:
    """Give the function around the change its new code; tells whether there is one."""
    for code in codes(compile(mutant.text, mutant.file, "exec", dont_inherit=True)):
        named = not code.co_name.startswith("<")  # a default may be a lambda, which begins on the same line
        if named and code.co_firstlineno == mutant.function and place(code) in functions:
            for f in functions[place(code)]:
                f.__code__ = code
            return True
    return False


class Changed(importlib.machinery.SourceFileLoader, importlib.abc.MetaPathFinder):
    """Imports one module from a changed text."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(module_name(mutant.file), mutant.file)
        self.mutant = mutant

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, fullname: str) -> types.CodeType:
        return compile(self.mutant.text, self.path, "exec", dont_inherit=True)


def anew(mutant: Mutant, items: Sequence[Any], work: Any) -> int:
    """Import the package and the files of some tests anew, with the change, and give the tests to ``work``."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        own = file.startswith((f"{ROOT}/converter", f"{ROOT}/tests")) and name.split(".")[0] != "mutation"
        if own or name.split(".")[0] in ("converter", "tests", "cases"):
            del sys.modules[name]
    sys.meta_path.insert(0, Changed(mutant))
    codes = [1]

    def chosen(found: Sequence[Any]) -> None:
        by_id = {item.nodeid: item for item in found}
        codes[0] = work([by_id[item.nodeid] for item in items]) if all(i.nodeid in by_id for i in items) else 1

    files = list(dict.fromkeys(str(item.path) for item in items))
    pytest.main([*FLAGS, *files], plugins=[Collected(chosen)])
    return codes[0]
