"""Which names have the form of a template: matching, and reading indices off numbers that polynomials give."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from math import prod

from converter.dims import names, substitute
from converter.names import (
    MAX_COMBINATIONS,
    Hole,
    Index,
    IndexValues,
    Label,
    Numbers,
    Template,
    TemplateError,
    skeleton,
)
from converter.readings import Reading, linear, reading

_HOLE = "\0"  # stands for a number
_RUN = re.compile(f"[0-9{_HOLE}]+")


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
            linear(hole, dim)
        self._cache: list[dict[str, tuple[tuple[str, Label], ...] | None]] = [{} for _ in template.holes]
        self._readings: dict[int, Reading | None] = {}
        self._labels: dict[int, dict[str, Label]] = {
            i: self._spelled(h) for i, h in enumerate(template.holes) if self._is_labelled(h)
        }
        total = prod(map(len, self._labels.values()))
        if total > MAX_COMBINATIONS:
            raise TemplateError(f"'{template}' stands for {total} combinations of labels (at most {MAX_COMBINATIONS})")
        self._fullmatch = self._compiled() if template.holes else None

    def _compiled(self) -> Callable[[str], re.Match[str] | None]:
        holes = iter([self._pattern(i, h) for i, h in enumerate(self.template.holes)])
        parts = (re.escape(p) if isinstance(p, str) else next(holes) for p in self.template.parts)
        return re.compile("".join(parts)).fullmatch

    def _is_labelled(self, hole: Hole) -> bool:
        index = self._indices.get(hole.single or "")
        return index is not None and index.size is None

    def _spelled(self, hole: Hole) -> dict[str, Label]:
        """From each label of a hole, as names write it, to its key; longer ones first."""
        index = self._indices[hole.single or ""]
        pairs = [(hole.render({index.name: v}), k) for k, v in zip(index.keys, index.labels(self.side))]
        return dict(sorted(pairs, key=lambda pair: -len(pair[0])))

    def _pattern(self, i: int, hole: Hole) -> str:
        if i in self._labels:
            return "(" + "|".join(map(re.escape, self._labels[i])) + ")"
        return rf"([0-9]{{{hole.width}}}|[1-9][0-9]{{{hole.width},}})" if hole.width else "(0|[1-9][0-9]*)"

    def skeletons(self) -> Iterator[str]:
        """List the skeletons of all names of this form."""
        yield from dict.fromkeys(s for s, _ in self.looks())

    def looks(self) -> Iterator[tuple[str, Numbers]]:
        """List the skeletons of all names of this form, with the numbers that they all have in the same place."""
        choices: list[list[str]] = []
        for p in self.template.parts:
            index = self._indices.get(p.single or "") if isinstance(p, Hole) else None
            if isinstance(p, str):
                choices.append([p])
            elif index is not None and index.size is None:
                choices.append([p.render({index.name: v}) for v in index.labels(self.side)])
            else:
                choices.append([_HOLE])
        texts = ["".join(c) for c in product(*choices)]
        told = _HOLE not in self.template.text
        found: dict[str, Numbers] = {}
        for text in texts:
            look, numbers = skeleton(text.replace(_HOLE, "0")), _numbers(text) if told else ()
            found[look] = tuple(n for n in found.get(look, numbers) if n in numbers)
        yield from found.items()

    def match(self, name: str) -> IndexValues | None:
        """Read the indices off a name, None when it does not have this form."""
        if self._fullmatch is None:
            return {} if name == self.template.text else None
        m = self._fullmatch(name)
        if m is None:
            return None
        values: IndexValues = {}
        for i, text in enumerate(m.groups()):
            cache = self._cache[i]
            found = cache.get(text)
            if found is None:
                found = cache[text] if text in cache else self._cached(i, text)
                if found is None:
                    return None
            for k, v in found:
                if values.setdefault(k, v) != v:
                    return None
        return values

    def looks_like(self, name: str) -> bool:
        """Whether a name is spelled like this template, whatever its numbers are."""
        return name == self.template.text if self._fullmatch is None else self._fullmatch(name) is not None

    def _cached(self, i: int, text: str) -> tuple[tuple[str, Label], ...] | None:
        found = self._decode(i, text)
        cached = self._cache[i][text] = None if found is None else tuple(found.items())
        return cached

    def _decode(self, i: int, text: str) -> IndexValues | None:
        hole, dim = self._holes[i]
        if i in self._labels:
            key = self._labels[i].get(text)
            return None if key is None else {str(hole.single): key}
        found = self.reading(i)
        if len(text) > 18:
            return None
        if found is None:
            return {} if dim == int(text) else None
        return found.read(int(text))

    def reading(self, i: int) -> Reading | None:
        """How the numbers of hole ``i`` are read, None for a hole without indices; raises KeyError for an index whose
        count has to be known for that.
        """
        if i not in self._readings:
            self._readings[i] = reading(*self._holes[i], self._indices, self.side, self._counts)
        return self._readings[i]


def _numbers(text: str) -> Numbers:
    """The numbers of a name whose holes are marked, less those with a hole in them, each with its place."""
    return tuple((k, n) for k, n in enumerate(_RUN.findall(text)) if _HOLE not in n)


def ambiguity(form: Form) -> str | None:
    """Say which hole two values of its indices could both give, None when every number has one reading.

    Raises TemplateError where that takes too long to tell, KeyError for an index whose count has to be known for that.
    """
    for i, hole in enumerate(form.template.holes):
        found = form.reading(i) if hole.single is None else None
        if found is not None and found.ambiguous():
            return f"'{{{hole.text}}}' gives one number for two values of its indices"
    return None
