"""Files whose bytes are not those of their tensors: another byte order, or signs that are to be turned when read."""

from __future__ import annotations

from converter.transfer import read_file


class Decoded:
    """A file that is decoded as it is read (:class:`converter.transfer.Bytes`).

    ``how``: ``swap2``, ``swap4``, ``swap8`` (big-endian elements of that size), ``conj`` (the imaginary parts of
    complex64 change their sign), ``neg2``, ``neg4``, ``neg8`` (floats of that size change their sign). Ranges are
    those of whole elements.
    """

    def __init__(self, fd: int, how: str) -> None:
        self.fd, self.how = fd, how

    def read(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with decoded bytes."""
        if read_file(self.fd, buffer, offset) < len(buffer):
            raise EOFError
        import numpy as np

        size = 4 if self.how == "conj" else int(self.how[-1])
        words = np.frombuffer(buffer, f"<u{size}")
        if self.how.startswith("swap"):
            words.byteswap(inplace=True)
        else:
            turned = words[1::2] if self.how == "conj" else words
            turned ^= np.array(1 << (8 * size - 1), words.dtype)

    def write(self, buffer: memoryview, offset: int) -> None:
        """Nothing is ever written in this way."""
        raise NotImplementedError
