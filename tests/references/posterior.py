"""Posterior of a zero-mean Gaussian process at regulariser lambda, eqs. (mean) and (covariance).

The paper prints sigma^2 where lambda stands here; the bounds differ in the lambda they use.
"""

from __future__ import annotations

import math

import numpy as np

from tests.references.kernels import Array, Kernel


def posterior(kernel: Kernel, X: Array, y: Array, regulariser: float, A: Array) -> tuple[Array, Array]:
    """Mean and standard deviation at the rows of A.

    mu(a) = k_t(a)' (K + lambda I)^-1 y, s(a)^2 = k(a,a) - k_t(a)' (K + lambda I)^-1 k_t(a).
    Returns the mean (p,) and the standard deviation (p,) at the p rows of A.
    """
    k_aa = np.diagonal(kernel(A, A))
    if len(X) == 0:
        return np.zeros(len(A)), np.sqrt(k_aa)
    K = kernel(X, X)
    k_xa = kernel(X, A)
    M = K + regulariser * np.eye(len(X))
    mean = k_xa.T @ np.linalg.solve(M, y)
    explained = np.sum(k_xa * np.linalg.solve(M, k_xa), axis=0)
    return mean, np.sqrt(np.maximum(k_aa - explained, 0.0))


def log_det(K: Array, scale: float) -> float:
    """log det(I + K / scale)."""
    sign, value = np.linalg.slogdet(np.eye(len(K)) + K / scale)
    if sign <= 0:
        raise ValueError(f"I + K / {scale} is not positive definite")
    return float(value)


def mean_norm(kernel: Kernel, X: Array, y: Array, regulariser: float) -> float:
    """||mu||_k = sqrt(w' K w) with w = (K + lambda I)^-1 y."""
    K = kernel(X, X)
    w = np.linalg.solve(K + regulariser * np.eye(len(X)), y)
    return math.sqrt(max(float(w @ K @ w), 0.0))
