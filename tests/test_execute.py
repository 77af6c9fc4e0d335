"""Lowered execution equals eager evaluation byte for byte, in any memory, on any number of threads, by any copy."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_virtual import apply_random

from converter import accounting, boxes, execute, moves, tiles, transfer
from converter.arrays import Arith
from converter.casts import convert
from converter.eager import Eager
from converter.errors import FormatError, MismatchError
from converter.kernels import numpy_dtype
from converter.moves import Compare, FileSource, PatternSource, Produce, check_castable
from converter.virtual import Virtual

DTYPES = ("F32", "BF16", "F16", "U8", "F64", "I64")


@contextmanager
def tight(memory):
    """Run with a small memory: every limit that is sized for real tensors shrinks with it."""
    names = {
        (execute, "MIN_MEMORY"): memory,
        (tiles, "GATHER_BYTES"): memory,
        (moves, "GATHER_BYTES"): 64,
        (moves, "ACROSS_BYTES"): 8,
        (moves, "RUN_ELEMENTS"): 4,
        (accounting, "lower"): partial(moves.lower, run_bytes=24),
        (boxes, "BOX_BYTES"): 64,
        (boxes, "CACHE_BYTES"): 512,
        (boxes, "CALL_BYTES"): 32,
        (boxes, "GAP_BYTES"): 16,
    }
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), value in names.items():
            patch.setattr(module, name, value)
        boxes.choose_box.cache_clear()
        boxes.plan_reads.cache_clear()
        yield
    boxes.choose_box.cache_clear()
    boxes.plan_reads.cache_clear()


class Disk:
    """Input files with given arrays at odd offsets, and one output file."""

    def __init__(self, path):
        self.path = path
        self.sources, self.fds, self.end = [], [], 5
        self.out = os.open(path / "out", os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def add(self, array, dtype, file_gap=3):
        fd = os.open(self.path / f"in{len(self.fds)}", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.pwrite(fd, array.tobytes(), file_gap)
        self.sources.append(FileSource(len(self.fds), file_gap, dtype, array.shape))
        self.fds.append(fd)

    def place(self, name, dtype, value, sources=None):
        produce = Produce(name, 0, self.end, dtype, value, tuple(self.sources if sources is None else sources))
        self.end += prod(value.shape) * numpy_dtype(dtype).itemsize
        return produce

    def read(self, produce):
        return os.pread(self.out, prod(produce.value.shape) * numpy_dtype(produce.dtype).itemsize, produce.offset)

    def run(self, produces, compares=(), **options):
        options = {"jobs": 1, "memory": 64 << 20, "allow_overflow": True} | options
        return execute.execute(
            accounting.lower_checked(produces), compares, self.fds.__getitem__, lambda _: self.out, **options
        )

    def close(self):
        for fd in (*self.fds, self.out):
            os.close(fd)


@pytest.fixture
def disk(tmp_path):
    d = Disk(tmp_path)
    yield d
    d.close()


def random_array(rng, dtype, shape):
    """Distinct-looking values with zeros, infinities, NaN and subnormals for floats; small ones for integers."""
    if dtype == "U8":
        return rng.integers(0, 256, shape, np.uint8)
    if dtype == "I64":
        return rng.integers(0, 256, shape, np.int64)
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-9, 9, shape)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40])
    values = np.where(rng.random(shape) < 0.1, rng.choice(special, shape), values)
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(numpy_dtype(dtype))


def expected(eager, sources, dtype):
    """Cast what Eager gives, which started from sources that were widened to the dtype of the arithmetic."""
    name = {"float32": "F32", "float64": "F64"}.get(str(eager.array.dtype))
    flat = np.ascontiguousarray(eager.array).reshape(-1)
    name = name or next(s.dtype for s in sources if numpy_dtype(s.dtype) == flat.dtype)
    out = np.empty(flat.size, numpy_dtype(dtype))
    convert(flat, name, out, dtype, (), False)
    return out.tobytes()


@st.composite
def cases(draw):
    """Sources as arrays, their dtypes, several values over them, with the dtypes to write."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    one = draw(st.booleans())
    names = [draw(st.sampled_from(DTYPES)) for _ in range(draw(st.integers(1, 3)))]
    names = [names[0]] * len(names) if one else names
    shapes = [tuple(draw(st.lists(st.integers(1, 7), max_size=4))) for _ in names]
    shapes = [s if prod(s) <= 400 else (17, 4) for s in shapes]
    return rng, names, shapes, one


