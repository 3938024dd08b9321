"""A durable run: an optimizer whose every step is stored before it counts.

`Campaign` is what the command line, the server and a loop of one's own share. Any number of processes may hold the same run:
each reads what the others wrote before it acts, and of two that act at once one is refused (`ConflictError`).
"""

from __future__ import annotations

import getpass
import hashlib
import json
import platform
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from safebo.exceptions import ConflictError, DrivenError, InvalidValueError, StopReason
from safebo.journal import not_stored
from safebo.norms.base import count
from safebo.optimizer import Params, SafeOptimizer, Trial
from safebo.outputs import outside
from safebo.runs.driving import Lease, driver
from safebo.runs.ledger import Ledger, Pending, RunConfig, pending_error, trial_entry
from safebo.runs.storage import Event, Request, Store
from safebo.state import Abort, NormRecord, Sample, State

Result = TypeVar("Result")

WITHDRAWN = "something was told, aborted or taken back since it was asked for, so that its certificate is one of the past"
"""Why a trial is withdrawn."""

LONGEST_TEXT = 2000
"""Characters of a reason or a name at most."""


@dataclass(frozen=True)
class Receipt:
    """What telling led to: the number of the event, the outputs outside their limits, and the run's status afterwards."""

    seq: int
    violated: dict[str, float]
    status: str
    repeated: bool = False
    """The request had been served before; nothing was stored again."""


