"""Signals that ask the program to end: as an exception, and held back by steps that must not be cut."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

KINDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """One of these signals has come; no Exception, so that nothing takes it for an error to be dealt with."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number  # as a shell tells of a program that the signal ended


def leave_at_once() -> None:
    """Let these signals end the process quietly, with the exit code of Interrupted: it has done nothing yet."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        os._exit(128 + number)

    for kind in _heeded():
        signal.signal(kind, leave)


@contextmanager
def ending(restore: bool = True) -> Iterator[None]:
    """Raise Interrupted at the first of these signals and ignore those after it, since the first is being obeyed.

    Those that the process was started to ignore (``nohup``) it goes on ignoring. At the end the handlers are what they
    were, or, without ``restore``, all signals are ignored: there is nothing left to be interrupted.
    """
    obeyed: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not obeyed:
            obeyed.append(number)
            raise Interrupted(number)

    before = [(kind, signal.signal(kind, interrupt)) for kind in _heeded()]
    try:
        yield
    finally:
        if restore:
            _restore(before)
        else:
            too_late()


def too_late() -> None:
    """Ignore these signals from here on: what they would interrupt is done."""
    for kind in KINDS:
        signal.signal(kind, signal.SIG_IGN)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back these signals until a step that must not be cut in two is done.

    They are then handled as they would have been. In threads other than the main one, which get no signals, nothing
    changes.
    """
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)

    try:
        before = [(kind, signal.signal(kind, hold)) for kind in _heeded()]
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        _restore(before)
        for number in held:
            signal.raise_signal(number)


def _heeded() -> list[signal.Signals]:
    return [kind for kind in KINDS if signal.getsignal(kind) is not signal.SIG_IGN]


def _restore(before: Sequence[tuple[signal.Signals, Any]]) -> None:
    """Put handlers back, all of them, even if one is called at this very moment and raises."""
    if before:
        (kind, handler), *rest = before
        try:
            signal.signal(kind, handler if handler is not None else signal.SIG_DFL)
        finally:
            _restore(rest)
