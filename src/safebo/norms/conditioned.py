"""The scenario bound with random functions that agree with ALL samples, also those outside the sub-domain. Ours.

`Scenario` and `AdaptiveScenario` draw functions through the samples of a sub-domain. What was measured next to it says a lot
about the function inside as well: with it, bounds in small sub-domains with one or two samples are smaller, and they are wrong
less often (docs/guarantees.md has the numbers).

Family: Gaussian processes with covariance s^2 k * k, the kernel convolved with itself, whose draws lie in the space of k. Sums of
many kernels at centres all over R^n with independent coefficients tend to it. s^2 is the variance of f, a priori log-normal.

Notation
    X, y           all samples; G = U diag(v) U', correlations of the family at X
    c              nodes of the sub-domain; K_c = L L' the kernel there, G_c and G_cX the correlations of the family
    T              E' L^-1 with the leading eigenvectors E of L^-1 G_c L^-T: |T f(c)| is the norm of f's interpolant at the nodes
    d              leading eigenvalues: T f(c) ~ N(0, s^2 diag(d)) a priori
    A              T G_cX U

A draw from the posterior (Matheron's rule), with standard normal z, e, e' and R R' = diag(d) - A v^-1 A':

    T f(c) = s (A v^-1/2 z + R e) + A (s^2 v + sigma^2)^-1 s^2 (U'y - s v^1/2 z - sigma e')

T depends on the shape of the sub-domain alone and is kept.

RBF kernels: the restriction of a function to a box has the norm of the whole function, however small the box, while interpolants
at nodes do not. With the term `_JITTER` on K_c, |T f(c)| is at least the norm of a function g with |f - g| <= 1e-4
sqrt(outputscale) ||f|| at every node (but for the eigenvectors left out). So the bound is one for g, and certificates are off by
that difference, which no interval includes: far below the noise of most measurements, but not zero.

What Theorem 1 then says: with confidence 1 - kappa the result exceeds the norm of f with probability 1 - gamma given everything
measured so far, provided f is a draw from this family.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, eigh, solve_triangular

from safebo.exceptions import InvalidValueError
from safebo.kernels import RBF, Matern, StationaryKernel, convolved
from safebo.norms.base import NormFloor, NormQuery, check_floor, check_served, count, positive, probability, resolve, with_floor
from safebo.norms.scales import LOG_SCALES, scale_cdf
from safebo.norms.scenario import discards, select

FloatArray = NDArray[np.float64]

_SPACING = 0.25  # of the nodes in lengthscales, on average
_FEWEST, _MOST = 9, {1: 65, 2: 21, 3: 9}  # nodes per axis
# An interpolant's norm is smaller than the function's: in 1-D by less than 1 %, in boxes of four lengthscales by 1 to 3 % in 2-D
# and 4 to 6 % in 3-D (results/calibration/nodes.csv).
_DISCRETE = 1.01
_JITTER = 1e-8
_NEGLIGIBLE = 1e-5  # share of the variance in the eigenvectors left out
_RESOLVED = 1e-10  # eigenvalues of the samples' correlations below this are rounding


@dataclass(frozen=True)
class PosteriorScenario:
    """Algorithm 3 with functions from the posterior given all samples, for Matern and RBF kernels in one to three dimensions.

    In three dimensions 9 x 9 x 9 nodes are few for boxes of many lengthscales, where the bound is too small: use it as a floor.

    median, spread: a priori the standard deviation of f is log-normal with this median, in units of sqrt(outputscale), and this
    standard deviation of its logarithm.
    """

    m: int = 1000
    gamma: float = 0.01
    kappa: float = 0.01
    median: float = 1.0
    spread: float = 1.0
    floor: NormFloor | None = None
    discards: int = field(init=False, compare=False, repr=False)

    revises = True  # new data may raise the bound: no minimum with the previous one

    def __post_init__(self) -> None:
        object.__setattr__(self, "m", count(self.m, "PosteriorScenario.m"))
        for name in ("gamma", "kappa"):
            object.__setattr__(self, name, probability(getattr(self, name), f"PosteriorScenario.{name}"))
        for name in ("median", "spread"):
            object.__setattr__(self, name, positive(getattr(self, name), f"PosteriorScenario.{name}"))
        object.__setattr__(self, "discards", discards(self.m, self.gamma, self.kappa))
        check_floor(self.floor, "PosteriorScenario.floor")

    def estimate(self, query: NormQuery) -> float:
        """The bound for one sub-domain."""
        floor = 0.0 if self.floor is None else float(self.floor.estimate(query))
        return select(np.sort(self.norms(query)), self.discards, floor)

    def resolved(self, kernel: StationaryKernel, dim: int) -> PosteriorScenario:
        """A floor may follow the kernel and the dimension."""
        result: PosteriorScenario = with_floor(self, resolve(self.floor, kernel, dim))
        return result

    def check(self, kernel: StationaryKernel, dim: int) -> None:
        """Refuse more dimensions, which nodes cannot resolve, and kernels whose convolution with themselves is not known."""
        check_served(self.floor, kernel, dim)
        if not self.serves(kernel, dim):
            raise InvalidValueError(
                f"PosteriorScenario is for Matern and RBF kernels in one to three dimensions, got {kernel!r} in {dim}: "
                "use AdaptiveScenario()."
            )

    @staticmethod
    def serves(kernel: StationaryKernel, dim: int) -> bool:
        """Whether it is made for this kernel in this many dimensions."""
        return isinstance(kernel, (Matern, RBF)) and dim in _MOST

    def norms(self, query: NormQuery) -> FloatArray:
        """||rho_j||_c of m functions, (m,), in the order they were drawn."""
        kernel, dim = query.kernel, len(query.lower)
        self.check(kernel, dim)
        x, y = query.everything if query.everything is not None else (query.posterior.x, query.posterior.y)
        data = _data(x.tobytes(), y.tobytes(), dim, kernel, query.noise, (self.median, self.spread))
        steps = _rounded_up((query.upper - query.lower) / kernel.lengthscales(dim))
        box = _box(steps, replace(kernel, outputscale=1.0))  # one for every unit of the output
        a = box.transform @ (data.correlation(query.lower + box.nodes, x) @ data.vectors)
        explained = a * data.inverse_roots
        spare = np.diag(box.variances) - explained @ explained.T
        rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence((*query.seed, 2))))
        s = math.sqrt(kernel.outputscale) * np.exp(np.interp(rng.random(self.m), data.cdf, LOG_SCALES))
        at_samples, noise = rng.standard_normal((len(y), self.m)), rng.standard_normal((len(y), self.m))
        own = _root(spare) @ rng.standard_normal((len(spare), self.m))
        missing = data.rotated[:, None] - s * (data.roots[:, None] * at_samples) - query.noise * noise
        gained = missing * (s**2 / (data.values[:, None] * s**2 + query.noise**2))
        parts = s * (explained @ at_samples + own) + a @ gained
        return np.asarray(_DISCRETE * np.sqrt(np.einsum("rm,rm->m", parts, parts) / kernel.outputscale))


@dataclass(frozen=True, eq=False)
class _Data:
    """All samples: what every sub-domain of a step needs of them."""

    correlation: Callable[[FloatArray, FloatArray], FloatArray]
    values: FloatArray  # (t,), v
    vectors: FloatArray  # (t, t), U, 0 where v is rounding
    rotated: FloatArray  # U'y
    roots: FloatArray  # v^1/2
    inverse_roots: FloatArray  # v^-1/2, 0 where v is rounding
    cdf: FloatArray  # of log s, s in units of sqrt(outputscale)


@lru_cache(maxsize=8)
def _data(x_bytes: bytes, y_bytes: bytes, dim: int, kernel: StationaryKernel, noise: float, prior: tuple[float, float]) -> _Data:
    x, y = np.frombuffer(x_bytes).reshape(-1, dim), np.frombuffer(y_bytes)
    correlation = convolved(kernel, dim)
    values, vectors = eigh(correlation(x, x), check_finite=False)
    resolved = values > _RESOLVED * len(y)
    values = np.where(resolved, values, 0.0)
    rotated, vectors = vectors.T @ y, np.where(resolved, vectors, 0.0)
    unit = math.sqrt(kernel.outputscale)
    cdf = scale_cdf(values, rotated / unit, (1.0, float(y[0]) / unit if len(y) else 0.0), noise / unit, *prior)
    inverse = np.divide(1.0, np.sqrt(values), out=np.zeros(len(y)), where=resolved)
    return _Data(correlation, values, vectors, rotated, np.sqrt(values), inverse, cdf)


@dataclass(frozen=True, eq=False)
class _Box:
    """A sub-domain's shape."""

    nodes: FloatArray  # (p, n), from its lower corner
    transform: FloatArray  # (r, p), T
    variances: FloatArray  # (r,), d


