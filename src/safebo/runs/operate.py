"""The runner: drives a stored run with a plant, one experiment after the other.

    ask -> approval, if the run wants one -> `started` is stored -> reset and run -> told, or aborted

What is stored before something happens is never forgotten: if this process dies during an experiment, the trial is pending and
was handed out, and the next runner refuses to go on before a person has said what became of it. A pause by another process is
honoured before the next experiment; a stop ends the present one with an emergency stop, a violation is a stop, whoever tells it,
and so is the loss of the database: who does not hear of a stop, and cannot say that it still drives the run, stops its plant.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from safebo.exceptions import (
    ConflictError,
    DriveLostError,
    ExperimentAborted,
    NeverConnectedError,
    NoInitialSampleError,
    OvertakenError,
    StopReason,
    StorageError,
    UnsafeInitialSampleError,
)
from safebo.outputs import OBJECTIVE
from safebo.runs.campaign import Campaign
from safebo.runs.driving import driving
from safebo.runs.ledger import Ledger, Pending
from safebo.runs.measurement import Measurement, measurement
from safebo.runs.plants import STOPPED, Plant, agreed, described, stop_after, stop_now
from safebo.runs.starts import approve_start, next_start, retry_start, send_start
from safebo.runs.words import counted, values_text

POLL = 0.5
"""Seconds between two looks at what other processes have written."""

STORE_ATTEMPTS = 5
"""How often a measurement is written again if the database does not take it."""

RECORD_ATTEMPTS = 50
"""How often what became of an experiment is written again if another process writes at the same moment."""


class End(Enum):
    """Why a runner stopped."""

    DONE = "done"  # as many experiments as were asked for
    CONVERGED = "converged"
    NOTHING_LEFT = "nothing_left"  # no certified experiment left, though it has not converged
    VIOLATION = "violation"
    PENDING = "pending"  # a trial was handed out; a person must say what became of it
    UNAPPROVED = "unapproved"  # a trial waits for an approval that nobody here can give
    ABORTED = "aborted"
    UNREACHABLE = "unreachable"  # nothing was ever sent to the plant
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Result:
    """How a runner ended: why, in words, and how many experiments it made."""

    end: End
    text: str
    experiments: int = 0


@dataclass(frozen=True)
class Step:
    """What goes to the plant next: a certified trial, or parameters to start with."""

    params: dict[str, float]
    pending: Pending | None = None

    @property
    def name(self) -> str:
        """The trial's id, or "start"."""
        return "start" if self.pending is None else self.pending.trial.id


class _Outdated(Exception):
    """Something was told between handing out a trial and sending it: it is not sent."""


class _NotRun(ExperimentAborted):
    """The plant was reset and nothing was run: it was not stopped."""


class Watcher(Protocol):
    """Whoever follows a runner, and gives or refuses consent: the terminal, a test."""

    def approve(self, step: Step) -> bool | None:
        """Whether to run it; None if nobody is there to ask, then the runner waits for an approval from elsewhere."""

    def refused(self, step: Step) -> str:
        """Why the last one was refused."""

    def waits(self) -> bool:
        """Whether to wait for an approval from elsewhere, or to end."""

    def say(self, text: str) -> None:
        """What the runner does at present."""

    def measured(self, step: Step, result: Measurement, ledger: Ledger) -> None:
        """A measurement was stored."""


def operate(
    campaign: Campaign, plant: Plant | None, watcher: Watcher, *, who: str = "", retries: int = 0, retry_wait: float = 2.0
) -> Result:
    """Run experiments until the run's number of them is reached, nothing is left, or something ends it.

    plant     None: what is asked for is only handed out, and a person or a client tells the measurement
    retries   how often a plant that was never reached is tried again; nothing that was sent is ever sent again
    """
    runner = _Runner(campaign, plant, watcher, who, retries, retry_wait, campaign.ledger.config.units)
    with driving(campaign):
        try:
            return runner.loop()
        except (KeyboardInterrupt, SystemExit) as interrupt:  # between two experiments as well: a plant may hold its last state
            if plant is not None:
                stop_after(interrupt, plant)
            raise
        except (StorageError, DriveLostError) as error:
            if plant is not None:
                stop_after(error, plant)
            raise


