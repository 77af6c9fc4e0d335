"""Breaks on purpose, of what must never break in silence, and the tests that must see each: `python -m mutation.breaks`.

A break is a text of a file and what stands there instead. Prints JSON: for each, and for the code as it is, the test
that failed, or null.
"""

import gc
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent


class Break(NamedTuple):
    """What is broken, where, how, and which of the tests below has to see it."""

    file: str
    old: str
    new: str
    seen_by: str


LANGUAGE = "tests/test_language.py::test_"
WHOLE, ALIASES = f"{LANGUAGE}patterns_take_whole_names_only", f"{LANGUAGE}aliases_in_the_metadata"
PADDING, ORDER = f"{LANGUAGE}padding_that_is_not_padding", f"{LANGUAGE}layers_and_experts_are_numbers"
TEMPLATES = "tests/test_names.py::test_match_reads_nothing_that_render_could_not_write"
RANKS = "tests/test_ranks.py::test_"
COVER = "tests/test_formats_safetensors.py::test_data_is_covered_exactly"

BREAKS = {
    # The anchors: a name matches whole or not at all.
    "a rename that matches the beginning": Break("regexes", "compiled.fullmatch(", "compiled.match(", WHOLE),
    "a rename that matches anywhere": Break("regexes", "compiled.fullmatch(", "compiled.search(", WHOLE),
    "a template that matches the beginning": Break("forms", ".fullmatch\n", ".match\n", TEMPLATES),
    "a template that matches anywhere": Break("forms", ".fullmatch\n", ".search\n", TEMPLATES),
    "a drop that matches the beginning": Break("matching", "[2].fullmatch(", "[2].match(", WHOLE),
    "a drop that matches anywhere": Break("matching", "[2].fullmatch(", "[2].search(", WHOLE),
    "a file of a rank that matches the beginning": Break("formats/ranks", "pattern.fullmatch(", "pattern.match(", f"{RANKS}names_that_only"),
    # Ties: recorded in the metadata, read there, compared, and kept apart from other metadata.
    "an alias that is not written": Break("planning", " | {a: aliases[a] for a in sorted(aliases)}", "", ALIASES),
    "an alias that is not read": Break("inputs", "aliases[a] = s", "pass", ALIASES),
    "an alias that stays when its tensor goes": Break("planning", "if not (v in tensors and k not in tensors)", "", ALIASES),
    "metadata that are lost": Break("planning", "(kept or {", "({", ALIASES),
    "a tie that is not compared": Break("ties", "self.work.compare_names.append", "str", f"{LANGUAGE}a_difference_is_counted"),
    "a tie of the output that is not compared": Break("ties", "self.work.compare.append", "str", f"{LANGUAGE}a_tie_on_the_way_back"),
    # Padding: what is cut off must be the padding.
    "padding that is not compared": Break("ops/trim", "checks.append(", "str(", PADDING),
    "padding whose way back is not checked": Break("ops/pad", "have, self.value, self.checked)", "have, self.value, False)", PADDING),
    "padding of which the first is not compared": Break("ops/trim", "x.slice(axis, self.to, x.shape[axis])", "x.slice(axis, self.to + 1, x.shape[axis])", PADDING),
    # Offsets of a header: no hole, no overlap, no tail, nothing beyond the file.
    "offsets that are not checked": Break("formats/safetensors", "_check_cover(path, entries,", "str((path, entries),", COVER),
    "a hole between tensors": Break("formats/safetensors", "if entry[4] != at:", "if entry[4] < at:", COVER),
    "tensors that overlap": Break("formats/safetensors", "if entry[4] != at:", "if entry[4] > at:", COVER),
    "a file that ends too soon": Break("formats/safetensors", "if at > size:", "if False:", COVER),
    "bytes after the last tensor": Break("formats/safetensors", "if at < size:", "if False:", COVER),
    "a range that does not fit its shape": Break("formats/safetensors", "if total >> 3 != stop - start:", "if False:", "tests/test_formats_safetensors.py::test_one_bad_tensor"),
    # Layers and experts are numbers: 10 comes after 9, not after 1.
    "layers in the order of texts": Break("expand", "return range(count)", "return sorted(range(count), key=str)", ORDER),
    "labels in the order of texts": Break("expand", "return index.keys", "return sorted(index.keys, key=str)", ORDER),
    "ranks in the order of texts": Break("formats/ranks", "found = sorted(_fitting(", "found = list(_fitting(", f"{RANKS}ranks_come_in_the_order"),
    "members of the inner index first": Break("ops/base", "self.items[(o * count + k) * inner + i]", "self.items[(o * inner + i) * count + k]", ORDER),
}  # fmt: skip


def main() -> int:
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    os.environ["OMP_NUM_THREADS"] = "1"
    import pytest

    from mutation.mutants import replaced
    from mutation.runner import FLAGS, Collected, fork, functions_of, module_name, passes, put_in, quiet_hypothesis

    quiet_hypothesis()
    found: dict[str, str | None] = {}

    def collected(items: Sequence[pytest.Item]) -> None:
        files = {name: str(ROOT / "converter" / f"{b.file}.py") for name, b in BREAKS.items()}
        for file in set(files.values()):
            importlib.import_module(module_name(file))
        functions = functions_of(set(files.values()))
        gc.freeze()

        def first_failed(name: str, chosen: Sequence[pytest.Item]) -> str | None:
            """The first test that fails, in a process that has the break."""
            with tempfile.TemporaryDirectory() as folder:
                result = Path(folder) / "failed"

                def work() -> int:
                    if name:
                        source = Path(files[name]).read_text()
                        assert put_in(replaced(files[name], source, BREAKS[name].old, BREAKS[name].new), functions)
                    result.write_text(json.dumps(next((i.nodeid for i in chosen if not passes(i)), None)))
                    return 0

                status = os.waitpid(fork(work, Path(folder)), 0)[1]
                return json.loads(result.read_text()) if status == 0 else f"status {status}"

        for name, b in BREAKS.items():
            found[name] = first_failed(name, [i for i in items if i.nodeid.startswith(b.seen_by)])
        found[""] = first_failed("", [i for i in items if i.nodeid in found.values()])

    pytest.main(
        [*FLAGS, *dict.fromkeys(b.seen_by.partition("::")[0] for b in BREAKS.values())], plugins=[Collected(collected)]
    )
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
