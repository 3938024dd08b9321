"""Stationary kernels, their metric and its inverse.

Notation
    a, a'    points of the unit cube, arrays (..., n)
    r        scaled distance || (a - a') / lengthscale ||
    kappa    correlation as a function of r, kappa(0) = 1, decreasing
    s2       output scale, k(a, a) = s2
    k(a,a')  s2 * kappa(r)
    d_k      kernel metric, eq. (4) of the paper: d_k^2 = k(a,a) + k(a',a') - 2 k(a,a') = 2 s2 (1 - kappa(r))

`radius` inverts d_k: the scaled distance at which the metric reaches a given value. Since d_k increases with r, "within metric
distance d" and "within scaled distance radius(d)" are the same set, which is what makes linear-time sets possible.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, kve

from safebo.exceptions import InvalidValueError, MissingExtraError
from safebo.extras import how_to_install

FloatArray = NDArray[np.float64]


def _positive(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InvalidValueError(f"{name} must be a positive number, got {value!r}.")
    number = float(value)
    if not (math.isfinite(number) and number > 0.0):
        raise InvalidValueError(f"{name} must be positive and finite, got {value!r}.")
    return number


@dataclass(frozen=True)
class StationaryKernel(ABC):
    """A kernel that depends on the scaled distance only. `lengthscale` is one number or one per axis (ARD)."""

    lengthscale: float | tuple[float, ...] = 0.1
    outputscale: float = 1.0

    def __post_init__(self) -> None:
        scale: object = self.lengthscale
        if isinstance(scale, (list, tuple, np.ndarray)):
            values = scale.ravel().tolist() if isinstance(scale, np.ndarray) else list(scale)
            if not values:
                raise InvalidValueError("lengthscale is empty: give one number, or one per axis.")
            object.__setattr__(self, "lengthscale", tuple(_positive(v, "lengthscale") for v in values))
        else:
            object.__setattr__(self, "lengthscale", _positive(scale, "lengthscale"))
        object.__setattr__(self, "outputscale", _positive(self.outputscale, "outputscale"))

    # -- the functions that define a kernel -------------------------------------------------------------------------

    @abstractmethod
    def correlation(self, r: ArrayLike) -> FloatArray:
        """kappa(r)."""

    @abstractmethod
    def decay(self, r: ArrayLike) -> FloatArray:
        """1 - kappa(r), without the cancellation near r = 0."""

    @abstractmethod
    def _invert_decay(self, target: FloatArray) -> FloatArray:
        """The r with 1 - kappa(r) = target, for target in [0, 1)."""

    @property
    @abstractmethod
    def family(self) -> str:
        """Name of the correlation function: matern12, matern32, matern52 or rbf. Compute backends dispatch on it."""

    # -- everything else follows ----------------------------------------------------------------------------------------

    def lengthscales(self, dim: int) -> FloatArray:
        """One lengthscale per axis, (n,)."""
        if isinstance(self.lengthscale, tuple):
            if len(self.lengthscale) != dim:
                raise InvalidValueError(
                    f"The kernel has {len(self.lengthscale)} lengthscales {self.lengthscale}, the domain has {dim} parameters: "
                    "give one lengthscale per parameter, or a single number."
                )
            return np.asarray(self.lengthscale, dtype=np.float64)
        return np.full(dim, self.lengthscale, dtype=np.float64)

    def scaled_distance(self, a: ArrayLike, b: ArrayLike) -> FloatArray:
        """r between every row of a (p, n) and every row of b (q, n), as (p, q)."""
        x, z = np.atleast_2d(np.asarray(a, dtype=np.float64)), np.atleast_2d(np.asarray(b, dtype=np.float64))
        if x.ndim != 2 or z.ndim != 2 or x.shape[1] != z.shape[1]:
            raise InvalidValueError(f"Expected points (p, n) and (q, n), got arrays of shapes {np.shape(a)} and {np.shape(b)}.")
        scale = self.lengthscales(x.shape[1])
        squared = np.zeros((x.shape[0], z.shape[0]))
        for axis in range(x.shape[1]):  # axis by axis: no cancellation, no (p, q, n) array
            squared += np.subtract.outer(x[:, axis] / scale[axis], z[:, axis] / scale[axis]) ** 2
        return np.sqrt(squared, out=squared)

    def __call__(self, a: ArrayLike, b: ArrayLike) -> FloatArray:
        """k between every row of a (p, n) and every row of b (q, n), as (p, q)."""
        return self.outputscale * self.correlation(self.scaled_distance(a, b))

    def metric(self, a: ArrayLike, b: ArrayLike) -> FloatArray:
        """d_k between every row of a and every row of b, eq. (4)."""
        return self.metric_of_distance(self.scaled_distance(a, b))

    def metric_of_distance(self, r: ArrayLike) -> FloatArray:
        """d_k as a function of the scaled distance."""
        return np.sqrt(2.0 * self.outputscale * self.decay(r))

    def radius(self, d: ArrayLike) -> FloatArray:
        """The scaled distance r with d_k(r) = d; 0 for d = 0, -inf for d < 0 (no ball), inf where d_k stays below d."""
        distance = np.asarray(d, dtype=np.float64)
        with np.errstate(over="ignore"):  # an infinite target means an infinite radius
            target = distance**2 / (2.0 * self.outputscale)  # 1 - kappa(r) = target
        with np.errstate(invalid="ignore"):
            inside = self._invert_decay(np.clip(target, 0.0, 1.0))
        result = np.where(target >= 1.0 - _NEGLIGIBLE, np.inf, inside)
        return np.where(distance < 0.0, -np.inf, result)

    # -- GPyTorch -------------------------------------------------------------------------------------------------------

    def to_gpytorch(self) -> Any:
        """The same kernel as a `gpytorch.kernels.ScaleKernel` in double precision."""
        gpytorch, torch = _gpytorch()
        ard = len(self.lengthscale) if isinstance(self.lengthscale, tuple) else None
        base = self._gpytorch_base(gpytorch, ard)
        module = gpytorch.kernels.ScaleKernel(base).double()
        module.outputscale = torch.as_tensor(self.outputscale, dtype=torch.float64)  # a float would be rounded to single
        base.lengthscale = torch.as_tensor(self.lengthscale, dtype=torch.float64)
        return module.requires_grad_(False)

    @abstractmethod
    def _gpytorch_base(self, gpytorch: Any, ard: int | None) -> Any:
        """The GPyTorch kernel without its output scale."""

    @staticmethod
    def from_gpytorch(module: Any) -> StationaryKernel:
        """A `Matern` or `RBF` from a GPyTorch kernel, with or without a `ScaleKernel` around it."""
        gpytorch, torch = _gpytorch()
        outputscale = torch.ones(())
        if isinstance(module, gpytorch.kernels.ScaleKernel):
            outputscale, module = module.outputscale.detach(), module.base_kernel
        if type(module) not in (gpytorch.kernels.MaternKernel, gpytorch.kernels.RBFKernel):  # subclasses mean something else
            raise InvalidValueError(f"Cannot convert {type(module).__name__}: only Matern (1/2, 3/2, 5/2) and RBF are known.")
        if module.active_dims is not None:
            raise InvalidValueError(f"Cannot convert {module!r}: kernels on a subset of the parameters are not supported.")
        if outputscale.numel() != 1 or module.lengthscale.numel() != (module.ard_num_dims or 1):
            raise InvalidValueError(f"Cannot convert {module!r}: batches of kernels are not supported.")
        scales = tuple(float(v) for v in module.lengthscale.detach().ravel())
        lengthscale = scales[0] if module.ard_num_dims is None else scales
        if isinstance(module, gpytorch.kernels.MaternKernel):
            return Matern(nu=float(module.nu), lengthscale=lengthscale, outputscale=float(outputscale))
        return RBF(lengthscale=lengthscale, outputscale=float(outputscale))


@dataclass(frozen=True)
class Matern(StationaryKernel):
    """Matern kernel with nu = 1/2, 3/2 or 5/2; with c = sqrt(2 nu) r:

    kappa = e^-c,  (1 + c) e^-c,  (1 + c + c^2/3) e^-c.
    """

    nu: float = 1.5

    def __init__(self, nu: float = 1.5, lengthscale: float | tuple[float, ...] = 0.1, outputscale: float = 1.0) -> None:
        if not isinstance(nu, (int, float, np.floating)) or nu not in (0.5, 1.5, 2.5):
            raise InvalidValueError(f"Matern kernels are available with nu 0.5, 1.5 and 2.5, got {nu!r}.")
        object.__setattr__(self, "nu", float(nu))
        object.__setattr__(self, "lengthscale", lengthscale)
        object.__setattr__(self, "outputscale", outputscale)
        self.__post_init__()

    @property
    def family(self) -> str:
        """matern12, matern32 or matern52."""
        return {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}[self.nu]

    def correlation(self, r: ArrayLike) -> FloatArray:
        """kappa(r)."""
        c = self._c(r)
        if self.nu == 0.5:
            return np.exp(-c)
        if self.nu == 1.5:
            return (1.0 + c) * np.exp(-c)
        return (1.0 + c + c * c / 3.0) * np.exp(-c)

    def decay(self, r: ArrayLike) -> FloatArray:
        """1 - kappa(r), without the cancellation near r = 0."""
        return _matern_decay(self._c(r), self.nu)

    def _c(self, r: ArrayLike) -> FloatArray:
        """sqrt(2 nu) r, at most a value where e^-c is already zero, so that an infinite distance gives no inf * 0."""
        return np.minimum(math.sqrt(2.0 * self.nu) * np.asarray(r, dtype=np.float64), 800.0)

    def _invert_decay(self, target: FloatArray) -> FloatArray:
        if self.nu == 0.5:
            return -np.log1p(-np.minimum(target, 1.0 - _NEGLIGIBLE))
        table_decay, table_c = _matern_table(self.nu)
        c = np.interp(target, table_decay, table_c)
        for _ in range(2):  # Newton from a start with five good digits
            slope = c * np.exp(-c) if self.nu == 1.5 else (c + c * c) / 3.0 * np.exp(-c)
            step = np.divide(_matern_decay(c, self.nu) - target, slope, out=np.zeros_like(c), where=slope > 0.0)
            c = np.maximum(c - step, 0.0)
        small = target < table_decay[1]  # below the table two terms are enough: c^2/2 - c^3/3 or c^2/6 - c^4/24
        leading = np.sqrt(target * (2.0 if self.nu == 1.5 else 6.0))
        series = leading * (1.0 + leading / 3.0) if self.nu == 1.5 else leading * (1.0 + leading**2 / 8.0)
        return np.where(small, series, c) / math.sqrt(2.0 * self.nu)

    def _gpytorch_base(self, gpytorch: Any, ard: int | None) -> Any:
        return gpytorch.kernels.MaternKernel(nu=self.nu, ard_num_dims=ard)


@dataclass(frozen=True)
class RBF(StationaryKernel):
    """Squared-exponential kernel, kappa = exp(-r^2 / 2)."""

    @property
    def family(self) -> str:
        """rbf."""
        return "rbf"

    def correlation(self, r: ArrayLike) -> FloatArray:
        """kappa(r)."""
        return np.exp(-0.5 * np.asarray(r, dtype=np.float64) ** 2)

    def decay(self, r: ArrayLike) -> FloatArray:
        """1 - kappa(r), without the cancellation near r = 0."""
        return -np.expm1(-0.5 * np.asarray(r, dtype=np.float64) ** 2)

    def _invert_decay(self, target: FloatArray) -> FloatArray:
        return np.sqrt(-2.0 * np.log1p(-np.minimum(target, 1.0 - _NEGLIGIBLE)))

    def _gpytorch_base(self, gpytorch: Any, ard: int | None) -> Any:
        return gpytorch.kernels.RBFKernel(ard_num_dims=ard)


# A correlation below this is treated as zero: the ball of such a radius holds everything. One part in 1e15 of the norm.
_NEGLIGIBLE = 1e-15


def _matern_decay(c: FloatArray, nu: float) -> FloatArray:
    """1 - kappa as a function of c = sqrt(2 nu) r; the power series replaces the difference where it would cancel."""
    if nu == 0.5:
        return -np.expm1(-c)
    if nu == 1.5:
        series = c * c * (1 / 2 - c * (1 / 3 - c * (1 / 8 - c * (1 / 30 - c / 144))))
        return np.where(c < 1e-2, series, -np.expm1(-c) - c * np.exp(-c))
    series = c * c * (1 / 6 - c * c * (1 / 24 - c * (1 / 45 - c / 144)))
    return np.where(c < 1e-2, series, -np.expm1(-c) - (c + c * c / 3.0) * np.exp(-c))


@lru_cache(maxsize=4)
def _matern_table(nu: float) -> tuple[FloatArray, FloatArray]:
    """(1 - kappa, c) on a fine logarithmic mesh of c, the start of Newton's iteration."""
    c = np.concatenate([[0.0], np.geomspace(1e-5, 60.0, 4096)])
    decay = np.minimum(np.maximum.accumulate(_matern_decay(c, nu)), 1.0)
    return decay, c


