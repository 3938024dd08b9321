"""Runs to files and back: CSV with a row per experiment, JSON with everything, and earlier measurements from either."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safebo.exceptions import InvalidValueError
from safebo.optimizer import Trial
from safebo.outputs import OBJECTIVE, guarantee, number
from safebo.runs.ledger import Ledger, trial_of
from safebo.runs.storage import Event
from safebo.state import Settings, State, checked_context

COLUMNS = (
    "event",
    "time",
    "who",
    "kind",
    "trial",
    "inside",
    "confidence",
    "approved_by",
    "approved_at",
    "reason",
    "context",
    "number",
    "doubtful",
)
"""What a CSV file holds beside parameters, outputs, and `<output>.lower` and `<output>.upper`, the certified interval."""

Row = tuple[dict[str, float], float, dict[str, float], dict[str, Any] | None]
"""Parameters, objective, limits, context: one measurement as `Campaign.tell_many` takes it."""


@dataclass(frozen=True)
class Experiment:
    """One experiment of a run's record: measured, aborted or rejected."""

    event: int
    time: str
    who: str
    kind: str  # "measured", "aborted", "rejected", or "voided": a measurement that was taken back
    params: dict[str, float]
    values: dict[str, float] = field(default_factory=dict)
    inside: bool | None = None
    trial: Trial | None = None  # None: nobody asked for it
    approved: tuple[str, str] | None = None  # who, when
    reason: str = ""
    context: dict[str, Any] | None = None
    number: int | None = None  # of a measurement, as it was told
    doubtful: bool = False  # its certificate rested on a measurement that was taken back later


def experiments(ledger: Ledger, events: Iterable[Event]) -> list[Experiment]:
    """All experiments of a run, in the order of its record."""
    settings = ledger.state.settings
    names = [o.name for o in settings.outputs]
    trials: dict[str, Trial] = {}
    approvals: dict[str, tuple[str, str]] = {}
    starts: dict[str, tuple[str, str]] = {}  # approvals of parameters to start with
    rejected: set[str] = set()
    numbers = itertools.count(1)
    voided = {entry.number: entry for entry in ledger.voided}
    found: list[Experiment] = []

    def measured(event: Event, entry: list[Any]) -> Experiment:
        point, _, values, trial, *rest = entry
        params = dict(zip(settings.domain.names, point, strict=True))
        consent = approvals.get(trial) if trial is not None else starts.pop(json.dumps(params, sort_keys=True), None)
        inside = all(o.satisfied(v) for o, v in zip(settings.outputs, values, strict=True))
        number = next(numbers)
        gone = voided.get(number)
        return Experiment(
            event.seq, event.at, event.who, "measured" if gone is None else "voided", params,
            dict(zip(names, values, strict=True)), inside, trials.get(trial), consent, "" if gone is None else gone.reason,
            rest[0] if rest else None, number, trial in ledger.doubtful,
        )  # fmt: skip

    def aborted(event: Event, entry: list[Any]) -> Experiment:
        point, _, _, reason, trial = entry
        return Experiment(
            event.seq, event.at, event.who, "rejected" if trial in rejected else "aborted",
            dict(zip(settings.domain.names, point, strict=True)), {}, None, trials.get(trial), approvals.get(trial), reason,
        )  # fmt: skip

    for event in events:
        body = event.body
        if event.kind == "created":
            found += [measured(event, entry) for entry in body["samples"]]
            found += [aborted(event, entry) for entry in body["aborts"]]
        elif event.kind == "asked":
            trials[body["trial"]["id"]] = trial_of(body["trial"])
        elif event.kind == "approved":
            approvals[body["trial"]] = event.who, event.at
        elif event.kind == "configured" and (given := body["changes"].get("plant", {}).get("approved")):
            starts[json.dumps(given["params"], sort_keys=True)] = given["who"], given["at"]
        elif event.kind == "retried":
            approvals.pop(body["trial"], None)
        elif event.kind == "rejected":
            rejected.add(body["trial"])
        elif event.kind == "told":
            found.append(measured(event, body["sample"]))
        elif event.kind == "aborted":
            found.append(aborted(event, body["abort"]))
    return found


