"""What the cases share: an input of any kind is converted, and gives exactly these tensors or leaves everything as it was."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab import Lab, Result, Tensors, read, same, write

import converter

KEEP = "rest: keep\nrules: []\n"  # every name is kept
PRECIOUS = b"what was there before"
LINES, WIDTH = 12, 250  # a message that is longer is not read
Source = Mapping[str, np.ndarray] | bytes | Path


def f32(*values: Any) -> np.ndarray:
    """A float32 tensor: numbers make a vector, lists make its rows."""
    return np.array(values, "<f4")


def column(*values: float) -> np.ndarray:
    """A float32 matrix of one column."""
    return f32(*values).reshape(-1, 1)


def raw(dtype: Any, hexadecimal: str, *shape: int) -> np.ndarray:
    """A tensor of exactly these bytes."""
    return np.frombuffer(bytes.fromhex(hexadecimal), dtype).reshape(shape)


def state(folder: Path) -> dict[str, Any]:
    """All that is in a folder: bytes, or size and time of what is large, and where links lead."""
    out: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        key = str(path.relative_to(folder))
        about = path.lstat()
        if path.is_symlink():
            out[key] = path.readlink()
        elif path.is_dir():
            out[key] = "folder"
        else:
            out[key] = path.read_bytes() if about.st_size < 1 << 20 else (about.st_size, about.st_mtime_ns)
    return out


def readable(text: str) -> None:
    """What a person can take in, and nothing of the inside of the program."""
    lines = text.splitlines()
    assert lines
    assert text.endswith("\n")
    assert len(lines) <= LINES, text
    assert max(map(len, lines)) <= WIDTH, text
    assert not [word for word in ("Traceback", "Error(", "<converter.", "object at 0x") if word in text], text


class Case(Lab):
    """A laboratory for one case. The texts of its refusals are kept, to be held against its golden file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.texts: list[str] = []

    def put(self, source: Source) -> Path:
        """Write the input, unless it is a file already."""
        if isinstance(source, Path):
            return source
        if isinstance(source, bytes):
            self.source.write_bytes(source)
            return self.source
        return write(self.source, source)

    def saved(self, value: Any, name: str = "in.pt", **options: Any) -> Path:
        """What torch saves."""
        import torch

        torch.save(value, self / name, **options)
        return self / name

    def converts(self, text: str, source: Source, *flags: Any, output: Path | None = None) -> Result:
        """The conversion succeeds; the output is new."""
        out = output or self.output
        if out.is_file():
            out.unlink()
        r = self.run("--map", self.map(text), *flags, self.put(source), out)
        assert r.code == 0, r.err
        assert not [p.name for p in self.folder.rglob("*tmp*")]
        return r

    def gives(self, text: str, source: Source, want: Tensors, *flags: Any) -> Result:
        """The conversion succeeds with exactly these tensors."""
        r = self.converts(text, source, *flags)
        same(read(self.output), want)
        return r

    def refused(
        self,
        text: str,
        source: Source,
        code: int,
        *says: str,
        flags: tuple[Any, ...] = (),
        data: bool = False,
        output: Path | None = None,
    ) -> str:
        """The conversion is refused with this code and one message that says all that, and leaves no trace.

        ``data``: only the data show it, so that a dry run does not. Gives the message.
        """
        given, made, out = self.put(source), self.map(text), output or self.output
        if out.is_file():
            out.unlink()
        command = ("--map", made, *flags, given, out)
        before = state(self.folder)
        r = self.run(*command)
        self.texts.append(f"exit code {r.code}\n{r.err}")
        assert r.code == code, (r.code, r.err)
        assert r.out == ""
        readable(r.err)
        assert not [s for s in says if s not in r.err], r.err
        assert state(self.folder) == before, "something was left behind"
        dry = self.run(*command, "--dry-run")
        assert dry.code == (0 if data else code), dry.err
        assert data or dry.err == r.err
        assert state(self.folder) == before, "a dry run wrote something"
        self._spares(command, r, out)
        return r.err

    def _spares(self, command: tuple[Any, ...], first: Result, out: Path) -> None:
        """The same refusal leaves an output that exists as it was, even where it may be replaced."""
        if out.exists():  # a folder that the case filled itself
            return
        if "--max-shard-size" in command:
            out.mkdir()
            (out / "model.safetensors").write_bytes(PRECIOUS)
        else:
            out.write_bytes(PRECIOUS)
        before = state(self.folder)
        again = self.run(*command, "--force")
        assert (again.code, again.err) == (first.code, first.err)
        assert state(self.folder) == before, "the existing output was touched"

    def load(self, model: Any, source: Source, text: str = KEEP, **options: Any) -> Any:
        """Load a checkpoint into a live model."""
        return converter.load(model, self.put(source), map=self.map(text), **options)

    def load_refused(self, model: Any, source: Source, *says: str, text: str = KEEP, **options: Any) -> Any:
        """Loading raises an error that says all that, and the model stays as it was. Gives the report."""
        import torch

        values = {k: v if v.is_meta else v.clone() for k, v in model.state_dict().items()}
        held = dict(model.named_parameters(remove_duplicate=False))
        with pytest.raises(converter.ConvertError) as e:
            self.load(model, source, text, **options)
        said = self.clean(str(e.value)) + "\n"
        self.texts.append(f"ConvertError\n{said}")
        readable(said)
        assert not [s for s in says if s not in said], said
        now = model.state_dict()
        assert now.keys() == values.keys()
        assert all(v.is_meta if x.is_meta else torch.equal(v, x) for (k, x), v in zip(values.items(), now.values()))
        after = dict(model.named_parameters(remove_duplicate=False))
        assert all(after[k] is v for k, v in held.items())
        return e.value.report


@contextmanager
def kept_golden(case: Case, golden: Path, update: bool) -> Iterator[Case]:
    """Hold what a case was refused with against its golden file."""
    yield case
    text = "\n".join(case.texts)
    if update and text:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert golden.exists() == bool(text), f"UPDATE_GOLDEN=1 writes {golden.name}"
    assert not text or text == golden.read_text()
