"""The hardware example: the rig behind a pipe and behind a socket, and its own side of the line."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from safebo import SafeOptimizer
from safebo.exceptions import ExperimentAborted, StopReason
from safebo.problems.furuta import PERTURBED, FurutaPendulum, FurutaProblem
from safebo.problems.furuta.experiment import PATIENCE, STEPS
from safebo.runs import CallablePlant, SocketPlant, SubprocessPlant, Watchdog

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
    command = [sys.executable, str(HERE / "rig.py"), "socket", "--host", "localhost", "--port", "0"]
    rig = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    try:
        listening = rig.stdout.readline()
        port = listening.split()[-1]
        assert "localhost" in listening
        check(tune("socket", "--port", port, cwd=tmp_path))
    finally:
        rig.terminate()
        rig.wait()
        rig.stdout.close()
    assert rig.returncode == 0  # it stopped the motor first
    done = tune("socket", "--port", port, cwd=tmp_path)  # nobody listens any more
    assert done.returncode == 1 and "was aborted and not told" in done.stderr and port in done.stderr
    assert "No connection" in done.stderr and "STOP" not in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("experiments", [1, 2])
def test_a_ctrl_c_stops_the_rig_and_keeps_what_was_measured(tmp_path, experiments):
    command = [sys.executable, str(HERE / "tune.py"), "subprocess"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=ENVIRONMENT, cwd=tmp_path, start_new_session=True, **pipes) as process:
        for _ in range(experiments):
            assert "measured" in process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does; the rig's program is in a session of its own
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said and "FAILED" not in said
    first, second = said.splitlines()[-2:]
    assert first == "Interrupted. The rig was stopped." and "aborted-run.json" in second
    record = SafeOptimizer.from_json((tmp_path / "aborted-run.json").read_text())
    assert record.state.step >= 1 + experiments


def tuned(monkeypatch, tmp_path, values, experiments=3):
    """tune.py with a plant that answers with the given values, one after the other."""
    answers = iter(values)
    module, log = load("tune"), []
    plant = CallablePlant(
        lambda params: next(answers), emergency_stop=lambda: log.append("stop"), close=lambda: log.append("close")
    )
    monkeypatch.setattr(module, "connect", lambda options: plant)
    monkeypatch.chdir(tmp_path)
    return module.main(["subprocess", "--experiments", str(experiments)]), log


@pytest.mark.filterwarnings("ignore::safebo.exceptions.UnsafeMeasurementWarning")
def test_a_violation_is_said_and_is_no_success(monkeypatch, tmp_path, capsys):
    status, log = tuned(monkeypatch, tmp_path, [0.9, 0.9, -0.05])
    said = capsys.readouterr().out
    assert status == 4 and log == ["stop", "close"]
    assert re.search(r"VIOLATION: a1 0\.\d+, a2 0\.\d+ measured -0\.05, below the threshold 0\.", said)
    assert StopReason.VIOLATION.advice in said and "aborted-run.json" in os.listdir(tmp_path)


def test_that_nothing_can_be_certified_is_said_and_is_no_success(monkeypatch, tmp_path, capsys):
    status, log = tuned(monkeypatch, tmp_path, [0.05])
    said = capsys.readouterr().out
    assert status == 3 and log == ["close"]
    assert "stopped after 0 experiments, empty_safe_set" in said and StopReason.EMPTY_SAFE_SET.advice in said
    assert "best" not in said.splitlines()[-1] and "nothing is certified to be safe" in said


def test_a_start_that_is_not_safe_is_said(monkeypatch, tmp_path, capsys):
    status, log = tuned(monkeypatch, tmp_path, [-0.1])
    assert status == 4 and log == ["stop", "close"] and "is not safe" in capsys.readouterr().err


def test_an_answer_with_unknown_limits_ends_the_run_and_loses_nothing(monkeypatch, tmp_path, capsys):
    status, log = tuned(monkeypatch, tmp_path, [0.9, 0.9, {"objective": 0.6, "constraints": {"torque": -1.1}}])
    said = capsys.readouterr().err
    assert status == 1 and log == ["stop", "close"] and "was aborted and not told" in said
    assert "'torque': -1.1" in said and "objective 0.6" in said
    assert SafeOptimizer.from_json((tmp_path / "aborted-run.json").read_text()).state.step == 2


class Board:
    """The board that README.md asks for, with the simulation behind it."""

    def __init__(self):
        self.pendulum, self.enabled = FurutaPendulum(PERTURBED, disturbance=1e-3), False
        self.zero_encoders()

        self.during_rest = lambda: None
        self.voltages = []

    def enable(self):
        self.enabled = True

    def disable(self):
        self.enabled = False

    def wait_for_rest(self):
        assert not self.enabled
        self.during_rest()

    def zero_encoders(self):
        self.observation, _ = self.pendulum.reset(seed=0)

    def read_angles(self):
        return self.observation

    def write_voltage(self, voltage):
        assert abs(voltage) <= 10.0
        self.voltages.append(voltage)
        self.observation, *_ = self.pendulum.step(np.array([voltage if self.enabled else 0.0]))


@pytest.fixture
def qube(monkeypatch):
    """The class in README.md, as printed, with a board."""
    (code,) = re.findall(r"```python\n(.*?)```", (HERE / "README.md").read_text(), re.DOTALL)
    names = {}
    exec(code, names)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    return names["Qube"](Board())


def test_the_class_for_a_real_rig_in_the_readme(qube):
    rig = qube
    with pytest.raises(RuntimeError, match="stopped"):
        rig.run({"a1": 0.2, "a2": 0.3})
    rewards = []
    for a2 in (0.424, 0.3, 0.7):
        rig.reset()
        rewards.append(rig.run({"a1": 0.239, "a2": a2}))
        assert not rig.board.enabled and rig.board.voltages[-1] == 0.0  # while the optimizer computes
    assert rewards[0] > 0.0 and rewards[1] > 0.0 > rewards[2]
    with pytest.raises(RuntimeError, match="reset first"):
        rig.run({"a1": 0.239, "a2": 0.424})
    assert not rig.board.enabled


class Weak(Board):
    """Its motor does nothing for a number of periods."""

    periods = 0

    def write_voltage(self, voltage):
        super().write_voltage(voltage if len(self.voltages) > self.periods else 0.0)


def test_a_pendulum_that_is_caught_late_is_measured_as_usual(qube):
    qube.board = Weak()
    qube.board.periods = PATIENCE - 700
    qube.reset()
    assert qube.run({"a1": 0.239, "a2": 0.424}) > 0.0 and len(qube.board.voltages) > PATIENCE


@pytest.mark.parametrize("periods", [PATIENCE - 300, PATIENCE + STEPS])
def test_a_pendulum_that_is_caught_too_late_is_not_a_fall_of_the_tuned_gains(qube, periods):
    qube.board = Weak()
    qube.board.periods = periods
    qube.reset()
    with pytest.raises(RuntimeError, match="never caught within 20 s: the gains were not tried"):
        qube.run({"a1": 0.239, "a2": 0.424})
    assert not qube.board.enabled and qube.board.voltages[-1] == 0.0 and len(qube.board.voltages) <= PATIENCE + 2


def test_a_motor_with_swapped_wires_is_not_a_fall_of_the_tuned_gains(qube):
    step = qube.board.pendulum.step
    qube.board.pendulum.step = lambda voltage: step(-voltage)
    qube.reset()
    with pytest.raises(RuntimeError, match=r"arm left its limits.*the gains were not tried"):
        qube.run({"a1": 0.239, "a2": 0.424})
    assert not qube.board.enabled and qube.board.voltages[-1] == 0.0


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"a1": 0.2, "a2": 1.5}, "a2 = 1.5"),
        ({"a1": math.nan, "a2": 0.4}, "a1 = nan"),
        ({"a1": 0.2}, "'a1'"),
    ],
)
def test_that_class_refuses_parameters_outside_the_limits(qube, params, named):
    qube.reset()
    with pytest.raises(ValueError, match=named):
        qube.run(params)
    assert not qube.board.enabled and not qube.board.voltages


def test_that_class_stops_at_a_voltage_that_is_not_a_number(qube):
    qube.reset()
    angles, seen = qube.board.read_angles, []

    def broken():
        seen.append(qube.board.enabled)
        return angles() if len(seen) < 20 else np.array([math.nan, math.nan])

    qube.board.read_angles = broken
    with pytest.raises(RuntimeError, match="nan V"):
        qube.run({"a1": 0.239, "a2": 0.424})
    assert all(seen) and qube.board.voltages[-1] == 0.0 and np.isfinite(qube.board.voltages).all() and not qube.board.enabled


def test_a_stop_during_the_reset_of_that_class_is_not_undone(qube):
    qube.board.during_rest = qube.stop
    with pytest.raises(RuntimeError, match="stopped during the reset"):
        qube.reset()
    with pytest.raises(RuntimeError, match="reset first"):
        qube.run({"a1": 0.239, "a2": 0.424})
    assert not qube.board.enabled


def test_a_stop_during_an_experiment_of_that_class_ends_it(qube):
    qube.reset()
    angles = qube.board.read_angles
    qube.board.read_angles = lambda: (len(qube.board.voltages) == 20 and qube.stop(), angles())[1]
    with pytest.raises(RuntimeError, match="stopped"):
        qube.run({"a1": 0.239, "a2": 0.424})
    assert not qube.board.enabled and qube.board.voltages[20:] == [0.0, 0.0]


def test_that_class_is_disabled_even_if_no_voltage_can_be_written(qube):
    qube.board.enable()
    qube.board.write_voltage = lambda voltage: 1 / 0
    with pytest.raises(ZeroDivisionError):
        qube.stop()
    assert not qube.board.enabled


def test_a_stop_during_the_reset_of_the_simulated_rig_is_not_undone(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    rig = load("rig").SimulatedQube()
    rig.wait_for_rest = rig.stop
    with pytest.raises(RuntimeError, match="stopped during the reset"):
        rig.reset()
    with pytest.raises(RuntimeError, match="motor is off"):
        rig.run({"a1": 0.239, "a2": 0.424})
    del rig.wait_for_rest
    rig.reset()
    with pytest.raises(ValueError, match=r"a2 = 1\.5"):
        rig.run({"a1": 0.239, "a2": 1.5})


def test_a_pendulum_that_the_simulated_rig_never_catches_is_an_error(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    rig = load("rig").SimulatedQube()
    rig._problem = FurutaProblem(replace(PERTURBED, max_voltage=0.3))
    rig.reset()
    with pytest.raises(RuntimeError, match="never caught"):
        rig.run({"a1": 0.239, "a2": 0.424})


def load(name):
    spec = importlib.util.spec_from_file_location(f"hardware_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- protocol.py, with a rig that is only a few lines ------------------------------------------------------------------------


@pytest.fixture
def protocol():
    return load("protocol")


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
        (lambda p: float("nan"), "reports an error: 'ValueError: NaN"),
        (lambda p: {"objective": 1.0, "constraints": {"heat": float("inf")}}, "reports an error: 'ValueError: Infinity"),
        (lambda p: sys.exit("enough"), "reports an error.*RuntimeError.*enough"),
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
        wait_until(lambda: rig.log[-1] == "stop")
        assert rig.log == ["reset", "run", "stop"]


def wait_until(condition):
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("not within 5 s")


def test_a_line_that_closes_during_an_experiment_stops_it_at_once(protocol):
    begun, free = threading.Event(), threading.Event()
    rig = Rig(lambda params: begun.set() or (free.wait(20) and 1.0))
    with served(protocol, rig) as port:
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(b'{"id": 1, "command": "run", "params": {}}\n{"id": 2, "command": "reset"}\n')
            assert begun.wait(5)
            assert "stop" not in rig.log
        wait_until(lambda: "stop" in rig.log)
        free.set()
        with socket.create_connection(("127.0.0.1", port)) as line:  # once the experiment has ended, which stops the rig again
            line.sendall(b'{"id": 3, "command": "reset"}\n')
            assert json.loads(line.makefile().readline()) == {"id": 3}
        assert rig.log.count("reset") == 1 and rig.log.index("reset") == len(rig.log) - rig.log[::-1].index("reset") - 1
        assert rig.log[rig.log.index("reset") - 1] == "stop"  # the reset that still waited on the closed line was not executed


@pytest.mark.parametrize("line", ['{"id": 0, "command": "stop"}', "garbage"])
def test_a_stop_on_the_same_line_does_not_wait_either(protocol, line):
    begun, free = threading.Event(), threading.Event()
    rig = Rig(lambda params: begun.set() or (free.wait(20) and 1.0))
    with served(protocol, rig) as port, socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b'{"id": 1, "command": "run", "params": {}}\n')
        assert begun.wait(5)
        connection.sendall(line.encode() + b"\n")
        answers = connection.makefile()
        first = json.loads(answers.readline())
        assert first["id"] in (0, None) and rig.log == ["run", "stop"]
        free.set()
        assert json.loads(answers.readline()) == {"id": 1, "objective": 1.0}


def test_the_server_probes_silent_connections(protocol):
    probed, keep_alive = [], protocol.keep_alive

    def observe(connection):
        keep_alive(connection)
        probed.append(connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0)

    protocol.keep_alive = observe
    with served(protocol, Rig(lambda params: 0.5)) as port, socket.create_connection(("127.0.0.1", port)):
        wait_until(lambda: probed == [True])


PIPED = """
import hashlib, sys
sys.path.insert(0, {here!r})
from protocol import serve_pipes

