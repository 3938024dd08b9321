"""Quick versions of the studies under benchmarks/, and a check that both sides of the speed comparison agree."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from benchmarks import plain, study
from safebo import Matern, Scenario
from safebo.exceptions import WorkerLostError
from safebo.problems import RKHSProblem
from safebo.studies.common import parallel, provenance, rate_interval


@pytest.mark.parametrize("method", ["algorithm_4", "SafeOptimizer defaults", "safeopt, B = 5 (true)", "algorithm_1"])
def test_one_run_of_the_study(method):
    row = study.run((method, 3, 6))
    assert tuple(row) == study.FIELDS and row["experiments"] == 6
    assert row["unsafe"] == 0 and row["score"] > -0.1


def test_the_study_sees_unsafe_runs():
    assert sum(study.run(("safeopt, B = 1", seed, 30))["unsafe"] for seed in range(6)) > 0


def test_the_study_resumes_and_summarises(tmp_path, monkeypatch, capsys):
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # restored afterwards
    options = ["--runs", "2", "--experiments", "3", "--jobs", "1", "--out", str(tmp_path), "--methods", "safeopt, B = 25"]
    monkeypatch.setattr(sys, "argv", ["study", *options])
    study.main()
    first = (tmp_path / "runs.csv").read_text()
    study.main()  # nothing left to do
    assert (tmp_path / "runs.csv").read_text() == first and len(first.splitlines()) == 3
    line = json.loads((tmp_path / "summary.json").read_text())["methods"][0]
    assert line["runs"] == 2 and line["unsafe_runs"] == 0 and line["unsafe_rate_95"][1] > 0.8
    assert "safeopt, B = 25" in capsys.readouterr().out


INTERRUPTED = """
import sys, time
from pathlib import Path
from safebo.studies.common import parallel

def work(job):
    Path(job).touch()
    time.sleep(60.0)

if __name__ == "__main__":
    try:
        list(parallel(work, sys.argv[1:], 2))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
"""


def _workers(parent):
    """Worker processes that have been started; their own imports may not be done."""
    shown = subprocess.run(["pgrep", "-f", "-P", str(parent), "spawn_main"], capture_output=True, text=True, check=False).stdout
    return [int(number) for number in shown.split()]


@pytest.mark.skipif(not shutil.which("pgrep"), reason="no pgrep")
@pytest.mark.parametrize("started", [True, False])
def test_an_interrupt_reaches_the_parent_only(started, tmp_path):
    (tmp_path / "script.py").write_text(INTERRUPTED)
    marks = [tmp_path / str(number) for number in range(4)]
    process = subprocess.Popen(
        [sys.executable, "script.py", *map(str, marks)], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip
    patience = time.monotonic() + 60.0
    try:
        while len(_workers(process.pid)) < 2 or (started and sum(mark.exists() for mark in marks) < 2):
            assert process.poll() is None and time.monotonic() < patience
            time.sleep(0.01)
        for worker in _workers(process.pid):
            os.kill(worker, signal.SIGINT)
        time.sleep(1.0)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
        _, err = process.communicate(timeout=30.0)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert (err, process.returncode) == ("interrupted\n", 130)


def killed_once(job):
    """A job whose worker is killed as by a lack of memory, the first time."""
    mark, number = job
    if number == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def always_killed(job):
    if job == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return job


def test_what_a_killed_worker_had_is_done_again(tmp_path):
    assert sorted(parallel(killed_once, [(tmp_path / "mark", number) for number in range(6)], 2)) == list(range(6))
    assert (tmp_path / "mark").exists()


def test_a_job_that_kills_its_workers_ends_the_study_with_its_name():
    before = set(multiprocessing.active_children())
    found = []
    with pytest.raises(WorkerLostError, match=r"3 times .* jobs: (0, |)1"):
        found.extend(parallel(always_killed, [0, 1], 2))
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.skipif(not shutil.which("pgrep"), reason="no pgrep")
def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    (tmp_path / "script.py").write_text(INTERRUPTED)
    marks = [tmp_path / str(number) for number in range(2)]
    process = subprocess.Popen(
        [sys.executable, "script.py", *map(str, marks)], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip
    patience = time.monotonic() + 60.0
    while sum(mark.exists() for mark in marks) < 2:
        assert process.poll() is None and time.monotonic() < patience
        time.sleep(0.01)
    workers = _workers(process.pid)
    process.kill()
    process.wait()
    while any(_alive(worker) for worker in workers):
        assert time.monotonic() < patience
        time.sleep(0.01)


def _alive(process):
    """Whether a process of this number runs; what only waits to be reaped does not."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False).stdout
    return shown.strip()[:1] not in ("", "Z")


def test_clopper_pearson_interval():
    assert rate_interval(0, 100) == (0.0, pytest.approx(0.0362, abs=1e-4))
    assert rate_interval(50, 100) == (pytest.approx(0.3983, abs=1e-4), pytest.approx(0.6017, abs=1e-4))


@pytest.mark.parametrize("n", [1, 2])
def test_plain_norms_have_the_same_distribution(n):
    rng = np.random.default_rng(n)
    x, y = rng.random((4, n)), rng.normal(size=4)
    kernel = Matern(1.5, 0.1)
    zero, one = torch.zeros(n).double(), torch.ones(n).double()
    with torch.no_grad():
        slow = plain.norms(
            torch.from_numpy(x),
            torch.from_numpy(y),
            kernel.to_gpytorch(),
            0.01,
            zero,
            one,
            300,
            60,
            torch.Generator().manual_seed(0),
        )
    fast = Scenario(m=300, centres=60, gamma=0.2, kappa=0.1).sample_norms(
        x, y, kernel=kernel, noise=0.01, lower=np.zeros(n), upper=np.ones(n), seed=0
    )
    for level in (0.25, 0.5, 0.75):  # medians and quartiles of 300 draws agree within their sampling error
        assert np.quantile(slow.numpy(), level) == pytest.approx(np.quantile(fast, level), rel=0.06)


def test_plain_algorithm_starts_like_the_library():
    problem = RKHSProblem.sample(1, 5.0, 2)
    optimizer = plain.Algorithm4(problem.threshold, (101,), m=60)
    optimizer.tell(problem.initial, problem.initial_value)
    with torch.no_grad():
        choice = optimizer.ask()
    assert choice is not None and problem.is_safe(choice) and optimizer.updates == 6


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("/usr/bin/safebo", "safebo calibrate --only '2-D, held out'"),
        ("/src/safebo/cli/__main__.py", "safebo calibrate --only '2-D, held out'"),
        ("/here/benchmarks/learned_norm.py", "python -m benchmarks.learned_norm calibrate --only '2-D, held out'"),
        ("/here/tune.py", "tune.py calibrate --only '2-D, held out'"),
    ],
)
def test_the_command_of_a_result_can_be_called_again(monkeypatch, program, command):
    monkeypatch.setattr("sys.argv", [program, "calibrate", "--only", "2-D, held out"])
    assert provenance()["command"] == command
