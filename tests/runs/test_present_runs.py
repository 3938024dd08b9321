"""No experiment without a certificate of the present: whatever is told beside a trial, and whichever door it leaves by."""

from __future__ import annotations

import contextlib
import threading
import warnings

import pytest

from safebo import Box, Constraint, Fixed, Matern, SafeOptimizer
from safebo.exceptions import ConflictError, DrivenError, InvalidValueError, PendingTrialError, StopReason
from safebo.runs import Campaign, Follower, Ledger, RunConfig, Store
from safebo.runs.operate import End, operate
from safebo.runs.plants import CallablePlant
from safebo.runs.starts import approve_start, next_start, send_start
from tests.runs.common import certificate, execute, optimizer, plant

pytestmark = pytest.mark.filterwarnings("ignore::safebo.exceptions.SafeboWarning")


@pytest.fixture
def store(database_url):
    with Store.open(database_url) as opened:
        yield opened


def limited(**changes):
    """One with a limit, whose trials lie beside what is told next."""
    opt = SafeOptimizer(
        Box({"a": (0.0, 1.0)}), None, constraints={"temp": Constraint(upper=1.0)},
        norm=Fixed(2.0), kernel=Matern(1.5, 0.2), cubes=None, points_per_axis=50, min_width=0.02, **changes,
    )  # fmt: skip
    opt.tell({"a": 0.5}, 1.0, {"temp": 0.0})
    return opt


def kinds(campaign):
    return [event.kind for event in campaign.events()]


def beside(campaign, what):
    """Something that changes what is known, told by somebody else."""
    other = Campaign.open(campaign.store, campaign.name)
    pending = campaign.ledger.pending.trial.params["a"]
    if what == "measurement":
        other.tell({"a": pending}, 1.0, {"temp": 0.999})
    elif what == "abort":
        other.abort({"a": pending}, "smoke")
    elif what == "void":
        other.void(2, "typed wrong")


@pytest.mark.parametrize("what", ["measurement", "abort", "void"])
@pytest.mark.parametrize("door", ["hand_out", "approve", "start", "ask", "optimizer", "loaded"])
def test_a_waiting_trial_never_leaves_with_an_old_certificate(store, database_url, what, door):
    campaign = Campaign.create(store, "r", limited(), config=RunConfig(confirm=door == "approve", on_violation="continue"))
    campaign.tell({"a": 0.51}, 1.0, {"temp": 0.01})
    old = campaign.ask().trial
    beside(campaign, what)
    assert campaign.ledger.pending is None and kinds(campaign)[-2] == "withdrawn"
    assert Follower(store, "r").ledger.pending is None  # page and status show it at once
    if door in ("approve", "start"):
        with pytest.raises(ConflictError, match="not pending"):
            getattr(campaign, door)(old.id)
    leaves = {
        "hand_out": lambda: campaign.hand_out().trial,
        "ask": lambda: campaign.ask().trial,
        "optimizer": lambda: campaign.optimizer.ask(),
        "loaded": lambda: SafeOptimizer.load(database_url, "r").ask(),
        "approve": lambda: campaign.ask().trial,
        "start": lambda: campaign.ask().trial,
    }
    fresh = leaves[door]()
    present = SafeOptimizer.from_json(campaign.ledger.state.to_json())
    assert certificate(fresh) == certificate(present.ask())
    assert fresh.id != old.id and present.is_safe(fresh.params).all()
    pending = campaign.ledger.pending
    assert pending.approved is None  # a new certificate needs a new approval


def test_an_approval_ends_with_its_certificate(store):
    campaign = Campaign.create(store, "r", limited(), config=RunConfig(confirm=True))
    old = campaign.ask().trial
    campaign.approve(old.id, who="olga")
    campaign.tell({"a": 0.52}, 1.0, {"temp": 0.2})
    waiting = campaign.hand_out(key="k")
    assert waiting.approved is None and not waiting.out and waiting.trial.id != old.id
    with pytest.raises(ConflictError, match="not approved"):
        campaign.start(waiting.trial.id)


def test_a_trial_that_was_not_executed_is_not_repeated_with_an_old_certificate(store):
    campaign = Campaign.create(store, "r", limited())
    out = campaign.hand_out()
    Campaign.open(store, "r").tell({"a": out.trial.params["a"]}, 1.0, {"temp": 0.999})
    assert campaign.ledger.pending.out and campaign.ledger.pending.stale  # it is at the plant: its measurement is to come
    campaign.retry(out.trial.id)
    assert campaign.ledger.pending is None and kinds(campaign)[-2:] == ["retried", "withdrawn"]


