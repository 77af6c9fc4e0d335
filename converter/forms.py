"""Which names have the form of a template: matching, and reading indices off numbers that polynomials give."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product

from converter.dims import Dim, Poly, names, substitute
from converter.names import Hole, Index, IndexValues, Label, Template, TemplateError, skeleton

MAX_COMBINATIONS = 20_000


class Form:
    """A template with its indices and the sizes known so far: which names have this form, and with which indices.

    ``counts`` gives the count of each counted index, None where it is not known. Index values that come out are ints,
    or the keys (never the images) of an enumerated index. An index may come out beyond its count: being of the form
    is one thing, being in range another.
    """

    def __init__(
        self,
        template: Template,
        indices: Mapping[str, Index],
        side: int,
        sizes: Mapping[str, int],
        counts: Mapping[str, int | None],
    ) -> None:
        self.template, self.side = template, side
        self._indices, self._counts = indices, counts
        self._holes = [(h, substitute(h.dim, sizes)) for h in template.holes]
        for hole, dim in self._holes:
            for n in names(dim):
                if n not in indices:
                    raise KeyError(n)
            _linear(hole, dim)
        self._regex = re.compile(
            "".join(re.escape(p) if isinstance(p, str) else self._pattern(p) for p in template.parts)
        )
        self._cache: dict[tuple[int, str], tuple[tuple[str, Label], ...] | None] = {}

    def _pattern(self, hole: Hole) -> str:
        index = self._indices.get(hole.single or "")
        if index is not None and index.size is None:
            return (
                "("
                + "|".join(
                    re.escape(hole.render({index.name: v}))
                    for v in sorted(index.labels(self.side), key=lambda v: -len(str(v)))
                )
                + ")"
            )
        return rf"([0-9]{{{hole.width}}}|[1-9][0-9]{{{hole.width},}})" if hole.width else "(0|[1-9][0-9]*)"

    def skeletons(self) -> Iterator[str]:
        """List the skeletons of all names of this form; raises TemplateError when labels multiply beyond all bounds."""
        choices: list[list[str]] = []
        for p in self.template.parts:
            index = self._indices.get(p.single or "") if isinstance(p, Hole) else None
            if isinstance(p, str):
                choices.append([p])
            elif index is not None and index.size is None:
                choices.append([p.render({index.name: v}) for v in index.labels(self.side)])
            else:
                choices.append(["0"])
        total = 1
        for c in choices:
            total *= len(c)
        if total > MAX_COMBINATIONS:
            raise TemplateError(f"'{self.template}' stands for {total} spellings, at most {MAX_COMBINATIONS} are tried")
        seen = dict.fromkeys(skeleton("".join(c)) for c in product(*choices))
        yield from seen

    def match(self, name: str) -> IndexValues | None:
        """Read the indices off a name, None when it does not have this form."""
        m = self._regex.fullmatch(name)
        if m is None:
            return None
        values: IndexValues = {}
        for i, text in enumerate(m.groups()):
            key = (i, text)
            found = self._cache[key] if key in self._cache else self._cached(i, text)
            if found is None:
                return None
            for k, v in found:
                if values.setdefault(k, v) != v:
                    return None
        return values

    def looks_like(self, name: str) -> bool:
        """Whether a name is spelled like this template, whatever its numbers are."""
        return self._regex.fullmatch(name) is not None

    def _cached(self, i: int, text: str) -> tuple[tuple[str, Label], ...] | None:
        found = self._decode(*self._holes[i], text)
        self._cache[i, text] = None if found is None else tuple(found.items())
        return self._cache[i, text]

    def _decode(self, hole: Hole, dim: Dim, text: str) -> IndexValues | None:
        index = self._indices.get(hole.single or "")
        if index is not None and index.size is None:
            for key, label in zip(index.keys, index.labels(self.side)):
                if hole.render({index.name: label}) == text:
                    return {index.name: key}
            return None
        slopes, constant = _linear(hole, dim)
        if len(text) > 18:
            return None
        value = int(text) - constant
        free = max(slopes, key=lambda n: (self._open(n), abs(slopes[n]), n), default=None)
        if free is None:
            return {} if value == 0 else None
        others = sorted(n for n in slopes if n != free)
        count = self._counts.get(free)
        beyond: IndexValues | None = None
        for combination in product(*(self._choices(n) for n in others)):
            rest = value - sum(slopes[n] * label for n, (_, label) in zip(others, combination))
            if rest % slopes[free] == 0 and (hit := self._key(free, rest // slopes[free])) is not None:
                reading = {free: hit, **{n: key for n, (key, _) in zip(others, combination)}}
                if count is None or not isinstance(hit, int) or hit < count:
                    return reading
                beyond = beyond or reading
        return beyond

    def _open(self, name: str) -> bool:
        return self._indices[name].size is not None and self._counts.get(name) is None

    def _choices(self, name: str) -> list[tuple[Label, int]]:
        index = self._indices[name]
        if index.size is None:
            return [(k, v) for k, v in zip(index.keys, index.labels(self.side)) if isinstance(v, int)]
        count = self._counts.get(name)
        if count is None:
            raise KeyError(name)
        return [(i, i) for i in range(min(count, MAX_COMBINATIONS))]

    def _key(self, name: str, label: int) -> Label | None:
        index = self._indices[name]
        if index.size is not None:
            return label if label >= 0 else None
        return next((k for k, v in zip(index.keys, index.labels(self.side)) if v == label), None)


def _linear(hole: Hole, dim: Dim) -> tuple[dict[str, int], int]:
    """Take a hole's polynomial apart into slopes and a constant; raises TemplateError where it is not linear."""
    slopes: dict[str, int] = {}
    constant = 0
    for monomial, c in dim.terms if isinstance(dim, Poly) else (((), dim),):
        if len(monomial) > 1:
            raise TemplateError(f"'{{{hole.text}}}' is not linear in its indices")
        if monomial:
            slopes[monomial[0]] = c
        else:
            constant = c
    return slopes, constant


def ambiguity(form: Form) -> str | None:
    """Say which hole two values of its indices could both give, None when every number has one reading."""
    for hole, dim in form._holes:
        if not isinstance(dim, Poly) or hole.single is not None:
            continue
        slopes, _ = _linear(hole, dim)
        if len(slopes) < 2:
            continue
        free = max(slopes, key=lambda n: (form._open(n), abs(slopes[n]), n))
        others = [n for n in slopes if n != free]
        if any(form._open(n) for n in others):
            raise KeyError(min(n for n in others if form._open(n)))
        rests = [
            sum(slopes[n] * label for n, (_, label) in zip(others, c))
            for c in product(*(form._choices(n) for n in others))
        ]
        count = None if form._open(free) else len(form._choices(free))
        seen: dict[int, list[int]] = {}
        for r in rests:
            near = seen.setdefault(r % abs(slopes[free]), [])
            if any(count is None or abs(r - x) // abs(slopes[free]) < count for x in near):
                return f"'{{{hole.text}}}' gives one number for two values of its indices"
            near.append(r)
    return None
