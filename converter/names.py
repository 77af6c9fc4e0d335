"""Tensor names as templates: parse, render, match, decode index arithmetic, and turn regex renames around.

A template is literal text with holes: ``h.{layer}.ln_{k}.weight``, ``in.{3*b+j+1}.w``, ``layer_{i:02}``, ``{w:_}``. A hole holds
a polynomial of sizes that is linear in indices. Nothing in a template is a pattern: dots are dots.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from operator import itemgetter
from typing import Any

from converter.dims import Dim, Poly, names, substitute
from converter.expressions import Expr, ExpressionError, parse

Label = int | str
IndexValues = dict[str, Label]
_HOLE = re.compile(r"\{([^{}]*)\}")
_RUN = re.compile(r"[0-9]+")
MAX_COMBINATIONS = 20_000


class TemplateError(ValueError):
    """A name template, or a regex rename, that cannot be read or used."""


@dataclass(frozen=True)
class Hole:
    """A placeholder: its text, its polynomial, the width of zero padding (0: natural form), dots as underscores."""

    text: str
    dim: Dim
    width: int = 0
    underscore: bool = False

    @cached_property
    def single(self) -> str | None:
        """The one name that the hole consists of, None for arithmetic."""
        return self.text if isinstance(self.dim, Poly) and self.dim.terms == (((self.text,), 1),) else None

    def render(self, values: Mapping[str, Label]) -> str:
        """Write the hole; raises TemplateError for a negative number, KeyError for a value that is missing."""
        value: Any = values[self.single] if self.single is not None else substitute(self.dim, values)  # type: ignore[arg-type]
        if isinstance(value, str):
            return value.replace(".", "_") if self.underscore else value
        if isinstance(value, Poly):
            raise KeyError(min(names(value)))
        if value < 0:
            raise TemplateError(f"{{{self.text}}} is {value} here, a name cannot have a negative number")
        return f"{value:0{self.width}d}" if self.width else str(value)


@dataclass(frozen=True)
class Template:
    """A parsed name: its text as written and its literal parts and holes in order."""

    text: str
    parts: tuple[str | Hole, ...]

    @cached_property
    def holes(self) -> tuple[Hole, ...]:
        """The placeholders, in order."""
        return tuple(p for p in self.parts if isinstance(p, Hole))

    @cached_property
    def names(self) -> frozenset[str]:
        """Every index and size that the holes use."""
        return frozenset().union(*(names(h.dim) for h in self.holes))

    def __add__(self, other: Template) -> Template:
        return parse_template(self.text + other.text)

    def __str__(self) -> str:
        return self.text

    def render(self, values: Mapping[str, Label]) -> str:
        """Write the name for given indices and sizes; raises TemplateError, KeyError for a value that is missing."""
        return "".join(p if isinstance(p, str) else p.render(values) for p in self.parts)


Renderer = Callable[[Mapping[str, Label]], str]


def renderer(template: Template, indices: Mapping[str, Index], side: int, sizes: Mapping[str, int]) -> Renderer:
    """Make the function that writes a template's names for a side of the map from index values (ints, or keys of labels).

    It raises as :meth:`Template.render`; the usual template, whose holes are plain indices, is written at the speed of
    string formatting.
    """
    if not template.holes:
        return lambda values: template.text
    getters: list[Callable[[Mapping[str, Label]], Any]] = []
    for hole in template.holes:
        index = indices.get(hole.single or "")
        if index is not None and index.size is None:
            texts = {k: hole.render({index.name: v}) for k, v in zip(index.keys, index.labels(side))}
            getters.append(lambda values, name=index.name, texts=texts: texts[values[name]])  # type: ignore[misc]
        elif index is not None and not hole.width:
            getters.append(itemgetter(index.name))
        else:
            getters.append(lambda values, hole=hole: hole.render({**sizes, **labelled(values, indices, side)}))  # type: ignore[misc]
    text = "".join(p.replace("%", "%%") if isinstance(p, str) else "%s" for p in template.parts)
    if len(getters) == 1:
        only = getters[0]
        return lambda values: text % (only(values),)
    return lambda values: text % tuple([g(values) for g in getters])


def labelled(values: Mapping[str, Label], indices: Mapping[str, Index], side: int) -> dict[str, Label]:
    """Index values as the names of a side spell them: keys become labels."""
    out = dict(values)
    for name, value in values.items():
        index = indices[name]
        if index.size is None and side:
            out[name] = index.images[index.keys.index(value)]
    return out


def parse_template(text: str) -> Template:
    """Parse a name; raises TemplateError with the reason."""
    parts: list[str | Hole] = []
    at = 0
    for m in _HOLE.finditer(text):
        if m.start() > at:
            parts.append(text[at : m.start()])
        parts.append(_parse_hole(m[1], text))
        at = m.end()
    if at < len(text):
        parts.append(text[at:])
    for p in parts:
        if isinstance(p, str) and ("{" in p or "}" in p):
            raise TemplateError(f"'{text}' has a brace without its partner")
    return Template(text, tuple(parts))


def _parse_hole(inside: str, text: str) -> Hole:
    body, _, fmt = inside.partition(":")
    if fmt and fmt != "_" and not re.fullmatch(r"0[1-9]", fmt):
        raise TemplateError(f"'{{{inside}}}' in '{text}': formats are :02 (zero padding) and :_ (dots as underscores)")
    try:
        dim = parse(body).dim()
    except ExpressionError as e:
        raise TemplateError(f"'{{{inside}}}' in '{text}': {e}") from None
    if not names(dim) or any(not n.isidentifier() for n in names(dim)):
        raise TemplateError(f"'{{{inside}}}' in '{text}' is not an index or a polynomial of sizes and indices")
    return Hole(body.strip(), dim, int(fmt) if fmt not in ("", "_") else 0, fmt == "_")


@dataclass(frozen=True)
class Index:
    """An index of the map: a count (``size``), or enumerated labels (``keys`` in `from` names, ``images`` in `to` names)."""

    name: str
    size: Expr | None = None
    keys: tuple[Label, ...] = ()
    images: tuple[Label, ...] = ()

    def labels(self, side: int) -> tuple[Label, ...]:
        """The labels that names of a side carry (0: from, 1: to)."""
        return self.images if side else self.keys


def skeleton(name: str) -> str:
    """Replace each run of digits by one mark: names of one template share their skeleton (per enumerated label)."""
    return _RUN.sub("#", name)


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
        for combination in product(*(self._choices(n) for n in others)):
            rest = value - sum(slopes[n] * label for n, (_, label) in zip(others, combination))
            if rest % slopes[free] == 0 and (hit := self._key(free, rest // slopes[free])) is not None:
                return {free: hit, **{n: key for n, (key, _) in zip(others, combination)}}
        return None

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


@dataclass(frozen=True)
class Regex:
    """One direction of a regex rename: a pattern anchored at both ends, and the template of the new name."""

    match: str
    to: str

    @cached_property
    def compiled(self) -> Any:
        """The compiled pattern (RE2, which runs in linear time); raises TemplateError."""
        return compile_pattern(self.match)

    def rename(self, name: str) -> str | None:
        """Give the new name, None when the pattern does not match the whole name."""
        m = self.compiled.fullmatch(name)
        if m is None:
            return None
        groups = m.groupdict()
        return _HOLE.sub(lambda h: groups[h[1]] or "", self.to)


def compile_pattern(pattern: str) -> Any:
    """Compile a pattern with RE2; raises TemplateError with the engine's reason."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = 8 << 20
    try:
        return re2.compile(pattern, options)
    except re2.error as e:
        reason = e.args[0].decode() if isinstance(e.args[0], bytes) else str(e.args[0])
        raise TemplateError(
            f"pattern '{pattern}': {reason} (patterns are RE2's: no look-around, no back-references)"
        ) from None


