"""Lowering turns geometry into few and long moves, merges neighbours, and refuses to cut within a byte."""

from math import prod

import pytest

from converter import moves
from converter.boxes import choose_box, plan_reads, walk
from converter.errors import MismatchError
from converter.layout import covers
from converter.moves import Copy, FileSource, Gather, PatternSource, Produce, Runs, Tile, lower
from converter.spec import nbytes
from converter.virtual import Virtual


def sources_of(dtype, *shapes, file=0, start=100):
    out = []
    for shape in shapes:
        out.append(FileSource(file, start, dtype, shape))
        start += nbytes(dtype, shape)
    return tuple(out)


def produces_of(dtype, sources, *values, start=1000):
    out = []
    for k, value in enumerate(values):
        out.append(Produce(f"t{k}", 0, start, dtype, value, sources))
        start += nbytes(dtype, value.shape)
    return out


def kinds(lowered):
    return [type(m) for m in lowered.items]


def test_a_rename_of_a_whole_file_is_one_copy():
    shapes = [(k + 1, 3) for k in range(50)]
    sources = sources_of("BF16", *shapes)
    lowered = lower(produces_of("BF16", sources, *(Virtual.source(k, s) for k, s in enumerate(shapes))))
    assert lowered.items == (Copy(0, 100, 0, 1000, sum(prod(s) * 2 for s in shapes)),)
    assert str(lowered) == "1 copy of 7650 bytes"
    assert not lowered.computes


def test_order_of_the_output_not_of_the_list():
    sources = sources_of("F32", (10,), (10,))
    a, b = produces_of("F32", sources, Virtual.source(0, (10,)), Virtual.source(1, (10,)))
    assert lower([b, a]).items == (Copy(0, 100, 0, 1000, 80),)


def test_swapped_tensors_and_other_files_stay_apart():
    sources = (*sources_of("F32", (10,), (10,)), *sources_of("F32", (10,), file=1, start=180))
    values = [Virtual.source(k, (10,)) for k in (1, 0, 2)]
    assert [m.src_offset for m in lower(produces_of("F32", sources, *values)).items] == [140, 100, 180]


def test_stack_and_split_along_the_first_axis_copy():
    sources = sources_of("F32", *[(64, 64)] * 4)
    terms = [Virtual.source(k, (64, 64)).reshape((1, 64, 64)) for k in (3, 2, 1, 0)]
    stacked = lower(produces_of("F32", sources, terms[0].concat(terms[1:], 0)))
    assert kinds(stacked) == [Copy] * 4
    parts = [Virtual.source(0, (64, 64)).slice(0, a, b) for a, b in ((0, 10), (10, 64))]
    assert kinds(lower(produces_of("F32", sources, *parts))) == [Copy]


def test_long_rows_are_copied_and_short_rows_assembled():
    long = sources_of("F32", *[(20, 100_000)] * 2)
    short = sources_of("F32", *[(20, 100)] * 2)
    (one,) = produces_of("F32", long, Virtual.source(0, (20, 100_000)).concat([Virtual.source(1, (20, 100_000))], 1))
    assert kinds(lower([one])) == [Runs, Runs]
    copies = list(lower([one]).items[1])
    assert len(copies) == 20
    assert copies[1] == Copy(0, 100 + 8_000_000 + 400_000, 0, 1000 + 400_000 + 800_000, 400_000)
    (two,) = produces_of("F32", short, Virtual.source(0, (20, 100)).concat([Virtual.source(1, (20, 100))], 1))
    (gather,) = lower([two]).items
    assert isinstance(gather, Gather)
    assert (gather.start, gather.stop, gather.nbytes) == (0, 4000, 16_000)


