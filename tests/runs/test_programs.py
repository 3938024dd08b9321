"""A rig's program behind a start script: whatever it has started ends with it, and a stop is confirmed only when it is known."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.hostile.wrappers import megabytes
from safebo.exceptions import ExperimentAborted, InvalidMeasurementError, PlantError, StopFailedWarning
from safebo.runs import Measurement, SubprocessPlant, Watchdog, keeper

pytestmark = pytest.mark.skipif(os.name == "nt", reason="processes of POSIX")

RIG = """
import json, os, sys, threading, time
SETUP
def tick():
    while True:
        with open(TICKS, "a") as file:
            file.write(f"{time.time()}\\n")
        time.sleep(0.02)
threading.Thread(target=tick, daemon=True).start()
for line in sys.stdin:
    request = json.loads(line)
    reply = {"id": request["id"]}
    if request["command"] == "run":
        BODY
    print(json.dumps(reply), flush=True)
os._exit(0)
"""
"""Its motor runs, which writes the time into a file, for as long as the program does."""

DEAF = "import signal; [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]"

TWICE = "os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0)"
"""A daemon: another session, another group, and no parent."""


def rig(folder, body="time.sleep(60)", setup=""):
    program = folder / "rig.py"
    program.write_text(RIG.replace("SETUP", setup).replace("BODY", body).replace("TICKS", repr(str(folder / "ticks"))))
    return [sys.executable, str(program)]


def ticks(folder):
    return [float(line) for line in (folder / "ticks").read_text().split()] if (folder / "ticks").exists() else []


def still(folder):
    """No tick any more."""
    before = ticks(folder)
    time.sleep(0.3)
    return ticks(folder) == before


def log_of(folder):
    return [sys.executable, "-c", f"open({str(folder / 'stops')!r}, 'a').write('off ')"]


def wrapped(folder, wrapper, **parts):
    command = shlex.join(rig(folder, **parts))
    return {
        "waits": ["sh", "-c", f"{command}; exit $?"],
        "deaf": ["sh", "-c", f"trap '' TERM INT HUP; {command}; exit $?"],
        "background": ["bash", "-c", f"exec 3<&0; {command} <&3 & wait"],
    }[wrapper]


@pytest.mark.parametrize("wrapper", ["deaf", "background"])
def test_a_stop_ends_the_rig_behind_a_start_script(tmp_path, wrapper):
    command = wrapped(tmp_path, wrapper, setup=DEAF)
    plant = Watchdog(SubprocessPlant(command, timeout=60), timeout=1.0, reset_timeout=60, stop_timeout=20)
    plant.reset()
    with pytest.raises(ExperimentAborted, match=r"EMERGENCY STOP FAILED.*not confirmed"):
        plant.run({"a": 1.0})
    assert ticks(tmp_path) and still(tmp_path)


def test_a_daemon_does_not_escape(tmp_path):
    plant = SubprocessPlant(rig(tmp_path, setup=f"{TWICE}; {DEAF}"), timeout=1.0, reset_timeout=60)
    plant.reset()
    with pytest.raises(PlantError):
        plant.run({"a": 1.0})
    assert ticks(tmp_path) and still(tmp_path)
    with pytest.raises(PlantError, match="not confirmed"):
        plant.emergency_stop()


@pytest.mark.parametrize("body", ["reply['objective'] = 1; os.fork() or time.sleep(60)", "time.sleep(60)"])
def test_one_process_per_experiment_leaves_nothing_behind(tmp_path, body):
    plant = SubprocessPlant(rig(tmp_path, body), timeout=3.0, persistent=False)
    with pytest.raises(PlantError, match="left processes behind" if "fork" in body else "within 3 s"):
        plant.run({"a": 1.0})
    assert still(tmp_path)


def test_an_end_behind_a_start_script_is_orderly(tmp_path):
    plant = SubprocessPlant(wrapped(tmp_path, "waits", body="reply['objective'] = 1"), timeout=60)
    plant.reset()
    assert plant.run({"a": 1.0}) == Measurement(1.0)
    plant.emergency_stop()  # the closed input is enough
    assert still(tmp_path)


def test_a_start_script_that_ends_before_its_rig_confirms_nothing(tmp_path):
    command = wrapped(tmp_path, "waits", setup="os.fork() and os._exit(0)")
    plant = Watchdog(SubprocessPlant(command, timeout=60), timeout=0.5, reset_timeout=60, stop_timeout=20)
    plant.reset()
    with pytest.raises(ExperimentAborted, match="not confirmed"):  # a SIGTERM ends it, and nobody answers for that
        plant.run({"a": 1.0})
    assert still(tmp_path)


def test_a_close_ends_everything_and_does_not_keep_quiet(tmp_path):
    plant = SubprocessPlant(wrapped(tmp_path, "waits", setup=f"{DEAF}; os.fork()"), timeout=60)
    plant.reset()
    process = plant._line.pid
    os.kill(process, signal.SIGSTOP)  # its input closes, and nothing happens
    with pytest.warns(StopFailedWarning, match=r"not confirmed.*by hand"):
        plant.close()
    assert still(tmp_path)


def test_a_close_out_of_order_runs_the_stop_program(tmp_path):
    plant = SubprocessPlant(rig(tmp_path), timeout=60, stop=log_of(tmp_path))
    plant.reset()
    os.kill(plant._line.pid, signal.SIGKILL)
    plant.close()
    assert (tmp_path / "stops").read_text() == "off "


def test_a_stop_does_not_wait_for_the_end_of_a_pipe(tmp_path):
    plant = SubprocessPlant(rig(tmp_path, "reply['objective'] = 1", setup="os.fork() or time.sleep(60)"), timeout=60)
    plant.reset()
    before = time.monotonic()
    with pytest.raises(PlantError, match="not confirmed"):
        plant.emergency_stop()
    assert time.monotonic() - before < 1.9  # less than the time that a program has to end


KILLED = """
import sys
from safebo.runs import SubprocessPlant
plant = SubprocessPlant(sys.argv[1:], timeout=60)
plant.reset()
print("running", flush=True)
plant.run({"a": 1.0})
"""


@pytest.mark.parametrize("wrapper", ["waits", "deaf"])
def test_when_this_process_is_killed_the_rig_ends(tmp_path, wrapper):
    command = [sys.executable, "-c", KILLED, *wrapped(tmp_path, wrapper, setup=DEAF if wrapper == "deaf" else TWICE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"running\n"
        time.sleep(0.5)  # the experiment has begun
        process.send_signal(signal.SIGKILL)
    patience = time.monotonic() + 30.0
    while not still(tmp_path):
        assert time.monotonic() < patience
    assert ticks(tmp_path)


def test_without_its_keeper_the_program_ends_too(tmp_path):
    plant = SubprocessPlant(wrapped(tmp_path, "deaf", setup=DEAF), timeout=60)
    plant.reset()
    os.kill(plant._line._program._keeper.pid, signal.SIGKILL)
    with pytest.raises(PlantError, match="not confirmed"):
        plant.emergency_stop()
    assert still(tmp_path)


def test_a_program_loses_its_keeper_and_is_told(tmp_path):
    plant = SubprocessPlant(rig(tmp_path), timeout=60)  # a SIGTERM ends it
    plant.reset()
    os.kill(plant._line._program._keeper.pid, signal.SIGKILL)
    with pytest.raises(PlantError, match="ended"):
        plant.run({"a": 1.0})


MOTOR = """
import json, os, sys, time
if os.fork() == 0:
    sys.argv[1:] or os.setsid()
    CLEARED
    for descriptor in (0, 1):
        os.close(descriptor)
    while True:
        with open(TICKS, "a") as file:
            file.write(f"{time.time()}\\n")
        time.sleep(0.02)
