"""The command: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from safebo import __version__
from safebo.cli import Code, app
from safebo.cli.base import MEANING, ORDER
from safebo.exceptions import (
    ConflictError,
    InvalidMeasurementError,
    PendingTrialError,
    PlantError,
    PlantTimeoutError,
    StorageError,
)
from safebo.runs import Campaign, Store
from safebo.runs.driving import driving

pytestmark = pytest.mark.filterwarnings("ignore::safebo.exceptions.UnsafeMeasurementWarning")


def test_help_names_every_command_and_exit_code():
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout
    for name in ORDER:
        assert re.search(rf"\b{name}\b", text), name
    for code, meaning in MEANING.items():
        assert re.search(rf"{code.value}\s+{re.escape(meaning)}", text)
    for name in (*ORDER, "reproduce", "calibrate", "train-norm", "train-policy", "animate-policy"):
        result = CliRunner().invoke(app, [name, "--help"])
        assert result.exit_code == 0
        assert "Usage" in result.stdout


def test_without_a_command_there_is_help():
    assert "Usage" in CliRunner().invoke(app, []).output


def test_errors_of_the_command_line_itself(folder):
    folder("run", "--experiments", "-1", code=Code.INPUT)
    folder("nonsense", code=Code.INPUT)


def test_the_version(folder):
    assert folder("--version").stdout == f"safebo {__version__}\n"


def test_paths_that_cannot_be_used_are_explained(folder):
    (folder.path / "taken").write_text("a file")
    (folder.path / "some").mkdir()
    for command in (("calibrate", "--quick", "--only", "bottlenecks"), ("train-norm", "--quick", "--stage", "data")):
        text = folder(*command, "--out", "taken/deeper", code=Code.SYSTEM).stderr
        assert "taken is a file, and a folder is needed" in text and "Errno" not in text
    assert "some is a folder, and a file is needed" in folder("check", "some", code=Code.SYSTEM).stderr
    assert "No such file or directory: no.toml. Check that it exists" in folder("check", "no.toml", code=Code.SYSTEM).stderr
    assert (folder.path / "taken").read_text() == "a file"


@pytest.mark.parametrize(("command", "resumes"), [("calibrate", True), ("list", False)])
def test_an_interrupt_says_whether_the_same_command_continues(folder, monkeypatch, command, resumes):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("safebo.studies.calibrate.main", interrupted)
    monkeypatch.setattr("safebo.runs.Store.open", interrupted)
    assert ("the same command continues" in folder(command, code=Code.INTERRUPTED).stderr) == resumes


# -- init and check ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plant", ["python", "command", "socket", "http", "manual"])
def test_what_init_writes_passes_check(folder, plant):
    (folder.path / "rig.py").unlink()
    folder("init", "new.toml", "--plant", plant)
    assert (folder.path / "experiment.py").exists() == (plant == "python")
    assert (folder.path / "rig.py").exists() == (plant == "command")
    assert "is complete" in folder("check", "new.toml").stdout
    found = folder.json("check", "new.toml")
    assert found["name"] == "new"
    assert not any("There is no" in text or "has no stop" in text for text in found["warnings"])


def test_the_program_that_init_writes_runs(folder):
    (folder.path / "rig.py").unlink()
    folder("init", "new.toml", "--plant", "command")
    result = folder.json("run", "new.toml", "--experiments", 1)
    assert (result["end"], result["experiments"], result["run"]["measurements"]) == ("done", 1, 2)
    off = subprocess.run([sys.executable, "rig.py", "off"], cwd=folder.path, check=False)
    assert off.returncode == 0


def test_the_program_that_init_writes_refuses_and_ends(folder):
    (folder.path / "rig.py").unlink()
    folder("init", "new.toml", "--plant", "command")
    lines = [
        {"id": 1, "command": "run", "params": {"kp": 7.0, "kd": 0.3}},
        {"id": 2, "command": "dance"},
        {"id": 3, "command": "reset"},
        {"id": 4, "command": "run", "params": {"kp": 2.0, "kd": 0.3}},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run([sys.executable, "rig.py"], input=text, capture_output=True, text=True, cwd=folder.path, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [a["id"] for a in answers] == [1, 2, 3, 4]
    assert "outside" in answers[0]["error"] and "dance" in answers[1]["error"]
    assert set(answers[3]) == {"id", "objective", "constraints"}


def test_check_looks_for_the_parts_of_a_plant(folder):
    def warned(plant):
        head = (folder.path / "small.toml").read_text().split("[plant]")[0]
        (folder.path / "small.toml").write_text(f"{head}[plant]\ntimeout = 5.0\n{plant}\n")
        said = folder.json("check", "small.toml")["warnings"]
        return " ".join(text for text in said if "plant" in text and "has no stop" not in text)

    (folder.path / "drive.sh").write_text("#!/bin/sh\n")
    (folder.path / "broken.py").write_text("def measure(:\n")
    for plant, words in (
        ('type = "python"\ncallable = "nowhere:measure"', "no module 'nowhere'"),
        ('type = "python"\ncallable = "rig:measur"\nstop = "rig:stop"', "has no 'measur'"),
        ('type = "python"\ncallable = "rig:measure"\nstop = "rig:halt"', "has no 'halt'"),
        ('type = "python"\ncallable = "broken:measure"', "cannot be read as Python"),
        ('type = "command"\ncommand = ["no-such-program"]', "There is no program 'no-such-program'"),
        ('type = "command"\ncommand = ["python3", "-u", "rgi.py"]', "rgi.py"),
        ('type = "command"\ncommand = ["./drive.sh"]', "is not executable"),
        ('type = "command"\ncommand = ["drive.sh"]', "is called './drive.sh'"),
        ('type = "command"\ncommand = ["python3", "rig.py"]\nstop = ["python3", "of.py"]', "the stop of the plant"),
    ):
        assert words in warned(plant), plant
    for plant in (
        'type = "python"\ncallable = "rig:measure"\nstop = "rig:stop"',
        'type = "python"\ncallable = "os:getpid"\nstop = "os.path:exists"',
        'type = "command"\ncommand = ["python3", "-u", "rig.py", "x"]\nstop = ["python3", "-c", "pass"]',
    ):
        assert warned(plant) == ""
    (folder.path / "drive.sh").chmod(0o755)
    assert warned('type = "command"\ncommand = ["./drive.sh"]\nstop = ["./drive.sh"]') == ""


def test_no_text_names_an_index_where_safebo_is_not():
    root = Path(__file__).parents[2]
    files = [*root.glob("*.md"), *(f for part in ("src", "docs", "examples") for f in (root / part).rglob("*.[pmt][ydox]*"))]
    named = re.compile(r"pip install[^\n]{0,20}[ '\"]safebo\b")
    said = [f"{f}: {m.group()}" for f in files if f.name != "CHANGELOG.md" for m in named.finditer(f.read_text(errors="replace"))]
    assert said == []


def test_init_replaces_nothing_unasked(folder):
    (folder.path / "experiment.py").write_text("mine")
    assert "small.toml exists" in folder("init", "small.toml", code=Code.INPUT).stderr
    folder("init", "small.toml", "--force", "--name", "other")
    assert folder.json("check", "small.toml")["name"] == "other"
    assert folder.json("init", "new.toml") == {"files": ["new.toml"]}
    assert (folder.path / "experiment.py").read_text() == "mine"


def test_check_says_what_is_guaranteed(folder):
    text = " ".join(folder("check", "small.toml").stdout.split())
    for words in ("at least 0", "at most 1 K", "one certificate", "norm = Fixed(value=1.0)", "rig:measure", "stops the run"):
        assert words in text, words
    content = folder.json("check", "small.toml")
    assert content["guarantee"]["probability"] == pytest.approx(1 - 2 * 0.005)
    assert content["outputs"]["heat"]["upper"] == 1.0


def test_check_points_to_the_line(folder):
    folder.edit("bounds = [0.0, 1.0]", "bound = [0.0, 1.0]")
    error = folder("check", "small.toml", code=Code.INPUT).stderr
    assert "small.toml:7: unknown key 'bound' in [parameters.a]. Did you mean 'bounds'?" in error
    problems = folder.json("check", "small.toml", code=Code.INPUT)["error"]["problems"]
    assert {"line": 7}.items() <= problems[1].items()


def test_files_that_are_not_there(folder):
    assert "no.toml" in folder("check", "no.toml", code=Code.SYSTEM).stderr
    folder("status", "nothing", code=Code.SYSTEM)
    folder("list", "--db", "no.db", code=Code.SYSTEM)


# -- a whole run ---------------------------------------------------------------------------------------------------------------


def test_from_run_to_report(folder):
    result = folder.json("run", "small.toml")
    assert (result["end"], result["experiments"], result["exit_code"]) == ("done", 2, 0)
    assert len(folder.ran()) == 3
    status = folder.json("status", "small")
    assert (status["experiments"], status["measurements"], status["violations"], status["pending"]) == (2, 3, 0, None)
    assert "2 of 2 experiments" in folder("status", "small.toml").stdout
    assert [run["name"] for run in folder.json("list")] == ["small"]
    assert "small" in folder("list").stdout
    best = folder.json("best", "small")
    assert best["lower"] <= best["mean"] <= best["upper"]
    assert "V" in folder("best", "small").stdout
    assert len(folder("export", "small").stdout.splitlines()) == 4
    folder("export", "small", "-o", "out/run.json")
    assert len(json.loads((folder.path / "out" / "run.json").read_text())["measurements"]) == 3
    assert "exists" in folder("export", "small", "-o", "out/run.json", code=Code.INPUT).stderr
    assert "csv or json" in folder("export", "small", "--format", "xml", code=Code.INPUT).stderr
    more = folder.json("resume", "small", "--experiments", 3)
    assert (more["experiments"], more["run"]["experiments"]) == (1, 3)
    assert "`safebo resume small`" in folder("run", "small.toml", code=Code.INPUT).stderr
    folder("run", "small.toml", "--name", "second")
    assert [run["name"] for run in folder.json("list")] == ["small", "second"]


def test_lines_for_people(folder):
    result = folder("run", "small.toml")
    assert "experiments are done" in result.stdout
    assert "start  a = 0.5 V  ->  objective = 0.55  heat = 0.25 K" in result.stderr


@pytest.mark.parametrize("what", ["progress", "state", "norm"])
def test_plots(folder, what):
    folder("run", "small.toml")
    assert folder.json("plot", "small", "--what", what, "-o", "x.png") == {"file": "x.png"}
    assert (folder.path / "x.png").read_bytes()[:4] == b"\x89PNG"
    assert "exists" in folder("plot", "small", "-o", "x.png", code=Code.INPUT).stderr
    assert "--what must be" in folder("plot", "small", "--what", "x", "-o", "y.png", code=Code.INPUT).stderr
    assert "Use .png" in folder("plot", "small", "-o", "y.xyz", code=Code.INPUT).stderr


def test_a_report(folder):
    folder("run", "small.toml")
    assert folder.json("report", "small") == {"file": "small.html"}
    text = (folder.path / "small.html").read_text()
    assert "A &lt;small&gt; run" in text
    assert "<small>" not in text
    folder("report", "small", code=Code.INPUT)
    folder("report", "small", "--force", "-o", "small.html")


def test_a_run_that_nobody_drives_is_open(folder):
    folder("run", "small.toml", "--experiments", "1")
    assert "small: finished" in folder("status", "small").stdout
    folder("run", "small.toml", "--name", "two", "--no-wait", "--confirm", code=Code.PERSON)
    assert "two: open, nobody drives it; `safebo resume two` goes on" in folder("status", "two").stdout
    content = folder.json("status", "two")
    assert (content["status"], content["driver"]) == ("running", "")
    store = Store.open("safebo.db")
    with driving(Campaign.open(store, "two")):
        by = folder.json("status", "two")["driver"]
        assert by.startswith("process ")
        shown = folder("status", "two").stdout
        assert f"two: running, driven by {by.partition(' since')[0]} since 20" in shown
        assert not re.search(r"\d:\d\d\.\d", shown)  # no fractions of seconds
        assert by.partition(" since")[0] in folder("list").stdout
    store.close()
    rows = {line.split()[0]: line for line in folder("list").stdout.splitlines()}
    assert "finished" in rows["small"] and re.search(r"open +nobody", rows["two"])
    assert [r["driver"] for r in folder.json("list")] == ["", ""]


def test_a_run_for_clients_says_when_they_asked(folder):
    head = (folder.path / "small.toml").read_text().split("[plant]")[0]
    (folder.path / "small.toml").write_text(head + "[plant]\ntype = 'http'\n")
    folder("run", "small.toml")
    assert "open, clients over HTTP may ask; nobody has asked yet" in folder("status", "small").stdout
    folder("tell", "small", "--objective", 0.5, "--limit", "heat=0.1")
    with Store.open("safebo.db") as store:
        Campaign.open(store, "small").hand_out()
    assert re.search(r"may ask; last asked 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d \w+\n", folder("status", "small").stdout)


def test_unknown_runs(folder):
    folder("run", "small.toml")
    assert "nothing" in folder("status", "nothing", code=Code.INPUT).stderr
    assert folder.json("best", "nothing", code=Code.INPUT)["error"]["type"] == "UnknownRunError"


# -- ends that are not good ----------------------------------------------------------------------------------------------------


def test_a_violation_stops_the_run(folder, monkeypatch):
    monkeypatch.setenv("HOT", "2")
    result = folder.json("run", "small.toml", code=Code.VIOLATION)
    assert (result["run"]["status"], result["run"]["violations"]) == ("stopped", 1)
    assert "heat = 2" in result["run"]["reason"]
    assert len(folder.ran()) == 2
    assert "--accept-violation" in folder("resume", "small", code=Code.VIOLATION).stderr
    assert len(folder.ran()) == 2
    assert folder.json("resume", "small", "--accept-violation")["end"] == "done"


def test_or_it_goes_on(folder, monkeypatch):
    monkeypatch.setenv("HOT", "2")
    folder.edit("experiments = 2", 'experiments = 2\non_violation = "continue"')
    result = folder.json("run", "small.toml")
    assert (result["end"], result["run"]["violations"]) == ("done", 1)


def test_an_unsafe_start(folder, monkeypatch):
    monkeypatch.setenv("HOT", "1")
    assert "not safe" in folder("run", "small.toml", code=Code.VIOLATION).stderr


def test_an_aborted_experiment(folder, monkeypatch):
    monkeypatch.setenv("FAIL", "2")
    result = folder.json("run", "small.toml", code=Code.ABORTED)
    assert "the arm is blocked" in result["text"]
    assert (folder.path / "stopped").exists()
    status = folder.json("status", "small")
    assert (status["status"], status["aborts"], status["pending"]) == ("paused", 1, None)
    assert folder.json("resume", "small")["end"] == "done"


def test_a_time_out(folder, monkeypatch):
    monkeypatch.setenv("HANG", "2")
    folder.edit("timeout = 20.0", "timeout = 0.5")
    assert "no answer within 0.5 s" in folder("run", "small.toml", code=Code.ABORTED).stderr
    assert (folder.path / "stopped").exists()


def test_a_rig_that_is_not_there(folder):
    head = (folder.path / "small.toml").read_text().split("[plant]")[0]
    plant = "[plant]\ntype = 'socket'\nhost = '127.0.0.1'\nport = 1\ntimeout = 1.0\nretries = 1\nretry_wait = 0.05\n"
    (folder.path / "small.toml").write_text(head + plant)
    result = folder.json("run", "small.toml", code=Code.ABORTED)
    assert result["end"] == "unreachable"
    assert "Nothing was sent" in result["text"]
    assert folder.json("resume", "small", code=Code.ABORTED)["end"] == "unreachable"


def test_nothing_left(folder):
    folder.edit("[start]\na = 0.5\n", "")
    assert "no safe measurement to start from" in folder("run", "small.toml", code=Code.NOTHING_LEFT).stderr


def test_a_plant_that_cannot_be_loaded_makes_no_run(folder):
    folder.edit("rig:measure", "gir:measure")
    assert "gir" in folder("run", "small.toml", code=Code.ABORTED).stderr
    assert not (folder.path / "safebo.db").exists()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PlantTimeoutError("late"), Code.ABORTED),
        (PlantError("broken"), Code.ABORTED),
        (InvalidMeasurementError("NaN"), Code.INPUT),
        (StorageError("away"), Code.SYSTEM),
        (PermissionError("no"), Code.SYSTEM),
        (PendingTrialError("pending"), Code.PERSON),
        (ConflictError("told twice"), Code.INPUT),
        (KeyboardInterrupt(), Code.INTERRUPTED),
    ],
)
def test_errors_have_their_codes(folder, monkeypatch, error, code):
    def fail(*_):
        raise error

    monkeypatch.setattr("safebo.cli.base.locate", fail)
    assert folder("status", "small", code=code).stderr


def test_a_file_that_was_edited(folder):
    folder("run", "small.toml", "--experiments", 1)
    folder.edit("timeout = 20.0", "timeout = 30.0")
    folder("resume", "small.toml", "--experiments", 2)
    changes = [e["body"]["changes"] for e in _events(folder, "configured")]
    assert [c["plant"]["timeout"] for c in changes if "plant" in c] == [20.0, 30.0]
    folder.edit("upper = 1.0", "upper = 2.0")
    assert "cannot be changed" in folder("resume", "small.toml", code=Code.INPUT).stderr
    folder("resume", "small")


def test_warnings_are_shown_before_anything_moves(folder):
    folder.edit("[start]", "[kernel]\nlengthscale = 2.0\n[start]")
    error = folder("run", "small.toml", "--json").stderr
    assert "warning: line 23: The lengthscale 2" in error


# -- by hand, and with consent -------------------------------------------------------------------------------------------------


@pytest.fixture
def by_hand(folder):
    head = (folder.path / "small.toml").read_text().split("[plant]")[0]
    (folder.path / "small.toml").write_text(head + "[plant]\ntype = 'manual'\n")
    return folder


def test_a_person_tells_what_was_measured(by_hand):
    first = by_hand.json("run", "small.toml", code=Code.PERSON)
    assert (first["end"], first["params"], first["trial"]) == ("pending", {"a": 0.5}, None)
    assert "safebo tell small" in first["choices"]["tell"]
    error = by_hand("resume", "small", code=Code.PERSON).stderr
    for words in ("safebo tell small --objective ... --limit heat=...", "safebo resume small --retry", "--abandon REASON"):
        assert words in error
    by_hand("tell", "small", "--objective", 0.5, "--limit", "heat=0.2", "--context", "room=7")
    second = by_hand.json("resume", "small", code=Code.PERSON)
    trial = second["trial"]
    assert by_hand.json("status", "small")["pending"]["trial"] == trial
    assert "handed out" in by_hand("status", "small").stdout
    assert "missing ['heat']" in by_hand("tell", "small", "--trial", trial, "--objective", 0.5, code=Code.INPUT).stderr
    by_hand("tell", "small", "--trial", trial, "--objective", 0.5, "--limit", "heat=0.2", "--who", "anna")
    assert trial in by_hand("tell", "small", "--trial", trial, "--objective", 0.5, "--limit", "heat=0.2", code=Code.INPUT).stderr
    third = by_hand.json("resume", "small", code=Code.PERSON)
    again = by_hand.json("resume", "small", "--retry", code=Code.PERSON)
    assert again["params"] == third["params"]
    last = by_hand.json("resume", "small", "--abandon", "nobody knows", code=Code.PERSON)
    assert last["params"] != third["params"]
    told = by_hand.json("tell", "small", "--objective", 0.5, "--limit", "heat=3", code=Code.VIOLATION)
    assert told["violated"] == {"heat": 3.0}
    assert "OUTSIDE" in by_hand("tell", "small", "--param", "a=0.4", "--objective", -1, "--limit", "heat=0", code=4).stderr


def test_wrong_ways_to_tell(by_hand):
    by_hand("run", "small.toml", code=Code.PERSON)
    for options, message in (
        (["--limit", "heat"], "takes NAME=VALUE, got 'heat'"),
        (["--limit", "heat=x"], "must be a number, got 'x'"),
        (["--param", "a=1", "--trial", "x"], "not both"),
        (["--param", "b=1", "--limit", "heat=0"], "unknown ['b']"),
        (["--trial", "x", "--limit", "heat=0"], "'x'"),
    ):
        assert message in by_hand("tell", "small", "--objective", 0.5, *options, code=Code.INPUT).stderr
    by_hand("tell", "small", "--objective", 0.5, "--limit", "heat=0")
    assert "--param" in by_hand("tell", "small", "--objective", 0.5, "--limit", "heat=0", code=Code.INPUT).stderr
    assert "nothing to retry" in by_hand("resume", "small", "--retry", code=Code.INPUT).stderr
    by_hand("resume", "small", "--retry", "--abandon", "x", code=Code.INPUT)


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr("safebo.cli.terminal.at_terminal", lambda: True)
    monkeypatch.setattr("safebo.cli.terminal.read_line", _line)


def _line(over):
    return sys.stdin.readline() or None


@pytest.mark.usefixtures("terminal")
def test_a_person_at_the_terminal(by_hand):
    answers = ["0.5", "0.25", "x", "0.6", "0.3", "abort the wire broke"]
    result = by_hand("run", "small.toml", input="\n".join(answers) + "\n", code=Code.ABORTED)
    assert "'x' is not a number" in result.stderr
    assert "the wire broke" in result.stderr
    status = by_hand.json("status", "small")
    assert (status["experiments"], status["aborts"], status["status"]) == (1, 1, "paused")
    by_hand("resume", "small", input="", code=Code.INTERRUPTED)  # the end of the input: the experiment stays pending
    for answers, code in (("q\n", Code.PERSON), ("t\n0.5\n0.2\n", Code.OK)):
        by_hand("resume", "small", input=answers, code=code)
    assert by_hand.json("status", "small")["experiments"] == 2


@pytest.mark.usefixtures("terminal")
def test_a_value_that_is_hard_to_believe_is_entered_twice(by_hand):
    # the start: 3 is above the limit of heat, confirmed; the trial: 46 was a slip, 0.52 is right; 9 is doubted and then said
    # to be 0.25, which is believed
    answers = ["0.5", "3", "0.25", "46", "0.52", "9", "0.25", "abort"]
    shown = by_hand("run", "small.toml", "--experiments", "2", input="\n".join(answers) + "\n", code=Code.ABORTED).stderr
    assert "heat: measured 3 K, must be at most 1: is that right? Enter it again" in shown
    assert re.search(r"objective: measured 46, certified -?[\d.]+ to [\d.]+: is that right", shown)
    assert re.search(r"heat: measured 9 K, certified \S+ to \S+, must be at most 1", shown)
    run = by_hand.json("status", "small")
    assert (run["measurements"], run["violations"], run["best_measured"]["values"]) == (2, 0, {"objective": 0.52, "heat": 0.25})


@pytest.mark.usefixtures("terminal")
def test_telling_a_value_that_is_hard_to_believe_at_the_terminal(by_hand):
    by_hand("run", "small.toml", "--json", code=Code.PERSON)
    by_hand("tell", "small", "--objective", 0.5, "--limit", "heat=0.2")
    by_hand("resume", "small", "--json", code=Code.PERSON)
    told = ("tell", "small", "--objective", 46, "--limit", "heat=0.2")
    for answer in ("0.46\n", "\n", ""):
        refused = by_hand(*told, input=answer, code=Code.INPUT).stderr
        assert "objective: measured 46, certified" in refused and "Nothing was stored" in refused
    assert by_hand.json("status", "small")["measurements"] == 1
    assert "recorded" in by_hand(*told, input="46\n").stdout
    assert by_hand.json("status", "small")["measurements"] == 2


def test_without_a_terminal_it_is_pointed_out(by_hand):
    by_hand("run", "small.toml", code=Code.PERSON)
    by_hand("tell", "small", "--objective", 0.5, "--limit", "heat=0.2")
    by_hand("resume", "small", code=Code.PERSON)
    result = by_hand("tell", "small", "--objective", 46, "--limit", "heat=0.2", "--json")
    assert "warning: objective: measured 46, certified" in result.stderr
    assert json.loads(result.stdout)["run"]["measurements"] == 2


@pytest.mark.usefixtures("terminal")
def test_consent_at_the_terminal(folder):
    result = folder("run", "small.toml", "--confirm", "--who", "anna", input="y\nwhat\ny\nn\ntoo fast\np\n", code=Code.HALTED)
    assert "certified" in result.stderr
    assert len(folder.ran()) == 2
    assert [e["who"] for e in _events(folder, "approved")] == ["anna"]
    assert _events(folder, "rejected")[0]["body"]["reason"] == "too fast"
    folder("resume", "small", input="y\n")
    assert len(folder.ran()) == 3
    folder("resume", "small", "--experiments", 3, "--no-confirm")
    assert len(folder.ran()) == 4


@pytest.mark.usefixtures("terminal")
def test_what_became_of_it_at_the_terminal(by_hand):
    by_hand("run", "small.toml", input="", code=Code.INTERRUPTED)
    assert by_hand.json("resume", "small", code=Code.PERSON)["params"] == {"a": 0.5}
    by_hand("resume", "small", input="r\n0.5\n0.2\n", code=Code.INTERRUPTED)
    by_hand("resume", "small", input="a\nno idea\n", code=Code.INTERRUPTED)
    assert by_hand.json("status", "small")["aborts"] == 1


def _events(folder, kind):
    content = json.loads(folder("export", "small", "--format", "json").stdout)
    return [e for e in content["events"] if e["kind"] == kind]


def test_consent_from_another_terminal(folder):
    assert folder.json("run", "small.toml", "--confirm", "--no-wait", code=Code.PERSON)["end"] == "unapproved"
    assert "approved the start" in folder("approve", "small", "--who", "bert").stdout
    waiting = folder.json("resume", "small", "--no-wait", code=Code.PERSON)
    assert folder.ran() == [0.5]
    assert waiting["run"]["pending"]["approved_by"] is None
    folder("approve", "small", "--who", "bert")
    assert "approved by bert" in folder("status", "small").stdout
    assert "already" in folder("approve", "small", code=Code.INPUT).stderr
    folder("resume", "small", "--no-wait", code=Code.PERSON)
    assert len(folder.ran()) == 2
    folder("reject", "small", "--reason", "too hot")
    assert "Nothing" in folder("reject", "small", code=Code.INPUT).stderr
    assert "Nothing" in folder("approve", "small", code=Code.INPUT).stderr


def test_pause_and_stop(folder):
    folder("run", "small.toml", "--experiments", 1)
    folder("pause", "small", "--reason", "lunch", "--who", "anna")
    assert "lunch" in folder("status", "small").stdout
    folder("stop", "small", "--reason", "smoke")
    assert "already" in folder("stop", "small", code=Code.INPUT).stderr
    assert folder.json("resume", "small", "--experiments", 2)["end"] == "done"


# -- import, http, serve -------------------------------------------------------------------------------------------------------


def test_earlier_measurements(folder):
    (folder.path / "old.csv").write_text("a,objective,heat\n0.5,0.5,0.1\n0.6,0.5,2.0\n")
    (folder.path / "bad.csv").write_text("a,objective,heat\n0.5,0.5,0.1\n7.0,0.5,0.1\n")
    folder("run", "small.toml", "--import", "bad.csv", code=Code.INPUT)
    assert not (folder.path / "safebo.db").exists()
    folder("run", "small.toml", "--import", "old.csv", "--experiments", 0)
    assert folder.ran() == []
    assert "bad.csv:3" in folder("import", "small", "bad.csv", code=Code.INPUT).stderr
    assert folder.json("status", "small")["measurements"] == 2
    assert "2 of the 2 measurements" in folder("import", "small", "old.csv", code=Code.INPUT).stderr
    assert folder.json("status", "small")["measurements"] == 2
    found = folder.json("import", "small", "old.csv", "--again")
    assert (found["imported"], found["outside"], found["run"]["status"]) == (2, 1, "stopped")
    assert "the run is stopped" in folder("import", "small", "old.csv", "--again").stdout


def test_runs_for_clients_that_poll(folder):
    head = (folder.path / "small.toml").read_text().split("[plant]")[0]
    (folder.path / "small.toml").write_text(head + "[plant]\ntype = 'http'\n")
    text = folder.json("run", "small.toml")["text"]
    assert "safebo serve" in text
    assert "Measure the start a = 0.5 V first" in text and "`safebo tell small --objective ... --limit heat=...`" in text
    folder("tell", "small", "--objective", 0.5, "--limit", "heat=0.1")
    assert "start" not in folder.json("resume", "small")["text"]


def test_serve_hands_over(folder, monkeypatch):
    import types

    calls = []
    module = types.ModuleType("safebo.server")
    module.main = lambda *arguments, **options: calls.append((arguments, options))
    module.Limits = dict
    monkeypatch.setitem(sys.modules, "safebo.server", module)
    monkeypatch.setattr("safebo.server", module, raising=False)
    folder("serve", "--db", "x.db", "--port", 0)
    assert calls[0][0] == ("x.db",)
    assert {"host": "127.0.0.1", "port": 0}.items() <= calls[0][1].items()
    monkeypatch.delattr("safebo.server")
    monkeypatch.delitem(sys.modules, "safebo.server")
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert ".[serve]" in folder("serve", code=Code.INPUT).stderr


def test_where_the_database_is(folder, monkeypatch):
    monkeypatch.setenv("SAFEBO_DB", "other.db")
    folder("run", "small.toml")
    assert (folder.path / "other.db").exists()
    assert folder.json("status", "small")["experiments"] == 2
    monkeypatch.delenv("SAFEBO_DB")
    folder("status", "small", code=Code.SYSTEM)
    folder("status", "small", "--db", "other.db")
