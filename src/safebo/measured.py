"""What a measurement alone says of the point where it was made: no norm, no kernel, no sub-domain.

The noise of a measurement is sub-Gaussian with parameter sigma, so the mean m of n measurements of one point satisfies

    |f(x) - m| <= sigma sqrt(2 log(2 / delta) / n)      with probability at least 1 - delta

for a number n that was not chosen by looking at the values. Wherever an interval of a sub-domain is shown for a measured point,
it is intersected with this one: a norm that is far too large cannot take the certificate of a point that was measured well
inside its limits. The intersection holds if both do: it fails with probability at most 2 delta (docs/guarantees.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safebo.outputs import Output
from safebo.state import State

FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Measured:
    """The measured points of the unit cube, each once, with the interval that its measurements alone give every output."""

    x: FloatArray  # (k, n), where each was measured first
    mean: FloatArray  # (k, outputs)
    lower: FloatArray  # (k, outputs)
    upper: FloatArray  # (k, outputs)
    slack: float  # points no further apart than this along every axis are one

    def intersected(self, points: FloatArray, output: int, lower: FloatArray, upper: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Intervals (p,) of one output at points (p, n), intersected with those of their own measurements.

        Where the two contradict each other, the interval that spans both.
        """
        found = self.index_of(points)
        at = np.flatnonzero(found >= 0)
        own_lower, own_upper = self.lower[found[at], output], self.upper[found[at], output]
        inner_lower, inner_upper = np.maximum(lower[at], own_lower), np.minimum(upper[at], own_upper)
        crossed = inner_lower > inner_upper
        lower, upper = lower.copy(), upper.copy()
        lower[at] = np.where(crossed, np.minimum(lower[at], own_lower), inner_lower)
        upper[at] = np.where(crossed, np.maximum(upper[at], own_upper), inner_upper)
        return lower, upper

    def certified(self, points: FloatArray, outputs: tuple[Output, ...]) -> Mask:
        """Which points (p, n) were measured inside every limit by more than the noise explains."""
        found = self.index_of(points)
        safe = np.ones(len(self.x), dtype=bool)
        for i, output in enumerate(outputs):
            if output.lower_limit is not None:
                safe &= self.lower[:, i] >= output.lower_limit
            if output.upper_limit is not None:
                safe &= self.upper[:, i] <= output.upper_limit
        result = np.zeros(len(points), dtype=bool)
        result[found >= 0] = safe[found[found >= 0]]
        return result

    def inside(self, outputs: tuple[Output, ...]) -> Mask:
        """Of which points (k,) the measurements, on average, lie inside every limit."""
        rows = [all(o.satisfied(float(v)) for o, v in zip(outputs, row, strict=True)) for row in self.mean]
        return np.array(rows, dtype=bool)

    def index_of(self, points: FloatArray) -> NDArray[np.intp]:
        """Which measured point each of the points is, (p,); -1 where nothing was measured."""
        return _nearest(self.x, points, self.slack)


def measured_points(state: State, slack: float) -> Measured:
    """The measured points of a state."""
    x, values = state.x(), state.values()
    first: list[int] = []
    which = np.empty(len(x), dtype=np.intp)
    for i in range(len(x)):
        known = int(_nearest(x[first], x[[i]], slack)[0])
        which[i] = len(first) if known < 0 else known
        first += [i] if known < 0 else []
    repeats = np.bincount(which, minlength=len(first))
    mean = np.stack([np.bincount(which, weights=column, minlength=len(first)) / repeats for column in values.T], axis=1)
    radius = np.array([output.noise * math.sqrt(2.0 * math.log(2.0 / output.delta)) for output in state.outputs])
    half = radius / np.sqrt(repeats)[:, None]
    return Measured(x[first], mean, mean - half, mean + half, slack)


def _nearest(places: FloatArray, points: FloatArray, slack: float) -> NDArray[np.intp]:
    """Which of the places (k, n) each of the points (p, n) is, up to rounding; -1 if it is none of them."""
    result = np.full(len(points), -1, dtype=np.intp)
    for i, place in enumerate(places):
        result[(np.abs(points - place) <= slack).all(axis=1) & (result < 0)] = i
    return result
