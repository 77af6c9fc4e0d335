"""Mutations that know nothing of a format but its tokens."""

import re
from random import Random

from fuzz.lexicon import BYTES, NUMBERS, PIECES, STRINGS

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|[A-Za-z]+|\s+|.', re.DOTALL)


def tokens(text: str, random: Random) -> str:
    """Change a JSON text in one to four places: drop, double, swap, replace or insert tokens."""
    parts = _TOKEN.findall(text) or [""]
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        at = random.randrange(len(parts))
        what = random.random()
        if what < 0.35:
            parts[at] = replacement(parts[at], random)
        elif what < 0.5:
            parts.insert(at, random.choice(random.choice((NUMBERS, STRINGS, PIECES))))
        elif what < 0.6 and len(parts) > 1:
            del parts[at]
        elif what < 0.75:
            stop = min(len(parts), at + random.randrange(1, 16))
            to = random.randrange(len(parts))
            parts[to:to] = parts[at:stop]
        elif what < 0.85 and len(parts) > 2:
            del parts[at : at + random.randrange(1, 16)]
            parts = parts or [""]
        else:
            other = random.randrange(len(parts))
            parts[at], parts[other] = parts[other], parts[at]
    return "".join(parts)


def replacement(token: str, random: Random) -> str:
    """Another token, mostly of the same kind."""
    if random.random() < 0.2:
        return random.choice(random.choice((NUMBERS, STRINGS, PIECES)))
    if token[:1] == '"':
        if random.random() < 0.4 and len(token) > 2:
            at = random.randrange(1, len(token) - 1)
            return token[:at] + random.choice(["", "x", "\\u0061", "é", ".", "/", "\\"]) + token[at + 1 :]
        return random.choice(STRINGS)
    if token[:1].isdigit() or token[:1] == "-":
        if random.random() < 0.6 and token.isdigit() and len(token) < 19:
            return str(max(-1, int(token) + random.choice((-8, -4, -1, 1, 4, 8, int(token)))))
        return random.choice(NUMBERS)
    return random.choice(PIECES)


def raw(data: bytes, random: Random) -> bytes:
    """Change bytes, wherever they stand."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        at = random.randrange(len(out) + 1)
        what = random.random()
        if what < 0.35 and at < len(out):
            out[at] ^= 1 << random.randrange(8)
        elif what < 0.55 and at < len(out):
            out[at] = random.randrange(256)
        elif what < 0.7:
            out[at:at] = random.choice(BYTES)
        elif what < 0.8:
            del out[at : at + random.randrange(1, 9)]
        elif what < 0.9:
            to = random.randrange(len(out) + 1)
            out[to:to] = out[at : at + random.randrange(1, 33)]
        else:
            del out[random.randrange(len(out) + 1) :]
    return bytes(out)
