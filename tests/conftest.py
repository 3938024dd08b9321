"""For all tests."""

import os
import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def _state(tmp_path_factory):
    """What tests agree to run is not remembered for this user."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    yield
    if before is None:
        del os.environ["XDG_STATE_HOME"]
    else:
        os.environ["XDG_STATE_HOME"] = before


@pytest.fixture(scope="session", autouse=True)
def _interruptible():
    """A shell ignores interrupts in what it starts in the background, and children inherit that; some tests need them."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
