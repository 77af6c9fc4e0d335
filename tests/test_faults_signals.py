"""Ctrl-C and its kin: one line, the exit code, nothing left behind; or the output is in place and the line says so."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from faultlab import MAP, ONE_BY_ONE, ROOT, WHOLE, Place, contents
from lab import arr, write

from converter import signals
from converter.formats import Output, layout
from converter.spec import TensorSpec

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
TOLD = "interrupted\n"
LATE = "interrupted; the output was in place already\n"


def check(place, done, code):
    """Nothing is left, and what is there is what was said."""
    state = contents(place.folder)
    if done.err == TOLD:
        assert (done.code, done.out) == (code, "")
        assert state == place.old
    elif done.err == LATE:
        assert done.code == code
        assert state == place.new
    else:
        assert (done.code, done.err) in ((0, ""), (code, ""))  # with the code it has not begun yet
        assert state == (place.new if done.code == 0 else place.old)
    return done.err


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("name", ["a file", "shards in place of as many", "shards among other files"])
def test_a_signal_at_any_step(quick, warm, name, number):
    place = Place(quick / "here", warm, WHOLE[name])
    every = 1 if number == signal.SIGINT else 5
    told = set()
    points = [*range(1, place.filled, 2 * every), *range(place.filled, len(place.steps) + 1, every)]
    for at in points:
        place.reset()
        told.add(check(place, place.convert(at=at, do=int(number)), CODES[number]))
    assert TOLD in told
    assert LATE in told or number != signal.SIGINT


def test_a_signal_while_files_are_moved_one_by_one(quick, warm):
    place = Place(quick / "here", warm, ONE_BY_ONE["as many, and a sub-folder"])
    told = []
    for at in range(place.filled, len(place.steps) + 1):
        place.reset()
        told.append(check(place, place.convert(at=at, do=int(signal.SIGINT)), 130))
    assert {TOLD, LATE} <= set(told)


@pytest.mark.parametrize("name", ["a file in place of another", "shards in place of as many"])
def test_a_signal_at_any_line(quick, warm, name):
    """Between any two lines of what makes an output and puts it in place, the steps that hold signals back too."""
    place = Place(quick / "here", warm, WHOLE[name])
    files = ["output.py", "staging.py", "swap.py", "target.py", "writing.py", "signals.py", "pool.py"]
    lines = place.convert(at=0, files=files).steps
    assert isinstance(lines, int)
    assert lines > 300
    told = set()
    for k in range(60):
        place.reset()
        told.add(check(place, place.convert(at=1 + k * (lines - 1) // 59, files=files), 130))
    assert {TOLD, LATE, ""} <= told


def test_the_second_signal_is_ignored_while_the_first_is_obeyed(quick, warm):
    place = Place(quick / "here", warm, WHOLE["shards"])
    for at in (place.filled // 2, place.filled):
        place.reset()
        done = place.convert(at=at, do=int(signal.SIGINT), times=1000)
        assert check(place, done, 130) == TOLD


def test_the_proof_can_be_interrupted(quick, warm):
    place = Place(quick / "here", warm, WHOLE["a file"])
    steps = place.convert("--verify", "--force").steps
    for at in range(place.filled, len(steps), 7):
        place.reset()
        check(place, place.convert("--verify", at=at, do=int(signal.SIGINT)), 130)


def started(command, ready):
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True)
    for _ in range(2000):
        if ready() or process.poll() is not None:
            return process
        time.sleep(0.01)
    raise AssertionError("it does not begin")


@pytest.mark.parametrize("number", CODES)
def test_the_program_itself(tmp_path, number):
    """All threads at work, the temporary half full."""
    (tmp_path / "map.yaml").write_text(MAP)
    write(tmp_path / "in.safetensors", {"e": arr(7, 300)} | {f"h.{i}.w": arr(2000, 300) for i in range(24)})
    before = contents(tmp_path).keys()
    command = [sys.executable, "-m", "converter", "--map", tmp_path / "map.yaml", tmp_path / "in.safetensors"]
    process = started(
        [*command, tmp_path / "out.safetensors", "--quiet", "--jobs", "2"],
        lambda: list(tmp_path.glob(".out*")) or (tmp_path / "out.safetensors").exists(),
    )
    process.send_signal(number)
    _, err = process.communicate()
    assert (process.returncode, err) in [(CODES[number], TOLD), (CODES[number], LATE), (0, "")]
    assert contents(tmp_path).keys() - before == (set() if err == TOLD else {"out.safetensors"})


LATER = """
import os, signal, sys
from converter import signals
signals.leave_at_once()
os.kill(os.getpid(), int(sys.argv[1]))
print("still here")
"""


@pytest.mark.parametrize("number", CODES)
def test_before_anything_is_imported_a_signal_says_nothing(number):
    done = subprocess.run(
        [sys.executable, "-c", LATER, str(int(number))], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (CODES[number], "", "")


def test_the_start_takes_signals_before_it_imports_anything_large():
    """What is imported until then is small, so that hardly any time is left for a traceback."""
    text = (ROOT / "converter" / "__main__.py").read_text()
    assert text.index("leave_at_once()") < text.index("from converter.cli import main")
    code = "import sys; import converter.signals; print(*sorted(m for m in sys.modules if m in ('click', 'numpy', 'yaml')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "\n"


def test_what_is_ignored_stays_ignored():
    """As `nohup` and shells without job control start a program."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.ending():
            signal.raise_signal(signal.SIGHUP)
            with signals.undisturbed():
                signal.raise_signal(signal.SIGHUP)
            with pytest.raises(signals.Interrupted) as e:
                signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
        assert e.value.exit_code == 143
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_come_back_even_if_a_signal_comes_at_that_moment():
    class OuchError(Exception):
        pass

    def ouch(number, frame):
        raise OuchError

    kinds = {kind: signal.signal(kind, ouch) for kind in signals.KINDS}
    try:
        for kind in kinds:
            with pytest.raises(OuchError), signals.undisturbed():
                signal.raise_signal(kind)
            assert [signal.getsignal(k) for k in kinds] == [ouch] * 3
    finally:
        for kind, handler in kinds.items():
            signal.signal(kind, handler)


