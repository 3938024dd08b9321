"""The frozen state of an optimization: settings, data, norm history. It alone determines the next trial.

`to_json` and `from_json` are exact: floats are written with all digits that matter, and no pickle is involved. Grids, posteriors
and intervals are not stored; they are rebuilt from the data and the recorded norm estimates, to the same bits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safebo.bounds import AbbasiYadkori, MartingaleMixture, Paper
from safebo.domain import Box, DoublingCubes, GlobalDomain, LocalCubes, Locality, SampleHull, resolve_points_per_axis
from safebo.exceptions import InvalidValueError
from safebo.kernels import RBF, Matern
from safebo.nesting import DEEPEST, deeper, loads, whole
from safebo.norms import AdaptiveScenario, Fixed, Hoeffding, LSTMNorm, NormEstimator, PosteriorScenario, Scenario
from safebo.norms.base import check_served, count, positive, provides
from safebo.outputs import Output, number
from safebo.sets import RULES

FloatArray = NDArray[np.float64]

FORMAT = 1

SHORTEST = 1e-6
"""Lengthscales below this are refused."""

LONGEST_CONTEXT = 20_000
"""Characters of a measurement's context at most."""

ACQUISITIONS = ("balanced", "directed", "joint", "paper")

_TYPES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        AbbasiYadkori,
        MartingaleMixture,
        Paper,
        DoublingCubes,
        GlobalDomain,
        LocalCubes,
        SampleHull,
        RBF,
        Matern,
        AdaptiveScenario,
        PosteriorScenario,
        Fixed,
        Hoeffding,
        LSTMNorm,
        Scenario,
        Output,
    )
}


def register(cls: type) -> type:
    """Class decorator: let states with this frozen dataclass (a norm estimator, bound, locality, ...) travel through JSON."""
    if not is_dataclass(cls):
        raise InvalidValueError(f"Only dataclasses can be registered, got {cls!r}.")
    known = _TYPES.setdefault(cls.__name__, cls)
    if (known.__module__, known.__qualname__) == (cls.__module__, cls.__qualname__):
        _TYPES[cls.__name__] = cls  # the same class, defined again: a reloaded module, a notebook cell
    elif known is not cls:
        raise InvalidValueError(f"The name {cls.__name__!r} belongs to {known!r} already: rename {cls!r}.")
    return cls


