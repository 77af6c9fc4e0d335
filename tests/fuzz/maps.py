"""Maps: whatever a map says, it is read, or refused with the line; and what it plans can be printed, written, reversed."""

import re
import shutil
import zlib
from pathlib import Path
from random import Random

import yaml
from jsonschema import Draft202012Validator

from converter.checking import check_example, check_numbering, example_values
from converter.cli import main
from converter.errors import ConvertError, MapError, UsageError
from converter.mapfile import load_map, read_map
from converter.planning import make_plan
from converter.printing import print_plan
from converter.report import make_report
from converter.schema import map_schema
from converter.settings import Settings
from converter.spec import Header, TensorEntry
from converter.steps import Plan
from converter.stub import invent, stub_settings
from converter.unknowns import check_params
from converter.verify import folded, verify
from fuzz import mutate, yamls
from fuzz.guard import Find, Guard, shape_of

ROOT = Path(__file__).parent.parent.parent
_FENCE = re.compile(r"```yaml\n(.*?)```", re.DOTALL)


def _header(*tensors: tuple[str, str, tuple[int, ...]]) -> Header:
    entries, at = {}, 0
    for name, dtype, shape in tensors:
        size = {"F32": 4, "BF16": 2, "I64": 8, "F8_E4M3": 1}[dtype]
        for n in shape:
            size *= n
        entries[name] = TensorEntry(name, dtype, shape, 0, at, at + size)
        at += size
    return Header(entries)


HEADERS = (
    Header({}),
    _header(*((f"a.{i}", "F32", (4,)) for i in range(3)), ("c", "F32", (2, 4)), ("w", "BF16", (8, 4))),
    _header(*((f"b.{i}", "F32", (4, 4)) for i in range(2)), ("a", "F32", (4,)), ("q", "I64", (3, 2)), ("x.x", "F32", ())),
    _header(*((f"h.{i}.e.{j}", "BF16", (2, 4)) for i in range(2) for j in range(2)), ("k", "F8_E4M3", (0, 4)), ("r.1.w", "F32", (4,))),
)  # fmt: skip


def seeds() -> list[bytes]:
    """The maps that ship, and those of the language's reference."""
    shipped = [p.read_text() for p in sorted((ROOT / "maps").rglob("*.yaml"))]
    return [t.encode() for t in (*shipped, *_FENCE.findall((ROOT / "docs/language.md").read_text()))]


def generate(random: Random) -> bytes:
    """Make a map, sound or nearly so."""
    tree = yamls.whole(random)
    return yamls.dump(yamls.graft(tree, random, random.choice((0, 1, 1, 2))), random).encode("utf-8", "surrogateescape")


def mutate_(data: bytes, random: Random) -> bytes:
    """Change the tree, or the text."""
    text = data.decode("utf-8", "surrogateescape")
    if random.random() < 0.65 and len(data) < 8000:
        try:
            tree = yaml.load(text, Loader=yaml.CSafeLoader)
            if isinstance(tree, dict | list) and not yamls._too_deep(tree):
                grafted = yamls.graft(tree, random, random.choice((1, 1, 2, 4)))
                if not yamls._too_deep(grafted):
                    return yamls.dump(grafted, random).encode("utf-8", "surrogateescape")
        except (yaml.YAMLError, ValueError, RecursionError, TypeError, AttributeError):
            pass
    if random.random() < 0.3:
        return mutate.raw(data, random)
    if random.random() < 0.5:
        lines = text.split("\n")
        at = random.randrange(len(lines))
        lines[at : at + 1] = random.choice(
            ([], [lines[at]] * 2, [" " + lines[at]], [lines[at].lstrip()], [random.choice(lines), lines[at]])
        )
        return "\n".join(lines).encode("utf-8", "surrogateescape")
    return mutate.tokens(text, random).encode("utf-8", "surrogateescape")


