"""Confidence bounds.

Bounds (each with the same regulariser in posterior and bound, except the printed one)
    Paper               eq. (Q) as printed, posterior at sigma^2
    AbbasiYadkori       any fixed regulariser lambda
    MartingaleMixture   intersection over regularisers alpha, no union bound
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tests.references.kernels import Array, Kernel
from tests.references.posterior import log_det, posterior

Beta = Callable[[Array, float, float, float], float]


def paper_beta(K: Array, B: float, sigma: float, delta: float) -> float:
    """beta = B + sqrt(sigma log det(I + K/sigma) - 2 sigma log delta), eq. (Q)."""
    return B + math.sqrt(sigma * log_det(K, sigma) - 2.0 * sigma * math.log(delta))


def abbasi_yadkori_beta(regulariser: float) -> Beta:
    """beta = B + sigma / sqrt(lambda) * sqrt(log det(I + K/lambda) - 2 log delta)."""

    def beta(K: Array, B: float, sigma: float, delta: float) -> float:
        width = math.sqrt(log_det(K, regulariser) - 2.0 * math.log(delta))
        return B + sigma / math.sqrt(regulariser) * width

    return beta


def beta_interval(
    kernel: Kernel,
    X: Array,
    y: Array,
    A: Array,
    *,
    regulariser: float,
    beta: Beta,
    B: float,
    sigma: float,
    delta: float,
) -> tuple[Array, Array]:
    """Q(a) = mu(a) -+ beta s(a) at the rows of A."""
    mean, sd = posterior(kernel, X, y, regulariser, A)
    factor = beta(kernel(X, X), B, sigma, delta)
    return mean - factor * sd, mean + factor * sd


def alpha_grid(sigma: float) -> Array:
    """25 regularisers between 1e-2 and 1e4 times sigma^2."""
    return np.asarray(sigma**2 * np.logspace(-2, 4, 25), dtype=np.float64)


def mixture_radius_squared(K: Array, y: Array, sigma: float, delta: float) -> float:
    """R^2 = y'(I + K/sigma^2)^-1 y + sigma^2 log det(I + K/sigma^2) + 2 sigma^2 log(1/delta).

    With probability 1 - delta, sum_i (f(x_i) - y_i)^2 <= R^2 for all t at once.
    """
    fit = float(y @ np.linalg.solve(np.eye(len(K)) + K / sigma**2, y))
    return fit + sigma**2 * log_det(K, sigma**2) + 2.0 * sigma**2 * math.log(1.0 / delta)


def ridge_minimum(K: Array, y: Array, alpha: float) -> float:
    """min_f sum_i (f(x_i) - y_i)^2 + alpha ||f||^2 = y'y - y'K(K + alpha I)^-1 y.

    Evaluated as alpha y'(K + alpha I)^-1 y, the same number without the cancellation.
    """
    return float(alpha * (y @ np.linalg.solve(K + alpha * np.eye(len(K)), y)))


def mixture_slack(K: Array, y: Array, sigma: float, delta: float, B: float) -> Array:
    """(R^2 + alpha B^2 - y'y + y'K(K + alpha I)^-1 y) / alpha for every alpha of the grid.

    A negative entry means that the data refute ||f|| <= B.
    """
    R2 = mixture_radius_squared(K, y, sigma, delta)
    return np.array([(R2 + alpha * B**2 - ridge_minimum(K, y, alpha)) / alpha for alpha in alpha_grid(sigma)])


def mixture_interval(
    kernel: Kernel, X: Array, y: Array, A: Array, *, sigma: float, delta: float, B: float
) -> tuple[Array, Array]:
    """Intersection over alpha of mu_alpha(a) -+ s_alpha(a) sqrt(slack_alpha).

    Raises ValueError where the norm is refuted: the caller has to raise B first.
    """
    lower, upper = np.full(len(A), -np.inf), np.full(len(A), np.inf)
    slack = mixture_slack(kernel(X, X), y, sigma, delta, B)
    if np.min(slack) < 0:
        raise ValueError(f"norm {B} is refuted: smallest squared radius {np.min(slack)}")
    for alpha, squared in zip(alpha_grid(sigma), slack, strict=True):
        mean, sd = posterior(kernel, X, y, float(alpha), A)
        lower = np.maximum(lower, mean - sd * math.sqrt(squared))
        upper = np.minimum(upper, mean + sd * math.sqrt(squared))
    return lower, upper


def falsification_bound(K: Array, y: Array, sigma: float, delta: float, alphas: Array | None = None) -> float:
    """||f|| >= sqrt(max_alpha (y'y - y'K(K + alpha I)^-1 y - R^2) / alpha), zero where negative."""
    R2 = mixture_radius_squared(K, y, sigma, delta)
    grid = alpha_grid(sigma) if alphas is None else alphas
    best = max((ridge_minimum(K, y, alpha) - R2) / alpha for alpha in grid)
    return math.sqrt(max(best, 0.0))
