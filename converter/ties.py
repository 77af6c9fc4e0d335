"""Ties: which of several names holds the tensor, what is compared, what becomes an alias and what is written.

A tie says that two tensors of one side are equal. Where that side is the input, an absent one is read as the other
and a present one is compared; where it is the output, the tied one is left out as an alias, or stored as a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from converter.claims import Ledger
from converter.errors import Problem
from converter.expand import Expander, Instance
from converter.facts import Facts
from converter.flow import Chain
from converter.inputs import Inputs
from converter.matching import Matcher
from converter.rules import Rule, Term, Tie
from converter.settings import Settings


@dataclass
class TieWork:
    """What ties decide; names are those that rules see.

    ``compare``: pairs of instances whose results must be equal. ``compare_names``: (tied instance, its name, the name
    that is stored), two tensors of the input that must be equal. ``aliases``: target name -> the target that it is.
    ``moves``: what is written for tied tensors all the same. ``notes``: (tied, of, alias or None) for the report.
    ``missing``: (instance, name, names tied to it) of sets of which nothing is there. ``apart``: why the ties of the
    `from` side do not hold in this checkpoint, if so.
    """

    compare: list[tuple[Instance, Instance]] = field(default_factory=list)
    compare_names: list[tuple[Instance, str, str]] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    moves: list[Instance] = field(default_factory=list)
    notes: list[tuple[str, str, tuple[str, str] | None]] = field(default_factory=list)
    untied: list[str] = field(default_factory=list)
    missing: list[tuple[Instance, str, str]] = field(default_factory=list)
    apart: str = ""


class Ties:
    """Settle the ties of a ledger; plain instances are left to the planner."""

    def __init__(self, matcher: Matcher, ledger: Ledger, settings: Settings, expander: Expander) -> None:
        self.matcher, self.ledger, self.settings, self.expander = matcher, ledger, settings, expander
        self.inputs: Inputs = matcher.inputs
        self.facts: Facts = matcher.facts
        self.work = TieWork()
        config = settings.config or {}
        self.config_untied = config.get("tie_word_embeddings") is False
        if self.config_untied:
            self.work.apart = f"the map ties it, {settings.config_name} says `tie_word_embeddings: false`"

    def render(self, tie: Tie, instance: Instance) -> str:
        """The name that an instance is tied to."""
        return self.expander.namer.render(tie.name, instance.values, tie.side, instance.rule.origin)

    def spell(self, instance: Instance, term: Term) -> list[str]:
        """Every spelling of a term's name."""
        rule = instance.rule
        return [self.expander.namer.render(s.template, instance.values, rule.side, rule.origin) for s in term.spellings]

    def run(self) -> tuple[TieWork, list[Instance]]:
        """Give the decisions, and the instances that remain plain moves."""
        plain: list[Instance] = []
        tied_to: dict[tuple[bool, str], str] = {}
        members: list[tuple[bool, str, Instance]] = []
        for instance in self.ledger.instances:
            tie = instance.rule.tie
            if tie is None or self._own(instance, tie):
                plain.append(instance)
                continue
            on_input = tie.side == instance.rule.side
            name = self.render(tie, instance)
            tied_to[on_input, (instance.sources if on_input else instance.targets)[0][0]] = name
            members.append((on_input, name, instance))
        if not members:
            return self.work, plain
        present = self._spellings(plain)
        groups: dict[tuple[bool, str], list[Instance]] = {}
        ends: dict[tuple[bool, str], str] = {}
        for on_input, name, instance in members:
            seen: dict[str, None] = {}
            while (on_input, name) in tied_to and name not in seen:  # a chain of ties is one set
                seen[name] = None
                name = ends.get((on_input, name)) or tied_to[on_input, name]
            ends |= {(on_input, n): name for n in seen}
            groups.setdefault((on_input, present.get(name, name) if on_input else name), []).append(instance)
        by_source = {n: i for i in plain for names in i.sources for n in names}
        by_target = {n: i for i in plain for names in i.targets for n in names}
        for (on_input, name), tied in groups.items():
            if on_input:
                self._on_input(name, by_source.get(name), tied)
            else:
                plain = self._on_output(name, by_target.get(name), tied, plain)
        return self.work, plain

    def _spellings(self, plain: list[Instance]) -> dict[str, str]:
        """From every spelling of a tensor to the one that this file has."""
        out: dict[str, str] = {}
        for instance in plain:
            for k, term in enumerate(instance.rule.source):
                if len(term.spellings) > 1 and not term.bound:
                    out |= dict.fromkeys(self.spell(instance, term), instance.sources[k][0])
        return out

    def _own(self, instance: Instance, tie: Tie) -> bool:
        """Whether a tied tensor is one of its own here: it is present (or must be) and nothing ties it."""
        if not instance.sources or not instance.targets:
            return False
        if self.config_untied or ((tie.untied or self.settings.untie) and self._stored(instance)):
            self.work.untied.append(instance.sources[0][0])
            return True
        return False

    def _stored(self, instance: Instance) -> bool:
        """Whether the input stores the tensor itself: an alias in its metadata does not count."""
        return bool(instance.sources) and all(n in self.inputs.entries for group in instance.sources for n in group)

    # The tied side is the input.

    def _on_input(self, name: str, of: Instance | None, tied: list[Instance]) -> None:
        stored = name if name in self.inputs else None
        for instance in tied:
            own = instance.sources[0][0]
            if not self._stored(instance):
                instance.missing.clear()
            elif stored is None:
                stored = own
                if of is not None:
                    of.sources = [[own if n == name else n for n in names] for names in of.sources]
                    of.missing = [n for n in of.missing if n != name]
                    self.ledger.claimed[own] = of
            elif self.inputs.entry(own) is not self.inputs.entry(stored):
                self.work.compare_names.append((instance, own, stored))
        if stored is None:
            names = [i.sources[0][0] for i in tied]
            self.work.missing.append((tied[0], name, ", ".join(names)))
            if of is not None:
                of.missing = [n for n in of.missing if n != name]
                of.missing.append(name)
            return
        if (
            of is None
            and name in self.inputs.entries
            and name not in self.ledger.renamed
            and name not in self.ledger.kept
        ):
            text = f"is tied to '{name}', which no rule maps"
            self.ledger.problems.append(Problem(text, "claim", tied[0].sources[0][0], tied[0].rule.origin))
        for instance in tied:
            self._write_tied(instance, name, stored, of)

    def _write_tied(self, instance: Instance, name: str, stored: str, of: Instance | None) -> None:
        own = instance.sources[0][0]
        if not instance.targets:
            self.work.notes.append((own, name, None))
            return
        target, image = instance.targets[0][0], self._image(name, of)
        alike = not instance.rule.chain.ops() or (of is not None and same_ops(instance.rule.chain, of.rule.chain))
        keep_copy = self._copy(instance.rule, 1 - instance.rule.side)
        if image is not None and alike and not keep_copy:
            self.work.aliases[target] = image
            self.work.notes.append((own, name, (target, image)))
            return
        move = Instance(instance.rule, instance.values, instance.members, [[stored]], instance.targets)
        self.work.moves.append(move)
        self.work.notes.append((own, name, None))

    def _image(self, name: str, of: Instance | None) -> str | None:
        """The one output tensor that a source becomes whole, None where it becomes part of something."""
        if of is None:
            renamed = self.ledger.renamed.get(name)
            return renamed[1] if renamed is not None else name if name in self.ledger.kept else None
        whole = len(of.sources) == 1 and len(of.sources[0]) == 1 and len(of.targets) == 1 and len(of.targets[0]) == 1
        return of.targets[0][0] if whole else None

    def _copy(self, rule: Rule, side: int) -> bool:
        """Whether a tied tensor is stored again on a side of the document."""
        assert rule.tie is not None
        stated = rule.tie.stores[side]
        return (stated or self.settings.tied or "omit") == "copy"

    # The tied side is the output.

    def _on_output(self, name: str, of: Instance | None, tied: list[Instance], plain: list[Instance]) -> list[Instance]:
        present = [i for i in tied if self._stored(i)]
        for instance in tied:
            if not self._stored(instance):
                instance.missing.clear()
        if of is not None and of.missing and present:
            plain = [i for i in plain if i is not of]
            absent_names = [n for group in of.sources for n in group]
            of.missing.clear()
            first = present.pop(0)
            made = Instance(first.rule, first.values, first.members, first.sources, [[name]])
            plain.append(made)
            self.work.notes += [(absent, first.sources[0][0], None) for absent in absent_names]
            of = made
        elif of is not None and of.missing:
            names = ", ".join(i.sources[0][0] for i in tied if i.sources)
            for gone in of.missing if names else ():
                self.work.missing.append((of, gone, names))
        elif of is None:
            text = f"is tied to '{name}', which no rule makes"
            self.ledger.problems.append(Problem(text, "claim", tied[0].targets[0][0], tied[0].rule.origin))
            return plain
        for instance in present:
            self.work.compare.append((instance, of))
        for instance in tied:
            target = instance.targets[0][0]
            if self._copy(instance.rule, 1 - instance.rule.side):
                self.work.moves.append(
                    Instance(of.rule, of.values, of.members, of.sources, [[target]], list(of.missing))
                )
                self.work.notes.append((target, name, None))
            else:
                self.work.aliases[target] = name
                self.work.notes.append((target, name, (target, name)))
        return plain


def same_ops(a: Chain, b: Chain) -> bool:
    """Whether two chains do the same, wherever the ops stand."""
    return a.ops() == b.ops()
