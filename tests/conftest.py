"""For all tests."""

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def _interruptible():
    """A shell ignores interrupts in what it starts in the background, and children inherit that; some tests need them."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