def encode(value: Any) -> Any:
    """Settings -> plain JSON values."""
    if isinstance(value, Box):
        return {"type": "Box", "bounds": {name: list(pair) for name, pair in value.bounds.items()}}
    if is_dataclass(value) and not isinstance(value, type):
        name = type(value).__name__
        if _TYPES.get(name) is not type(value):
            raise InvalidValueError(f"{type(value)!r} cannot be written to JSON: decorate it with safebo.register.")
        return {"type": name, **{f.name: encode(getattr(value, f.name)) for f in fields(value) if f.init}}
    if isinstance(value, (tuple, list)):
        return [encode(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InvalidValueError(f"{value!r} cannot be written to JSON.")


def decode(value: Any) -> Any:
    """The inverse of `encode`; lists become tuples."""
    if isinstance(value, Mapping):
        arguments = dict(value)
        name = arguments.pop("type", None)
        if name == "Box":
            return Box({key: (pair[0], pair[1]) for key, pair in arguments["bounds"].items()})
        if name not in _TYPES:
            raise InvalidValueError(f"Unknown type {name!r} in the JSON state: import the module that registers it first.")
        return _TYPES[name](**{key: decode(v) for key, v in arguments.items()})
    return tuple(decode(v) for v in value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Settings:
    """What never changes during a run."""

    domain: Box
    outputs: tuple[Output, ...]
    locality: Locality
    shape: tuple[int, ...]
    safe_set: str
    acquisition: str
    falsify: bool
    margin: float
    screening: NormEstimator | None
    memory_budget: int
    seed: int
    stride: float | None
    abort_radius: float

    def __post_init__(self) -> None:
        if not isinstance(self.domain, Box):
            raise InvalidValueError(f"domain must be a Box, got {self.domain!r}.")
        outputs = self.outputs if isinstance(self.outputs, tuple) else ()
        if not outputs or not all(isinstance(o, Output) for o in outputs) or not any(o.is_limit for o in outputs):
            raise InvalidValueError(f"There must be an objective, and at least one output must be limited, got {self.outputs!r}.")
        for output in outputs:
            if (shortest := float(output.kernel.lengthscales(self.domain.dim).min())) < SHORTEST:
                raise InvalidValueError(
                    f"No grid resolves the lengthscale {shortest:g} of {output.name!r}: at least {SHORTEST:g}."
                )
            check_served(output.norm, output.kernel, self.domain.dim)
        if not provides(self.locality, "cubes"):
            raise InvalidValueError(
                f"cubes must be 'auto', LocalCubes(n, delta), another locality or None, got {self.locality!r}."
            )
        if self.screening is not None and not provides(self.screening, "estimate"):
            raise InvalidValueError(f"screening must be a norm estimator or None, got {self.screening!r}.")
        if self.safe_set not in RULES:
            raise InvalidValueError(f"safe_set must be one of {list(RULES)}, got {self.safe_set!r}.")
        if self.acquisition not in ACQUISITIONS:
            raise InvalidValueError(f"acquisition must be 'auto' or one of {list(ACQUISITIONS)}, got {self.acquisition!r}.")
        if not isinstance(self.falsify, (bool, np.bool_)):
            raise InvalidValueError(f"falsify must be True or False, got {self.falsify!r}.")
        if not isinstance(self.shape, tuple):
            raise InvalidValueError(f"The grid's shape must be a tuple of points per axis, got {self.shape!r}.")
        margin = number(self.margin, "refutation_margin")
        if not margin > 1.0:
            raise InvalidValueError(f"refutation_margin must exceed 1, got {self.margin!r}.")
        checked = {
            "shape": resolve_points_per_axis(self.shape, self.domain.dim),
            "falsify": bool(self.falsify),
            "margin": margin,
            "stride": None if self.stride is None else positive(self.stride, "stride"),
            "abort_radius": _radius(self.abort_radius),
            "memory_budget": count(self.memory_budget, "memory_budget", 0),
            "seed": count(self.seed, "seed", 0),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def entry(self) -> dict[str, Any]:
        """Its part of the JSON state."""
        return {f.name: encode(getattr(self, f.name)) for f in fields(self)}


@dataclass(frozen=True)
class Sample:
    """One told measurement: the point in user units and in the unit cube, a value per output, and the trial it answers.

    `context` is what else was noted with it (room temperature, operator, battery): plain JSON values, kept and never
    computed with.
    """

    point: tuple[float, ...]
    x: tuple[float, ...]
    values: tuple[float, ...]
    trial: str | None
    context: dict[str, Any] | None = None

    def entry(self) -> list[Any]:
        """Its line in the JSON state."""
        context = [] if self.context is None else [self.context]
        return [list(self.point), list(self.x), list(self.values), self.trial, *context]


@dataclass(frozen=True)
class Abort:
    """An experiment that did not end with a measurement: nothing is learned from it, and no experiment follows close to it."""

    point: tuple[float, ...]
    x: tuple[float, ...]
    step: int  # samples there were when it happened
    reason: str
    trial: str | None

    def entry(self) -> list[Any]:
        """Its line in the JSON state."""
        return [list(self.point), list(self.x), self.step, self.reason, self.trial]


@dataclass(frozen=True)
class NormRecord:
    """The raw norm estimates that one executed trial was certified with: (cube number, one estimate per output)."""

    step: int
    estimates: tuple[tuple[int, tuple[float, ...]], ...]

    def entry(self) -> list[Any]:
        """Its line in the JSON state."""
        return [self.step, [[cube, list(norms)] for cube, norms in self.estimates]]


@dataclass(frozen=True)
class State:
    """Settings, samples, norm history and aborted experiments."""

    settings: Settings
    samples: tuple[Sample, ...] = ()
    records: tuple[NormRecord, ...] = ()
    aborts: tuple[Abort, ...] = ()

    @property
    def step(self) -> int:
        """Number of samples t."""
        return len(self.samples)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The named outputs, the objective first."""
        return self.settings.outputs

    def x(self) -> FloatArray:
        """Samples in the unit cube, (t, n)."""
        return np.array([s.x for s in self.samples], dtype=np.float64).reshape(self.step, self.settings.domain.dim)

    def values(self) -> FloatArray:
        """Measurements, (t, outputs)."""
        return np.array([s.values for s in self.samples], dtype=np.float64).reshape(self.step, len(self.outputs))

    def inside(self) -> NDArray[np.bool_]:
        """Which samples were measured inside every limit, (t,)."""
        return np.array(
            [all(o.satisfied(v) for o, v in zip(self.outputs, s.values, strict=True)) for s in self.samples], dtype=bool
        )

    def digest(self) -> str:
        """A short fingerprint of seed and history: trials carry it, so that a foreign or stale trial is recognised."""
        samples = [(s.x, s.values, s.trial) for s in self.samples]
        aborts = [(a.x, a.step, a.trial) for a in self.aborts]
        content = json.dumps([self.settings.seed, samples, [record.entry() for record in self.records], aborts])
        return hashlib.sha256(content.encode()).hexdigest()[:10]

    def told(self, sample: Sample, record: NormRecord | None) -> State:
        """The state after one more measurement.

        The record of a trial that was asked for early and told late goes where it belongs: records are ordered by their steps.
        """
        records = self.records
        if record is not None:
            later = sum(known.step > record.step for known in records)
            position = len(records) - later
            records = (*records[:position], record, *records[position:])
        return replace(self, samples=(*self.samples, sample), records=records)

    def without(self, index: int) -> State:
        """The state without sample number `index`, counted from 0: what was estimated with it is forgotten too."""
        if not 0 <= index < self.step:
            raise InvalidValueError(f"There is no measurement {index + 1}: there are {self.step}.")
        samples = (*self.samples[:index], *self.samples[index + 1 :])
        records = tuple(record for record in self.records if record.step <= index)
        aborts = tuple(replace(abort, step=abort.step - (abort.step > index)) for abort in self.aborts)
        state = replace(self, samples=samples, records=records, aborts=aborts)
        if samples and not state.inside()[0]:
            raise InvalidValueError(
                f"Measurement {index + 1} cannot be taken back: the one after it, {samples[0].values}, is outside the limits, "
                "and the first measurement must be a safe one. Take that one back first."
            )
        return state

    def aborted(self, abort: Abort) -> State:
        """The state after one more aborted experiment."""
        return replace(self, aborts=(*self.aborts, abort))

    def blocked(self, points: FloatArray) -> NDArray[np.bool_]:
        """Points (p, n) of the unit cube that an aborted experiment rules out, by the distance of some limit's kernel.

        Those within `abort_radius` lengthscales of it, and no nearer to what had been measured inside every limit by then:
        so close to good measurements it is rather the rig that failed than the parameters.
        """
        result, x, inside = np.zeros(len(points), dtype=bool), self.x(), self.inside()
        for abort in self.aborts if len(points) else ():
            known = x[: abort.step][inside[: abort.step]]
            for kernel in [o.kernel for o in self.outputs if o.is_limit]:
                away = kernel.scaled_distance(points, np.array([abort.x]))[:, 0]
                nearest = kernel.scaled_distance(points, known).min(axis=1) if len(known) else np.inf
                result |= (away <= self.settings.abort_radius) & (away <= nearest)
        return result

    def to_json(self) -> str:
        """The whole state as JSON text."""
        return json.dumps(
            {
                "safebo": FORMAT,
                "settings": self.settings.entry(),
                "samples": [sample.entry() for sample in self.samples],
                "records": [record.entry() for record in self.records],
                "aborts": [abort.entry() for abort in self.aborts],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> State:
        """The inverse of `to_json`."""
        try:
            content = loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidValueError(f"Not a safebo state: {error}.") from None
        if not isinstance(content, dict) or content.get("safebo") != FORMAT:
            found = content.get("safebo") if isinstance(content, dict) else None
            raise InvalidValueError(f"Not a safebo state of format {FORMAT}: found format {found!r}.")
        try:
            settings = Settings(**{key: decode(value) for key, value in content["settings"].items()})
            samples = tuple(sample_of(entry, settings) for entry in content["samples"])
            records = tuple(record_of(entry, len(settings.outputs)) for entry in content["records"])
            aborts = tuple(abort_of(entry, settings) for entry in content["aborts"])
        except InvalidValueError:
            raise
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise InvalidValueError(f"The JSON state is incomplete or damaged: {error!r}.") from None
        state = cls(settings, samples, records, aborts)
        _check_history(state)
        return state


def checked_context(value: object, *, new: bool = True) -> dict[str, Any]:
    """A validated copy of a measurement's context: a mapping of plain JSON values, of at most `LONGEST_CONTEXT` characters.

    new   it is about to be told; one that was stored before there were limits of depth and text is taken as it is
    """
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidValueError(f"A context maps names to plain values, got {_shown(value)}.")
    if new and deeper(value, DEEPEST):
        raise InvalidValueError(f"A context is nested at most {DEEPEST} levels deep: write what lies deeper as text.")
    try:
        text = json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValueError(
            f"A context holds numbers, text, lists and mappings only, got {_shown(value)}: {error}."
        ) from None
    if new and not whole(json.dumps(dict(value), ensure_ascii=False)):
        raise InvalidValueError(f"A context holds whole characters only, got half of one (a surrogate): {text!r:.200}.")
    if len(text) > LONGEST_CONTEXT:
        raise InvalidValueError(f"A context has at most {LONGEST_CONTEXT} characters as JSON, got {len(text)}.")
    result: dict[str, Any] = json.loads(text)
    return result


def _shown(value: object) -> str:
    """The beginning of a value, whatever it is."""
    try:
        return f"{value!r:.200}"
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply"


def _numbers(values: Any, length: int, what: str) -> tuple[float, ...]:
    if not isinstance(values, list) or len(values) != length:
        raise InvalidValueError(f"The JSON state is damaged: {what} must be {length} number(s), got {values!r}.")
    return tuple(number(v, f"{what} in the JSON state") for v in values)


def _radius(value: object) -> float:
    radius = number(value, "abort_radius")
    if radius < 0.0:
        raise InvalidValueError(f"abort_radius must be >= 0, got {value!r}.")
    return radius


def _place(point: Any, x: Any, trial: Any, settings: Settings) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """A point in user units and in the unit cube, which must agree."""
    dim = settings.domain.dim
    told = _numbers(point, dim, "a sample's parameters")
    unit = _numbers(x, dim, "a sample's point in the unit cube")
    if np.abs(settings.domain.to_unit(settings.domain.point(told)) - unit).max() > settings.domain.rounding:
        raise InvalidValueError(f"The JSON state is damaged: {point!r} is not {x!r} in the unit cube.")
    if trial is not None and not isinstance(trial, str):
        raise InvalidValueError(f"The JSON state is damaged: a trial's id is a string, got {trial!r}.")
    return told, unit


def sample_of(entry: Any, settings: Settings) -> Sample:
    """The inverse of `Sample.entry`, validated."""
    point, x, values, trial, *rest = entry
    place = _place(point, x, trial, settings)
    values = _numbers(values, len(settings.outputs), "a sample's measurements")
    return Sample(*place, values, trial, checked_context(*rest, new=False) if rest else None)


def abort_of(entry: Any, settings: Settings) -> Abort:
    """The inverse of `Abort.entry`, validated."""
    point, x, step, reason, trial = entry
    if not isinstance(reason, str):
        raise InvalidValueError(f"The JSON state is damaged: the reason of an abort is text, got {reason!r}.")
    return Abort(*_place(point, x, trial, settings), count(step, "an abort's step", 0), reason, trial)


def record_of(entry: Any, outputs: int) -> NormRecord:
    """The inverse of `NormRecord.entry`, validated."""
    step, estimates = entry
    checked = []
    for cube, norms in estimates:
        values = _numbers(norms, outputs, "recorded norms")
        checked.append((count(cube, "a cube's number", 0), tuple(positive(v, "a recorded norm") for v in values)))
    return NormRecord(count(step, "a record's step"), tuple(checked))


def _check_history(state: State) -> None:
    """The first sample must be safe; every record must belong to a step of the state and to cubes that existed at it."""
    if state.step and not state.inside()[0]:
        raise InvalidValueError(f"The JSON state is damaged: its first sample {state.samples[0].values} is outside the limits.")
    x, last = state.x(), 1
    for record in state.records:
        cubes = state.settings.locality.cubes(x[: record.step])
        if not last <= record.step <= state.step or any(cube >= len(cubes) for cube, _ in record.estimates):
            raise InvalidValueError(f"The JSON state is damaged: its norm record of step {record.step} does not fit its samples.")
        last = record.step
    if any(abort.step > state.step for abort in state.aborts):
        raise InvalidValueError(f"The JSON state is damaged: an abort belongs to a step beyond the {state.step} samples.")
