"""Rules as values: equations between the tensors of two sides, in one direction, and their inverses.

Direction is data: a rule has a source and a target, and :meth:`Rule.inverse` swaps them together with its chain of ops.
``side`` says which side of the document the source is (0: `from`), since enumerated labels are spelled per side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from converter.dims import Dim
from converter.document import ParamDoc
from converter.errors import MapError, Origin, Problem
from converter.expressions import Expr
from converter.flow import Chain
from converter.names import Index, Strip, Template
from converter.ops.base import Dtypes, Shape
from converter.regexes import Regex

FILLS = ("zeros", "ones", "causal_mask", "arange")  # the constants of a fill that have a name


@dataclass(frozen=True)
class Spelling:
    """One spelling of a name; ``choices`` are (group, alternative) pairs where a group prefix has spellings."""

    template: Template
    choices: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Term:
    """One name of a rule: spellings (the first is written), symbolic shape (None: not stated), dtype of its side,
    bound indices.
    """

    spellings: tuple[Spelling, ...]
    shape: Shape | None
    dtype: str | None
    bound: tuple[str, ...]

    @property
    def name(self) -> Template:
        """The spelling that is written."""
        return self.spellings[0].template


@dataclass(frozen=True)
class Scope:
    """An `optional` group or rule: all of its tensors are there or none, for each value of ``indices``."""

    number: int
    indices: tuple[str, ...]
    label: Template
    origin: Origin


@dataclass(frozen=True)
class LocalSize:
    """A size that the rules of a group share, for each value of the indices of its prefixes; what it should be."""

    name: str
    number: int
    indices: tuple[str, ...]
    expr: Expr | None
    origin: Origin

    def full(self, values: Mapping[str, Any]) -> str:
        """The name that the size has among all facts, for some values of the indices."""
        return f"{self.name}@{self.number}({','.join(str(values[i]) for i in self.indices)})"


@dataclass(frozen=True)
class Condition:
    """`when` (an expression), or `with`/`without` (the name of a `from` tensor).

    That of a form is of kind `form`: it rules the form out where it is known to be false.
    """

    kind: str
    expr: Expr | None
    name: Template | None
    origin: Origin


@dataclass(frozen=True)
class Tie:
    """`tied`: the name (of side ``side`` of the document) that this tensor equals; ``stores`` what each side keeps
    (`copy`, `omit`, None).
    """

    name: Template
    side: int
    stores: tuple[str | None, str | None]
    untied: bool


@dataclass(frozen=True)
class Fill:
    """`fill`: a constant by name (zeros, ones, causal_mask, arange) or expression, its dtype, or the name whose dtype
    it takes.
    """

    what: str
    value: Expr | None
    dtype: str | None
    like: Template | None
    number: float = 0.0  # the constant of a fill whose expression is a number


@dataclass(frozen=True)
class Rule:
    """An equation in one direction. One of ``source`` and ``target`` is empty for a fill and for a tie of one side."""

    number: int
    origin: Origin
    side: int
    source: tuple[Term, ...]
    target: tuple[Term, ...]
    chain: Chain
    back: Chain | str
    equations: tuple[tuple[Dim, Dim], ...]
    dtypes: tuple[str | None, str | None]
    free: tuple[str, ...]
    conditions: tuple[Condition, ...]
    scopes: tuple[Scope, ...]
    tie: Tie | None = None
    fill: Fill | None = None
    lone_optional: bool = False
    locals: tuple[LocalSize, ...] = ()
    form: tuple[int, int] | None = None  # which of the forms of which rule of the map (`any`)

    def inverse(self) -> Rule:
        """Swap the sides; raises MapError for a rule that leads one way only."""
        if isinstance(self.back, str):
            raise MapError(Problem(f"this rule has no way back: {self.back}", "one-way", None, self.origin))
        return replace(
            self,
            side=1 - self.side,
            source=self.target,
            target=self.source,
            chain=self.back,
            back=self.chain,
            dtypes=(self.dtypes[1], self.dtypes[0]),
        )

    @cached_property
    def bound(self) -> tuple[str, ...]:
        """All bound indices, of sources and targets."""
        return tuple(dict.fromkeys(i for t in (*self.source, *self.target) for i in t.bound))

    @cached_property
    def local(self) -> bool:
        """Whether sizes local to one instance take part."""
        from converter.dims import names

        dims = [d for t in self.source for d in t.shape or ()] + [d for e in self.equations for d in e]
        return any(n.startswith("_") for d in dims for n in names(d))

    def terms(self) -> Iterator[tuple[int, Term]]:
        """All terms with the side of the document (0 or 1) that they stand on."""
        yield from ((self.side, t) for t in self.source)
        yield from ((1 - self.side, t) for t in self.target)

    def __str__(self) -> str:
        left = ", ".join(t.name.text for t in self.source) or "(nothing)"
        return f"{left} -> {', '.join(t.name.text for t in self.target) or '(nothing)'}"


@dataclass(frozen=True)
class RegexRule:
    """A rename by pattern in one direction, and the way back (or why there is none)."""

    number: int
    origin: Origin
    forward: Regex
    back: Regex | str
    dtypes: tuple[str | None, str | None]
    optional: bool
    automatic: bool = True  # the way back follows from the pattern; nobody stated it

    def inverse(self) -> RegexRule:
        """Swap the directions; raises MapError for a rename that leads one way only."""
        if isinstance(self.back, str):
            reason = (
                f"this rename has no inverse: {self.back}; give it one with `reverse: {{match, "
                f"to}}`, or convert without --reverse"
            )
            raise MapError(Problem(reason, "one-way", None, self.origin))
        return replace(self, forward=self.back, back=self.forward, dtypes=(self.dtypes[1], self.dtypes[0]))


@dataclass(frozen=True)
class Drop:
    """A tensor that is left out on purpose: spellings of a name, or a pattern."""

    origin: Origin
    templates: tuple[Template, ...] = ()
    pattern: str | None = None

    def __str__(self) -> str:
        return self.templates[0].text if self.templates else f"{{match: {self.pattern}}}"


@dataclass(frozen=True)
class Ruleset:
    """A whole map in one direction. Pairs are (source side, target side) of this direction."""

    file: str
    name: str
    about: str
    side: int
    sides: tuple[str, str]
    params: Mapping[str, ParamDoc]
    indices: Mapping[str, Index]
    index_origins: Mapping[str, Origin]
    rules: tuple[Rule, ...]
    regexes: tuple[RegexRule, ...]
    strip: tuple[tuple[Strip, ...], tuple[Strip, ...]]
    drop: tuple[tuple[Drop, ...], tuple[Drop, ...]]
    rest: str
    dtypes: tuple[str | None, str | None]
    names: frozenset[str]
    atoms: Mapping[str, Expr]
    example: Mapping[str, Any]
    published: Mapping[str, Mapping[str, Any]]

    def reverse(self) -> Ruleset:
        """Give the map in the other direction; raises MapError naming every rule that leads one way only."""
        problems: list[Problem] = []
        rules: list[Rule] = []
        regexes: list[RegexRule] = []
        for rule in self.rules:
            try:
                rules.append(rule.inverse())
            except MapError as e:
                problems += e.problems
        for rename in self.regexes:
            try:
                regexes.append(rename.inverse())
            except MapError as e:
                problems += e.problems
        if problems:
            raise MapError([Problem(f"cannot --reverse: {p.message}", p.kind, p.subject, p.origin) for p in problems])
        return replace(
            self,
            side=1 - self.side,
            sides=self.sides[::-1],
            rules=tuple(rules),
            regexes=tuple(regexes),
            strip=self.strip[::-1],
            drop=self.drop[::-1],
            dtypes=self.dtypes[::-1],
        )

    def one_way(self) -> list[tuple[Origin, str]]:
        """List the rules that have no way back, with the reason."""
        out = [(r.origin, r.back) for r in self.rules if isinstance(r.back, str)]
        return out + [(r.origin, r.back) for r in self.regexes if isinstance(r.back, str)]


def stated_dtypes(groups: Sequence[Sequence[Term]], rule: tuple[str | None, str | None]) -> Dtypes:
    """The dtypes that the terms of each side state; for the first term of a side its rule may."""
    source, target = ((group[0].dtype or own, *(t.dtype for t in group[1:])) for group, own in zip(groups, rule))
    return source, target
