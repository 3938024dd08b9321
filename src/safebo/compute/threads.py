"""How many threads the linear algebra of numpy and scipy may use.

The matrices here have some hundred rows. More threads make them slower, on a busy machine thirty times, and round differently:
the same state would give another trial on a machine with another number of cores.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import threadpoolctl

_lock = threading.Lock()
_inside = 0
_limit: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """One thread for linear algebra in the whole process; as many as before once the last of those inside has left."""
    global _inside, _limit
    with _lock:
        if _inside == 0:
            _limit = _controller().limit(limits=1, user_api="blas")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _disown()  # the limit belongs to the thread that was the first inside, and this may be another
                _limit.restore_original_limits()
                _disown()


@cache
def _controller() -> threadpoolctl.ThreadpoolController:
    """Looks through the libraries that are loaded, which takes milliseconds: once."""
    return threadpoolctl.ThreadpoolController()


def _disown() -> None:
    """From threadpoolctl 3.8 on only one thread may change the limits of OpenBLAS, until it gives that up."""
    clear = getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)