for line in sys.stdin:
    reply = {"id": json.loads(line)["id"], "objective": 1.0}
    print(json.dumps(reply if "run" in line else {"id": reply["id"]}), flush=True)
"""
"""What drives the motor has left the program's group, session and pipes."""


def motor(folder, cleared=False):
    program = folder / "motor.py"
    again = "sys.argv[1:] or os.execve(sys.executable, [sys.executable, __file__, 'motor'], {})"
    text = MOTOR.replace("TICKS", repr(str(folder / "ticks"))).replace("CLEARED", again if cleared else "pass")
    program.write_text(text.replace("if os.fork() == 0:", "if sys.argv[1:] or os.fork() == 0:") if cleared else text)
    return [sys.executable, str(program)]


def ticking(folder):
    patience = time.monotonic() + 30.0
    while not ticks(folder):
        assert time.monotonic() < patience
        time.sleep(0.02)


@pytest.mark.parametrize("cleared", [False, True])  # its environment
@pytest.mark.parametrize("confirmed", [True, False])
def test_without_its_keeper_what_has_left_the_program_is_ended_too(tmp_path, confirmed, cleared):
    plant = SubprocessPlant(motor(tmp_path, cleared), timeout=60, stop=log_of(tmp_path) if confirmed else None)
    watched = Watchdog(plant, timeout=60, stop_timeout=30)
    watched.reset()
    watched.run({"a": 1.0})
    ticking(tmp_path)
    program = plant._line._program
    patience = time.monotonic() + 30.0
    while cleared and len(program._report.seen or ()) < 2:  # only the keeper can know it
        assert time.monotonic() < patience
        time.sleep(0.02)
    os.kill(program._keeper.pid, signal.SIGKILL)
    if confirmed:
        watched.emergency_stop()
    else:
        with pytest.raises(PlantError, match="not confirmed"):
            watched.emergency_stop()
    assert still(tmp_path)
    (tmp_path / "ticks").unlink()
    watched.reset()  # nothing is left beside it
    with contextlib.nullcontext() if confirmed else pytest.warns(StopFailedWarning, match="left something running"):
        watched.close()
    assert still(tmp_path)


