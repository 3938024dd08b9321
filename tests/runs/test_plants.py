"""Plants: what counts as a measurement, rigs behind pipes and sockets that hang, crash or talk nonsense, and the loop."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import sys
import threading
import time

import numpy as np
import pytest

from safebo import Box, Constraint, Matern, SafeOptimizer
from safebo.exceptions import (
    ExperimentAborted,
    InvalidMeasurementError,
    InvalidValueError,
    NeverConnectedError,
    NoInitialSampleError,
    PlantError,
    PlantTimeoutError,
    StopFailedWarning,
)
from safebo.runs import CallablePlant, Measurement, Plant, SocketPlant, SubprocessPlant, Watchdog, drive, measurement, plants

PARAMS = {"a": 0.25}

RIG = """
import json, sys, time
for n, line in enumerate(sys.stdin):
    request = json.loads(line)
    reply = {"id": request["id"]}
    if request["command"] == "run":
        a = request["params"]["a"]
        BODY
    print(json.dumps(reply), flush=True)
"""


def rig(body="reply['objective'] = a * 2"):
    return [sys.executable, "-c", RIG.replace("BODY", body)]


# -- measurements ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5, Measurement(0.5)),
        (np.float64(0.5), Measurement(0.5)),
        (3, Measurement(3.0)),
        ({"objective": 0.5}, Measurement(0.5)),
        ({"objective": 0.5, "constraints": {"heat": 1}}, Measurement(0.5, {"heat": 1.0})),
        (Measurement(0.5, {"heat": 1.0}), Measurement(0.5, {"heat": 1.0})),
    ],
)
def test_measurements(value, expected):
    assert measurement(value) == expected


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (None, "None"),
        (True, "True"),
        ("0.5", "'0.5'"),
        ([0.5], r"\[0.5\]"),
        ({}, "no 'objective'"),
        ({"objective": math.nan}, "'objective'.*nan"),
        ({"objective": 0.5, "constraints": {"heat": None}}, "'heat'.*None"),
        ({"objective": 0.5, "constraints": {"heat": math.nan}}, "'heat'.*nan"),
        ({"objective": 0.5, "constraints": [1.0]}, r"'constraints'.*\[1.0\]"),
        ({"objective": 0.5, "constraints": {1: 1.0}}, r"\[1\]"),
        ({"objective": 0.5, "reward": 1.0}, "reward"),
        (Measurement(math.nan), "nan"),
    ],
)
def test_what_is_not_a_measurement_is_named(value, named):
    with pytest.raises(InvalidMeasurementError, match=named) as error:
        measurement(value)
    assert isinstance(error.value, ValueError)


# -- subprocess --------------------------------------------------------------------------------------------------------------


def test_a_persistent_program_keeps_its_state():
    plant = SubprocessPlant(rig("reply['objective'], reply['constraints'] = a * 2, {'calls': n}"), timeout=20)
    assert isinstance(plant, Plant)
    try:
        plant.reset()
        assert plant.run(PARAMS) == Measurement(0.5, {"calls": 1.0})
        plant.reset()
        assert plant.run({"a": 1.0}) == Measurement(2.0, {"calls": 3.0})
    finally:
        plant.close()
    plant.close()  # twice does no harm
    with pytest.raises(PlantError, match="reset"):
        plant.run(PARAMS)


def test_one_process_per_experiment():
    plant = SubprocessPlant(rig("reply['objective'] = n"), timeout=20, persistent=False)
    plant.reset()
    assert [plant.run(PARAMS).objective for _ in range(2)] == [0.0, 0.0]


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("time.sleep(60)", PlantTimeoutError, "'run' within"),
        ("sys.exit(3)", PlantError, "exit status 3"),
        ("print('ready!')", InvalidMeasurementError, "not JSON: 'ready!'"),
        ("print('[1, 2]')", InvalidMeasurementError, "not a JSON object"),
        ("reply['objective'] = float('nan')", InvalidMeasurementError, "NaN"),
        ("reply['objective'] = 'high'", InvalidMeasurementError, "'high'"),
        ("pass", InvalidMeasurementError, "no 'objective'"),
        ("reply = {'id': 99, 'objective': 1}", InvalidMeasurementError, "another id"),
        ("reply['error'] = 'arm is blocked'", PlantError, "arm is blocked"),
    ],
)
def test_a_program_that_fails(body, error, message, persistent):
    plant = SubprocessPlant(rig(body), timeout=0.5 if "sleep" in body else 20.0, reset_timeout=20.0, persistent=persistent)
    plant.reset()
    with pytest.raises(error, match=message):
        plant.run(PARAMS)
    if persistent:
        with pytest.raises(PlantError, match="Nothing was sent"):  # the line is gone, nothing is sent again
            plant.run(PARAMS)
    plant.close()


def test_a_program_that_ends_badly_after_its_answer_is_not_trusted():
    ends = "reply['objective'] = 1; print(json.dumps(reply), flush=True); sys.exit(4)"
    with pytest.raises(PlantError, match="status 4"):
        SubprocessPlant(rig(ends), timeout=20, persistent=False).run(PARAMS)


def test_words_between_experiments_are_refused():
    plant = SubprocessPlant(rig("reply['objective'] = 1; print(json.dumps(reply), flush=True)"), timeout=20)
    plant.reset()
    plant.run(PARAMS)
    time.sleep(0.1)
    with pytest.raises(PlantError, match=r"unasked.*Nothing was sent"):
        plant.run(PARAMS)
    plant.close()


def test_a_program_that_is_not_there():
    with pytest.raises(PlantError, match="no-such-rig"):
        SubprocessPlant(["no-such-rig"], timeout=1.0).reset()
    with pytest.raises(InvalidValueError, match="list"):
        SubprocessPlant("python rig.py", timeout=1.0)
    with pytest.raises(InvalidValueError, match="timeout must be positive"):
        SubprocessPlant(["rig"], timeout=0.0)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: SubprocessPlant([1], timeout=1), r"command.*got 1 in \[1\]"),
        (lambda: SubprocessPlant(["a\0b"], timeout=1), "command"),
        (lambda: SubprocessPlant(7, timeout=1), "command.*7"),
        (lambda: SubprocessPlant(["rig"], timeout=1, stop="off"), "stop.*'off'"),
        (lambda: SubprocessPlant(["rig"], timeout=1, stop=[None]), "stop.*None"),
        (lambda: SocketPlant(3, 5555, timeout=1.0), "host.*3"),
        (lambda: SocketPlant("", 5555, timeout=1.0), "host.*''"),
        (lambda: SocketPlant("rig", "5555", timeout=1.0), "port.*'5555'"),
        (lambda: SocketPlant("rig", 70000, timeout=1.0), "port.*70000"),
        (lambda: SocketPlant("rig", 0.5, timeout=1.0), "port.*0.5"),
        (lambda: SocketPlant("rig", 5555, timeout=1e12), r"timeout.*1000000000000\.0"),
        (lambda: SocketPlant("rig", 5555, timeout=1, stop_timeout=1e7), r"stop_timeout.*10000000\.0"),
        (lambda: Watchdog(CallablePlant(lambda p: 1.0), timeout=1e12), r"timeout.*1000000000000\.0"),
        (lambda: Watchdog(CallablePlant(lambda p: 1.0), timeout=1, reset_timeout=1e12), "reset_timeout"),
    ],
)
def test_arguments_are_checked_at_once(make, named):
    with pytest.raises(InvalidValueError, match=named):
        make()


def test_the_longest_times_work():
    with server(good) as (port, _):
        plant = Watchdog(SocketPlant("127.0.0.1", np.int64(port), timeout=1e6, stop_timeout=1e6), timeout=1e6, stop_timeout=1e6)
        plant.reset()
        assert plant.run(PARAMS).objective == 0.5
        plant.emergency_stop()
        plant.close()


def test_parameters_that_cannot_be_sent():
    plant = SubprocessPlant(rig(), timeout=20)
    for wrong in (math.nan, object()):
        plant.reset()
        with pytest.raises(InvalidValueError, match="cannot be sent"):
            plant.run({"a": wrong})
    plant.close()


def test_the_emergency_stop_ends_a_deaf_program_and_runs_the_stop_program(tmp_path):
    marks = tmp_path / "stopped"
    deaf = rig("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); reply['objective'] = 1")
    stop = [sys.executable, "-c", f"open({str(marks)!r}, 'w').close()"]
    plant = SubprocessPlant(deaf, timeout=20, stop=stop)
    plant.reset()
    plant.run(PARAMS)
    program = plant._line._program
    plant.emergency_stop()
    assert program.wait(0) is not None and marks.exists()
    broken = SubprocessPlant(deaf, timeout=20, stop=[sys.executable, "-c", "raise SystemExit(1)"])
    with pytest.raises(PlantError, match="stop program"):
        broken.emergency_stop()


STUCK = "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"
"""A long call of C code: handlers of signals run afterwards only."""


@pytest.mark.parametrize(("own", "watched"), [(20.0, 0.5), (0.5, 20.0)])  # who notices first
def test_a_program_that_had_to_be_killed_has_not_confirmed_the_stop(own, watched):
    body = f"import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); {STUCK}"
    plant = Watchdog(SubprocessPlant(rig(body), timeout=own, reset_timeout=20), timeout=watched, reset_timeout=20)
    plant.reset()
    with pytest.raises(
        ExperimentAborted, match=r"EMERGENCY STOP FAILED.*stop is not confirmed. Switch the rig off by hand"
    ) as error:
        plant.run(PARAMS)
    assert "was stopped" not in error.value.reason and error.value.reason.count("by hand") == 1
    with pytest.raises(PlantError, match="not confirmed"):  # still
        plant.emergency_stop()
    plant.reset()
    plant.close()


@pytest.mark.parametrize("body", ["import os; os.abort()", "sys.exit(1)"])
def test_a_program_that_crashed_has_not_confirmed_the_stop(body):
    plant = Watchdog(SubprocessPlant(rig(body), timeout=20), timeout=20)
    plant.reset()
    with pytest.raises(ExperimentAborted, match="not confirmed"):
        plant.run(PARAMS)


def test_a_stop_program_confirms_it_also_after_the_end(tmp_path):
    log = tmp_path / "log"
    stop = [sys.executable, "-c", f"open({str(log)!r}, 'a').write('off ')"]
    plant = Watchdog(SubprocessPlant(rig(STUCK), timeout=20, stop=stop), timeout=0.5, reset_timeout=20, stop_timeout=20)
    plant.reset()
    with pytest.raises(ExperimentAborted, match=r"hung.*The plant was stopped"):
        plant.run(PARAMS)
    assert log.read_text() == "off off "  # before the process was killed, and after: it could have switched the rig on again


def test_a_program_that_ends_in_order_confirms_the_stop():
    body = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(60)"
    plant = Watchdog(SubprocessPlant(rig(body), timeout=20), timeout=0.5, reset_timeout=20)
    plant.reset()
    with pytest.raises(ExperimentAborted, match=r"hung.*The plant was stopped"):
        plant.run(PARAMS)


SWITCHES_OFF = """import signal
def off(*_):
    time.sleep(0.05)  # the motor
    sys.exit(0)
