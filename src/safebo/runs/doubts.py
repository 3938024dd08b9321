"""Measurements that deserve a second look before they are stored: a typing error ends a run, or misleads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from safebo.optimizer import Trial
from safebo.outputs import Output
from safebo.runs.describe import limits, with_unit

NOISES = 3.0
"""A measurement further outside its certified interval than this many noise standard deviations is surprising."""


def surprising(value: float, interval: tuple[float, float], output: Output) -> bool:
    """Whether a measurement is further outside its certified interval than noise explains."""
    room = NOISES * output.noise
    return not interval[0] - room <= value <= interval[1] + room


def doubts(
    values: Mapping[str, float], trial: Trial | None, outputs: Sequence[Output], units: Mapping[str, str]
) -> dict[str, str]:
    """The values that are outside a limit, or surprising for this trial: output -> what is strange, in words."""
    found = {}
    for output in outputs:
        if output.name not in values:
            continue
        value, unit = values[output.name], units.get(output.name)
        against = []
        if trial is not None and surprising(value, trial.bounds[output.name], output):
            low, high = trial.bounds[output.name]
            against.append(f"certified {low:.4g} to {high:.4g}")
        if not output.satisfied(value):
            against.append(f"must be {limits(output)}")
        if against:
            found[output.name] = f"{output.name}: measured {with_unit(f'{value:.6g}', unit)}, {', '.join(against)}"
    return found
