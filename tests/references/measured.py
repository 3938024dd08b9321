"""What measurements alone say of their points, and which point is the best one to use: written out, point by point."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tests.references.kernels import Array


@dataclass(frozen=True)
class Place:
    """A measured point: its mean and the interval of every output."""

    x: Array
    mean: list[float]
    lower: list[float]
    upper: list[float]


def places(X: Array, values: Array, sigmas: list[float], deltas: list[float], slack: float) -> list[Place]:
    """Every measured point once: mean +- sigma sqrt(2 log(2/delta) / n)."""
    found: list[list[int]] = []
    for i, x in enumerate(X):
        same = [rows for rows in found if all(abs(a - b) <= slack for a, b in zip(X[rows[0]], x, strict=True))]
        if same:
            same[0].append(i)
        else:
            found.append([i])
    result = []
    for rows in found:
        mean = [math.fsum(values[i, j] for i in rows) / len(rows) for j in range(len(sigmas))]
        half = [s * math.sqrt(2.0 * math.log(2.0 / d) / len(rows)) for s, d in zip(sigmas, deltas, strict=True)]
        lower = [m - h for m, h in zip(mean, half, strict=True)]
        upper = [m + h for m, h in zip(mean, half, strict=True)]
        result.append(Place(X[rows[0]], mean, lower, upper))
    return result


def met(low: float, high: float, own_low: float, own_high: float) -> tuple[float, float]:
    """The intersection of two intervals; what spans both where they contradict each other."""
    if max(low, own_low) > min(high, own_high):
        return min(low, own_low), max(high, own_high)
    return max(low, own_low), min(high, own_high)