class Maps:
    """The properties of a map."""

    name = "maps"
    generate = staticmethod(generate)
    mutate = staticmethod(mutate_)
    seeds = staticmethod(seeds)

    def __init__(self, guard: Guard, folder: Path) -> None:
        self.guard, self.folder, self.path = guard, str(folder), str(folder / "m.yaml")
        self.out = folder / "out"
        self.out.mkdir(exist_ok=True)
        (folder / "part.yaml").write_text(
            "fragment: true\nparams: {d: 4}\nrules:\n  - {from: inc, to: inc, shape: d}\n  - {from: 'inc.{i}', to: 'inc.{i}'}\n"
        )
        (folder.parent / "secret.yaml").write_text("fragment: true\nrules: [{from: secret, to: secret}]\n")
        self.schema = Draft202012Validator(map_schema())

    def check(self, data: bytes) -> str:
        """Read a map, plan with it, print it; gives what came of it. Raises Find."""
        with open(self.path, "wb") as f:
            f.write(data)
        sample = zlib.crc32(data)
        found: list[str] = []
        try:
            with self.guard.watch(len(data), (self.folder,), code=True, memory=sample % 64 == 0):
                self._use(data, sample, found)
        except ConvertError as e:
            self._judge(e, data)
            found.append(shape_of(str(e)))
        if found[-1:] == ["whole"] and sample % 32 == 0:
            shutil.rmtree(self.out)
            self.out.mkdir()
            with self.guard.watch(len(data), (self.folder,), writable=(f"{self.out}/",), code=True):
                found.append(self._convert())
        return "|".join(found)[:200]

    def _use(self, data: bytes, sample: int, found: list[str]) -> None:
        node = read_map(self.path)
        rules = load_map(node, example_values(node, {}))
        found.append("read")
        check_params(rules)
        if sample % 8 == 0 and b"{{" not in data:
            fault = next(self.schema.iter_errors(node.plain()), None)
            if fault is not None:
                raise Find(f"read, though the schema for editors refuses it: {fault.message[:200]}")
        header = HEADERS[sample // 8 % len(HEADERS)]
        settings = Settings(
            config={"n": 2, "d": 4} if sample // 64 % 2 else None, tied="copy" if sample // 128 % 4 else None
        )
        ways = (rules,) if rules.one_way() else (rules, rules.reverse())
        for way in ways:
            try:
                self._plan(make_plan(way, header, settings), data, found)
            except ConvertError as e:
                self._judge(e, data)
        stub = invent(rules, stub_settings(rules, {}))
        if sum(s.nbytes for s in stub.specs) < 1 << 30:
            self._plan(make_plan(rules, stub.header, stub_settings(rules, {})), data, found)
        check_example(rules, node)
        check_numbering(rules, node)
        found.append("whole" if sum(s.nbytes for s in stub.specs) < 1 << 16 else "large")

    def _plan(self, plan: Plan, data: bytes, found: list[str]) -> None:
        problems = verify(plan)
        lines = folded(problems, 60)
        for line in lines:
            _line(line)
        if zlib.crc32(data) % 4 == 0:
            make_report(plan, problems).to_json()
        for line in print_plan(plan).split("\n"):
            if not line.isprintable():
                raise Find(f"a line of the plan is not fit to be shown: {line[:200]!r}")
        found.append(f"{len(problems) > 0} {len(plan.outputs) > 0}")

    def _judge(self, error: ConvertError, data: bytes) -> None:
        """Every line of a refusal can be shown, and a fault of the map has its line."""
        lines = data.count(b"\n") + data.count(b"\r") + data.count(b"\xc2\x85") + data.count(b"\xe2\x80") + 2
        for problem in error.problems:
            at = problem.origin
            included = at is not None and not at.file.endswith("m.yaml")  # a file of ours, which has its own lines
            if isinstance(error, MapError) and (at is None or not (included or 1 <= at.line <= lines)):
                if "not UTF-8" in problem.message:
                    continue
                raise Find(f"a fault of the map without a line of it: {problem} ({problem.origin})")
            if isinstance(error, UsageError):
                raise Find(f"a fault of the map is told as one of the command line: {problem}")
        for line in folded(error.problems, 60):
            _line(line)

    def _convert(self) -> str:
        """Make a stub, convert it there and back, all by the command line; gives the exit codes."""
        a, b, c = (str(self.out / f"{x}.safetensors") for x in "abc")
        codes = []
        for arguments in (
            ["stub", "--map", self.path, a],
            ["--map", self.path, a, b, "--quiet", "--verify", "--jobs", "1"],
            ["--map", self.path, "--reverse", b, c, "--quiet", "--jobs", "1"],
        ):
            code = _run(arguments)
            codes.append(code)
            if code:
                break
        return str(codes)


def _run(arguments: list[str]) -> int:
    import io
    from contextlib import redirect_stderr, redirect_stdout

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as e:
            code = e.code
    if code not in (0, 1, 2, 3) or "Traceback" in err.getvalue():
        raise Find(f"{arguments[0]} ended with {code}: {err.getvalue()[:300]}")
    return code


def _line(line: str) -> None:
    if not line.isprintable() or len(line) > 2500:
        raise Find(f"a line is not fit to be shown ({len(line)} characters): {line[:200]!r}")
