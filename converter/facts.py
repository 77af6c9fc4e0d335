"""What is known about sizes, and why: settings, config.json, expressions, and equations solved from headers.

One table of facts, name -> (value, reason), and a list of equations. Sources are added in stages by the planner;
after each, :meth:`Facts.settle` runs to a fixpoint. An unknown that several tensors would give different values takes
the one that most tensors give, so that the odd one out is the one to be blamed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from converter.dims import Dim, Poly, names, solve, substitute
from converter.document import ParamDoc
from converter.errors import MismatchError, Origin, Problem, UsageError
from converter.expressions import Expr, ExpressionError, UnknownName, parse
from converter.folding import clip
from converter.names import Index
from converter.rules import LocalSize
from converter.settings import Settings, config_value

NO_VALUES: Mapping[str, Any] = {}
NO_INDICES: Mapping[str, Index] = {}

MAX_STEPS = 50  # in which sizes follow from each other
MAX_ITEMS = 100_000  # of a list that `each` makes of one value


def early_values(settings: Settings) -> Callable[[Mapping[str, ParamDoc]], dict[str, Any]]:
    """Give the values of params that `{{ expressions }}` see: `--set`, config.json, defaults, and expressions over
    these.
    """

    def values(params: Mapping[str, ParamDoc]) -> dict[str, Any]:
        facts = Facts(params, {})
        facts.add_settings(settings)
        facts.settle()
        facts.add_defaults(params)
        facts.settle()
        return facts.values

    return values


@dataclass(frozen=True)
class Equation:
    """``left == right``, with the tensor it was read off and how many tensors say the same."""

    left: Dim
    right: Dim
    subject: str
    weight: int = 1


class Facts:
    """The table of facts of one run."""

    def __init__(
        self, params: Mapping[str, ParamDoc], atoms: Mapping[str, Expr], indices: Mapping[str, Index] = NO_INDICES
    ) -> None:
        self.params, self.atoms, self.indices = params, atoms, indices
        self.values: dict[str, Any] = {}
        self.why: dict[str, str] = {}
        self.numbers: dict[str, int] = {}
        self.equations: list[Equation] = []
        self.assumed: dict[str, Any] = {}
        self._settings: Settings = Settings()
        self._last: tuple[str, Origin | None] = ("", None)
        self._stated: dict[str, tuple[LocalSize, Mapping[str, Any]]] = {}

    def know(self, name: str, value: Any, why: str) -> None:
        """Add a fact; the first one stays."""
        if name not in self.values:
            self.values[name], self.why[name] = value, why
            if isinstance(value, int):
                self.numbers[name] = int(value)

    def state(self, size: LocalSize, values: Mapping[str, Any]) -> None:
        """Take up what the map says that a local size of some index values should be."""
        if size.expr is not None and size.full(values) not in self._stated:
            self._stated[size.full(values)] = (size, values)
            self._derive(size.full(values), size.expr, size.origin, values)
            known = {k: v for k, v in values.items() if isinstance(v, int)}
            dim = substitute(size.expr.dim(), known)
            if all(n.isidentifier() and n not in values for n in names(dim)):
                self.equations.append(Equation(Poly.of(size.full(values)), dim, size.name))

    def add_settings(self, settings: Settings) -> None:
        """Add what `--set` and config.json say; raises UsageError for a config value of no use."""
        self._settings = settings
        for name, value in settings.given.items():
            self.know(name, value, "from --set" if name in settings.set else "from the map's example")
        for name, param in self.params.items():
            self._look_up(name, param)

    def _look_up(self, name: str, param: ParamDoc) -> None:
        """Take a param's value from the config, where it has one."""
        config = self._settings.config
        found = config_value(config, param.config) if config is not None else None
        if found is not None and not isinstance(found[1], Mapping):
            self._know_param(name, param, found[1], f"from {self._settings.config_name}")

    def add_defaults(self, only: Iterable[str]) -> list[str]:
        """Add the defaults of params that are still unknown; returns their names."""
        added = []
        for name in only:
            param = self.params.get(name)
            if param is not None and name not in self.values and param.default is not None:
                self._know_param(name, param, param.default, "the map's default")
                if name in self.values:
                    self.assumed[name] = self.values[name]
                    added.append(name)
        return added

    def _know_param(self, name: str, param: ParamDoc, value: Any, why: str) -> None:
        if param.length and isinstance(value, list):
            value = len(value)
        elif param.each is not None:
            length = self._length(param.each)
            if not isinstance(value, list):
                if length is None:
                    return
                value = [value] * length
            elif length is not None and len(value) != length:
                text = f"{name} has {len(value)} items ({why}), its `each` says {length}"
                raise MismatchError(Problem(text, "size", None, param.each.origin))
        self.know(name, value, why)

    def _length(self, node: Any) -> int | None:
        """Compute how many items a list has, None where that is not known yet; raises MismatchError."""
        expr = param_expr(node)
        try:
            value = self.evaluate(expr)
        except ExpressionError as e:
            raise MismatchError(Problem(f"each: {e}", "size", None, node.origin)) from None
        if value is not None and (not isinstance(value, int) or not 0 <= value <= MAX_ITEMS):
            text = f"each: {expr.text} is {clip(repr(value))}, not a number of items (0 to {MAX_ITEMS})"
            raise MismatchError(Problem(text, "size", None, node.origin))
        return None if value is None else int(value)

    def evaluate(self, expr: Expr, more: Mapping[str, Any] | None = None) -> Any:
        """Compute an expression over the facts, None where a name is unknown; raises ExpressionError."""
        try:
            return expr.evaluate({**self.values, **more} if more else self.values)
        except UnknownName:
            return None

    def settle(self) -> None:
        """Derive what follows, until nothing new does; raises MismatchError where that has no end in sight."""
        for _ in range(MAX_STEPS):
            if not self._expressions() | self._solve():
                return
        text = f"sizes follow from each other in more than {MAX_STEPS} steps, up to {self._last[0]}"
        raise MismatchError(Problem(text, "size", None, self._last[1]))

    def _expressions(self) -> bool:
        before = len(self.values)
        for name, param in self.params.items():
            if name in self.values:
                continue
            if param.each is not None and param.config and self._settings.config is not None:
                self._look_up(name, param)
            if param.expr is not None:
                self._derive(name, param_expr(param.expr), param.expr.origin, {}, param.over)
        for text, expr in self.atoms.items():
            if text not in self.values:
                self._derive(text, expr, None)
        for full, (size, values) in self._stated.items():
            if size.expr is not None and full not in self.values:
                self._derive(full, size.expr, size.origin, values)
        return len(self.values) > before

    def _derive(
        self, name: str, expr: Expr, origin: Origin | None, more: Mapping[str, Any] = NO_VALUES, over: str | None = None
    ) -> None:
        try:
            value = self._over(expr, over) if over is not None else self.evaluate(expr, more)
        except ExpressionError as e:
            raise MismatchError(Problem(f"{_shown(name)} = {expr.text}: {e}", "size", None, origin)) from None
        if value is not None:
            self._last = (name, origin)
            self.know(name, value, f"= {expr.text}")

    def _over(self, expr: Expr, over: str) -> list[Any] | None:
        """Compute an expression for each value of an index, None where one of them is not known."""
        index = self.indices.get(over)
        count = self.evaluate(index.size) if index is not None and index.size is not None else 0
        if count is not None and (not isinstance(count, int) or not 0 <= count <= MAX_ITEMS):
            raise ExpressionError(f"{over} has {clip(repr(count))} values, not a number of items (0 to {MAX_ITEMS})")
        labels = range(count or 0) if index is None or index.size is not None else index.keys
        items = [self.evaluate(expr, {over: label}) for label in labels]
        return items if items and None not in items else None

    def _solve(self) -> bool:
        votes: dict[str, dict[int, tuple[int, str]]] = {}
        left: list[Equation] = []
        for e in self.equations:
            d = substitute(e.left, self.numbers) - substitute(e.right, self.numbers)
            open_names = names(d)
            if not open_names:
                continue
            for name in open_names & set(self.values):
                self.refuse_size(name)
            left.append(Equation(d, 0, e.subject, e.weight))
            if isinstance(d, Poly) and len(open_names) == 1:
                (name,) = open_names
                value = solve(d, 0, name)
                value = solve(d * -1, 0, name) if value is None else value
                if value is not None:
                    weight, subject = votes.setdefault(name, {}).get(value, (0, e.subject))
                    votes[name][value] = (weight + e.weight, subject)
        self.equations = left
        plain = {name: c for name, c in votes.items() if name not in self.atoms}
        for name, candidates in (plain or votes).items():  # an expression is computed where its own names can be known
            value, (_, subject) = max(candidates.items(), key=lambda c: c[1][0])
            self.know(name, value, f"from {subject}")
        return bool(votes)

    def refuse_size(self, name: str, file: str | None = None) -> None:
        """Refuse a value that is no whole number where a size is wanted; ``file`` is the map that an example is in.

        Raises MismatchError, and UsageError for what is set.
        """
        text = (
            f"{_shown(name)} is {clip(repr(self.values[name]))} ({self.why[name]}), which is no size (a whole number)"
        )
        if self.are_set((name,)):
            raise UsageError(Problem(text, "size"))
        raise MismatchError(Problem(text, "size", place=file if name in self._settings.example else None))

    def are_set(self, given: Iterable[str]) -> bool:
        """Whether some of these have their value from `--set`."""
        return any(name in self._settings.set for name in given)

    def contradicted(self) -> list[Problem]:
        """List expressions of the map that do not hold for the sizes found.

        What `--set` or the config say stands in place of the expression.
        """
        out: list[Problem] = []
        for name, param in self.params.items():
            if param.expr is None or name not in self.values or name in self._settings.given:
                continue
            if self._settings.config is not None and config_value(self._settings.config, param.config) is not None:
                continue
            expr = param_expr(param.expr)
            try:
                value = self.evaluate(expr) if param.over is None else self._over(expr, param.over)
            except ExpressionError as e:
                out.append(Problem(f"{name} = {expr.text}: {e}", "size", None, param.expr.origin))
                continue
            if value is not None and value != self.values[name]:
                reason = self.reason([Poly.of(n) for n in sorted(expr.names)])
                text = f"{name} is {self.values[name]!r} ({self.why[name]}), {expr.text} is {value!r} ({reason})"
                out.append(Problem(text, "size", None, param.expr.origin))
        for full, (size, values) in self._stated.items():
            value = self.evaluate(size.expr, values) if size.expr is not None else None
            if value is not None and size.expr is not None and value != self.values.get(full, value):
                why = size.expr.explain({**self.values, **values})
                text = f"{size.name} is {self.values[full]!r} ({self.why[full]}), {size.expr.text} is {value!r} ({why})"
                out.append(Problem(text, "size", None, size.origin))
        return out

    def reason(self, dims: Iterable[Dim]) -> str:
        """Say what the names in some dims are and why: ``d = 768 (from wte.weight), h = 12 (from config.json)``."""
        found = {n for d in dims for m in names(d) for n in (self.atoms[m].names if m in self.atoms else (m,))}
        used = sorted(n for n in found if n in self.numbers and (n[0] != "_" or n[-1] == ")"))
        return ", ".join(f"{_shown(n)} = {self.numbers[n]} ({self.why[n]})" for n in used)


def _shown(name: str) -> str:
    """The name of a size, without the instance that it is local to."""
    return name.split("@")[0]


def param_expr(node: Any) -> Expr:
    """Parse an expression of a param; raises MapError with its line."""
    try:
        return parse(str(node.value))
    except ExpressionError as e:
        raise node.error(str(e)) from None