class Follower:
    """Reads a run while others write it; never waits for them, and writes nothing."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        self._lock, self._computing = threading.Lock(), threading.RLock()
        self._ledger = Ledger.of(name, store.events(name))
        self._optimizer: SafeOptimizer | None = None

    @property
    def ledger(self) -> Ledger:
        """The run, with what has been written by now."""
        with self._lock:
            for event in self.store.events(self.name, self._ledger.seq, self._ledger.digest):
                self._ledger = self._ledger.after(event)
            return self._ledger

    def optimizer(self) -> SafeOptimizer:
        """An optimizer of one's own in the run's present state, for looking: what is told to it is not stored."""
        ledger = self.ledger
        with self._computing:
            if self._optimizer is None:
                self._optimizer = SafeOptimizer.from_json(ledger.state.to_json())
            self._optimizer._follow(ledger.state, ledger.pending)
            return self._optimizer


class Campaign:
    """One run in a store."""

    def __init__(self, store: Store, ledger: Ledger, optimizer: SafeOptimizer | None = None, *, direct: bool = False) -> None:
        self.store, self._ledger = store, ledger
        self._lock = threading.RLock()
        self._optimizer = optimizer
        self._direct = direct  # the optimizer is in a user's hands: what it asks for is handed out
        self._mine = 0  # number of the event with which this object handed out a trial
        self.drives: Lease | None = None  # held while this object sends experiments to a plant, see `runs.driving`
        self._who = user()
        self._request: Request | None = None
        if optimizer is not None:
            self._attach(optimizer)

    # -- making and finding runs ----------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        store: Store,
        name: str,
        optimizer: SafeOptimizer,
        *,
        config: RunConfig | None = None,
        source: str = "",
        who: str = "",
    ) -> Campaign:
        """A new run from an optimizer and what it has been told so far."""
        return cls._create(store, name, optimizer, config or RunConfig(), source, who, direct=False)

    @classmethod
    def _create(
        cls, store: Store, name: str, optimizer: SafeOptimizer, config: RunConfig, source: str, who: str, direct: bool
    ) -> Campaign:
        if optimizer._journal is not None:
            raise InvalidValueError("This optimizer's steps are stored already.")
        history = {"samples": [], "records": [], "aborts": [], **json.loads(optimizer.state.to_json())}
        body = {**history, "config": config.entry(), "source": source, **circumstances()}
        signed = _text(who or user(), "who")
        events = [Event("created", body, signed)]
        trial = optimizer.ask() if optimizer._trial_id() in optimizer._issued else None
        if trial is not None:  # handed out already: its measurement is to come
            events += [Event("asked", _asked(trial, optimizer._issued[trial.id].record), signed)]
            events += [Event("started", {"trial": trial.id}, signed)]
        campaign = cls(store, Ledger.of(name, store.create(name, events)), optimizer, direct=direct)
        campaign._mine = 0 if trial is None else campaign._ledger.seq
        return campaign

    @classmethod
    def open(cls, store: Store, name: str) -> Campaign:
        """A run that exists."""
        return cls(store, Ledger.of(name, store.events(name)))

    @classmethod
    def load(cls, url: str | Path, name: str) -> Campaign:
        """A run whose optimizer a user drives himself: `SafeOptimizer.load`."""
        store = Store.open(url, create=False)
        return cls(store, Ledger.of(name, store.events(name)), direct=True)

    @classmethod
    def store_as(cls, url: str | Path, name: str, optimizer: SafeOptimizer) -> Campaign:
        """A new run whose optimizer stays in the user's hands: `SafeOptimizer.save`."""
        return cls._create(Store.open(url), name, optimizer, RunConfig(), "", "", direct=True)

    # -- looking --------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The run's name."""
        return self._ledger.name

    @property
    def ledger(self) -> Ledger:
        """The run, with what other processes have written by now."""
        with self._lock:
            self._refresh()
            return self._ledger

    @property
    def optimizer(self) -> SafeOptimizer:
        """The optimizer in the run's present state. What is told to it directly is stored as well."""
        with self._lock:
            self._refresh()
            if self._optimizer is None:
                optimizer = SafeOptimizer.from_json(self._ledger.state.to_json())
                optimizer._follow(self._ledger.state, self._ledger.pending)
                self._attach(optimizer)
                return optimizer
            return self._optimizer

    @property
    def driving_lost(self) -> str:
        """Why this object drives the run no more, if it did; asks nobody, and so never waits."""
        return "" if self.drives is None else self.drives.lost

    def events(self, after: int = 0) -> list[Event]:
        """The record after event number `after`."""
        return self.store.events(self.name, after)

    def _attach(self, optimizer: SafeOptimizer) -> None:
        optimizer._journal, optimizer._lock = _Writer(self), self._lock  # one lock: each of the two calls the other
        self._optimizer = optimizer

    def _refresh(self) -> None:
        """Take over what others have written."""
        fresh = self.store.events(self.name, self._ledger.seq, self._ledger.digest)
        for event in fresh:
            self._ledger = self._ledger.after(event)
        if self._optimizer is not None and (fresh or self._apart(self._optimizer.state)):
            self._optimizer._follow(self._ledger.state, self._ledger.pending)

    def _apart(self, state: State) -> bool:
        """Whether a step was stored that the optimizer has not taken over: an interrupt (Ctrl-C), a measurement taken back."""
        parts = ("samples", "records", "aborts")
        return any(len(getattr(state, part)) != len(getattr(self._ledger, part)) for part in parts)

    # -- steps ----------------------------------------------------------------------------------------------------------

    def ask(self, *, who: str = "") -> Pending | None:
        """The next trial, stored and not yet handed to the plant (`start`); None if there is none, see `ledger`.

        A trial that is pending and was not handed out is returned again, as long as nothing was told, aborted or taken back since
        it was asked for. One that was handed out raises `PendingTrialError`.
        """

        def work() -> Pending | None:
            pending = self._ledger.pending
            if pending is not None and pending.out:
                raise pending_error(self._ledger)
            self._ledger.require_running()
            return self._present() or self._next()

        return self._act(who, work)

    def _again(self, pending: Pending) -> Pending | None:
        """A trial that was handed out, for the one who asks for it once more: perhaps the answer was lost, and it never ran."""
        if self._ledger.halted is not None:
            return None
        if pending.stale:
            raise pending_error(self._ledger)
        return pending

    def _present(self) -> Pending | None:
        """The pending trial if its certificate is of the present; otherwise it is withdrawn, and nothing is pending."""
        pending = self._ledger.pending
        if pending is None or not pending.stale:
            return pending
        self._append(*_withdrawal(self._ledger))
        return None

    def _next(self) -> Pending | None:
        self._started_well()
        self.optimizer.ask()
        return self._ledger.pending

    def _require_present(self, trial: str) -> Pending:
        """The pending trial, which must be this one and not yet handed out, with a certificate of the present."""
        pending = self._ledger.require(trial)
        if pending.stale and not pending.out:
            self._append(*_withdrawal(self._ledger))
            raise ConflictError(f"Trial {trial} of run {self.name!r} was withdrawn: {WITHDRAWN}. Ask for another one.")
        return pending

    def _started_well(self) -> None:
        """No trial before the parameters to start with are measured."""
        from safebo.runs.starts import comes_first, next_start

        if (start := next_start(self._ledger)) is not None:
            raise ConflictError(comes_first(self._ledger, start))

    def approve(self, trial: str, *, who: str = "") -> None:
        """An operator's consent to the pending trial: to this one with its certificate, not to one that follows it."""

        def work() -> None:
            self._require_present(trial)
            self._append(Event("approved", {"trial": trial}))

        self._act(who, work)

    def reject(self, trial: str, reason: str = "", *, who: str = "") -> None:
        """An operator's refusal of the pending trial: experiments keep away from it."""

        def work() -> None:
            pending = self._ledger.require(trial)
            if pending.out:
                raise ConflictError(f"Trial {trial} was handed to the plant already: tell it or abort it.")
            self._writer.before = (Event("rejected", {"trial": trial, "reason": _text(reason, "reason")}),)
            self.optimizer.tell(pending.trial, status="aborted", reason=f"rejected: {reason}" if reason else "rejected")

        self._act(who, work)

    def start(self, trial: str, *, who: str = "") -> Pending:
        """The pending trial goes to the plant as soon as this has returned."""

        def work() -> Pending:
            self._require_present(trial)
            self._append(Event("started", {"trial": trial}))
            assert self._ledger.pending is not None
            return self._ledger.pending

        return self._act(who, work)

    def hand_out(self, *, who: str = "", key: str | None = None) -> Pending | None:
        """`ask` and `start` in one: the next trial, handed out unless it waits for an approval; None if there is none.

        key: asking again with the key that got a trial gets the same trial, as long as it is out, the run goes on, and nothing
        was told beside it.
        """
        request = None if key is None else _request(key, "hand out", None, who or user())

        def work() -> Pending | None:
            pending = self._ledger.pending
            served = None if request is None else self._served(request)
            if served is not None:
                if pending is not None and pending.out and pending.started_seq == served.seq:
                    return self._again(pending)
                started = self.store.events(self.name, served.seq - 1)[0]
                raise ConflictError(
                    f"The key {key!r} belongs to trial {started.body['trial']}, which is not out any more: use a new key."
                )
            if pending is not None and pending.out:
                raise pending_error(self._ledger)
            if self._ledger.halted is not None or self._ledger.complete:
                return None
            pending = self._present() or self._next()
            if pending is None or (self._ledger.config.confirm and pending.approved is None):
                return pending
            self._request = request
            self._append(Event("started", {"trial": pending.trial.id}))
            return self._ledger.pending

        return self._act(who, work)

    def retry(self, trial: str, *, who: str = "") -> None:
        """The pending trial was handed out but certainly not executed: it may be started (and approved) once more.

        If something was told, aborted or taken back meanwhile, it is withdrawn instead, and another one has to be asked for.
        """

        def work() -> None:
            pending = self._not_at_the_plant(trial)
            self._append(Event("retried", {"trial": trial}), *(_withdrawal(self._ledger) if pending.stale else ()))

        self._act(who, work)

    def tell(
        self,
        what: str | Params,
        objective: float,
        constraints: Mapping[str, float] | None = None,
        *,
        context: Mapping[str, Any] | None = None,
        who: str = "",
        key: str | None = None,
    ) -> Receipt:
        """A measurement: of the pending trial, named by its id, or of parameters.

        key: the same request sent again with the same key is answered again and counts once.
        """

        def work() -> Receipt:
            known = self._not_at_the_plant(what).trial if isinstance(what, str) else what
            self.optimizer.tell(known, objective, constraints, context=context)
            return self._receipt()

        with not_stored([(what, objective, constraints)]):
            return self._once("tell", [what, objective, constraints, context], key, who, work)

    def tell_many(self, measurements: Iterable[tuple[Any, ...]], *, who: str = "", key: str | None = None) -> Receipt:
        """Measurements made earlier, all or none: (parameters, objective[, constraints[, context]]) each."""
        rows = list(measurements)

        def work() -> Receipt:
            self.optimizer.tell_many(rows)
            return self._receipt()

        with not_stored(rows):
            return self._once("tell_many", rows, key, who, work)

    def abort(self, what: str | Params, reason: str, *, who: str = "", key: str | None = None) -> Receipt:
        """An experiment that failed or was stopped, named by its trial's id or its parameters: others keep away from it."""

        def work() -> Receipt:
            known = self._not_at_the_plant(what).trial if isinstance(what, str) else what
            self.optimizer.tell(known, status="aborted", reason=_text(reason, "reason"))
            return self._receipt()

        return self._once("abort", [what, reason], key, who, work)

    def abandon(self, trial: str, reason: str = "", *, who: str = "", key: str | None = None) -> Receipt:
        """Give up the pending trial: nobody knows what became of it, or nobody wants to run it. Experiments keep away from it."""
        return self.abort(trial, f"abandoned: {_text(reason, 'reason')}" if reason else "abandoned", who=who, key=key)

    def void(self, number: int, reason: str = "", *, who: str = "", seen: int | None = None) -> None:
        """Take measurement `number` back, a typing error for example: from now on the run is as if it had not been told.

        It stays in the record. Norms that were estimated with it are estimated anew, a trial that waits is withdrawn, and trials
        whose certificates rested on it are marked (`Ledger.doubtful`). To correct it, tell the right values afterwards.
        """

        def work() -> None:
            self._ledger.require_seen(seen)
            body = {"number": count(number, "The number of a measurement"), "reason": _text(reason, "reason")}
            self._append(*_beside(self._ledger, None), Event("voided", body))
            self._refresh()

        self._act(who, work)

    def pause(self, reason: str = "", *, who: str = "", seen: int | None = None) -> None:
        """Nothing is asked or started until `resume`.

        seen: number of the last event that the caller knew; `ConflictError` if the run was switched since.
        """
        event = Event("paused", {"reason": _text(reason, "reason")})

        def decide(ledger: Ledger) -> Event:
            ledger.require_seen(seen)
            return event

        self._act(who, lambda: self._insist(decide))

    def stop(self, reason: str = "", *, who: str = "") -> None:
        """The stop button: nothing is asked or started, and a runner stops its plant."""
        event = Event("stopped", {"cause": StopReason.STOPPED.value, "reason": _text(reason, "reason")})
        self._act(who, lambda: self._insist(lambda _: event))

    def resume(self, reason: str = "", *, who: str = "", accept_violation: bool = False, seen: int | None = None) -> None:
        """Go on after a pause or a stop; after a violation only if it is accepted explicitly.

        seen: number of the last event that the caller knew, by default the last one now; `ConflictError` if the run was switched
        since.
        """
        text = _text(reason, "reason")

        def work() -> None:
            known = self._ledger.seq if seen is None else seen

            def decide(ledger: Ledger) -> Event:
                ledger.require_seen(known)
                violated = ledger.halted is StopReason.VIOLATION
                if violated and not accept_violation:
                    raise ConflictError(
                        f"Run {ledger.name!r} was stopped by a violation: {ledger.reason}. {StopReason.VIOLATION.advice} Then "
                        "resume it and say that the violation is accepted."
                    )
                return Event("resumed", {"reason": text, "accepted": violated})

            self._insist(decide)

        self._act(who, work)

    def configure(self, *, who: str = "", **changes: Any) -> None:
        """Change the configuration, see `RunConfig`."""
        self.reconfigure(lambda _: changes, who=who)

    def reconfigure(self, change: Callable[[Ledger], Mapping[str, Any]], *, who: str = "") -> None:
        """Change what `change` makes of the run as it is when that is stored; what it raises is passed on."""

        def decide(ledger: Ledger) -> Event:
            changes = change(ledger)
            entry = ledger.config.changed(changes).entry()
            return Event("configured", {"changes": {name: entry[name] for name in changes}})

        self._act(who, lambda: self._insist(decide))

    def _not_at_the_plant(self, trial: str) -> Pending:
        """The pending trial, of which no other process says at this moment that it is running it."""
        pending = self._ledger.require(trial)
        if pending.out and self.drives is None and (who := driver(self.store, self.name)):
            raise DrivenError(
                f"Trial {trial} of run {self.name!r} is at the plant at this moment, sent by {who}: it will tell what became of "
                "it. Stop that process first if it hangs."
            )
        return pending

    # -- how ------------------------------------------------------------------------------------------------------------

    @property
    def _writer(self) -> _Writer:
        journal = self.optimizer._journal
        assert isinstance(journal, _Writer)
        return journal

    def _act(self, who: str, work: Callable[[], Result], request: Request | None = None) -> Result:
        with self._lock:
            self._who, self._request = _text(who or user(), "who"), request
            try:
                self._refresh()
                return work()
            finally:
                self._who, self._request = user(), None
                if self._optimizer is not None and isinstance(self._optimizer._journal, _Writer):
                    self._optimizer._journal.before = ()

    def _once(self, verb: str, content: Any, key: str | None, who: str, work: Callable[[], Receipt]) -> Receipt:
        if key is None:
            return self._act(who, work)
        request = _request(key, verb, content, who or user())

        def first_or_again() -> Receipt:
            served = self._served(request)
            return work() if served is None else self._receipt(served.seq, repeated=True)

        return self._act(who, first_or_again, request)

    def _served(self, request: Request) -> Request | None:
        """The request of the same key, if it has been served; it must be the same one."""
        served = self.store.request(self.name, request.key)
        if served is not None and served.fingerprint != request.fingerprint:
            raise ConflictError(f"The key {request.key!r} belongs to another request: use a new key for a new request.")
        return served

    def _receipt(self, seq: int | None = None, repeated: bool = False) -> Receipt:
        last = self._ledger.seq if seq is None else seq
        events = {event.seq: event for event in self.store.events(self.name, max(last - 2, 0)) if event.seq <= last}
        stopped = events[last].kind == "stopped"  # after the measurement that stopped it, in the same step
        violated = events[last - stopped].body.get("violated", {})
        return Receipt(last, violated, self._ledger.status, repeated)

    def _insist(self, decide: Callable[[Ledger], Event]) -> None:
        """Append one event, whatever others write at this moment: nobody who stops a run is told that somebody was quicker."""

        def after(fresh: list[Event]) -> list[Event]:
            ledger = self._ledger
            for event in fresh:
                ledger = ledger.after(event)
            chosen = decide(ledger)
            signed = Event(chosen.kind, chosen.body, self._who)
            ledger.after(signed)
            return [signed]

        lease = None if self.drives is None else self.drives.token
        for event in self.store.append_now(self.name, self._ledger.seq, self._ledger.digest, after, lease=lease):
            self._ledger = self._ledger.after(event)

    def _append(self, *events: Event) -> None:
        """Check against the rules, store, and only then count."""
        signed = [Event(e.kind, e.body, self._who) for e in events]
        ledger = self._ledger
        for event in signed:
            ledger = ledger.after(event)
        lease = None if self.drives is None else self.drives.token
        stored = self.store.append(self.name, self._ledger.seq, signed, self._request, lease=lease)
        ledger = self._ledger
        for event in stored:
            ledger = ledger.after(event)
        self._ledger = ledger


