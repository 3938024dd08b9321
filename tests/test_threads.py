"""Linear algebra in one thread."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import numpy as np
import pytest
from scipy.linalg import eigh
from threadpoolctl import ThreadpoolController, threadpool_info

from safebo import Box, Matern, SafeOptimizer, analysis
from safebo.compute.threads import one_blas_thread


def blas():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture
def two():
    """Two threads outside."""
    eigh(np.eye(2))  # scipy's library is loaded
    limit = ThreadpoolController().limit(limits=2, user_api="blas")
    with one_blas_thread():
        pass  # gives up what belongs to this thread
    if blas() != {2}:
        pytest.skip("the linear algebra of this machine has one thread only")
    yield
    limit.restore_original_limits()


def test_one_thread_inside_and_as_many_as_before_outside(two):
    with one_blas_thread():
        assert blas() == {1}
        with one_blas_thread():
            assert blas() == {1}
        assert blas() == {1}
    assert blas() == {2}


def test_an_error_restores_the_threads(two):
    with pytest.raises(RuntimeError, match="inside"), one_blas_thread():
        raise RuntimeError("inside")
    assert blas() == {2}


def test_the_last_one_out_restores_the_threads(two):
    """Two threads that overlap, and the first one in is the first one out."""
    both_inside, first_left = Barrier(2), Event()

    def first():
        with one_blas_thread():
            entered.set()
            both_inside.wait(10.0)
        first_left.set()

    def second():
        entered.wait(10.0)
        with one_blas_thread():
            both_inside.wait(10.0)
            first_left.wait(10.0)
            return blas()

    entered = Event()
    with ThreadPoolExecutor(2) as pool:
        pool.submit(first)
        assert pool.submit(second).result(20.0) == {1}
    assert blas() == {2}


def test_everything_an_optimizer_computes_is_computed_in_one_thread(two, monkeypatch):
    seen = []

    def spy(*arguments):
        seen.append(blas())
        return original(*arguments)

    original = analysis._choose
    monkeypatch.setattr(analysis, "_choose", spy)
    opt = SafeOptimizer(Box.unit(1), 0.0, kernel=Matern(1.5, 0.3), points_per_axis=11)
    opt.tell([0.5], 1.0)
    assert opt.ask() is not None
    opt.bounds([[0.2]])
    assert seen == [{1}] and blas() == {2}


RUN = """
from safebo import Box, Matern, SafeOptimizer
opt = SafeOptimizer(Box.unit(3), 0.0, kernel=Matern(1.5, 0.2), seed=4)
f = lambda p: 1.0 - 2.0 * (p["x1"] - 0.6) ** 2 - 3.0 * (p["x2"] - 0.4) ** 2
start = {"x1": 0.4, "x2": 0.5, "x3": 0.5}
opt.tell(start, f(start))
for _ in range(5):
    trial = opt.ask()
    print(trial.x, trial.lower, trial.upper, trial.norm)
    opt.tell(trial, f(trial.params))
"""


def test_trials_do_not_depend_on_the_number_of_threads():
    """With two threads for linear algebra they did, in this run."""
    outputs = []
    for threads in ("1", "2"):
        names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        environment = {**os.environ, **dict.fromkeys(names, threads)}
        done = subprocess.run(
            [sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, timeout=300, check=True
        )
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] and len(outputs[0].splitlines()) == 5