def test_without_its_keeper_what_cannot_be_ended_is_named_and_nothing_is_started_beside_it(tmp_path, monkeypatch):
    plant = SubprocessPlant(motor(tmp_path), timeout=60, stop=log_of(tmp_path))
    plant.reset()
    ticking(tmp_path)
    program = plant._line._program
    os.kill(program._keeper.pid, signal.SIGKILL)
    monkeypatch.setattr("safebo.runs.programs.GRACE", 0.1)
    real = os.kill
    with monkeypatch.context() as kills:
        kills.setattr(os, "kill", lambda pid, number: None)  # as for processes of another user
        with pytest.raises(PlantError, match=r"process \d+ of the rig's program could not be ended.*by hand"):
            plant.emergency_stop()
        with pytest.raises(PlantError, match=r"process \d+ of the rig's last program .* Nothing was started"):
            plant.reset()
    assert os.kill is real
    plant.emergency_stop()
    assert still(tmp_path)
    plant.reset()
    plant.close()


def test_without_its_keeper_and_its_look_nothing_is_confirmed_or_started(tmp_path):
    plant = SubprocessPlant(rig(tmp_path), timeout=60, stop=log_of(tmp_path))
    plant.reset()
    program = plant._line._program
    os.kill(program._keeper.pid, signal.SIGKILL)
    assert program._report.over.wait(20.0)
    program._report.seen = None  # killed before its first look
    for _ in range(2):
        with pytest.raises(PlantError, match="unknown processes of the rig's program could not be ended"):
            plant.emergency_stop()
        with pytest.raises(PlantError, match="Nothing was started"):
            plant.reset()
    assert still(tmp_path)


def test_nothing_is_started_beside_what_could_not_be_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("safebo.runs.programs.GRACE", 0.1)
    monkeypatch.setattr("safebo.runs.programs.SLACK", 0.1)
    plant = SubprocessPlant(rig(tmp_path), timeout=60, stop=log_of(tmp_path))
    plant.reset()
    program = plant._line._program
    os.kill(program._keeper.pid, signal.SIGSTOP)
    with pytest.raises(PlantError, match=r"unknown processes of the rig's program could not be ended.*by hand"):
        plant.emergency_stop()
    with pytest.raises(PlantError, match=r"may still drive it\. Nothing was started"):
        plant.reset()
    os.kill(program._keeper.pid, signal.SIGCONT)
    assert program._report.over.wait(20.0)
    monkeypatch.undo()
    plant.emergency_stop()  # the stop program confirms it
    plant.reset()
    plant.close()


def test_a_stop_while_the_program_is_being_started_knows_how_that_ends(tmp_path, monkeypatch):
    plant, begun, go_on = SubprocessPlant(rig(tmp_path), timeout=60), threading.Event(), threading.Event()
    opened = plant.open_line

    def slow():
        line = opened()
        os.kill(line.pid, signal.SIGKILL)  # so that nobody answers for the rig
        begun.set()
        go_on.wait(20.0)
        return line

    monkeypatch.setattr(plant, "open_line", slow)
    starting = threading.Thread(target=failing, args=(plant.reset,))
    starting.start()
    begun.wait(20.0)
    threading.Timer(0.3, go_on.set).start()
    with pytest.raises(PlantError, match="not confirmed"):
        plant.emergency_stop()
    starting.join()