@dataclass
class _Runner:
    campaign: Campaign
    plant: Plant | None
    watcher: Watcher
    who: str
    retries: int
    retry_wait: float
    units: Mapping[str, str]
    done: int = 0
    sent: bool = False  # whether the plant was used since it was last stopped: it may hold its last state
    said: str = ""  # what is known of the stop after a violation

    def loop(self) -> Result:
        while True:
            try:
                end = self.turn()
            except DriveLostError:
                raise
            except ConflictError as error:  # another process was quicker: look again
                self.watcher.say(str(error))
                end = self.halted(self.campaign.ledger)
                time.sleep(POLL / 5.0)
            if end is not None:
                if end.end in (End.STOPPED, End.VIOLATION) or self.stopped():
                    self.stop()
                return Result(end.end, f"{end.text} {self.said}".strip(), self.done)

    def stopped(self) -> bool:
        """Whether the run is stopped, as far as anybody knows."""
        try:
            return self.campaign.ledger.status == "stopped"
        except StorageError:
            return True

    def stop(self) -> None:
        """Stop the plant, unless it was not used since it was last stopped."""
        if self.plant is not None and self.sent:
            self.sent = False
            self.said = stop_now(self.plant)

    def record(self, work: Callable[[], object]) -> str:
        """Write what became of an experiment, again if another process writes at the same moment; why it could not be, if so."""
        for _ in range(RECORD_ATTEMPTS):
            try:
                work()
                return ""
            except DriveLostError:
                raise
            except OvertakenError:
                time.sleep(POLL / 5.0)
            except ConflictError as error:
                return f" NOT recorded: {error}"
        return " NOT recorded: other processes wrote to the run all the time."

    def turn(self) -> Result | None:
        """One experiment, or a reason to end."""
        ledger = self.campaign.ledger
        ended = self.halted(ledger) or self.unfinished(ledger)
        if ended is not None:
            return ended
        start = next_start(ledger)
        if start is not None:
            return self.with_consent(Step(start.params), start.approved is not None)
        limit = ledger.config.experiments
        if limit is not None and ledger.experiments >= limit:
            return Result(
                End.DONE, f"{ledger.experiments} of {counted(limit, 'experiment')} {'is' if limit == 1 else 'are'} done."
            )
        self.watcher.say("looking for the next experiment")
        try:
            pending = self.campaign.ask(who=self.who)
        except NoInitialSampleError:
            return Result(End.NOTHING_LEFT, "There is no safe measurement to start from: give a [start], or import or tell one.")
        if pending is None:
            ledger = self.campaign.ledger
            converged = ledger.halt is StopReason.CONVERGED
            return self.halted(ledger) or Result(End.CONVERGED if converged else End.NOTHING_LEFT, ledger.reason)
        return self.with_consent(Step(pending.trial.params, pending), pending.approved is not None)

    def halted(self, ledger: Ledger) -> Result | None:
        """A reason to end that stands in the record."""
        if ledger.halted is None:
            return None
        end = {StopReason.PAUSED: End.PAUSED, StopReason.VIOLATION: End.VIOLATION}.get(ledger.halted, End.STOPPED)
        return Result(end, f"Run {ledger.name!r} is {ledger.status}{f': {ledger.reason}' if ledger.reason else ''}.")

    def unfinished(self, ledger: Ledger) -> Result | None:
        """Something that was handed out, of which only a person knows what became."""
        start = next_start(ledger)
        if start is not None and start.out:
            shown = self.shown(start.params)
            return Result(End.PENDING, f"The start {shown} was handed to the plant {start.sent_at}. Was it executed?")
        if ledger.pending is not None and ledger.pending.out:
            trial, at = ledger.pending.trial, ledger.pending.started_at
            shown = self.shown(trial.params)
            return Result(End.PENDING, f"Trial {trial.id} with {shown} was handed to the plant {at}. Was it executed?")
        return None

    def shown(self, values: Mapping[str, float], *, exact: bool = False) -> str:
        """Values in words; does not ask the database, which may be away."""
        return values_text(values, self.units, None if exact else 6)

    def outcome(self, result: Measurement) -> str:
        """What was measured, with all digits: somebody may have to tell it."""
        return self.shown({OBJECTIVE: result.objective, **result.constraints}, exact=True)

    # -- the gate -------------------------------------------------------------------------------------------------------

    def with_consent(self, step: Step, approved: bool) -> Result | None:
        if self.campaign.ledger.config.confirm and not approved:
            return self.consent(step)
        return self.experiment(step)

    def consent(self, step: Step) -> Result | None:
        """Ask, or wait for an approval from elsewhere; the next turn looks what became of it."""
        answer = self.watcher.approve(step)
        if answer is None and (ended := self.halted(self.campaign.ledger)) is not None:
            return ended
        if answer is None and not self.watcher.waits():
            return Result(End.UNAPPROVED, f"{step.name} with {self.shown(step.params)} waits for an approval.")
        if answer is None:
            self.watcher.say(f"waiting for an approval of {step.name}")
            time.sleep(POLL)
        elif answer and step.pending is None:
            approve_start(self.campaign, self.who)
        elif answer:
            self.campaign.approve(step.name, who=self.who)
        elif step.pending is not None:
            self.campaign.reject(step.name, self.watcher.refused(step), who=self.who)
            self.watcher.say(f"{step.name} was rejected: experiments keep away from it")
        else:
            self.campaign.pause("the start was rejected", who=self.who)
        return None

    # -- one experiment -------------------------------------------------------------------------------------------------

    def experiment(self, step: Step) -> Result | None:
        if step.pending is None:
            send_start(self.campaign, self.who)
        else:
            self.campaign.start(step.name, who=self.who)
        if self.plant is None:
            return Result(End.PENDING, f"{step.name} is handed out: {self.shown(step.params)}. Tell its measurement.")
        self.watcher.say(f"experiment {step.name} is running")
        failure: Exception | None = None
        self.sent, self.said, known = True, "", ""
        with watching(self.campaign, self.plant) as stopped:
            try:
                result = self.measure(self.plant, step)
            except (ExperimentAborted, _Outdated) as error:
                failure = error
            except Exception as error:  # of a plant without a watchdog
                failure, known = error, stop_now(self.plant)
        if stopped or not (failure is None or isinstance(failure, (_NotRun, _Outdated))):
            self.sent = False  # it was stopped, here or by the watchdog
        if isinstance(failure, ExperimentAborted) and isinstance(failure.__cause__, NeverConnectedError):
            return self.not_sent(step, failure)
        if isinstance(failure, _Outdated) and not stopped:
            self.record(lambda: self.campaign.retry(step.name, who=self.who))
            self.watcher.say(f"{step.name} was not run: something was told while the plant was being reset")
            return None
        if self.campaign.driving_lost:
            said = stopped[1] if stopped else known or stop_now(self.plant)
            raise self.lost(step, None if failure else result, said) from failure
        if failure is not None:
            reason = failure.reason if isinstance(failure, ExperimentAborted) else f"{described(failure)}. {known}"
            return self.aborted(step, f"stopped by {stopped[0]}. {reason}" if stopped else reason, bool(stopped))
        if stopped:  # it may have been cut short: its measurement says nothing
            return self.aborted(step, f"stopped by {stopped[0]} during the experiment", True)
        return self.store(step, result)

    def measure(self, plant: Plant, step: Step) -> Measurement:
        for attempt in range(self.retries + 1):
            try:
                plant.reset()
                ledger = self.campaign.ledger
                if ledger.halted is not None:  # nothing is sent after a stop
                    text = f"The run was {ledger.status} while the plant was being reset. Nothing was run."
                    raise ExperimentAborted(f"{text} {stop_now(plant)}") if ledger.status == "stopped" else _NotRun(text)
                break
            except ExperimentAborted as error:
                if not isinstance(error.__cause__, NeverConnectedError) or attempt == self.retries:
                    raise
                self.watcher.say(f"{error.reason} Attempt {attempt + 2} of {self.retries + 1} in {self.retry_wait:g} s.")
                time.sleep(self.retry_wait)
                if self.campaign.ledger.halted is not None:
                    raise
        names = [output.name for output in self.campaign.ledger.state.outputs[1:]]
        pending = self.campaign.ledger.pending
        if step.pending is not None and pending is not None and pending.stale:
            raise _Outdated("its certificate is of the past")
        if self.campaign.driving_lost:
            raise ExperimentAborted("This process does not drive the run any more. Nothing was run.")
        return agreed(measurement(plant.run(step.params)), names, plant)

    def lost(self, step: Step, result: Measurement | None, said: str) -> DriveLostError:
        """The record is out of reach, or another process has it: what became of the experiment is for a person to say."""
        measured = (
            "" if result is None else f" It measured {self.outcome(result)}, which is NOT stored and may have been cut short."
        )
        error = DriveLostError(
            f"Run {self.campaign.name!r}: {self.campaign.driving_lost}. This was during {step.name} with "
            f"{self.shown(step.params, exact=True)}. {said}"
            f"{measured} Look at the run, and say there what became of it."
        )
        error.shown = True
        return error

    def not_sent(self, step: Step, error: ExperimentAborted) -> Result:
        """Nothing reached the plant: the same experiment may follow later."""
        if step.pending is None:
            failed = self.record(lambda: retry_start(self.campaign, self.who))
        else:
            failed = self.record(lambda: self.campaign.retry(step.name, who=self.who))
        text = f"{error.reason} Nothing was sent; resume the run when the plant can be reached."
        return Result(End.UNREACHABLE, f"{text}{failed and f' This is{failed}'}")

    def aborted(self, step: Step, reason: str, stopped: bool = False) -> Result:
        """Record it and pause the run: a person has to look before anything goes on. Nothing more is sent, recorded or not."""

        def pause() -> None:
            if self.campaign.ledger.halted is None:
                self.campaign.pause(f"{step.name} was aborted: {reason}"[:1900], who=self.who)

        failed = ""
        if step.pending is not None:
            failed = self.record(lambda: self.campaign.abort(step.name, reason[:1900], who=self.who))
        unpaused = self.record(pause)
        text = f"{step.name} with {self.shown(step.params)} was aborted: {reason}"
        text += f" That it was aborted is{failed}" if failed else ""
        text += f" The pause is{unpaused}" if unpaused else ""
        ledger = self.campaign.ledger
        if ledger.halted is StopReason.VIOLATION:
            return Result(End.VIOLATION, text)
        return Result(End.STOPPED if stopped or ledger.status == "stopped" else End.ABORTED, text)

    def store(self, step: Step, result: Measurement) -> Result | None:
        """Write the measurement, more than once if the database does not take it; the key makes it count once."""
        what: Any = step.params if step.pending is None else step.name
        key = f"runner {step.name} {self.token(step)}"
        for attempt in range(STORE_ATTEMPTS):
            try:
                with uninterrupted():
                    receipt = self.campaign.tell(what, result.objective, result.constraints, who=self.who, key=key)
                break
            except UnsafeInitialSampleError as error:
                self.stop()
                return Result(End.VIOLATION, f"{error}{self.unsafe(step, str(error))}")
            except OvertakenError:
                time.sleep(POLL / 5.0)  # another process wrote something else at this moment
            except DriveLostError:  # it shows the measurement
                raise
            except ConflictError as error:
                return self.untold(step, result, error)
            except StorageError as error:
                if attempt + 1 == STORE_ATTEMPTS:
                    raise StorageError(
                        f"{error} The experiment was executed and NOT stored: {step.name} with "
                        f"{self.shown(step.params, exact=True)} measured {self.outcome(result)}. "
                        "Tell it by hand when the database is back."
                    ) from error
                time.sleep(POLL * 2.0**attempt)
        else:
            return self.untold(step, result, "Other processes wrote to the run all the time.")
        self.done += step.pending is not None
        ledger = self.campaign.ledger
        if receipt.violated and ledger.halted is StopReason.VIOLATION:
            self.stop()  # before anybody looks at the measurement
        self.watcher.measured(step, result, ledger)
        return None

    def unsafe(self, step: Step, reason: str) -> str:
        """Record a first measurement outside a limit, which teaches nothing, and stop the run; what could not be recorded."""

        def stop() -> None:
            if self.campaign.ledger.status != "stopped":
                self.campaign.stop(reason[:1900], who=self.who)

        text = f"measured outside a limit: {reason}"[:1900]
        failed = self.record(lambda: self.campaign.abort(step.params, text, who=self.who))
        unstopped = self.record(stop)
        return (f" This is{failed}" if failed else "") + (f" The stop is{unstopped}" if unstopped else "")

    def untold(self, step: Step, result: Measurement, why: object) -> Result:
        """The record has no place for a measurement any more: show it, and go on with nothing."""
        return Result(
            End.ABORTED,
            f"{why} The experiment {step.name} with {self.shown(step.params, exact=True)} was executed and measured "
            f"{self.outcome(result)}, which is NOT stored: tell it as a measurement of these parameters.",
        )

    def token(self, step: Step) -> str:
        """What tells two hand-outs of the same step apart: never a clock."""
        ledger = self.campaign.ledger
        if step.pending is None:
            start = next_start(ledger)
            return start.token or start.sent_at if start is not None else "told"
        return str(ledger.pending.started_seq) if ledger.pending is not None else "told"


