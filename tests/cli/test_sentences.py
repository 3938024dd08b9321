"""What commands and documents say: true, and in the words of people."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

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
