"""The record in words."""

from __future__ import annotations

import re
import time
import warnings

import pytest

from safebo.exceptions import UnsafeMeasurementWarning
from safebo.runs import Campaign, RunConfig, Store
from safebo.runs import ledger as rules
from safebo.runs.starts import approve_start, send_start
from safebo.runs.words import KINDS, Standing, event_text, moment, moments
from tests.runs.common import optimizer, plant

UNITS = {"a": "V", "objective": "K"}


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "x.db") as opened:
        yield opened


@pytest.fixture
def run(store):
    config = RunConfig(units=UNITS, confirm=True, on_violation="continue")
    return Campaign.create(store, "run", optimizer(), config=config, who="anna")


def said(run):
    return [event_text(e, run.ledger.state.settings, UNITS) for e in run.events()]


def test_every_kind_of_entry_has_words():
    assert set(rules._STEPS) | {"created"} <= set(KINDS)


def test_a_run_in_words(run):
    trial = run.ask().trial
    run.approve(trial.id, who="bert")
    run.start(trial.id)
    run.retry(trial.id)
    run.reject(trial.id, "too close")
    trial = run.ask().trial
    run.approve(trial.id)
    run.start(trial.id)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeMeasurementWarning)
        run.tell(trial.id, -0.5)
    run.tell({"a": 0.5}, 1.0)
    run.abort({"a": 0.9}, "the arm is blocked")
    run.pause("lunch")
    run.resume("after lunch")
    run.stop("smoke")
    run.resume("no smoke")
    run.configure(experiments=7, confirm=False, on_violation="stop", title="x", units={"a": "W"})
    text = "\n".join(said(run))
    for words in (
        "The run was made with safebo",
        f"Trial {trial.id}: a = ",
        "was approved",
        "was handed out to be run",
        "was certainly not executed",
        "was rejected: too close",
        "others keep away from a = ",
        f"Trial {trial.id} measured: objective = -0.5 K at a = ",
        "OUTSIDE THE LIMIT: objective",
        "Measured without asking: objective = 1 K at a = 0.5 V",
        "The run was paused: lunch",
        "The run goes on: after lunch",
        "The run was stopped by a person: smoke",
        "The run makes 7 experiments in all",
        "Experiments need no approval",
        "stops the run from now on",
    ):
        assert words in text, words
    assert "{" not in text and "[" not in text and all(said(run))
    assert re.search(r"certified objective -?[\d.]+ to [\d.]+ K", text)


def test_a_start_in_words(store):
    config = RunConfig(units=UNITS, confirm=True, plant={"start": [{"a": 0.4}]})
    run = Campaign.create(store, "run", optimizer(), config=config)
    approve_start(run, "anna")
    send_start(run)
    run.tell({"a": 0.4}, plant({"a": 0.4}))
    assert said(run)[1:3] == ["The start a = 0.4 V was approved", "The start a = 0.4 V was handed out"]


def test_new_kinds_have_words_too(run):
    from safebo.runs.storage import Event

    settings = run.ledger.state.settings
    assert event_text(Event("voided", {"number": 3, "reason": "typo"}), settings, {}) == "Measurement 3 was taken back: typo"
    assert "was withdrawn" in event_text(Event("withdrawn", {"trial": "3-x", "reason": "a new measurement"}), settings, {})
    assert event_text(Event("of the future", {}), settings, {}) == ""


def test_times_are_to_the_second_and_name_their_zone(monkeypatch):

    assert moment("2025-03-01T10:12:31.123456+00:00") == "2025-03-01 10:12:31 UTC"
    assert moments("since 2025-03-01T10:12:31.123456+00:00, then") == "since 2025-03-01 10:12:31 UTC, then"
    assert moments("handed out 2025-03-01T10:12:31.123456+00:00 UTC)") == "handed out 2025-03-01 10:12:31 UTC)"
    assert moment("yesterday") == "yesterday"
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    assert moment("2025-03-01T10:12:31.123456+00:00", local=True) == "2025-03-01 19:12:31 JST"
    monkeypatch.undo()
    time.tzset()


def test_who_drives_it(run):
    by = "process 12 on host since 2025-03-01T10:12:31+00:00"
    assert Standing.of(run.ledger).words(by) == ("running", "process 12 on host", f"driven by {by}")
    assert Standing.of(run.ledger).words("")[0] == "open"
    run.configure(plant={"type": "manual"})
    assert Standing.of(run.ledger).words("") == ("open", "nobody", "nobody drives it")
    run.pause()
    assert Standing.of(run.ledger).words("") == ("paused", "-", "")