@contextmanager
def watching(campaign: Campaign, plant: Plant) -> Iterator[list[str]]:
    """Stop the plant as soon as another process stops the run, or this one no longer drives it.

    The list that it yields afterwards holds by whom and why, and what is known of the stop; it is empty if there was none. A
    database that does not answer delays nobody: who watches may be left behind, and then stops nothing any more.
    """
    stopped: list[str] = []
    over, acted, deciding = threading.Event(), threading.Event(), threading.Lock()

    def stop(by: str, why: str) -> bool:
        with deciding:
            if over.is_set() or stopped:
                return False
            stopped.extend([by, ""])
        said = stop_now(plant)
        stopped[:] = [by + ending(why, said), said]
        acted.set()
        return True

    def watch() -> None:
        while not over.wait(POLL):
            try:
                ledger = campaign.ledger
            except Exception:
                continue  # the database does not answer: look again
            if ledger.status == "stopped":
                why = f" ({ledger.reason})" if ledger.reason else ""
                if stop("somebody", why):
                    stopped[0] = stopper(campaign, ledger) + ending(why, stopped[1])
                return

    def count() -> None:  # in a thread of its own: the other one may wait for an answer that never comes
        while not over.wait(POLL):
            if lost := campaign.driving_lost:
                stop(lost, "")
                return

    def ending(why: str, said: str) -> str:
        return why if said == STOPPED else f"{why}; {said}"

    threads = [threading.Thread(target=target, name="watching", daemon=True) for target in (watch, count)]
    for thread in threads:
        thread.start()
    try:
        yield stopped
    finally:
        with deciding:
            over.set()
        for thread in threads:
            thread.join(POLL)
        while stopped and not acted.wait(POLL):  # until the stop has succeeded or failed
            pass
        if stopped:
            threads[0].join(10.0 * POLL)


def stopper(campaign: Campaign, ledger: Ledger) -> str:
    """Who stopped a run."""
    try:
        return next(e.who for e in reversed(campaign.events(max(ledger.seq - 50, 0))) if e.kind == "stopped")
    except Exception:  # the database does not answer, or the event is not among the last ones
        return "somebody"


@contextmanager
def interruptible(say: Callable[[str], None]) -> Iterator[None]:
    """Ctrl-C, a request to terminate and a closed terminal end the work once; further ones wait until the plant is stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught = []

    def handler(number: int, frame: Any) -> None:
        caught.append(number)
        if len(caught) > 1:
            say("stopping already")
            return
        raise KeyboardInterrupt

    with _handling(handler):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """An interrupt waits until the body is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    with _handling(lambda number, frame: caught.append(number)):
        yield
    if caught:
        raise KeyboardInterrupt


@contextmanager
def _handling(handler: Callable[[int, Any], Any]) -> Iterator[None]:
    found = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    heard = [number for number in found if signal.getsignal(number) is not signal.SIG_IGN]  # nohup, a job in the background
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
