"""What commands and documents say: true, and in the words of people."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from safebo import Box, Fixed, SafeOptimizer
from safebo.cli import Code

pytestmark = pytest.mark.filterwarnings("ignore::safebo.exceptions.UnsafeMeasurementWarning")

ROOT = Path(__file__).parents[2]

BEST = "the best measured inside all limits, or certified ones that are surely better"


def test_what_best_means_is_said_alike_everywhere(folder):
    pytest.importorskip("fastapi")
    from safebo.server import app, models

    texts = [
        " ".join(folder("best", "--help").stdout.replace("│", " ").split()),
        *((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("command-line.md", "server.md")),
        Path(app.__file__).read_text(encoding="utf-8"),
        str(models.BestAnswer.__doc__),
    ]
    for text in texts:
        assert BEST in text and "largest certified lower bound" not in text


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr("safebo.cli.terminal.at_terminal", lambda: True)
    monkeypatch.setattr("safebo.cli.terminal.read_line", lambda over: sys.stdin.readline() or None)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("options", [(), ("--no-wait",)])
def test_a_pause_at_the_prompt_is_called_a_pause(folder, options):
    shown = folder("run", "small.toml", "--confirm", *options, input="y\np\n", code=Code.HALTED).stderr
    last = " ".join(shown.split("Run it?")[-1].split())
    assert last.endswith("Run 'small' is paused: at the terminal. `safebo resume small` goes on.")


@pytest.fixture
def by_hand(folder):
    head = (folder.path / "small.toml").read_text().split("[plant]")[0]
    (folder.path / "small.toml").write_text(head + "[plant]\ntype = 'manual'\n")
    folder("run", "small.toml", code=Code.PERSON)
    return folder


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["0.5"], "The limits are ['heat']: missing ['heat']. Give --limit heat=VALUE."),
        (["0.5", "--limit", "haet=2"], "unknown ['haet'], missing ['heat']. Did you mean 'heat'? Give --limit heat=VALUE."),
        (["0.5", "--limit", "heat=0", "--param", "b=1"], "The parameters are ['a']: unknown ['b'], missing ['a']."),
        (["0.5", "--limit", "heat=7", "--param", "a=9"], "'a' = 9.0 lies outside its bounds"),
        (["nan", "--limit", "heat=7"], "'objective' must be a finite number, got nan"),
        (["-7", "--limit", "heat=inf"], "'heat' must be a finite number, got inf"),
    ],
)
def test_what_cannot_be_told_is_refused_before_it_is_doubted(by_hand, options, said):
    shown = by_hand("tell", "small", "--objective", *options, code=Code.INPUT).stderr
    assert said in shown and "warning" not in shown


def test_what_was_rejected_was_not_aborted(folder, monkeypatch):
    folder("run", "small.toml", "--confirm", "--no-wait", code=Code.PERSON)
    folder("approve", "small")
    folder("resume", "small", "--no-wait", code=Code.PERSON)
    folder("reject", "small", "--reason", "too hot")
    monkeypatch.setenv("FAIL", "2")
    folder("resume", "small", "--no-confirm", code=Code.ABORTED)
    for found in (folder.json("status", "small"), *folder.json("list")):
        assert (found["aborts"], found["rejected"]) == (1, 1)
    assert "1 aborted, 1 rejected" in folder("status", "small").stdout
    head, row = folder("list").stdout.splitlines()
    for word in ("aborted", "rejected"):
        assert row[head.index(word)] == "1"


@pytest.mark.parametrize("which", ["1", "2"])
def test_messages_for_people_have_no_python_in_them(folder, monkeypatch, which):
    monkeypatch.setenv("FAIL", which)
    shown = folder("run", "small.toml", "--no-wait", "--confirm", code=Code.PERSON).stderr
    shown += folder("approve", "small").stdout
    shown += (aborted := folder("resume", "small", "--no-wait", code=Code.ABORTED if which == "1" else Code.PERSON).stderr)
    if which == "2":
        assert "approved 1-" in (said := folder("approve", "small").stdout) and ": a = 0." in said and said.endswith(" V\n")
        shown += (aborted := folder("resume", "small", code=Code.ABORTED).stderr)
        shown += folder("tell", "small", "--param", "a=0.4", "--objective", 0.5, "--limit", "heat=0.1").stdout
        shown += (gone := folder("void", "small", 2).stdout)
        assert gone == "took back measurement 2: objective = 0.5, heat = 0.1 K at a = 0.4 V; the run is paused\n"
        shown += folder("status", "small").stdout
    assert "approved the start a = 0.5 V" in shown
    assert aborted.count("a = ") == 1 and "was aborted" in aborted
    assert "{" not in shown and "inf" not in shown


def test_tell_void_and_status_call_a_run_alike(by_hand):
    for said in (
        by_hand("tell", "small", "--objective", 0.5, "--limit", "heat=0.1").stdout,
        by_hand("tell", "small", "--param", "a=0.5", "--objective", 0.5, "--limit", "heat=0.1").stdout,
        by_hand("void", "small", 2).stdout,
        by_hand("status", "small").stdout,
    ):
        assert "the run is open" in said or "small: open, nobody drives it" in said
    assert "0 of 2 experiments, 1 measurement\n" in by_hand("status", "small").stdout
    assert by_hand.json("resume", "small", code=Code.PERSON)["run"]["driver"] == ""


def test_a_run_made_in_python_is_not_called_one_of_clients(folder):
    SafeOptimizer(Box({"a": (0.0, 1.0)}), 0.0, norm=Fixed(1.0)).save("safebo.db", "mine")
    assert "clients over HTTP" not in folder("list").stdout
    assert "a program or clients" in folder("list").stdout
    assert "mine: open, a Python program, or clients over HTTP, may ask" in folder("status", "mine").stdout


def test_options_that_a_plot_does_not_use_are_refused(folder):
    pytest.importorskip("matplotlib")
    folder("run", "small.toml", "--experiments", "1")
    for options, said in (
        (("--what", "state", "--output", "heat", "--field", "margin"), "--field belongs to a state over two parameters"),
        (("--field", "foo"), "--field belongs to --what state, got --what progress"),
        (("--what", "norm", "--vary", "a", "--output", "heat"), "--vary and --output belong to --what state"),
    ):
        assert said in " ".join(folder("plot", "small", *options, "-o", "x.png", code=Code.INPUT).stderr.split())
        assert not (folder.path / "x.png").exists()


def test_times_in_the_documents_look_like_those_of_the_program(by_hand):
    shape = re.compile(r"^Handed out \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+: ", re.M)
    assert shape.search(by_hand("resume", "small", code=Code.PERSON).stderr)
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert shape.search(page) and not re.search(r"\d{4}-\d\d-\d\dT\d\d", page)