def _rounded_up(edges: FloatArray) -> tuple[float, ...]:
    """Edges in lengthscales, rounded up by at most a quarter, so that few shapes occur where cubes are cut off by the domain.

    A box inside a box has the smaller norm, so this errs on the safe side; edges that are a power of two are exact.
    """
    step = 2.0 ** (np.ceil(np.log2(edges) - 1e-9) - 3.0)
    return tuple((np.ceil(edges / step - 1e-6) * step).tolist())


@lru_cache(maxsize=128)  # up to 4 MB each in three dimensions; a run has some dozens
def _box(edges: tuple[float, ...], kernel: StationaryKernel) -> _Box:
    """The shape of a box with these edges, in lengthscales; of the kernel its outputscale does not count.

    In square boxes eigenvalues coincide, and rounding alone turns the eigenvectors. Draws in them are the same for every unit of
    the output only because they come from one call.
    """
    dim = len(edges)
    axes = []
    for edge, scale in zip(edges, kernel.lengthscales(dim), strict=True):
        size = min(max(math.ceil(edge / _SPACING) + 1, _FEWEST), _MOST[dim])
        axes.append(edge * scale * (0.5 - 0.5 * np.cos(np.linspace(0.0, np.pi, size))))  # dense at the boundary
    nodes = np.stack([g.ravel() for g in np.meshgrid(*axes, indexing="ij")], axis=1)
    gram = kernel.correlation(kernel.scaled_distance(nodes, nodes)) + _JITTER * np.eye(len(nodes))
    factor = cholesky(gram, lower=True, check_finite=False)
    half = solve_triangular(factor, convolved(kernel, dim)(nodes, nodes), lower=True, check_finite=False)
    variances, vectors = eigh(solve_triangular(factor, half.T, lower=True, check_finite=False), check_finite=False)
    share = np.cumsum(np.maximum(variances, 0.0))
    kept = share > _NEGLIGIBLE * share[-1]
    transform = solve_triangular(factor, vectors[:, kept], lower=True, trans="T", check_finite=False).T
    return _Box(nodes, np.ascontiguousarray(transform), np.maximum(variances[kept], 0.0))


def _root(covariance: FloatArray) -> FloatArray:
    """A square root of a covariance that is positive up to rounding; it errs on the large side."""
    largest = float(np.diagonal(covariance).max(initial=0.0))
    try:
        return np.asarray(
            cholesky(covariance + 1e-9 * max(largest, 1e-12) * np.eye(len(covariance)), lower=True, check_finite=False)
        )
    except np.linalg.LinAlgError:
        values, vectors = eigh(covariance, check_finite=False)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
