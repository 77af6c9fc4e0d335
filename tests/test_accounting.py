"""Accounting: whatever is lost, doubled or shifted between the plan and the moves is refused before a byte is written."""

from dataclasses import replace

import pytest
from lab import Lab, arr, read, same, write

import converter
from converter import accounting, writing
from converter.accounting import check_moves, check_space, lower_checked
from converter.errors import FormatError, MismatchError
from converter.moves import Copy, FileSource, Gather, Moves, Produce, Runs, Tile, lower
from converter.ops.concat import Concat
from converter.ops.replicate import Replicate
from converter.ops.same import Same
from converter.ops.trim import Trim
from converter.virtual import Virtual

WIDE = 40_000
MAP = """
rules:
  - {from: a, to: x, shape: p q}
  - {from: b, to: y, shape: p r, ops: [transpose]}
  - {from: [c1, c2], to: z, shape: [u w, u w], ops: [{concat: 1}]}
  - {from: [d1, d2], to: v, shape: [s t, s t], ops: [{concat: 1}]}
  - {to: f, shape: p, fill: ones, dtype: float32}
"""
TENSORS = {
    "a": arr(5, 3),
    "b": arr(5, 7, start=100),
    "c1": arr(4, WIDE, start=1000),
    "c2": arr(4, WIDE, start=500_000),
    "d1": arr(4, 2, start=200),
    "d2": arr(4, 2, start=300),
}


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path)
    lab.map(MAP)
    write(lab.source, TENSORS)
    return lab


def change(kind, **changes):
    """Change the first move of a kind by differences of its fields."""

    def broken(items):
        k = next(k for k, m in enumerate(items) if isinstance(m, kind))
        return [*items[:k], apart(items[k], changes), *items[k + 1 :]]

    return broken


def apart(move, changes):
    if isinstance(move, Copy):
        return move._replace(**{f: getattr(move, f) + by for f, by in changes.items()})
    if isinstance(move, Runs):
        (n, dst, src), *rest = move.dims
        if "times" in changes:
            return replace(move, dims=((n + changes["times"], dst, src), *rest))
        return replace(move, first=apart(move.first, changes))
    if isinstance(move, Tile):
        return replace(move, block=block_apart(move.block, changes))
    if "start" in changes or "stop" in changes:
        return replace(move, **{f: getattr(move, f) + by for f, by in changes.items()})
    first, *others = move.blocks
    return replace(move, blocks=(block_apart(first, changes), *others))


def block_apart(block, changes):
    if "steps" in changes:
        (n, *strides), *rest = block.dims
        return block._replace(dims=((n + changes["steps"], *strides), *rest))
    return block._replace(**{f: getattr(block, f) + by for f, by in changes.items()})


def lose(kind):
    return lambda items: [m for m in items if m is not next(m for m in items if isinstance(m, kind))]


def double(kind):
    return lambda items: [*items, next(m for m in items if isinstance(m, kind))]


KINDS = [Copy, Runs, Tile, Gather]
BROKEN = {
    **{f"{kind.__name__} is lost": lose(kind) for kind in KINDS},
    **{f"{kind.__name__} is doubled": double(kind) for kind in KINDS},
    "a copy from elsewhere": change(Copy, src_offset=4),
    "a copy to elsewhere": change(Copy, dst_offset=4),
    "a copy of another file": change(Copy, src_file=1),
    "a copy to another file": change(Copy, dst_file=1),
    "a short copy": change(Copy, nbytes=-1),
    "a long copy": change(Copy, nbytes=1),
    "runs from elsewhere": change(Runs, src_offset=4),
    "runs to elsewhere": change(Runs, dst_offset=-4),
    "one run less": change(Runs, times=-1),
    "short runs": change(Runs, nbytes=-4),
    "a tile from elsewhere": change(Tile, src=1),
    "a tile to elsewhere": change(Tile, dst=1),
    "a short tile": change(Tile, steps=-1),
    "a gather from elsewhere": change(Gather, src=1),
    "a gather to elsewhere": change(Gather, dst=2),
    "a gather of another source": change(Gather, slot=1),
    "a gather that ends late": change(Gather, stop=1),
    "a gather that begins early": change(Gather, start=-1),
    "a gather that ends early": change(Gather, stop=-1),
    "a gather without its first block": lambda items: [
        replace(m, blocks=m.blocks[1:]) if isinstance(m, Gather) else m for m in items
    ],
    "nothing is moved": lambda items: [],
}