def test_an_optimizer_in_a_users_hands_gets_a_certificate_of_the_present(database_url):
    opt = limited()
    opt.save(database_url, "r")
    out = opt.ask()
    assert opt.ask() == out
    opt.tell({"a": out.params["a"]}, 1.0, {"temp": 0.999})
    with pytest.raises(PendingTrialError):  # was it executed? its certificate is old
        opt.ask()
    fresh = opt.retry()
    assert fresh.id != out.id and opt.pending == fresh
    assert certificate(fresh) == certificate(SafeOptimizer.from_json(opt.state.to_json()).ask())
    assert opt.retry() == fresh


def test_what_the_runner_sends_is_certified_by_the_present(store):
    """An operator thinks for a while; meanwhile somebody tells a measurement."""
    campaign = Campaign.create(store, "r", limited(), config=RunConfig(confirm=True, experiments=1))
    ran, asked = [], []

    class Operator(_Quiet):
        def approve(self, step):
            asked.append(step.name)
            if len(asked) == 1:
                beside(campaign, "measurement")
            return True

    def measure(params):
        ran.append(params)
        return {"objective": 1.0, "constraints": {"temp": 0.5}}

    assert operate(campaign, CallablePlant(measure), Operator()).end is End.DONE
    assert len(asked) == 2 and len(ran) == 1
    assert kinds(campaign).count("withdrawn") == 1


def test_what_is_told_while_the_plant_is_being_reset_counts_as_well(store):
    campaign = Campaign.create(store, "r", limited(), config=RunConfig(experiments=1))
    resets, ran = [], []

    def reset():
        resets.append(campaign.ledger.pending.trial.id)
        if len(resets) == 1:
            beside(campaign, "measurement")

    def measure(params):
        ran.append(campaign.ledger.pending.trial.id)
        assert not campaign.ledger.pending.stale
        return {"objective": 1.0, "constraints": {"temp": 0.5}}

    assert operate(campaign, CallablePlant(measure, reset=reset), _Quiet()).end is End.DONE
    assert len(ran) == 1 and ran == resets[1:] and resets[0] != resets[1]


def test_a_run_of_an_older_version_with_an_old_waiting_trial(store, database_url):
    """There a measurement could be told beside a trial that waited, and the trial stayed."""
    campaign = Campaign.create(store, "r", limited())
    old = campaign.ask().trial
    body = campaign.events()[1].body
    legacy = _told_beside(campaign)
    with Store.open(database_url) as fresh:
        fresh.create("old", [campaign.events()[0], type(campaign.events()[0])("asked", {"trial": body["trial"]}, "x"), *legacy])
        run = Campaign.open(fresh, "old")
        assert run.ledger.pending.stale and not run.ledger.pending.out
        for door in (run.start, run.approve):
            with pytest.raises(ConflictError):
                door(old.id)
        assert run.ledger.pending is None and kinds(run)[-1] == "withdrawn"
        assert run.ask().trial.id != old.id


def _told_beside(campaign):
    copy = Campaign.create(campaign.store, "copy", limited())
    copy.tell({"a": 0.53}, 1.0, {"temp": 0.1})
    return [e for e in copy.events() if e.kind == "told"]


def test_a_trial_of_an_older_version_keeps_its_norms(store):
    """Trials were stored without the norms that certified them; the present ones are the same ones."""
    first = Campaign.create(store, "r", optimizer())
    first.ask()
    created, asked = first.events()
    copy = store.create("old", [created, type(asked)("asked", {"trial": asked.body["trial"]}, "x")])
    assert len(copy) == 2
    run = Campaign.open(store, "old")
    run.start(asked.body["trial"]["id"])
    run.tell(asked.body["trial"]["id"], 0.9)
    assert len(run.ledger.records) == 1


