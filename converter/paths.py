"""Paths that a file of a stranger names: plain, relative, and never out of the folder of that file."""

from __future__ import annotations

import re


def path_fault(path: str, owner: str) -> str | None:
    """Say why a path that stands in ``owner`` (an index, a map) is refused; plain relative ones are not."""
    if "\0" in path:
        return "a NUL is not part of a file name"
    if "\\" in path or re.match("[A-Za-z]:", path):
        return "backslashes and drive letters are refused"
    if path.startswith("/"):
        return "an absolute path is refused"
    if ".." in path.split("/"):
        return f"a path that leaves the folder of the {owner} is refused"
    if not {"", "."}.isdisjoint(path.split("/")):
        return "not a plain file name"
    return None
