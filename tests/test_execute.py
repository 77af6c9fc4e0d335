"""Lowered execution equals eager evaluation byte for byte, in any memory, on any number of threads, by any copy."""

import os
from contextlib import contextmanager
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_virtual import apply_random

from converter import boxes, execute, moves, tiles
from converter.casts import convert
from converter.eager import Eager
from converter.kernels import numpy_dtype
from converter.moves import FileSource, Produce, check_castable
from converter.virtual import Virtual

DTYPES = ("F32", "BF16", "F16", "U8", "F64", "I64")


@contextmanager
def tight(memory, **more):
    """Run with a small memory: every limit that is sized for real tensors shrinks with it."""
    names = {
        (execute, "MIN_MEMORY"): memory,
        (tiles, "GATHER_BYTES"): memory,
        (moves, "GATHER_BYTES"): 64,
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
        return execute.execute(produces, compares, self.fds.__getitem__, lambda _: self.out, **options)

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


def expected(pair, arrays, sources, dtype):
    """Cast what Eager gives, which started from sources that were widened to the dtype of the arithmetic."""
    eager, virtual = pair
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
        wanted.append(expected(pair, arrays, disk.sources, dtype))
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
