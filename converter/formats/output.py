"""Write a checkpoint so that it appears whole or not at all.

Files are made beside the output under a temporary name, filled, synced to disk and renamed. Until :meth:`Output.commit`
returns, what was at the output is untouched; if it is never called, nothing is left.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from converter.formats.base import Descriptors, bad, faults, undisturbed
from converter.formats.shards import INDEX, Layout
from converter.formats.staging import Claim, allocate, claim, lock_folder, sync_folder, write_all
from converter.formats.swap import publish, recover
from converter.formats.target import Target, check_target
from converter.formats.text import show


class Output:
    """An output under construction, as a context manager: fill ``fds`` (any thread, any order), then :meth:`commit`.

    Entering raises what :func:`check_target` raises, UsageError if another process is writing the same output, and
    FormatError if there is too little free disk or the temporary cannot be made. Leaving without a commit removes it.
    ``inputs`` are the files that are being read; none of them is ever replaced, not even with ``force``.
    """

    def __init__(
        self, path: str | os.PathLike[str], layout: Layout, force: bool = False, inputs: Sequence[str] = ()
    ) -> None:
        self.path, self.layout = os.fspath(path), layout
        self._force, self._inputs = force, tuple(inputs)
        self._claim: Claim | None = None
        self._held: int | None = None
        self._paths: list[Path] = []
        self._files = Descriptors((), os.O_RDWR, "cannot be written")

    def __enter__(self) -> Output:
        self.target = self._check()
        try:
            with undisturbed():
                self._claim_target()
                check_space(self.target, self.layout.size)
                with faults(self.path, "cannot be written"):
                    for i, file in enumerate(self.layout.files):
                        self._start(i, file.header_bytes, file.size)
        except BaseException:
            self._discard()
            raise
        return self

    def _check(self) -> Target:
        return check_target(self.path, self.layout.directory, self._force, self._inputs)

    def _claim_target(self) -> None:
        """Lock the target and make the temporary; what killed runs left for this target goes."""
        target = self.target
        if target.directory and target.exists:
            self._held = lock_folder(target.path, self.path)
            if os.path.lexists(target.sibling):
                claim(target.sibling, True, self.path, lambda: recover(target.sibling, target.path)).release()
            self._claim = claim(target.within, True, self.path, lambda: recover(target.within, target.path))
        else:
            self._claim = claim(target.sibling, target.directory, self.path)
        self.target = self._check()  # another run may have come to its end since the first look
        if self.target.exists != target.exists:
            raise bad(self.path, "was made or removed by another program just now", "io")
        folder = self._claim.path
        self._paths = [folder / f.name for f in self.layout.files] if target.directory else [folder]
        self._files = Descriptors([str(p) for p in self._paths], os.O_RDWR, "cannot be written")

    def _start(self, i: int, header: bytes, size: int) -> None:
        """Make file ``i``, reserve its blocks and write its header; many files are not kept open."""
        if self.target.directory:
            os.close(os.open(self._paths[i], os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        fd = self.fd(i)
        allocate(fd, size)
        write_all(fd, header, 0)
        if len(self._paths) > 1:
            self._files.close(i)

    def fd(self, i: int) -> int:
        """Give a descriptor of file ``i`` of the layout, for reading and writing; offsets are those of the layout."""
        return self._files.get(i)

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors of all files, parallel to ``layout.files``."""
        return tuple(self.fd(i) for i in range(len(self._paths)))

    def finish(self, i: int) -> None:
        """Sync file ``i`` to disk and close it: optional, it keeps few files open and spreads the syncing."""
        with faults(self.path, "cannot be written"):
            os.fsync(self.fd(i))
            self._files.close(i)

    def commit(self) -> None:
        """Make everything durable and put it in place; raises FormatError, with what was there before untouched."""
        assert self._claim is not None
        if self.target.mode is not None and not self.target.directory:
            with suppress(OSError):  # a file system without modes has none to keep
                os.fchmod(self.fd(0), self.target.mode)
        for i in range(len(self._paths)):
            self.finish(i)
        with undisturbed(), faults(self.path, "cannot be written"):
            if self.target.directory:
                self._publish(self._claim.path)
            else:
                self._check_still_free()
                self._claim.path.replace(self.target.path)
            sync_folder(self.target.path.parent)
        self._discard()

    def _publish(self, staging: Path) -> None:
        """Write the index and move the whole set."""
        target, index = self.target, self.layout.index
        names = [f.name for f in self.layout.files]
        if index is not None:
            names.append(INDEX)
            fd = os.open(staging / INDEX, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                write_all(fd, index, 0)
                os.fsync(fd)
            finally:
                os.close(fd)
        sync_folder(staging)
        publish(staging, target.path, target.sibling, names, target.old)

    def _check_still_free(self) -> None:
        if not (self._force or self.target.exists) and os.path.lexists(self.target.path):
            raise bad(self.path, "was made by another program in the meantime, it is left as it is", "io")

    def _discard(self) -> None:
        with undisturbed():
            self._files.close()
            if self._claim is not None:
                held, self._claim = self._claim, None
                held.release(*((self.target.sibling,) if self.target.directory else ()))
            if self._held is not None:
                os.close(self._held)
                self._held = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._discard()


def check_space(target: Target, needed: int) -> None:
    """Refuse an output of so many bytes where they are not free; raises FormatError."""
    folder = target.path if target.directory and target.exists else target.path.parent
    with faults(target.shown, "cannot be written"):
        disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and free < needed:  # some network file systems say nothing
        message = f"too little free disk: {needed} bytes are needed, {free} are free in {show(str(folder))}"
        raise bad(target.shown, message, "disk")
