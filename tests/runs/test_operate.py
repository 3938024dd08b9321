"""The runner: stored before it happens, consent before it is sent, nothing sent twice, and a stop that stops."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import warnings

import pytest

from safebo import Box, Constraint, Fixed, SafeOptimizer
from safebo.exceptions import ConflictError, NeverConnectedError, OvertakenError, StopFailedWarning, StorageError
from safebo.runs import CallablePlant, Campaign, RunConfig, Store, Watchdog
from safebo.runs.driving import driver
from safebo.runs.operate import End, operate, uninterrupted, watching
from safebo.runs.plants import stop_outcome
from safebo.runs.starts import approve_start, next_start, send_start

START = {"a": 0.5}


class Someone:
    """Follows a runner; answers are given in advance."""

    def __init__(self, *answers, waits=False):
        self.answers, self._waits, self.said, self.results = list(answers), waits, [], []

    def approve(self, step):
        self.said.append(("asked", step.name))
        return self.answers.pop(0) if self.answers else None

    def refused(self, step):
        return "too fast"

    def waits(self):
        return self._waits

    def say(self, text):
        self.said.append(text)

    def measured(self, step, result, ledger):
        self.results.append((step.name, result))


class Rig:
    """Counts what happens to it."""

    def __init__(self, value=0.5):
        self.value, self.ran, self.stops, self.resets = value, [], 0, 0

    def plant(self, timeout=10.0):
        return Watchdog(CallablePlant(self.run, reset=self.reset, emergency_stop=self.stop), timeout=timeout)

    def reset(self):
        self.resets += 1

    def run(self, params):
        self.ran.append(dict(params))
        return self.value(len(self.ran)) if callable(self.value) else self.value

    def stop(self):
        self.stops += 1


def optimizer(**changes):
    return SafeOptimizer(Box({"a": (0.0, 1.0)}), 0.0, **{"norm": Fixed(1.0), "points_per_axis": 30, "min_width": 0.01, **changes})


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "x.db") as opened:
        yield opened


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("safebo.runs.operate.POLL", 0.02)


def campaign(store, *, start=START, experiments=3, opt=None, **changes):
    plant = {"type": "python", "callable": "x:y", "timeout": 1.0, **({"start": [start]} if start else {})}
    config = RunConfig(experiments=experiments, plant=plant, **changes)
    return Campaign.create(store, "run", opt or optimizer(), config=config)


def kinds(made):
    return [e.kind for e in made.events()]


def test_every_step_is_stored_before_it_happens(store):
    made, seen = campaign(store), []
    rig = Rig(lambda n: seen.append(kinds(made)[-1]) or 0.5)
    someone = Someone()
    result = operate(made, rig.plant(), someone, who="anna")
    assert (result.end, result.experiments, len(rig.ran), rig.resets, rig.stops) == (End.DONE, 3, 4, 4, 0)
    assert seen == ["configured", "started", "started", "started"]
    assert kinds(made) == ["created", "configured", "told"] + ["asked", "started", "told"] * 3
    assert rig.ran[0] == START
    assert next(name for name, _ in someone.results) == "start"
    assert {e.who for e in made.events()[1:]} == {"anna"}
    assert operate(made, rig.plant(), someone).end is End.DONE
    made.configure(experiments=4)
    assert operate(made, rig.plant(), someone).experiments == 1


def test_in_every_database(database_url):
    with Store.open(database_url) as store, Store.open(database_url) as elsewhere:
        made, rig = campaign(store, confirm=True, experiments=1), Rig()
        approve_start(Campaign.open(elsewhere, "run"), "bert")
        assert operate(made, rig.plant(), Someone(True)).end is End.DONE
        assert Campaign.open(elsewhere, "run").ledger.experiments == 1


def test_the_same_experiments_as_without_a_record(store):
    made, rig, plain = campaign(store), Rig(lambda n: 0.5 + 0.01 * n), optimizer()
    operate(made, rig.plant(), Someone())
    plain.tell(START, 0.51)
    for n in range(2, 5):
        trial = plain.ask()
        assert rig.ran[n - 1] == trial.params
        plain.tell(trial, 0.5 + 0.01 * n)


def test_without_a_start_there_is_nothing_to_do(store):
    made, rig = campaign(store, start=None), Rig()
    result = operate(made, rig.plant(), Someone())
    assert (result.end, rig.ran) == (End.NOTHING_LEFT, [])
    assert "[start]" in result.text
    made.tell({"a": 0.4}, 0.5)
    assert operate(made, rig.plant(), Someone()).end is End.DONE


def test_a_start_that_was_measured_before_is_not_measured_again(store):
    made, rig = campaign(store, experiments=0), Rig()
    made.tell(START, 0.5)
    assert operate(made, rig.plant(), Someone()).end is End.DONE
    assert rig.ran == []


def test_a_start_can_be_repeated(store):
    made, rig = campaign(store, experiments=1), Rig()
    made.configure(plant={**made.ledger.config.plant, "repeats": 3})
    assert operate(made, rig.plant(), Someone()).end is End.DONE
    assert rig.ran[:3] == [START] * 3
    assert (len(rig.ran), made.ledger.state.step) == (4, 4)


def test_every_repetition_needs_consent(store):
    made, rig = campaign(store, experiments=0, confirm=True), Rig()
    made.configure(plant={**made.ledger.config.plant, "repeats": 2})
    assert operate(made, rig.plant(), Someone(True)).end is End.UNAPPROVED
    assert len(rig.ran) == 1
    assert operate(made, rig.plant(), Someone(True)).end is End.DONE
    assert len(rig.ran) == 2


def test_it_ends_when_nothing_is_left(store):
    made, rig = campaign(store, opt=optimizer(min_width=10.0)), Rig()
    assert operate(made, rig.plant(), Someone()).end is End.CONVERGED
    assert made.ledger.status == "finished"


# -- consent -----------------------------------------------------------------------------------------------------------------


def test_nothing_is_sent_without_consent(store):
    made, rig = campaign(store, confirm=True), Rig()
    result = operate(made, rig.plant(), Someone())
    assert (result.end, rig.ran, rig.resets) == (End.UNAPPROVED, [], 0)
    assert made.ledger.state.step == 0


def test_consent_is_stored_with_who_and_when(store):
    made, rig = campaign(store, confirm=True, experiments=2), Rig()
    result = operate(made, rig.plant(), Someone(True, True, True), who="anna")
    assert (result.end, len(rig.ran)) == (End.DONE, 3)
    approvals = [e for e in made.events() if e.kind == "approved"]
    assert [e.who for e in approvals] == ["anna", "anna"]
    assert all(e.at for e in approvals)
    start = next(e.body["changes"]["plant"]["approved"] for e in made.events() if e.kind == "configured")
    assert (start["who"], start["params"]) == ("anna", START)
    assert start["at"]


def test_a_refused_experiment_is_never_sent(store):
    made, rig = campaign(store, confirm=True, experiments=1), Rig()
    result = operate(made, rig.plant(), Someone(True, False, True), who="anna")
    assert (result.end, len(rig.ran)) == (End.DONE, 2)
    rejected = next(e for e in made.events() if e.kind == "rejected")
    assert (rejected.who, rejected.body["reason"]) == ("anna", "too fast")
    asked = [e.body["trial"]["params"] for e in made.events() if e.kind == "asked"]
    assert rig.ran[1] == asked[1] != asked[0]


def test_a_refused_start_pauses_the_run(store):
    made, rig = campaign(store, confirm=True), Rig()
    assert operate(made, rig.plant(), Someone(False)).end is End.PAUSED
    assert rig.ran == []


def test_consent_from_another_process(store, tmp_path):
    made, rig = campaign(store, confirm=True, experiments=1), Rig()

    def elsewhere():
        with Store.open(tmp_path / "x.db") as other:
            seen = Campaign.open(other, "run")
            approve_start(seen, "bert")
            while seen.ledger.pending is None:
                time.sleep(0.02)
            assert len(rig.ran) == 1
            seen.approve(seen.ledger.pending.trial.id, who="bert")

    thread = threading.Thread(target=elsewhere)
    thread.start()
    result = operate(made, rig.plant(), Someone(waits=True), who="anna")
    thread.join()
    assert (result.end, len(rig.ran)) == (End.DONE, 2)
    assert next(e.who for e in made.events() if e.kind == "approved") == "bert"


@pytest.mark.parametrize("intruder", ["send", "stop", "approve"])
def test_who_comes_while_a_start_is_sent_comes_after_it(store, tmp_path, monkeypatch, intruder):
    made, real = campaign(store), next_start
    step = {"send": send_start, "stop": Campaign.stop, "approve": approve_start}[intruder]
    came, said = threading.Event(), []

    def late(quicker):
        came.set()
        try:
            step(quicker)
        except ConflictError as error:
            said.append(str(error))

    with Store.open(tmp_path / "x.db") as other:
        thread = threading.Thread(target=late, args=(Campaign.open(other, "run"),))

        def slow(ledger):
            result = real(ledger)
            if not came.is_set():
                thread.start()
                came.wait(10.0)
                time.sleep(0.3)
            return result

        monkeypatch.setattr("safebo.runs.starts.next_start", slow)
        assert send_start(made) == START
        thread.join(30.0)
    assert real(made.ledger).out and [e.kind for e in made.events()].count("configured") == 1
    assert (made.ledger.status == "stopped") == (intruder == "stop")
    assert said == [] if intruder == "stop" else "handed" in said[0]


def test_a_start_is_sent_once(store):
    made = campaign(store)
    assert send_start(made) == START
    with pytest.raises(ConflictError, match="was it executed"):
        send_start(made)
    made.tell(START, 0.5)
    with pytest.raises(ConflictError, match="no start left"):
        send_start(made)


# -- violations ----------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::safebo.exceptions.UnsafeMeasurementWarning")
@pytest.mark.parametrize(("choice", "end", "runs"), [("stop", End.VIOLATION, 2), ("continue", End.DONE, 4)])
def test_a_measurement_outside_a_limit(store, choice, end, runs):
    made, rig = campaign(store, on_violation=choice), Rig(lambda n: -1.0 if n == 2 else 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = operate(made, rig.plant(), Someone())
    assert (result.end, len(rig.ran), len(made.ledger.violations)) == (end, runs, 1)


def test_an_unsafe_start_stops_the_run(store):
    made, rig = campaign(store), Rig(-1.0)
    result = operate(made, rig.plant(), Someone())
    assert (result.end, len(rig.ran), made.ledger.status, made.ledger.state.step) == (End.VIOLATION, 1, "stopped", 0)
    assert "-1" in made.ledger.reason
    assert operate(made, rig.plant(), Someone()).end is End.VIOLATION
    with pytest.raises(ConflictError, match="accepted"):
        made.resume()


def test_limits_are_told(store):
    opt = optimizer(constraints={"heat": Constraint(upper=1.0)})
    made = campaign(store, opt=opt, experiments=1)
    rig = Rig({"objective": 0.5, "constraints": {"heat": 0.2}})
    assert operate(made, rig.plant(), Someone()).end is End.DONE
    assert made.ledger.state.values().tolist() == [[0.5, 0.2]] * 2


# -- what goes wrong -----------------------------------------------------------------------------------------------------------


def broken(n):
    if n > 1:
        raise RuntimeError("the arm is blocked")
    return 0.5


def test_an_aborted_experiment_is_recorded_and_pauses_the_run(store):
    made, rig = campaign(store), Rig(broken)
    result = operate(made, rig.plant(), Someone())
    assert (result.end, rig.stops, made.ledger.status) == (End.ABORTED, 1, "paused")
    assert "the arm is blocked" in made.ledger.reason
    assert "the arm is blocked" in made.ledger.state.aborts[0].reason
    assert made.ledger.pending is None
    assert operate(made, rig.plant(), Someone()).end is End.PAUSED
    rig.value = 0.5
    made.resume()
    assert operate(made, rig.plant(), Someone()).end is End.DONE
    assert rig.ran[2] != rig.ran[1]


def test_plants_without_a_watchdog_are_stopped_too(store):
    made, rig = campaign(store), Rig(broken)
    plant = CallablePlant(rig.run, emergency_stop=rig.stop)
    assert operate(made, plant, Someone()).end is End.ABORTED
    assert rig.stops == 1


def test_an_aborted_start_is_for_a_person_to_judge(store):
    made = campaign(store)
    rig = Rig(lambda n: broken(n + 1))
    assert operate(made, rig.plant(), Someone()).end is End.ABORTED
    assert made.ledger.state.aborts == ()
    made.resume()
    result = operate(made, rig.plant(), Someone())
    assert (result.end, len(rig.ran)) == (End.PENDING, 1)
    assert next_start(made.ledger).out


class Absent:
    """A rig that cannot be reached at first."""

    def __init__(self, failures):
        self.failures, self.attempts, self.ran = failures, 0, []

    def reset(self):
        self.attempts += 1
        if self.attempts <= self.failures:
            raise NeverConnectedError("No connection to the rig. Nothing was sent.")

    def run(self, params):
        self.ran.append(dict(params))
        return 0.5

    def emergency_stop(self):
        raise AssertionError("nothing to stop")

    def close(self):
        pass


def test_a_plant_that_was_never_reached_is_tried_again(store):
    made, rig = campaign(store, experiments=1), Absent(2)
    assert operate(made, Watchdog(rig, timeout=5.0), Someone(), retries=2, retry_wait=0.01).end is End.DONE
    assert (rig.attempts, len(rig.ran)) == (4, 2)


@pytest.mark.parametrize("at_start", [True, False])
def test_a_plant_that_is_never_reached_leaves_nothing_pending(store, at_start):
    made, rig = campaign(store, experiments=1), Absent(3)
    if not at_start:
        made.tell(START, 0.5)
    result = operate(made, Watchdog(rig, timeout=5.0), Someone(), retries=1, retry_wait=0.01)
    assert (result.end, rig.attempts, rig.ran) == (End.UNREACHABLE, 2, [])
    assert "Nothing was sent" in result.text
    assert made.ledger.status == "running"
    assert operate(made, Watchdog(rig, timeout=5.0), Someone(), retries=1, retry_wait=0.01).end is End.DONE
    assert len([e for e in made.events() if e.kind == "asked"]) == 1


def test_after_an_interrupt_only_a_person_knows(store):
    made = campaign(store)

    def interrupted(n):
        if n == 2:
            signal.raise_signal(signal.SIGINT)
            time.sleep(5.0)
        return 0.5

    rig = Rig(interrupted)
    plant = rig.plant()
    with pytest.raises(KeyboardInterrupt):
        operate(made, plant, Someone())
    assert rig.stops >= 1
    pending = made.ledger.pending
    assert pending.out
    result = operate(Campaign.open(store, "run"), Rig().plant(), Someone())
    assert result.end is End.PENDING
    assert pending.trial.id in result.text
    made.retry(pending.trial.id)
    again = Rig()
    assert operate(made, again.plant(), Someone()).end is End.DONE
    assert again.ran[0] == pending.trial.params


def test_an_interrupt_waits_for_what_is_being_written():
    written = []

    def work():
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            written.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert written == [1]


@pytest.mark.parametrize("obeys", [True, False])
def test_a_stop_from_elsewhere_stops_the_plant(store, tmp_path, obeys):
    made = campaign(store)
    stopped = threading.Event()

    def run(params):
        rig.ran.append(params)
        if len(rig.ran) == 1:
            return 0.5
        threading.Thread(target=elsewhere).start()
        assert stopped.wait(10.0)
        if obeys:
            raise RuntimeError("the motor is off")
        return 0.7

    def elsewhere():
        with Store.open(tmp_path / "x.db") as other:
            Campaign.open(other, "run").stop("smoke", who="bert")

    rig = Rig()
    plant = Watchdog(CallablePlant(run, emergency_stop=stopped.set), timeout=20.0)
    result = operate(made, plant, Someone())
    assert (result.end, len(rig.ran), made.ledger.status) == (End.STOPPED, 2, "stopped")
    assert made.ledger.state.step == 1  # whatever a stopped experiment returns is not a measurement
    reason = made.ledger.state.aborts[0].reason
    assert "bert" in reason
    assert "smoke" in reason


def test_a_pause_from_elsewhere_comes_after_the_experiment(store, tmp_path):
    made = campaign(store)

    def value(n):
        if n == 2:
            with Store.open(tmp_path / "x.db") as other:
                Campaign.open(other, "run").pause("lunch")
        return 0.5

    rig = Rig(value)
    result = operate(made, rig.plant(), Someone())
    assert (result.end, result.experiments, len(rig.ran), rig.stops) == (End.PAUSED, 1, 2, 0)
    assert "lunch" in result.text


def test_a_measurement_survives_a_database_that_is_away(store, monkeypatch):
    made, rig, failures = campaign(store, experiments=1), Rig(), [3]
    tell = made.tell

    def flaky(*arguments, **options):
        if failures[0] > 0:
            failures[0] -= 1
            if failures[0] == 0:
                tell(*arguments, **options)  # written, but the answer is lost
            raise StorageError("away")
        return tell(*arguments, **options)

    monkeypatch.setattr(made, "tell", flaky)
    assert operate(made, rig.plant(), Someone()).end is End.DONE
    assert made.ledger.state.step == 2
    made.configure(experiments=2)
    failures[0] = 99
    with pytest.raises(StorageError, match=r"executed and NOT stored.*0\.5"):
        operate(made, rig.plant(), Someone())


def test_without_a_plant_experiments_are_handed_out(store):
    made = campaign(store)
    assert operate(made, None, Someone()).end is End.PENDING
    assert next_start(made.ledger).out
    made.tell(START, 0.5)
    result = operate(made, None, Someone())
    assert result.end is End.PENDING
    assert made.ledger.pending.out
    made.tell(made.ledger.pending.trial.id, 0.6)
    assert made.ledger.experiments == 1


def test_nothing_runs_after_a_stop_during_the_reset(store):
    rig, run = Rig(), campaign(store, experiments=3)
    operate(run, rig.plant(), Someone())  # the start and three experiments
    run.configure(experiments=9)
    before, other = len(rig.ran), Campaign.open(store, run.name)

    def reset():
        other.stop("smoke")
        time.sleep(0.3)

    rig.reset = reset
    result = operate(run, Watchdog(CallablePlant(rig.run, reset=reset, emergency_stop=rig.stop), timeout=10.0), Someone())
    assert result.end is End.STOPPED and len(rig.ran) == before and rig.stops >= 1
    assert run.ledger.pending is None and len(run.ledger.aborts) == 1


@pytest.mark.parametrize("answer", [{"objective": 0.7}, {"objective": 0.7, "constraints": {"heat": 0.1, "hiss": 1.0}}])
def test_an_answer_with_other_limits_is_shown_and_aborts(store, answer):
    opt = optimizer(constraints={"heat": Constraint(upper=1.0)})
    rig, run = Rig(lambda number: answer if number > 1 else {"objective": 0.5, "constraints": {"heat": 0.1}}), None
    run = campaign(store, opt=opt)
    result = operate(run, rig.plant(), Someone())
    assert result.end is End.ABORTED and "0.7" in result.text and ("lacks" in result.text or "hiss" in result.text)
    assert rig.stops == 1 and run.ledger.status == "paused" and len(run.ledger.aborts) == 1


def test_one_runner_per_run(store):
    rig, run, other = Rig(), campaign(store, experiments=1), Campaign.open(store, "run")
    errors = []

    def measure(params):
        pending = other.ledger.pending
        with pytest.raises(ConflictError, match="being driven by process"):
            operate(other, Rig().plant(), Someone())
        if pending is not None:
            for work in (
                lambda: other.tell(pending.trial.id, 0.1),
                lambda: other.retry(pending.trial.id),
                lambda: other.abandon(pending.trial.id, "nobody knows"),
            ):
                with pytest.raises(ConflictError, match="at the plant at this moment"):
                    work()
                errors.append(work)
        return rig.run(params)

    plant = Watchdog(CallablePlant(measure), timeout=60.0)
    assert operate(run, plant, Someone()).end is End.DONE
    assert len(rig.ran) == 2 and len(errors) == 3 and driver(store, run.name) == ""
    assert run.ledger.experiments == 1 and not run.ledger.aborts


def test_an_unsafe_start_is_in_the_record(store):
    run = campaign(store)
    assert operate(run, Rig(-0.5).plant(), Someone()).end is End.VIOLATION
    assert "-0.5" in run.ledger.aborts[0][3] and run.ledger.status == "stopped"


def test_an_interrupt_between_experiments_stops_the_plant(store):
    rig, run = Rig(), campaign(store)

    class Impatient(Someone):
        def measured(self, step, result, ledger):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        operate(run, rig.plant(), Impatient())
    assert rig.stops == 1 and len(rig.ran) == 1


# -- a stop that is known, and one that is not ---------------------------------------------------------------------------------


def unreachable():
    raise OSError("relay does not answer")


@pytest.mark.parametrize("watched", [True, False])
def test_a_stop_from_elsewhere_that_fails_is_said(store, tmp_path, monkeypatch, watched):
    made, freed = campaign(store), threading.Event()

    def run(params):
        with Store.open(tmp_path / "x.db") as other:
            Campaign.open(other, "run").stop("smoke", who="bert")
        assert freed.wait(10.0)
        raise RuntimeError("the line is broken")

    def stop():
        freed.set()  # the experiment ends before the stop has
        time.sleep(0.3)
        unreachable()

    events = Campaign.events

    def silent(*arguments):
        if threading.current_thread().name == "watching":
            raise RuntimeError("the database does not answer")
        return events(*arguments)

    monkeypatch.setattr(Campaign, "events", silent)
    plant = CallablePlant(run, emergency_stop=stop)
    result = operate(made, Watchdog(plant, timeout=20.0) if watched else plant, Someone())
    assert result.end is End.STOPPED
    assert "stopped by somebody (smoke); THE EMERGENCY STOP FAILED" in result.text


def test_a_stop_that_fails_without_a_watchdog_is_recorded(store):
    made = campaign(store)
    result = operate(made, CallablePlant(lambda params: 1 / 0, emergency_stop=unreachable), Someone())
    assert result.end is End.ABORTED
    assert "ZeroDivisionError" in result.text and "EMERGENCY STOP FAILED: OSError: relay" in result.text
    assert made.ledger.status == "paused"


def test_a_stop_between_experiments_stops_the_plant(store, tmp_path):
    made, rig = campaign(store), Rig()

    class Stopping(Someone):
        def measured(self, step, result, ledger):
            with Store.open(tmp_path / "x.db") as other:
                Campaign.open(other, "run").stop("smoke", who="bert")

    result = operate(made, rig.plant(), Stopping())
    assert (result.end, len(rig.ran), rig.stops) == (End.STOPPED, 1, 1)
    assert result.text.endswith("The plant was stopped.")
    again = Rig()
    assert operate(made, again.plant(), Someone()).end is End.STOPPED
    assert again.stops == 0  # nothing was sent to it


def test_a_stop_just_before_the_experiment_stops_the_plant(store, tmp_path, monkeypatch):
    monkeypatch.setattr("safebo.runs.operate.POLL", 5.0)
    made, rig = campaign(store), Rig()

    def reset():
        with Store.open(tmp_path / "x.db") as other:
            Campaign.open(other, "run").stop("smoke", who="bert")

    result = operate(made, Watchdog(CallablePlant(rig.run, reset=reset, emergency_stop=rig.stop), timeout=10.0), Someone())
    assert (result.end, rig.ran, rig.stops) == (End.STOPPED, [], 1)
    assert "The plant was stopped." in result.text


@pytest.mark.parametrize("fails", [False, True])
def test_an_interrupt_stays_one_and_carries_what_is_known(store, fails):
    made = campaign(store)

    class Impatient(Someone):
        def measured(self, step, result, ledger):
            raise KeyboardInterrupt

    plant = Watchdog(CallablePlant(lambda p: 0.5, emergency_stop=unreachable if fails else lambda: None), timeout=5.0)
    said = pytest.warns(StopFailedWarning, match="relay") if fails else contextlib.nullcontext()
    with said, pytest.raises(KeyboardInterrupt) as caught:
        operate(made, plant, Impatient())
    outcome = stop_outcome(caught.value)
    assert outcome.startswith("THE EMERGENCY STOP FAILED: OSError: relay") if fails else outcome == "The plant was stopped."


def test_a_database_that_is_silent_does_not_delay_the_stop_of_an_interrupt(store):
    made, silence, stops = campaign(store), threading.Event(), []

    class Silent:
        """A campaign whose database does not answer the one who watches."""

        def __getattr__(self, name):
            if name == "ledger" and threading.current_thread() is not threading.main_thread():
                silence.wait(30.0)
            return getattr(made, name)

    def interrupted():
        with watching(Silent(), CallablePlant(lambda p: 0.5, emergency_stop=lambda: stops.append(1))) as stopped:
            seen.append(stopped)
            time.sleep(0.3)
            raise KeyboardInterrupt

    seen, before = [], time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - before < 4.0
    made.stop("smoke")
    silence.set()  # what is seen too late stops nothing: another experiment may run
    time.sleep(0.3)
    assert (seen, stops) == ([[]], [])


# -- a violation is a stop --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::safebo.exceptions.UnsafeMeasurementWarning")
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("whose", ["start", "own", "told between", "told while it waits"])
def test_a_violation_stops_the_plant_once_and_says_what_is_known(store, tmp_path, whose, fails):
    made, bad = campaign(store, confirm=whose == "told while it waits"), {"start": 1, "own": 2}.get(whose)
    rig = Rig(lambda n: -0.01 if n == bad else 0.5)

    def tell():
        with Store.open(tmp_path / "x.db") as other:
            Campaign.open(other, "run").tell({"a": 0.9}, -1.0, who="bert")

    class Telling(Someone):
        def measured(self, step, result, ledger):
            if whose == "told between":
                tell()

        def approve(self, step):
            if step.pending is not None:
                tell()
            return True if step.pending is None else None

    def stop():
        rig.stop()
        if fails:
            raise OSError("relay")

    plant = Watchdog(CallablePlant(rig.run, emergency_stop=stop), timeout=10.0)
    result = operate(made, plant, Telling(waits=True))
    assert (result.end, rig.stops, made.ledger.status) == (End.VIOLATION, 1, "stopped")
    assert "outside a limit" in result.text or "not safe" in result.text
    said = "THE EMERGENCY STOP FAILED: OSError: relay." if fails else "The plant was stopped."
    assert result.text.count(said) == 1
    again = Rig()
    operate(made, again.plant(), Someone())
    assert (again.ran, again.stops) == ([], 0)  # nothing was sent to it


def test_the_plant_is_stopped_before_anybody_looks_at_a_violation(store):
    made, rig, seen = campaign(store), Rig(lambda n: -0.01 if n == 2 else 0.5), []

    class Looking(Someone):
        def measured(self, step, result, ledger):
            seen.append(rig.stops)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        operate(made, rig.plant(), Looking())
    assert (seen, rig.stops) == ([0, 1], 1)


@pytest.mark.filterwarnings("ignore::safebo.exceptions.UnsafeMeasurementWarning")
@pytest.mark.parametrize("moment", ["reset", "run"])
def test_a_violation_told_during_an_experiment_stops_it(store, tmp_path, moment):
    made, rig, stopped = campaign(store), Rig(), threading.Event()

    def tell():
        with Store.open(tmp_path / "x.db") as other:
            Campaign.open(other, "run").tell({"a": 0.9}, -1.0, who="bert")

    def reset():
        rig.reset()
        if moment == "reset" and rig.resets == 2:
            tell()

    def run(params):
        rig.ran.append(params)
        if len(rig.ran) == 2:
            tell()
            assert stopped.wait(20.0)
        return 0.5

    def stop():
        rig.stop()
        stopped.set()

    result = operate(made, Watchdog(CallablePlant(run, reset=reset, emergency_stop=stop), timeout=30.0), Someone())
    assert (result.end, len(rig.ran), made.ledger.pending) == (End.VIOLATION, 2 if moment == "run" else 1, None)
    assert rig.stops >= 1 and "stopped" in made.ledger.state.aborts[0].reason
    assert len(made.ledger.state.samples) == 2


def test_a_stop_that_another_process_was_quicker_with_stops_the_plant(store, tmp_path, monkeypatch):
    made, rig, real = campaign(store), Rig(), Campaign.start

    def start(self, trial, *, who=""):
        if self.ledger.halted is None:
            with Store.open(tmp_path / "x.db") as other:
                Campaign.open(other, "run").stop("smoke", who="bert")
        return real(self, trial, who=who)

    monkeypatch.setattr(Campaign, "start", start)
    result = operate(made, rig.plant(), Someone())
    assert (result.end, len(rig.ran), rig.stops) == (End.STOPPED, 1, 1)
    assert result.text.endswith("The plant was stopped.")


# -- after a failure nothing more is sent -------------------------------------------------------------------------------------


class Crowd:
    """Another client that writes just when the runner does, a number of times."""

    def __init__(self, store, path, monkeypatch, kind, times):
        self.store, self.path, self.kind, self.left, self.real = store, path, kind, times, store.append
        monkeypatch.setattr(store, "append", self.append)

    def append(self, name, after, events, *rest, **more):
        if self.left and any(e.kind == self.kind for e in events):
            self.left -= 1
            with Store.open(self.path) as other:
                Campaign.open(other, name).configure(title=f"{self.left} left")
        return self.real(name, after, events, *rest, **more)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("kind", ["aborted", "paused"])
def test_after_a_failed_experiment_nothing_is_sent_whoever_else_writes(store, tmp_path, monkeypatch, kind, times):
    made, rig = campaign(store), Rig(broken)
    Crowd(store, tmp_path / "x.db", monkeypatch, kind, times)
    result = operate(made, rig.plant(), Someone())
    assert (result.end, len(rig.ran), rig.stops) == (End.ABORTED, 2, 1)
    assert "the arm is blocked" in result.text and "NOT recorded" not in result.text
    assert (kinds(made).count("aborted"), made.ledger.pending, made.ledger.status) == (1, None, "paused")


@pytest.mark.parametrize("error", [OvertakenError, ConflictError])
@pytest.mark.parametrize("verb", ["abort", "pause"])
def test_after_a_failed_experiment_nothing_is_sent_whatever_the_database_says(store, monkeypatch, verb, error):
    monkeypatch.setattr("safebo.runs.operate.RECORD_ATTEMPTS", 3)
    made, rig = campaign(store), Rig(broken)

    def refused(self, *arguments, **more):
        raise error("somebody was quicker")

    monkeypatch.setattr(Campaign, verb, refused)
    result = operate(made, rig.plant(), Someone())
    assert (result.end, len(rig.ran), rig.stops) == (End.ABORTED, 2, 1)
    assert "the arm is blocked" in result.text and "NOT recorded" in result.text
    assert (made.ledger.pending is None, made.ledger.status) == ((True, "running") if verb == "pause" else (False, "paused"))


@pytest.mark.parametrize("kind", ["aborted", "stopped"])
def test_after_a_start_outside_a_limit_nothing_is_sent_whoever_else_writes(store, tmp_path, monkeypatch, kind):
    made, rig = campaign(store), Rig(-1.0)
    made.configure(plant={**made.ledger.config.plant, "start": [START, {"a": 0.7}]})
    Crowd(store, tmp_path / "x.db", monkeypatch, kind, 1)
    result = operate(made, rig.plant(), Someone())
    assert (result.end, rig.ran, rig.stops, made.ledger.status) == (End.VIOLATION, [START], 1, "stopped")


def test_what_was_not_sent_stays_so_whoever_else_writes(store, tmp_path, monkeypatch):
    made, absent = campaign(store), Absent(10)
    made.tell(START, 0.5)
    real, left = Campaign._append, [1]

    def overtaken(self, *events):
        if self is made and left and any(e.kind == "retried" for e in events):
            left.pop()
            raise OvertakenError("another process wrote first")
        return real(self, *events)

    monkeypatch.setattr(Campaign, "_append", overtaken)
    result = operate(made, Watchdog(absent, timeout=10.0), Someone())
    assert (result.end, absent.ran, left) == (End.UNREACHABLE, [], [])
    assert made.ledger.pending is not None and not made.ledger.pending.out
