"""Checkpoint formats: bytes in files, never what they mean. A format is one file here and one entry of ``FORMATS``."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

from converter.formats.base import Checkpoint, Format
from converter.formats.index import read_index, read_shards
from converter.formats.locate import find, strays
from converter.formats.output import Output, check_space
from converter.formats.ranks import files_of, folder_of, has_holes, join
from converter.formats.safetensors import SAFETENSORS, read_header
from converter.formats.shards import FileLayout, Layout, layout
from converter.formats.target import Target, check_target
from converter.formats.text import many_objects
from converter.formats.torch_pickle import TORCH_PICKLE

FORMATS: tuple[Format, ...] = (SAFETENSORS, TORCH_PICKLE)  # the first is the one that is also written

__all__ = [
    "FORMATS",
    "Checkpoint",
    "FileLayout",
    "Format",
    "Layout",
    "Output",
    "Target",
    "check_space",
    "check_target",
    "folder_of",
    "layout",
    "open_checkpoint",
    "read_header",
]


def open_checkpoint(path: str | os.PathLike[str], root: str | None = None) -> Checkpoint:
    """Open a checkpoint: a file, a folder that holds an index or one file, an index, or several by a path with holes.

    ``root`` says which state dict of a wrapped pickle is meant. Only headers are read. Raises FormatError (missing,
    malformed or ambiguous) and UsageError (one shard of several).
    """
    with many_objects():
        return _open(os.fspath(path), root)


def _open(given: str, root: str | None) -> Checkpoint:
    if has_holes(given):
        ranks = [(numbers, _open(path, root)) for numbers, path in files_of(given)]
        header = join([(numbers, c.header) for numbers, c in ranks])
        return Checkpoint(given, header, ranks[0][1].format, str(folder_of(given)), root)
    source = find(given, FORMATS)
    if source.is_index:
        index = read_index(source.path)
        header = read_shards(index, partial(source.format.read_header, root=root))
        notes = strays(index.folder, index.files, FORMATS)
    else:
        header, notes = source.format.read_header(source.path, root), ()
    header = replace(header, notes=(*source.notes, *notes, *header.notes))
    return Checkpoint(given, header, source.format.name, str(folder_of(given)), root)
