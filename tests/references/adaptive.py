"""The scale-adaptive scenario norm, one random function at a time.

Notation
    c              the sub-domain; Z, a   tail centres around and in it, and their coefficients at scale 1
    s              scale of the coefficients
    ||g||_c        norm of the restriction of g to c
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import multivariate_normal

from tests.references.kernels import Array, Kernel


def restricted_squared(kernel: Kernel, Z: Array, a: Array, lower: Array, upper: Array, nodes: Array) -> float:
    """||g||_c^2 of g = sum_i a_i k(., z_i): the inner centres exactly, the outer ones through their values at nodes of c."""
    inside = ((Z - lower >= 0.0) & (upper - Z >= 0.0)).all(axis=1)
    inner, outer = (Z[inside], a[inside]), (Z[~inside], a[~inside])
    values = kernel(nodes, outer[0]) @ outer[1]
    own = inner[1] @ kernel(inner[0], inner[0]) @ inner[1]
    cross = inner[1] @ kernel(inner[0], outer[0]) @ outer[1]
    return float(own + 2.0 * cross + values @ np.linalg.solve(kernel(nodes, nodes) + 1e-8 * np.eye(len(nodes)), values))


def random_norm(
    kernel: Kernel, X: Array, y: Array, Z: Array, a: Array, s: float, lower: Array, upper: Array, nodes: Array, sigma: float
) -> float:
    """||rho||_c with head coefficients b at the samples: b'Kb + 2 b'phi + s^2 ||g||_c^2."""
    phi = s * kernel(X, Z) @ a
    K = kernel(X, X)
    b = np.linalg.solve(K + sigma**2 * np.eye(len(X)), y - phi)
    return math.sqrt(b @ K @ b + 2.0 * b @ phi + s**2 * restricted_squared(kernel, Z, a, lower, upper, nodes))


def log_posterior(
    kernel: Kernel, X: Array, y: Array, nodes: Array, log_s: float, sigma: float, centres: int, median: float, spread: float
) -> float:
    """log p(log s | y_2..y_t, y_1) up to a constant: y ~ N(0, s^2 G + sigma^2 I), the first value taken as given."""
    K, C = kernel(X, X), kernel(X, nodes)
    G = (K @ K + centres * (C @ C.T) / len(nodes)) / 3.0
    covariance = math.exp(2.0 * log_s) * G + sigma**2 * np.eye(len(X))
    joint = multivariate_normal(np.zeros(len(X)), covariance).logpdf(y)
    first = multivariate_normal(np.zeros(1), covariance[:1, :1]).logpdf(y[:1])
    return float(joint - first - 0.5 * ((log_s - math.log(median)) / spread) ** 2)