def failing(work):
    with pytest.raises(PlantError, match="emergency stop came"):
        work()


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_stop_that_is_interrupted_is_not_taken_for_one(tmp_path, monkeypatch, confirmed):
    plant = SubprocessPlant(rig(tmp_path, setup="" if confirmed else DEAF), timeout=60)
    plant.reset()
    plant._line._in.write(b"" if confirmed else b'{"id": 1, "command": "run"}\n')
    time.sleep(0.2)
    over, waits = plant._line._program._report.over, []

    def interrupted(*arguments):
        if not waits:
            waits.append(1)
            raise KeyboardInterrupt
        return threading.Event.wait(over, *arguments)

    monkeypatch.setattr(over, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        plant.emergency_stop()
    if confirmed:
        plant.emergency_stop()
    else:
        with pytest.raises(PlantError, match="not confirmed"):
            plant.emergency_stop()
    assert still(tmp_path)


@pytest.mark.skipif(shutil.which("ps") is None, reason="no ps here")
def test_without_the_help_of_linux_the_group_and_all_children_end(tmp_path, monkeypatch):
    source = Path(keeper.__file__).read_text()
    portable = source.replace('sys.platform.startswith("linux")', "False").replace('"/proc/self/stat"', '"/nowhere"')
    assert portable.count("False") == source.count("False") + 1 and "/nowhere" in portable
    (tmp_path / "keeper.py").write_text(portable)
    monkeypatch.setattr(keeper, "__file__", str(tmp_path / "keeper.py"))
    plant = Watchdog(
        SubprocessPlant(wrapped(tmp_path, "background", setup=DEAF), timeout=60), timeout=0.5, reset_timeout=60, stop_timeout=30
    )
    plant.reset()
    with pytest.raises(ExperimentAborted, match="not confirmed"):
        plant.run({"a": 1.0})
    assert ticks(tmp_path) and still(tmp_path)
    orderly = SubprocessPlant(rig(tmp_path), timeout=60)
    orderly.reset()
    orderly.emergency_stop()


# -- one stop -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("busy", "runs"), [(False, "off "), (True, "off off ")])  # once more if it had to be terminated
def test_the_stop_program_runs_once_per_stop(tmp_path, busy, runs):
    plant = Watchdog(SubprocessPlant(rig(tmp_path), timeout=60, stop=log_of(tmp_path)), timeout=60, stop_timeout=30)
    for stops in (1, 2):
        plant.reset()
        working = threading.Thread(target=aborted, args=(plant,))
        if busy:
            working.start()
            time.sleep(0.2)
        together = [threading.Thread(target=plant.emergency_stop) for _ in range(4)]
        for thread in together:
            thread.start()
        for thread in together:
            thread.join()
        plant.emergency_stop()
        plant.plant.emergency_stop()
        if busy:
            working.join()
        assert (tmp_path / "stops").read_text() == runs * stops


def aborted(plant):
    with pytest.raises(ExperimentAborted):
        plant.run({"a": 1.0})


@pytest.mark.parametrize("together", [True, False])
def test_stops_at_once_share_a_failure_and_later_ones_do_not(tmp_path, together):
    log = tmp_path / "stops"
    plant = SubprocessPlant(["rig"], timeout=60, stop=["sh", "-c", f"printf 'off ' >> {log}; sleep 1; exit 3"])
    said = []

    def stop():
        with pytest.raises(PlantError, match="status 3") as error:
            plant.emergency_stop()
        said.append(str(error.value))

    threads = [threading.Thread(target=stop) for _ in range(3)]
    for thread in threads:
        thread.start()
        if not together:
            thread.join()
    for thread in threads:
        thread.join()
    assert len(said) == 3 and len(set(said)) == 1
    assert log.read_text() == "off " * (1 if together else 3)


def test_a_stop_that_failed_is_tried_again(tmp_path):
    switch = tmp_path / "switch"
    plant = SubprocessPlant(rig(tmp_path), timeout=60, stop=["sh", "-c", f"test -e {switch}"])
    plant.reset()
    for _ in range(2):
        with pytest.raises(PlantError, match="stop program"):
            plant.emergency_stop()
    switch.touch()
    plant.emergency_stop()


def test_a_stop_program_is_ended_with_all_that_it_started(tmp_path):
    hangs = shlex.join(rig(tmp_path, setup=f"{TWICE}; {DEAF}"))
    plant = SubprocessPlant(["rig"], timeout=60, stop=["sh", "-c", f"sleep 60 | {hangs}; sleep 60"])
    with pytest.raises(PlantError, match=r"stop program.*within 2 s"):
        plant.emergency_stop()
    assert ticks(tmp_path) and still(tmp_path)


def test_what_a_stop_program_says_is_no_result(tmp_path, capfd):
    plant = SubprocessPlant(["rig"], timeout=60, stop=["echo", "the relay is off"])
    plant.emergency_stop()
    out, err = capfd.readouterr()
    assert (out, err) == ("", "the relay is off\n")


def test_a_stop_program_that_leaves_something_behind_has_not_confirmed_the_stop(tmp_path):
    plant = SubprocessPlant(["rig"], timeout=60, stop=["sh", "-c", "sleep 60 & exit 0"])
    with pytest.raises(PlantError, match=r"stop program.*left processes behind"):
        plant.emergency_stop()


def test_a_stop_of_one_process_per_experiment_is_unknown_until_it_is_known(tmp_path):
    plant = SubprocessPlant(rig(tmp_path), timeout=1.0, persistent=False)
    with pytest.raises(PlantError):
        plant.run({"a": 1.0})
    plant.reset()  # does nothing
    with pytest.raises(PlantError, match="not confirmed"):
        plant.emergency_stop()


def test_a_stop_while_the_program_starts(tmp_path):
    command = ["sh", "-c", f"sleep 0.3; {shlex.join(rig(tmp_path))}"]
    plant = Watchdog(SubprocessPlant(command, timeout=60, stop=log_of(tmp_path)), timeout=60, stop_timeout=20)
    threading.Timer(0.2, plant.emergency_stop).start()
    with pytest.raises(ExperimentAborted, match="reset failed"):
        plant.reset()
    assert still(tmp_path)


# -- what it says -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_rig_that_talks_on_fills_no_memory(tmp_path, when):
    flood = "[print('x' * 1000) for _ in iter(int, 1)]"
    body = flood if when == "before" else f"reply['objective'] = 1; print(json.dumps(reply), flush=True); {flood}"
    plant = SubprocessPlant(rig(tmp_path, body), timeout=60)
    plant.reset()
    before = megabytes()
    if when == "before":
        with pytest.raises(InvalidMeasurementError, match="not JSON"):
            plant.run({"a": 1.0})
    else:
        plant.run({"a": 1.0})
        time.sleep(2.0)
        with pytest.raises(PlantError, match=r"unasked.*Nothing was sent"):
            plant.run({"a": 1.0})
    assert megabytes() - before < 20.0
    plant.close()


def test_a_line_without_an_end_fills_no_memory(tmp_path):
    plant = SubprocessPlant(rig(tmp_path, "[sys.stdout.write('x' * 1000) for _ in iter(int, 1)]"), timeout=60)
    plant.reset()
    with pytest.raises(InvalidMeasurementError, match="has no end"):
        plant.run({"a": 1.0})


def test_part_of_a_line_is_unasked_as_well(tmp_path):
    plant = SubprocessPlant(
        rig(tmp_path, "reply['objective'] = 1; print(json.dumps(reply) + '\\n{', end='', flush=True)"), timeout=60
    )
    plant.reset()
    plant.run({"a": 1.0})
    time.sleep(0.2)
    with pytest.raises(PlantError, match=r"unasked.*Nothing was sent"):
        plant.run({"a": 1.0})


ADVANCE = """
import json, sys
for number in range(1, 100):
    line = sys.stdin.readline()
    request = json.loads(line)
    print(json.dumps({"id": request["id"]}), flush=True)
    for guess in (request["id"] + 1, number + 1):
        print(json.dumps({"id": guess, "objective": 99.0}), flush=True)
"""


def test_an_answer_in_advance_is_never_believed(tmp_path, monkeypatch):
    plant = SubprocessPlant([sys.executable, "-c", ADVANCE], timeout=60)
    plant.reset()
    monkeypatch.setattr(type(plant._line), "quiet", lambda self: None)  # it came between the look and the request
    with pytest.raises(InvalidMeasurementError, match="another id"):
        plant.run({"a": 1.0})


def test_more_than_the_answer_of_one_process_per_experiment_is_refused(tmp_path):
    plant = SubprocessPlant(
        rig(tmp_path, "reply['objective'] = 1; print(json.dumps(reply), flush=True)"), timeout=60, persistent=False
    )
    with pytest.raises(PlantError, match="said something after its answer"):
        plant.run({"a": 1.0})


def test_signals_and_input_are_those_of_a_plain_process(tmp_path):
    code = (
        "import signal, sys; print(sorted(s for s in signal.Signals if signal.getsignal(s) is signal.SIG_IGN), file=sys.stderr)"
    )
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    plant = SubprocessPlant(
        ["rig"], timeout=60, stop=["sh", "-c", f"{shlex.join([sys.executable, '-c', code])} 2> {tmp_path}/said"]
    )
    plant.emergency_stop()
    assert Path(tmp_path / "said").read_text() == plain