def build(draw, rng, names, shapes, one, disk):
    """Run one program on Eager and Virtual alike; gives Produces and the bytes they should have."""
    arrays = [random_array(rng, n, s) for n, s in zip(names, shapes)]
    for array, name in zip(arrays, names):
        disk.add(array, name)
    virtual = [Virtual.source(k, s) for k, s in enumerate(shapes)]
    wide = check_castable("F32", disk.sources, [b for v in virtual for b in v.blocks])
    with np.errstate(all="ignore"):
        eager = [Eager(a if one else a.astype(np.float64 if wide else np.float32)) for a in arrays]
    pool = list(zip(eager, virtual))
    for _ in range(draw(st.integers(1, 6))):
        new = apply_random(draw, draw(st.sampled_from(pool)), pool)
        if prod(new[1].shape) <= 3000:
            pool.append(new)
    produces, wanted = [], []
    for pair in pool[-3:]:
        used = {b.slot for b in pair[1].blocks if b.slot >= 0}
        if not used:
            continue
        if not one and check_castable("F32", disk.sources, pair[1].blocks) != wide:
            continue  # without the wide source the lowered arithmetic is narrower than this oracle's
        dtype = names[0] if one else draw(st.sampled_from(DTYPES))
        produces.append(disk.place(f"t{len(produces)}", dtype, pair[1]))
        wanted.append(expected(pair[0], disk.sources, dtype))
    return produces, wanted


@settings(max_examples=200, deadline=None)
@given(cases(), st.data())
def test_lowered_equals_eager(tmp_path_factory, case, data):
    disk = Disk(tmp_path_factory.mktemp("run"))
    try:
        produces, wanted = build(data.draw, *case, disk)
        for memory, jobs in ((64 << 20, 1), (1 << 13, 1), (600, 1), (2400, 4)):
            os.ftruncate(disk.out, 0)
            if memory < 1 << 20:
                with tight(memory // jobs):
                    outcome = disk.run(produces, memory=memory, jobs=jobs)
            else:
                outcome = disk.run(produces, memory=memory, jobs=jobs)
            assert outcome.bytes_written == sum(map(len, wanted))
            for produce, data_wanted in zip(produces, wanted):
                assert disk.read(produce) == data_wanted, (memory, jobs, produce)
    finally:
        disk.close()


def simple(disk, shape=(300, 200), dtype="F32"):
    rng = np.random.default_rng(1)
    array = rng.integers(0, 255, prod(shape) * numpy_dtype(dtype).itemsize, np.uint8).view(numpy_dtype(dtype))
    disk.add(array.reshape(shape), dtype)
    return array.reshape(shape), Virtual.source(len(disk.sources) - 1, shape)


@pytest.mark.parametrize("jobs", [1, 4])
@pytest.mark.parametrize("memory", [1 << 20, 4 << 20, 256 << 20])
def test_large_transposes_and_joins_in_any_memory(disk, jobs, memory):
    a, ta = simple(disk, (1500, 1100))
    b, tb = simple(disk, (700, 1100), "BF16")
    c, tc = simple(disk, (3, 1500, 40), "I64")
    produces = [
        disk.place("a", "F32", ta.transpose((1, 0))),
        disk.place("b", "BF16", tb.transpose((1, 0)).concat([tb.transpose((1, 0)).slice(1, 5, 77)], 1)),
        disk.place("c", "I64", tc.transpose((2, 0, 1))),
        disk.place("d", "F32", ta.slice(1, 3, 1000).concat([ta.slice(1, 0, 3)], 1)),
    ]
    outcome = disk.run(produces, jobs=jobs, memory=memory)
    assert disk.read(produces[0]) == a.T.tobytes()
    assert disk.read(produces[1]) == np.concatenate([b.T, b.T[:, 5:77]], 1).tobytes()
    assert disk.read(produces[2]) == c.transpose(2, 0, 1).tobytes()
    assert disk.read(produces[3]) == np.concatenate([a[:, 3:1000], a[:, :3]], 1).tobytes()
    assert outcome.casts == {}
    assert outcome.differences == ()


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("kept", [(0, 1, 2), (1, 2), (2,)])
def test_each_way_to_copy(disk, jobs, kept, monkeypatch):
    monkeypatch.setattr(transfer, "COPIES", tuple(transfer.COPIES[k] for k in kept))
    monkeypatch.setattr(transfer, "STEP", 10_000)
    a, ta = simple(disk)
    b, tb = simple(disk, (5,), "U8")
    produces = [disk.place("b", "U8", tb), disk.place("a", "F32", ta), disk.place("b2", "U8", tb)]
    assert disk.run(produces, jobs=jobs).bytes_written == a.nbytes + 10
    assert [disk.read(p) for p in produces] == [b.tobytes(), a.tobytes(), b.tobytes()]


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EIO])
def test_a_copy_that_is_refused_is_not_tried_again(disk, code, monkeypatch):
    asked = []

    def refuse(*args):
        asked.append(args)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(transfer, "COPIES", (refuse, transfer.by_memory))
    monkeypatch.setattr(transfer, "STEP", 10_000)
    a, ta = simple(disk)
    produce = disk.place("a", "F32", ta)
    disk.run([produce])
    assert disk.read(produce) == a.tobytes()
    assert len(asked) == 1


