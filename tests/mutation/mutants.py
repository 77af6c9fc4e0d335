"""Make mutants of a source file: each has one small change of the kind that a slip of the hand makes.

Left alone is what changes nothing when it runs: docstrings, annotations, f-strings, what a `raise` or a `Problem` says, `__all__`, the
arguments of `dataclass` and `TypeVar`.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
CALLS = {
    "any": "all", "all": "any", "min": "max", "max": "min", "sorted": "list", "sum": "max", "fullmatch": "match",
    "startswith": "endswith", "endswith": "startswith", "removeprefix": "removesuffix", "removesuffix": "removeprefix",
    "partition": "rpartition", "rpartition": "partition",
}  # fmt: skip
DROPPED = (ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutant:
    """A source file with one change: ``lines`` are those of the statement that has it, in the source and in the
    mutant alike. ``function`` is the line of the outermost function around it, 0 for code that runs on import.
    """

    file: str
    source: str
    start: int
    stop: int
    new: str
    kind: str
    lines: tuple[int, int]
    function: int

    @property
    def text(self) -> str:
        """The whole source with the change; line numbers stay."""
        pad = "\n" * self.source.count("\n", self.start, self.stop)
        inside = self.new.endswith(")")
        new = self.new[:-1] + pad + ")" if inside else self.new + pad
        return self.source[: self.start] + new + self.source[self.stop :]

    @property
    def line(self) -> int:
        """The line where the change begins."""
        return self.source.count("\n", 0, self.start) + 1

    @property
    def change(self) -> tuple[str, str]:
        """The changed lines before and after, with single spaces."""
        begin = self.source.rfind("\n", 0, self.start) + 1
        end = self.source.find("\n", self.stop)
        after = self.source[begin : self.start] + self.new + self.source[self.stop : end]
        return " ".join(self.source[begin:end].split()), " ".join(after.split())


class _Finder:
    """Walks a module and collects mutants."""

    def __init__(self, file: str, source: str) -> None:
        self.file, self.source = file, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.ascii = [line.isascii() for line in source.splitlines()]
        self.lines, self.function = (0, 0), 0
        self.found: list[Mutant] = []

    def _at(self, line: int, column: int) -> int:
        if not self.ascii[line - 1]:  # columns count bytes
            text = self.source[self.starts[line - 1] : self.starts[line]]
            column = len(text.encode()[:column].decode())
        return self.starts[line - 1] + column

    def put(self, node: ast.AST, new: str, kind: str) -> None:
        start = self._at(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        stop = self._at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
        self.found.append(Mutant(self.file, self.source, start, stop, new, kind, self.lines, self.function))

    def statements(self, body: list[ast.stmt]) -> None:
        for s in body:
            self.statement(s)

    def statement(self, s: ast.stmt) -> None:
        inner = getattr(s, "body", None)
        last = inner[0].lineno - 1 if inner and inner[0].lineno > s.lineno else s.end_lineno
        outer = self.lines, self.function
        self.lines = (s.lineno, max(s.lineno, last or 0))
        if isinstance(s, Function):
            for e in (*s.decorator_list, *s.args.defaults, *s.args.kw_defaults):
                self.expressions(e)
            self.function = self.function or _first(s)
            self.statements(s.body)
        elif isinstance(s, ast.ClassDef):
            self.statements(s.body)
        elif not (isinstance(s, ast.If) and isinstance(s.test, ast.Name) and s.test.id == "TYPE_CHECKING"):
            self.plain(s)
        self.lines, self.function = outer

    def plain(self, s: ast.stmt) -> None:
        """A statement that is neither a function nor a class."""
        is_text = isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)
        if isinstance(s, ast.Assign) and ast.unparse(s).startswith(("__all__ =", "A = TypeVar(")):
            return
        placed = isinstance(s, ast.Assign) and any(isinstance(t, ast.Attribute | ast.Subscript) for t in s.targets)
        if isinstance(s, DROPPED) or placed or (isinstance(s, ast.Expr) and not is_text):
            self.put(s, "break" if isinstance(s, ast.Continue) else "pass", "dropped")
        if isinstance(s, ast.Return) and ast.unparse(s) not in ("return", "return None", "return False"):
            self.put(s, "return None", "returned")
        if isinstance(s, ast.If | ast.While):
            self.condition(s.test)
        if isinstance(s, ast.Raise | ast.Import | ast.ImportFrom) or is_text:
            return
        for name, value in ast.iter_fields(s):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.stmt):
                    self.statement(child)
                elif isinstance(child, ast.ExceptHandler | ast.match_case):
                    self.expressions(getattr(child, "guard", None))
                    self.statements(child.body)
                elif name != "annotation":
                    self.expressions(child)

    def condition(self, test: ast.expr) -> None:
        other = isinstance(test, ast.Compare) and len(test.ops) == 1
        other = other or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))
        if not other:  # else one of the others says the same
            self.put(test, f"(not ({ast.unparse(test)}))", "negated")

    def expressions(self, e: object) -> None:
        if isinstance(e, ast.JoinedStr) or not isinstance(e, ast.AST):
            return
        self.expression(e)
        says = isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and e.func.id in ("Problem", "bad")
        for child in ast.iter_child_nodes(e):
            if says and isinstance(child, ast.Constant):
                continue
            if not (isinstance(e, ast.Lambda) and isinstance(child, ast.arguments)):
                self.expressions(child)

    def expression(self, e: ast.AST) -> None:
        if isinstance(e, ast.Compare):
            for k, op in enumerate(e.ops):
                ops = [*e.ops[:k], COMPARE[type(op)](), *e.ops[k + 1 :]]
                self.put(e, f"({ast.unparse(ast.Compare(e.left, ops, e.comparators))})", "compare")
        elif isinstance(e, ast.BinOp) and type(e.op) in ARITHMETIC:
            if not (
                isinstance(e.op, ast.Mod | ast.Mult)
                and isinstance(e.left, ast.Constant)
                and isinstance(e.left.value, str)
            ):
                self.put(e, f"({ast.unparse(ast.BinOp(e.left, ARITHMETIC[type(e.op)](), e.right))})", "arithmetic")
        elif isinstance(e, ast.BoolOp):
            other = ast.Or() if isinstance(e.op, ast.And) else ast.And()
            self.put(e, f"({ast.unparse(ast.BoolOp(other, e.values))})", "boolean")
        elif (
            isinstance(e, ast.UnaryOp)
            and isinstance(e.op, ast.Not | ast.USub)
            and not isinstance(e.operand, ast.Constant)
        ):
            self.put(e, f"({ast.unparse(e.operand)})", "unary")
        elif isinstance(e, ast.IfExp):
            self.condition(e.test)
        elif isinstance(e, ast.comprehension):
            for test in e.ifs:
                self.condition(test)
        elif isinstance(e, ast.Call):
            self.call(e.func)
        elif isinstance(e, ast.Constant):
            self.constant(e)

    def call(self, f: ast.expr) -> None:
        if isinstance(f, ast.Name) and f.id in CALLS:
            self.put(f, CALLS[f.id], "call")
        elif isinstance(f, ast.Attribute) and f.attr in CALLS:
            self.put(f, f"{ast.unparse(f.value)}.{CALLS[f.attr]}", "call")

    def constant(self, e: ast.Constant) -> None:
        v = e.value
        if isinstance(v, bool):
            self.put(e, str(not v), "constant")
        elif isinstance(v, int):
            self.put(e, str(v + 1), "constant")
            if v > 0:
                self.put(e, str(v - 1), "constant")
        elif isinstance(v, float):
            self.put(e, repr(v * 2 + 1), "constant")
        elif isinstance(v, bytes) or (isinstance(v, str) and " " not in v):
            self.put(e, repr(v + (b"x" if isinstance(v, bytes) else "x")), "constant")  # type: ignore[operator]


def replaced(file: str, source: str, old: str, new: str) -> Mutant:
    """The mutant that has another text in the place of one that stands in a function, and once."""
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {file}"
    start = source.index(old)
    line = source.count("\n", 0, start) + 1
    around = [n for n in ast.walk(ast.parse(source)) if isinstance(n, Function) and _first(n) <= line <= n.end_lineno]
    return Mutant(file, source, start, start + len(old), new, "replaced", (line, line), min(map(_first, around)))


def _first(function: Function) -> int:
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """All mutants of a source, in the order of the text; those that say the same as the source are left out."""
    tree = ast.parse(source)
    finder = _Finder(file, source)
    finder.statements(tree.body)
    seen = set()
    for m in sorted(finder.found, key=lambda m: (m.start, m.stop, m.new)):
        if (m.start, m.stop, m.new) not in seen:
            seen.add((m.start, m.stop, m.new))
            yield m