# -- one rule for every door ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", ["trial", "parameters", "many", "optimizer"])
@pytest.mark.parametrize("rule", ["stop", "continue"])
def test_a_measurement_outside_a_limit_stops_the_run_whoever_tells_it(store, door, rule):
    campaign = Campaign.create(store, "r", limited(), config=RunConfig(on_violation=rule))
    if door == "trial":
        pending = campaign.hand_out()
        campaign.tell(pending.trial.id, 1.0, {"temp": 46.0})
    elif door == "parameters":
        receipt = campaign.tell({"a": 0.6}, 1.0, {"temp": 46.0})
        assert receipt.violated == {"temp": 46.0}
    elif door == "many":
        campaign.tell_many([({"a": 0.6}, 1.0, {"temp": 0.5}), ({"a": 0.7}, 1.0, {"temp": 46.0})])
    else:
        campaign.optimizer.tell({"a": 0.6}, 1.0, {"temp": 46.0})
    ledger = campaign.ledger
    assert ledger.halted is (StopReason.VIOLATION if rule == "stop" else None)
    assert (campaign.optimizer.stop_reason is StopReason.VIOLATION) == (rule == "stop")
    if rule == "stop":
        assert "temp = 46" in ledger.reason
        with pytest.raises(ConflictError, match="accepted"):
            campaign.resume()


def test_a_violation_of_a_start_stops_the_run_as_well(store):
    made = Campaign.create(store, "r", limited(), config=RunConfig(plant={"type": "manual", "start": [{"a": 0.55}]}))
    values = iter([{"objective": 1.0, "constraints": {"temp": 2.0}}])
    result = operate(made, CallablePlant(lambda params: next(values)), _Quiet())
    assert result.end is End.VIOLATION and made.ledger.halted is StopReason.VIOLATION


class _Quiet:
    def approve(self, step):
        return True

    def refused(self, step):
        return ""

    def waits(self):
        return False

    def say(self, text):
        pass

    def measured(self, step, result, ledger):
        pass


# -- nothing depends on the clock ----------------------------------------------------------------------------------------------


def test_warnings_name_the_number_that_can_be_taken_back(store):
    campaign = Campaign.create(store, "r", limited(), config=RunConfig(on_violation="continue"))
    campaign.tell({"a": 0.51}, 1.0, {"temp": 0.01})
    campaign.void(2)
    with pytest.warns(match=r"Measurement 3 .* violates") as caught:
        campaign.tell({"a": 0.6}, 1.0, {"temp": 46.0})
    assert any("measurement 3, 46" in str(w.message) for w in caught)
    campaign.void(3)


def test_two_starts_at_one_tick_of_the_clock_are_two(store, monkeypatch):
    monkeypatch.setattr("safebo.runs.storage.now", lambda: "2026-01-01T00:00:00.000000")
    monkeypatch.setattr("safebo.runs.starts.now", lambda: "2026-01-01T00:00:00.000000")
    opt = SafeOptimizer(Box({"a": (0.0, 1.0)}), 0.0, norm=Fixed(2.0), kernel=Matern(1.5, 0.2), cubes=None, points_per_axis=50)
    made = Campaign.create(
        store, "r", opt, config=RunConfig(plant={"type": "manual", "start": [{"a": 0.5}], "repeats": 3}, experiments=2)
    )
    assert operate(made, CallablePlant(plant), _Quiet()).end is End.DONE
    assert len(made.ledger.samples) == 5 and next_start(made.ledger) is None


def test_an_ask_key_gets_its_own_trial_only_at_one_tick_of_the_clock(store, monkeypatch):
    monkeypatch.setattr("safebo.runs.storage.now", lambda: "2026-01-01T00:00:00.000000")
    run = Campaign.create(store, "r", optimizer())
    first = run.hand_out(key="a")
    run.tell(first.trial.id, 0.9)
    second = run.hand_out(key="b")
    with pytest.raises(ConflictError, match="not out any more"):
        run.hand_out(key="a")
    assert run.hand_out(key="b") == second


# -- taking a measurement back -------------------------------------------------------------------------------------------------


def test_a_typing_error_is_taken_back_and_corrected(store):
    campaign = Campaign.create(store, "r", limited())
    pending = campaign.hand_out()
    campaign.tell(pending.trial.id, 1.0, {"temp": 0.1})
    late = campaign.hand_out()
    campaign.tell(late.trial.id, 1.0, {"temp": 46.0})  # 0.46 was meant
    assert campaign.ledger.halted is StopReason.VIOLATION and campaign.ledger.violations == (3,)
    campaign.void(3, "0.46 was meant", who="olga")
    ledger = campaign.ledger
    assert ledger.numbers == (1, 2) and ledger.violations == () and ledger.halted is StopReason.PAUSED
    (gone,) = ledger.voided
    assert (gone.number, gone.reason, gone.who, gone.sample[2]) == (3, "0.46 was meant", "olga", [1.0, 46.0])
    campaign.resume()
    campaign.tell(late.trial.params, 1.0, {"temp": 0.46})
    assert campaign.ledger.numbers == (1, 2, 4)  # numbers never change their meaning
    assert certificate(campaign.ask().trial) == certificate(SafeOptimizer.from_json(campaign.ledger.state.to_json()).ask())