def test_each_kind_of_move_is_there_and_right(lab, monkeypatch):
    seen = set()

    def noted(produces):
        done = lower(produces)
        seen.update(type(m) for m in done.items)
        return done

    monkeypatch.setattr(accounting, "lower", noted)
    r = lab.run("--map", lab / "map.yaml", lab.source, lab.output)
    assert r.code == 0, r.err
    assert seen == set(KINDS)
    assert read(lab.output)["y"].tobytes() == TENSORS["b"].T.tobytes()


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_move_is_refused_before_anything_is_written(lab, monkeypatch, how):
    def broken(produces):
        return Moves(tuple(BROKEN[how](list(lower(produces).items))))

    def never(self):
        raise AssertionError("the output was begun")

    monkeypatch.setattr(accounting, "lower", broken)
    monkeypatch.setattr(writing.Output, "__enter__", never)
    before = sorted(lab.folder.iterdir())
    r = lab.run("--map", lab / "map.yaml", lab.source, lab.output)
    assert (r.code, r.out) == (3, "")
    assert len(r.err.splitlines()) == 1
    assert "a defect of this program, found before anything was written" in r.err
    assert sorted(lab.folder.iterdir()) == before


def test_moves_that_take_each_others_place_are_refused():
    sources = (FileSource(0, 100, "F32", (10,)), FileSource(0, 180, "F32", (10,)))
    produces = [Produce(n, 0, 40 * k, "F32", Virtual.source(k, (10,)), sources) for k, n in enumerate("ab")]
    a, b = lower(produces).items
    check_moves(produces, Moves((a, b)))
    check_moves(produces, Moves((b, a)))
    crossed = (a._replace(src_offset=b.src_offset), b._replace(src_offset=a.src_offset))
    with pytest.raises(FormatError, match="a: the moves are not what the plan says, at byte 0 of file 1"):
        check_moves(produces, Moves(crossed))
    halves = (a._replace(nbytes=12), Copy(0, 112, 0, 12, 28), b)
    check_moves(produces, Moves(halves))


def test_constants_are_told_apart_by_their_bits():
    def zero(value):
        return [Produce("z", 0, 0, "F32", Virtual.constant(value, (3,)), ())]

    check_moves(zero(0.0), lower(zero(0.0)))
    with pytest.raises(FormatError, match="not what the plan says"):
        check_moves(zero(0.0), lower(zero(-0.0)))


@pytest.mark.parametrize(
    ("offsets", "space", "says"),
    [
        ((8, 48), {0: (8, 88)}, None),
        ((8, 52), {0: (8, 92)}, "b would be at byte 52 of a file that is filled to 48"),
        ((8, 44), {0: (8, 84)}, "b would be at byte 44 of a file that is filled to 48"),
        ((8, 48), {0: (8, 92)}, "the tensors of file 1 end at byte 88, its data at 92"),
        ((8, 48), {0: (8, 88), 1: (8, 12)}, "the tensors of file 2 end at byte 8, its data at 12"),
        ((8, 48), {1: (8, 88)}, "a would be at byte 8 of a file that is filled to None"),
    ],
)
def test_tensors_fill_their_file(offsets, space, says):
    """And an empty one stands between two others, whatever the order."""
    sources = (FileSource(0, 0, "F32", (10,)),)
    value = Virtual.source(0, (10,))
    produces = [Produce(n, 0, at, "F32", value, sources) for n, at in zip("ab", offsets)]
    if says is None:
        produces += [Produce("empty", 0, at, "F32", Virtual.constant(0.0, (0, 7)), ()) for at in offsets]
        assert lower_checked(produces, space).nbytes == 80
        return
    with pytest.raises(FormatError, match=says):
        check_space(produces, space)


