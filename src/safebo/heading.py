"""Where to head for: the certified experiment on the way to the most promising place. Ours; it ranks, it never certifies.

Measuring where one is most uncertain fills the whole safe set before it leads anywhere, which in several dimensions nobody can
afford. Here every output has an outlook, a Gaussian process with all samples, and the experiment is a step of a plan:

    nodes        points that fill the domain evenly, each joined to its neighbours
    candidates   certified points of all sub-domains, within the stride, that are not next to a sample (`novelty`)
    gain         expected improvement on the best sample, at nodes and candidates
    way          from the candidates over the nodes; what a lengthscale of it costs: `prices`

The node or candidate with the largest log(gain) - way is the destination. What is measured is the certified point nearest to the
node at which the way there starts. Where a way turns out to be blocked, samples soon are everywhere at its start, other
candidates are farther away, and the plan changes.

Two covariances. The outlook's is k convolved with itself: draws of a Gaussian process with covariance k are rougher than any
function of the space, and would see something to gain everywhere; those of the convolution lie in it. Novelty is that of k,
because certificates are: where the outlook is sure of a passage, the certified set has yet to be pushed through it, step by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.special import log_ndtr

from safebo.domain import Grid
from safebo.kernels import StationaryKernel, convolved
from safebo.norms.base import even_points
from safebo.outputs import Output

FloatArray = NDArray[np.float64]
Indices = NDArray[np.intp]

NODES = 2048
"""Points that stand for the domain."""

PER_CUBE = 64
"""Certified points of every sub-domain that are considered."""

CAUTION = 3.0
"""What a lengthscale costs more where safety is less likely by a factor of e."""

NARROW = 0.3
"""What a lengthscale costs more where a limit is one standard deviation of the output away: narrow passages take long."""

NARROWEST = 0.05
"""Smaller margins, in the same unit, cost as much as this one."""

FIRST_LEG = 0.5
"""Lengthscales from a candidate within which ways may start in a straight line; from there they go from node to node."""

NOVELTY = 0.1
"""Candidates have at least this power function: the standard deviation given noise-free samples, relative to the prior's."""

LEAST_GAIN = 0.05
"""Improvements below this fraction of the measured range are not sought."""

_BAND = 2.5  # standard deviations on both sides that an interval is taken to have
_FLOOR = 1e-6  # smallest regulariser relative to the variance
_BLOCK = 128  # points whose novelty is looked at first
_GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)