def test_in_python_an_interrupt_says_that_the_output_was_in_place(tmp_path, monkeypatch):
    import converter

    lab_map = tmp_path / "map.yaml"
    lab_map.write_text(MAP)
    source = write(tmp_path / "in.safetensors", {"e": arr(7, 3), "h.0.w": arr(2, 3)})
    real = Output.commit

    def commit(self):
        real(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Output, "commit", commit)
    with pytest.raises(KeyboardInterrupt) as e:
        converter.convert(source, tmp_path / "out.safetensors", lab_map)
    assert e.value.__notes__ == ["the output was in place already"]
    assert (tmp_path / "out.safetensors").exists()


def test_an_interrupt_before_the_cleaning_up_begins_does_not_prevent_it(tmp_path, monkeypatch):
    made = layout([TensorSpec("w", "U8", (4,))], {})
    real, calls = Output._discard, []

    def discard(self):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(self)

    monkeypatch.setattr(Output, "_discard", discard)
    with pytest.raises(KeyboardInterrupt), Output(tmp_path / "o.safetensors", made):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stream", ["out", "err"])
@pytest.mark.parametrize("place", ["/dev/full", "closed"])
def test_nowhere_to_say_it(tmp_path, stream, place):
    """A full disk behind stdout is told; the output stands. Nobody sees a traceback, nor hears it as an exit code."""
    (tmp_path / "map.yaml").write_text(MAP)
    write(tmp_path / "in.safetensors", {"e": arr(7, 3), "h.0.w": arr(2, 3)})
    output = tmp_path / ("out.safetensors" if stream == "out" else "out.wrong")
    words = [sys.executable, "-m", "converter", "--map", "map.yaml", "in.safetensors", output.name]
    how = f"{1 if stream == 'out' else 2}>{place}" if place != "closed" else f"{1 if stream == 'out' else 2}>&-"
    done = subprocess.run(
        ["sh", "-c", f'"$@" {how}', "sh", *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    if stream == "err":
        assert (done.returncode, done.stdout) == (2, "")
        return
    assert output.exists()
    if place == "closed":
        assert done.returncode == 0
    else:
        assert done.returncode == 3
        assert re.fullmatch(r"cannot write what there is to say: no space left on device\n", done.stderr)
