"""Renames by regular expression: RE2 patterns anchored at both ends, and how to turn them around."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from converter.errors import MismatchError, Problem
from converter.folding import repeated
from converter.names import TemplateError

MAX_PATTERN = 1_000  # characters of a pattern, and of the name that it becomes
MAX_RENAMED = 100_000  # characters of a name
FEW_PATTERNS = 4  # are tried one by one
_HOLE = re.compile(r"\{([^{}]*)\}")


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
        """Give the new name, None when the pattern does not match the whole name; raises MismatchError for one that
        is too long.
        """
        m = self.compiled.fullmatch(name)
        if m is None:
            return None
        groups = m.groupdict()
        if len(self.to) + sum(len(groups[h] or "") for h in _HOLE.findall(self.to)) > MAX_RENAMED:
            told = f"'{self.match}' makes a name of more than {MAX_RENAMED} characters of it"
            raise MismatchError(Problem(told, "claim", name))
        return _HOLE.sub(lambda h: groups[h[1]] or "", self.to)


class Sieve:
    """Tells which of many patterns may match a whole name, by one pass over it, not by one for each pattern.

    What it leaves out does not match. A set of patterns that takes more memory than RE2 grants it finds nothing; so
    where it finds nothing, one pattern that is any of them, which RE2 then matches in another way, is asked.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._every = range(len(patterns))
        self._set: Any = None
        if len(patterns) < FEW_PATTERNS or any("\\Q" in p for p in patterns):  # which has no end of its own
            return
        import re2

        options = re2.Options()
        options.log_errors, options.never_capture = False, True
        found = re2.Set.FullMatchSet(options)
        with suppress(re2.error):
            for pattern in patterns:
                found.Add(pattern)
            found.Compile()
            self._any = re2.compile("|".join(f"(?:{p})" for p in patterns), options)
            self._set = found

    def of(self, name: str) -> Sequence[int]:
        """The numbers of the patterns to try, in rising order."""
        if self._set is None:
            return self._every
        found = self._set.Match(name)
        if found:
            return sorted(found)
        return () if self._any.fullmatch(name) is None else self._every


def check_length(*texts: str) -> None:
    """Refuse patterns, and names with groups, of a length that nobody writes; raises TemplateError."""
    for text in texts:
        if len(text) > MAX_PATTERN:
            raise TemplateError(f"'{text[:40]}...' has {len(text)} characters (at most {MAX_PATTERN})")


def compile_pattern(pattern: str) -> Any:
    """Compile a pattern with RE2; raises TemplateError with the engine's reason."""
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as e:
        reason = e.args[0].decode() if isinstance(e.args[0], bytes) else str(e.args[0])
        raise TemplateError(
            f"pattern '{pattern}': {reason} (patterns are RE2's: no look-around, no back-references)"
        ) from None


def check_regex(rename: Regex) -> None:
    """Refuse a rename whose groups and new name do not fit together; raises TemplateError."""
    known = set(rename.compiled.groupindex)
    twice = repeated(re.findall(r"\(\?P<(\w+)>", rename.match))
    if twice is not None:
        raise TemplateError(f"group '{twice}' stands twice in '{rename.match}'")
    if re.search(r"\\(\d|g<)", rename.to):
        raise TemplateError(
            f"'{rename.to}' has a backslash reference: groups have names here, (?P<name>...) and {{name}}"
        )
    for hole in _HOLE.findall(rename.to):
        if hole not in known:
            raise TemplateError(f"'{{{hole}}}' in '{rename.to}' is no named group of '{rename.match}'")
    left = _HOLE.sub("", rename.to)
    if "{" in left or "}" in left:
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
    """Cut a pattern into literal text ('', text) and named groups (name, pattern), less anchors at its ends; or say
    what else there is.
    """
    out: list[tuple[str, str]] = []
    i = 0
    while i < len(pattern):
        c = pattern[i]
        if (c == "^" and i == 0) or (c == "$" and i == len(pattern) - 1):
            i += 1  # patterns are anchored at both ends anyway
        elif c == "\\" and i + 1 < len(pattern) and not pattern[i + 1].isalnum():
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