signal.signal(signal.SIGINT, off)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("pause", [0.0, 0.01, 0.03, 0.06, 0.3])
def test_a_program_that_a_ctrl_c_ends_in_order_has_confirmed_the_stop(pause):
    plant = SubprocessPlant(
        [sys.executable, "-c", f"import sys, time\n{SWITCHES_OFF}\n{RIG}".replace("BODY", "pass")], timeout=20
    )
    plant.reset()
    os.kill(plant._line.pid, signal.SIGINT)  # somebody sends it to both
    time.sleep(pause)
    plant.emergency_stop()
    assert plant._line is None


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_program_that_a_ctrl_c_kills_has_not():
    plant = SubprocessPlant(rig(), timeout=20)
    plant.reset()
    os.kill(plant._line.pid, signal.SIGINT)
    with pytest.raises(PlantError, match="not confirmed"):
        plant.emergency_stop()


def test_an_emergency_stop_waits_for_an_end_that_is_under_way():
    plant = SubprocessPlant(rig(STUCK), timeout=0.3, reset_timeout=20)
    plant.reset()
    program = plant._line._program
    running = threading.Thread(target=_quietly, args=(plant.run, PARAMS))
    running.start()
    time.sleep(0.6)  # the time-out is over, the process is being ended
    with pytest.raises(PlantError, match="not confirmed"):
        plant.emergency_stop()
    assert program.wait(0) is not None
    running.join()


