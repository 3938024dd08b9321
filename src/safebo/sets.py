"""Safe set, maximisers and expanders on a grid, in linear time: pure functions.

Notation
    margin          distance to a limit in measured units, >= 0 inside: l - h (pessimistic) or u - h (optimistic) for a lower
                    limit h; limit - u or limit - l for an upper limit
    B               norm bound of the sub-domain
    d_k, radius     kernel metric and its inverse (see kernels)

A point a covers a' if margin(a) - B d_k(a, a') >= 0, that is, if a' lies in the ball of scaled radius radius(margin(a) / B)
around a. A union of balls is {a' : min_a (|a - a'|^2 - radius(a)^2) <= 0}: one generalised distance transform of the grid.
The nearest point outside the safe set is the same transform with weights 0 and infinity.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safebo.compute import backend
from safebo.domain import Grid
from safebo.kernels import StationaryKernel

FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Below this many pairs one vectorised comparison is cheaper than a loop over seeds.
_PAIRS_AT_ONCE = 100_000

RULES = ("union", "continuity", "confidence")


def covered(
    grid: Grid,
    kernel: StationaryKernel,
    norm: float,
    margin: FloatArray,
    sources: Mask,
    seeds: FloatArray,
    seed_margin: FloatArray,
) -> Mask:
    """Eq. (6) for one limit: grid points covered by a source on the grid, or by a seed off the grid.

    margin (G,) is pessimistic; sources (G,) marks S_{t-1}; seeds (p, n) are measured safe samples with margins (p,).
    """
    scale = kernel.lengthscales(len(grid.shape))
    active = sources & (margin >= 0.0)
    result = np.zeros(grid.size, dtype=bool)
    if active.any():
        weights = np.full(grid.size, np.inf)
        weights[active] = -(kernel.radius(margin[active] / norm) ** 2)
        spacing = grid.spacing / scale
        result = backend().lower_envelope(weights.reshape(grid.shape), spacing).ravel() <= 0.0
    usable = seed_margin >= 0.0
    if usable.any():
        radii = kernel.radius(seed_margin[usable] / norm)
        if grid.size * usable.sum() <= _PAIRS_AT_ONCE:
            result |= (kernel.scaled_distance(seeds[usable], grid.points()) <= radii[:, None]).any(axis=0)
        else:
            block = result.reshape(grid.shape)
            for seed, radius in zip(seeds[usable], radii, strict=True):
                _mark_ball(block, grid, seed, float(radius), scale)
    return result


def _mark_ball(mask: Mask, grid: Grid, centre: FloatArray, radius: float, scale: FloatArray) -> None:
    """Set the grid points within the scaled radius of a centre; only the ball's bounding box is visited."""
    if np.isinf(radius):
        mask[...] = True
        return
    window: list[slice] = []
    squared = np.zeros((1,) * len(scale))
    for axis, (values, middle) in enumerate(zip(grid.axes, centre, strict=True)):
        reach = radius * scale[axis]
        first = max(int(np.searchsorted(values, middle - reach)) - 1, 0)
        last = int(np.searchsorted(values, middle + reach, side="right")) + 1
        window.append(slice(first, last))
        offset = ((values[first:last] - middle) / scale[axis]) ** 2
        squared = squared + offset.reshape([-1 if i == axis else 1 for i in range(len(scale))])
    mask[tuple(window)] |= squared <= radius**2


def outside_distance(grid: Grid, kernel: StationaryKernel, safe: Mask) -> FloatArray:
    """Scaled distance from every grid point to the nearest one outside the safe set; inf if there is none."""
    weights = np.where(safe, np.inf, 0.0).reshape(grid.shape)
    spacing = grid.spacing / kernel.lengthscales(len(grid.shape))
    return np.sqrt(backend().lower_envelope(weights, spacing).ravel())


def expanders(grid: Grid, kernel: StationaryKernel, norm: float, margin: FloatArray, safe: Mask) -> Mask:
    """Eq. (8) for one limit: safe points that, at the optimistic margin (G,), cover a point outside the safe set."""
    result = np.zeros(grid.size, dtype=bool)
    if safe.all():
        return result
    inside = np.flatnonzero(safe & (margin >= 0.0))
    distance = outside_distance(grid, kernel, safe)[inside]
    result[inside] = norm * kernel.metric_of_distance(distance) <= margin[inside]
    return result


def maximisers(upper: FloatArray, safe: Mask, best_lower: float) -> Mask:
    """Eq. (7): safe points whose upper bound reaches the best certified lower bound."""
    return safe & (upper >= best_lower)


def staircase(upper: FloatArray, uncertainty: FloatArray, candidates: NDArray[np.intp]) -> NDArray[np.intp]:
    """The candidates that no other beats in both upper bound and uncertainty, by decreasing upper bound.

    The most uncertain maximiser for ANY best lower bound b is the last of them with upper >= b, so this is all that has to be
    remembered of a grid until its data change.
    """
    order = candidates[np.argsort(-upper[candidates], kind="stable")]
    values = uncertainty[order]
    records = np.ones(len(order), dtype=bool)
    if len(order) > 1:
        records[1:] = values[1:] > np.maximum.accumulate(values)[:-1]
    return order[records]
