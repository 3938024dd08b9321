"""The examples of docs/durable-runs.md run as they stand, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from safebo import SafeOptimizer
from safebo.exceptions import PendingTrialError

DOC = Path(__file__).parents[2] / "docs" / "durable-runs.md"


def test_the_examples_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, after, campaign = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)
    names = {}
    exec(first, names)
    assert len(SafeOptimizer.load("safebo.db", "pendulum").state.samples) == 2
    lost = names["opt"].ask()  # handed out, and then the program dies
    with pytest.raises(PendingTrialError):
        SafeOptimizer.load("safebo.db", "pendulum").ask()
    exec(after, names)
    assert str(lost.params) in capsys.readouterr().out
    exec(campaign, names)
    assert capsys.readouterr().out == "running 4\n"


def test_the_other_choices_for_a_pending_trial(tmp_path):
    opt = SafeOptimizer.from_json(SafeOptimizer(**_cheap()).state.to_json())
    opt.tell({"a": 0.5}, 1.0)
    url = str(tmp_path / "safebo.db")
    opt.save(url, "r")
    for choice in ({"value": 0.8}, {"status": "aborted", "reason": "power cut"}):
        opt.ask()
        opt = SafeOptimizer.load(url, "r")
        opt.tell(opt.pending, **choice)
        assert opt.pending is None
    assert (len(opt.state.samples), len(opt.state.aborts)) == (2, 1)


def _cheap():
    from safebo import Box, Fixed

    return {"domain": Box({"a": (0.0, 1.0)}), "threshold": 0.0, "norm": Fixed(2.0), "cubes": None, "points_per_axis": 50}