def _quietly(work, *arguments):
    with contextlib.suppress(PlantError):
        work(*arguments)


def test_a_stop_while_the_connection_is_made_is_not_undone():
    with server(good) as (port, log):
        plant = SocketPlant("127.0.0.1", port, timeout=5)
        opened = plant.open_line

        def slow():
            line = opened()
            plant.emergency_stop()
            return line

        plant.open_line = slow
        with pytest.raises(PlantError, match=r"emergency stop came.*Nothing was sent"):
            plant.reset()
        assert commands(log) == ["stop"]
        with pytest.raises(PlantError, match="reset"):
            plant.run(PARAMS)


# -- socket ------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def server(behave):
    """A rig's server; `behave(request)` gives the bytes of the answer, or None to close the connection. Yields (port, log)."""
    log = []

    def talk(connection):
        with connection, connection.makefile("r") as lines, contextlib.suppress(OSError):
            for line in lines:
                log.append(json.loads(line))
                answer = behave(log[-1])
                if answer is None:
                    return
                connection.sendall(answer)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1], log
        listener.shutdown(socket.SHUT_RDWR)


def good(request, **extra):
    reply = {"id": request["id"], **({"objective": 0.5} if request["command"] == "run" else {}), **extra}
    return json.dumps(reply).encode() + b"\n"