def test_what_computes_is_a_tile():
    sources = sources_of("F32", (300, 400))
    t = Virtual.source(0, (300, 400))
    assert kinds(lower(produces_of("F32", sources, t.transpose((1, 0))))) == [Tile]
    assert kinds(lower(produces_of("BF16", sources, t))) == [Tile]
    assert kinds(lower(produces_of("F32", sources, Virtual.constant(0, (3, 3))))) == [Tile]
    pattern = (PatternSource("arange", "F32", (1, 7)),)
    assert kinds(lower(produces_of("F32", pattern, Virtual.source(0, (1, 7))))) == [Tile]


@pytest.mark.parametrize("size", [1, 100, 60_000])
def test_bytes_add_up(size):
    sources = sources_of("F32", (7, size), (7, 5))
    t = Virtual.source(0, (7, size)).concat([Virtual.source(1, (7, 5))], 1).pad(0, 9, 1.0)
    assert lower(produces_of("F32", sources, t, t.transpose((1, 0)))).nbytes == 2 * 9 * (size + 5) * 4


class TestPacked:
    def test_whole_tensors_rows_and_bytes_move(self):
        sources = sources_of("F4", (6, 8), (6, 8))
        a, b = (Virtual.source(k, (6, 8)) for k in (0, 1))
        assert lower(produces_of("F4", sources, a, b)).items == (Copy(0, 100, 0, 1000, 48),)
        lowered = lower(produces_of("F4", sources, a.concat([b], 1), a.slice(1, 2, 6), a.slice(0, 1, 3)))
        assert lowered.nbytes == 48 + 12 + 8
        zeros = a.pad(1, 12, 0.0)
        assert lower(produces_of("F4", sources, zeros)).nbytes == 36

    def test_six_bits_move_by_fours(self):
        sources = sources_of("F6_E2M3", (4, 8))
        t = Virtual.source(0, (4, 8))
        assert lower(produces_of("F6_E2M3", sources, t.slice(1, 4, 8))).nbytes == 12
        with pytest.raises(MismatchError, match="F6_E2M3 elements are smaller than a byte"):
            lower(produces_of("F6_E2M3", sources, t.slice(1, 2, 6)))

    def test_cutting_within_a_byte_names_the_tensor(self):
        sources = sources_of("F4", (6, 8))
        t = Virtual.source(0, (6, 8))
        for value in (t.slice(1, 1, 5), t.transpose((1, 0)), t.reshape((48,)).slice(0, 1, 7), t.slice(1, 0, 1)):
            with pytest.raises(MismatchError) as caught:
                lower(produces_of("F4", sources, t, value))
            assert str(caught.value) == "t1: F4 elements are smaller than a byte and this op would cut them"

    def test_no_cast_and_no_arithmetic(self):
        sources = sources_of("F4", (6, 8))
        for dtype, value in (("F32", Virtual.source(0, (6, 8))), ("F4", Virtual.source(0, (6, 8)).pad(1, 10, 1.0))):
            with pytest.raises(MismatchError, match="cast"):
                lower(produces_of(dtype, sources, value))


def test_complex_numbers_are_moved_but_not_cast():
    sources = sources_of("C64", (4, 4))
    t = Virtual.source(0, (4, 4))
    assert kinds(lower(produces_of("C64", sources, t.transpose((1, 0))))) == [Tile]
    with pytest.raises(MismatchError, match="t0: C64 cannot be cast to F32"):
        lower(produces_of("F32", sources, t))


def test_all_problems_at_once():
    sources = sources_of("C64", (4,))
    with pytest.raises(MismatchError) as caught:
        lower(produces_of("F32", sources, *[Virtual.source(0, (4,))] * 3))
    assert [p.subject for p in caught.value.problems] == ["t0", "t1", "t2"]


def test_sixty_thousand_renamed_tensors_take_no_second():
    sources = sources_of("F32", *[(10, 10)] * 60_000)
    produces = produces_of("F32", sources, *(Virtual.source(k, (10, 10)) for k in range(60_000)))
    lowered = lower(produces)
    assert len(lowered.items) == 1


