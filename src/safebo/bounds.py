"""Confidence bounds: |f(a) - mean(a)| as a function of the norm bound B, the noise sigma and the failure probability delta.

Notation
    sigma     noise level: the noise is sigma-sub-Gaussian given the past
    lambda    regulariser of the posterior that a bound is used with (`regulariser`)
    beta      half-width of Q_t in posterior standard deviations
    R_t^2     with probability 1 - delta, for all t at once, sum_i (f(x_i) - y_i)^2 <= R_t^2 (Gaussian martingale mixture)

Two kinds: a `ScaledBound` has the form mean +- beta sd with one beta for all points; an `EnvelopeBound` intersects several.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from safebo.exceptions import InvalidValueError
from safebo.posterior import PointField, Posterior

FloatArray = NDArray[np.float64]


class ConfidenceBound(Protocol):
    """What every bound has in common."""

    def regulariser(self, noise: float) -> float:
        """lambda of the posterior that the bound belongs to."""
        ...


class ScaledBound(ConfidenceBound, Protocol):
    """Q_t = mean +- beta sd."""

    def beta(self, posterior: Posterior, norm: float, noise: float, delta: float) -> float:
        """Half-width in posterior standard deviations for ||f|| <= norm."""
        ...


class EnvelopeBound(ConfidenceBound, Protocol):
    """Q_t = intersection of mean +- factor sd over several regularisers."""

    def bands(self, posterior: Posterior, norm: float, noise: float, delta: float) -> tuple[FloatArray, FloatArray] | None:
        """Regularisers (p,) and the half-width of each interval in its own standard deviations; None if the norm is refuted."""
        ...


def is_scaled(bound: ConfidenceBound) -> TypeGuard[ScaledBound]:
    """Whether a bound has the form mean +- beta sd."""
    return hasattr(bound, "beta")


@dataclass(frozen=True)
class Paper:
    """Eq. (5) as printed: posterior at sigma^2, beta = B + sqrt(sigma logdet(I + K/sigma) - 2 sigma log delta).

    The cited theorem gives this beta for the posterior at regulariser sigma, not sigma^2: used as printed the interval is not
    covered by a proof. `AbbasiYadkori("noise")` is the same beta with the posterior it belongs to.
    """

    def regulariser(self, noise: float) -> float:
        """sigma^2."""
        return noise**2

    def beta(self, posterior: Posterior, norm: float, noise: float, delta: float) -> float:
        """Eq. (5)."""
        gram = posterior.kernel(posterior.x, posterior.x)
        _, log_det = np.linalg.slogdet(np.eye(posterior.size) + gram / noise)
        return norm + math.sqrt(noise * float(log_det) - 2.0 * noise * math.log(delta))


@dataclass(frozen=True)
class AbbasiYadkori:
    """beta = B + (sigma / sqrt(lambda)) sqrt(logdet(I + K/lambda) - 2 log delta) (Abbasi-Yadkori 2013, Thm. 3.11, Rem. 3.13).

    Valid for any fixed lambda > 0: a number, "noise_variance" (sigma^2, the default) or "noise" (sigma, the paper's beta with a
    matching posterior).
    """

    lam: float | str = "noise_variance"

    def __post_init__(self) -> None:
        named = isinstance(self.lam, str) and self.lam in ("noise_variance", "noise")
        number = isinstance(self.lam, (int, float)) and not isinstance(self.lam, bool)
        if not (named or (number and math.isfinite(float(self.lam)) and float(self.lam) > 0.0)):
            raise InvalidValueError(f"AbbasiYadkori.lam must be positive, 'noise_variance' or 'noise', got {self.lam!r}.")

    def regulariser(self, noise: float) -> float:
        """lambda."""
        if isinstance(self.lam, str):
            return noise if self.lam == "noise" else noise**2
        return float(self.lam)

    def beta(self, posterior: Posterior, norm: float, noise: float, delta: float) -> float:
        """Theorem 3.11 with the posterior's own log-determinant."""
        scale = noise / math.sqrt(posterior.regulariser)
        return norm + scale * math.sqrt(max(posterior.log_det, 0.0) - 2.0 * math.log(delta))


