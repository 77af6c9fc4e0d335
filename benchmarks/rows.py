"""The rows of the table: what is converted, what it is held against, and the bound that DESIGN section 5 sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MAPS = Path(__file__).parent / "maps"
MIB = 1 << 20
INTERPRETER = 64 * MIB  # what a bound on memory grants beside --memory
MEMORY = 256 * MIB  # the default of --memory


@dataclass(frozen=True)
class Bound:
    """What must hold: seconds <= ``times`` x the yardstick + ``plus``; a peak; a factor over the script of today."""

    times: float = 0.0
    plus: float = 0.0
    peak: int = 0
    faster: float = 0.0

    def __str__(self) -> str:
        parts = []
        if self.times:
            parts.append(f"{self.times:g} x cp + {self.plus:g} s")
        elif self.plus:
            parts.append(f"{self.plus:g} s")
        if self.peak:
            parts.append(f"{self.peak // MIB} MiB")
        if self.faster:
            parts.append(f"{self.faster:g} x faster than the script")
        return ", ".join(parts)


@dataclass(frozen=True)
class Row:
    """One line: arguments of ``convert`` (``{in}`` and ``{out}`` are paths), and whom it meets.

    ``output``: what it writes is ``file``, ``folder`` or nothing; ``yardstick``: ``cp`` of the ``input``, or of a file of
    the size of the ``output``; ``peers``: ways of peers.py.
    """

    name: str
    title: str
    input: str
    arguments: tuple[str, ...]
    bound: Bound
    output: str = "file"
    yardstick: str = "input"
    peers: Sequence[str] = ()


def _map(name: str) -> str:
    return str(MAPS / f"{name}.yaml")


def _convert(map: str, *flags: str) -> tuple[str, ...]:
    return ("--quiet", "--map", map, *flags, "{in}", "{out}")


ANY = INTERPRETER + MEMORY
ROWS = (
    Row("help", "convert --help", "", ("--help",), Bound(plus=0.3), "", ""),
    Row("check", "convert check gpt2", "", ("check", "gpt2"), Bound(plus=0.3), "", ""),
    Row(
        "rename", "rename all of Qwen2.5-0.5B, 1 GB bfloat16", "qwen2", _convert(_map("rename")),
        Bound(1.1, 0.3, 80 * MIB), peers=("rename", "mergekit"),
    ),
    Row(
        "gpt2", "GPT-2 124M float32, 48 matrices transposed", "gpt2", _convert("gpt2"),
        Bound(1.5, 0.3, 300 * MIB, 3), peers=("gpt2", "transformers"),
    ),
    Row(
        "qwen2", "Qwen2.5-0.5B, 1 GB bfloat16 -> 2 GB float32, stacked", "qwen2", _convert("qwen2"),
        Bound(1.5, 0.3, ANY), yardstick="output", peers=("qwen2", "transformers"),
    ),
    Row(
        "qwen2-back", "the way back, 2 GB float32 -> 1 GB bfloat16", "qwen2<", _convert("qwen2", "--reverse"),
        Bound(1.5, 0.3, ANY),
    ),
    Row(
        "llama", "Llama 8 GB in shards -> fused qkv, one file", "llama", _convert("llama"), Bound(1.1, 0.3, ANY),
    ),
    Row(
        "llama-shards", "Llama 8 GB in shards -> fused qkv, shards of 2 GB", "llama",
        _convert("llama", "--max-shard-size", "2GB"), Bound(1.1, 0.3, ANY), "folder",
    ),
    Row(
        "experts", "60,000 tensors stacked by layer, gate and up joined", "experts", _convert(_map("experts")),
        Bound(1.5, 3, ANY),
    ),
    Row(
        "experts-rename", "60,000 tensors renamed", "experts", _convert(_map("experts_rename")), Bound(1.5, 3, ANY),
    ),
    Row(
        "experts-plan", "60,000 tensors stacked, --dry-run", "experts",
        ("--quiet", "--dry-run", "--map", _map("experts"), "{in}"), Bound(plus=3), "", "",
    ),
    Row(
        "rename-plan", "60,000 tensors renamed, --dry-run", "experts",
        ("--quiet", "--dry-run", "--map", _map("experts_rename"), "{in}"), Bound(plus=3), "", "",
    ),
    Row("matrix", "one matrix of 4 GB float32 transposed", "matrix", _convert(_map("matrix")), Bound(1.5, 0.3, ANY)),
    Row("half", "one matrix of 4 GB float32 -> bfloat16", "matrix", _convert(_map("half")), Bound(1.5, 0.3, ANY)),
)  # fmt: skip
