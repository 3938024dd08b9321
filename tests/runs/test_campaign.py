"""Durable runs: stored before it counts, for any number of programs at once."""

from __future__ import annotations

import contextlib
import itertools
import time
import warnings

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from safebo import Box, SafeOptimizer
from safebo.exceptions import (
    AlreadyToldError,
    ConflictError,
    InDoubtError,
    InvalidValueError,
    PendingTrialError,
    SafeboError,
    StopReason,
    StorageError,
)
from safebo.runs import Campaign, Event, Follower, Ledger, RunConfig, Store
from tests.runs.common import certificate, dump, execute, optimizer, plant

numbers = itertools.count()


@pytest.fixture
def store(database_url):
    with Store.open(database_url) as opened:
        yield opened


def run_on(campaign, steps):
    for _ in range(steps):
        pending = campaign.ask()
        campaign.start(pending.trial.id)
        campaign.tell(pending.trial.id, plant(pending.trial.params))


class Interleaved(RuleBasedStateMachine):
    """Two programs on one run, against a model of what is allowed."""

    url = ""

    @initialize(confirm=st.booleans(), on_violation=st.sampled_from(["stop", "continue"]))
    def begin(self, confirm, on_violation):
        self.stores = [Store.open(self.url), Store.open(self.url)]
        self.name = f"run {next(numbers)}"
        config = RunConfig(confirm=confirm, on_violation=on_violation)
        first = Campaign.create(self.stores[0], self.name, optimizer(), config=config)
        self.campaigns = [first, Campaign.open(self.stores[1], self.name)]
        self.confirm, self.on_violation = confirm, on_violation
        self.halt, self.trial, self.out, self.approved, self.stale = None, None, False, False, False
        self.numbers, self.told, self.violated, self.accepted = [1], 1, [], 0
        self.aborts, self.closed, self.keys = 0, [], {}

    def teardown(self):
        if not hasattr(self, "campaigns"):
            return
        text = self.campaigns[0].optimizer.state.to_json()
        with Store.open(self.url, create=False) as fresh:
            assert Ledger.of(self.name, fresh.events(self.name)).state.to_json() == text
            follower = Follower(fresh, self.name).optimizer()
            assert certificate(follower.ask()) == certificate(SafeOptimizer.from_json(text).ask())
            if self.trial is None and self.halt is None:
                mine = self.campaigns[1].ask()
                assert certificate(mine.trial if mine else None) == certificate(follower.ask())
        for store in self.stores:
            store.close()

    def expect(self, allowed, call):
        """Do it; what is not allowed raises and changes nothing, neither in the database nor in the optimizers."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if allowed:
                return call()
            before = dump(self.url), [c.optimizer.state for c in self.campaigns]
            with pytest.raises(SafeboError):
                call()
            assert (dump(self.url), [c.optimizer.state for c in self.campaigns]) == before
            return None

    def chosen(self, data):
        return self.campaigns[data.draw(st.integers(0, 1), label="program")]

    def identity(self, data):
        """Mostly the pending trial; sometimes one that is closed, or nonsense."""
        others = [*self.closed[-2:], "0-unknown"]
        return data.draw(st.sampled_from([*[self.trial] * 4 * (self.trial is not None), *others]), label="trial")

    @property
    def running(self):
        return self.halt is None

    @rule(data=st.data())
    def ask(self, data):
        pending = self.expect(self.running and not self.out, self.chosen(data).ask)
        if pending is not None and self.trial is None:
            self.trial, self.out, self.approved, self.stale = pending.trial.id, False, False, False
        elif pending is not None:
            assert pending.trial.id == self.trial

    @precondition(lambda self: self.trial is not None or self.closed)
    @rule(data=st.data())
    def approve(self, data):
        identity = self.identity(data)
        allowed = identity == self.trial and not self.approved and not self.out
        self.expect(allowed, lambda: self.chosen(data).approve(identity, who="operator"))
        self.approved |= allowed

    @precondition(lambda self: self.trial is not None or self.closed)
    @rule(data=st.data())
    def start(self, data):
        identity = self.identity(data)
        allowed = identity == self.trial and self.running and not self.out and (self.approved or not self.confirm)
        self.expect(allowed, lambda: self.chosen(data).start(identity))
        self.out |= allowed

    @precondition(lambda self: self.trial is not None or self.closed)
    @rule(data=st.data())
    def retry(self, data):
        identity = self.identity(data)
        allowed = identity == self.trial and self.out
        self.expect(allowed, lambda: self.chosen(data).retry(identity))
        if allowed:
            self.out = self.approved = False
            if self.stale:  # what was told meanwhile is not in its certificate
                self.close()

    def close(self):
        self.closed.append(self.trial)
        self.trial, self.out, self.approved, self.stale = None, False, False, False

    def beside(self):
        """Something changes beside the trial: one that waits is withdrawn, one that is out is of the past."""
        if self.trial is not None and not self.out:
            self.close()
        self.stale = self.trial is not None

    def told_one(self, value):
        self.told += 1
        self.numbers.append(self.told)
        if value < 0.0:
            self.violated.append(self.told)
            if self.on_violation == "stop":
                self.halt = StopReason.VIOLATION

    @precondition(lambda self: self.trial is not None or self.closed)
    @rule(data=st.data(), value=st.sampled_from([0.9, 0.5, -0.5, float("nan"), None]))
    def tell(self, data, value):
        identity, program = self.identity(data), self.chosen(data)
        good = value is not None and value == value
        allowed = identity == self.trial and good
        self.expect(allowed, lambda: program.tell(identity, value))
        if allowed:
            self.close()
            self.told_one(value)

    @rule(data=st.data(), a=st.sampled_from([0.41, 0.47, 0.55, 2.0]), value=st.sampled_from([0.8, -0.2]))
    def tell_parameters(self, data, a, value):
        self.expect(a <= 1.0, lambda: self.chosen(data).tell({"a": a}, value))
        if a <= 1.0:
            self.beside()
            self.told_one(value)

    @precondition(lambda self: len(self.numbers) > 1)
    @rule(data=st.data())
    def void(self, data):
        number = data.draw(st.sampled_from([*range(1, self.told + 2)]), label="number")
        allowed = number in self.numbers and (number != self.numbers[0] or self.numbers[1] not in self.violated)
        self.expect(allowed, lambda: self.chosen(data).void(number, "typed wrong"))
        if allowed:
            self.beside()
            self.numbers.remove(number)
            was = number in self.violated
            self.violated = [v for v in self.violated if v != number]
            if was and self.halt is StopReason.VIOLATION and not any(v > self.accepted for v in self.violated):
                self.halt = StopReason.PAUSED

    @rule(data=st.data(), key=st.sampled_from(["one", "two"]), a=st.sampled_from([0.43, 0.57]))
    def tell_with_key(self, data, key, a):
        known = self.keys.get(key)
        receipt = self.expect(known is None or known[0] == a, lambda: self.chosen(data).tell({"a": a}, 0.7, key=key))
        if receipt is not None:
            assert receipt.repeated == (known is not None) and (known is None or known[1] == receipt.seq)
            if known is None:
                self.beside()
                self.told_one(0.7)
            self.keys.setdefault(key, (a, receipt.seq))

    @precondition(lambda self: self.trial is not None or self.closed)
    @rule(data=st.data(), how=st.sampled_from(["abort", "abandon", "reject"]))
    def give_up(self, data, how):
        identity, program = self.identity(data), self.chosen(data)
        allowed = identity == self.trial and not (how == "reject" and self.out)
        self.expect(allowed, lambda: getattr(program, how)(identity, "why"))
        if allowed:
            self.aborts += 1
            self.close()

    @precondition(lambda self: self.aborts < 4)
    @rule(data=st.data(), a=st.sampled_from([0.05, 0.95, -1.0]))
    def abort_parameters(self, data, a):
        self.expect(a >= 0.0, lambda: self.chosen(data).abort({"a": a}, "fuse"))
        if a >= 0.0:
            self.beside()
            self.aborts += 1

    @rule(data=st.data(), how=st.sampled_from(["pause", "stop"]))
    def halt_it(self, data, how):
        allowed = self.halt is None or (how == "stop" and self.halt is StopReason.PAUSED)
        self.expect(allowed, lambda: getattr(self.chosen(data), how)("why"))
        if allowed:
            self.halt = StopReason.PAUSED if how == "pause" else StopReason.STOPPED

    @rule(data=st.data(), accept=st.booleans())
    def resume(self, data, accept):
        violation = self.halt is StopReason.VIOLATION
        allowed = self.halt is not None and (accept or not violation)
        self.expect(allowed, lambda: self.chosen(data).resume(accept_violation=accept))
        if allowed:
            self.halt = None
            self.accepted = self.told if violation else self.accepted

    @rule(
        data=st.data(), changes=st.sampled_from([{"confirm": True}, {"confirm": False}, {"on_violation": "continue"}, {"x": 1}])
    )
    def configure(self, data, changes):
        self.expect("x" not in changes, lambda: self.chosen(data).configure(**changes))
        self.confirm = changes.get("confirm", self.confirm)
        self.on_violation = changes.get("on_violation", self.on_violation)

    @rule(data=st.data())
    def interrupted(self, data):
        """Ctrl-C at the worst moment: stored, and the optimizer does not know yet."""
        program = self.chosen(data)
        journal = program.optimizer._journal
        original = journal.told

        def told(*arguments):
            original(*arguments)
            raise KeyboardInterrupt

        journal.told = told
        try:
            with pytest.raises(KeyboardInterrupt):
                program.tell({"a": 0.5}, 0.9)
        finally:
            del journal.told
        self.beside()
        self.told_one(0.9)

    @invariant()
    def both_know_what_is_stored(self):
        if not hasattr(self, "campaigns"):
            return
        events = self.stores[0].events(self.name)
        fold = Ledger.of(self.name, events)
        for campaign in self.campaigns:
            found = campaign.ledger
            assert (found.seq, found.digest, found.samples, found.records, found.aborts) == (
                fold.seq,
                fold.digest,
                fold.samples,
                fold.records,
                fold.aborts,
            )
            assert (found.pending, found.halt, found.config) == (fold.pending, fold.halt, fold.config)
            assert (found.numbers, found.violations, found.voided) == (fold.numbers, fold.violations, fold.voided)
            assert campaign.optimizer.state == fold.state and campaign.optimizer.state.to_json() == fold.state.to_json()
        assert (list(fold.numbers), list(fold.violations)) == (self.numbers, self.violated)
        assert (len(fold.samples), len(fold.aborts), fold.told) == (len(self.numbers), self.aborts, self.told)
        assert fold.pending is None or fold.pending.stale == self.stale
        assert (fold.trial.id if fold.trial else None) == self.trial
        assert fold.pending is None or (fold.pending.out, fold.pending.approved is not None) == (self.out, self.approved)
        assert fold.halted is self.halt and fold.config.confirm == self.confirm


@pytest.mark.filterwarnings("ignore::safebo.exceptions.SafeboWarning")
def test_two_programs_on_one_run(database_url):
    class Machine(Interleaved):
        url = database_url

    count = 15 if database_url.startswith("sqlite") else 4
    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=count, stateful_step_count=25, deadline=None, phases=[Phase.explicit, Phase.generate]),
    )


def test_a_loaded_run_goes_on_as_if_nothing_had_happened(database_url):
    """With the defaults: learned norms, doubling cubes."""
    box, steps = Box({"kp": (0.0, 5.0)}), 4
    measure = lambda params: 1.0 - (params["kp"] - 2.0) ** 2 / 8.0  # noqa: E731
    undisturbed = SafeOptimizer(box, 0.0, seed=7)
    undisturbed.tell({"kp": 1.5}, measure({"kp": 1.5}))
    expected = []
    for _ in range(steps):
        trial = undisturbed.ask()
        expected.append(certificate(trial))
        undisturbed.tell(trial, measure(trial.params))
    opt = SafeOptimizer(box, 0.0, seed=7)
    opt.tell({"kp": 1.5}, measure({"kp": 1.5}))
    opt.save(database_url, "r")
    found = []
    for _ in range(steps):
        opt = SafeOptimizer.load(database_url, "r")
        trial = opt.ask()
        found.append(certificate(trial))
        opt.tell(trial, measure(trial.params))
    assert found == expected and opt.state == undisturbed.state
    assert certificate(SafeOptimizer.load(database_url, "r").ask()) == certificate(undisturbed.ask())


def test_a_pending_trial_is_shown_and_never_guessed(database_url):
    opt = optimizer()
    opt.save(database_url, "r")
    trial = opt.ask()
    assert opt.ask() == trial  # the same program may ask again
    again = SafeOptimizer.load(database_url, "r")
    assert again.pending == trial
    with pytest.raises(PendingTrialError, match=r"Was it executed\?"):
        again.ask()
    assert again.retry() == trial and again.ask() == trial
    again.tell(trial, plant(trial.params))
    assert again.pending is None
    with pytest.raises(AlreadyToldError):
        opt.tell(trial, plant(trial.params))
    assert opt.state == again.state


def test_a_trial_from_before_saving_is_told_afterwards(database_url):
    opt = optimizer()
    trial = opt.ask()
    opt.save(database_url, "r")
    assert opt.pending == trial and opt.ask() == trial
    with pytest.raises(PendingTrialError):
        SafeOptimizer.load(database_url, "r").ask()
    opt.tell(trial, plant(trial.params))
    assert SafeOptimizer.load(database_url, "r").state == opt.state


def test_a_trial_that_waits_is_withdrawn_when_something_is_told_beside_it(store, database_url):
    campaign = Campaign.create(store, "r", optimizer())
    trial = campaign.ask().trial
    campaign.tell({"a": 0.52}, 0.99)
    assert campaign.ledger.pending is None
    assert [e.kind for e in campaign.events()] == ["created", "asked", "withdrawn", "told"]
    loaded = SafeOptimizer.load(database_url, "r")
    fresh = loaded.ask()
    assert fresh.id != trial.id and certificate(fresh) == certificate(SafeOptimizer.from_json(loaded.state.to_json()).ask())
    for late in (lambda: campaign.start(trial.id), lambda: campaign.approve(trial.id), lambda: campaign.tell(trial.id, 0.9)):
        with pytest.raises(ConflictError, match="not pending"):
            late()


def test_keys_are_for_one_request(store):
    campaign = Campaign.create(store, "r", optimizer())
    receipt = campaign.tell({"a": 0.6}, 0.9, key="k")
    assert campaign.tell({"a": 0.6}, 0.9, key="k") == type(receipt)(receipt.seq, {}, "running", repeated=True)
    for other in (lambda: campaign.tell({"a": 0.6}, 0.8, key="k"), lambda: campaign.abort({"a": 0.6}, "", key="k")):
        with pytest.raises(ConflictError, match="another request"):
            other()
    for key in ("", "x" * 201, "a\nb", 3):
        with pytest.raises(InvalidValueError, match="key"):
            campaign.tell({"a": 0.6}, 0.9, key=key)
    assert len(campaign.ledger.samples) == 2


@pytest.mark.parametrize("who", ["a\0b", "\ud800", "x" * 2001, 3])
def test_names_of_people_that_no_database_takes_are_refused(store, who):
    campaign = Campaign.create(store, "r", optimizer())
    with pytest.raises(InvalidValueError, match="who"):
        campaign.pause(who=who)
    with pytest.raises(InvalidValueError, match="reason"):
        campaign.pause(reason=who)
    campaign.pause("Kaffee ☕", who="Zoë 'Z' \"O\" 🤖")
    assert campaign.events()[-1].who == "Zoë 'Z' \"O\" 🤖"


def test_a_violation_stops_the_run_in_the_same_step(store):
    campaign = Campaign.create(store, "r", optimizer())
    pending = campaign.ask()
    campaign.start(pending.trial.id)
    with pytest.warns(match="violates"):
        receipt = campaign.tell(pending.trial.id, -0.01)
    assert (receipt.status, list(receipt.violated.values())) == ("stopped", [-0.01])
    with pytest.raises(ConflictError, match="resume"):
        campaign.ask()
    assert campaign.optimizer.ask() is None and campaign.optimizer.stop_reason is StopReason.VIOLATION
    with pytest.raises(ConflictError, match="accepted"):
        campaign.resume("checked")
    campaign.resume("checked", accept_violation=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the data refute the norm
        assert campaign.ask() is not None


def test_who_presses_pause_or_resume_has_seen_the_run_as_it_is(store):
    campaign = Campaign.create(store, "r", optimizer())
    seen = campaign.ledger.seq
    campaign.stop("smoke")
    for press in (campaign.pause, campaign.resume):
        with pytest.raises(ConflictError, match=r"stopped \(smoke\) by now"):
            press(seen=seen)
    campaign.resume(seen=campaign.ledger.seq)
    seen = campaign.ledger.seq
    campaign.tell({"a": 0.41}, 0.9)  # no switch: whoever saw the run running may pause it
    campaign.pause(seen=seen)
    assert campaign.ledger.status == "paused"


def test_a_run_that_is_stored_already_cannot_be_saved_again(database_url):
    opt = optimizer()
    opt.save(database_url, "r")
    with pytest.raises(InvalidValueError, match="stored already"):
        opt.save(database_url, "other")
    with pytest.raises(ConflictError, match="already"):
        optimizer().save(database_url, "r")
    fresh = optimizer()
    with contextlib.suppress(ConflictError):
        fresh.save(database_url, "r")
    fresh.tell({"a": 0.5}, 1.0)  # still an optimizer in memory
    assert len(SafeOptimizer.load(database_url, "r").state.samples) == 1


def test_a_follower_sees_what_is_written_and_writes_nothing(store, database_url):
    campaign = Campaign.create(store, "r", optimizer())
    with Store.open(database_url, create=False) as other:
        follower = Follower(other, "r")
        run_on(campaign, 3)
        before = dump(database_url)
        assert follower.ledger.state == campaign.optimizer.state
        looking = follower.optimizer()
        trial = looking.ask()
        looking.tell(trial, 0.5)
        assert dump(database_url) == before
        assert follower.optimizer().state == campaign.optimizer.state
        assert certificate(campaign.ask().trial) == certificate(trial)


class Broken(Exception):
    """Stands for a database that fails."""


def test_a_measurement_that_cannot_be_stored_is_shown(store, monkeypatch, database_url):
    """Whether reading or writing fails; and nothing has changed."""
    campaign = Campaign.create(store, "r", optimizer())
    pending = campaign.ask()
    campaign.start(pending.trial.id)
    opt, before = campaign.optimizer, dump(database_url)
    state = opt.state

    def fail(*_, **__):
        raise StorageError("The disk is full.")

    for method in ("events", "append"):
        with monkeypatch.context() as patch:
            patch.setattr(Store, method, fail)
            for call in (
                lambda: campaign.tell(pending.trial.id, 0.123456789),
                lambda: opt.tell(pending.trial, 0.123456789),
                lambda: campaign.tell_many([({"a": 0.5}, 0.123456789)], key="k"),
                lambda: opt.tell_many([({"a": 0.5}, 0.123456789)]),
            ):
                with pytest.raises(StorageError, match=r"disk is full.*NOT STORED: 0\.123456789 at") as caught:
                    call()
                assert str(caught.value).count("NOT STORED") == 1
        assert dump(database_url) == before and opt.state is state
    campaign.tell(pending.trial.id, 0.123456789)
    assert campaign.ledger.state == campaign.optimizer.state


def test_a_lost_connection_during_the_commit_is_settled(server, monkeypatch):
    """The commit arrives or not: the answer is true in both cases, and unknown only if the server stays away."""
    from sqlalchemy.engine.default import DefaultDialect

    url = server.schema()
    original = DefaultDialect.do_commit
    with Store.open(url) as store:
        campaign = Campaign.create(store, "r", optimizer())

        def once(arrives):
            def commit(self, connection):
                monkeypatch.setattr(DefaultDialect, "do_commit", original)
                if arrives:
                    original(self, connection)
                with Store.open(url) as other, other._reading() as admin:
                    other_pid = connection.driver_connection.info.backend_pid
                    admin.exec_driver_sql(f"SELECT pg_terminate_backend({other_pid})")
                connection.execute("SELECT 1")  # what the driver notices of it

            monkeypatch.setattr(DefaultDialect, "do_commit", commit)

        _only_writes(monkeypatch, store, once, True)
        campaign.tell({"a": 0.51}, 0.9)
        assert [s[2] for s in Campaign.open(store, "r").ledger.samples] == [[1.0], [0.9]]
        _only_writes(monkeypatch, store, once, False)
        with pytest.raises(StorageError, match=r"NOT STORED: 0\.8") as caught:
            campaign.tell({"a": 0.52}, 0.8)
        assert not isinstance(caught.value, InDoubtError)
        campaign.tell({"a": 0.52}, 0.8)
        assert [s[2] for s in campaign.ledger.samples] == [[1.0], [0.9], [0.8]]
        monkeypatch.setattr("safebo.runs.connect.WAIT", 0.3)
        monkeypatch.setattr(Store, "_has", lambda *_: (_ for _ in ()).throw(StorageError("gone")))
        _only_writes(monkeypatch, store, once, True)
        with pytest.raises(InDoubtError, match=r"unknown.*PERHAPS NOT STORED: 0\.7"):
            campaign.tell({"a": 0.53}, 0.7)
        assert campaign.ledger.state == campaign.optimizer.state and len(campaign.ledger.samples) == 4


def _only_writes(monkeypatch, store, once, arrives):
    """Arm `once` when the next event is inserted: transactions that only read commit as well."""
    original = Store._insert

    def insert(self, *arguments):
        monkeypatch.setattr(Store, "_insert", original)
        once(arrives)
        return original(self, *arguments)

    monkeypatch.setattr(Store, "_insert", insert)


def test_a_thousand_events_load_quickly(store, database_url):
    opt = optimizer()
    rng = np.random.default_rng(0)
    campaign = Campaign.create(store, "r", opt)
    campaign.tell_many([({"a": float(a)}, 1.0 - (a - 0.6) ** 2) for a in rng.uniform(0.3, 0.7, 500)])
    events = [Event(kind, {"reason": ""}, "me") for _ in range(250) for kind in ("paused", "resumed")]
    store.append("r", campaign.ledger.seq, events)
    start = time.monotonic()
    loaded = Campaign.load(database_url, "r")
    assert loaded.ledger.seq == 1001 and len(loaded.optimizer.state.samples) == 501
    assert time.monotonic() - start < 5.0
    start = time.monotonic()
    for i in range(5):
        loaded.tell({"a": 0.4 + 0.01 * i}, 0.9)
    assert time.monotonic() - start < 5.0
    assert campaign.optimizer.state == loaded.optimizer.state


def test_a_database_that_was_restored_from_a_backup_is_noticed(store, database_url):
    campaign = Campaign.create(store, "r", optimizer())
    campaign.pause()
    run = execute(database_url, "SELECT id FROM safebo_runs WHERE name = 'r'")[0][0]
    head = f"UPDATE safebo_runs SET head = 1, seal = (SELECT seal FROM safebo_events WHERE run = {run} AND seq = 1)"
    execute(database_url, f"DELETE FROM safebo_events WHERE run = {run} AND seq = 2", f"{head} WHERE id = {run}")
    with pytest.raises(StorageError, match=r"backup.*[Oo]pen the run again"):
        campaign.resume()
    Campaign.open(store, "r").pause()