@pytest.mark.parametrize("kept", [(0, 1, 2), (0,), (1,), (2,)])
def test_a_file_that_shrank_is_an_error(disk, kept, monkeypatch):
    monkeypatch.setattr(transfer, "COPIES", tuple(transfer.COPIES[k] for k in kept))
    a, ta = simple(disk)
    os.ftruncate(disk.fds[0], 3 + a.nbytes - 10)
    expected = f"the file ends at byte {3 + a.nbytes - 10}, with 10 more to read"
    for value in (ta, ta.transpose((1, 0))):
        with pytest.raises(FormatError, match=expected) as caught:
            disk.run([disk.place("a", "F32", value)], name=lambda k: f"shard {k}")
        assert caught.value.problems[0].subject == "shard 0"


def test_copies_need_no_numpy(disk):
    """Importing numpy takes longer than converting a small checkpoint."""
    a, _ = simple(disk)
    code = f"""
import sys
from converter.accounting import lower_checked
from converter.execute import execute
from converter.moves import FileSource, Produce
from converter.virtual import Virtual
produce = Produce("a", 0, 0, "F32", Virtual.source(0, (300, 200)), (FileSource(0, 3, "F32", (300, 200)),))
execute(lower_checked([produce]), [], lambda _: {disk.fds[0]}, lambda _: {disk.out})
assert "numpy" not in sys.modules and "ml_dtypes" not in sys.modules
"""
    root = os.path.dirname(os.path.dirname(execute.__file__))
    environment = os.environ | {"PYTHONPATH": root}
    subprocess.run([sys.executable, "-c", code], check=True, pass_fds=(disk.fds[0], disk.out), env=environment)
    assert os.pread(disk.out, a.nbytes, 0) == a.tobytes()


def test_errors_of_the_system_are_the_projects(disk, monkeypatch):
    _, ta = simple(disk)
    real = disk.out
    disk.out = os.open("/dev/full", os.O_WRONLY)
    for value in (ta, ta.transpose((1, 0))):
        with pytest.raises(FormatError, match="the output: cannot be written: no space left on device"):
            disk.run([disk.place("a", "F32", value)], jobs=2)
    os.close(disk.out)
    disk.out = real

    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(FormatError, match="cannot be read or written"):
        execute.execute(moves.lower([disk.place("a", "F32", ta)]), [], broken, lambda _: disk.out)
    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(FormatError, match="input file 0: cannot be read: input/output error"):
        disk.run([disk.place("a", "F32", ta.transpose((1, 0)))])


def test_counts_of_what_does_not_fit(disk):
    values = np.array([1e6, -1e6, np.inf, np.nan, 1e-30, 0.0, 1.5], np.float32)
    disk.add(values, "F32")
    v = Virtual.source(0, (7,))
    h = disk.place("h", "F16", v)
    i = disk.place("i", "I64", v.slice(0, 5, 7))
    b = disk.place("b", "BF16", v)
    outcome = disk.run([h, i, b])
    assert outcome.casts == {"h": (2, 1, 0), "i": (0, 0, 1)}
    assert np.frombuffer(disk.read(h), np.float16).tolist()[:3] == [np.inf, -np.inf, np.inf]
    with pytest.raises(MismatchError, match="h: 2 finite values do not fit its dtype") as caught:
        disk.run([h, i, b], allow_overflow=False)
    assert caught.value.outcome == outcome


def test_counts_do_not_depend_on_tiles(disk):
    _, ta = simple(disk)
    produce = disk.place("t", "F16", ta.transpose((1, 0)))
    whole = disk.run([produce])
    data = disk.read(produce)
    with tight(4096):
        assert disk.run([produce], memory=4 * 4096, jobs=4).casts == whole.casts
    assert disk.read(produce) == data
    assert whole.casts["t"].overflow
    assert whole.casts["t"].underflow


