"""The scenario bound with a scale learned from all data, for sub-domains inside a larger domain. Ours, not the paper's.

Two things make the published local bound too small (docs/guarantees.md has the numbers):

*   The random functions of a sub-domain c have no centres outside of it, while the unknown function has, and they bend it inside.
    Here tail centres fill c and the `padding` lengthscales around it, and the norm is that of the function RESTRICTED to c:
    ||in + out||_c^2 = ||in||^2 + 2 <in, out> + ||out||_c^2, where the last term is the norm of the interpolant of `out` at nodes
    of c (beyond three dimensions, where nodes are too few, the full norm of `out`).
*   The size of the coefficients, alpha_bar, is a guess. Here it is s alpha_bar / sqrt(outputscale) with an unknown s, a priori
    log-normal with median `median` and standard deviation `spread` of log s; every scenario draws its own s from the posterior
    given ALL samples.

Scale posterior: a priori f(X) is about N(0, s^2 G) with G = alpha_bar^2 / (3 outputscale) (K K + N E[k(X, Z) k(Z, X)]), N centres
Z uniform in the domain and the samples as further centres, so y ~ N(0, s^2 G + sigma^2 I). The first measurement was chosen by
the operator, typically not at a typical value; its own likelihood is left out.

What Theorem 1 then says: with confidence 1 - kappa the result exceeds the norm of f with probability 1 - gamma, provided f is a
draw from this larger family. Functions of very different norms are members of it, which is the point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, eigh, solve_triangular

from safebo.compute import SingleArray, backend
from safebo.kernels import RBF, StationaryKernel
from safebo.norms.base import (
    NormFloor,
    NormQuery,
    check_floor,
    check_served,
    count,
    even_points,
    positive,
    probability,
    resolve,
    with_floor,
)
from safebo.norms.conditioned import PosteriorScenario
from safebo.norms.scales import LOG_SCALES, scale_cdf
from safebo.norms.scenario import RandomFunctions, discards, select, through_data

FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]

_NODES = 4096  # points that stand for the domain in the prior covariance
# On the nodes' kernel matrix; single precision sums allow no less. Restricted norms come out smaller: with Matern 3/2 by 0.1 %,
# with Matern 5/2 by up to 3, and in small boxes with RBF kernels, whose default has a floor up to 3-D, by much more.
_JITTER = 1e-8
_PER_AXIS = {1: 16, 2: 9, 3: 5}  # nodes that tell the restricted norm of the outer part


@dataclass(frozen=True)
class AdaptiveScenario:
    """Algorithm 3 with the scale of the random functions learned from all data, and centres around the sub-domain.

    floor: "auto" (default) is `PosteriorScenario` in 2-D and 3-D, and in 1-D with RBF kernels, elsewhere None; an optimizer
    writes it out. There the two together were measured (docs/guarantees.md): the larger bound holds if either family contains
    the function. Its gamma and kappa are no larger than those given here.
    """

    m: int = 600
    gamma: float = 0.02
    kappa: float = 0.01
    alpha_bar: float = 1.0
    centres: int = 500
    median: float = 0.7
    spread: float = 0.8
    padding: float = 1.0
    floor: NormFloor | Literal["auto"] | None = "auto"
    discards: int = field(init=False, compare=False, repr=False)

    revises = True  # new data may raise the bound: no minimum with the previous one

    def __post_init__(self) -> None:
        object.__setattr__(self, "m", count(self.m, "AdaptiveScenario.m"))
        object.__setattr__(self, "centres", count(self.centres, "AdaptiveScenario.centres"))
        for name in ("gamma", "kappa"):
            object.__setattr__(self, name, probability(getattr(self, name), f"AdaptiveScenario.{name}"))
        for name in ("alpha_bar", "median", "spread", "padding"):
            object.__setattr__(self, name, positive(getattr(self, name), f"AdaptiveScenario.{name}"))
        object.__setattr__(self, "discards", discards(self.m, self.gamma, self.kappa))
        if not (isinstance(self.floor, str) and self.floor == "auto"):
            check_floor(self.floor, "AdaptiveScenario.floor")

    def estimate(self, query: NormQuery) -> float:
        """The bound for one sub-domain."""
        below = self.floor_for(query.kernel, len(query.lower))
        floor = 0.0 if below is None else float(below.estimate(query))
        return select(np.sort(self.norms(query)), self.discards, floor)

    def floor_for(self, kernel: StationaryKernel, dim: int) -> NormFloor | None:
        """The floor with this kernel in this many dimensions."""
        if not isinstance(self.floor, str):
            return self.floor
        if not (dim > 1 or isinstance(kernel, RBF)) or not PosteriorScenario.serves(kernel, dim):
            return None
        usual = PosteriorScenario()
        gamma, kappa = min(usual.gamma, self.gamma), min(usual.kappa, self.kappa)
        smallest = math.ceil(math.log(kappa) / math.log1p(-gamma)) + 1  # Theorem 1
        return PosteriorScenario(max(usual.m, smallest), gamma, kappa)

    def resolved(self, kernel: StationaryKernel, dim: int) -> AdaptiveScenario:
        """The same with its floor written out."""
        result: AdaptiveScenario = with_floor(self, resolve(self.floor_for(kernel, dim), kernel, dim))
        return result

    def check(self, kernel: StationaryKernel, dim: int) -> None:
        """A floor may refuse kernels or dimensions that this estimator serves."""
        check_served(self.floor_for(kernel, dim), kernel, dim)

    def norms(self, query: NormQuery) -> FloatArray:
        """||rho_j||_c of m functions through the samples of the sub-domain, (m,), in the order they were drawn."""
        posterior, kernel = query.posterior, query.kernel
        dim = len(query.lower)
        scale = kernel.lengthscales(dim)
        low, centres, coefficients = self.draw(query)
        corners = [((corner - low) / scale).astype(np.float32)[:, None] for corner in (query.lower, query.upper)]
        outside = np.any((centres < corners[0]) | (centres > corners[1]), axis=1)
        if dim == 1:
            quad, phi = _restricted_line(query, low, centres, coefficients, outside)
        elif dim in _PER_AXIS and outside.any():
            quad, phi = _restricted(query, low, centres, coefficients, outside)
        else:
            at = (posterior.x - low) / scale
            quad, phi = backend().scenario_parts(at, centres, coefficients, kernel.family, is_sorted=False)
        s = self.scales(query)
        return through_data(posterior, kernel.outputscale * quad * s**2, kernel.outputscale * phi * s)

    def draw(self, query: NormQuery) -> tuple[FloatArray, SingleArray, SingleArray]:
        """Corner of the padded box (n,), centres in lengthscales from there (m, n, T), coefficients at scale 1 (m, T).

        As many centres as the paper takes for the sub-domain, or as the padded box has at the density of the whole domain if
        that is more: in one dimension it is, in several the paper's number is denser.
        """
        scale = query.kernel.lengthscales(len(query.lower))
        low = np.maximum(query.lower - self.padding * scale, 0.0)
        edges = np.minimum(query.upper + self.padding * scale, 1.0) - low
        functions = RandomFunctions(self.m, self.relative(query.kernel), self.centres)
        size = functions.tail_size(max(query.width, float(np.prod(edges))), query.posterior.size)
        return low, *functions.draw(size, len(low), query.seed, (edges / scale).astype(np.float32))

    def relative(self, kernel: StationaryKernel) -> float:
        """Bound on the coefficients at scale 1: functions of order sqrt(outputscale), whose norms do not depend on it."""
        return self.alpha_bar / math.sqrt(kernel.outputscale)

    def scales(self, query: NormQuery) -> FloatArray:
        """One scale per scenario from the posterior given all samples, (m,)."""
        x, y = query.everything if query.everything is not None else (query.posterior.x, query.posterior.y)
        family = self.relative(query.kernel), self.centres, self.median, self.spread
        cdf = _scale_cdf(x.tobytes(), y.tobytes(), x.shape[1], query.kernel, query.noise, family)
        u = np.random.Generator(np.random.SFC64(np.random.SeedSequence((*query.seed, 1)))).random(self.m)
        return np.exp(np.interp(u, cdf, LOG_SCALES))


def _restricted(
    query: NormQuery, low: FloatArray, centres: SingleArray, coefficients: SingleArray, outside: Mask
) -> tuple[FloatArray, FloatArray]:
    """||in + out||_c^2 of every function, (m,), and its values at the samples, (t, m).

    ||in||^2 + 2 <in, out> come from the pairs with an inner centre, ||out||_c^2 from its interpolant. Pairs of outer centres,
    which are most of them, are not needed.
    """
    kernel, scale = query.kernel, query.kernel.lengthscales(len(low))
    first = np.argsort(outside, axis=1, kind="stable")  # the inner ones come first
    centres, coefficients = np.take_along_axis(centres, first[:, None, :], 2), np.take_along_axis(coefficients, first, 1)
    inner = np.sum(~outside, axis=1)
    at = (query.posterior.x - low) / scale
    quad, phi = backend().scenario_parts(at, centres, coefficients, kernel.family, is_sorted=False, inner=inner)
    fewest = int(inner.min())
    others = np.where(np.arange(fewest, coefficients.shape[1]) >= inner[:, None], coefficients[:, fewest:], np.float32(0.0))
    nodes = _lobatto(len(low)) * (query.upper - query.lower) + query.lower
    values = backend().scenario_parts(
        (nodes - low) / scale, centres[:, :, fewest:], others, kernel.family, is_sorted=False, inner=np.zeros_like(inner)
    )[1]
    return quad + _interpolant(kernel, nodes, values), phi


def _restricted_line(
    query: NormQuery, low: FloatArray, centres: SingleArray, coefficients: SingleArray, outside: Mask
) -> tuple[FloatArray, FloatArray]:
    """The same in one dimension, where all pairs take no longer than some: the norm of `out` is replaced by its interpolant's."""
    kernel, scale = query.kernel, query.kernel.lengthscales(1)
    sums = backend().scenario_parts
    quad, phi = sums((query.posterior.x - low) / scale, centres, coefficients, kernel.family, is_sorted=True)
    if outside.any():
        nodes = _lobatto(1) * (query.upper - query.lower) + query.lower
        full, values = sums((nodes - low) / scale, *_only(outside, centres, coefficients), kernel.family, is_sorted=True)
        quad += np.minimum(_interpolant(kernel, nodes, values) - full, 0.0)
    return quad, phi


