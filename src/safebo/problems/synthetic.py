"""Synthetic problems: random functions of a known RKHS norm, with a threshold, a safe start and the answer.

Notation
    f        the unknown function, of RKHS norm ||f||, on the unit cube
    h        threshold: a quantile of f over the domain; safe means f >= h
    x0       initial safe point, f(x0) between two higher quantiles
    f*, x*   reachable optimum: the best value in the connected component of {f >= h} that contains x0, and where it is

No method that stays safe can be expected to leave the component of x0, so a problem is solved when a method comes close to f*,
not to the global maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import ndimage

from safebo.domain import Box, Cube, Grid
from safebo.exceptions import InvalidValueError
from safebo.kernels import Matern, StationaryKernel
from safebo.rkhs import RKHSFunction, checked_seed, random_function

FloatArray = NDArray[np.float64]
Params = Mapping[str, float] | ArrayLike

PAPER_KERNEL = Matern(nu=1.5, lengthscale=0.1)
"""The kernel of the paper's synthetic experiments."""

DEGENERATE = 10.0
"""A draw with f* - f(x0) below this many noise standard deviations is drawn again: its score would be a score of the noise."""

_MAX_REDRAWS = 100
_GRID = {1: 10_001, 2: 301, 3: 61}  # points per axis of the flood fill; f on it costs 0.1 s, 0.7 s, 2 s for 1000 centres
_SOBOL = 2**14  # points that stand for the domain where no grid can
_WALKERS, _WALK_STEPS, _ASCENT_STEPS = 64, 120, 80  # safe ascents beyond three dimensions, about 1 s in eight


@dataclass(frozen=True, eq=False)
class RKHSProblem:
    """Maximise f, of which only noisy values can be measured, without measuring where f < threshold. Built by `sample`."""

    f: RKHSFunction
    domain: Box
    noise: float
    threshold: float
    initial: FloatArray
    initial_value: float
    optimum_x: FloatArray
    optimum: float
    seed: int
    redraws: int

    @classmethod
    def sample(
        cls,
        dim: int,
        norm: float,
        seed: int,
        *,
        kernel: StationaryKernel = PAPER_KERNEL,
        n_centres: int | tuple[int, int] = 1000,
        noise: float = 0.01,
        threshold_quantile: float = 0.3,
        initial_quantiles: tuple[float, float] = (0.4, 0.5),
    ) -> RKHSProblem:
        """The problem of this seed: f of the given norm, h and x0 from the quantiles of f over the domain.

        Up to three dimensions the domain is a dense grid, its safe points
        are flood-filled from x0 (neighbours share a face) and the best one is refined inside its cell. Beyond, the domain is
        2^14 quasi-random points, and `optimum` is the best value that 64 safe paths from x0 reach: a lower bound.

        A draw whose reachable optimum is less than 10 noise standard deviations above f(x0) is replaced by the next draw of
        the same seed; `redraws` counts them.
        """
        quantiles = (threshold_quantile, *initial_quantiles)
        if not (len(quantiles) == 3 and 0.0 <= quantiles[0] <= quantiles[1] < quantiles[2] <= 1.0):
            raise InvalidValueError(
                "The quantiles must satisfy 0 <= threshold_quantile <= initial_quantiles[0] < initial_quantiles[1] <= 1, "
                f"got {threshold_quantile!r} and {initial_quantiles!r}."
            )
        if not (math.isfinite(noise) and noise >= 0.0):
            raise InvalidValueError(f"The noise must be finite and not negative, got {noise!r}.")
        domain = Box.unit(dim)
        for redraw in range(_MAX_REDRAWS + 1):
            function_seed, point_seed = _child_seeds(seed, redraw)
            f = random_function(kernel, dim, norm, function_seed, n_centres)
            rng = np.random.default_rng(point_seed)
            grid = Grid(Cube.whole(dim), (_GRID[dim],) * dim) if dim in _GRID else None
            points = grid.points() if grid else _quasi_random(dim)
            values = f(points)
            h, low, high = np.quantile(values, quantiles)
            start = int(rng.choice(np.flatnonzero((values >= low) & (values <= high))))
            if grid:
                best = reachable_argmax(values.reshape(grid.shape), h, start)
                x, optimum = _refine(f, points[best], grid.spacing)
            else:
                x, optimum = _safe_ascents(f, h, points[start], rng)
            if optimum - values[start] >= max(DEGENERATE * noise, np.finfo(float).tiny):
                return cls(
                    f=f,
                    domain=domain,
                    noise=float(noise),
                    threshold=float(h),
                    initial=_frozen(domain.from_unit(points[start])),
                    initial_value=float(values[start]),
                    optimum_x=_frozen(domain.from_unit(x)),
                    optimum=float(optimum),
                    seed=int(seed),
                    redraws=redraw,
                )
        raise InvalidValueError(
            f"{_MAX_REDRAWS} draws in a row have a reachable optimum within {DEGENERATE:g} x {noise!r} of the initial value: "
            f"the noise is too large for functions of norm {norm!r}, use less noise or a larger norm."
        )

    def __repr__(self) -> str:
        return f"RKHSProblem(dim={self.domain.dim}, norm={self.f.norm:g}, noise={self.noise:g}, seed={self.seed})"

    @property
    def kernel(self) -> StationaryKernel:
        """The kernel of the space that f lives in."""
        return self.f.kernel

    @property
    def norm(self) -> float:
        """||f||."""
        return self.f.norm

    def value(self, params: Params) -> float:
        """f at one point, a dict or an array, without noise."""
        return float(self.f(self.domain.to_unit(self.domain.point(params))[None, :])[0])

    def is_safe(self, params: Params) -> bool:
        """Whether f >= threshold there."""
        return self.value(params) >= self.threshold

    def measure(self, params: Params, rng: np.random.Generator) -> float:
        """f plus Gaussian noise drawn from `rng`."""
        return self.value(params) + self.noise * float(rng.standard_normal())

    def plant(self, seed: int) -> Callable[[Params], float]:
        """A plant to experiment on: `measure` with its own generator, so that two plants of the same seed agree."""
        rng = np.random.default_rng(checked_seed(seed))
        return lambda params: self.measure(params, rng)

    def score(self, value: float) -> float:
        """Fraction of the way from f(x0) to f*: 0 at the start, 1 at the reachable optimum. `value` is a value of f."""
        return (value - self.initial_value) / (self.optimum - self.initial_value)

    def solved(self, value: float, tolerance: float = 0.05) -> bool:
        """Whether the value of f is within 5 % of the reachable optimum, relative to the initial value."""
        return self.score(value) >= 1.0 - tolerance


