"""The rules of a run's record."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safebo.exceptions import ConflictError, InvalidValueError, PendingTrialError, StopReason, StorageError
from safebo.runs import Event, Ledger, RunConfig
from safebo.runs.ledger import trial_entry, trial_of
from tests.runs.common import optimizer, plant


def ledger(opt=None, **config):
    state = json.loads((opt or optimizer()).state.to_json())
    return Ledger.of("r", [Event("created", {**state, "config": RunConfig(**config).entry()}, seq=1)])


def asked(opt=None, **config):
    opt = opt or optimizer()
    return ledger(opt, **config).after(Event("asked", {"trial": trial_entry(opt.ask())}, "me", "2026"))


def event(kind, found):
    """A well-formed event of this kind about the pending trial."""
    trial = found.trial or optimizer().ask()
    x = [list(trial.params.values()), list(trial.x)]
    bodies = {
        "asked": {"trial": trial_entry(trial)},
        "told": {"sample": [*x, [plant(trial.params)], trial.id], "record": None, "violated": {}},
        "aborted": {"abort": [*x, 1, "", trial.id]},
        "exhausted": {"reason": "converged"},
        "stopped": {"cause": "stopped"},
        "configured": {"changes": {"confirm": False}},
    }
    return Event(kind, bodies.get(kind, {"trial": trial.id, "reason": "why"}), "me", "2026")


KINDS = (
    "asked",
    "approved",
    "rejected",
    "started",
    "retried",
    "told",
    "aborted",
    "exhausted",
    "paused",
    "resumed",
    "stopped",
    "configured",
)


@settings(deadline=None)
@given(kinds=st.lists(st.sampled_from(KINDS), max_size=25), confirm=st.booleans())
def test_no_sequence_of_events_breaks_the_rules(kinds, confirm):
    """Random events: what is refused changes nothing; what is accepted keeps these sentences true."""
    found, accepted, trial = ledger(confirm=confirm), [], None
    for kind in kinds:
        before = found
        try:
            found = before.after(event(kind, before))
        except ConflictError:
            assert found is before
            continue
        accepted.append(kind)
        trial = found.trial or trial
        assert found.seq == before.seq + 1
        if kind in ("asked", "started"):
            assert before.halted is None
        if kind == "asked":
            assert before.pending is None
        if kind == "started":
            assert not before.pending.out and found.pending.out
            assert not before.config.confirm or before.pending.approved
        if kind in ("approved", "retried", "rejected", "told", "aborted"):
            assert before.pending is not None
        if kind == "rejected":
            assert not before.pending.out
        if kind in ("told", "aborted"):
            assert found.pending is None and len(found.closed) == len(before.closed) + 1
        assert found.halted is None or found.status in ("paused", "stopped")
    assert accepted.count("told") == found.experiments == len(found.samples) - 1
    assert accepted.count("aborted") == len(found.aborts)
    assert found.approvals == accepted.count("approved")


def test_a_trial_is_told_once():
    found = asked()
    told = event("told", found)
    after = found.after(told)
    for again in (told, event("aborted", found), event("started", found), event("approved", found)):
        with pytest.raises(ConflictError, match="told or aborted already"):
            after.after(again)
    with pytest.raises(ConflictError, match="told or aborted already"):
        after.after(event("asked", found))


def test_a_trial_that_is_out_needs_a_person():
    found = asked()
    out = found.after(event("started", found))
    assert out.pending.out and out.pending.starts == 1
    for kind in ("started", "asked"):
        with pytest.raises(PendingTrialError, match=r"Was it executed\?.*tell.*abort.*retry"):
            out.after(event(kind, out))
    with pytest.raises(ConflictError, match="handed to the plant already"):
        out.after(event("rejected", out))
    again = out.after(event("retried", out))
    assert not again.pending.out and again.after(event("started", again)).pending.starts == 2


def test_a_retried_trial_is_approved_again():
    found = asked(confirm=True)
    with pytest.raises(ConflictError, match="not approved"):
        found.after(event("started", found))
    found = found.after(event("approved", found))
    assert found.pending.approved == ("me", "2026")
    with pytest.raises(ConflictError, match="approved by me already"):
        found.after(event("approved", found))
    found = found.after(event("started", found)).after(event("retried", found))
    with pytest.raises(ConflictError, match="not approved"):
        found.after(event("started", found))


@pytest.mark.parametrize(("kind", "halt"), [("paused", StopReason.PAUSED), ("stopped", StopReason.STOPPED)])
def test_nothing_starts_while_halted(kind, halt):
    found = asked()
    halted = found.after(event(kind, found))
    assert halted.halted is halt and halted.status == kind
    with pytest.raises(ConflictError, match="resume"):
        halted.after(event("started", found))
    assert halted.after(event("told", found)).halted is halt  # what ran is told
    assert halted.after(event("resumed", found)).halted is None


def test_more_data_reopen_a_finished_run_and_a_stop_outlasts_them():
    found = ledger().after(Event("exhausted", {"reason": "converged"}))
    assert (found.status, found.halted) == ("finished", None) and "best()" in found.reason
    with pytest.raises(ConflictError, match="finished already"):
        found.after(Event("exhausted", {"reason": "converged"}))
    sample = {"sample": [[0.4], [0.4], [1.0], None], "record": None, "violated": {}}
    assert found.after(Event("told", sample)).status == "running"
    assert found.after(Event("stopped", {"cause": "stopped"})).after(Event("told", sample)).status == "stopped"


def test_gaps_and_unknown_events_are_named():
    with pytest.raises(StorageError, match="event 5 does not follow event 1"):
        ledger().after(Event("paused", {}, seq=5))
    with pytest.raises(StorageError, match=r"'levitated'.*update"):
        ledger().after(Event("levitated"))
    for events in ([], [Event("paused")]):
        with pytest.raises(StorageError, match="creation"):
            Ledger.of("r", events)


def test_a_trial_survives_json_to_the_last_bit():
    trial = optimizer().ask()
    assert trial_of(json.loads(json.dumps(trial_entry(trial)))) == trial


@pytest.mark.parametrize(
    "changes",
    [
        {"title": 3},
        {"units": {"a": 3}},
        {"units": "kg"},
        {"experiments": -1},
        {"experiments": 1.5},
        {"confirm": "yes"},
        {"on_violation": "explode"},
        {"plant": {"x": float("nan")}},
        {"plant": {"x": object()}},
        {"plant": 3},
        {"colour": "red"},
    ],
)
def test_a_wrong_configuration_is_refused(changes):
    with pytest.raises(InvalidValueError, match=next(iter(changes))):
        RunConfig().changed(changes)


def test_a_configuration_is_independent_of_what_it_was_made_from():
    units, rig = {"a": "rad"}, {"port": [1]}
    config = RunConfig(units=units, plant=rig)
    units["a"], rig["port"][0] = "deg", 2
    assert config.units == {"a": "rad"} and config.plant == {"port": [1]}
    assert RunConfig(**config.entry()) == config and dataclasses.replace(config) == config
