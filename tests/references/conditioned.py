"""The posterior of the family of random functions, written out: one scale, dense matrices."""

from __future__ import annotations

import numpy as np

from tests.references.heading import correlations


def posterior(kernel, x, y, noise, s, nodes):
    """Mean and covariance of f at the nodes for the standard deviation s of f."""
    A = np.linalg.inv(s**2 * correlations(kernel, x, x) + noise**2 * np.eye(len(y)))
    k = s**2 * correlations(kernel, nodes, x)
    return k @ A @ y, s**2 * correlations(kernel, nodes, nodes) - k @ A @ k.T


def log_density_of_scale(kernel, x, y, noise, s, median, spread):
    """Up to a constant: log-normal prior, likelihood of all samples given the first."""
    value = -0.5 * (np.log(s / median) / spread) ** 2
    C = s**2 * correlations(kernel, x, x) + noise**2 * np.eye(len(y))
    value -= 0.5 * (np.linalg.slogdet(C)[1] + y @ np.linalg.solve(C, y))
    return value + 0.5 * (np.log(C[0, 0]) + y[0] ** 2 / C[0, 0])