def reachable_argmax(values: FloatArray, threshold: float, start: int) -> int:
    """Index of the best grid value in the safe component that holds grid point `start`; indices are flat, in C order."""
    if not values.flat[start] >= threshold:
        raise InvalidValueError(f"The start has value {values.flat[start]:g}, below the threshold {threshold:g}.")
    component, _ = ndimage.label(values >= threshold)  # neighbours share a face
    return int(np.argmax(np.where(component == component.flat[start], values, -np.inf)))


def _refine(f: RKHSFunction, x: FloatArray, spacing: FloatArray) -> tuple[FloatArray, float]:
    """The maximum near grid point x, by zooming in: three grids of 7 points per axis around the best point so far."""
    reach = spacing
    for _ in range(3):
        box = Cube(tuple(np.maximum(x - reach, 0.0).tolist()), tuple(np.minimum(x + reach, 1.0).tolist()))
        near = np.vstack([x[None, :], Grid(box, (7,) * x.size).points()])
        x, reach = near[int(np.argmax(f(near)))], reach / 3.0
    return x, float(f(x[None, :])[0])


def _safe_ascents(f: RKHSFunction, h: float, start: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, float]:
    """The best value on safe paths from the start: walkers go straight until they would become unsafe, turn, and finally climb.

    A step is at most a fifth of a lengthscale and both its middle and its end must be safe. One walker climbs from the start.
    """
    step = np.minimum(0.2 * f.kernel.lengthscales(f.dim), 0.1)  # per axis
    x = np.tile(start, (_WALKERS, 1))
    heading = _directions(rng, x.shape)
    for _ in range(_WALK_STEPS):
        there = np.clip(x + step * heading, 0.0, 1.0)
        safe = np.minimum(f(there), f(0.5 * (x + there))) >= h
        moved = safe & (np.abs(there - x) > 0.5 * np.abs(step * heading)).any(axis=1)
        moved[0] = False  # the walker that stays at the start
        x = np.where(moved[:, None], there, x)
        heading = np.where(moved[:, None], heading, _directions(rng, x.shape))

    value, length = f(x), np.ones(_WALKERS)
    for _ in range(_ASCENT_STEPS):
        slope = _scaled_gradient(f, x, step)
        uphill = slope / np.maximum(np.linalg.norm(slope, axis=1, keepdims=True), np.finfo(float).tiny)
        there = np.clip(x + length[:, None] * step * uphill, 0.0, 1.0)
        candidate = f(there)
        better = (candidate > value) & (f(0.5 * (x + there)) >= h)
        x, value = np.where(better[:, None], there, x), np.where(better, candidate, value)
        length = np.where(better, np.minimum(1.5 * length, 1.0), 0.5 * length)
    best = int(np.argmax(value))
    return x[best], float(value[best])


def _scaled_gradient(f: RKHSFunction, x: FloatArray, step: FloatArray) -> FloatArray:
    """Central differences of f in units of `step`, (p, n); a thousandth of a step on either side, clipped to the unit cube."""
    gradient = np.empty_like(x)
    for axis in range(x.shape[1]):
        offset = np.zeros(x.shape[1])
        offset[axis] = 1e-3 * step[axis]
        after, before = np.clip(x + offset, 0.0, 1.0), np.clip(x - offset, 0.0, 1.0)
        gradient[:, axis] = (f(after) - f(before)) / (after - before)[:, axis] * step[axis]
        outward = ((x[:, axis] <= 0.0) & (gradient[:, axis] < 0.0)) | ((x[:, axis] >= 1.0) & (gradient[:, axis] > 0.0))
        gradient[outward, axis] = 0.0  # a wall of the domain: slide along it
    return gradient


def _directions(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Unit vectors, uniform on the sphere, one per row."""
    vectors = rng.standard_normal(shape)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def _quasi_random(dim: int) -> FloatArray:
    from scipy.stats import qmc  # imported late: it takes as long as the rest of the package

    return np.asarray(qmc.Sobol(dim, scramble=True, rng=np.random.default_rng(0)).random(_SOBOL))


def _child_seeds(seed: int, redraw: int) -> tuple[int, int]:
    """Two independent seeds, for the function and for the point, of the given redraw."""
    first, second = np.random.SeedSequence([checked_seed(seed), redraw]).generate_state(2, np.uint64)
    return int(first), int(second)


def _frozen(x: FloatArray) -> FloatArray:
    x = np.array(x)
    x.flags.writeable = False
    return x