def commands(log):
    return [request["command"] for request in log]


def test_a_socket():
    with server(good) as (port, log):
        plant = SocketPlant("127.0.0.1", port, timeout=5)
        plant.reset()
        assert plant.run(PARAMS) == Measurement(0.5) and log[1]["params"] == PARAMS
        plant.emergency_stop()
        plant.close()
        assert commands(log) == ["reset", "run", "stop"]


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (lambda r: time.sleep(2.0), PlantTimeoutError, "'run' within"),
        (lambda r: None, PlantError, "closed the connection"),
        (lambda r: b"#!\xff\n", InvalidMeasurementError, "not JSON"),
        (lambda r: good(r, objective=None), InvalidMeasurementError, "None"),
        (lambda r: good({**r, "id": r["id"] - 1}), InvalidMeasurementError, "another id"),
    ],
)
def test_an_experiment_that_may_have_run_is_never_sent_again(reply, error, message):
    failing = [True]
    with server(lambda r: reply(r) if r["command"] == "run" and failing[0] else good(r)) as (port, log):
        plant = SocketPlant("127.0.0.1", port, timeout=0.3, reset_timeout=5)
        plant.reset()
        with pytest.raises(error, match=message):
            plant.run(PARAMS)
        with pytest.raises(PlantError, match="Nothing was sent"):
            plant.run(PARAMS)
        assert commands(log) == ["reset", "run"]
        failing[0] = False
        plant.reset()  # a new connection, between experiments
        assert plant.run(PARAMS).objective == 0.5
        plant.close()


def test_an_answer_that_comes_late_is_not_taken_for_the_next_one():
    def late(request):
        if request.get("params") == {"a": 1.0}:
            time.sleep(0.4)
            return good(request, objective=111.0)
        return good(request)

    with server(late) as (port, _):
        plant = SocketPlant("127.0.0.1", port, timeout=0.2, reset_timeout=5)
        plant.reset()
        with pytest.raises(PlantTimeoutError):
            plant.run({"a": 1.0})
        plant.reset()
        time.sleep(0.4)
        assert plant.run(PARAMS).objective == 0.5
        plant.close()


@pytest.mark.parametrize("unasked", [b"ready!\n", b"{", b""])
def test_words_after_an_answer_are_noticed_before_anything_is_sent(unasked):
    asked = []

    def talk(listener):
        connection, _ = listener.accept()
        with connection, connection.makefile("r") as lines, contextlib.suppress(OSError):
            for line in lines:
                asked.append(json.loads(line))
                connection.sendall(good(asked[-1]))
                if asked[-1]["command"] == "run":
                    time.sleep(0.1)  # a packet of its own, or the end
                    if not unasked:
                        return
                    connection.sendall(unasked)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=talk, args=(listener,), daemon=True).start()
        plant = SocketPlant("127.0.0.1", listener.getsockname()[1], timeout=5)
        plant.reset()
        plant.run(PARAMS)
        time.sleep(0.3)
        with pytest.raises(PlantError, match=r"(unasked|closed the connection).*Nothing was sent"):
            plant.run(PARAMS)
        plant.close()
        assert commands(asked) == ["reset", "run"]


