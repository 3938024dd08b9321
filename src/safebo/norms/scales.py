"""The scale of the random functions, learned from all samples: shared by the estimators that do not take it as given."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

LOG_SCALES = np.linspace(np.log(1e-4), np.log(1e4), 737)
"""Grid of log s, in steps of 2.5 %.

Drawn between the points of `scale_cdf`, s is half a step too small, 1.25 %. All runs of the calibration study have it."""


def scale_cdf(
    values: FloatArray, rotated: FloatArray, first: tuple[float, float], noise: float, median: float, spread: float
) -> FloatArray:
    """Distribution function of log s on its grid, for y ~ N(0, s^2 G + sigma^2 I) and a log-normal s.

    values (t,) are the eigenvalues of G, rotated (t,) is y in its eigenvectors. first: G_00 and y_0 of the first measurement. The
    operator chose it, typically not at a typical value, so its own likelihood is left out.
    """
    log_density = -0.5 * ((LOG_SCALES - math.log(median)) / spread) ** 2
    if len(rotated) > 1:
        variances = np.exp(2.0 * LOG_SCALES)[:, None] * values + noise**2
        log_density -= 0.5 * (np.log(variances) + rotated**2 / variances).sum(axis=1)
        own = np.exp(2.0 * LOG_SCALES) * first[0] + noise**2
        log_density += 0.5 * (np.log(own) + first[1] ** 2 / own)
    cdf = np.cumsum(np.exp(log_density - log_density.max()))
    return np.asarray(cdf / cdf[-1])
