"""Functions of the reproducing kernel Hilbert space: evaluation, norm, random draws, local norm.

Notation
    f        a function sum_i a_i k(., z_i)
    Z        centres z_i, (N, n), points of the unit cube
    a        coefficients, (N,)
    X        points of the unit cube, (p, n)
    K        k(Z, Z), (N, N)
    ||f||    RKHS norm, ||f||^2 = a'Ka
    ||f||_c  local norm on a sub-domain c: the smallest norm of a function that equals f on c

Nothing here holds an (N, N) or (p, N) matrix at once, except for the few interpolation points of a local norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cholesky, solve_triangular

from safebo.domain import Cube, Grid
from safebo.exceptions import InvalidValueError, NotPositiveDefiniteError
from safebo.kernels import StationaryKernel

FloatArray = NDArray[np.float64]

LOCAL_NORM_JITTER = 1e-10
"""Diagonal term of the interpolation, in units of the output scale. It keeps the factorisation defined when grid points nearly
coincide, and can only lower the result, by at most 1e-10 |b|^2 for an interpolant with coefficients b."""

_LOCAL_POINTS = 1000  # grid points of a local norm by default: a Cholesky factorisation of some 50 ms

# Kernel entries per chunk, 125 kB: below the size from which the allocator maps fresh pages for every temporary array, which
# was measured to take three times as long as the arithmetic.
_CHUNK = 16_000


@dataclass(frozen=True, eq=False)
class RKHSFunction:
    """f = sum_i a_i k(., z_i), the finite expansions that are dense in the RKHS."""

    kernel: StationaryKernel
    centres: FloatArray
    coefficients: FloatArray

    def __post_init__(self) -> None:
        centres = np.array(self.centres, dtype=np.float64)
        coefficients = np.array(self.coefficients, dtype=np.float64)
        if centres.ndim != 2 or centres.size == 0 or coefficients.shape != centres.shape[:1]:
            raise InvalidValueError(
                "An RKHS function needs centres (N, n) and coefficients (N,) with N, n >= 1, "
                f"got shapes {centres.shape} and {coefficients.shape}."
            )
        if not (np.isfinite(centres).all() and np.isfinite(coefficients).all()):
            raise InvalidValueError("The centres and coefficients of an RKHS function must be finite, got NaN or infinity.")
        self.kernel.lengthscales(centres.shape[1])  # raises if the kernel has another number of axes
        centres.flags.writeable = coefficients.flags.writeable = False
        object.__setattr__(self, "centres", centres)
        object.__setattr__(self, "coefficients", coefficients)

    def __repr__(self) -> str:
        return f"RKHSFunction({self.kernel!r}, {self.centres.shape[0]} centres in {self.dim} dimensions)"

    @property
    def dim(self) -> int:
        """Number of parameters n."""
        return int(self.centres.shape[1])

    def __call__(self, X: ArrayLike) -> FloatArray:
        """f at every row of X (p, n), as (p,)."""
        x = np.asarray(X, dtype=np.float64)
        if x.ndim != 2 or x.shape[1] != self.dim:
            raise InvalidValueError(f"Expected points of shape (p, {self.dim}), got an array of shape {x.shape}.")
        values = np.empty(x.shape[0])
        for rows in _chunks(x.shape[0], self.centres.shape[0]):
            values[rows] = self.kernel(x[rows], self.centres) @ self.coefficients
        return values

    @cached_property
    def norm(self) -> float:
        """||f|| = sqrt(a'Ka)."""
        a, total = self.coefficients, 0.0
        for rows in _chunks(a.size, a.size):  # the blocks on and right of the diagonal; K is symmetric
            total += float(a[rows] @ self.kernel(self.centres[rows], self.centres[rows]) @ a[rows])
            rest = slice(rows.stop, None)
            total += 2.0 * float(a[rows] @ self.kernel(self.centres[rows], self.centres[rest]) @ a[rest])
        return math.sqrt(max(total, 0.0))

    def scaled_to(self, norm: float) -> RKHSFunction:
        """The multiple of f that has the given norm."""
        if not (math.isfinite(norm) and norm >= 0.0):
            raise InvalidValueError(f"A norm must be finite and not negative, got {norm!r}.")
        if self.norm == 0.0:
            raise InvalidValueError(f"The zero function cannot be scaled to norm {norm!r}.")
        return RKHSFunction(self.kernel, self.centres, self.coefficients * (norm / self.norm))

    def local_norm(self, cube: Cube, points: int | None = None) -> float:
        """Lower bound of ||f||_c: the norm of the minimum-norm interpolant of f on a dense grid of the box.

        With P the grid of the box, `points` per axis, together with the centres inside the box, it is
        sqrt(f(P)' (k(P,P) + jitter I)^-1 f(P)). It converges to ||f||_c from below as `points` grows. On the whole domain it is
        ||f|| for every grid, since f itself is the interpolant. ||f||_c grows with the box; so does the result, up to the
        discretisation error of two grids of which neither contains the other.
        """
        if cube.dim != self.dim:
            raise InvalidValueError(f"The sub-domain has {cube.dim} axes, the function {self.dim}.")
        per_axis = max(2, math.floor(_LOCAL_POINTS ** (1.0 / self.dim) + 1e-9)) if points is None else points
        if isinstance(per_axis, bool) or not isinstance(per_axis, (int, np.integer)) or per_axis < 2:
            raise InvalidValueError(f"A local norm needs at least 2 points per axis, got {points!r}.")
        grid = Grid(cube, (int(per_axis),) * self.dim)
        nodes = np.concatenate([grid.points(), self.centres[cube.contains(self.centres)]])
        gram = self.kernel(nodes, nodes)
        gram.flat[:: len(nodes) + 1] += LOCAL_NORM_JITTER * self.kernel.outputscale
        try:
            factor = cholesky(gram, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            raise NotPositiveDefiniteError(
                f"The {len(nodes)} interpolation points of this local norm are too close together for {self.kernel!r}: "
                f"use fewer points per axis than {per_axis}."
            ) from None
        return float(np.linalg.norm(solve_triangular(factor, self(nodes), lower=True, check_finite=False)))


def random_function(
    kernel: StationaryKernel, dim: int, norm: float, seed: int, n_centres: int | tuple[int, int] = 1000
) -> RKHSFunction:
    """A random function of the given norm: centres uniform in the unit cube, coefficients uniform in [-1, 1], then scaled.

    `n_centres` is the number of centres, or a range (low, high), ends included, from which it is drawn.
    """
    rng = np.random.default_rng(checked_seed(seed))
    low, high = n_centres if isinstance(n_centres, tuple) else (n_centres, n_centres)
    if not (isinstance(low, (int, np.integer)) and isinstance(high, (int, np.integer)) and 1 <= low <= high):
        raise InvalidValueError(f"n_centres must be a positive integer or a range (low, high) of them, got {n_centres!r}.")
    if not (math.isfinite(norm) and norm > 0.0):
        raise InvalidValueError(f"The norm of a random function must be positive and finite, got {norm!r}.")
    count = int(rng.integers(low, high, endpoint=True))
    return RKHSFunction(kernel, rng.random((count, dim)), rng.uniform(-1.0, 1.0, count)).scaled_to(norm)


def _chunks(rows: int, columns: int) -> Iterator[slice]:
    """Slices of the rows of a (rows, columns) kernel matrix with about _CHUNK entries each."""
    step = max(1, _CHUNK // columns)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def checked_seed(seed: object) -> int:
    """The seed, if it is an integer >= 0."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InvalidValueError(f"A seed must be an integer >= 0, got {seed!r}.")
    return int(seed)
