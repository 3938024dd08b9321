"""The hardware example: the rig behind a pipe and behind a socket, and its own side of the line."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from safebo.exceptions import ExperimentAborted
from safebo.problems.furuta import PERTURBED, FurutaPendulum
from safebo.runs import SocketPlant, Watchdog

HERE = Path(__file__).parents[1] / "examples" / "hardware"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "src"), "PYTHONWARNINGS": "error"}


def tune(*arguments, cwd):
    command = [sys.executable, str(HERE / "tune.py"), *arguments, "--experiments", "2"]
    return subprocess.run(command, env=ENVIRONMENT, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)


def check(done):
    assert done.returncode == 0, done.stderr
    measured = [float(value) for value in re.findall(r"measured ([-\d.]+)", done.stdout)]
    assert len(measured) == 2 and min(measured) > 0.0 and "best a1" in done.stdout


def test_behind_a_pipe(tmp_path):
    check(tune("subprocess", cwd=tmp_path))


def test_behind_a_socket(tmp_path):
    command = [sys.executable, str(HERE / "rig.py"), "socket", "--port", "0"]
    rig = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    try:
        port = rig.stdout.readline().split()[-1]
        check(tune("socket", "--port", port, cwd=tmp_path))
    finally:
        rig.kill()
        rig.wait()
        rig.stdout.close()
    done = tune("socket", "--port", port, cwd=tmp_path)  # nobody listens any more
    assert done.returncode == 1 and "was aborted and not told" in done.stderr and port in done.stderr
    assert json.loads((tmp_path / "aborted-run.json").read_text())


class Board:
    """The board that README.md asks for, with the simulation behind it."""

    def __init__(self):
        self.pendulum, self.enabled = FurutaPendulum(PERTURBED, disturbance=1e-3), False

    def enable(self):
        self.enabled = True

    def disable(self):
        self.enabled = False

    def wait_for_rest(self):
        assert not self.enabled

    def zero_encoders(self):
        self.observation, _ = self.pendulum.reset(seed=0)

    def read_angles(self):
        return self.observation

    def write_voltage(self, voltage):
        assert abs(voltage) <= 10.0
        self.observation, *_ = self.pendulum.step(np.array([voltage if self.enabled else 0.0]))


def test_the_class_for_a_real_rig_in_the_readme(monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", (HERE / "README.md").read_text(), re.DOTALL)
    names = {}
    exec(code, names)  # as printed
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    rig = names["Qube"](Board())
    with pytest.raises(RuntimeError, match="stopped"):
        rig.run({"a1": 0.2, "a2": 0.3})
    rewards = []
    for a2 in (0.424, 0.3, 0.7):
        rig.reset()
        rewards.append(rig.run({"a1": 0.239, "a2": a2}))
    assert rewards[0] > 0.0 and rewards[1] > 0.0 > rewards[2]
    rig.stop()
    assert not rig.board.enabled


# -- protocol.py, with a rig that is only a few lines ------------------------------------------------------------------------


@pytest.fixture
def protocol():
    spec = importlib.util.spec_from_file_location("hardware_protocol", HERE / "protocol.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Rig:
    def __init__(self, work):
        self.work, self.log = work, []

    def reset(self):
        self.log.append("reset")

    def run(self, params):
        self.log.append("run")
        return self.work(params)

    def stop(self):
        self.log.append("stop")


@contextlib.contextmanager
def served(protocol, rig):
    ready, port = threading.Event(), []
    threading.Thread(
        target=protocol.serve_socket, args=(rig,), kwargs={"ready": lambda p: (port.append(p), ready.set())}, daemon=True
    ).start()
    assert ready.wait(10)
    yield port[0]


def test_a_stop_does_not_wait_for_the_experiment(protocol):
    free = threading.Event()
    rig = Rig(lambda params: free.wait(20) and 1.0)
    with served(protocol, rig) as port:
        plant = Watchdog(SocketPlant("127.0.0.1", port, timeout=20), timeout=0.3, reset_timeout=5)
        plant.reset()
        with pytest.raises(ExperimentAborted, match="hung"):
            plant.run({"a": 1.0})
        assert "stop" in rig.log  # while the experiment still hangs
        free.set()


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (lambda p: 1 / 0, "ZeroDivisionError"),
        (lambda p: float("nan"), "NaN"),
        (lambda p: None, "TypeError"),
        (lambda p: {"a": 1}, "'a'"),
    ],
)
def test_a_rig_that_fails_is_stopped_and_says_so(protocol, work, reason):
    rig = Rig(work)
    with served(protocol, rig) as port:
        plant = Watchdog(SocketPlant("127.0.0.1", port, timeout=5), timeout=6)
        plant.reset()
        with pytest.raises(ExperimentAborted, match=reason):
            plant.run({"a": 1.0})
        assert rig.log[:2] == ["reset", "run"] and "stop" in rig.log


def test_a_closed_line_stops_the_rig(protocol):
    rig = Rig(lambda params: 0.5)
    with served(protocol, rig) as port:
        plant = SocketPlant("127.0.0.1", port, timeout=5)
        plant.reset()
        assert plant.run({"a": 1.0}).objective == 0.5
        plant.close()
        for _ in range(100):
            if rig.log[-1] == "stop":
                break
            time.sleep(0.02)
        assert rig.log == ["reset", "run", "stop"]


@pytest.mark.parametrize("line", ["garbage", "{}", '{"id": 1, "command": "dance"}', '{"id": 1, "command": "run"}', "[]"])
def test_a_request_that_makes_no_sense_is_an_error(protocol, line):
    rig = Rig(lambda params: 0.5)
    assert "error" in json.loads(protocol.answer(rig, line, threading.Lock())) and rig.log == ["stop"]
