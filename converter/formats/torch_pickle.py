"""Know a torch pickle when it is met. Reading one is not built yet, and is refused in words."""

from __future__ import annotations

from dataclasses import dataclass

from converter.formats.base import HEAD, bad, foreign, open_regular, read_exactly
from converter.spec import Header

_NOT_YET = "torch pickles are not read yet by this version; save the weights as safetensors"


@dataclass(frozen=True)
class TorchPickle:
    """What ``torch.save`` writes: a zip archive, or a bare pickle (:class:`converter.formats.base.Format`)."""

    name: str = "torch pickle"
    suffixes: tuple[str, ...] = (".bin", ".pt", ".pth", ".ckpt")
    index_suffix: str = ".bin.index.json"

    def claims(self, head: bytes) -> bool:
        """Tell whether a file begins as a zip archive or a pickle of protocol 2 or later."""
        return head.startswith(b"PK\x03\x04") or (head[:1] == b"\x80" and b"\x02" <= head[1:2] <= b"\x05")

    def read_header(self, path: str, root: str | None = None) -> Header:
        """Refuse the file; raises FormatError that says what it is."""
        with open_regular(path) as (fd, found):
            head = read_exactly(path, fd, min(HEAD, found.st_size), 0)
        words = None if self.claims(head) else foreign(head)
        raise bad(path, words or _NOT_YET)


TORCH_PICKLE = TorchPickle()
