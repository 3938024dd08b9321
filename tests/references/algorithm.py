"""Algorithms 1, 2 and 4 for one or several outputs, written out with all pairs of grid points.

Notation
    c               sub-domain: a box with its own grid, samples, norms and safe set
    l, u (k, G)     ends of C_t on the grid, one row per output
    omega (G,)      max over outputs of beta_i s_i(a) / sqrt(outputscale_i)
    S, M, G         safe set, maximisers, expanders: masks over the grid

The first output is the objective, to be maximised. With `cubes=None` this is Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from tests.references.bounds import Beta
from tests.references.kernels import Array, Kernel, Mask
from tests.references.posterior import posterior
from tests.references.sets import (
    combine,
    confidence_lower,
    confidence_upper,
    continuity_lower,
    continuity_upper,
    expanders_lower,
    expanders_upper,
    maximisers,
)

# norm(output index, lower corner, upper corner, X in the box, y in the box, step) -> raw B
Norm = Callable[[int, Array, Array, Array, Array, int], float]


@dataclass(frozen=True)
class NaiveOutput:
    """One measured quantity. `kernel` includes the outputscale; omega is divided by its root."""

    name: str
    kernel: Kernel
    sigma: float
    beta: Beta
    regulariser: float
    delta: float
    outputscale: float = 1.0
    lengthscales: Array | None = None
    lower: float | None = None
    upper: float | None = None
    min_width: float = 0.0

    def allows(self, low: float, high: float) -> bool:
        """Whether the interval [low, high] respects both limits."""
        above = self.lower is None or low >= self.lower
        below = self.upper is None or high <= self.upper
        return above and below


@dataclass(frozen=True)
class Record:
    """One update of one output: enough to evaluate its Q anywhere."""

    X: Array
    y: Array
    norm: float
    beta: float


@dataclass
class Subdomain:
    """A box and everything its last update left behind."""

    box_lower: Array
    box_upper: Array
    grid: Array
    samples: tuple[int, ...] | None = None
    history: list[list[Record]] = field(default_factory=list)  # [output][update]
    norms: list[float] = field(default_factory=list)
    betas: list[float] = field(default_factory=list)
    lower: Array = field(default_factory=lambda: np.empty((0, 0)))
    upper: Array = field(default_factory=lambda: np.empty((0, 0)))
    omegas: Array = field(default_factory=lambda: np.empty((0, 0)))
    seeds: tuple[int, ...] = ()
    best_lower: float = -math.inf
    safe: Mask = field(default_factory=lambda: np.empty(0, dtype=bool))
    near: Mask = field(default_factory=lambda: np.empty(0, dtype=bool))  # the part of S within the stride
    expanders: Mask = field(default_factory=lambda: np.empty(0, dtype=bool))


@dataclass(frozen=True)
class View:
    """The sets of one sub-domain at one ask."""

    box_lower: Array
    box_upper: Array
    grid: Array
    samples: tuple[int, ...]
    seeds: tuple[int, ...]
    norms: tuple[float, ...]
    betas: tuple[float, ...]
    lower: Array
    upper: Array
    omegas: Array
    omega: Array
    safe: Mask
    maximisers: Mask
    expanders: Mask
    candidates: Mask
    best: int | None


@dataclass(frozen=True)
class Snapshot:
    """All sub-domains at one ask, whether or not a point was found."""

    step: int
    best_lower: float
    views: tuple[View, ...]


@dataclass(frozen=True)
class Suggestion:
    """The next experiment.

    `contenders` lists (cube, grid index) of every candidate whose omega lies within a relative
    1e-9 of the largest: symmetric boxes tie, and rounding then decides.
    """

    x: Array
    cube: int
    index: int
    omega: float
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    norm: tuple[float, ...]
    contenders: tuple[tuple[int, int], ...]
    snapshot: Snapshot


class NaiveSafeBO:
    """Safe optimisation on the unit cube: `tell` appends, `ask` returns a point or None."""

    def __init__(
        self,
        dim: int,
        points_per_axis: Sequence[int],
        outputs: Sequence[NaiveOutput],
        norm: Norm,
        cubes: tuple[int, float] | None = None,
        safe_set: str = "union",
        stride: float | None = None,
    ) -> None:
        if len(points_per_axis) != dim:
            raise ValueError(f"{points_per_axis=} does not have {dim=} entries")
        if safe_set not in ("continuity", "confidence", "union"):
            raise ValueError(f"unknown safe set {safe_set!r}")
        self.dim = dim
        self.points_per_axis = tuple(points_per_axis)
        self.outputs = tuple(outputs)
        self.norm = norm
        self.cubes = cubes
        self.rule = safe_set
        self.stride = stride
        self.X: list[Array] = []
        self.values: list[tuple[float, ...]] = []
        self.subdomains: list[Subdomain] = []
        self.last: Snapshot | None = None
        self.restarts = 0  # intersections that were dropped because they were empty somewhere

    # ------------------------------------------------------------------ data

    def tell(self, x: ArrayLike, values: Sequence[float]) -> None:
        """Append a sample: x (n,) in the unit cube, one value per output."""
        point = np.array(x, dtype=np.float64).reshape(self.dim)
        if len(values) != len(self.outputs):
            raise ValueError(f"{len(self.outputs)} values expected, got {values!r}")
        self.X.append(point)
        self.values.append(tuple(float(v) for v in values))

    def _points(self, samples: Sequence[int]) -> Array:
        return np.array([self.X[s] for s in samples]).reshape(len(samples), self.dim)

    def _values(self, samples: Sequence[int], output: int) -> Array:
        return np.array([self.values[s][output] for s in samples], dtype=np.float64)

    # ----------------------------------------------------------- sub-domains

    def boxes(self) -> list[tuple[Array, Array]]:
        """The global domain, then the clipped cubes of edge k Delta around each sample, once."""
        found = [(np.zeros(self.dim), np.ones(self.dim))]
        if self.cubes is not None:
            N, Delta = self.cubes
            for x in self.X:
                for k in range(1, N + 1):
                    half = 0.5 * (k * Delta)
                    box = np.maximum(x - half, 0.0), np.minimum(x + half, 1.0)
                    if not any(_same_box(box, other) for other in found):
                        found.append(box)
        return found

    def make_grid(self, lower: Array, upper: Array) -> Array:
        """All grid points of a box (G, n), the last axis running fastest."""
        axes = [np.linspace(lower[i], upper[i], self.points_per_axis[i]) for i in range(self.dim)]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, self.dim)

    def samples_in(self, lower: Array, upper: Array) -> tuple[int, ...]:
        """Indices of the samples in the closed box, in the order they were told."""
        return tuple(s for s, x in enumerate(self.X) if bool(np.all(lower <= x) and np.all(x <= upper)))

    # ---------------------------------------------------------------- update

    def interval(self, c: Subdomain, output: int, A: Array) -> tuple[Array, Array]:
        """C_t(a): the intersection of Q_s(a) over the whole history of the sub-domain."""
        spec = self.outputs[output]
        lower, upper = np.full(len(A), -np.inf), np.full(len(A), np.inf)
        for record in c.history[output]:
            mean, sd = posterior(spec.kernel, record.X, record.y, spec.regulariser, A)
            lower = np.maximum(lower, mean - record.beta * sd)
            upper = np.minimum(upper, mean + record.beta * sd)
        return lower, upper

    def _update(self, c: Subdomain, samples: tuple[int, ...]) -> None:
        """Algorithm 2 up to the expanders, for one sub-domain whose samples changed."""
        new = c.samples is None
        count, X = len(self.outputs), self._points(samples)
        if new:
            c.history = [[] for _ in range(count)]
            c.norms = [math.inf] * count
            c.betas = [math.inf] * count
            c.safe = np.zeros(len(c.grid), dtype=bool)
        c.samples = samples

        # lines 1 to 3: posterior, norm, Q_t, C_t
        omegas, lowers, uppers = [], [], []
        for i, spec in enumerate(self.outputs):
            y = self._values(samples, i)
            raw = float(self.norm(i, c.box_lower, c.box_upper, X, y, len(self.X)))
            c.norms[i] = min(raw, c.norms[i])
            c.betas[i] = spec.beta(spec.kernel(X, X), c.norms[i], spec.sigma, spec.delta)
            c.history[i].append(Record(X, y, c.norms[i], c.betas[i]))
            _, sd = posterior(spec.kernel, X, y, spec.regulariser, c.grid)
            omegas.append(c.betas[i] * sd)
            low, high = self.interval(c, i, np.concatenate([c.grid, X]))
            if np.any(low >= high):  # Q_t contradicts C_{t-1}: some norm was too small, restart
                c.history[i] = c.history[i][-1:]
                c.safe[:] = False
                self.restarts += 1
            low, high = self.interval(c, i, c.grid)
            lowers.append(low)
            uppers.append(high)
        c.omegas, c.lower, c.upper = np.array(omegas), np.array(lowers), np.array(uppers)

        # seeds: samples in the box whose measured values satisfy every limit
        c.seeds = tuple(s for s in samples if all(o.allows(v, v) for o, v in zip(self.outputs, self.values[s], strict=True)))
        at_seeds = [self.interval(c, i, self._points(c.seeds)) for i in range(count)]

        # line 4: safe set, the intersection over all limits
        old = c.safe.copy()
        sources = np.concatenate([c.grid[old], self._points(c.seeds)])
        safe = np.ones(len(c.grid), dtype=bool)
        for i, spec in enumerate(self.outputs):
            l_sources = np.concatenate([c.lower[i][old], at_seeds[i][0]])
            u_sources = np.concatenate([c.upper[i][old], at_seeds[i][1]])
            if spec.lower is not None:
                near = continuity_lower(spec.kernel, c.norms[i], sources, l_sources, c.grid, spec.lower)
                safe &= combine(self.rule, near, confidence_lower(c.lower[i], spec.lower))
            if spec.upper is not None:
                near = continuity_upper(spec.kernel, c.norms[i], sources, u_sources, c.grid, spec.upper)
                safe &= combine(self.rule, near, confidence_upper(c.upper[i], spec.upper))
        c.safe = safe

        # where experiments may be: no more doubt than one sample leaves at a distance of `stride` lengthscales
        c.near = safe.copy()
        for spec in self.outputs:
            if self.stride is not None and (spec.lower is not None or spec.upper is not None):
                assert spec.lengthscales is not None
                sample = np.full((1, self.dim), 0.5)
                away = sample + self.stride * spec.lengthscales * np.eye(self.dim)[:1]
                _, allowed = posterior(spec.kernel, sample, np.zeros(1), spec.regulariser, away)
                _, sd = posterior(spec.kernel, X, np.zeros(len(X)), spec.regulariser, c.grid)
                c.near &= sd <= allowed[0]

        # the best lower bound this sub-domain offers: S, and seeds that the confidence rule accepts
        offers = [float(v) for v in c.lower[0][safe]]
        for s in range(len(c.seeds)):
            if all(o.allows(at_seeds[i][0][s], at_seeds[i][1][s]) for i, o in enumerate(self.outputs)):
                offers.append(float(at_seeds[0][0][s]))
        c.best_lower = max(offers, default=-math.inf)

        # line 5: expanders, for some limit
        c.expanders = np.zeros(len(c.grid), dtype=bool)
        for i, spec in enumerate(self.outputs):
            B = c.norms[i]
            if spec.lower is not None:
                c.expanders |= expanders_lower(spec.kernel, B, c.grid, c.near, c.upper[i], spec.lower)
            if spec.upper is not None:
                c.expanders |= expanders_upper(spec.kernel, B, c.grid, c.near, c.lower[i], spec.upper)

    def _refresh(self) -> None:
        """Add the sub-domains that are new and update those whose samples changed."""
        for lower, upper in self.boxes():
            box = (lower, upper)
            if not any(_same_box(box, (c.box_lower, c.box_upper)) for c in self.subdomains):
                self.subdomains.append(Subdomain(lower, upper, self.make_grid(lower, upper)))
        for c in self.subdomains:
            samples = self.samples_in(c.box_lower, c.box_upper)
            if samples != c.samples:
                self._update(c, samples)

    def _view(self, c: Subdomain, best_lower: float) -> View:
        """M_t with the best lower bound over all sub-domains, the candidates and the best one."""
        top = maximisers(c.near, c.upper[0], best_lower)
        wide = np.zeros(len(c.grid), dtype=bool)
        for i, spec in enumerate(self.outputs):
            wide |= c.upper[i] - c.lower[i] > spec.min_width
        candidates = (top | c.expanders) & wide
        omega = np.max([c.omegas[i] / math.sqrt(o.outputscale) for i, o in enumerate(self.outputs)], axis=0)
        best: int | None = None
        for g in np.flatnonzero(candidates):
            if best is None or omega[g] > omega[best]:
                best = int(g)
        assert c.samples is not None
        return View(
            box_lower=c.box_lower,
            box_upper=c.box_upper,
            grid=c.grid,
            samples=c.samples,
            seeds=c.seeds,
            norms=tuple(c.norms),
            betas=tuple(c.betas),
            lower=c.lower.copy(),
            upper=c.upper.copy(),
            omegas=c.omegas.copy(),
            omega=omega,
            safe=c.safe.copy(),
            maximisers=top,
            expanders=c.expanders.copy(),
            candidates=candidates,
            best=best,
        )

    # ------------------------------------------------------------------- ask

    def snapshot(self) -> Snapshot:
        """Bring every sub-domain up to date and return all sets."""
        if not self.X:
            raise ValueError("a safe initial sample is needed: S_0 must not be empty")
        self._refresh()
        best_lower = max(c.best_lower for c in self.subdomains)
        views = tuple(self._view(c, best_lower) for c in self.subdomains)
        self.last = Snapshot(len(self.X), best_lower, views)
        return self.last

    def ask(self) -> Suggestion | None:
        """Eq. (acquisition) in every sub-domain, then the most uncertain over all, Algorithm 4."""
        snapshot = self.snapshot()
        winner: tuple[int, int, float] | None = None
        for c, view in enumerate(snapshot.views):
            if view.best is not None:
                value = float(view.omega[view.best])
                if winner is None or value > winner[2]:
                    winner = c, view.best, value
        if winner is None:
            return None
        cube, index, omega = winner
        view = snapshot.views[cube]
        contenders = tuple(
            (c, int(g))
            for c, other in enumerate(snapshot.views)
            for g in np.flatnonzero(other.candidates)
            if other.omega[g] >= (1.0 - 1e-9) * omega
        )
        return Suggestion(
            x=view.grid[index].copy(),
            cube=cube,
            index=index,
            omega=omega,
            lower=tuple(float(v) for v in view.lower[:, index]),
            upper=tuple(float(v) for v in view.upper[:, index]),
            norm=view.norms,
            contenders=contenders,
            snapshot=snapshot,
        )


def _same_box(first: tuple[Array, Array], second: tuple[Array, Array]) -> bool:
    return bool(np.array_equal(first[0], second[0]) and np.array_equal(first[1], second[1]))
