"""The learned norm estimator: two recurrent branches that extrapolate the norm of the posterior mean (appendix on the RNN).

Notation
    t               samples of the sub-domain, in the order in which they were taken; s = 1..t a step of its history
    mu_s            posterior mean after s samples, ||mu_s|| its RKHS norm, ||mu_0|| = 0
    v_s             posterior variance after s samples, averaged over the box, in units of the output scale: the variance
                    integral divided by the volume and by its prior value
    growth          first sequence, 1 - ||mu_{s-1}|| / ||mu_s||: 1 at the first sample, 0 where a sample adds nothing
    density         second sequence, log(1 / v_s): the reciprocal integral on a scale that fits a network
    c               what does not change with s: size of the box in lengthscales, dimension, smoothness, noise
    estimate        ||mu_t|| exp(ReLU(z)), z from the last hidden states of both branches

The norm itself never enters, only its growth, and what comes out is a factor on ||mu_t||: the estimate is proportional to the
measurements, whatever their unit, and one set of weights serves boxes of any size. Inference needs numpy only; the weights were
made by `safebo train-norm`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from safebo.kernels import StationaryKernel
from safebo.posterior import Posterior

FloatArray = NDArray[np.float64]

INTEGRATION_POINTS = 256
"""Points of the variance integral: a solve with 50 samples takes 0.2 ms."""

SMOOTHNESS = {"matern12": 1.0, "matern32": 1.0 / 3.0, "matern52": 1.0 / 5.0, "rbf": 0.0}
"""1 / (2 nu) of every kernel family."""


# -- the two sequences ---------------------------------------------------------------------------------------------------


def history(posterior: Posterior, lower: FloatArray, upper: FloatArray) -> tuple[FloatArray, FloatArray]:
    """||mu_s|| and v_s for s = 1..t, (t,) each, from one Cholesky factor: its leading blocks are those of the prefixes."""
    if posterior.size == 0:
        return np.empty(0), np.empty(0)
    # b_s = L_s^-T w_s = sum over i <= s of w_i times row i of L^-1, and ||mu_s||^2 = b'Kb = |w_s|^2 - lambda |b_s|^2
    inverse = solve_triangular(posterior.chol, np.eye(posterior.size), lower=True, check_finite=False)
    weights = np.cumsum(inverse * posterior.white[:, None], axis=0)  # row s holds b_s
    noise = posterior.regulariser + posterior.jitter * posterior.kernel.outputscale
    squared = np.cumsum(posterior.white**2) - noise * (weights**2).sum(axis=1)
    points = lower + (upper - lower) * _points(len(lower))
    explained = np.cumsum(((inverse @ posterior.kernel(posterior.x, points)) ** 2).mean(axis=1))
    variance = 1.0 - explained / posterior.kernel.outputscale
    return np.sqrt(np.maximum(squared, 0.0)), np.maximum(variance, np.finfo(np.float64).eps)


@lru_cache(maxsize=16)
def _points(dim: int) -> FloatArray:
    """Points that fill the unit cube evenly, (p, n): multiples of the powers of the root g of g^(n+1) = g + 1, modulo 1."""
    root = 2.0
    for _ in range(64):
        root = (1.0 + root) ** (1.0 / (dim + 1))
    steps = root ** -np.arange(1.0, dim + 1.0)
    points = np.asarray((0.5 + np.outer(np.arange(1, INTEGRATION_POINTS + 1), steps)) % 1.0)
    points.flags.writeable = False
    return points


def context(kernel: StationaryKernel, noise: float, lower: FloatArray, upper: FloatArray) -> FloatArray:
    """What does not change with s, (4,): log of the mean edge in lengthscales, dimension, 1 / (2 nu), log of the noise."""
    dim = len(lower)
    size = float(np.log((upper - lower) / kernel.lengthscales(dim)).mean())
    return np.array([size, dim, SMOOTHNESS[kernel.family], math.log(noise / math.sqrt(kernel.outputscale))])