def test_constants_and_patterns(disk):
    sources = (PatternSource("arange", "I64", (1, 50)), PatternSource("causal_mask", "F32", (2, 9, 9)))
    produces = [
        disk.place("p", "I64", Virtual.source(0, (1, 50)), sources),
        disk.place("p32", "F32", Virtual.source(0, (1, 50)), sources),
        disk.place("m", "F32", Virtual.source(1, (2, 9, 9)), sources),
        disk.place("mb", "BOOL", Virtual.source(1, (2, 9, 9)).transpose((0, 2, 1)), sources),
        disk.place("c", "BF16", Virtual.constant(0.1, (33, 3)), sources),
        disk.place("d", "F64", Virtual.constant(0.1, (5,)), sources),
        disk.place("n", "F16", Virtual.constant(float("-inf"), ()), sources),
        disk.place("o", "U8", Virtual.constant(1.0, (3,)), sources),
    ]
    mask = np.tril(np.ones((9, 9), np.float32))
    wanted = [
        np.arange(50),
        np.arange(50, dtype=np.float32),
        np.stack([mask, mask]),
        np.stack([mask.T, mask.T]).astype(bool),
        np.full(99, 0.1, np.float32).astype(numpy_dtype("BF16")),
        np.full(5, 0.1),
        np.array(-np.inf, np.float16),
        np.ones(3, np.uint8),
    ]
    for memory in (64 << 20, 700):
        os.ftruncate(disk.out, 0)
        with tight(memory):
            assert disk.run(produces, memory=memory, allow_overflow=False).casts == {}
        for produce, array in zip(produces, wanted):
            assert disk.read(produce) == array.tobytes(), produce.name


def test_arithmetic_is_rounded_once(disk):
    values = np.array([1.0, 3.0, 1 / 3, 1e-3], np.float32).astype(numpy_dtype("BF16"))
    disk.add(values, "BF16")
    v = Virtual.source(0, (4,)).arith(Arith("multiply", 3.0)).arith(Arith("add", 0.001))
    produce = disk.place("t", "BF16", v)
    disk.run([produce])
    exact = values.astype(np.float32) * np.float32(3) + np.float32(0.001)
    assert disk.read(produce) == exact.astype(numpy_dtype("BF16")).tobytes()
    logs = disk.place("l", "F32", Virtual.source(0, (4,)).arith(Arith("log")).arith(Arith("exp")))
    assert disk.run([logs]).casts == {}
    negative = disk.place("n", "F32", Virtual.source(0, (4,)).arith(Arith("add", -1.0)).arith(Arith("log")))
    assert disk.run([negative]).casts["n"].overflow == 3  # log of 0 and of two negative numbers


