"""What all tests need of the process that runs them."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

# A shell that starts the tests in the background has them ignore interrupts, `nohup` has them ignore SIGHUP; and the
# children that they interrupt would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def warm():
    """A process that runs conversions with faults, in milliseconds."""
    from faultlab import Warm

    process = Warm()
    yield process
    process.close()


@pytest.fixture
def quick():
    """A folder in memory where there is one, which is not slowed down by syncing."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        (Path(folder) / "here").mkdir()
        yield Path(folder)
