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
from safebo.domain import Box, GlobalDomain, LocalCubes, Locality, SampleHull
from safebo.exceptions import InvalidValueError
from safebo.kernels import RBF, Matern
from safebo.norms import Fixed, Hoeffding, NormEstimator, Scenario
from safebo.outputs import Output

FloatArray = NDArray[np.float64]

FORMAT = 1

_TYPES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        AbbasiYadkori,
        MartingaleMixture,
        Paper,
        GlobalDomain,
        LocalCubes,
        SampleHull,
        RBF,
        Matern,
        Fixed,
        Hoeffding,
        Scenario,
        Output,
    )
}


def register(cls: type) -> type:
    """Class decorator: let states with this frozen dataclass (a norm estimator, bound, locality, ...) travel through JSON."""
    if not is_dataclass(cls):
        raise InvalidValueError(f"Only dataclasses can be registered, got {cls!r}.")
    _TYPES[cls.__name__] = cls
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


@dataclass(frozen=True)
class Sample:
    """One told measurement: the point in user units and in the unit cube, a value per output, and the trial it answers."""

    point: tuple[float, ...]
    x: tuple[float, ...]
    values: tuple[float, ...]
    trial: str | None


@dataclass(frozen=True)
class NormRecord:
    """The raw norm estimates that one executed trial was certified with: (cube number, one estimate per output)."""

    step: int
    estimates: tuple[tuple[int, tuple[float, ...]], ...]


@dataclass(frozen=True)
class State:
    """Settings, samples and norm history."""

    settings: Settings
    samples: tuple[Sample, ...] = ()
    records: tuple[NormRecord, ...] = ()

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
        """A short fingerprint of seed and data: trials carry it, so that a foreign or stale trial is recognised."""
        content = json.dumps([self.settings.seed, [(s.x, s.values) for s in self.samples]])
        return hashlib.sha256(content.encode()).hexdigest()[:10]

    def told(self, sample: Sample, record: NormRecord | None) -> State:
        """The state after one more measurement."""
        records = self.records if record is None else (*self.records, record)
        return replace(self, samples=(*self.samples, sample), records=records)

    def to_json(self) -> str:
        """The whole state as JSON text."""
        settings = {f.name: encode(getattr(self.settings, f.name)) for f in fields(Settings)}
        return json.dumps(
            {
                "safebo": FORMAT,
                "settings": settings,
                "samples": [[s.point, s.x, s.values, s.trial] for s in self.samples],
                "records": [[r.step, [[c, list(e)] for c, e in r.estimates]] for r in self.records],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> State:
        """The inverse of `to_json`."""
        try:
            content = json.loads(text)
        except (TypeError, json.JSONDecodeError) as error:
            raise InvalidValueError(f"Not a safebo state: {error}.") from None
        if not isinstance(content, dict) or content.get("safebo") != FORMAT:
            found = content.get("safebo") if isinstance(content, dict) else None
            raise InvalidValueError(f"Not a safebo state of format {FORMAT}: found format {found!r}.")
        try:
            settings = Settings(**{key: decode(value) for key, value in content["settings"].items()})
            samples = tuple(Sample(tuple(p), tuple(x), tuple(v), trial) for p, x, v, trial in content["samples"])
            records = tuple(NormRecord(step, tuple((c, tuple(e)) for c, e in entries)) for step, entries in content["records"])
        except (KeyError, TypeError) as error:
            raise InvalidValueError(f"The JSON state is incomplete or damaged: {error!r}.") from None
        return cls(settings, samples, records)
