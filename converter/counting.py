"""Counts that only names tell: one more than the highest index of what is there."""

from __future__ import annotations

from converter.errors import Problem
from converter.matching import Matcher, Table

SLACK = 1000  # a count may pass the number of input tensors by this much


def count_from_names(matcher: Matcher) -> list[Problem]:
    """Add the counts that only names can tell: one more than the highest index; returns what is out of
    proportion.
    """
    highest: dict[str, tuple[int, str]] = {}
    ignored = set(matcher.pattern_drops) | set(matcher.named_drops())
    by_size: dict[str, list[str]] = {}
    for name, index in matcher.rules.indices.items():
        if index.size is not None and index.size.text.isidentifier() and index.size.text not in matcher.facts.values:
            by_size.setdefault(index.size.text, []).append(name)
    wanted = {i: size for size, names_ in by_size.items() for i in names_}
    for table in matcher.tables.values() if wanted else ():
        columns = [(c, wanted[i]) for c, i in enumerate(table.order) if i in wanted]
        for key, spelled in matcher.spelled(table) if columns else ():
            if spelled in ignored:
                continue
            for c, size in columns:
                value = key[c]
                if isinstance(value, int) and value > highest.get(size, (-1, ""))[0]:
                    highest[size] = (value, spelled)
    problems = []
    for size, (value, name) in highest.items():
        if value + 1 > len(matcher.inputs.entries) + SLACK:
            where = f"{len(matcher.inputs.entries)} {'tensor' if len(matcher.inputs.entries) == 1 else 'tensors'}"
            text = (
                f"counts up to {value}, out of all proportion to an input of {where} (if it is "
                f"meant: --set {size}={value + 1})"
            )
            problems.append(Problem(text, "size", name))
        else:
            matcher.facts.know(size, value + 1, f"counted from names, up to {name}")
    return problems


def count_lists(matcher: Matcher) -> None:
    """Add the lists of counts that only names can tell: for `depth[b]` an item for each b, the highest index and
    one. A list that has a default is not counted.
    """
    for name, index in matcher.rules.indices.items():
        item = index.size.item if index.size is not None else None
        param = matcher.rules.params.get(item[0]) if item is not None else None
        if item is None or item[0] in matcher.facts.values or (param is not None and param.default is not None):
            continue
        outer = matcher.rules.indices.get(item[1])
        length = matcher.count_of(item[1], {}) if outer is not None and outer.size is not None else None
        tables = [t for t in matcher.tables.values() if {name, item[1]} <= set(t.order)]
        if length is not None and tables:
            counts = _highest(matcher, tables, name, item[1], length)
            if max(counts, default=0) <= len(matcher.inputs.entries) + SLACK:
                matcher.facts.know(item[0], counts, "counted from names")


def _highest(matcher: Matcher, tables: list[Table], name: str, outer: str, length: int) -> list[int]:
    """Count an index for each value of another one."""
    counts = [0] * length
    for table in tables:
        row, column = table.order.index(outer), table.order.index(name)
        for key, spelled in matcher.spelled(table):
            at = int(key[row])
            if spelled not in matcher.pattern_drops and at < length:
                counts[at] = max(counts[at], int(key[column]) + 1)
    return counts


def check_counts(matcher: Matcher, from_set: frozenset[str]) -> list[Problem]:
    """Find counts that are out of proportion to the input and that nobody set."""
    problems = []
    for name, index in matcher.rules.indices.items():
        if index.size is None or index.size.names & (set(matcher.rules.indices) | from_set):
            continue
        count = matcher.count_of(name, {})
        if count is not None and count > len(matcher.inputs.entries) + SLACK:
            why = matcher.facts.reason([index.size.dim()])
            few = len(matcher.inputs.entries)
            text = f"index '{name}' runs over {count} values, out of all proportion to the input's {few}"
            text += f" ({why})" if why else ""
            problems.append(Problem(text, "size", None, matcher.rules.index_origins[name]))
    return problems
