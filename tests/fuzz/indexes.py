"""Index files: what is read stays inside the folder, and each tensor comes from the file that the index names."""

import json
import struct
import zlib
from pathlib import Path
from random import Random

from converter.errors import ConvertError
from converter.formats import open_checkpoint
from fuzz import mutate
from fuzz.guard import Find, Guard, shape_of
from fuzz.lexicon import NUMBERS, PIECES, STRINGS

SHARDS = {
    "a.safetensors": ["x", "y", "h.0.w"],
    "b.safetensors": ["z", "x", "é"],
    "sub/c.safetensors": ["u", "h.1.w"],
    "model-00001-of-00002.safetensors": ["v"],
}
_FILES = [
    *SHARDS, "../secret.safetensors", "./a.safetensors", "sub/../a.safetensors", "sub//c.safetensors", "", ".", "..", "/",
    "/dev/zero", "/etc/passwd", "a.safetensors\0", "A.SAFETENSORS", "C:\\x", "c:a.safetensors", "sub\\c.safetensors",
    "sub", "sub/", "a.safetensors/", "a.safetensors/x", "~/x", "file:///a", "…", "n" * 300, "in.safetensors.index.json",
    "%2e%2e/secret.safetensors", "..\u2044secret.safetensors", "not-there.safetensors", "pipe", "\n", "a.safetensors ",
]  # fmt: skip
_TENSORS = ["x", "y", "z", "u", "v", "h.0.w", "h.1.w", "é", "", "__metadata__", "not-there", "\n", "x" * 200]


def generate(random: Random) -> bytes:
    """Make an index: mostly names that are there, with a slip here and there."""
    lines = []
    for name in random.sample(_TENSORS, random.choice((0, 1, 2, 4))):
        file = next((f for f, held in SHARDS.items() if name in held), "a.safetensors")
        if random.random() < 0.15:
            file = random.choice(_FILES)
        lines.append(f"{_quoted(name, random)}: {_quoted(file, random)}")
    if lines and random.random() < 0.1:
        lines.append(random.choice(lines))
    if random.random() < 0.1:
        lines.append(f'"k": {random.choice(random.choice((NUMBERS, STRINGS, PIECES)))}')
    weight_map = "{" + ", ".join(lines) + "}"
    about = random.choice(
        ['{"total_size": 24}', "{}", "null", "[]", f'{{"total_size": {random.choice(NUMBERS)}}}', random.choice(PIECES)]
    )
    parts = [f'"metadata": {about}', f'"weight_map": {weight_map}']
    if random.random() < 0.1:
        parts.append(random.choice(parts))
    if random.random() < 0.1:
        del parts[random.randrange(len(parts))]
    text = "{" + ", ".join(parts) + "}" + random.choice(("",) * 12 + ("\n", " ", "\0", "x"))
    return (random.choice(("",) * 20 + ("\n ", "\ufeff")) + text).encode("utf-8", "surrogatepass")


def _quoted(text: str, random: Random) -> str:
    return json.dumps(text, ensure_ascii=random.random() < 0.5)


def mutate_(data: bytes, random: Random) -> bytes:
    """Change tokens, or bytes."""
    if random.random() < 0.15:
        return mutate.raw(data, random)
    return mutate.tokens(data.decode("utf-8", "surrogateescape"), random).encode("utf-8", "surrogateescape")


def plain(names: list[str]) -> bytes:
    """A small safetensors file: two bytes for each name."""
    entries = {n: {"dtype": "U8", "shape": [2], "data_offsets": [2 * k, 2 * k + 2]} for k, n in enumerate(names)}
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + bytes(2 * len(names))


class Indexes:
    """The properties of an index."""

    name = "indexes"
    generate = staticmethod(generate)
    mutate = staticmethod(mutate_)

    def __init__(self, guard: Guard, folder: Path) -> None:
        inside = folder / "in"
        (inside / "sub").mkdir(parents=True, exist_ok=True)
        (folder / "secret.safetensors").write_bytes(plain(["x", "y", "z"]))
        for file, names in SHARDS.items():
            (inside / file).write_bytes(plain(names))
        self.guard, self.folder = guard, str(inside)
        self.path = str(inside / "in.safetensors.index.json")

    def check(self, data: bytes) -> str:
        """Open a checkpoint by an index; gives what came of it. Raises Find."""
        with open(self.path, "wb") as f:
            f.write(data)
        sample = zlib.crc32(data)
        given = self.folder if sample % 2 else self.path
        ours, said = None, ""
        with self.guard.watch(len(data), (self.folder,), memory=sample % 64 == 0):
            try:
                with open_checkpoint(given) as ours:
                    fds = ours.fds
            except ConvertError as e:
                said = str(e)
        if ours is None:
            for line in said.split("\n"):
                if not line.isprintable() or len(line) > 600 or not line.startswith(self.folder):
                    raise Find(f"a line of its message is not fit to be shown: {line[:200]!r}")
            return shape_of(said.split("\n")[0].removeprefix(self.path))
        stated = json.loads(data.decode())["weight_map"]
        found = {e.name: ours.name(e.file).removeprefix(f"{self.folder}/") for e in ours.header.tensors.values()}
        if found != stated or len(fds) != len(set(stated.values())):
            raise Find(f"{found} was read, the index says {stated}")
        return f"read: {len(found)} {bool(ours.header.notes)}"
