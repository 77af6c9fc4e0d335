"""Write a checkpoint so that it appears whole or not at all.

Files are made beside the output under a temporary name, filled, synced to disk and renamed. Until :meth:`Output.commit`
returns, what was at the output is untouched; if it is never called, nothing is left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from converter.formats.base import Descriptors, bad, faults
from converter.formats.shards import INDEX, Layout
from converter.formats.staging import Claim, allocate, claim, lock_folder, make_file, sync_folder, write_all
from converter.formats.swap import publish, recover, unfinished
from converter.formats.target import Target, check_target
from converter.formats.text import show
from converter.signals import undisturbed


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
        self.committed = False
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
                    self._start_index()
            return self
        except BaseException:
            self._discard()
            raise

    def _check(self) -> Target:
        return check_target(self.path, self.layout.directory, self._force, self._inputs)

    def _claim_target(self) -> None:
        """Lock the target and make the temporary; what killed runs left for this target goes."""
        target = self.target
        if target.directory and target.exists:
            self._held = lock_folder(target.path, self.path)
            if os.path.lexists(target.sibling):
                left = claim(target.sibling, True, self.path, lambda: recover(target.sibling, target.path))
                left.release([target.sibling])
            self._claim = claim(target.within, True, self.path, lambda: recover(target.within, target.path))
        else:
            self._claim = claim(target.sibling, target.directory, self.path)
        self.target = self._check()  # another run may have come to its end since the first look
        if self.target.exists != target.exists:
            raise bad(self.path, "was made or removed by another program just now", "io")
        folder = self._claim.path
        names = [*(f.name for f in self.layout.files), *([INDEX] if self.layout.index is not None else [])]
        self._paths = [folder / name for name in names] if target.directory else [folder]
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

    def _start_index(self) -> None:
        if self.layout.index is not None:
            make_file(self._paths[-1], self.layout.index)

    def fd(self, i: int) -> int:
        """Give a descriptor of file ``i`` of the layout, for reading and writing; offsets are those of the layout.

        The index, if there is one, comes after these files.
        """
        return self._files.get(i)

    def name(self, i: int) -> str:
        """Name file ``i`` as it will be: by the path that was asked for."""
        return str(Path(self.path) / self._paths[i].name) if self.target.directory else self.path

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors of all files, parallel to ``layout.files``."""
        return tuple(self.fd(i) for i in range(len(self.layout.files)))

    def finish(self, i: int) -> None:
        """Sync file ``i`` to disk and close it: optional, it keeps few files open and spreads the syncing."""
        with faults(self.path, "cannot be written"):
            os.fsync(self.fd(i))
            self._files.close(i)

    def settle(self) -> None:
        """Sync all files and let the system forget them, so that what is read next comes from the disk."""
        for i in range(len(self._paths)):
            with faults(self.path, "cannot be written"):
                os.fsync(self.fd(i))
            if hasattr(os, "posix_fadvise"):
                with suppress(OSError):
                    os.posix_fadvise(self.fd(i), 0, 0, os.POSIX_FADV_DONTNEED)

    def commit(self) -> None:
        """Make everything durable and put it in place; raises FormatError, with what was there before untouched.

        ``committed`` tells, also if this is interrupted, whether the output is in place.
        """
        assert self._claim is not None
        if self.target.mode is not None and not self.target.directory:
            with suppress(OSError):  # a file system without modes has none to keep
                os.fchmod(self.fd(0), self.target.mode)
        for i in range(len(self._paths)):
            self.finish(i)
        with undisturbed(), faults(self.path, "cannot be written"):
            clear = None
            if self.target.directory:
                clear = self._publish(self._claim.path)
            else:
                self._check_still_free()
                self._claim.path.replace(self.target.path)
            self.committed = True
            with faults(self.path, "is in place, but its folder could not be synced to disk"):
                sync_folder(self.target.path.parent)
            if clear is not None:
                clear()
        self._discard()

    def _publish(self, staging: Path) -> Callable[[], None] | None:
        """Move the whole set; returns how to remove the old one."""
        target = self.target
        sync_folder(staging)
        return publish(staging, target.path, target.sibling, [p.name for p in self._paths], target.old)

    def _check_still_free(self) -> None:
        if not (self._force or self.target.exists) and os.path.lexists(self.target.path):
            raise bad(self.path, "was made by another program in the meantime, it is left as it is", "io")

    def _discard(self) -> None:
        with undisturbed():
            self._files.close()
            if self._claim is not None:
                held, self._claim = self._claim, None
                places = {held.path, self.target.sibling} if self.target.directory else {held.path}
                # Files of an old set that could not be put back wait there for the next run.
                waiting = self.target.directory and any(unfinished(p, self.target.path).taken for p in places)
                held.release(() if waiting and not self.committed else places)
            if self._held is not None:
                os.close(self._held)
                self._held = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._discard()
        except BaseException:  # an interrupt before it had begun
            self._discard()
            raise


def check_space(target: Target, needed: int) -> None:
    """Refuse an output of so many bytes where they are not free; raises FormatError."""
    folder = target.path if target.directory and target.exists else target.path.parent
    with faults(target.shown, "cannot be written"):
        disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and free < needed:  # some network file systems say nothing
        message = f"too little free disk: {needed} bytes are needed, {free} are free in {show(str(folder))}"
        raise bad(target.shown, message, "disk")
