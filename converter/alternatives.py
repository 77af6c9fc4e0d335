"""Rules whose tensors may have one of several forms: which of them holds where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from converter.matching import Key, Matcher
from converter.names import Label
from converter.rules import Rule

Members = dict[str, tuple[Label, ...]]


class Forms:
    """The forms of the rules of a ruleset, chosen by the number of axes of what is in the input."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher, self.inputs = matcher, matcher.inputs
        self._rules: dict[int, list[Rule]] = {}
        for rule in matcher.rules.rules:
            if rule.form is not None:
                self._rules.setdefault(rule.form[0], []).append(rule)

    def of(self, rule: Rule) -> Sequence[Rule]:
        """All forms of the rule that this rule is a form of, in the order of the map."""
        return self._rules[rule.form[0]] if rule.form is not None else (rule,)

    def pick(self, rule: Rule, meant: Sequence[tuple[Rule, Members]], values: Mapping[str, Label]) -> Members | None:
        """The members of a rule if it is the form to be used, None if another one is.

        ``meant`` are the forms whose conditions hold. The first whose tensors have the stated number of axes is used;
        where none fits, and where nothing is there, the first.
        """
        fitting = [found for found in meant if self._fits(*found, values)] or meant
        return fitting[0][1] if fitting and fitting[0][0] is rule else None

    def _fits(self, rule: Rule, members: Members, values: Mapping[str, Label]) -> bool:
        free: Key = tuple([values[i] for i in rule.free])
        axes = [
            len(self.inputs.entry(name).shape) == len(term.shape or ())
            for k, term in enumerate(rule.source)
            for bound in product(*[members[i] for i in term.bound])
            for name in self.matcher.name_at(rule, k, free + bound)
        ]
        return bool(axes) and all(axes)
