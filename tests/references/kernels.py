"""Stationary kernels and the kernel metric d_k.

Notation
    A (p, n), B (q, n)   points, one per row
    r                    scaled distance || (a - b) / lengthscale ||
    k(A, B) (p, q)       outputscale * kappa(r)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Kernel = Callable[[Array, Array], Array]


def scaled_distance(A: Array, B: Array, lengthscales: ArrayLike) -> Array:
    """r_ij = sqrt(sum_d ((A_id - B_jd) / lengthscale_d)^2), from the differences themselves."""
    scales = np.asarray(lengthscales, dtype=np.float64)
    difference = (A[:, None, :] - B[None, :, :]) / scales
    return np.asarray(np.sqrt(np.sum(difference**2, axis=-1)), dtype=np.float64)


def matern12(r: Array) -> Array:
    """kappa(r) = exp(-r)."""
    return np.asarray(np.exp(-r))


def matern32(r: Array) -> Array:
    """kappa(r) = (1 + sqrt(3) r) exp(-sqrt(3) r)."""
    s = np.sqrt(3.0) * r
    return np.asarray((1.0 + s) * np.exp(-s))


def matern52(r: Array) -> Array:
    """kappa(r) = (1 + sqrt(5) r + 5 r^2 / 3) exp(-sqrt(5) r)."""
    s = np.sqrt(5.0) * r
    return np.asarray((1.0 + s + s**2 / 3.0) * np.exp(-s))


def rbf(r: Array) -> Array:
    """kappa(r) = exp(-r^2 / 2)."""
    return np.asarray(np.exp(-0.5 * r**2))


PROFILES: dict[str, Callable[[Array], Array]] = {
    "matern12": matern12,
    "matern32": matern32,
    "matern52": matern52,
    "rbf": rbf,
}


def make_kernel(profile: str, lengthscales: ArrayLike, outputscale: float = 1.0) -> Kernel:
    """The function k(A, B) -> (p, q) of the named profile."""

    def kernel(A: Array, B: Array) -> Array:
        return outputscale * PROFILES[profile](scaled_distance(A, B, lengthscales))

    return kernel


def transcribed(spec: Any, dim: int) -> Kernel:
    """The kernel that a specification with `family`, `lengthscale` and `outputscale` describes."""
    return make_kernel(spec.family, np.broadcast_to(spec.lengthscale, dim), spec.outputscale)


def metric(kernel: Kernel, A: Array, B: Array) -> Array:
    """d_k(a, a')^2 = k(a,a) + k(a',a') - k(a,a') - k(a',a) for all pairs, eq. (semi-metric)."""
    k_aa, k_bb = np.diagonal(kernel(A, A)), np.diagonal(kernel(B, B))
    squared = k_aa[:, None] + k_bb[None, :] - kernel(A, B) - kernel(B, A).T
    return np.asarray(np.sqrt(np.maximum(squared, 0.0)), dtype=np.float64)
