"""`safebo resume` runs no program that only the database names."""

from __future__ import annotations

import json

import pytest

from safebo.runs import Campaign, Store
from safebo.runs import trust as module
from safebo.runs.trust import trust, trusted

FOREIGN = {"type": "command", "command": ["sh", "-c", "touch pwned\x1b[2K"], "stop": ["true"], "timeout": 5.0, "folder": "/tmp"}


@pytest.fixture(autouse=True)
def _own_state(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture
def made(folder):
    folder("run", "small.toml")
    return folder


def attacked(folder):
    """Somebody who may write to the database gives the run another plant, and signs as its owner."""
    with Store.open(folder.path / "safebo.db") as store:
        campaign = Campaign.open(store, "small")
        campaign.configure(plant=FOREIGN, experiments=9, who=campaign.events()[0].who)


def at_a_terminal(monkeypatch, *answers):
    given, asked = list(answers), []
    monkeypatch.setattr("safebo.cli.terminal.at_terminal", lambda: True)
    monkeypatch.setattr("safebo.cli.terminal.Terminal.ask", lambda self, text, *_: asked.append(text) or given.pop(0))
    return asked


def test_ones_own_run_is_never_asked_about(made):
    made("resume", "small", "--experiments", 3)
    assert len(made.ran()) == 4


def test_a_program_that_the_database_names_is_shown_and_not_run(made):
    attacked(made)
    result = made("resume", "small", code=5)
    assert '["sh", "-c", "touch pwned\\u001b[2K"]' in result.stderr
    assert 'stop: ["true"]' in result.stderr
    assert "--trust-plant" in result.stderr
    assert made.json("resume", "small", code=5)["error"]["type"] == "UntrustedPlantError"
    assert len(made.ran()) == 3


def test_a_person_is_asked_once(made, monkeypatch):
    with Store.open(made.path / "safebo.db") as store:
        campaign = Campaign.open(store, "small")
        other = {**campaign.ledger.config.plant, "timeout": 19.0}
        campaign.configure(plant={**other, "folder": f"{made.path}/."}, experiments=3, who="eve")
        campaign.configure(plant={**campaign.ledger.config.plant, "sent": {"params": {}}}, who="bert")
        assert not trusted(store, other)
    asked = at_a_terminal(monkeypatch, "n", "y")
    assert "Nothing was run" in made("resume", "small", code=5).stderr
    shown = made("resume", "small").stderr
    assert 'function: "rig:measure"' in shown
    assert 'from "eve"' in shown
    made("resume", "small", "--experiments", 4)
    assert [text[:6] for text in asked] == ["Run it"] * 2
    assert len(made.ran()) == 5


def test_without_a_terminal_an_option_says_yes(made):
    trusting = module._file()
    trusting.unlink()
    made("resume", "small", "--experiments", 3, code=5)
    made("resume", "small", "--experiments", 3, "--trust-plant")
    made("resume", "small", "--experiments", 4)
    assert len(made.ran()) == 5


def test_a_file_of_ones_own_says_so_too(made):
    attacked(made)
    made.edit("timeout = 20.0", "timeout = 21.0")
    made("resume", "small.toml", "--experiments", 3)
    assert len(made.ran()) == 4


@pytest.mark.parametrize("what", ["file", "folder"])
def test_agreements_that_others_can_write_do_not_count(made, what):
    path = module._file() if what == "file" else module._file().parent
    path.chmod(0o777)
    made("resume", "small", "--experiments", 3, code=5)


def test_agreements_belong_to_a_database_and_to_all_that_runs(tmp_path):
    plant = {"type": "command", "command": ["rig"], "timeout": 5.0}
    with Store.open(tmp_path / "a.db") as one, Store.open(tmp_path / "b.db") as two:
        trust(one, plant)
        assert trusted(one, {**plant, "sent": {"params": {}}})
        (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
        with Store.open(tmp_path / "link.db") as link:
            assert trusted(link, plant)
        assert not trusted(two, plant)
        for change in ({"command": ["other"]}, {"stop": ["x"]}, {"folder": "/tmp"}, {"type": "python"}):
            assert not trusted(one, {**plant, **change})
        assert trusted(two, {"type": "manual"})
        assert json.loads(json.dumps(plant)) == plant


def test_without_a_place_to_remember_it_is_asked_again(made, monkeypatch, tmp_path):
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "taken"))
    made("resume", "small", "--experiments", 3, code=5)
    made("resume", "small", "--experiments", 3, "--trust-plant")
    made("resume", "small", "--experiments", 4, code=5)
