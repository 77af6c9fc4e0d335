"""Words for messages, and JSON read strictly: names in files come from strangers, so they are escaped and cut short."""

from __future__ import annotations

import gc
import json
import re
import reprlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

SHOWN = 160  # characters of a name that a message repeats
_SURROGATE = re.compile("[\ud800-\udfff]")

_brief = reprlib.Repr()
_brief.maxlist = _brief.maxdict = 8
_brief.maxstring = _brief.maxother = 40
_brief.maxlevel = 2


def show(name: str, limit: int = SHOWN) -> str:
    """Give a name as a message may print it: one line, control characters escaped, long names cut in the middle."""
    if not name:
        return "''"
    if len(name) > limit:
        name = f"{name[: limit // 2]}...{name[-(limit // 2) + 3 :]}"
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)[: 2 * limit]


def brief(value: object) -> str:
    """Give a value of a JSON text in at most 80 characters."""
    if type(value) is str:
        return f"'{show(value, 60)}'" if value else "''"
    text = _brief.repr(value).replace("True", "true").replace("False", "false").replace("None", "null")
    return text if len(text) <= 80 else f"{text[:77]}..."


def count(n: int, noun: str) -> str:
    """Count things in words: ``1 tensor``, ``2 tensors``."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def listing(names: Sequence[str], limit: int = 5) -> str:
    """List names, the first few in full and the rest as a number."""
    few = ", ".join(show(name, 80) for name in names[:limit])
    return few if len(names) <= limit else f"{few}, ... and {len(names) - limit} more"


@contextmanager
def many_objects() -> Iterator[None]:
    """Make many objects that live on without the cycle collector going over them again and again (half of the time)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Odd:
    """A word that Python's parser takes for a number and JSON's grammar (or the reference reader) does not."""

    def __init__(self, word: str) -> None:
        self.word = word

    def __repr__(self) -> str:
        return self.word


class TextError(ValueError):
    """A JSON text is not what it should be; the message says why, in one line."""


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise TextError(f"duplicate name {show(name)}")
    return found


def _unique_text(pairs: list[tuple[str, object]]) -> dict[str, object]:
    for name, value in pairs:
        for text in (name, value):
            if type(text) is str and _SURROGATE.search(text):
                raise TextError(f"unpaired surrogate in {brief(text)}")
    return _unique(pairs)


def _integer(word: str) -> object:
    return Odd(word) if word == "-0" else int(word)


def parse_object(data: bytes) -> dict[str, object]:
    """Parse a JSON object strictly.

    Raises :class:`TextError` for bytes that are not UTF-8, a byte order mark, leading or trailing bytes that are not of
    the object (blanks after it are fine), nesting that is too deep, names that stand twice and unpaired surrogates.
    """
    if data[:1] != b"{":
        raise TextError(_first_byte(data))
    if data.endswith(b"\0"):
        raise TextError("is padded with NUL bytes, only spaces may follow the JSON text")
    try:
        text = data.decode("utf-8")
        hook = _unique_text if "\\u" in text else _unique  # an escape is the only way to an unpaired surrogate
        whole = _integer if "-0" in text else None
        found = json.loads(text, object_pairs_hook=hook, parse_constant=Odd, parse_int=whole)
    except TextError:
        raise
    except UnicodeDecodeError as e:
        raise TextError(f"is not valid UTF-8: byte {data[e.start]:#04x} at position {e.start}") from None
    except RecursionError:
        raise TextError("is not valid: the JSON text is nested too deeply") from None
    except json.JSONDecodeError as e:
        raise TextError(f"is not valid JSON: {show(e.msg)} at character {e.pos}") from None
    except ValueError:  # int() of more digits than Python is willing to read
        raise TextError("holds a number with too many digits") from None
    assert isinstance(found, dict)
    return found


def _first_byte(data: bytes) -> str:
    if not data:
        return "is empty"
    if data.startswith(b"\xef\xbb\xbf"):
        return "begins with a UTF-8 byte order mark, it must begin with '{'"
    return f"begins with {chr(data[0])!a}, it must begin with '{{'"
