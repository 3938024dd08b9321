"""What a run's events add up to.

`Ledger` is the frozen sum of all events so far, `Ledger.after(event)` the next one. An event that the record does not allow (a
trial told twice, an experiment started without its approval) raises `ConflictError`: the same rules hold for every process that
writes, since nobody appends what `after` refuses.

    created     settings, configuration, where it was made
    asked       a trial and its certificate
    approved    by an operator
    rejected    by an operator; an `aborted` follows in the same step
    started     the trial goes to the plant, after this is stored
    retried     the trial may be started once more: a person says so
    told        one measurement
    aborted     an experiment without a measurement; nothing follows in its neighbourhood
    withdrawn   a trial that waited: something was told, aborted or taken back, so that its certificate is one of the past
    voided      a measurement is taken back: a typing error
    exhausted   nothing is left to ask for
    paused, resumed, stopped
    configured  changes of the configuration
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from safebo.domain import Cube
from safebo.exceptions import ConflictError, InvalidValueError, PendingTrialError, StopReason, StorageError
from safebo.intervals import Refutation
from safebo.norms.base import count
from safebo.optimizer import Trial
from safebo.outputs import outside
from safebo.runs.storage import Event
from safebo.state import FORMAT, NormRecord, State, abort_of, record_of, sample_of

ON_VIOLATION = ("stop", "continue")


@dataclass(frozen=True)
class RunConfig:
    """What is settled around the optimizer. All of it may be changed during a run; every change is an event."""

    title: str = ""
    units: dict[str, str] = field(default_factory=dict)
    """Of parameters and outputs, for display."""
    experiments: int | None = None
    """How many experiments the runner makes in all; None: until nothing is left."""
    confirm: bool = False
    """Every trial needs an operator's approval before it goes to the plant."""
    on_violation: str = "stop"
    """What a measurement outside a limit does to the run, besides being recorded: "stop" or "continue"."""
    plant: dict[str, Any] = field(default_factory=dict)
    notes: str = ""

    def __post_init__(self) -> None:
        for name in ("title", "notes"):
            if not isinstance(getattr(self, name), str):
                raise InvalidValueError(f"{name} must be text, got {getattr(self, name)!r}.")
        if not isinstance(self.units, Mapping) or not all(isinstance(v, str) for pair in self.units.items() for v in pair):
            raise InvalidValueError(f"units map names to text, got {self.units!r}.")
        if self.experiments is not None:
            object.__setattr__(self, "experiments", count(self.experiments, "experiments", 0))
        if not isinstance(self.confirm, bool):
            raise InvalidValueError(f"confirm must be True or False, got {self.confirm!r}.")
        if self.on_violation not in ON_VIOLATION:
            raise InvalidValueError(f"on_violation must be one of {list(ON_VIOLATION)}, got {self.on_violation!r}.")
        if not isinstance(self.plant, Mapping):
            raise InvalidValueError(f"plant must be a table of settings, got {self.plant!r}.")
        try:
            object.__setattr__(self, "plant", json.loads(json.dumps(dict(self.plant), allow_nan=False)))
        except (TypeError, ValueError) as error:
            raise InvalidValueError(f"plant holds plain values only, got {self.plant!r}: {error}.") from None
        object.__setattr__(self, "units", dict(self.units))

    def entry(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    def changed(self, changes: Mapping[str, Any]) -> RunConfig:
        """With other values for some of the fields."""
        known = [f.name for f in fields(self)]
        unknown = [name for name in changes if name not in known]
        if unknown:
            raise InvalidValueError(f"Unknown setting {unknown[0]!r} of a run: one of {', '.join(known)}.")
        return replace(self, **changes)


@dataclass(frozen=True)
class Pending:
    """A trial that was asked for and has neither been told nor aborted."""

    trial: Trial
    asked_at: str
    asked_by: str
    approved: tuple[str, str] | None = None  # who, when
    starts: int = 0  # how often it was handed to the plant
    retries: int = 0
    started_at: str = ""
    started_seq: int = 0  # number of the event with which it was handed out last
    record: NormRecord | None = None  # the norms that it was certified with
    stale: bool = False  # whether something was told, aborted or taken back since it was asked for

    @property
    def out(self) -> bool:
        """Whether it was handed to the plant: only a person or the plant knows what became of it."""
        return self.starts > self.retries


@dataclass(frozen=True)
class Voided:
    """A measurement that was taken back."""

    number: int  # as it was told
    sample: Any  # its line of the JSON state
    reason: str
    who: str
    at: str


@dataclass(frozen=True)
class Ledger:
    """A run, after its events so far."""

    name: str
    seq: int
    digest: str
    created: Event
    config: RunConfig
    samples: tuple[Any, ...] = ()  # lines of the JSON state
    records: tuple[Any, ...] = ()
    aborts: tuple[Any, ...] = ()
    pending: Pending | None = None
    halt: StopReason | None = None  # PAUSED, STOPPED, VIOLATION, or why nothing is left to ask for
    reason: str = ""  # of the halt, in words
    asked_at: str = ""  # when a trial was last asked for or handed out
    switched: int = 0  # number of the event that last paused, stopped or resumed the run
    numbers: tuple[int, ...] = ()  # of the samples, counted from 1 as they were told: one that is taken back leaves a gap
    told: int = 0  # measurements so far, those that were taken back included
    violations: tuple[int, ...] = ()  # numbers of the measurements outside a limit
    beneath: tuple[StopReason, str] | None = None  # what had halted the run before a violation did
    accepted: int = 0  # violations up to this number were accepted when the run was resumed
    voided: tuple[Voided, ...] = ()
    doubtful: frozenset[str] = frozenset()  # trials whose certificate rested on a measurement that was taken back later
    asked: tuple[tuple[str, int], ...] = ()  # every trial, and how many measurements there were when it was asked for
    closed: frozenset[str] = frozenset()  # trials that were told or aborted
    approvals: int = 0
    experiments: int = 0  # measured trials, without measurements that nobody asked for

    @classmethod
    def of(cls, name: str, events: list[Event]) -> Ledger:
        """The sum of all events of a run."""
        if not events or events[0].kind != "created":
            raise StorageError(f"The record of run {name!r} does not begin with its creation.")
        first, body = events[0], events[0].body
        ledger = cls(name, first.seq, first.digest, first, RunConfig().changed(body["config"]))
        samples, records, aborts = (tuple(body[part]) for part in ("samples", "records", "aborts"))
        ledger = replace(ledger, samples=samples, records=records, aborts=aborts)
        trials = {s[3] for s in ledger.samples} | {a[4] for a in ledger.aborts}
        numbers = tuple(range(1, len(samples) + 1))
        violated = [i for i, s in enumerate(ledger.samples, 1) if outside(ledger.state.outputs, s[2])]
        ledger = replace(ledger, numbers=numbers, told=len(samples), violations=tuple(violated))
        ledger = replace(ledger, closed=frozenset(t for t in trials if t is not None))
        for event in events[1:]:
            ledger = ledger.after(event)
        return ledger

    @property
    def status(self) -> str:
        """In one word: running, paused, stopped or finished."""
        if self.halt is None:
            return "finished" if self.complete and self.pending is None else "running"
        return {"paused": "paused", "stopped": "stopped", "violation": "stopped"}.get(self.halt.value, "finished")

    @property
    def halted(self) -> StopReason | None:
        """Why nothing may be asked for or started: a person or a violation says so."""
        return self.halt if self.status in ("paused", "stopped") else None

    @property
    def complete(self) -> bool:
        """Whether all experiments that the configuration asks for have been made."""
        return self.config.experiments is not None and self.experiments >= self.config.experiments

    @property
    def trial(self) -> Trial | None:
        """The pending trial."""
        return None if self.pending is None else self.pending.trial

    @property
    def source(self) -> str:
        """The configuration file that the run was made from, as it was."""
        return str(self.created.body.get("source", ""))

    @cached_property
    def state(self) -> State:
        """The optimizer's state, bit by bit."""
        content = {
            "safebo": FORMAT,
            "settings": self.created.body["settings"],
            "samples": self.samples,
            "records": self.records,
            "aborts": self.aborts,
        }
        return State.from_json(json.dumps(content))

    def after(self, event: Event) -> Ledger:
        """With one more event; `ConflictError` if the record does not allow it."""
        step = _STEPS.get(event.kind)
        if step is None:
            raise StorageError(f"Run {self.name!r} has an event {event.kind!r}, which this safebo does not know: update it.")
        if event.seq and event.seq != self.seq + 1:
            raise StorageError(f"Run {self.name!r}: event {event.seq} does not follow event {self.seq}.")
        result = replace(step(self, event), seq=self.seq + 1, digest=event.digest)
        if "state" in self.__dict__ and event.kind != "voided":  # it was built: extend it rather than build it again
            result.__dict__["state"] = _extended(self.state, event)
        return result

    def require(self, identity: object) -> Pending:
        """The pending trial, which must be this one."""
        if self.pending is not None and self.pending.trial.id == identity:
            return self.pending
        if isinstance(identity, str) and identity in self.closed:
            raise ConflictError(f"Trial {identity} of run {self.name!r} has been told or aborted already.")
        what = "none is" if self.pending is None else f"{self.pending.trial.id} is"
        raise ConflictError(f"Trial {identity!r:.100} of run {self.name!r} is not pending; {what}.")

    def require_seen(self, seen: int | None) -> None:
        """Whoever pauses or resumes a run says up to which event he saw it: it must not have been switched since.

        Without this, a person who presses pause in the moment in which a violation stops the run would act on a run that is not
        the one on his screen.
        """
        if seen is not None and seen < self.switched:
            raise ConflictError(
                f"Run {self.name!r} is {self.status}{f' ({self.reason})' if self.reason else ''} by now (event {self.switched}; "
                f"you saw it at event {seen}). Nothing was done: look again, then decide."
            )

    def require_running(self) -> None:
        """Nothing is asked or started while a run is paused or stopped."""
        if self.halted is not None:
            raise ConflictError(
                f"Run {self.name!r} is {self.status}{f' ({self.reason})' if self.reason else ''}: resume it first."
            )


def _extended(state: State, event: Event) -> State:
    """The optimizer's state after one more event."""
    if event.kind == "told":
        record = event.body["record"]
        sample = sample_of(event.body["sample"], state.settings)
        return state.told(sample, None if record is None else record_of(record, len(state.outputs)))
    if event.kind == "aborted":
        return state.aborted(abort_of(event.body["abort"], state.settings))
    return state


def _asked(ledger: Ledger, event: Event) -> Ledger:
    ledger.require_running()
    if ledger.pending is not None:
        raise pending_error(ledger)
    trial = trial_of(event.body["trial"])
    if trial.id in {sample[3] for sample in ledger.samples} | {abort[4] for abort in ledger.aborts}:
        raise ConflictError(f"Trial {trial.id} of run {ledger.name!r} has been told or aborted already.")
    entry = event.body.get("record")
    record = None if entry is None else record_of(entry, len(ledger.state.outputs))
    pending = Pending(trial, event.at, event.who, record=record)
    asked = (*ledger.asked, (trial.id, ledger.told))
    closed = ledger.closed - {trial.id}  # with a measurement taken back, an earlier state and its trial may come again
    return replace(ledger, pending=pending, halt=None, reason="", asked=asked, asked_at=event.at, closed=closed)


def _approved(ledger: Ledger, event: Event) -> Ledger:
    pending = ledger.require(event.body["trial"])
    if pending.out:
        raise ConflictError(f"Trial {pending.trial.id} was handed to the plant already: an approval comes before that.")
    if pending.approved is not None:
        raise ConflictError(f"Trial {pending.trial.id} was approved by {pending.approved[0] or 'somebody'} already.")
    return replace(ledger, pending=replace(pending, approved=(event.who, event.at)), approvals=ledger.approvals + 1)


def _rejected(ledger: Ledger, event: Event) -> Ledger:
    pending = ledger.require(event.body["trial"])
    if pending.out:
        raise ConflictError(f"Trial {pending.trial.id} was handed to the plant already: tell it or abort it.")
    return ledger


def _started(ledger: Ledger, event: Event) -> Ledger:
    ledger.require_running()
    pending = ledger.require(event.body["trial"])
    if pending.out:
        raise pending_error(ledger)
    if ledger.config.confirm and pending.approved is None:
        raise ConflictError(f"Trial {pending.trial.id} of run {ledger.name!r} was not approved: an operator has to confirm it.")
    started = replace(pending, starts=pending.starts + 1, started_at=event.at, started_seq=ledger.seq + 1)
    return replace(ledger, pending=started, asked_at=event.at)


def _retried(ledger: Ledger, event: Event) -> Ledger:
    pending = ledger.require(event.body["trial"])
    if not pending.out:
        raise ConflictError(f"Trial {pending.trial.id} was not handed to the plant yet: there is nothing to repeat.")
    return replace(ledger, pending=replace(pending, retries=pending.retries + 1, approved=None))


def _withdrawn(ledger: Ledger, event: Event) -> Ledger:
    pending = ledger.require(event.body["trial"])
    if pending.out:
        raise ConflictError(f"Trial {pending.trial.id} was handed to the plant already: tell it or abort it.")
    return replace(ledger, pending=None)


def _told(ledger: Ledger, event: Event) -> Ledger:
    body = event.body
    trial = body["sample"][3]
    ledger = _resolved(ledger, trial)
    number = ledger.told + 1
    finished = ledger.status == "finished"  # more data: there may be something to ask for again
    return replace(
        ledger,
        samples=(*ledger.samples, body["sample"]),
        numbers=(*ledger.numbers, number),
        told=number,
        records=_ordered(ledger.records, body["record"]),
        violations=(*ledger.violations, number) if body["violated"] else ledger.violations,
        experiments=ledger.experiments + (trial is not None),
        halt=None if finished else ledger.halt,
        reason="" if finished else ledger.reason,
    )


def _ordered(records: tuple[Any, ...], record: Any) -> tuple[Any, ...]:
    """With one more record, by steps, as in `State.told`."""
    if record is None:
        return records
    position = len(records) - sum(known[0] > record[0] for known in records)
    return (*records[:position], record, *records[position:])


def _aborted(ledger: Ledger, event: Event) -> Ledger:
    ledger = _resolved(ledger, event.body["abort"][4])
    return replace(ledger, aborts=(*ledger.aborts, event.body["abort"]))


def _voided(ledger: Ledger, event: Event) -> Ledger:
    number = event.body["number"]
    if number not in ledger.numbers:
        before = any(v.number == number for v in ledger.voided)
        why = "has been taken back already" if before else f"does not exist: there are {ledger.told}"
        raise ConflictError(f"Measurement {number!r:.50} of run {ledger.name!r} {why}.")
    index = ledger.numbers.index(number)
    if len(ledger.samples) == 1 and ledger.pending is not None and ledger.pending.out:
        raise ConflictError(
            f"Measurement {number} of run {ledger.name!r} is the only one, and trial {ledger.pending.trial.id} is at the plant: "
            "tell or abort that first."
        )
    state = ledger.state.without(index)
    sample = ledger.samples[index]
    entry = Voided(number, sample, event.body.get("reason", ""), event.who, event.at)
    doubtful = {trial for trial, told in ledger.asked if told >= number}
    violations = tuple(v for v in ledger.violations if v != number)
    result = replace(
        _aged(ledger, index),
        samples=tuple(s.entry() for s in state.samples),
        numbers=(*ledger.numbers[:index], *ledger.numbers[index + 1 :]),
        records=tuple(r.entry() for r in state.records),
        aborts=tuple(a.entry() for a in state.aborts),
        violations=violations,
        voided=(*ledger.voided, entry),
        doubtful=ledger.doubtful | doubtful,
        experiments=ledger.experiments - (sample[3] is not None),
    )
    unaccepted = [v for v in violations if v > ledger.accepted]
    if number in ledger.violations and ledger.halt is StopReason.VIOLATION and not unaccepted:
        halt, reason = StopReason.PAUSED, f"the measurement that stopped the run, number {number}, was taken back"
        if ledger.beneath is not None:
            halt, reason = ledger.beneath
        return replace(result, halt=halt, reason=reason, switched=ledger.seq + 1, beneath=None)
    if ledger.status == "finished":  # other data: there may be something to ask for again
        return replace(result, halt=None, reason="")
    return result


def _resolved(ledger: Ledger, trial: object) -> Ledger:
    """Without the trial that was told or aborted; one that waits beside it has a certificate of the past now."""
    if trial is None:
        return _aged(ledger)
    ledger.require(trial)
    return replace(ledger, pending=None, closed=ledger.closed | {str(trial)})


def _aged(ledger: Ledger, without: int | None = None) -> Ledger:
    """The pending trial is of the past; norms that were estimated with the sample that is taken back are void."""
    pending = ledger.pending
    if pending is None:
        return ledger
    record = pending.record
    if record is not None and without is not None and record.step > without:
        record = None
    return replace(ledger, pending=replace(pending, stale=True, record=record))


def _exhausted(ledger: Ledger, event: Event) -> Ledger:
    if ledger.halt is not None:
        raise ConflictError(f"Run {ledger.name!r} is {ledger.status} already.")
    return replace(ledger, halt=StopReason(event.body["reason"]), reason=StopReason(event.body["reason"]).advice)


def _paused(ledger: Ledger, event: Event) -> Ledger:
    if ledger.halted is not None:
        raise ConflictError(f"Run {ledger.name!r} is {ledger.status} already.")
    return replace(ledger, halt=StopReason.PAUSED, reason=event.body.get("reason", ""), switched=ledger.seq + 1)


def _stopped(ledger: Ledger, event: Event) -> Ledger:
    cause = StopReason(event.body["cause"])
    if ledger.status == "stopped" and cause is not StopReason.VIOLATION:
        raise ConflictError(f"Run {ledger.name!r} is stopped already.")
    beneath = ledger.beneath
    if cause is StopReason.VIOLATION and ledger.halted in (StopReason.PAUSED, StopReason.STOPPED):
        beneath = ledger.halted, ledger.reason
    return replace(ledger, halt=cause, reason=event.body.get("reason", ""), switched=ledger.seq + 1, beneath=beneath)


def _resumed(ledger: Ledger, event: Event) -> Ledger:
    if ledger.halted is None:
        raise ConflictError(f"Run {ledger.name!r} is {ledger.status}: there is nothing to resume.")
    accepted = ledger.told if ledger.halt is StopReason.VIOLATION else ledger.accepted
    return replace(ledger, halt=None, reason="", switched=ledger.seq + 1, accepted=accepted, beneath=None)


def _configured(ledger: Ledger, event: Event) -> Ledger:
    return replace(ledger, config=ledger.config.changed(event.body["changes"]))


_STEPS = {
    "asked": _asked,
    "approved": _approved,
    "rejected": _rejected,
    "started": _started,
    "retried": _retried,
    "told": _told,
    "aborted": _aborted,
    "withdrawn": _withdrawn,
    "voided": _voided,
    "exhausted": _exhausted,
    "paused": _paused,
    "resumed": _resumed,
    "stopped": _stopped,
    "configured": _configured,
}


def pending_error(ledger: Ledger) -> PendingTrialError:
    """Names the pending trial and what can be done about it."""
    pending = ledger.pending
    assert pending is not None
    shown = ", ".join(f"{name} = {value:.6g}" for name, value in pending.trial.params.items())
    when = f"handed out {pending.started_at} UTC" if pending.out else f"asked for {pending.asked_at} UTC"
    return PendingTrialError(
        f"Trial {pending.trial.id} of run {ledger.name!r} is pending ({shown}, {when}). Was it executed? "
        "Then tell its measurement. If it failed or nobody knows, abort it: experiments keep away from it. If it certainly was "
        "not executed, retry it."
    )


def trial_entry(trial: Trial) -> dict[str, Any]:
    """A trial and its certificate as plain values."""
    return {
        "id": trial.id,
        "params": trial.params,
        "x": list(trial.x),
        "lower": trial.lower,
        "upper": trial.upper,
        "norm": trial.norm,
        "cube": [list(trial.cube.lower), list(trial.cube.upper)],
        "confidence": trial.confidence,
        "bounds": {name: list(pair) for name, pair in trial.bounds.items()},
        "norms": trial.norms,
        "refutations": [
            {**asdict(r), "cube": [list(r.cube.lower), list(r.cube.upper)]} for r in trial.refutations
        ],
    }  # fmt: skip


def trial_of(entry: Mapping[str, Any]) -> Trial:
    """The inverse of `trial_entry`."""
    content = dict(entry)
    return Trial(
        **{
            **content,
            "x": tuple(content["x"]),
            "cube": _cube(content["cube"]),
            "bounds": {name: (pair[0], pair[1]) for name, pair in content["bounds"].items()},
            "refutations": tuple(Refutation(**{**r, "cube": _cube(r["cube"])}) for r in content["refutations"]),
        }
    )


def _cube(pair: Any) -> Cube:
    return Cube(tuple(pair[0]), tuple(pair[1]))