def test_many_runs_are_no_objects_until_they_are_walked():
    value = Virtual.source(0, (1 << 22, 2, 1 << 16)).slice(1, 0, 1)
    (runs,) = lower(produces_of("F32", (FileSource(0, 0, "F32", (1 << 22, 2, 1 << 16)),), value)).items
    assert isinstance(runs, Runs)
    assert runs.nbytes == 1 << 40
    assert next(iter(runs)).nbytes == 1 << 18


@pytest.mark.parametrize("limit", [1, 100, 5000, 1 << 20, 1 << 26])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((1000, 700), (1, 0)), ((50, 3, 70), (2, 0, 1)), ((4096,), (0,)), ((30, 20, 2, 90), (0, 2, 1, 3))],
)
def test_boxes_cover_a_block_once_within_the_limit(shape, axes, limit):
    (block,) = Virtual.source(0, shape).transpose(axes).blocks
    box = choose_box(block.dims, 4, 4, 4, limit)
    assert prod(box) * 12 <= max(limit, 12)
    pieces = list(walk(block.dims, box)) if prod(shape) // prod(box) < 2000 else []
    if pieces:
        assert covers([(dst, tuple((n, ds) for n, ds, _ in dims)) for dst, _, dims in pieces], prod(shape))
        assert covers([(src, tuple((n, ss) for n, _, ss in dims)) for _, src, dims in pieces], prod(shape))


def test_a_large_transpose_reads_and_writes_long_runs():
    (block,) = Virtual.source(0, (1 << 16, 1 << 15)).transpose((1, 0)).blocks
    rows, columns = choose_box(block.dims, 4, 4, 0, 64 << 20)
    assert min(rows, columns) * 4 >= 4096


def test_reads_of_a_box():
    assert plan_reads(((5, 10), (10, 1)), 4, 1 << 20) == (50, (), (10, 1))
    assert plan_reads(((5, 20), (10, 1)), 4, 1 << 20) == (90, (), (20, 1))  # the gap is read along
    assert plan_reads(((5, 20), (10, 1)), 4, 200) == (10, ((5, 20),), (10, 1))  # unless memory is short
    assert plan_reads(((3, 9000), (5, 20000), (4, 1)), 4, 1 << 20) == (4, ((5, 20000), (3, 9000)), (4, 12, 1))
    assert plan_reads(((3, 0), (4, 1)), 4, 1 << 20) == (4, (), (0, 1))  # the same elements again
    assert list(plan_reads(((3, 9000), (2, 40000)), 4, 8).starts()) == [0, 9000, 18000, 40000, 49000, 58000]


def test_threshold_of_runs_is_an_argument():
    sources = sources_of("U8", (600, 1000), (600, 3000))
    value = Virtual.source(0, (600, 1000)).concat([Virtual.source(1, (600, 3000))], 1)
    assert kinds(lower(produces_of("U8", sources, value))) == [Gather]
    assert kinds(lower(produces_of("U8", sources, value), run_bytes=500)) == [Runs, Runs]
    assert moves.RUN_BYTES == 128 << 10


def test_moves_are_counted_in_words():
    sources = sources_of("F32", (8, 400), (8, 400), (3000, 70), (3000, 70))
    a, b, c, d = (Virtual.source(k, s.shape) for k, s in enumerate(sources))
    lowered = lower(
        produces_of("F32", sources, a, a.concat([b], 1), b.concat([a], 1), c.transpose((1, 0)), d.transpose((1, 0)), b)
    )
    assert str(lowered) == "2 copies of 25600 bytes, 2 tiles of 1680000 bytes, 2 gathers of 51200 bytes"
    assert str(lower([])) == "nothing to move"
    for k, words in ((1, "1 gather of 25600 bytes"), (3, "1 tile of 840000 bytes")):
        values = {1: a.concat([b], 1), 3: c.transpose((1, 0))}
        assert str(lower(produces_of("F32", sources, values[k]))) == words
    long = sources_of("F32", *[(20, 100_000)] * 2)
    (rows,) = produces_of("F32", long, Virtual.source(0, (20, 100_000)).concat([Virtual.source(1, (20, 100_000))], 1))
    assert str(lower([rows])) == "2 strided copies of 16000000 bytes"
    (half,) = produces_of("F32", long, Virtual.source(0, (20, 100_000)).slice(1, 0, 50_000))
    assert str(lower([half])) == "1 strided copy of 4000000 bytes"
    assert lower([rows]).items[0].nbytes == 8_000_000


