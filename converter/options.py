"""Values of options that several commands take: sizes in bytes, and NAME=VALUE settings."""

from __future__ import annotations

import json
import re
from typing import Any

import click

from converter.errors import UsageError

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


class Size(click.ParamType[int]):
    """A number of bytes: 500B, 64MB, 2GiB."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the number and its unit."""
        m = re.fullmatch(r"(\d+(?:\.\d+)?) *([A-Za-z]*)", str(value))
        unit = _UNITS.get(m[2].upper()) if m else None
        if m is None or unit is None:
            self.fail(f"'{value}' is not a size (500B, 64MB, 2GiB)", param, ctx)
        number = int(float(m[1]) * unit)
        if number < 1:
            self.fail(f"'{value}' holds nothing", param, ctx)
        return number


def setting(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE: a whole number, true, false, a JSON list, or text; raises UsageError."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise UsageError(f"--set {text}: expected NAME=VALUE, as in --set n_layer=12")
    value = value.strip()
    if re.fullmatch(r"[-+]?\d{1,18}", value):
        return name.strip(), int(value)
    if re.fullmatch(r"[-+]?\d+", value):
        raise UsageError(f"--set {text}: the number is too large")
    if value in ("true", "false"):
        return name.strip(), value == "true"
    if value.startswith("["):
        try:
            return name.strip(), json.loads(value)
        except (ValueError, RecursionError):
            raise UsageError(f"--set {text}: not a JSON list") from None
    return name.strip(), value


def settings(texts: tuple[str, ...]) -> dict[str, Any]:
    """Read all --set options; raises UsageError for a name that is set twice."""
    out: dict[str, Any] = {}
    for name, value in map(setting, texts):
        if name in out:
            raise UsageError(f"--set {name} is given twice")
        out[name] = value
    return out
