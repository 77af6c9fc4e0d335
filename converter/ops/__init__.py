"""The ops of the map language, each in one file, listed once."""

from __future__ import annotations

from typing import Any

from converter.dims import SizeError
from converter.folding import closest
from converter.ops.add import Add
from converter.ops.base import Op, OpContext, OpError
from converter.ops.concat import Concat
from converter.ops.dequantize import Dequantize
from converter.ops.exp import Exp
from converter.ops.log import Log
from converter.ops.multiply import Multiply
from converter.ops.order import Order
from converter.ops.pad import Pad
from converter.ops.quantize import Quantize
from converter.ops.rearrange import Rearrange
from converter.ops.replicate import Replicate
from converter.ops.same import Same
from converter.ops.split import Split
from converter.ops.stack import Stack
from converter.ops.transpose import Transpose
from converter.ops.trim import Trim
from converter.ops.unstack import Unstack

OPS: tuple[type[Op], ...] = (
    Transpose,
    Rearrange,
    Concat,
    Split,
    Stack,
    Unstack,
    Add,
    Multiply,
    Exp,
    Log,
    Pad,
    Trim,
    Replicate,
    Same,
    Order,
    Dequantize,
    Quantize,
)

_BY_WORD: dict[str, type[Op]] = {op.word: op for op in OPS if op is not Rearrange}


def parse_op(value: Any, context: OpContext) -> Op:
    """Read one op as YAML gives it: a bare word, a pattern with `->`, or a mapping of one key; raises OpError."""
    if isinstance(value, str) and "->" in value:
        return Rearrange.parse(value, context)
    if isinstance(value, dict):
        if len(value) != 1:
            raise OpError(f"an item of ops is one op, this one has {len(value)} keys ({', '.join(map(str, value))})")
        ((word, argument),) = value.items()
        if argument is None and word in _BY_WORD:
            raise OpError(
                f"{word} has nothing after its colon" + (f": write {word} alone" if _BY_WORD[word].bare else "")
            )
    else:
        word, argument = value, None
    op = _BY_WORD.get(word) if isinstance(word, str) else None
    if op is None:
        near = closest(str(word), _BY_WORD)
        raise OpError(
            f"unknown op '{word}'" + (f" (did you mean {near}?)" if near else f" (ops: {', '.join(_BY_WORD)})")
        )
    if argument is None and not op.bare:
        raise OpError(f"{word} needs an argument")
    try:
        return op.parse(argument, context)
    except SizeError as e:
        text = str(e)
        raise OpError(text if text.startswith(op.word) else f"{op.word}: {text}") from None


__all__ = ["OPS", "Op", "OpContext", "OpError", "parse_op"]