def to_csv(ledger: Ledger, events: Iterable[Event]) -> str:
    """One row per experiment; numbers in full, so that an import gives the same ones."""
    settings = ledger.state.settings
    names = [o.name for o in settings.outputs]
    taken = {*settings.domain.names, *names}
    titles = {column: f"safebo.{column}" if column in taken else column for column in COLUMNS}
    bounds = [f"{name}.{side}" for name in names for side in ("lower", "upper")]
    header = [*list(titles.values())[:5], *settings.domain.names, *names, titles["inside"], *bounds, *list(titles.values())[6:]]
    text = io.StringIO()
    writer = csv.DictWriter(text, header, lineterminator="\n")
    writer.writeheader()
    for e in experiments(ledger, events):
        row: dict[str, Any] = {
            "event": e.event,
            "time": e.time,
            "who": e.who,
            "kind": e.kind,
            "trial": "" if e.trial is None else e.trial.id,
            "inside": "" if e.inside is None else "yes" if e.inside else "no",
            "confidence": "" if e.trial is None else repr(e.trial.confidence),
            "approved_by": e.approved[0] if e.approved else "",
            "approved_at": e.approved[1] if e.approved else "",
            "reason": e.reason,
            "context": "" if e.context is None else json.dumps(e.context),
            "number": "" if e.number is None else str(e.number),
            "doubtful": "yes" if e.doubtful else "",
        }
        plain = {name: repr(value) for name, value in {**e.params, **e.values}.items()}
        certified = {} if e.trial is None else {
            f"{name}.{side}": repr(value)
            for name, pair in e.trial.bounds.items() for side, value in zip(("lower", "upper"), pair, strict=True)
        }  # fmt: skip
        writer.writerow({**{titles[key]: _harmless(value) for key, value in row.items()}, **plain, **certified})
    return text.getvalue()