def test_no_server():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    plant = SocketPlant("127.0.0.1", port, timeout=1.0)
    for work in (plant.reset, plant.emergency_stop):
        with pytest.raises(PlantError, match=f"{port}.*Nothing was sent"):
            work()
    watched = Watchdog(plant, timeout=5.0)
    with pytest.raises(ExperimentAborted, match=r"No connection.*Nothing was sent\.$") as error:
        watched.reset()  # nothing to stop
    assert "STOP" not in error.value.reason and isinstance(error.value.__cause__, NeverConnectedError)


def test_a_server_that_vanished_needs_a_stop():
    with server(good) as (port, _):
        plant = Watchdog(SocketPlant("127.0.0.1", port, timeout=1.0), timeout=5.0)
        plant.reset()
        plant.plant.close()
    with pytest.raises(ExperimentAborted, match=r"No connection.*EMERGENCY STOP FAILED.*by hand"):
        plant.reset()


def test_a_silent_connection_is_probed():
    with server(good) as (port, _):
        plant = SocketPlant("127.0.0.1", port, timeout=1.0)
        plant.reset()
        assert plant._line._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        plant.close()


# -- watchdog ----------------------------------------------------------------------------------------------------------------


def stoppable(measure, log, **parts):
    return CallablePlant(measure, emergency_stop=lambda: log.append("stop"), reset=lambda: log.append("reset"), **parts)


def test_a_watched_plant_that_works():
    log = []
    plant = Watchdog(stoppable(lambda p: {"objective": p["a"], "constraints": {"heat": 1}}, log), timeout=5)
    with pytest.raises(ExperimentAborted, match="not reset"):
        plant.run(PARAMS)
    plant.reset()
    assert plant.run(PARAMS) == Measurement(0.25, {"heat": 1.0}) and log == ["reset"]
    plant.emergency_stop()
    with pytest.raises(ExperimentAborted, match="not reset"):
        plant.run(PARAMS)
    plant.close()


def test_a_hang_is_an_aborted_experiment():
    log, free = [], threading.Event()
    plant = Watchdog(stoppable(lambda p: free.wait(20) and 1.0, log), timeout=0.1)
    plant.reset()
    with pytest.raises(ExperimentAborted, match=r"hung: no answer within 0.1 s.*stopped") as error:
        plant.run(PARAMS)
    assert log == ["reset", "stop"] and error.value.params == PARAMS and error.value.__cause__ is None
    with pytest.raises(ExperimentAborted, match="still hangs"):
        plant.reset()
    free.set()
    plant._busy.join()
    plant.reset()
    assert plant.run(PARAMS) == Measurement(1.0)


@pytest.mark.parametrize(
    ("measure", "reason"),
    [
        (lambda p: 1 / 0, "ZeroDivisionError"),
        (lambda p: sys.exit(1), "SystemExit"),
        (lambda p: math.nan, "nan"),
        (lambda p: {"constraints": {}}, "no 'objective'"),
    ],
)
def test_a_crash_is_an_aborted_experiment(measure, reason):
    log = []
    plant = Watchdog(stoppable(measure, log), timeout=5)
    plant.reset()
    with pytest.raises(ExperimentAborted, match=reason):
        plant.run(PARAMS)
    assert log == ["reset", "stop"]


def test_a_stop_that_fails_or_hangs_is_said_loudly():
    def no_stop():
        raise OSError("relay does not answer")

    plant = Watchdog(CallablePlant(lambda p: 1 / 0, emergency_stop=no_stop), timeout=5)
    plant.reset()
    with pytest.raises(ExperimentAborted, match=r"EMERGENCY STOP FAILED.*relay"):
        plant.run(PARAMS)
    with pytest.raises(PlantError, match="relay"):
        plant.emergency_stop()
    plant = Watchdog(CallablePlant(lambda p: 1 / 0, emergency_stop=lambda: time.sleep(3)), timeout=5, stop_timeout=0.1)
    plant.reset()
    with pytest.raises(ExperimentAborted, match="EMERGENCY STOP HUNG"):
        plant.run(PARAMS)


def test_that_a_plant_was_stopped_is_said_only_of_one_that_can_be():
    plant = Watchdog(CallablePlant(lambda p: 1 / 0), timeout=5)
    plant.reset()
    with pytest.raises(ExperimentAborted, match="has no emergency stop") as error:
        plant.run(PARAMS)
    assert "was stopped" not in error.value.reason
    with pytest.raises(ExperimentAborted, match="has no emergency stop") as error:
        drive(optimizer(), CallablePlant(lambda p: {"objective": 1, "constraints": {"heat": 1}}), 1, initial={"a": 0.4})
    assert "was stopped" not in error.value.reason