def _interpolant(kernel: StationaryKernel, nodes: FloatArray, values: FloatArray) -> FloatArray:
    """Squared norms of the functions of least norm with values (p, m) at the nodes, at unit output scale."""
    gram = kernel(nodes, nodes) / kernel.outputscale
    factor = cholesky(gram + _JITTER * np.eye(len(nodes)), lower=True, check_finite=False)
    white = solve_triangular(factor, values, lower=True, check_finite=False)
    return np.asarray(np.einsum("pm,pm->m", white, white))


def _only(chosen: Mask, centres: SingleArray, coefficients: SingleArray) -> tuple[SingleArray, SingleArray]:
    """The chosen centres of every function in their order, padded with weight 0 to the largest number of them."""
    size = int(chosen.sum(axis=1).max())
    first = np.argsort(~chosen, axis=1, kind="stable")[:, :size]
    first.sort(axis=1)  # in one dimension centres must ascend, padding included
    weights = np.where(np.take_along_axis(chosen, first, 1), np.take_along_axis(coefficients, first, 1), np.float32(0.0))
    return np.take_along_axis(centres, first[:, None, :], 2), weights


@lru_cache(maxsize=8)
def _scale_cdf(
    x_bytes: bytes, y_bytes: bytes, dim: int, kernel: StationaryKernel, noise: float, family: tuple[float, int, float, float]
) -> FloatArray:
    """Distribution function of log s on its grid, given all samples; every sub-domain of a step asks for the same one."""
    alpha_bar, centres, median, spread = family
    x, y = np.frombuffer(x_bytes).reshape(-1, dim), np.frombuffer(y_bytes)
    if len(y) < 2:  # nothing to learn from
        return scale_cdf(np.empty(0), np.empty(0), (1.0, 0.0), noise, median, spread)
    gram, cross = kernel(x, x), kernel(x, even_points(dim, _NODES))
    prior = alpha_bar**2 / 3.0 * (gram @ gram + centres / _NODES * cross @ cross.T)
    values, vectors = eigh(prior, check_finite=False)
    first = float(prior[0, 0]), float(y[0])
    return scale_cdf(np.maximum(values, 0.0), vectors.T @ y, first, noise, median, spread)


@lru_cache(maxsize=8)
def _lobatto(dim: int) -> FloatArray:
    """Chebyshev-Lobatto nodes of the unit cube, dense at its boundary, where the outer part is least smooth, (p, n)."""
    axis = 0.5 - 0.5 * np.cos(np.linspace(0.0, np.pi, _PER_AXIS[dim]))
    return np.stack([g.ravel() for g in np.meshgrid(*[axis] * dim, indexing="ij")], axis=1)
