"""What happened, when, and who drives a run: in words, for a person."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from safebo.runs.describe import plant_text, with_unit
from safebo.runs.ledger import Ledger
from safebo.runs.storage import Event
from safebo.state import Settings

_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:[+-]\d\d:\d\d|Z)?(?: UTC)?")


def moment(stamp: str, *, local: bool = False) -> str:
    """A time of the record to the second, with its zone: 2025-03-01 10:12:31 UTC."""
    try:
        when = datetime.fromisoformat(stamp.removesuffix(" UTC").replace("Z", "+00:00"))
    except ValueError:
        return stamp
    when = when if when.tzinfo is not None else when.replace(tzinfo=timezone.utc)
    when = when.astimezone(None if local else timezone.utc)
    return f"{when:%Y-%m-%d %H:%M:%S} {when.tzname() or when.strftime('%z')}"


def moments(text: str, *, local: bool = False) -> str:
    """A text with its times to the second."""
    return _STAMP.sub(lambda found: moment(found.group(), local=local), text)


class Standing(NamedTuple):
    """What a run's record says about where it stands."""

    name: str
    status: str
    plant: str  # type of the plant; empty if the run does not say
    asked_at: str

    @classmethod
    def of(cls, ledger: Ledger) -> Standing:
        """That of a run."""
        return cls(ledger.name, ledger.status, ledger.config.plant.get("type", ""), ledger.asked_at)

    def words(self, driver: str) -> tuple[str, str, str]:
        """The run in one word, who drives it, and the same in a sentence. A run that nobody drives is open.

        driver   what `driving.driver` says: empty if nobody does
        """
        if driver:
            return self.status, driver.partition(" since ")[0], f"driven by {driver}"
        if self.status != "running":
            return self.status, "-", ""
        if self.plant in ("", "http"):
            who = "clients over HTTP" if self.plant else "a program or clients"
            asked = f"last asked {self.asked_at}" if self.asked_at else "nobody has asked yet"
            return "open", who, f"{who if self.plant else 'a Python program, or clients over HTTP,'} may ask; {asked}"
        return "open", "nobody", "nobody drives it"