def _harmless(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets a quote in front."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def to_document(ledger: Ledger, events: Iterable[Event]) -> dict[str, Any]:
    """Everything about a run as plain values; `measurements` can be imported into another one."""
    listed = list(events)
    given = guarantee(ledger.state.outputs)
    return {
        "safebo": listed[0].body.get("version", ""),
        "run": ledger.name,
        "status": ledger.status,
        "reason": ledger.reason,
        "guarantee": {"probability": given.probability, "confidence": given.confidence, "shares": given.shares},
        "config": ledger.config.entry(),
        "source": ledger.source,
        "measurements": [
            {
                "params": e.params,
                "objective": e.values[OBJECTIVE],
                "constraints": {name: v for name, v in e.values.items() if name != OBJECTIVE},
                **({} if e.context is None else {"context": e.context}),
            }
            for e in experiments(ledger, listed)
            if e.kind == "measured"
        ],
        "state": json.loads(ledger.state.to_json()),
        "events": [
            {"seq": e.seq, "kind": e.kind, "at": e.at, "who": e.who, "body": e.body, "digest": e.digest} for e in listed
        ],
    }  # fmt: skip


# -- import ------------------------------------------------------------------------------------------------------------------


def known(rows: Iterable[Row], state: State) -> int:
    """How many of these measurements a state has already: the same parameters and the same values."""
    names = [o.name for o in state.outputs]
    told = {(sample.point, sample.values) for sample in state.samples}
    found = 0
    for params, objective, constraints, _ in rows:
        point = tuple(state.settings.domain.point(params).tolist())
        found += (point, (objective, *(constraints[name] for name in names[1:]))) in told
    return found


def read_measurements(path: str | Path, settings: Settings) -> list[Row]:
    """All measurements of a CSV or JSON file, checked against a run's parameters and outputs; if one is wrong, an error."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"{path} is not a text file in UTF-8: {error}.") from None
    if file.suffix.lower() == ".json" or text.lstrip()[:1] in ("{", "["):
        return from_json(text, settings, str(path))
    return from_csv(text, settings, str(path))


def from_csv(text: str, settings: Settings, file: str = "CSV") -> list[Row]:
    """Measurements from a table whose columns are named after parameters and outputs.

    The columns of `to_csv` are understood: rows that are not measurements are left out, `context` is kept.
    """
    outputs = [o.name for o in settings.outputs]
    wanted = [*settings.domain.names, *outputs]
    reader = csv.DictReader(io.StringIO(text), strict=True)
    try:
        columns = [column.strip() for column in reader.fieldnames or []]
        reader.fieldnames = columns
        extra = {*COLUMNS, *(f"safebo.{c}" for c in COLUMNS), *(f"{n}.{side}" for n in outputs for side in ("lower", "upper"))}
        missing = [name for name in wanted if name not in columns]
        unknown = [column for column in columns if column not in wanted and column not in extra]
        if missing or unknown or len(set(columns)) != len(columns):
            raise InvalidValueError(
                f"{file}:1: the columns must be named {wanted} (and may be among {', '.join(COLUMNS)}): missing {missing}, "
                f"unknown {unknown}{'' if len(set(columns)) == len(columns) else ', some twice'}."
            )
        own = {name: name if name not in wanted else f"safebo.{name}" for name in ("kind", "context")}
        rows: list[Row] = []
        for entry in reader:
            where = f"{file}:{reader.line_num}"
            if None in entry or any(entry[name] is None for name in wanted):
                raise InvalidValueError(f"{where}: the row must have {len(columns)} values like the first one.")
            if (entry.get(own["kind"]) or "measured") != "measured":
                continue
            values = {name: _number(entry[name], f"{where}: {name}") for name in wanted}
            context = _context(entry.get(own["context"]), where)
            rows.append(
                _row({n: values[n] for n in settings.domain.names}, {n: values[n] for n in outputs}, context, settings, where)
            )
    except csv.Error as error:
        raise InvalidValueError(f"{file}:{reader.line_num}: not a CSV file: {error}.") from None
    return rows


def _number(text: str, name: str) -> float:
    try:
        return number(float(text), name)
    except ValueError as error:
        raise (
            error if isinstance(error, InvalidValueError) else InvalidValueError(f"{name} must be a number, got {text!r}.")
        ) from None


def _context(text: str | None, where: str) -> dict[str, Any] | None:
    if not text:
        return None
    try:
        return checked_context(json.loads(text))
    except RecursionError:
        raise InvalidValueError(f"{where}: the context is nested too deeply: write what lies deeper as text.") from None
    except ValueError as error:
        raise InvalidValueError(f"{where}: the context must be a JSON object, got {text!r:.100}: {error}") from None


def _row(
    params: Mapping[str, Any], values: Mapping[str, Any], context: dict[str, Any] | None, settings: Settings, where: str
) -> Row:
    try:
        point = settings.domain.as_dict(settings.domain.point(dict(params)))
        checked = {name: number(value, name) for name, value in values.items()}
    except InvalidValueError as error:
        raise InvalidValueError(f"{where}: {error}") from None
    return point, checked.pop(OBJECTIVE), checked, context


def _beginning(entry: object) -> str:
    try:
        return f"{entry!r:.200}"
    except RecursionError:
        return "something that is nested too deeply"


def from_json(text: str, settings: Settings, file: str = "JSON") -> list[Row]:
    """Measurements from a list of {"params": {..}, "objective": .., "constraints": {..}}, or from what `to_document` wrote."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"{file} is not JSON: {error}.") from None
    entries = content.get("measurements") if isinstance(content, dict) else content
    if not isinstance(entries, list):
        raise InvalidValueError(f'{file} must hold a list of measurements, or an object with "measurements".')
    limits = [o.name for o in settings.outputs if o.name != OBJECTIVE]
    rows = []
    for i, entry in enumerate(entries, 1):
        where = f"{file}: measurement {i}"
        if not isinstance(entry, dict) or set(entry) - {"context", "constraints"} != {"params", OBJECTIVE}:
            raise InvalidValueError(
                f'{where} must have "params", "objective", and "constraints" or "context", got {_beginning(entry)}.'
            )
        given, params = entry.get("constraints") or {}, entry["params"]
        if not isinstance(params, dict) or not isinstance(given, dict) or set(given) != set(limits):
            raise InvalidValueError(
                f"{where}: params and constraints map names to values, constraints are {limits}, got {_beginning(entry)}."
            )
        context = entry.get("context")
        try:
            noted = None if context is None else checked_context(context)
        except InvalidValueError as error:
            raise InvalidValueError(f"{where}: {error}") from None
        rows.append(_row(params, {OBJECTIVE: entry[OBJECTIVE], **given}, noted, settings, where))
    return rows