@pytest.mark.parametrize(
    ("rule", "op", "wrong"),
    [
        # One source twice and the other not at all: the output would still be filled.
        ("{from: [d1, d2], to: v, shape: [s t, s t], ops: [{concat: 1}]}", Concat, "half"),
        ("{from: d1, to: [v, w], shape: s t, ops: [replicate]}", Replicate, "more"),
        ("{from: [d1, d1b], to: v, shape: [s t, s t], ops: [same]}", Same, "gone"),
        ("{from: d1, to: v, shape: s t, ops: [{trim: {dim: 0, to: 2}}]}", Trim, "gone"),
    ],
)
def test_an_op_that_loses_or_makes_up_elements_is_refused(lab, monkeypatch, rule, op, wrong):
    lab.map(f"rules: [{rule}]")
    tensors = {"d1": TENSORS["d1"]} | {n: TENSORS["d1"] for n in ("d1b",) if n in rule}
    tensors |= {"d2": TENSORS["d2"]} if "d2" in rule else {}
    write(lab.source, tensors)
    assert lab.run("--map", lab / "map.yaml", lab.source, lab.output).code == 0
    lab.output.unlink()
    real = op.apply

    def broken(self, families):
        done = real(self, families)
        if wrong != "half":
            return replace(done, **{wrong: ()})
        twice = [f.map(lambda x: x.slice(1, 0, 2).concat([x.slice(1, 0, 2)], 1)) for f in done.families]
        return replace(done, families=tuple(twice))

    monkeypatch.setattr(op, "apply", broken)
    r = lab.run("--map", lab / "map.yaml", lab.source, lab.output)
    assert r.code == 3
    assert f"each element of source {2 if op is Same else 1}, [4, 2], exactly once" in r.err
    assert not lab.output.exists()


def test_an_output_that_is_not_made_whole_is_refused(lab, monkeypatch):
    lab.map("rules: [{from: [d1, d2], to: v, shape: [s t, s t], ops: [{concat: 1}]}]")
    write(lab.source, {n: TENSORS[n] for n in ("d1", "d2")})
    real = Virtual.concat

    def forgets_the_others(self, others, axis):
        return Virtual(real(self, others, axis).shape, self.blocks)

    monkeypatch.setattr(Virtual, "concat", forgets_the_others)
    r = lab.run("--map", lab / "map.yaml", lab.source, lab.output)
    assert r.code == 3
    assert "the ops do not make each element of a tensor [4, 4] exactly once" in r.err


# Names: every tensor of the input has one fate.


def test_a_step_that_is_lost_or_doubled_is_refused(lab):
    plan = converter.plan(lab.source, lab / "map.yaml")
    for steps, says in ((plan.steps[1:], "no step of the plan reads it"), ((*plan.steps, plan.steps[0]), "2 steps")):
        with pytest.raises(MismatchError, match=says) as e:
            replace(plan, steps=steps).write(lab.output)
        assert [p.subject for p in e.value.problems] == ["a"]
    assert not lab.output.exists()


def test_what_is_compared_dropped_or_copied_for_a_tie_is_accounted_for(lab):
    lab.map("""
drop: {from: [d]}
rules:
  - {from: e, to: E, shape: v q}
  - {from: h, to: H, shape: v q, tied: e}
  - {from: c, shape: n, fill: ones, dtype: float32}
""")
    tensors = {"e": arr(3, 2), "h": arr(3, 2), "d": arr(1), "c": arr(2) * 0 + 1}
    write(lab.source, tensors)
    for flags, want in (([], ["E"]), (["--tied", "copy"], ["E", "H"]), (["--untie"], ["E", "H"])):
        r = lab.run("--map", lab / "map.yaml", lab.source, lab.output, "--force", *flags)
        assert r.code == 0, r.err
        same(read(lab.output), dict.fromkeys(want, tensors["e"]))


def test_a_part_of_a_plan_accounts_for_what_it_reads(lab):
    part = converter.plan(lab.source, lab / "map.yaml").part(["y", "v"])
    assert list(part.header.tensors) == ["b", "d1", "d2"]
    part.write(lab.output)
    assert sorted(read(lab.output)) == ["v", "y"]


def test_the_cost_is_counted_in_ranges():
    """A petabyte is as quick as a kilobyte, and many moves are walked once."""
    n = 1 << 24
    sources = (FileSource(0, 0, "F32", (n, n)), FileSource(0, 4 * n * n, "F32", (n, n)))
    a, b = (Virtual.source(k, (n, n)) for k in (0, 1))
    produces = [Produce("t", 0, 8, "F32", a.concat([b], 1).transpose((1, 0)), sources)]
    done = lower_checked(produces, {0: (8, 8 + 8 * n * n)})
    assert done.nbytes == 8 * n * n
    assert len(done.items) == 2