class Rig:
    def reset(self): pass
    def run(self, params):
        open({log!r}, "a").write("run ")
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # a long call of C code
    def stop(self):
        {stop}
        open({log!r}, "a").write("stop ")

serve_pipes(Rig())
"""


def piped(tmp_path, stop="pass"):
    return [sys.executable, "-c", PIPED.format(here=str(HERE), log=str(tmp_path / "log"), stop=stop)]


@pytest.mark.parametrize("end", ["close", "terminate"])
def test_a_pipe_that_ends_during_an_experiment_stops_it_at_once(tmp_path, end):
    log = tmp_path / "log"
    with subprocess.Popen(piped(tmp_path), stdin=subprocess.PIPE, bufsize=0) as rig:
        try:
            rig.stdin.write(b'{"id": 1, "command": "run", "params": {}}\n')
            wait_until(log.exists)
            rig.stdin.close() if end == "close" else rig.terminate()
            assert rig.wait(10) == 0
        finally:
            rig.kill()
    assert log.read_text().startswith("run stop ")


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_slow_clean_up_does_not_spoil_an_orderly_end(tmp_path):
    program = f"import atexit, time\natexit.register(time.sleep, 60)\n{piped(tmp_path)[-1]}"
    plant = SubprocessPlant([sys.executable, "-c", program], timeout=20)
    plant.reset()
    os.kill(plant._line.pid, signal.SIGINT)
    wait_until((tmp_path / "log").exists)  # stopped
    time.sleep(0.1)
    plant.emergency_stop()
    assert (tmp_path / "log").read_text().startswith("stop ")


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_anything_is_switched_on_ends_the_program_in_order(number):
    program = f"import sys, time; sys.path.insert(0, {str(HERE)!r}); import protocol; protocol.nothing_to_stop()"
    command = [sys.executable, "-c", f"{program}; print('ready', flush=True); time.sleep(20)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as rig:
        rig.stdout.readline()
        rig.send_signal(number)
        assert rig.wait(10) == 0


def test_an_experiment_in_c_code_is_stopped_through_the_pipe(tmp_path):
    plant = Watchdog(SubprocessPlant(piped(tmp_path), timeout=20), timeout=0.5, reset_timeout=20)
    plant.reset()
    with pytest.raises(ExperimentAborted, match=r"hung.*The plant was stopped"):
        plant.run({"a": 1.0})
    assert (tmp_path / "log").read_text().startswith("run stop ")


def test_a_stop_that_fails_on_the_other_side_of_the_pipe_is_reported(tmp_path):
    plant = Watchdog(SubprocessPlant(piped(tmp_path, "raise OSError('no board')"), timeout=20), timeout=0.5, reset_timeout=20)
    plant.reset()
    with pytest.raises(ExperimentAborted, match=r"hung.*not confirmed"):
        plant.run({"a": 1.0})


def test_a_stop_that_fails_is_answered_as_an_error(protocol):
    rig = Rig(lambda params: 0.5)
    rig.stop = lambda: 1 / 0
    reply = json.loads(protocol.answer(rig, '{"id": 4, "command": "stop"}', threading.Lock()))
    assert reply["id"] == 4 and "THE STOP FAILED" in reply["error"]


def test_an_answer_is_always_json(protocol):
    def refuse(constant):
        raise AssertionError(constant)

    rig = Rig(lambda params: float("nan"))
    for line in ('{"id": 1, "command": "run", "params": {}}', '{"id": NaN, "command": "run", "params": {}}'):
        assert "NaN" in json.loads(protocol.answer(rig, line, threading.Lock()), parse_constant=refuse)["error"]
        assert rig.log[-1] == "stop"


@pytest.mark.parametrize("line", ["garbage", "{}", '{"id": 1, "command": "dance"}', '{"id": 1, "command": "run"}', "[]"])
def test_a_request_that_makes_no_sense_is_an_error(protocol, line):
    rig = Rig(lambda params: 0.5)
    assert "error" in json.loads(protocol.answer(rig, line, threading.Lock())) and rig.log == ["stop"]
