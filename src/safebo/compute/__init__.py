"""Array kernels behind one small protocol, loaded lazily by name.

The mathematics of the package never imports numba or torch; it asks `backend()` for the few operations that dominate the run
time. Every backend implements the same operations and passes the same tests.

    scenario_parts   quadratic forms and kernel sums of many random RKHS functions at once (Alg. 3)
    cholesky_solve   head coefficients of all of them
    advance          posterior mean, variance and nested interval on many points, one sample after the other
    intersect        posterior for several regularisers at once and the intersection of their intervals, on many points
    lower_envelope   generalised distance transform of a grid (safe set and expanders in linear time)
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from safebo.exceptions import InvalidValueError, MissingExtraError

FloatArray = NDArray[np.float64]
SingleArray = NDArray[np.float32]
Indices = NDArray[np.intp]


class Compute(Protocol):
    """The operations a backend provides. Points are scaled: divided by the lengthscale of their axis."""

    def scenario_parts(
        self,
        x: FloatArray,
        z: SingleArray,
        a: SingleArray,
        family: str,
        *,
        is_sorted: bool,
        inner: Indices | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """For m random functions with centres z (m, n, T) and coefficients a (m, T), unit output scale:

        quadratic forms a' kappa(Z, Z) a, (m,), and values kappa(X, Z) a at the samples x (t, n), as (t, m).
        `is_sorted`: n = 1 and the centres of every function ascend, so that Markovian kernels take O(T).
        `inner` (m,), not with `is_sorted`: pairs without any of a function's first `inner` centres do not count in its
        quadratic form.
        """
        ...

    def cholesky_solve(self, chol: FloatArray, rhs: FloatArray) -> FloatArray:
        """(L L')^-1 rhs for many right-hand sides, rhs (t, m)."""
        ...

    def advance(
        self,
        points: FloatArray,
        x: FloatArray,
        chol: FloatArray,
        white: FloatArray,
        betas: FloatArray,
        start: int,
        family: str,
        outputscale: float,
        basis: FloatArray | None,
        mean: FloatArray,
        variance: FloatArray,
        lower: FloatArray,
        upper: FloatArray,
    ) -> None:
        """Condition mean and variance (G,) on samples start, start+1, ... in place, and intersect the interval.

        points (n, G) and x (t, n) are scaled; chol (t, t) is the Cholesky factor L of K + lambda I, white (t,) = L^-1 y.
        basis (>= t, G) holds V = L^-1 k(X, points); rows >= start are written. Without it start must be 0.
        Where betas[i] >= 0, [lower, upper] is intersected with mean +- betas[i] sd after sample i.
        """
        ...

    def intersect(
        self,
        points: FloatArray,
        x: FloatArray,
        vectors: FloatArray,
        weights: FloatArray,
        targets: FloatArray,
        factors: FloatArray,
        family: str,
        outputscale: float,
        lower: FloatArray,
        upper: FloatArray,
        mean: FloatArray,
        variance: FloatArray,
    ) -> None:
        """Intersect [lower, upper] (G,) in place with mean_p +- factors[p] sd_p for every regulariser p; sets mean and variance.

        points (n, G) and x (t, n) are scaled; K = U diag(v) U' with U = vectors (t, t). Row p of weights (q, t) is
        1 / (v + alpha_p) and of targets (q, t) the same times U'y, for q regularisers: those of factors (p,), then the one whose
        mean and variance (G,) are wanted.
        """
        ...

    def lower_envelope(self, weights: FloatArray, spacing: FloatArray) -> FloatArray:
        """min over grid points p of weights[p] + ||(p - q) * spacing||^2 for every grid point q; weights is n-dimensional."""
        ...


def variance_floor(samples: int, outputscale: float) -> float:
    """Smallest variance that rounding allows to be told from zero: no interval is ever rounded down to nothing."""
    return 4.0 * float(np.finfo(np.float64).eps) * (samples + 1) * outputscale


_MODULES = {"numba": "safebo.compute.fused_cpu", "torch": "safebo.compute.torch_reference"}


@cache
def _load(name: str) -> Compute:
    if name not in _MODULES:
        raise InvalidValueError(f"Unknown compute backend {name!r}: choose one of {sorted(_MODULES)}.")
    try:
        module = importlib.import_module(_MODULES[name])
    except ImportError as error:
        raise MissingExtraError(f"The compute backend {name!r} needs a package that is missing: pip install {name}.") from error
    loaded: Compute = module.create()
    return loaded


def backend(name: str | None = None) -> Compute:
    """The backend with this name; default: the environment variable SAFEBO_COMPUTE, else the fused CPU one."""
    return _load(name or os.environ.get("SAFEBO_COMPUTE", "numba"))
