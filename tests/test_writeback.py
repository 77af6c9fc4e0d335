"""What is written goes to the disk in whole windows, by a thread of its own, and never after the end."""

import os
import threading
import time
from contextlib import suppress

import pytest

from converter import transfer, writeback
from converter.transfer import Files
from converter.writeback import BEHIND, WINDOW, Writeback

START, WAIT = 2, 7


@pytest.fixture
def calls(monkeypatch):
    """The calls that the system would get: (descriptor, start, bytes, flags)."""
    found = []
    monkeypatch.setattr(writeback, "_sync_file_range", lambda: lambda *a: found.append(a))
    return found


def until(holds):
    end = time.monotonic() + 60
    while not holds() and time.monotonic() < end:
        time.sleep(0.001)
    assert holds()


def test_whole_windows_are_sent(calls):
    sender = Writeback()
    sender.wrote(3, 0, WINDOW - 1, WINDOW - 1)
    sender.wrote(4, 0, WINDOW, WINDOW // 2)  # half of it is a hole, which others will fill
    sender.close()
    assert calls == []
    sender.wrote(3, WINDOW - 1, WINDOW, 1)
    sender.wrote(3, 2 * WINDOW, 4 * WINDOW + 1, 2 * WINDOW + 1)
    until(lambda: len(calls) == 4)
    sender.close()
    assert calls == [
        (3, 0, WINDOW, START),
        (3, 2 * WINDOW, WINDOW, START),
        (3, 3 * WINDOW, WINDOW, START),
        (3, 4 * WINDOW, 1, START),
    ]


def test_a_hole_is_sent_when_it_is_filled(calls):
    sender = Writeback()
    sender.wrote(3, 0, WINDOW, WINDOW // 2)
    sender.wrote(3, 0, WINDOW, WINDOW // 2)
    until(lambda: calls == [(3, 0, WINDOW, START)])
    sender.close()


@pytest.mark.parametrize("forget", [False, True])
def test_what_has_arrived_is_forgotten_where_that_is_asked_for(calls, monkeypatch, forget):
    forgotten = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *a: forgotten.append(a))
    sender = Writeback(forget)
    for k in range(BEHIND + 2):
        sender.wrote(3, k * WINDOW, (k + 1) * WINDOW, WINDOW)
    until(lambda: len(calls) == BEHIND + 2 + 2 * forget)
    sender.close()
    old = [(3, 0, WINDOW, WAIT), (3, WINDOW, WINDOW, WAIT)] if forget else []
    assert [c for c in calls if c[3] == WAIT] == old
    assert forgotten == [(*c[:3], os.POSIX_FADV_DONTNEED) for c in old]


def test_writing_does_not_wait_for_the_disk_and_the_end_waits_for_one_window(monkeypatch):
    busy, free, calls = threading.Event(), threading.Event(), []

    def call(*arguments):
        calls.append(arguments)
        busy.set()
        assert free.wait(60)

    monkeypatch.setattr(writeback, "_sync_file_range", lambda: call)
    sender = Writeback()
    for k in range(BEHIND + 1):  # one at the disk, the others wait
        sender.wrote(3, 2 * k * WINDOW, 2 * (k + 1) * WINDOW, 2 * WINDOW)
        assert busy.wait(60)
    ending = threading.Thread(target=sender.close)
    ending.start()
    until(lambda: sender._ended)
    assert ending.is_alive()
    free.set()
    ending.join(60)
    assert not ending.is_alive()
    assert calls == [(3, 0, WINDOW, START)]


def test_without_the_call_nothing_happens(monkeypatch):
    monkeypatch.setattr(writeback, "_sync_file_range", lambda: None)
    before = threading.active_count()
    sender = Writeback(True)
    sender.wrote(3, 0, 9 * WINDOW, 9 * WINDOW)
    sender.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("same", [True, False])
def test_threads_take_turns_at_one_file(monkeypatch, same):
    """And only at one: both must be within a write at once where they write to two."""
    together, met = threading.Barrier(2), threading.Event()

    def pwrite(fd, data, offset):
        if not met.is_set():
            with suppress(threading.BrokenBarrierError):
                together.wait(0.2 if same else 60)
                met.set()
        return len(data)

    monkeypatch.setattr(transfer.os, "pwrite", pwrite)
    files = Files(lambda k: k, lambda k: 100 + k, str)
    data = memoryview(bytes(8))
    threads = [
        threading.Thread(target=files.write, args=(0, data, 0)),
        threading.Thread(target=files.write_pieces, args=(0 if same else 1, data, 4, [0, 8])),
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    files.close()
    assert met.is_set() is not same
