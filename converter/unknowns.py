"""Names that params and settings use and the map does not have."""

from __future__ import annotations

from converter.errors import MapError, Problem, UsageError
from converter.facts import param_expr
from converter.folding import closest
from converter.rules import Ruleset
from converter.settings import Settings


def check_params(rules: Ruleset) -> None:
    """Refuse params whose expressions cannot be read or use unknown names; raises MapError."""
    known = rules.names | set(rules.params)
    for name, param in rules.params.items():
        if param.over is not None and (param.over not in rules.indices or param.expr is None):
            what = "needs an `expr`" if param.expr is None else f"'{param.over}', which is no index of the map"
            raise MapError(Problem(f"params: {name}: over {what}", "map", None, param.node.origin))
        for node in (param.expr, param.each):
            if node is None:
                continue
            for n in sorted(param_expr(node).names - known - {param.over}):
                near = closest(n, known)
                raise MapError(
                    Problem(
                        f"params: {name} uses '{n}', which the map does not have"
                        + (f" (did you mean {near}?)" if near else ""),
                        "map",
                        None,
                        node.origin,
                    )
                )


def check_settings(rules: Ruleset, settings: Settings) -> None:
    """Refuse a `--set` of a name that the map does not have; raises UsageError."""
    known = rules.names | set(rules.params)
    problems = []
    for name in settings.set:
        if name not in known:
            near = closest(name, known)
            hint = f"did you mean {near}?" if near else f"names: {', '.join(sorted(known)) or 'none'}"
            problems.append(Problem(f"--set {name}: the map has no such name ({hint})", "usage"))
    if problems:
        raise UsageError(problems)
