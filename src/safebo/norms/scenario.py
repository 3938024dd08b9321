"""The scenario bound on the norm (Alg. 3, Theorem 1) and the random RKHS functions behind it.

Notation
    m               number of random functions (scenarios)
    N, T            centres of a random function in all, and beyond the samples: T = N - t, N = max(round(500 width), t + 10)
    Z (T, n), a     tail centres, uniform in the box, and tail coefficients, uniform in [-abar, abar]
    phi = k(X, Z) a tail values at the samples
    b               head coefficients, (K + sigma^2 I) b = y - phi: the function passes the data up to noise
    ||rho||^2       b'Kb + 2 b'phi + a'k(Z, Z)a
    r               number of scenarios that may be discarded
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr

from safebo.compute import SingleArray, backend
from safebo.exceptions import InfeasibleScenarioError, InvalidValueError
from safebo.kernels import StationaryKernel
from safebo.norms.base import NormFloor, NormQuery, check_floor, check_served, count, positive, probability, resolve, with_floor
from safebo.posterior import Posterior

FloatArray = NDArray[np.float64]


@lru_cache(maxsize=256)
def discards(m: int, gamma: float, kappa: float) -> int:
    """Largest r with sum_{i=0}^{r} C(m, i) gamma^i (1-gamma)^(m-i) <= kappa (Theorem 1).

    Where even r = 0 is infeasible the error names the smallest m that works.
    """
    feasible = np.flatnonzero(
        bdtr(np.arange(m, dtype=np.float64), m, gamma) <= kappa
    )  # bdtr is the binomial distribution function
    r = int(feasible[-1]) if len(feasible) else -1
    if r < 0:
        smallest = max(int(np.log(kappa) / np.log1p(-gamma)) - 1, 1)
        while bdtr(0.0, smallest, gamma) > kappa:
            smallest += 1
        raise InfeasibleScenarioError(
            f"m = {m} scenarios are too few for gamma = {gamma:g} and kappa = {kappa:g}: Theorem 1 needs (1 - gamma)^m <= kappa. "
            f"The smallest m that works is {smallest}."
        )
    return r


@dataclass(frozen=True)
class RandomFunctions:
    """The family of random RKHS functions: m of them, tail coefficients in [-alpha_bar, alpha_bar], `centres` per unit width."""

    m: int = 1000
    alpha_bar: float = 1.0
    centres: int = 500

    def tail_size(self, width: float, samples: int) -> int:
        """T = N - t with N = max(round(centres * width), t + 10)."""
        return max(round(self.centres * width), samples + 10) - samples

    def draw(
        self, size: int, dim: int, seed: tuple[int, ...], stretch: SingleArray | None = None
    ) -> tuple[SingleArray, SingleArray]:
        """Centres in the unit cube (times `stretch`, (n,)) and coefficients in [-alpha_bar, alpha_bar]: (m, n, T) and (m, T).

        In one dimension the centres of every function ascend (normalised sums of exponential gaps): the coefficients are
        independent and identically distributed, so the order of the centres does not change the distribution of the function.
        """
        if dim == 1:
            # Always the longest row that the width 1 needs: what a sub-domain gets depends on the seed and its own size only.
            sums, unit = _line_draws(self.m, max(self.centres, size), seed)
            scale = sums[:, size, None] if stretch is None else sums[:, size, None] / stretch
            return (sums[:, :size] / scale)[:, None, :], unit[:, :size] * np.float32(self.alpha_bar)
        centres, coefficients = np.empty((self.m, dim, size), np.float32), np.empty((self.m, size), np.float32)

        def fill(generator: np.random.Generator, rows: slice) -> None:
            generator.random(out=centres[rows], dtype=np.float32)
            if stretch is not None:
                centres[rows] *= stretch[:, None]
            _symmetric(generator, coefficients[rows])

        _fill(self.m, (dim + 1) * size, seed, fill)
        coefficients *= np.float32(self.alpha_bar)
        return centres, coefficients

    def norms(self, query: NormQuery) -> FloatArray:
        """||rho_j||, (m,), in the order they were drawn."""
        posterior, kernel = query.posterior, query.kernel
        t, dim = posterior.x.shape
        scale = kernel.lengthscales(dim)
        # coordinates relative to the box's corner: smaller numbers, more digits in single precision
        stretch = ((query.upper - query.lower) / scale).astype(np.float32)
        centres, coefficients = self.draw(self.tail_size(query.width, t), dim, query.seed, stretch)
        quad, phi = backend().scenario_parts(
            (posterior.x - query.lower) / scale, centres, coefficients, kernel.family, is_sorted=dim == 1
        )
        return through_data(posterior, kernel.outputscale * quad, kernel.outputscale * phi)


def through_data(posterior: Posterior, quad: FloatArray, phi: FloatArray) -> FloatArray:
    """||rho|| of tails with squared norms quad (m,) and values phi (t, m) at the samples, once their heads pass the data."""
    y = posterior.y[:, None]
    head = backend().cholesky_solve(posterior.chol, y - phi)
    noise = posterior.regulariser + posterior.jitter * posterior.kernel.outputscale
    # b'Kb + 2 b'phi = b'(y - phi - noise b) + 2 b'phi
    dots = np.einsum("tm,tm->m", head, y + phi - noise * head)
    return np.asarray(np.sqrt(np.maximum(quad + dots, 0.0)))


_BLOCKS = 8  # streams that the functions of a draw are split into; fixed, so that results do not depend on the machine
_FEW = 2**18  # numbers of a draw below which threads take longer to start than to draw


def _fill(m: int, size: int, seed: tuple[int, ...], fill: Callable[[np.random.Generator, slice], None]) -> None:
    """Call fill(generator, functions) for blocks of functions, each with a stream of its own, `size` numbers a function.

    On all cores, unless there are few numbers or the process is told to use one thread.
    """
    streams = np.random.SeedSequence(seed).spawn(_BLOCKS)
    edges = np.linspace(0, m, _BLOCKS + 1).astype(int).tolist()

    def block(i: int) -> None:
        fill(np.random.Generator(np.random.SFC64(streams[i])), slice(edges[i], edges[i + 1]))

    if m * size < _FEW or os.environ.get("NUMBA_NUM_THREADS") == "1":
        for i in range(_BLOCKS):
            block(i)
        return
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _BLOCKS)) as pool:  # numpy fills arrays without the interpreter lock
        list(pool.map(block, range(_BLOCKS)))


# The draws of the current step in one dimension, (key, sums, coefficients): all sub-domains use the beginnings of the same rows.
# One tuple, replaced as a whole, so that another thread cannot mix two draws.
_Draws = tuple[tuple[object, ...], SingleArray, SingleArray]
_latest: list[_Draws] = [((), np.empty((0, 0), np.float32), np.empty((0, 0), np.float32))]


def _line_draws(m: int, length: int, seed: tuple[int, ...]) -> tuple[SingleArray, SingleArray]:
    """Cumulative sums of length + 1 exponential gaps, and length coefficients in [-1, 1], one row per function."""
    key = (m, length, seed)
    cached = _latest[0]
    if cached[0] == key:
        return cached[1], cached[2]
    sums, unit = np.empty((m, length + 1), np.float32), np.empty((m, length), np.float32)

    def fill(generator: np.random.Generator, rows: slice) -> None:
        generator.standard_exponential(out=sums[rows], dtype=np.float32)
        np.cumsum(sums[rows], axis=1, out=sums[rows])
        _symmetric(generator, unit[rows])

    _fill(m, 2 * length, seed, fill)
    _latest[0] = key, sums, unit
    return sums, unit


def _symmetric(generator: np.random.Generator, out: SingleArray) -> None:
    """Uniform in [-1, 1)."""
    generator.random(out=out, dtype=np.float32)
    out *= np.float32(2.0)
    out -= np.float32(1.0)


@dataclass(frozen=True)
class Scenario:
    """Algorithm 3: the (r+1)-th largest norm of m random functions that pass the data.

    With confidence 1 - kappa it exceeds the norm of the unknown function with probability 1 - gamma, PROVIDED that function is a
    draw from the same distribution (Assumption 2). `alpha_bar` and `centres` fix that distribution; a function with a much
    larger norm than sqrt(centres * width / 3) * alpha_bar is outside of it. `floor` is an optional heuristic lower bound on the
    result (the paper's RNN); it can only make the bound larger.
    """

    m: int = 1000
    gamma: float = 0.1
    kappa: float = 0.01
    alpha_bar: float = 1.0
    centres: int = 500
    floor: NormFloor | None = None
    discards: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "m", count(self.m, "Scenario.m"))
        object.__setattr__(self, "centres", count(self.centres, "Scenario.centres"))
        object.__setattr__(self, "gamma", probability(self.gamma, "Scenario.gamma"))
        object.__setattr__(self, "kappa", probability(self.kappa, "Scenario.kappa"))
        object.__setattr__(self, "alpha_bar", positive(self.alpha_bar, "Scenario.alpha_bar"))
        object.__setattr__(self, "discards", discards(self.m, self.gamma, self.kappa))
        check_floor(self.floor, "Scenario.floor")

    @property
    def functions(self) -> RandomFunctions:
        """The family that the scenarios are drawn from."""
        return RandomFunctions(self.m, self.alpha_bar, self.centres)

    def sample_norms(
        self,
        x: ArrayLike,
        y: ArrayLike,
        *,
        kernel: StationaryKernel,
        noise: float,
        lower: ArrayLike,
        upper: ArrayLike,
        seed: int | Sequence[int] = 0,
    ) -> FloatArray:
        """Norms of m random functions through the samples x (t, n), y (t,) of the box [lower, upper], ascending, (m,)."""
        return np.sort(self.functions.norms(make_query(x, y, kernel, noise, lower, upper, seed)))

    def check(self, kernel: StationaryKernel, dim: int) -> None:
        """A floor may refuse kernels or dimensions that this estimator serves."""
        check_served(self.floor, kernel, dim)

    def resolved(self, kernel: StationaryKernel, dim: int) -> Scenario:
        """A floor may follow the kernel and the dimension."""
        result: Scenario = with_floor(self, resolve(self.floor, kernel, dim))
        return result

    def estimate(self, query: NormQuery) -> float:
        """B_t of Alg. 3 before the minimum with B_{t-1}."""
        floor = 0.0 if self.floor is None else float(self.floor.estimate(query))
        return self.select(np.sort(self.functions.norms(query)), floor)

    def select(self, ascending: FloatArray, floor: float = 0.0) -> float:
        """The bound from sorted norms: discard as many as Theorem 1 allows while the result stays above the floor."""
        return select(ascending, self.discards, floor)


def select(ascending: FloatArray, discarded: int, floor: float = 0.0) -> float:
    """The largest norm left when `discarded` ones are dropped, but none at or below the floor is chosen (Alg. 3)."""
    if floor >= ascending[-1]:
        return floor
    below = int(np.searchsorted(ascending, floor, side="right"))  # norms <= floor may not be chosen
    return float(ascending[max(len(ascending) - 1 - discarded, below)])


def make_query(
    x: ArrayLike,
    y: ArrayLike,
    kernel: StationaryKernel,
    noise: float,
    lower: ArrayLike,
    upper: ArrayLike,
    seed: int | Sequence[int],
) -> NormQuery:
    """A validated query from plain arrays; x is (t, n), or (t,) in one dimension."""
    low, high = (np.atleast_1d(_floats(v, name)) for v, name in ((lower, "lower"), (upper, "upper")))
    points, values = _floats(x, "x"), np.atleast_1d(_floats(y, "y"))
    if points.size == 0 and values.size == 0:
        points = np.empty((0, len(low)))
    if points.ndim < 2 and len(low) == 1:
        points = points.reshape(-1, 1)
    if low.shape != high.shape or low.ndim != 1 or values.ndim != 1 or points.shape != (len(values), len(low)):
        raise InvalidValueError(
            f"Shapes do not match: x {np.shape(x)}, y {np.shape(y)}, lower {low.shape}, upper {high.shape}; x must be (t, n)."
        )
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (high > low).all()):
        raise InvalidValueError(f"The box must be finite with lower < upper on each axis, got {low.tolist()} .. {high.tolist()}.")
    if not (np.isfinite(points).all() and np.isfinite(values).all()):
        raise InvalidValueError("Samples must be finite, got NaN or infinity.")
    outside = ~((points >= low) & (points <= high)).all(axis=1)
    if outside.any():
        raise InvalidValueError(f"Sample {points[outside][0].tolist()} lies outside the box {low.tolist()} .. {high.tolist()}.")
    noise = positive(noise, "noise")
    seeds = (seed,) if np.ndim(seed) == 0 else tuple(seed)  # type: ignore[arg-type]
    entropy = tuple(count(s, "seed", 0) for s in seeds)
    posterior = Posterior.empty(kernel, len(low), noise**2)
    return NormQuery(posterior.extend(points, values) if len(values) else posterior, noise, low, high, entropy)


def _floats(values: ArrayLike, name: str) -> FloatArray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidValueError(f"{name} must be numbers, got {values!r}.") from None