def test_a_failed_reset_is_an_aborted_experiment():
    log = []
    plant = Watchdog(CallablePlant(lambda p: 1.0, reset=lambda: 1 / 0, emergency_stop=lambda: log.append("stop")), timeout=5)
    with pytest.raises(ExperimentAborted, match="reset failed: ZeroDivisionError"):
        plant.reset()
    assert log == ["stop"]


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("fails", [False, True])
def test_an_interrupt_of_a_watched_plant_stops_it_and_stays_one(fails):
    log, free = [], threading.Event()

    def stop():
        log.append("stop")
        if fails:
            raise OSError("relay does not answer")

    def work(params):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return free.wait(20) and 1.0

    plant = Watchdog(CallablePlant(work, emergency_stop=stop), timeout=20)
    plant.reset()
    said = pytest.warns(StopFailedWarning, match=r"EMERGENCY STOP FAILED: OSError: relay") if fails else contextlib.nullcontext()
    with said, pytest.raises(KeyboardInterrupt):
        plant.run(PARAMS)
    free.set()
    assert log == ["stop"]
    with pytest.raises(ExperimentAborted, match="not reset"):
        plant.run(PARAMS)


def test_what_cannot_be_watched():
    with pytest.raises(InvalidValueError, match="not a plant"):
        Watchdog(lambda p: 1.0, timeout=1.0)
    with pytest.raises(InvalidValueError, match="callable"):
        CallablePlant(1.0)
    with pytest.raises(InvalidValueError, match="positive"):
        Watchdog(CallablePlant(lambda p: 1.0), timeout=-1.0)


def test_a_watched_program_that_hangs_is_killed():
    plant = SubprocessPlant(rig("time.sleep(60)"), timeout=30, reset_timeout=20)
    watched = Watchdog(plant, timeout=0.3, reset_timeout=20)
    watched.reset()
    program = plant._line._program
    with pytest.raises(ExperimentAborted, match="hung"):
        watched.run(PARAMS)
    assert program.wait(0) is not None


# -- the loop ----------------------------------------------------------------------------------------------------------------


def optimizer(**options):
    return SafeOptimizer(Box({"a": (0.0, 1.0)}), 0.0, kernel=Matern(1.5, 0.3), points_per_axis=60, **options)


def f(params):
    return 1.0 - (params["a"] - 0.5) ** 2


def test_drive():
    seen, opt = [], optimizer()
    result = drive(opt, CallablePlant(f), 3, initial={"a": 0.4}, on_result=lambda trial, m: seen.append((trial, m.objective)))
    assert result.experiments == 3 and not result.aborted and result.stop_reason is None
    assert opt.state.step == 4 and [value for _, value in seen] == opt.state.values()[1:, 0].tolist()
    drive(opt, CallablePlant(f), 1, initial={"a": 0.4})  # continues: the initial experiment is not repeated
    assert opt.state.step == 5


def test_drive_ends_when_the_optimizer_does():
    opt = optimizer(min_width=100.0)
    result = drive(opt, CallablePlant(f), 10, initial={"a": 0.4})
    assert result.experiments == 0 and result.stop_reason is opt.stop_reason is not None


def test_an_aborted_experiment_is_never_told_and_ends_the_loop():
    calls = []

    def sometimes(params):
        calls.append(params)
        if len(calls) == 3:
            raise RuntimeError("belt came off")
        return f(params)

    opt = optimizer()
    plant = Watchdog(CallablePlant(sometimes), timeout=5)
    with pytest.raises(ExperimentAborted, match=r"Experiment 2 of 5 was aborted and not told.*belt came off"):
        drive(opt, plant, 5, initial={"a": 0.4})
    assert opt.state.step == 2 and len(calls) == 3
    next_trial = opt.ask()
    assert next_trial.params == calls[2]  # asked for again once the rig works
    assert drive(opt, plant, 2).experiments == 2


