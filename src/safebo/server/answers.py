"""From records and arrays to answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from safebo import notices
from safebo.optimizer import Best
from safebo.outputs import guarantee, outside
from safebo.report import scene
from safebo.runs import RunConfig, describe, words
from safebo.runs.ledger import Ledger, Pending
from safebo.runs.starts import next_start
from safebo.server.auth import Caller
from safebo.server.desk import Run
from safebo.server.reader import History
from safebo.server.slices import Cut
from safebo.state import Settings, State

Json = dict[str, Any]


def finite(value: float | None) -> float | None:
    """A number, or None for what JSON cannot say."""
    return None if value is None or not math.isfinite(value) else float(value)


def finites(values: Iterable[float]) -> list[float | None]:
    """Rounded to what a picture shows."""
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in values]


def trial(pending: Pending | None, settings: Settings, confirm: bool) -> Json | None:
    """A pending trial."""
    if pending is None:
        return None
    it, domain = pending.trial, settings.domain
    low, high = domain.from_unit(np.array(it.cube.lower)), domain.from_unit(np.array(it.cube.upper))
    who, when = pending.approved or (None, None)
    return {
        "id": it.id,
        "params": it.params,
        "bounds": {name: {"lower": finite(pair[0]), "upper": finite(pair[1])} for name, pair in it.bounds.items()},
        "norms": {name: finite(norm) for name, norm in it.norms.items()},
        "cube": {name: (float(a), float(b)) for name, a, b in zip(domain.names, low, high, strict=True)},
        "probability": it.confidence,
        "confidence": guarantee(settings.outputs).confidence,
        "refutations": len(it.refutations),
        "asked_at": pending.asked_at,
        "asked_by": pending.asked_by,
        "approved_at": when,
        "approved_by": who,
        "started_at": pending.started_at or None,
        "out": pending.out,
        "waiting": confirm and pending.approved is None and not pending.out,
    }


def pending_of(run: Run, ledger: Ledger) -> Json | None:
    """The pending trial of a run."""
    return trial(ledger.pending, run.reader.settings, ledger.config.confirm)


def start(ledger: Ledger) -> Json | None:
    """The next parameters to start with: a person calls them safe, nothing certifies them."""
    if (found := next_start(ledger)) is None:
        return None
    who, when = found.approved or (None, None)
    return {
        "id": found.id,
        "params": found.params,
        "number": found.number,
        "repeats": ledger.config.plant.get("repeats", 1),
        "approved_by": who,
        "approved_at": when,
        "started_at": found.sent_at or None,
        "out": found.out,
        "waiting": ledger.config.confirm and found.approved is None and not found.out,
    }  # fmt: skip


def standing(run: words.Standing, driver: str) -> Json:
    """A run in one word, and who drives it in a sentence."""
    word, who, text = run.words(driver)
    if who == "nobody":
        text += f"; `safebo resume {run.name}` goes on"
    return {"word": word, "text": text}


def state(run: Run, ledger: Ledger, changed_at: str, caller: Caller, driver: str = "") -> Json:
    """A run, without its data; `driver` is who drives it, empty if nobody does."""
    settings, config = run.reader.settings, ledger.config
    promise = guarantee(settings.outputs)
    bounds, unit = settings.domain.bounds, config.units.get
    return {
        "name": ledger.name,
        "title": config.title,
        "notes": config.notes,
        "status": ledger.status,
        "driver": driver,
        "standing": standing(words.Standing.of(ledger), driver),
        "asked_at": ledger.asked_at or None,
        "reason": reason(ledger),
        "cause": "" if ledger.halt is None else ledger.halt.value,
        "advice": "" if ledger.halt is None else ledger.halt.advice,
        "seq": ledger.seq,
        "created_at": ledger.created.at,
        "created_by": ledger.created.who,
        "changed_at": changed_at,
        "parameters": [{"name": n, "low": a, "high": b, "unit": unit(n, "")} for n, (a, b) in bounds.items()],
        "outputs": [
            {"name": o.name, "lower": o.lower_limit, "upper": o.upper_limit, "noise": o.noise, "unit": unit(o.name, "")}
            for o in settings.outputs
        ],
        "measurements": len(ledger.samples),
        "experiments": ledger.experiments,
        "experiments_wanted": config.experiments,
        "aborted": len(ledger.aborts),
        "violations": list(ledger.violations),
        "voided": [v.number for v in ledger.voided],
        "doubtful": sorted(ledger.doubtful),
        "confirm": config.confirm,
        "on_violation": config.on_violation,
        "probability": promise.probability,
        "confidence": promise.confidence,
        "pending": pending_of(run, ledger),
        "start": start(ledger),
        "you": caller.name,
        "role": caller.role,
    }  # fmt: skip


def cautions(state: State, config: RunConfig) -> list[str]:
    """What deserves a second look before anything moves: in the settings, and in what was measured before."""
    told = [caution.text for caution in notices.scale_cautions(state, state.step, state.step)]
    return [*describe.cautions(state.settings, config.entry(), begun=True), *told]


def reason(ledger: Ledger) -> str:
    """Why nothing is asked for, in words."""
    if ledger.halt is None and ledger.complete:
        return f"All {ledger.config.experiments} experiments were made."
    return ledger.reason


def samples(ledger: Ledger, settings: Settings, after: int) -> Json:
    """Measurements after number `after`; all that were taken back, and all aborted experiments."""
    names, outputs = settings.domain.names, [o.name for o in settings.outputs]

    def measured(number: int, s: Sequence[Any]) -> Json:
        return {
            "number": number,
            "params": dict(zip(names, s[0], strict=True)),
            "values": dict(zip(outputs, s[2], strict=True)),
            "trial": s[3],
            "doubtful": s[3] in ledger.doubtful,
            "outside": bool(outside(settings.outputs, s[2])),
            "context": s[4] if len(s) > 4 else None,
        }

    def aborted(a: Sequence[Any]) -> Json:
        params, after = dict(zip(names, a[0], strict=True)), ledger.numbers[a[2] - 1] if a[2] else 0
        return {"params": params, "after": after, "reason": a[3], "trial": a[4], "rejected": scene.was_rejected(a[3])}

    numbered = zip(ledger.numbers, ledger.samples, strict=True)
    return {
        "seq": ledger.seq,
        "measurements": [measured(number, s) for number, s in numbered if number > after],
        "voided": [{**measured(v.number, v.sample), "reason": v.reason, "who": v.who, "at": v.at} for v in ledger.voided],
        "aborted": [aborted(a) for a in ledger.aborts],
    }


def best(found: Best, measurements: int) -> Json:
    """The best parameters."""
    bounds = {"lower": finite(found.lower), "mean": finite(found.mean), "upper": finite(found.upper)}
    return {"params": found.params, **bounds, "measurements": measurements}


def slice_of(found: Cut, measurements: int, settings: Settings, output: str) -> Json:
    """A slice."""
    axes = [{"name": n, "values": a.tolist()} for n, a in zip(found.names, found.axes, strict=True)]
    limits = next(o for o in settings.outputs if o.name == output)
    return {
        "measurements": measurements,
        "output": output,
        "x": axes[0],
        "y": axes[1] if len(axes) == 2 else None,
        "fixed": found.fixed,
        "mean": finites(found.mean),
        "lower": finites(found.lower),
        "upper": finites(found.upper),
        "safe": found.safe.tolist(),
        "maximisers": None if found.maximisers is None else found.maximisers.tolist(),
        "expanders": None if found.expanders is None else found.expanders.tolist(),
        "limits": {"lower": limits.lower_limit, "upper": limits.upper_limit},
    }


def norms(history: History, measurements: int, settings: Settings, pending: Pending | None, refutations: Sequence[Json]) -> Json:
    """The norm bounds over time; refutations are those that the asked trials carry."""
    outputs = [o.name for o in settings.outputs]
    cubes = {(c.lower, c.upper): i for i, c in enumerate(history.norms)}
    return {
        "measurements": measurements,
        "outputs": outputs,
        "subdomains": [
            {
                "lower": list(cube.lower),
                "upper": list(cube.upper),
                "steps": [step for step, _ in past],
                "norms": {name: finites(values[i] for _, values in past) for i, name in enumerate(outputs)},
            }
            for cube, past in history.norms.items()
        ],
        "certifying": None if pending is None else cubes.get((pending.trial.cube.lower, pending.trial.cube.upper)),
        "refutations": [
            {
                "step": r["step"],
                "output": r["output"],
                "subdomain": cubes.get((tuple(r["cube"][0]), tuple(r["cube"][1]))),
                "norm": finite(r["norm"]),
                "raised_to": finite(r["raised_to"]),
            }
            for r in refutations
        ],
    }