def test_a_gather_that_begins_further_on_has_its_own_bytes():
    sources = sources_of("F32", (10_000,), (8, 100), (8, 100))
    whole = Virtual.source(0, (10_000,)).concat(
        [Virtual.source(1, (8, 100)).concat([Virtual.source(2, (8, 100))], 1).reshape((1600,))], 0
    )
    copy, gather = lower(produces_of("F32", sources, whole)).items
    assert copy == Copy(0, 100, 0, 1000, 40_000)
    assert (gather.start, gather.stop, gather.nbytes) == (10_000, 11_600, 6_400)


@pytest.mark.parametrize(("elements", "alone"), [(moves.RUN_ELEMENTS, True), (moves.RUN_ELEMENTS - 1, False)])
def test_a_run_between_two_that_are_computed(elements, alone):
    sources = sources_of("F32", (40, 30), (elements,), (30, 40))
    value = Virtual.source(0, (40, 30)).transpose((1, 0)).reshape((1200,))
    value = value.concat(
        [Virtual.source(1, (elements,)), Virtual.source(2, (30, 40)).transpose((1, 0)).reshape((1200,))], 0
    )
    found = kinds(lower(produces_of("F32", sources, value)))
    assert found == ([Tile, Copy, Tile] if alone else [Gather])


@pytest.mark.parametrize(
    ("shape", "across", "kind", "dtype"),
    [
        ((4, 16384), False, Gather, "F64"),
        ((5, 16384), False, Runs, "F64"),
        ((4, 65536), False, Gather, "BF16"),
        ((5, 65536), False, Runs, "BF16"),
        ((4, 32768), False, Gather, "F32"),  # 1 MiB in all is assembled, whatever its runs
        ((5, 32768), False, Runs, "F32"),
        ((20, 32767), False, Gather, "F32"),  # runs of less than 128 KiB
        ((512, 513), True, Tile, "F32"),
        ((511, 513), True, Gather, "F32"),  # runs of less than 2 KiB
        ((512, 512), True, Gather, "F32"),  # sources whose rows are no further apart than that
    ],
)
def test_what_is_assembled_in_memory_and_what_is_written_run_by_run(shape, across, kind, dtype):
    sources = sources_of(dtype, *[shape] * 2)
    halves = [Virtual.source(k, shape) for k in range(2)]
    halves = [h.transpose((1, 0)) for h in halves] if across else halves
    found = lower(produces_of(dtype, sources, halves[0].concat(halves[1:], 1)))
    assert set(kinds(found)) == {kind}
    assert found.nbytes == 2 * nbytes(dtype, shape)


def test_a_copy_goes_on_only_where_both_files_go_on():
    items: list = []
    first = Copy(0, 100, 0, 1000, 50)
    for other in (
        Copy(0, 150, 0, 1051, 5),
        Copy(0, 151, 0, 1050, 5),
        Copy(1, 150, 0, 1050, 5),
        Copy(0, 150, 1, 1050, 5),
    ):
        items = [first]
        moves._add(items, other)
        assert items == [first, other]
    items = [first]
    moves._add(items, Copy(0, 150, 0, 1050, 5))
    assert items == [Copy(0, 100, 0, 1000, 55)]


def test_arithmetic_is_double_where_a_source_needs_it():
    one = Virtual.source(0, (4,))
    for dtype, double in (("F64", True), ("I32", True), ("BOOL", True), ("F32", False), ("BF16", False)):
        assert moves.check_castable("F32", sources_of(dtype, (4,)), one.blocks) is double
        assert moves.check_castable(dtype, (), Virtual.constant(0, (3, 3)).blocks) is double
