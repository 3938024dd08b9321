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
from safebo.runs.storage import Event, now


@dataclass(frozen=True)
class Start:
    """The next parameters to start with."""

    params: dict[str, float]
    number: int  # which repetition, from 1
    approved: tuple[str, str] | None  # who, when
    out: bool  # handed to the plant
    sent_at: str
    token: str  # names this hand-out among all

    @property
    def id(self) -> str:
        """Names these parameters and this repetition, as a trial's id names a trial."""
        return f"start-{hashlib.sha256(json.dumps([self.params, self.number]).encode()).hexdigest()[:10]}"


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
        if number <= plant.get("repeats", 1) and point not in given_up:
            sent, approved = (_mine(plant, key, params, number) for key in ("sent", "approved"))
            consent = (approved["who"], approved["at"]) if approved else None
            return Start(dict(params), number, consent, bool(sent), sent.get("at", ""), sent.get("token", ""))
    return None


def _mine(plant: dict[str, Any], key: str, params: dict[str, float], number: int) -> dict[str, Any]:
    entry = plant.get(key) or {}
    return entry if (entry.get("params"), entry.get("number")) == (params, number) else {}


def approve_start(campaign: Campaign, who: str = "", identity: str | None = None) -> None:
    """An operator's consent to the next start, which must be the one of this id if it is given."""
    start = _required(campaign)
    if identity is not None and identity != start.id:
        raise ConflictError(f"{identity} of run {campaign.name!r} is not the next start any more; {start.id} is.")
    if start.out:
        raise ConflictError(f"The start {start.params} of run {campaign.name!r} was handed to the plant already.")
    _note(campaign, who, approved=_signed(start, who))


def send_start(campaign: Campaign, who: str = "") -> dict[str, float]:
    """The next start goes to the plant as soon as this has returned; of two processes that send it at once, one is refused."""
    ledger = campaign.ledger
    start = next_start(ledger)
    ledger.require_running()
    if start is None or start.out:
        what = (
            "has no start left"
            if start is None
            else f"has handed the start {start.params} to the plant already: was it executed?"
        )
        raise ConflictError(f"Run {campaign.name!r} {what}")
    if ledger.config.confirm and start.approved is None:
        raise ConflictError(f"The start {start.params} of run {campaign.name!r} was not approved: an operator has to confirm it.")
    mine = {**_signed(start, who), "token": uuid.uuid4().hex}
    _note(campaign, who, sent=mine)
    first, *_ = since = campaign.events(ledger.seq)
    if _sent(first) == mine:
        return start.params
    if not any(_sent(event) not in (None, mine) for event in since):  # a pause or a stop came in between: nothing was sent
        _note(campaign, who, sent=None)
    raise ConflictError(f"Run {campaign.name!r} was changed by another process before the start {start.params} was sent.")


def _sent(event: Event) -> Any:
    """What an entry of the record says about a start that was handed out."""
    plant = event.body.get("changes", {}).get("plant", {}) if event.kind == "configured" else {}
    return plant.get("sent")


def retry_start(campaign: Campaign, who: str = "") -> None:
    """The start was handed out but certainly not executed: it may be approved and sent once more."""
    _note(campaign, who, sent=None, approved=None)


def _required(campaign: Campaign) -> Start:
    start = next_start(campaign.ledger)
    if start is None:
        raise ConflictError(f"Run {campaign.name!r} has no start left to measure.")
    return start


def _signed(start: Start, who: str) -> dict[str, Any]:
    return {"params": start.params, "number": start.number, "who": who or user(), "at": now()}


def _note(campaign: Campaign, who: str, **entries: Any) -> None:
    plant = {**campaign.ledger.config.plant, **entries}
    campaign.configure(who=who, plant={key: value for key, value in plant.items() if value is not None})