def test_certificates_that_rested_on_it_are_marked(store):
    campaign = Campaign.create(store, "r", limited())
    trials = []
    for _ in range(3):
        pending = campaign.hand_out()
        trials.append(pending.trial.id)
        campaign.tell(pending.trial.id, 1.0, {"temp": 0.1})
    campaign.void(2)
    assert campaign.ledger.doubtful == {trials[1], trials[2]}
    assert Ledger.of("r", campaign.events()) == campaign.ledger


def test_what_cannot_be_taken_back(store):
    campaign = Campaign.create(store, "r", limited())
    campaign.tell({"a": 0.6}, 1.0, {"temp": 0.2})
    campaign.void(2)
    for number, match in ((2, "taken back already"), (3, "does not exist"), (0, ">= 1"), (True, ">= 1"), ("1", ">= 1")):
        with pytest.raises((ConflictError, InvalidValueError), match=match):
            campaign.void(number)
    assert kinds(campaign) == ["created", "told", "voided"]


def test_a_start_that_is_taken_back_is_measured_again(store):
    opt = SafeOptimizer(Box({"a": (0.0, 1.0)}), 0.0, norm=Fixed(2.0), kernel=Matern(1.5, 0.2), cubes=None, points_per_axis=50)
    config = RunConfig(plant={"type": "manual", "start": [{"a": 0.5}]}, experiments=1)
    made = Campaign.create(store, "r", opt, config=config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.tell({"a": 0.5}, 8.0)
        made.void(1, "typed 8 for 0.8")
        assert made.ledger.numbers == () and next_start(made.ledger).params == {"a": 0.5}
        assert operate(made, CallablePlant(plant), _Quiet()).end is End.DONE
    assert made.ledger.numbers == (2, 3)


def test_the_database_is_what_it_was(store, database_url):
    """A refused step writes nothing."""
    campaign = Campaign.create(store, "r", limited())
    before = execute(database_url, "SELECT COUNT(*) FROM safebo_events")
    with pytest.raises(ConflictError):
        campaign.void(7)
    assert execute(database_url, "SELECT COUNT(*) FROM safebo_events") == before


# -- what somebody else does at the same moment --------------------------------------------------------------------------------


def test_stop_is_never_refused_because_others_write(store, database_url):
    campaign = Campaign.create(store, "r", limited(), config=RunConfig(on_violation="continue"))
    over = threading.Event()

    def write():
        with Store.open(database_url) as mine:
            busy = Campaign.open(mine, "r")
            while not over.is_set():
                with contextlib.suppress(ConflictError):
                    busy.configure(notes="x")

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for verb in (campaign.pause, campaign.resume, campaign.stop, campaign.resume) * 4:
            verb()
    finally:
        over.set()
        for thread in threads:
            thread.join(30.0)


def test_a_key_gets_no_trial_back_after_a_stop_or_with_an_old_certificate(store):
    campaign = Campaign.create(store, "r", limited(), config=RunConfig(on_violation="continue"))
    out = campaign.hand_out(key="k")
    assert campaign.hand_out(key="k") == out
    campaign.stop()
    assert campaign.hand_out(key="k") is None
    campaign.resume()
    campaign.tell({"a": out.trial.params["a"]}, 1.0, {"temp": 0.999})
    with pytest.raises(PendingTrialError):
        campaign.hand_out(key="k")


def test_a_key_belongs_to_its_caller_whatever_is_sent(store):
    campaign = Campaign.create(store, "r", limited())
    campaign.tell({"a": 0.55}, 1.0, {"temp": 0.1}, key="k", who="rig 1")
    assert campaign.tell({"a": 0.55}, 1.0, {"temp": 0.1}, key="k", who="rig 1").repeated
    with pytest.raises(ConflictError, match="another"):
        campaign.tell({"a": 0.55}, 1.0, {"temp": 0.1}, key="k", who="rig 2")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_trial_that_is_out_while_a_measurement_is_taken_back(store, number):
    campaign = Campaign.create(store, "r", limited())
    campaign.tell({"a": 0.51}, 1.0, {"temp": 0.01})
    campaign.tell({"a": 0.53}, 1.0, {"temp": 0.02})
    out = campaign.hand_out()
    campaign.void(number)
    campaign.tell(out.trial.id, 1.0, {"temp": 0.03})
    state = Ledger.of("r", campaign.events()).state
    assert SafeOptimizer.from_json(state.to_json()).ask() == campaign.optimizer.ask()
    assert all(record.step < number for record in state.records)  # what was estimated with it is forgotten


def test_the_only_measurement_stays_while_an_experiment_is_at_the_plant(store):
    campaign = Campaign.create(store, "r", limited())
    out = campaign.hand_out()
    with pytest.raises(ConflictError, match="the only one"):
        campaign.void(1)
    campaign.tell(out.trial.id, 1.0, {"temp": 46.0})
    assert campaign.ledger.halted is StopReason.VIOLATION


def test_measurements_told_again_after_they_were_taken_back(store):
    """The state is an earlier one again, and so is its trial."""
    campaign = Campaign.create(store, "r", limited())
    campaign.tell({"a": 0.51}, 1.0, {"temp": 0.01})
    out = campaign.hand_out()
    campaign.tell(out.trial.id, 1.0, {"temp": 0.02})
    campaign.void(3)
    campaign.void(2)
    campaign.tell({"a": 0.51}, 1.0, {"temp": 0.01})
    again = campaign.hand_out()
    assert again is not None and again.out
    campaign.tell(again.trial.id, 1.0, {"temp": 0.02})
    assert Ledger.of("r", campaign.events()) == campaign.ledger


def test_a_stop_under_a_violation_comes_back_when_that_is_taken_back(store):
    campaign = Campaign.create(store, "r", limited())
    campaign.stop("smoke")
    campaign.tell({"a": 0.6}, 1.0, {"temp": 46.0})
    assert campaign.ledger.halted is StopReason.VIOLATION
    campaign.void(2)
    assert (campaign.ledger.halted, campaign.ledger.reason) == (StopReason.STOPPED, "smoke")


def test_a_first_measurement_outside_a_limit_stops_the_run_at_every_door(database_url, store):
    opt = SafeOptimizer(Box({"a": (0.0, 1.0)}), 0.0, norm=Fixed(2.0), kernel=Matern(1.5, 0.2), cubes=None, points_per_axis=50)
    campaign = Campaign.create(store, "r", opt)
    with pytest.raises(InvalidValueError, match="not safe"):
        campaign.tell({"a": 0.5}, -46.0)
    assert campaign.ledger.halted is StopReason.VIOLATION and "-46" in campaign.ledger.reason
    campaign.resume(accept_violation=True)
    with pytest.raises(InvalidValueError, match="not safe"):
        SafeOptimizer.load(database_url, "r").tell({"a": 0.5}, -46.0)
    assert campaign.ledger.halted is StopReason.VIOLATION


def test_a_start_that_is_taken_back_needs_a_new_approval(store):
    opt = SafeOptimizer(Box({"a": (0.0, 1.0)}), 0.0, norm=Fixed(2.0), kernel=Matern(1.5, 0.2), cubes=None, points_per_axis=50)
    plan = {"type": "manual", "start": [{"a": 0.5}], "repeats": 2}
    made = Campaign.create(store, "r", opt, config=RunConfig(plant=plan, confirm=True))
    for _ in range(2):
        approve_start(made)
        send_start(made)
        made.tell({"a": 0.5}, 0.8)
    made.void(2)
    start = next_start(made.ledger)
    assert (start.number, start.attempt, start.out, start.approved) == (2, 3, False, None)


def test_what_one_program_hands_out_again_is_not_another_ones(database_url):
    opt = limited()
    opt.save(database_url, "r")
    out = opt.ask()
    other = Campaign.load(database_url, "r")
    other.retry(out.id)
    assert other.hand_out().trial == out
    with pytest.raises(PendingTrialError):
        opt.ask()


def test_what_a_runner_has_at_the_plant_is_nobody_elses(store, database_url):
    campaign = Campaign.create(store, "r", limited())
    said = []

    def measure(params):
        loaded = SafeOptimizer.load(database_url, "r")
        trial = loaded.pending
        for step in (
            loaded.retry,
            lambda: loaded.tell(trial, 1.0, {"temp": 0.1}),
            lambda: loaded.tell(trial, status="aborted", reason="x"),
        ):
            with pytest.raises(DrivenError):
                step()
            said.append(trial.id)
        campaign.pause()
        return {"objective": 1.0, "constraints": {"temp": 0.5}}

    assert operate(campaign, CallablePlant(measure), _Quiet()).end is End.PAUSED
    assert len(said) == 3 and campaign.ledger.pending is None
