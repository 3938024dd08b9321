"""Exact Gaussian-process posterior, extended one sample at a time.

Notation
    X (t, n), y (t,)   samples in the unit cube and their measurements
    K = k(X, X)        kernel matrix
    lambda             regulariser of the posterior (sigma^2 in eqs. (2), (3) of the paper; a bound may choose another)
    L                  Cholesky factor of K + lambda I
    w = L^-1 y         whitened measurements, `white`
    V = L^-1 k(X, .)   basis on a set of points: mean = V'w, variance = k(a, a) - sum V^2

Row t of L, w and V depends on the samples up to t only. Hence one more sample is one more row, and the posterior after ANY
earlier sample is a partial sum over rows: the nested interval C_t can be rebuilt at any point from L, w and the betas.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, eigh, solve_triangular

from safebo.compute import backend
from safebo.exceptions import InvalidValueError, JitterWarning, NotPositiveDefiniteError
from safebo.kernels import StationaryKernel

FloatArray = NDArray[np.float64]

# Tried in turn, relative to k(a, a), when K + lambda I is not positive definite in floating point. Any of them acts like
# additional measurement noise; 1e-6 corresponds to a standard deviation of a thousandth of the prior's.
JITTERS = (0.0, 1e-10, 1e-8, 1e-6)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """K = U diag(values) U' and U'y; one eigendecomposition serves every regulariser."""

    values: FloatArray
    vectors: FloatArray
    y: FloatArray

    def weights(self, regularisers: FloatArray) -> FloatArray:
        """1 / (eigenvalue + regulariser), (p, t)."""
        return np.asarray(1.0 / (self.values[None, :] + regularisers[:, None]))


@dataclass(frozen=True, eq=False)
class Posterior:
    """The data side of the posterior: everything that does not depend on where it is evaluated."""

    kernel: StationaryKernel
    regulariser: float
    x: FloatArray  # (t, n)
    y: FloatArray  # (t,)
    chol: FloatArray  # (t, t), L
    white: FloatArray  # (t,), w = L^-1 y
    jitter: float = 0.0  # added to the diagonal beyond the regulariser; 0 unless a JitterWarning was issued

    @classmethod
    def empty(cls, kernel: StationaryKernel, dim: int, regulariser: float) -> Posterior:
        """The prior."""
        if not (math.isfinite(regulariser) and regulariser > 0.0):
            raise InvalidValueError(f"The regulariser must be positive and finite, got {regulariser!r}.")
        kernel.lengthscales(dim)
        return cls(kernel, regulariser, np.empty((0, dim)), np.empty(0), np.empty((0, 0)), np.empty(0))

    @property
    def size(self) -> int:
        """Number of samples t."""
        return len(self.y)

    def extend(self, x: FloatArray, y: FloatArray) -> Posterior:
        """A new posterior with further samples x (p, n), y (p,); O(t^2) per sample."""
        points, values = np.atleast_2d(np.asarray(x, dtype=np.float64)), np.atleast_1d(np.asarray(y, dtype=np.float64))
        all_x, all_y = np.concatenate([self.x, points]), np.concatenate([self.y, values])
        first = JITTERS.index(self.jitter)
        for jitter in JITTERS[first:]:
            known = self.size if jitter == self.jitter else 0
            factor = self._factorise(all_x, jitter, known)
            if factor is not None:
                if jitter > self.jitter:
                    warnings.warn(
                        f"The kernel matrix of {len(all_y)} samples is singular in floating point: added {jitter:g} x "
                        f"outputscale to its diagonal (regulariser {self.regulariser:g}). State a larger noise if unintended.",
                        JitterWarning,
                        stacklevel=2,
                    )
                white = np.empty(len(all_y))
                white[:known] = self.white[:known]
                for row in range(known, len(all_y)):
                    white[row] = (all_y[row] - factor[row, :row] @ white[:row]) / factor[row, row]
                return Posterior(self.kernel, self.regulariser, all_x, all_y, factor, white, jitter)
        raise NotPositiveDefiniteError(
            f"The kernel matrix of {len(all_y)} samples could not be factorised with jitters up to {JITTERS[-1]:g} "
            f"(regulariser {self.regulariser:g}): state a larger noise."
        )

    def _factorise(self, x: FloatArray, jitter: float, known: int) -> FloatArray | None:
        """L row by row from row `known` on; None if a pivot vanishes."""
        size = len(x)
        factor = np.zeros((size, size))
        factor[:known, :known] = self.chol[:known, :known]
        cross = self.kernel(x[known:], x)
        diagonal = self.kernel.outputscale * (1.0 + jitter) + self.regulariser
        smallest = 8.0 * np.finfo(np.float64).eps * size * diagonal
        for row in range(known, size):
            if row:
                factor[row, :row] = solve_triangular(factor[:row, :row], cross[row - known, :row], lower=True, check_finite=False)
            pivot = diagonal - factor[row, :row] @ factor[row, :row]
            if not pivot > smallest:
                return None
            factor[row, row] = math.sqrt(pivot)
        return factor

    # -- scalars of the posterior ---------------------------------------------------------------------------------------

    @property
    def log_det(self) -> float:
        """log det(I + K / lambda), from the Cholesky factor."""
        return float(2.0 * np.log(np.diagonal(self.chol)).sum() - self.size * math.log(self.regulariser))

    @property
    def weights(self) -> FloatArray:
        """(K + lambda I)^-1 y, the coefficients of the posterior mean."""
        return np.asarray(solve_triangular(self.chol, self.white, lower=True, trans="T", check_finite=False))

    @property
    def mean_norm(self) -> float:
        """RKHS norm of the posterior mean: sqrt(b'Kb) with b = (K + lambda I)^-1 y, so b'Kb = y'b - lambda b'b."""
        b = self.weights
        noise = self.regulariser + self.jitter * self.kernel.outputscale
        return math.sqrt(max(float(self.y @ b - noise * (b @ b)), 0.0))

    @cached_property
    def spectrum(self) -> Spectrum:
        """Eigendecomposition of the kernel matrix of the samples; rounding below zero is clipped."""
        values, vectors = eigh(self.kernel(self.x, self.x), check_finite=False)
        return Spectrum(np.maximum(values, 0.0), vectors, vectors.T @ self.y)

    def solve(self, rhs: FloatArray) -> FloatArray:
        """(K + lambda I)^-1 rhs."""
        return np.asarray(cho_solve((self.chol, True), rhs, check_finite=False))

    # -- evaluation -----------------------------------------------------------------------------------------------------

    def at(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Posterior mean and standard deviation at points (p, n), eqs. (2) and (3)."""
        columns = scaled_columns(points.T, self.kernel)
        field = PointField.prior(columns.shape[1], self.kernel).advanced(
            columns, self, np.full(self.size, -1.0), keep_basis=False
        )
        return field.mean, np.sqrt(np.maximum(field.variance, 0.0))

    def field(self, columns: FloatArray, regularisers: FloatArray, factors: FloatArray) -> PointField:
        """Mean and variance at points with scaled columns (n, G), and the intersection over p of mean_p +- factors[p] sd_p.

        mean_p and sd_p are those of the same samples with regularisers[p]. Without any the interval is R.
        """
        start, spectrum = PointField.prior(columns.shape[1], self.kernel), self.spectrum
        weights = spectrum.weights(np.append(regularisers, self.regulariser))
        backend().intersect(
            columns, self.x / self.kernel.lengthscales(self.x.shape[1]), spectrum.vectors, weights, weights * spectrum.y, factors,
            self.kernel.family, self.kernel.outputscale, start.lower, start.upper, start.mean, start.variance,
        )  # fmt: skip
        return replace(start, rows=self.size)

    def prefix(self, size: int) -> Posterior:
        """The posterior after the first `size` samples: leading blocks of L and w."""
        return Posterior(
            self.kernel, self.regulariser, self.x[:size], self.y[:size], self.chol[:size, :size], self.white[:size], self.jitter
        )


def scaled_columns(columns: FloatArray, kernel: StationaryKernel) -> FloatArray:
    """Points with one row per axis, (n, G), divided by the lengthscales: the layout that vectorises."""
    return np.ascontiguousarray(columns / kernel.lengthscales(len(columns))[:, None])


class Basis:
    """V = L^-1 k(X, points) with spare rows.

    A field owns the rows it has used. Whoever continues it first may write the next ones in place; anyone else gets a copy.
    """

    def __init__(self, array: FloatArray, used: int) -> None:
        self.array, self.used = array, used

    def room(self, rows: int, size: int) -> Basis:
        """A basis with the first `rows` rows of this one and space for `size`, this one itself where that disturbs nobody."""
        if self.used == rows and len(self.array) >= size:
            return self
        grown = np.empty((size + max(2, size // 4), self.array.shape[1]))
        grown[:rows] = self.array[:rows]
        return Basis(grown, rows)


@dataclass(frozen=True, eq=False)
class PointField:
    """Posterior and nested interval on a fixed set of points; `advanced` returns the field after further samples."""

    mean: FloatArray  # (G,)
    variance: FloatArray  # (G,)
    lower: FloatArray  # (G,) C_t
    upper: FloatArray  # (G,)
    rows: int = 0
    jitter: float = 0.0  # of the factor L that the field was computed with
    basis: Basis | None = None

    @classmethod
    def prior(cls, size: int, kernel: StationaryKernel) -> PointField:
        """No samples: mean 0, variance k(a, a), interval R."""
        return cls(np.zeros(size), np.full(size, kernel.outputscale), np.full(size, -np.inf), np.full(size, np.inf))

    def advanced(self, columns: FloatArray, posterior: Posterior, betas: FloatArray, *, keep_basis: bool) -> PointField:
        """Condition on the samples of `posterior` not yet seen; betas[i] >= 0 intersects with mean +- betas[i] sd after sample i.

        columns (n, G) are the points, scaled. Without a stored basis, or after a jitter has changed L, everything is rebuilt
        from the first sample, with the same bits as the extension gives.
        """
        kernel, size = posterior.kernel, posterior.size
        old = self
        if self.rows > 0 and (self.basis is None or self.jitter != posterior.jitter):
            old = PointField.prior(len(self.mean), kernel)
        mean, variance, lower, upper = old.mean.copy(), old.variance.copy(), old.lower.copy(), old.upper.copy()
        basis = None
        if old.rows > 0 and old.basis is not None:
            basis = old.basis.room(old.rows, size)
        elif keep_basis:
            basis = Basis(np.empty((0, len(mean))), 0).room(0, size)
        backend().advance(
            columns, posterior.x / kernel.lengthscales(posterior.x.shape[1]), posterior.chol, posterior.white, betas, old.rows,
            kernel.family, kernel.outputscale, None if basis is None else basis.array, mean, variance, lower, upper,
        )  # fmt: skip
        if not keep_basis or basis is None:
            return PointField(mean, variance, lower, upper, size, posterior.jitter)
        basis.used = size
        return PointField(mean, variance, lower, upper, size, posterior.jitter, basis)

    @property
    def nbytes(self) -> int:
        """Memory held, the shared basis included."""
        return 4 * self.mean.nbytes + (0 if self.basis is None else self.basis.array.nbytes)
