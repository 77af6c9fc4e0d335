"""Hostile files: what was found once is tried again, some new inputs with it, and the fuzzer sees faults that are put in."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from fuzz.headers import EXTRA
from fuzz.pickles import LAXER

from converter.errors import FormatError
from converter.formats import open_checkpoint

TESTS = Path(__file__).parent
CORPUS = TESTS / "fuzz/corpus"
FORMATS = (TESTS.parent / "docs/formats.md").read_text()
RUNS = {"headers": 1500, "indexes": 800, "maps": 250, "pickles": 500}


def fuzz(kind, runs, *flags, before=""):
    """Run the command for one kind in a process of its own (a hook that watches stays for good)."""
    program = "import sys; sys.path[:0] = [sys.argv.pop(1)]\n" + textwrap.dedent(before)
    program += "\nfrom fuzz.__main__ import main\nsys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, str(TESTS), kind, "--engine", "plain", "--runs", str(runs), *flags],
        cwd=TESTS, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("kind", RUNS)
def test_what_was_found_and_what_is_new(kind):
    if kind == "pickles":
        pytest.importorskip("torch")
    r = fuzz(kind, RUNS[kind])
    assert r.returncode == 0, r.stdout + r.stderr
    tried = len(list((CORPUS / kind).iterdir()))
    assert tried > 3
    assert r.stdout.splitlines()[-1].startswith(f"{kind}: {max(RUNS[kind], tried)} executions in ")
    assert r.stdout.endswith(", 0 finds\n")


SAYS = {
    "headers/a-tensor-of-nothing-beyond-63-bits": "a: shape [9223372036854775808, 0] is too large: its elements cannot be counted in 63 bits",
    "headers/an-end-of-seven-hundred-digits": ", beyond 63 bits",
    "headers/dtype-as-an-object": "a: unknown dtype {'F32': null}",
    "headers/entry-as-a-list": "a: its entry is ['F32', [1], [0, 4]], not an object",
    "headers/integer-beyond-float64": "a: unknown field 'x' is a number beyond the range of float64",
    "headers/name-twice-by-escape": "duplicate name a in the header",
    "headers/number-beyond-float64": "a: unknown field 'x' is a number beyond the range of float64",
    "headers/pickle-magic-as-length": "is a pickle, not a safetensors file",
    "headers/unknown-field-twice": "duplicate name x in the header",
    "pickles/a-byte-order-that-is-none": "has an unknown byte order: littl",
    "pickles/a-call-with-a-key-whose-hash-has-no-end": "key (((...), (...)), ((...), (...))) is not text",
    "pickles/a-deep-call": "is no sound pickle",
    "pickles/a-flag-that-is-no-bool": "has a tensor with flags of an unknown kind",
    "pickles/a-key-of-thousands-of-digits": "key an integer of 32767 bits is not text",
    "pickles/a-key-whose-hash-has-no-end": "key (((...), (...)), ((...), (...))) is not text",
    "pickles/a-record-beyond-the-file": "damaged zip archive: the record r/version is not where it should be",
    "pickles/a-record-of-another-folder": "is no sound archive of torch.save: x/data/0 is not in its folder",
    "pickles/a-record-twice": "the record r/data/0 stands in it twice: which one counts depends on the reader",
    "pickles/a-shape-of-thousands-of-digits": "is too large: its elements",
    "pickles/a-shape-that-is-a-list": "has a tensor whose shape and strides are no tuples",
    "pickles/a-storage-beside-the-root-that-is-missing": "has no record data/9, which its pickle refers to",
    "pickles/a-tuple-whose-text-has-no-end": "refers to (((...), (...)), ((...), (...))), which is no storage",
    "pickles/a-version-that-is-no-number": "is no sound archive of torch.save: it has no version, or one that is no number",
    "pickles/an-end-that-counts-more": "truncated or damaged zip archive: its end does not fit its directory",
    "pickles/dicts-copied-again-and-again": "copies its items again and again",
    "pickles/legacy-a-storage-that-is-not-listed": "is no sound pickle of torch.save",
    "pickles/legacy-a-version-that-is-not-known": "is a pickle of torch.save in a version that is not known: 1000",
    "pickles/legacy-keys-without-a-hash": "is no sound pickle of torch.save",
    "pickles/metadata-that-is-no-dict": "has a tensor with flags of an unknown kind",
    "pickles/no-version": "is no sound archive of torch.save: it has no version, or one that is no number",
    "pickles/root-with-a-newline": "holds several things: a\\nb, c; these look like state dicts: a\\nb (1 tensor); say which one: --root a\\nb",
    "pickles/too-many-arguments": "has a tensor that is made in a way that torch does not have",
}


@pytest.mark.parametrize("name", SAYS)
def test_what_was_found_is_refused_with_its_reason(name, tmp_path):
    path = tmp_path / f"in.{'pt' if name.startswith('pickles') else 'safetensors'}"
    path.write_bytes((CORPUS / name).read_bytes())
    with pytest.raises(FormatError) as e:
        open_checkpoint(path)
    assert SAYS[name] in str(e.value)


FAULTS = {
    "a hole that is not seen": (
        "headers",
        "import converter.formats.safetensors as s; s._check_cover = lambda *a: None",
        "read, though the library refuses it",
    ),
    "a refusal that is not listed": (
        "headers",
        "import converter.formats.safetensors as s; del s._BITS['F32']",
        "for no reason that is listed",
    ),
    "bytes of another place": (
        "headers",
        """
        import converter.formats.safetensors as s
        from converter.spec import TensorEntry as T
        s.TensorEntry = lambda n, d, s, f, a, b: T(n, d, s[::-1], f, a, b)
        """,
        "the library has",
    ),
    "an exception of another kind": (
        "headers",
        "import converter.formats.safetensors as s; s._elements = lambda shape: None",
        "TypeError",
    ),
    "memory": (
        "headers",
        """
        import converter.formats.safetensors as s
        old = s._metadata
        s._metadata = lambda *a: (bytearray(1 << 25), old(*a))[1]
        """,
        "MiB for",
    ),
    "time": (
        "headers",
        """
        import converter.formats.safetensors as s, fuzz.guard as g, time
        g.SECONDS, old = 0.02, s._metadata
        def slow(*a):
            end = time.thread_time() + 0.03
            while time.thread_time() < end: pass
            return old(*a)
        s._metadata = slow
        """,
        "s of CPU",
    ),
    "a file of somebody else": (
        "indexes",
        "import converter.formats.index as i; o = i.path_fault; i.path_fault = lambda n, w: None if '../' in n else o(n, w)",
        "secret.safetensors for reading",
    ),
    "a file that is written": (
        "indexes",
        """
        import converter.formats.index as i
        old = i.read_index
        i._weight_map = (lambda f: lambda p, v: (open(p + '.log', 'w').close(), f(p, v))[1])(i._weight_map)
        """,
        ".log for writing",
    ),
    "a line that is missing": (
        "maps",
        "import converter.yamltree as y; y.Node.error = lambda s, m, k=None: y.MapError(y.Problem(m, 'map'))",
        "without a line of it",
    ),
    "code that is run": (
        "pickles",
        "import converter.formats.torch_values as t; old = t._call\nt._call = lambda *a: (eval('1'), old(*a))[1]",
        "did what no input may do: compile",
    ),
    "values of another place": (
        "pickles",
        "from converter.formats.torch_files import _Archive as a; o = a.locate; a.locate = lambda *x: max(0, o(*x) - 1)",
        "in torch",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_put_in_is_found(fault):
    kind, before, says = FAULTS[fault]
    if kind == "pickles":
        pytest.importorskip("torch")
    r = fuzz(kind, 400, "--stop", before=before)
    assert r.returncode == 1, r.stdout + r.stderr
    found = [line for line in r.stdout.splitlines() if line.startswith("FOUND")]
    assert any(says in line for line in found), r.stdout


def test_every_difference_from_the_libraries_is_in_the_docs():
    plain = " ".join(FORMATS.split())
    assert not [what for what in (*EXTRA.values(), *LAXER.values()) if what not in plain]