class _Writer:
    """The optimizer's journal: turns its steps into events."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self.before: tuple[Event, ...] = ()  # events of the same step that come first

    def refresh(self) -> None:
        with self._campaign._lock:
            self._campaign._refresh()

    @property
    def halted(self) -> StopReason | None:
        return self._campaign.ledger.halted

    @property
    def pending(self) -> Pending | None:
        return self._campaign.ledger.pending

    def asked(self, trial: Trial, record: NormRecord | None) -> bool:
        campaign = self._campaign
        with campaign._lock:
            pending = campaign._ledger.pending
            if pending is not None and pending.stale and not pending.out:
                campaign._append(*_withdrawal(campaign._ledger))
                return False
            if pending is not None and pending.out and not pending.stale and campaign._mine == pending.started_seq:
                return True  # asked for again by the same program, which knows what it did with it
            if pending is None or pending.out:
                campaign._append(Event("asked", _asked(trial, record)))
            if campaign._direct:  # what the user gets is handed out
                campaign._append(Event("started", {"trial": trial.id}))
                campaign._mine = campaign._ledger.seq
            return True

    def exhausted(self, reason: StopReason) -> None:
        campaign = self._campaign
        with campaign._lock:
            if campaign._ledger.halt is None and campaign._ledger.pending is None:
                campaign._append(Event("exhausted", {"reason": reason.value}))

    def told(self, samples: tuple[Sample, ...], record: NormRecord | None) -> int:
        campaign = self._campaign
        with campaign._lock:
            self._not_of_a_runner(samples[0].trial)
            outputs = campaign._ledger.state.outputs
            entry = None if record is None else record.entry()
            events = [
                Event("told", {"sample": s.entry(), "record": entry, "violated": outside(outputs, s.values)})
                for s in samples
            ]  # fmt: skip
            violated = next((found for s in samples if (found := outside(outputs, s.values))), {})
            if violated and campaign._ledger.config.on_violation == "stop":
                text = ", ".join(f"{name} = {value:g}" for name, value in violated.items())
                cause = {"cause": StopReason.VIOLATION.value, "reason": f"measured outside a limit: {text}"}
                events.append(Event("stopped", cause))
            campaign._append(*self.before, *_beside(campaign._ledger, samples[0].trial), *events)
            return campaign._ledger.told

    def aborted(self, abort: Abort) -> None:
        with self._campaign._lock:
            self._not_of_a_runner(abort.trial)
            beside = _beside(self._campaign._ledger, abort.trial)
            self._campaign._append(*self.before, *beside, Event("aborted", {"abort": abort.entry()}))

    def _not_of_a_runner(self, trial: str | None) -> None:
        """Nobody but the runner tells what became of the experiment that it has at the plant."""
        pending = self._campaign._ledger.pending
        if trial is not None and pending is not None and pending.trial.id == trial:
            self._campaign._not_at_the_plant(trial)

    def refused(self, reason: str) -> None:
        campaign = self._campaign
        with campaign._lock:
            if campaign._ledger.config.on_violation == "stop":
                body = {"cause": StopReason.VIOLATION.value, "reason": _text(reason[:LONGEST_TEXT], "reason")}
                campaign._insist(lambda _: Event("stopped", body))

    def retried(self, trial: Trial) -> bool:
        campaign = self._campaign
        with campaign._lock:
            pending = campaign._not_at_the_plant(trial.id)
            retried = Event("retried", {"trial": trial.id})
            if pending.stale:
                campaign._append(retried, *_withdrawal(campaign._ledger))
                return False
            campaign._append(retried, Event("started", {"trial": trial.id}))
            campaign._mine = campaign._ledger.seq
            return True


def _asked(trial: Trial, record: NormRecord | None) -> dict[str, Any]:
    return {"trial": trial_entry(trial), "record": None if record is None else record.entry()}


def _withdrawal(ledger: Ledger) -> tuple[Event, ...]:
    """Withdraws the pending trial; nothing if there is none."""
    if ledger.pending is None:
        return ()
    return (Event("withdrawn", {"trial": ledger.pending.trial.id, "reason": WITHDRAWN}),)


def _beside(ledger: Ledger, trial: str | None) -> tuple[Event, ...]:
    """What comes before a measurement or an abort in the same step: a trial that waits beside it is withdrawn.

    Its certificate was made without what is told now. One that is at the plant stays: its measurement is to come.
    """
    pending = ledger.pending
    if pending is None or pending.out or pending.trial.id == trial:
        return ()
    return _withdrawal(ledger)


def _request(key: object, verb: str, content: Any, who: str) -> Request:
    if not isinstance(key, str) or not 0 < len(key) <= 200 or not key.isprintable():
        raise InvalidValueError(f"An idempotency key is text of 1 to 200 printable characters, got {key!r:.220}.")
    text = json.dumps([verb, content, who], default=repr, sort_keys=True)  # a key is its caller's
    return Request(key, hashlib.sha256(text.encode()).hexdigest())


def user() -> str:
    """Who is at this computer, as far as it knows."""
    try:
        return f"{getpass.getuser()}@{platform.node()}"
    except (KeyError, OSError):
        return platform.node()


def circumstances() -> dict[str, Any]:
    """What may matter for reproducing a run: versions and the machine."""
    import scipy

    from safebo import __version__

    return {
        "version": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "device": f"cpu, {platform.machine()}, {platform.system()} {platform.release()}, {platform.node()}",
    }


def _text(value: object, what: str) -> str:
    whole = isinstance(value, str) and "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)
    if not isinstance(value, str) or not whole or len(value) > LONGEST_TEXT:
        raise InvalidValueError(f"{what} must be text of at most {LONGEST_TEXT} characters, got {value!r:.200}.")
    return value