def counted(number: int, what: str) -> str:
    """1 measurement, 2 measurements."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def values_text(values: Mapping[str, float], units: Mapping[str, str], digits: int | None = 5) -> str:
    """Values with names and units: "kp = 2.1 V, kd = 0.3"; with all their digits if `digits` is None."""
    shown = {name: f"{value:.{digits}g}" if digits else f"{value!r}" for name, value in values.items()}
    return ", ".join(with_unit(f"{name} = {value}", units.get(name)) for name, value in shown.items())


def event_text(event: Event, settings: Settings, units: Mapping[str, str]) -> str:
    """An entry of the record as a sentence, without who and when; empty for one that this version does not understand."""
    try:
        return _TEXTS.get(event.kind, _unknown)(event.body, settings, units)
    except (LookupError, TypeError, ValueError, AttributeError):
        return ""


Words = Callable[[Mapping[str, Any], Settings, Mapping[str, str]], str]


def _because(text: str, reason: object) -> str:
    return f"{text}: {reason}" if reason else text


def _created(body: Mapping[str, Any], settings: Settings, units: Mapping[str, str]) -> str:
    told = len(body.get("samples", ()))
    return f"The run was made with safebo {body.get('version', '')}" + (f" and {counted(told, 'measurement')}" if told else "")


def _asked(body: Mapping[str, Any], settings: Settings, units: Mapping[str, str]) -> str:
    trial = body["trial"]
    bounds = ", ".join(
        with_unit(f"{name} {low:.4g} to {high:.4g}", units.get(name)) for name, (low, high) in trial["bounds"].items()
    )
    raised = len(trial["refutations"])
    refuted = f"; the data refuted {raised} norm {'bound' if raised == 1 else 'bounds'}" if raised else ""
    return f"Trial {trial['id']}: {values_text(trial['params'], units)}, certified {bounds}{refuted}"


def _told(body: Mapping[str, Any], settings: Settings, units: Mapping[str, str]) -> str:
    point, _, values, trial, *_ = body["sample"]
    params = values_text(dict(zip(settings.domain.names, point, strict=True)), units)
    found = values_text(dict(zip([o.name for o in settings.outputs], values, strict=True)), units)
    of = f"Trial {trial} measured" if trial else "Measured without asking"
    outside = body.get("violated") or {}
    return f"{of}: {found} at {params}" + (f"; OUTSIDE THE LIMIT: {', '.join(outside)}" if outside else "")


def _aborted(body: Mapping[str, Any], settings: Settings, units: Mapping[str, str]) -> str:
    point, _, _, reason, trial = body["abort"]
    params = values_text(dict(zip(settings.domain.names, point, strict=True)), units)
    what = f"Trial {trial}" if trial else "An experiment"
    return _because(f"{what} has no measurement, and others keep away from {params}", reason)


def _trial(text: str) -> Words:
    return lambda body, settings, units: _because(f"Trial {body['trial']} {text}", body.get("reason"))


def _run(text: str) -> Words:
    return lambda body, settings, units: _because(text, body.get("reason"))


def _resumed(body: Mapping[str, Any], settings: Settings, units: Mapping[str, str]) -> str:
    accepted = " although a measurement was outside a limit" if body.get("accepted") else ""
    return _because(f"The run goes on{accepted}", body.get("reason"))


def _stopped(body: Mapping[str, Any], settings: Settings, units: Mapping[str, str]) -> str:
    cause = "by a measurement outside a limit" if body.get("cause") == "violation" else "by a person"
    return _because(f"The run was stopped {cause}", body.get("reason"))


def _exhausted(body: Mapping[str, Any], settings: Settings, units: Mapping[str, str]) -> str:
    return {
        "converged": "The search has converged: no experiment is left that could change the result",
    }.get(body["reason"], f"No certified experiment is left ({str(body['reason']).replace('_', ' ')})")


def _configured(body: Mapping[str, Any], settings: Settings, units: Mapping[str, str]) -> str:
    return "; ".join(_change(key, value, units) for key, value in body["changes"].items())


def _change(key: str, value: Any, units: Mapping[str, str]) -> str:
    if key == "experiments":
        return (
            "The run goes on until nothing is left" if value is None else f"The run makes {counted(value, 'experiment')} in all"
        )
    if key == "confirm":
        return f"Experiments {'need' if value else 'need no'} approval from now on"
    if key == "on_violation":
        return f"A measurement outside a limit {'stops the run' if value == 'stop' else 'does not stop the run'} from now on"
    if key in ("title", "notes"):
        return f"The {key} {'is' if key == 'title' else 'are'} now {value!r}"
    if key == "units":
        return f"The units are now {', '.join(f'{name}: {unit}' for name, unit in value.items()) or 'none'}"
    steps = [(value[step], word) for step, word in (("approved", "was approved"), ("sent", "was handed out")) if value.get(step)]
    if steps:  # the later one is what this entry is about
        step, word = max(steps, key=lambda pair: str(pair[0]["at"]))
        return f"The start {values_text(step['params'], units)} {word}"
    return f"The plant is now {plant_text(value)}"


def _voided(body: Mapping[str, Any], settings: Settings, units: Mapping[str, str]) -> str:
    return _because(f"Measurement {body['number']} was taken back", body.get("reason"))


def _unknown(body: Mapping[str, Any], settings: Settings, units: Mapping[str, str]) -> str:
    return ""


_TEXTS: dict[str, Words] = {
    "created": _created,
    "asked": _asked,
    "approved": _trial("was approved"),
    "rejected": _trial("was rejected"),
    "started": _trial("was handed out to be run"),
    "retried": _trial("was certainly not executed and may be run once more"),
    "withdrawn": _trial("was withdrawn"),
    "told": _told,
    "voided": _voided,
    "aborted": _aborted,
    "exhausted": _exhausted,
    "paused": _run("The run was paused"),
    "resumed": _resumed,
    "stopped": _stopped,
    "configured": _configured,
}

KINDS: Sequence[str] = tuple(_TEXTS)
"""The kinds of entries that have words."""
