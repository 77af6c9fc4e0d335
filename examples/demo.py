"""The main job from end to end, on a GPT-2 that is invented from its map: no download, no torch.

Run by `make demo`, or by hand where the package is installed: python examples/demo.py
"""

import json
import mmap
import shlex
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

GPT2 = "--set n_layer=12 --set d=192 --set vocab=50257 --set ctx=1024"


def main() -> int:
    """Play the session in a temporary folder and say at the end whether all went as it should."""
    with tempfile.TemporaryDirectory(prefix="convert-demo-") as name:
        folder = Path(name)
        say("A GPT-2 stub of 12 layers and d_model 192, with the real vocabulary, from the map alone.")
        convert(folder, f"stub --map gpt2 {GPT2} in.safetensors")

        say("The plan. It is made from the header; nothing is written.")
        convert(folder, "--map gpt2 --dry-run in.safetensors out.safetensors")

        say("The conversion, read back and proved.")
        convert(folder, "--map gpt2 --verify in.safetensors out.safetensors")

        say("The way back, by the same map.")
        convert(folder, "--map gpt2 --reverse out.safetensors back.safetensors")

        say("Compared with what we began with.")
        alike = compare(folder / "in.safetensors", folder / "back.safetensors")

        say("A bad tensor: the same bytes, but the header says another shape. Refused before anything is written.")
        reshape(folder / "in.safetensors", folder / "bad.safetensors", "h.3.attn.c_attn.weight", [288, 384])
        convert(folder, "--map gpt2 bad.safetensors never.safetensors", expect=1)
        clean = not list(folder.glob("*never*"))
        print(f"never.safetensors is {'not there' if clean else 'there, and should not be'}.")
    return 0 if alike and clean else 1


def say(text: str) -> None:
    print(f"\n# {text}", flush=True)


def convert(folder: Path, arguments: str, expect: int = 0) -> None:
    """Show a command as a user types it, run it, and stop the demo if its exit code is another than expected."""
    print(f"$ convert {arguments}", flush=True)
    code = subprocess.run([sys.executable, "-m", "converter", *shlex.split(arguments)], cwd=folder).returncode
    if code != expect:
        sys.exit(f"demo: exit code {code}, expected {expect}")
    if code:
        print(f"(exit code {code})")


def header(path: Path) -> tuple[dict[str, dict], int]:
    """Read the header of a safetensors file, without the package; give it and where the data begin."""
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        return json.loads(f.read(length)), 8 + length


def compare(a: Path, b: Path) -> bool:
    """Compare two files tensor for tensor and say what was found."""
    (left, left_data), (right, right_data) = header(a), header(b)
    before, after = left.pop("__metadata__", {}), right.pop("__metadata__", {})
    differing = sorted(left.keys() ^ right.keys())
    with open(a, "rb") as f, open(b, "rb") as g:
        x = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        y = mmap.mmap(g.fileno(), 0, access=mmap.ACCESS_READ)
        for name in left.keys() & right.keys():
            (i, j), (k, m) = left[name]["data_offsets"], right[name]["data_offsets"]
            same_kind = all(left[name][key] == right[name][key] for key in ("dtype", "shape"))
            same_bytes = x[left_data + i : left_data + j] == y[right_data + k : right_data + m]
            if not (same_kind and same_bytes):
                differing.append(name)
        data_alike = x[left_data:] == y[right_data:]
    if differing or not data_alike:
        print(f"{len(differing)} tensors differ: {', '.join(differing)}")
        return False
    print(f"{len(left)} tensors: every name, dtype and shape is the same.")
    print(f"{a.stat().st_size - left_data} bytes of data: every byte is the same, in the same order.")
    for key in sorted(after.keys() - before.keys()):
        print(f"The metadata have gained an entry, {key}: {after[key]} (how the format records a tied tensor).")
    return True


def reshape(source: Path, target: Path, name: str, shape: list[int]) -> None:
    """Copy a file with another shape for one tensor in its header."""
    entries, start = header(source)
    entries[name]["shape"] = shape
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(struct.pack("<Q", len(text)) + text + source.read_bytes()[start:])


if __name__ == "__main__":
    sys.exit(main())