@pytest.mark.parametrize("go_on", [True, False])
def test_the_caller_decides_about_an_abort(go_on):
    calls = []

    def sometimes(params):
        calls.append(params)
        return math.nan if len(calls) == 2 else f(params)

    opt = optimizer()
    result = drive(opt, Watchdog(CallablePlant(sometimes), timeout=5), 3, initial={"a": 0.4}, on_abort=lambda trial, error: go_on)
    assert len(result.aborted) == 1 and result.experiments == (3 if go_on else 0)
    assert (calls[2] != calls[1]) if go_on else len(calls) == 2  # elsewhere
    assert [a.reason for a in opt.state.aborts] == ([result.aborted[0].reason] if go_on else [])
    assert np.isfinite(opt.state.values()).all()


def test_an_unwatched_error_stops_the_plant_and_is_passed_on():
    log, opt = [], optimizer()
    with pytest.raises(ZeroDivisionError):
        drive(opt, CallablePlant(lambda p: 1 / 0, emergency_stop=lambda: log.append("stop")), 3, initial={"a": 0.4})
    assert log == ["stop"] and opt.state.step == 0
    with pytest.raises(NoInitialSampleError):
        drive(opt, CallablePlant(f), 3)


def test_limits_are_told_with_the_objective():
    opt = optimizer(constraints={"heat": Constraint(upper=2.0)})
    drive(opt, CallablePlant(lambda p: {"objective": f(p), "constraints": {"heat": p["a"]}}), 2, initial={"a": 0.4})
    assert opt.state.values().shape == (3, 2)
    with pytest.raises(ExperimentAborted, match=r"lacks \['heat'\]"):
        drive(opt, CallablePlant(f), 1)
    assert opt.state.step == 3


def test_a_stop_during_a_reset_outlasts_it():
    log, reached, go_on = [], threading.Event(), threading.Event()

    def reset():
        reached.set()
        go_on.wait(10.0)
        log.append("reset ends")

    plant = Watchdog(
        CallablePlant(lambda params: log.append("run") or 1.0, reset=reset, emergency_stop=lambda: log.append("stop")),
        timeout=20.0,
    )

    def work():
        with pytest.raises(ExperimentAborted) as error:
            plant.reset()
        log.append(error.value.reason)

    worker = threading.Thread(target=work)
    worker.start()
    reached.wait(10.0)
    plant.emergency_stop()
    go_on.set()
    worker.join(20.0)
    assert log[:3] == ["stop", "reset ends", "stop"] and "while the plant was being reset" in log[3]
    with pytest.raises(ExperimentAborted, match="not reset"):
        plant.run({})
    assert "run" not in log


@pytest.mark.parametrize("what", ["reset", "run"])
def test_a_stop_just_before_a_call_begins_leaves_nothing_to_begin(monkeypatch, what):
    log, real = [], plants._thread
    plant = Watchdog(stoppable(lambda p: log.append("run") or 1.0, log), timeout=20.0)
    if what == "run":
        plant.reset()
    del log[:]

    def late(work, outcome, failure):
        if threading.current_thread() is threading.main_thread() and "stop" not in log:
            stopping = threading.Thread(target=plant.emergency_stop)
            stopping.start()
            stopping.join(20.0)
        return real(work, outcome, failure)

    monkeypatch.setattr(plants, "_thread", late)
    with pytest.raises(ExperimentAborted, match=r"[Ss]top.*Nothing was run"):
        plant.run(PARAMS) if what == "run" else plant.reset()
    assert log == ["stop"]
    with pytest.raises(ExperimentAborted, match="not reset"):
        plant.run(PARAMS)
    plant.reset()
    assert plant.run(PARAMS) == Measurement(1.0)


def test_what_an_experiment_returns_after_a_stop_is_no_measurement():
    log, begun, go_on = [], threading.Event(), threading.Event()

    def measure(params):
        begun.set()
        go_on.wait(20.0)
        log.append("run ends")
        return 1.0

    plant = Watchdog(stoppable(measure, log), timeout=30.0)
    plant.reset()

    def stop():
        begun.wait(20.0)
        plant.emergency_stop()
        go_on.set()

    stopping = threading.Thread(target=stop)
    stopping.start()
    with pytest.raises(ExperimentAborted, match=r"stop came.*does not count.*The plant was stopped") as error:
        plant.run(PARAMS)
    stopping.join(20.0)
    assert log == ["reset", "stop", "run ends", "stop"] and error.value.params == PARAMS  # it may have begun after the stop
