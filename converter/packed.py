"""Tensors whose elements are smaller than a byte: they move as bytes, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from converter.errors import MismatchError
from converter.layout import Dim, normalise
from converter.spec import DTYPES, nbytes
from converter.values import ScaleSource, Source
from converter.virtual import CONSTANT, Block, Virtual


def in_bytes(dtype: str, value: Virtual, sources: Sequence[Source]) -> tuple[str, Virtual, tuple[Source, ...]]:
    """Restate a value of a dtype of 4 or 6 bits, and its sources, as bytes (dtype ``U8``, one axis).

    Raises MismatchError where an offset, a stride or a run ends within a byte, and where the value is cast or computed.
    """
    bits = DTYPES[dtype].bits
    for block in value.blocks:
        other = sources[block.slot].dtype if block.slot != CONSTANT else dtype
        if other != dtype or block.chain or block.value:
            raise MismatchError(f"{other} cannot be cast or computed to {dtype}: its elements are smaller than a byte")
    try:
        blocks = tuple(_block_in_bytes(b, bits) for b in value.blocks)
        size = nbytes(dtype, value.shape)
    except ValueError:
        raise MismatchError(f"{dtype} elements are smaller than a byte and this op would cut them") from None
    used = {b.slot for b in blocks}
    raw = tuple(
        s._replace(dtype="U8", shape=(nbytes(dtype, s.shape),)) if i in used and not isinstance(s, ScaleSource) else s
        for i, s in enumerate(sources)
    )
    return "U8", Virtual((size,), blocks), raw


def _block_in_bytes(block: Block, bits: int) -> Block:
    def whole(elements: int) -> int:
        if elements * bits % 8:
            raise ValueError
        return elements * bits // 8

    *outer, inner = block.dims or ((1, 1, 1),)
    constant = block.slot == CONSTANT
    if inner[1] != 1 or (inner[2] != 1 and not constant):
        raise ValueError
    dims: list[Dim] = [(n, whole(ds), whole(ss)) for n, ds, ss in outer]
    dims.append((whole(inner[0]), 1, 0 if constant else 1))
    return block._replace(src=whole(block.src), dst=whole(block.dst), dims=normalise(dims))
