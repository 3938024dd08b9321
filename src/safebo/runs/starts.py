"""The measurements that a run begins with: parameters that a person calls safe, which no trial certifies.

They are part of the run's record in `RunConfig.plant`: "start" lists them, "repeats" says how often each is measured, "approved"
and "sent" are the consent to the next one and the fact that it was handed to the plant, each with who and when. One that was
handed out and has neither been told nor aborted is treated like a pending trial: only a person knows what became of it.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass
from typing import Any

from safebo.exceptions import ConflictError
from safebo.runs.campaign import Campaign, user
from safebo.runs.ledger import Ledger
from safebo.runs.storage import now
from safebo.runs.words import values_text


@dataclass(frozen=True)
class Start:
    """The next parameters to start with."""

    params: dict[str, float]
    number: int  # which repetition, from 1
    attempt: int  # the same with those that were taken back
    approved: tuple[str, str] | None  # who, when
    out: bool  # handed to the plant
    sent_at: str
    token: str  # names this hand-out among all

    @property
    def id(self) -> str:
        """Names these parameters and this repetition, as a trial's id names a trial."""
        return f"start-{hashlib.sha256(json.dumps([self.params, self.attempt]).encode()).hexdigest()[:10]}"


def next_start(ledger: Ledger) -> Start | None:
    """The first of the parameters to start with that was not measured often enough, and not aborted."""
    plant = ledger.config.plant
    if not plant.get("start"):
        return None
    state = ledger.state
    points, given_up = [sample.point for sample in state.samples], [abort.point for abort in state.aborts]
    for params in plant.get("start", ()):
        point = tuple(state.settings.domain.point(params).tolist())
        number = points.count(point) + 1
        attempt = number + sum(tuple(entry.sample[0]) == point for entry in ledger.voided)
        if number <= plant.get("repeats", 1) and point not in given_up:
            sent, approved = (_mine(plant, key, params, attempt) for key in ("sent", "approved"))
            consent = (approved["who"], approved["at"]) if approved else None
            return Start(dict(params), number, attempt, consent, bool(sent), sent.get("at", ""), sent.get("token", ""))
    return None


def comes_first(ledger: Ledger, start: Start) -> str:
    """Why there is no trial before this start is measured, and how to tell its measurement: by a client, and by a person."""
    what = "is at the plant" if start.out else "was not measured yet"
    names = [output.name for output in ledger.state.outputs[1:]]
    body = {"params": start.params, "objective": "..."} | ({"constraints": dict.fromkeys(names, "...")} if names else {})
    by_client = json.dumps(body).replace('"..."', "...")
    return (
        f"The start {_shown(ledger, start)} of run {ledger.name!r} {what}: trials come after it. Run it and tell what it "
        f"measured: POST /tell with {by_client}, or `{telling(ledger)}`."
    )


def telling(ledger: Ledger, run: str = "") -> str:
    """The command line that tells the measurement of the next start; `run` is its place on that line."""
    name = run or (f"'{ledger.name}'" if " " in ledger.name else ledger.name)
    limits = "".join(f" --limit {output.name}=..." for output in ledger.state.outputs[1:])
    return f"safebo tell {name} --objective ...{limits}"


def _shown(ledger: Ledger, start: Start) -> str:
    return values_text(start.params, ledger.config.units)


def _mine(plant: dict[str, Any], key: str, params: dict[str, float], attempt: int) -> dict[str, Any]:
    entry = plant.get(key) or {}
    return entry if (entry.get("params"), entry.get("number")) == (params, attempt) else {}


def approve_start(campaign: Campaign, who: str = "", identity: str | None = None) -> None:
    """An operator's consent to the next start, which must be the one of this id if it is given."""

    def approved(ledger: Ledger) -> dict[str, Any]:
        start = _required(ledger)
        if identity is not None and identity != start.id:
            raise ConflictError(f"{identity} of run {ledger.name!r} is not the next start any more; {start.id} is.")
        if start.out:
            raise ConflictError(f"The start {_shown(ledger, start)} of run {ledger.name!r} was handed to the plant already.")
        return _noted(ledger, approved=_signed(start, who))

    campaign.reconfigure(approved, who=who)


def send_start(campaign: Campaign, who: str = "") -> dict[str, float]:
    """The next start goes to the plant as soon as this has returned; of two processes that send it at once, one is refused."""
    sent: list[Start] = []

    def handed_out(ledger: Ledger) -> dict[str, Any]:
        start = next_start(ledger)
        ledger.require_running()
        if start is None:
            raise ConflictError(f"Run {ledger.name!r} has no start left")
        if start.out:
            raise ConflictError(
                f"Run {ledger.name!r} has handed the start {_shown(ledger, start)} to the plant already: was it executed?"
            )
        if ledger.config.confirm and start.approved is None:
            raise ConflictError(
                f"The start {_shown(ledger, start)} of run {ledger.name!r} was not approved: an operator has to confirm it."
            )
        sent.append(start)
        return _noted(ledger, sent={**_signed(start, who), "token": uuid.uuid4().hex})

    campaign.reconfigure(handed_out, who=who)
    return sent[-1].params


def retry_start(campaign: Campaign, who: str = "") -> None:
    """The start was handed out but certainly not executed: it may be approved and sent once more."""
    campaign.reconfigure(lambda ledger: _noted(ledger, sent=None, approved=None), who=who)


def _required(ledger: Ledger) -> Start:
    start = next_start(ledger)
    if start is None:
        raise ConflictError(f"Run {ledger.name!r} has no start left to measure.")
    return start


def _signed(start: Start, who: str) -> dict[str, Any]:
    return {"params": start.params, "number": start.attempt, "who": who or user(), "at": now()}


def _noted(ledger: Ledger, **entries: Any) -> dict[str, Any]:
    """The change of the configuration that notes these entries beside what stands there at this moment."""
    plant = {**ledger.config.plant, **entries}
    return {"plant": {key: value for key, value in plant.items() if value is not None}}