@dataclass(frozen=True, eq=False)
class Outlook:
    """What to expect of one output, given all samples: mean and standard deviation anywhere."""

    correlation: Callable[[FloatArray, FloatArray], FloatArray]
    x: FloatArray  # (t, n)
    chol: FloatArray  # of the correlations of the samples, with their noise
    white: FloatArray  # (t,)
    scale: float  # prior standard deviation

    @classmethod
    def of(cls, kernel: StationaryKernel, x: FloatArray, y: FloatArray, noise: float) -> Outlook:
        """The scale is learned with the rest: as if one more sample of the kernel's own scale had been seen."""
        correlation = convolved(kernel, x.shape[1])
        gram, variance = correlation(x, x), kernel.outputscale
        for _ in range(5):
            chol = cholesky(gram + max(noise**2 / variance, _FLOOR) * np.eye(len(y)), lower=True, check_finite=False)
            white = solve_triangular(chol, y, lower=True, check_finite=False)
            variance = (float(white @ white) + kernel.outputscale) / (len(y) + 1)
        return cls(correlation, x, chol, white, math.sqrt(variance))

    def at(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation at points (p, n)."""
        basis = solve_triangular(self.chol, self.correlation(self.x, points), lower=True, check_finite=False)
        variance = np.maximum(1.0 - np.einsum("tp,tp->p", basis, basis), 1e-12)
        return basis.T @ self.white, self.scale * np.sqrt(variance)


def step_towards(
    outputs: Sequence[Output],
    x: FloatArray,
    values: FloatArray,
    inside: NDArray[np.bool_],
    places: Sequence[tuple[Grid, Indices]],
    blocked: Callable[[FloatArray], NDArray[np.bool_]] | None = None,
) -> tuple[int, FloatArray] | None:
    """The next step of the plan: which of the places, and the point there. None if nothing new can be learned at any candidate.

    x (t, n) and values (t, outputs) are all samples, inside (t,) marks those within the limits, of which there is one. places:
    the grids of the sub-domains and which of their points may be measured. blocked: which points are no destination.
    """
    found = [(i, grid.at(spread(index))) for i, (grid, index) in enumerate(places) if len(index)]
    if not found:
        return None
    points, owner = np.concatenate([p for _, p in found]), np.repeat([i for i, _ in found], [len(p) for _, p in found])
    outlooks = [Outlook.of(o.kernel, x, np.ascontiguousarray(values[:, i]), o.noise) for i, o in enumerate(outputs)]

    def is_new(points: FloatArray) -> NDArray[np.bool_]:
        new = np.zeros(len(points), dtype=bool)
        for output, outlook in zip(outputs, outlooks, strict=True):
            new |= novelty(output.kernel, x, points) >= max(NOVELTY, output.min_width / (2.0 * _BAND * outlook.scale))
        return new

    new = is_new(points)
    if not new.any():
        return None
    points, owner = points[new], owner[new]
    nodes, lengthscales = even_points(x.shape[1], NODES), outputs[0].kernel.lengthscales(x.shape[1])
    there = [outlook.at(nodes) for outlook in outlooks]
    aim = float(outlooks[0].at(x[inside])[0].max()) + LEAST_GAIN * float(np.ptp(values[inside, 0])) + outputs[0].noise
    at_once = log_gain(*outlooks[0].at(points), aim)
    later = log_gain(*there[0], aim)
    if blocked is not None:
        later = np.where(blocked(nodes), -np.inf, later)
    cost, entry = _ways(lengthscales, points, prices(outputs, outlooks, there))
    destination = int(np.argmax(later - cost))
    here_first = int(np.argmax(at_once))
    if at_once[here_first] >= later[destination] - cost[destination]:
        return int(owner[here_first]), points[here_first]
    return _nearest(places, nodes[entry[destination]], lengthscales, is_new)


def _nearest(
    places: Sequence[tuple[Grid, Indices]],
    target: FloatArray,
    lengthscales: FloatArray,
    is_new: Callable[[FloatArray], NDArray[np.bool_]],
) -> tuple[int, FloatArray]:
    """Of all points that may be measured the nearest new one to the target: its place and the point."""
    size, total = _BLOCK, sum(len(index) for _, index in places)
    while True:
        points, distances, owner = np.empty((0, len(target))), np.empty(0), np.empty(0, dtype=np.intp)
        for i, (grid, index) in enumerate(places):  # the nearest ones so far, and those of one place: never all at once
            more = grid.at(index)
            points, owner = np.concatenate([points, more]), np.concatenate([owner, np.full(len(more), i)])
            distances = np.concatenate([distances, np.sum(((more - target) / lengthscales) ** 2, axis=1)])
            near = _smallest(distances, size)
            points, distances, owner = points[near], distances[near], owner[near]
        new = is_new(points)
        if new.any() or size >= total:  # the candidates are among the points, so the latter is for rounding only
            chosen = int(np.argmax(new))
            return int(owner[chosen]), points[chosen]
        size *= 8


def _smallest(values: FloatArray, size: int) -> Indices:
    """Where the smallest `size` values are, in ascending order, of equal ones the first: sorts few of many."""
    if size >= len(values):
        return np.argsort(values, kind="stable")
    few = np.flatnonzero(values <= np.partition(values, size - 1)[size - 1])
    return few[np.argsort(values[few], kind="stable")[:size]]


def spread(index: Indices) -> Indices:
    """At most PER_CUBE of the indices, spread evenly: multiples of the golden ratio, modulo 1."""
    if len(index) <= PER_CUBE:
        return index
    picks = ((0.5 + _GOLDEN * np.arange(PER_CUBE)) % 1.0 * len(index)).astype(np.intp)
    return np.asarray(index[np.unique(picks)])


def log_gain(mean: FloatArray, sd: FloatArray, aim: float) -> FloatArray:
    """Logarithm of the expected improvement on `aim`; far below it by its asymptote, so that it never becomes -inf."""
    z = (mean - aim) / sd
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    near = np.log(np.maximum(density + z * np.exp(log_ndtr(z)), 1e-300))
    far = -0.5 * z * z - 2.0 * np.log(np.maximum(np.abs(z), 1.0)) - 0.5 * math.log(2.0 * math.pi)
    return np.asarray(np.log(sd) + np.where(z > -8.0, near, far))


def novelty(kernel: StationaryKernel, x: FloatArray, points: FloatArray) -> FloatArray:
    """Power function of the samples x (t, n) at points (p, n), between 0 and 1; noise does not count."""
    chol = cholesky(kernel(x, x) / kernel.outputscale + _FLOOR * np.eye(len(x)), lower=True, check_finite=False)
    basis = solve_triangular(chol, kernel(x, points) / kernel.outputscale, lower=True, check_finite=False)
    return np.asarray(np.sqrt(np.maximum(1.0 - np.einsum("tp,tp->p", basis, basis), 0.0)))


def prices(outputs: Sequence[Output], outlooks: Sequence[Outlook], there: Sequence[tuple[FloatArray, FloatArray]]) -> FloatArray:
    """What a lengthscale of a way costs at the nodes: 1 + CAUTION * (-log probability of keeping all limits) + NARROW / margin.

    The probability counts as at least one in a million; the margin is that of the mean to the nearest limit.
    """
    doubt, margin = np.zeros(len(there[0][0])), np.full(len(there[0][0]), np.inf)
    for output, outlook, (mean, sd) in zip(outputs, outlooks, there, strict=True):
        for limit, side in ((output.lower_limit, 1.0), (output.upper_limit, -1.0)):
            if limit is not None:
                doubt -= log_ndtr(side * (mean - limit) / sd)
                margin = np.minimum(margin, side * (mean - limit) / outlook.scale)
    return np.asarray(1.0 + CAUTION * np.minimum(doubt, -math.log(1e-6)) + NARROW / np.maximum(margin, NARROWEST))


def _ways(lengthscales: FloatArray, points: FloatArray, price: FloatArray) -> tuple[FloatArray, Indices]:
    """For every node the cost of the way to it from the nearest of the points (p, n), and the way's first node."""
    from scipy.sparse import csr_array  # slow to import, and few need it
    from scipy.sparse.csgraph import dijkstra
    from scipy.spatial import KDTree

    nodes, near, distance = _roads(tuple(lengthscales.tolist()))
    to_candidate, _ = KDTree(points / lengthscales).query(nodes)
    first = np.flatnonzero(to_candidate <= max(FIRST_LEG, to_candidate.min()))
    size, per_node = near.shape
    costs = np.concatenate([(0.5 * distance * (price[:, None] + price[near])).ravel(), to_candidate[first] * price[first]])
    costs = np.maximum(costs, 1e-9)  # a zero would be no edge
    tails = np.concatenate([np.repeat(np.arange(size), per_node), np.full(len(first), size)])  # `size` stands for all candidates
    heads = np.concatenate([near.ravel(), first])
    roads = csr_array((costs, (tails, heads)), shape=(size + 1, size + 1))
    cost, before = dijkstra(roads, indices=size, return_predecessors=True)
    own = (before[:size] == size) | (before[:size] < 0)  # first nodes, and those to which no way leads (their cost is infinite)
    entry = np.where(own, np.arange(size), before[:size])
    while not np.array_equal(entry, entry[entry]):  # follow all ways back to their first node at once
        entry = entry[entry]
    return cost[:size], entry


@lru_cache(maxsize=8)
def _roads(lengthscales: tuple[float, ...]) -> tuple[FloatArray, Indices, FloatArray]:
    """The nodes in lengthscales, their neighbours and the distances to those."""
    from scipy.spatial import KDTree

    dim = len(lengthscales)
    nodes = even_points(dim, NODES) / np.array(lengthscales)
    distance, near = KDTree(nodes).query(nodes, k=1 + 4 * dim)
    return nodes, np.asarray(near[:, 1:], dtype=np.intp), distance[:, 1:]