class TestCompare:
    def run(self, disk, left, right, dtype="F32", memory=64 << 20, jobs=1):
        compare = Compare("label", dtype, left, right, tuple(disk.sources))
        return disk.run([], [compare], memory=memory, jobs=jobs).differences

    @pytest.mark.parametrize("memory", [64 << 20, 2000])
    @pytest.mark.parametrize("jobs", [1, 3])
    def test_first_difference_and_count(self, disk, memory, jobs):
        a, ta = simple(disk, (40, 30))
        b = a.T.copy()
        b[7, 5], b[29, 39], b[7, 6] = 1.5, 2.5, 3.5
        disk.add(b, "F32")
        tb = Virtual.source(1, (30, 40))
        with tight(memory // jobs):
            assert self.run(disk, ta, ta.transpose((1, 0)).transpose((1, 0)), memory=memory, jobs=jobs) == ()
            (found,) = self.run(disk, ta.transpose((1, 0)), tb, memory=memory, jobs=jobs)
        assert (found.label, found.count, found.total, found.index) == ("label", 3, 1200, (7, 5))
        assert (found.left, found.right) == (str(float(a[5, 7])), "1.5")

    def test_bytes_not_values(self, disk):
        disk.add(np.array([0.0, np.nan, 1.0], np.float32), "F32")
        disk.add(np.array([-0.0, np.nan, 1.0], np.float32), "F32")
        v = [Virtual.source(k, (3,)) for k in (0, 1)]
        (found,) = self.run(disk, *v)
        assert (found.count, found.index, found.left, found.right) == (1, (0,), "0.0", "-0.0")
        assert self.run(disk, v[0].slice(0, 1, 2), v[1].slice(0, 1, 2)) == ()

    def test_payloads_show_their_bytes(self, disk):
        disk.add(np.array([0x7FC00000], np.uint32).view(np.float32), "F32")
        disk.add(np.array([0x7FC00001], np.uint32).view(np.float32), "F32")
        (found,) = self.run(disk, Virtual.source(0, (1,)), Virtual.source(1, (1,)))
        assert (found.left, found.right) == ("nan (7fc00000)", "nan (7fc00001)")

    def test_both_sides_are_brought_to_the_dtype(self, disk):
        a = np.array([1.0, 2.5, -3.0], np.float32)
        disk.add(a, "F32")
        disk.add(a.astype(numpy_dtype("BF16")), "BF16")
        left, right = (Virtual.source(k, (3,)) for k in (0, 1))
        assert self.run(disk, left, right) == self.run(disk, left, right, "BF16") == ()
        assert len(self.run(disk, left, Virtual.constant(1.0, (3,)))) == 1

    def test_packed_elements(self, disk):
        disk.add(np.array([0x12, 0x34], np.uint8), "U8")
        disk.add(np.array([0x12, 0x35], np.uint8), "U8")
        sources = [FileSource(s.file, s.offset, "F4", (4,)) for s in disk.sources]
        compare = Compare(1, "F4", Virtual.source(0, (4,)), Virtual.source(1, (4,)), tuple(sources))
        (found,) = disk.run([], [compare]).differences
        assert found.index == (2,)

    def test_empty_and_unlike(self, disk):
        assert self.run(disk, Virtual.constant(0, (0, 3)), Virtual.constant(1, (0, 3))) == ()
        with pytest.raises(MismatchError, match="shapes"):
            self.run(disk, Virtual.constant(0, (3,)), Virtual.constant(0, (4,)))


def test_empty_tensors_and_nothing_at_all(disk):
    disk.add(np.zeros((0, 4), np.float32), "F32")
    produce = disk.place("e", "BF16", Virtual.source(0, (0, 4)).transpose((1, 0)))
    assert disk.run([produce]).bytes_written == 0
    assert disk.run([]).bytes_written == 0


def test_progress_counts_every_byte(disk):
    a, ta = simple(disk)
    seen = []
    produces = [disk.place("a", "F32", ta), disk.place("t", "F64", ta.transpose((1, 0)))]
    written = disk.run(produces, jobs=3, progress=seen.append).bytes_written
    assert sum(seen) == written == a.nbytes * 3


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_stops_all_threads_and_passes_on(disk, jobs, monkeypatch):
    _, ta = simple(disk)
    monkeypatch.setattr(transfer, "STEP", 64)
    monkeypatch.setattr(execute, "STEP", 64)
    monkeypatch.setattr(execute, "BATCH", 1)
    slow = lambda *args: time.sleep(0.005) or transfer.by_memory(*args)  # noqa: E731
    monkeypatch.setattr(transfer, "COPIES", (slow,))
    before = threading.active_count()
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        disk.run([disk.place("a", "F32", ta)], jobs=jobs)
    timer.join()
    for _ in range(500):  # a thread that has said its last word takes a moment to be gone
        if threading.active_count() == before:
            break
        time.sleep(0.01)
    assert threading.active_count() == before


def test_an_error_in_one_thread_stops_the_others(disk):
    _, ta = simple(disk)

    def fail(_):
        raise FormatError("gone")

    compare = Compare(1, "F32", ta, ta, tuple(disk.sources))
    with pytest.raises(FormatError, match="gone"):
        execute.execute(moves.lower([disk.place("a", "F32", ta)] * 50), [compare], fail, lambda _: disk.out, jobs=4)


def test_memory_is_bounded(disk, monkeypatch):
    taken = []
    real = np.empty

    def empty(shape, *args, **options):
        array = real(shape, *args, **options)
        taken.append(array.nbytes)
        return array

    a, ta = simple(disk, (2000, 1700))
    monkeypatch.setattr(np, "empty", empty)
    produces = [
        disk.place("t", "F64", ta.transpose((1, 0))),
        disk.place("i", "F32", ta.reshape((2000, 850, 2)).transpose((0, 2, 1))),
        disk.place("p", "F32", ta.pad(1, 1800, 0.0).transpose((1, 0)).pad(1, 2100, 1.0)),
    ]
    disk.run(produces, jobs=2, memory=2 << 20)
    arenas = [n for n in taken if n > 400 << 10]
    assert sum(arenas) <= 2 << 20  # two arenas, and nothing beside them
    assert max([n for n in taken if n not in arenas], default=0) <= 300 << 10
    with np.errstate(invalid="ignore"):
        assert disk.read(produces[0]) == a.T.astype(np.float64).tobytes()