@dataclass(frozen=True)
class MartingaleMixture:
    """Intersection over regularisers alpha of the interval that R_t^2 and ||f|| <= B imply together.

    |f - mu_alpha| <= s_alpha sqrt((R_t^2 + alpha B^2 - alpha y'(K + alpha I)^-1 y) / alpha) for every alpha > 0 at once, no union
    bound (the idea of Flynn and Reeb, "Tighter confidence bounds for sequential kernel regression", AISTATS 2025). alpha runs
    over `points` values, log-spaced from `low` to `high` times sigma^2.
    """

    low: float = 1e-2
    high: float = 1e4
    points: int = 25

    def __post_init__(self) -> None:
        numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (self.low, self.high, self.points))
        if not (numbers and 0.0 < self.low <= self.high < math.inf and self.points >= 1 and int(self.points) == self.points):
            raise InvalidValueError(f"MartingaleMixture needs 0 < low <= high and points >= 1, got {self!r}.")

    def regulariser(self, noise: float) -> float:
        """sigma^2: R_t^2 is stated with it."""
        return noise**2

    def alphas(self, noise: float) -> FloatArray:
        """The regularisers, (p,)."""
        return noise**2 * _log_spaced(self.low, self.high, self.points)

    def bands(self, posterior: Posterior, norm: float, noise: float, delta: float) -> tuple[FloatArray, FloatArray] | None:
        """alpha and sqrt((R_t^2 + alpha B^2 - alpha y'(K + alpha I)^-1 y) / alpha); one eigendecomposition serves all of them."""
        spectrum, alphas = posterior.spectrum, self.alphas(noise)
        residual = spectrum.weights(alphas) @ spectrum.y**2  # y'(K + alpha I)^-1 y, (p,)
        squared = residual_radius(posterior, noise, delta) / alphas + norm**2 - residual
        if (squared <= 0.0).any():  # refuted: never clip to a zero-width interval
            return None
        return alphas, np.sqrt(squared)


@lru_cache(maxsize=16)
def _log_spaced(low: float, high: float, points: int) -> FloatArray:
    return np.geomspace(low, high, points)


def intersection(
    bound: EnvelopeBound, posterior: Posterior, columns: FloatArray, norm: float, noise: float, delta: float
) -> PointField:
    """Q_t of an envelope bound at points with scaled columns (n, G), and the posterior's own mean and variance there.

    A refuted norm gives crossing ends: (inf, -inf).
    """
    bands = bound.bands(posterior, norm, noise, delta)
    alphas, factors = (np.empty(0), np.empty(0)) if bands is None else bands
    field = posterior.field(columns, alphas, factors)
    if bands is None:
        field.lower[:], field.upper[:] = np.inf, -np.inf
    return field


def residual_radius(posterior: Posterior, noise: float, delta: float) -> float:
    """R_t^2 = sigma^2 (y'(K + sigma^2 I)^-1 y + logdet(I + K/sigma^2) + 2 log(1/delta)); the posterior must be at sigma^2."""
    return noise**2 * (float(posterior.white @ posterior.white) + max(posterior.log_det, 0.0) - 2.0 * math.log(delta))


def norm_lower_bound(posterior: Posterior, noise: float, delta: float) -> float:
    """The smallest norm that the data do not refute: ||f||^2 >= max_alpha y'(K + alpha I)^-1 y - R_t^2 / alpha.

    Holds with probability 1 - delta for all t at once. The posterior must be at regulariser sigma^2.
    """
    spectrum = posterior.spectrum
    alphas = noise**2 * _log_spaced(1e-2, 1e6, 65)
    residual = spectrum.weights(alphas) @ spectrum.y**2
    return math.sqrt(max(float((residual - residual_radius(posterior, noise, delta) / alphas).max()), 0.0))


__all__ = [
    "AbbasiYadkori",
    "ConfidenceBound",
    "EnvelopeBound",
    "MartingaleMixture",
    "Paper",
    "ScaledBound",
    "intersection",
    "norm_lower_bound",
    "residual_radius",
]
