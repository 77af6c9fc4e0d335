"""What the user says beside map and input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Settings:
    """What the user says beside map and input.

    ``set`` and ``config`` are plain data, ``config_name`` is for messages; ``example`` are sizes that the map itself
    gives, which stand where nothing is set (a stub, a check); ``dtype`` is a safetensors name; ``tied``
    is `omit`, `copy` or None; ``unmatched`` is `error`, `drop`, `keep` or None (the map's `rest`).
    """

    set: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    config_name: str = "config.json"
    dtype: str | None = None
    untie: bool = False
    tied: str | None = None
    unmatched: str | None = None
    allow_overflow: bool = False
    example: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> Mapping[str, Any]:
        """What is set, or stands for it."""
        return {**self.example, **self.set}


def config_value(config: Mapping[str, Any], keys: Iterable[str]) -> tuple[str, Any] | None:
    """Find the first key that is present (dots go down into mappings), with its value."""
    for key in keys:
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None and key in config:
            value = config[key]
        if value is not None:
            return key, value
    return None
