"""Tensor names as templates: parse, render, match, decode index arithmetic, and turn regex renames around.

A template is literal text with holes: ``h.{layer}.ln_{k}.weight``, ``in.{3*b+j+1}.w``, ``layer_{i:02}``, ``{w:_}``. A
hole holds a polynomial of sizes that is linear in indices. Nothing in a template is a pattern: dots are dots.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

from converter.dims import Dim, Poly, names, substitute
from converter.expressions import Expr, ExpressionError, parse

Label = int | str
IndexValues = dict[str, Label]
Numbers = tuple[tuple[int, str], ...]  # of a name, as they stand there: which of its numbers, and that number
_HOLE = re.compile(r"\{([^{}]*)\}")
_RUN = re.compile(r"[0-9]+")
MAX_COMBINATIONS = 20_000
MAX_NAME = 1_000  # characters of a name in a map
MAX_HOLES = 16


class TemplateError(ValueError):
    """A name template, or a regex rename, that cannot be read or used."""


@dataclass(frozen=True)
class Hole:
    """A placeholder: its text, its polynomial, the width of zero padding (0: natural form), dots as underscores."""

    text: str
    dim: Dim
    width: int
    underscore: bool

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
    """Make the function that writes a template's names for a side of the map from index values (ints, or keys of
    labels).

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
    if len(text) > MAX_NAME:
        raise TemplateError(f"'{text[:40]}...' is a name of {len(text)} characters (at most {MAX_NAME})")
    if text.count("{") > MAX_HOLES:
        raise TemplateError(f"'{text}' has {text.count('{')} placeholders (at most {MAX_HOLES})")
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
    """An index of the map: a count (``size``), or enumerated labels (``keys`` in `from` names, ``images`` in `to`
    names).
    """

    name: str
    size: Expr | None = None
    keys: tuple[Label, ...] = ()
    images: tuple[Label, ...] = ()

    def labels(self, side: int) -> tuple[Label, ...]:
        """The labels that names of a side carry (0: from, 1: to)."""
        return self.images if side else self.keys


@dataclass(frozen=True)
class Strip:
    """What names of files may carry and rules do not see: a prefix, or a segment (what stands between two dots)."""

    text: str
    segment: bool = False

    @property
    def what(self) -> str:
        """Which of the two it is."""
        return "segment" if self.segment else "prefix"

    def off(self, name: str) -> str:
        """Take it off a name, which is never left empty: the prefix once, the segment wherever it stands."""
        if not self.segment:
            return name[len(self.text) :] if name.startswith(self.text) and len(name) > len(self.text) else name
        if self.text not in name:
            return name
        return ".".join(part for part in name.split(".") if part != self.text) or name


def numbers_of(name: str) -> list[str]:
    """The runs of digits of a name."""
    return _RUN.findall(name)


def skeleton(name: str) -> str:
    """Replace each run of digits by one mark: names of one template share their skeleton (per enumerated label)."""
    return _RUN.sub("#", name)