def _gpytorch() -> tuple[Any, Any]:
    try:
        import gpytorch  # type: ignore[import-not-found, unused-ignore]
        import torch
    except ImportError as error:
        raise MissingExtraError(f"Converting kernels needs GPyTorch: {how_to_install('gpytorch')}.") from error
    return gpytorch, torch


# -- functions of the space ----------------------------------------------------------------------------------------------

_FAR = 30.0  # lengthscales; correlations beyond are below 1e-15


def convolved(kernel: StationaryKernel, dim: int) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """Correlations of the kernel convolved with itself: the covariance of random functions that lie in its space.

    Draws of a Gaussian process with covariance k are rougher than that. For a Matern kernel the convolution is again one, of
    order 2 nu + n/2 in c = sqrt(2 nu) r; for an RBF kernel it has sqrt(2) times the lengthscale. Other kernels stay as they are.
    """
    if isinstance(kernel, Matern):
        spline = _convolved_matern(kernel.nu, dim)
        return lambda a, b: np.asarray(spline(np.minimum(kernel.scaled_distance(a, b), _FAR)))
    if isinstance(kernel, RBF):
        return lambda a, b: np.exp(-0.25 * kernel.scaled_distance(a, b) ** 2)
    return lambda a, b: np.asarray(kernel(a, b) / kernel.outputscale)


@lru_cache(maxsize=16)
def _convolved_matern(nu: float, dim: int) -> Callable[[FloatArray], FloatArray]:
    from scipy.interpolate import CubicSpline  # slow to import, and few need it

    r = np.linspace(0.0, _FAR, 30_001)
    order, c = 2.0 * nu + 0.5 * dim, math.sqrt(2.0 * nu) * r[1:]
    values = np.exp((1.0 - order) * math.log(2.0) - gammaln(order) + order * np.log(c) - c) * kve(order, c)
    spline: Callable[[FloatArray], FloatArray] = CubicSpline(r, np.concatenate([[1.0], values]), bc_type=((1, 0.0), (1, 0.0)))
    return spline