def check_regex(rename: Regex) -> None:
    """Refuse a rename whose groups and new name do not fit together; raises TemplateError."""
    compiled = rename.compiled
    if compiled.groups != len(compiled.groupindex) and re.search(r"(?<!\\)\((?!\?)", rename.match):
        pass  # unnamed groups only group: they take part in no name
    known = set(compiled.groupindex)
    for hole in _HOLE.findall(rename.to):
        if hole not in known:
            raise TemplateError(f"'{{{hole}}}' in '{rename.to}' is no named group of '{rename.match}'")
    if "{" in _HOLE.sub("", rename.to) or "}" in _HOLE.sub("", rename.to):
        raise TemplateError(f"'{rename.to}' has a brace without its partner")


def invert_regex(rename: Regex) -> Regex | str:
    """Turn a rename around where every group stands once in `to` and the rest is literal; else say why not."""
    pieces = _split_pattern(rename.match)
    if isinstance(pieces, str):
        return pieces
    if any(not name and text in "{}" for name, text in pieces):
        return "a brace of the pattern would have to be written as text, and `to` keeps braces for groups"
    groups = {name: pattern for name, pattern in pieces if name}
    used = _HOLE.findall(rename.to)
    for name in groups:
        if used.count(name) != 1:
            return f"group '{name}' stands {used.count(name)} times in '{rename.to}', not once"
    match, at = "", 0
    for m in _HOLE.finditer(rename.to):
        match += re.escape(rename.to[at : m.start()]) + f"(?P<{m[1]}>{groups[m[1]]})"
        at = m.end()
    match += re.escape(rename.to[at:])
    return Regex(match, "".join(f"{{{name}}}" if name else text for name, text in pieces))


def _split_pattern(pattern: str) -> list[tuple[str, str]] | str:
    """Cut a pattern into literal text ('', text) and named groups (name, pattern); or say what else there is."""
    out: list[tuple[str, str]] = []
    i = 0
    while i < len(pattern):
        c = pattern[i]
        if c == "\\" and i + 1 < len(pattern) and not pattern[i + 1].isalnum():
            out.append(("", pattern[i + 1]))
            i += 2
        elif pattern.startswith("(?P<", i):
            end = _group_end(pattern, i)
            name, _, inner = pattern[i + 4 : end].partition(">")
            if "(?P<" in inner:
                return f"group '{name}' has a group inside"
            out.append((name, inner))
            i = end + 1
        elif c in "\\.^$*+?{}[]|()":
            return f"'{pattern}' is not literal outside its named groups (at '{pattern[i : i + 12]}')"
        else:
            out.append(("", c))
            i += 1
    return out


def _group_end(pattern: str, start: int) -> int:
    depth, i, in_class = 0, start, False
    while i < len(pattern):
        c = pattern[i]
        if c == "\\":
            i += 1
        elif in_class:
            in_class = c != "]"
        elif c == "[":
            in_class = True
            i += pattern.startswith("]", i + 1) + 2 * pattern.startswith("^]", i + 1)
        elif c in "()":
            depth += 1 if c == "(" else -1
            if depth == 0:
                return i
        i += 1
    return len(pattern)
