"""Names of one run: those that rules write for the values of their indices, and which of them are in the input."""

from __future__ import annotations

from collections.abc import Mapping

from converter.errors import MapError, MismatchError, Origin, Problem
from converter.forms import Form
from converter.matching import Matcher
from converter.names import Label, Renderer, Template, TemplateError, renderer, skeleton
from converter.rules import Rule, Term


class Namer:
    """Writes names over a matched input, and looks them up."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher, self.rules, self.inputs, self.facts = matcher, matcher.rules, matcher.inputs, matcher.facts
        self._present: dict[str, bool] = {}
        self._renderers: dict[tuple[str, int], Renderer] = {}
        self._from_forms: dict[str, list[tuple[Rule, Term, int, Form]]] | None = None

    def spelled(self, term: Term) -> Template:
        """The spelling of a missing name: that of the file where a group prefix was chosen, else the first."""
        active = [s for s in range(len(term.spellings)) if self.matcher.active(term, s)]
        return term.spellings[active[0] if active else 0].template

    def render(self, template: Template, values: Mapping[str, Label], side: int, origin: Origin) -> str:
        """Write a name of a side of the map; raises MismatchError where a size of it is not known."""
        make = self._renderers.get((template.text, side))
        if make is None:
            make = self._renderers[template.text, side] = renderer(
                template, self.rules.indices, side, self.facts.numbers
            )
        try:
            return make(values)
        except KeyError as e:
            raise self.matcher.unknown(str(e.args[0]), f"the name '{template}' needs it", origin) from None
        except TemplateError as e:
            raise MismatchError(Problem(str(e), "size", None, origin)) from None

    def presence(self, template: Template, values: Mapping[str, Label], origin: Origin) -> bool:
        """Whether a `from` tensor, or its image on the way back, is in the input."""
        name = self.render(template, values, 0, origin)
        if name not in self._present:
            self._present[name] = self._look_up(name, origin)
        return self._present[name]

    def _named_from(self) -> dict[str, list[tuple[Rule, Term, int, Form]]]:
        """The forms of all `from` names, by their skeletons."""
        out: dict[str, list[tuple[Rule, Term, int, Form]]] = {}
        for rule in self.rules.rules:
            for k, term in enumerate(rule.source if rule.side == 0 else rule.target):
                form = self.matcher.form(term.name, 0, rule.origin)
                keys = form.skeletons() if term.name.holes else [f"={term.name.text}"]  # literal ones by themselves
                for key in keys:
                    out.setdefault(key, []).append((rule, term, k, form))
        return out

    def _look_up(self, name: str, origin: Origin) -> bool:
        if self._from_forms is None:
            self._from_forms = self._named_from()
        forms = (*self._from_forms.get(f"={name}", ()), *self._from_forms.get(skeleton(name), ()))
        for rule, term, k, form in forms:
            found = form.match(name)
            if found is None:
                continue
            if rule.side == 0:
                key = tuple(found[i] for i in (*rule.free, *term.bound))
                return bool(self.matcher.name_at(rule, k, key))
            if len(rule.source) == 1 and not rule.source[0].bound and not term.bound:
                return bool(self.matcher.name_at(rule, 0, tuple(found[i] for i in rule.free)))
        if self.rules.side == 0 and name in self.inputs:
            return True
        raise MapError(Problem(f"with: no rule maps '{name}' one to one", "map", None, origin))
