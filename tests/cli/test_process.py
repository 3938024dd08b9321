"""Real processes: killed, interrupted and stopped in the middle of an experiment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from safebo.cli import Code

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


class Process:
    """`safebo run` in a process of its own, at least until a number of experiments has begun."""

    def __init__(self, folder, *arguments, hang, begun):
        environment = {**os.environ, "HANG": str(hang), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [sys.executable, "-m", "safebo.cli", *arguments]
        self.process = subprocess.Popen(
            command, cwd=folder.path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )  # fmt: skip
        patience = time.monotonic() + 100.0
        while len(folder.ran()) < begun:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < patience
            time.sleep(0.05)

    def end(self, number=None):
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60.0)
        return self.process.returncode, out, err


def test_killed_during_an_experiment(folder):
    process = Process(folder, "run", "small.toml", hang=2, begun=2)
    assert process.end(signal.SIGKILL)[0] == -signal.SIGKILL
    status = folder.json("status", "small")
    assert (status["measurements"], status["pending"]["handed_out"] is None) == (1, False)
    shown = folder.json("resume", "small", code=Code.PERSON)
    assert shown["params"]["a"] == folder.ran()[1]
    assert set(shown["choices"]) == {"tell", "retry", "abandon"}
    assert len(folder.ran()) == 2  # nothing was run without a decision
    assert folder.json("resume", "small", "--retry")["end"] == "done"
    ran = folder.ran()
    assert ran[2] == ran[1]
    assert len(ran) == 4


def test_killed_and_then_told(folder):
    process = Process(folder, "run", "small.toml", hang=2, begun=2)
    process.end(signal.SIGKILL)
    trial = folder.json("status", "small")["pending"]["trial"]
    folder("tell", "small", "--trial", trial, "--objective", 0.55, "--limit", "heat=0.25", "--who", "anna")
    assert folder.json("resume", "small")["run"]["experiments"] == 2
    assert len(folder.ran()) == 3


def test_killed_during_the_start(folder):
    process = Process(folder, "run", "small.toml", hang=1, begun=1)
    process.end(signal.SIGKILL)
    shown = folder.json("resume", "small", code=Code.PERSON)
    assert (shown["params"], shown["trial"]) == ({"a": 0.5}, None)
    assert folder.ran() == [0.5]
    assert folder.json("resume", "small", "--retry")["end"] == "done"
    assert folder.ran()[:2] == [0.5, 0.5]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_stops_the_plant(folder, number):
    process = Process(folder, "run", "small.toml", "--json", hang=2, begun=2)
    code, out, _ = process.end(number)
    assert code == Code.INTERRUPTED
    assert json.loads(out)["end"] == "interrupted"
    assert (folder.path / "stopped").exists()
    folder("resume", "small", code=Code.PERSON)


def test_a_stop_from_another_process(folder):
    process = Process(folder, "run", "small.toml", "--json", hang=2, begun=2)
    before = time.monotonic()
    folder("stop", "small", "--reason", "smoke", "--who", "bert")
    code, out, _ = process.end()
    assert time.monotonic() - before < 10.0
    assert code == Code.HALTED
    content = json.loads(out)
    assert (content["run"]["status"], content["run"]["aborts"], content["run"]["pending"]) == ("stopped", 1, None)
    assert "bert" in content["text"]
    assert (folder.path / "stopped").exists()


def test_two_runners_send_nothing_twice(folder):
    process = Process(folder, "run", "small.toml", hang=2, begun=2)
    for decision in ((), ("--retry",), ("--abandon", "nobody knows")):
        assert "is being driven by process" in folder("resume", "small", *decision, code=Code.PERSON).stderr
    assert (
        "at the plant at this moment"
        in folder("tell", "small", "--objective", 0.3, "--limit", "heat=0.1", code=Code.PERSON).stderr
    )
    assert folder.json("status", "small")["driver"].startswith("process ")
    assert len(folder.ran()) == 2
    process.end(signal.SIGINT)


PROGRAM = """\
import json, sys
for number, line in enumerate(sys.stdin):
    request = json.loads(line)
    answer = {"id": request["id"]}
    if request["command"] == "run":
        if number == CRASH:
            sys.exit(3)
        answer |= {"objective": 0.5 + 0.1 * request["params"]["a"], "constraints": {"heat": 0.25}}
    print(json.dumps(answer), flush=True)
"""


@pytest.mark.parametrize("crash", [-1, 3])
def test_a_program_as_the_plant(folder, crash):
    (folder.path / "program.py").write_text(PROGRAM.replace("CRASH", str(crash)))
    head = (folder.path / "small.toml").read_text().split("[plant]")[0]
    command = json.dumps([sys.executable, "program.py"])
    (folder.path / "small.toml").write_text(head + f"[plant]\ntype = 'command'\ncommand = {command}\ntimeout = 30.0\n")
    if crash < 0:
        assert folder.json("run", "small.toml")["run"]["measurements"] == 3
        return
    text = folder.json("run", "small.toml", code=Code.ABORTED)["text"]
    assert "ended without an answer (exit status 3)" in text
    assert "Switch the rig off by hand" in text
    assert folder.json("status", "small")["aborts"] == 1


HANGS = """\
import json, os, signal, sys, time
CONFIRMS
for line in sys.stdin:
    request = json.loads(line)
    if request["command"] == "run":
        open("ran", "a").write(f"{request['params']['a']}\\n")
        time.sleep(600)
    print(json.dumps({"id": request["id"]}), flush=True)
"""

CONFIRMS = "signal.signal(signal.SIGTERM, lambda *_: os._exit(0))"


@pytest.mark.parametrize(
    ("confirms", "said"),
    [
        (CONFIRMS, "Interrupted. The plant was stopped.\n"),
        ("", "Interrupted. THE EMERGENCY STOP FAILED: PlantError: The rig's program"),
    ],
)
def test_after_an_interrupt_it_is_said_what_is_known_of_the_plant(folder, confirms, said):
    (folder.path / "program.py").write_text(HANGS.replace("CONFIRMS", confirms))
    head = (folder.path / "small.toml").read_text().split("[plant]")[0]
    command = json.dumps([sys.executable, "program.py"])
    (folder.path / "small.toml").write_text(head + f"[plant]\ntype = 'command'\ncommand = {command}\ntimeout = 300.0\n")
    process = Process(folder, "run", "small.toml", hang=0, begun=1)
    code, _, err = process.end(signal.SIGINT)
    assert code == Code.INTERRUPTED
    assert said in err
    assert "Traceback" not in err
    assert confirms or "was stopped" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_request_to_terminate_at_a_question(folder, number):
    pty = pytest.importorskip("pty")
    head = (folder.path / "small.toml").read_text().split("[plant]")[0]
    (folder.path / "small.toml").write_text(head + "[plant]\ntype = 'manual'\n")
    folder("run", "small.toml", code=Code.PERSON)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "safebo.cli", "resume", "small"]
    process = subprocess.Popen(command, cwd=folder.path, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while b"uit: " not in shown:
        shown += os.read(ours, 4096)
    process.send_signal(number)
    assert process.wait(60.0) == Code.INTERRUPTED
    os.close(ours)
