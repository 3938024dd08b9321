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
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from safebo.exceptions import InvalidValueError
from safebo.kernels import StationaryKernel
from safebo.norms.base import NormQuery, even_points
from safebo.posterior import Posterior

FloatArray = NDArray[np.float64]

INTEGRATION_POINTS = 256
"""Points of the variance integral: a solve with 50 samples takes 0.2 ms."""

HIDDEN, LAYERS = 20, 2
"""Hidden units and layers of each of the two branches."""

LEVELS = (0.5, 0.75, 0.9, 0.95)
"""Quantiles of the norm that the network was trained for: the share of functions whose norm lies below the estimate."""

SHIPPED = Path(__file__).with_name("weights") / "lstm.safetensors"

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
    points = lower + (upper - lower) * even_points(len(lower), INTEGRATION_POINTS)
    explained = np.cumsum(((inverse @ posterior.kernel(posterior.x, points)) ** 2).mean(axis=1))
    variance = 1.0 - explained / posterior.kernel.outputscale
    return np.sqrt(np.maximum(squared, 0.0)), np.maximum(variance, np.finfo(np.float64).eps)


def context(kernel: StationaryKernel, noise: float, lower: FloatArray, upper: FloatArray) -> FloatArray:
    """What does not change with s, (4,): log of the mean edge in lengthscales, dimension, 1 / (2 nu), log of the noise."""
    dim = len(lower)
    size = float(np.log((upper - lower) / kernel.lengthscales(dim)).mean())
    return np.array([size, dim, SMOOTHNESS[kernel.family], math.log(noise / math.sqrt(kernel.outputscale))])


def sequences(norms: FloatArray, variances: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Growth and density from ||mu_s|| and v_s; one sub-domain (t,), or several (..., t)."""
    before = np.concatenate([np.zeros_like(norms[..., :1]), norms[..., :-1]], axis=-1)
    known = np.divide(before, norms, out=np.zeros_like(norms), where=norms > 0.0)
    return np.maximum(1.0 - known, -1.0), -np.log(variances)  # noise can make a norm fall, rarely by half


# -- the network ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Network:
    """The weights, ready for inference: both branches side by side, in double precision.

    Gates are in the order of torch: input, forget, cell, output. A sigmoid is (1 + tanh(z / 2)) / 2, so the rows of three gates
    are halved here and one tanh serves all four.
    """

    inputs: tuple[FloatArray, ...]  # per layer, (2, 4 H, inputs)
    recurrent: tuple[FloatArray, ...]  # per layer, (2, 4 H, H)
    bias: tuple[FloatArray, ...]  # per layer, (2, 4 H)
    start: tuple[FloatArray, FloatArray]  # context -> initial cell states of (branch, layer, unit)
    scaling: tuple[FloatArray, FloatArray]  # lowest and highest context of the training data
    head: tuple[FloatArray, FloatArray]  # (levels, 2 H), (levels,)
    levels: tuple[float, ...]

    def log_factors(self, growth: FloatArray, density: FloatArray, c: FloatArray) -> FloatArray:
        """ReLU(z) for every level, (levels,), from two sequences (t,)."""
        low, high = self.scaling
        # Outside of what it was trained on the network is used at the nearest context that it knows.
        known = 2.0 * (np.clip(c, low, high) - low) / (high - low) - 1.0
        cells = (self.start[0] @ known + self.start[1]).reshape(2, LAYERS, HIDDEN)
        x = np.stack([growth, density])[:, :, None]  # (2, t, 1)
        for layer in range(LAYERS):
            x = self._layer(layer, x, cells[:, layer])
        z = self.head[0] @ x[:, -1].ravel() + self.head[1]
        return np.maximum.accumulate(np.maximum(z, 0.0))  # a higher level is never a smaller estimate

    def _layer(self, layer: int, x: FloatArray, cell: FloatArray) -> FloatArray:
        """Hidden states (2, t, H) of one layer for its inputs x (2, t, inputs)."""
        given = np.ascontiguousarray((x @ self.inputs[layer].transpose(0, 2, 1) + self.bias[layer][:, None]).swapaxes(0, 1))
        recurrent, hidden = self.recurrent[layer], np.tanh(cell)
        states = np.empty((len(given), 2, HIDDEN))
        for s, gates in enumerate(given):
            gates += (recurrent @ hidden[:, :, None])[:, :, 0]
            i, f, g, o = np.tanh(gates).reshape(2, 4, HIDDEN).swapaxes(0, 1)
            cell = 0.5 * ((1.0 + f) * cell + (1.0 + i) * g)
            hidden = 0.5 * (1.0 + o) * np.tanh(cell)
            states[s] = hidden
        return states.swapaxes(0, 1)


def shapes(levels: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every array in a weights file."""
    expected: dict[str, tuple[int, ...]] = {
        "levels": (levels,),
        "context.low": (4,),
        "context.high": (4,),
        "start.weight": (2 * LAYERS * HIDDEN, 4),
        "start.bias": (2 * LAYERS * HIDDEN,),
        "head.weight": (levels, 2 * HIDDEN),
        "head.bias": (levels,),
    }
    for branch in ("growth", "density"):
        for layer in range(LAYERS):
            expected[f"{branch}.weight_ih_l{layer}"] = (4 * HIDDEN, HIDDEN if layer else 1)
            expected[f"{branch}.weight_hh_l{layer}"] = (4 * HIDDEN, HIDDEN)
            expected[f"{branch}.bias_ih_l{layer}"] = expected[f"{branch}.bias_hh_l{layer}"] = (4 * HIDDEN,)
    return expected


@lru_cache(maxsize=8)
def load_network(path: str) -> Network:
    """The network of a weights file, read once."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = {name: array.astype(np.float64) for name, array in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise InvalidValueError(
            f"The weights of the learned norm estimator cannot be read from {path}: {error}. "
            "Reinstall safebo, or make them with `safebo train-norm`."
        ) from None
    expected = shapes(len(arrays.get("levels", ())))
    wrong = sorted(name for name in expected if name not in arrays or arrays[name].shape != expected[name])
    if wrong or not all(np.isfinite(array).all() for array in arrays.values()):
        raise InvalidValueError(f"{path} does not hold the weights of a learned norm estimator: {wrong or 'not finite'}.")
    half = np.repeat([0.5, 0.5, 1.0, 0.5], HIDDEN)

    def both(name: str) -> FloatArray:
        stacked = np.stack([arrays[f"{branch}.{name}"] for branch in ("growth", "density")])
        return np.asarray(stacked * (half[:, None] if stacked.ndim == 3 else half))

    layers = range(LAYERS)
    return Network(
        inputs=tuple(both(f"weight_ih_l{i}") for i in layers),
        recurrent=tuple(both(f"weight_hh_l{i}") for i in layers),
        bias=tuple(both(f"bias_ih_l{i}") + both(f"bias_hh_l{i}") for i in layers),
        start=(arrays["start.weight"], arrays["start.bias"]),
        scaling=(arrays["context.low"], arrays["context.high"]),
        head=(arrays["head.weight"], arrays["head.bias"]),
        levels=tuple(arrays["levels"].round(6).tolist()),
    )


# -- the estimator -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LSTMNorm:
    """A learned estimate of the norm: cheap, without any guarantee.

    Use it as `Scenario(floor=LSTMNorm())`, which it can only make more careful, or as `screening=LSTMNorm()` of the optimizer,
    where every trial is still certified with `norm`. `level` is the share of training functions whose norm was below the
    estimate: 0.5 is the best guess, 0.9 a careful one. `weights` is a file made by `safebo train-norm`, None the one that comes
    with the package.
    """

    level: float = 0.5
    weights: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.level, bool) or self.level not in LEVELS:
            raise InvalidValueError(f"LSTMNorm.level must be one of {LEVELS}, got {self.level!r}.")
        object.__setattr__(self, "level", float(self.level))
        if self.weights is not None and not isinstance(self.weights, (str, Path)):
            raise InvalidValueError(f"LSTMNorm.weights must be a path or None, got {self.weights!r}.")
        object.__setattr__(self, "weights", None if self.weights is None else str(self.weights))

    @property
    def gamma(self) -> float:
        """1: the estimate promises nothing."""
        return 1.0

    @property
    def kappa(self) -> float:
        """0: there is no confidence to be had in it."""
        return 0.0

    @property
    def network(self) -> Network:
        """The network behind it."""
        return load_network(str(SHIPPED) if self.weights is None else self.weights)

    def estimate(self, query: NormQuery) -> float:
        """||mu_t|| times a factor >= 1; at least the norm of a function of the size of the noise."""
        network = self.network
        if self.level not in network.levels:
            raise InvalidValueError(f"{self.weights} was trained for the levels {network.levels}, not for {self.level}.")
        resolution = query.noise / math.sqrt(query.kernel.outputscale)
        norms, variances = history(query.posterior, query.lower, query.upper)
        if not len(norms) or not norms[-1] > 0.0:
            return resolution
        c = context(query.kernel, query.noise, query.lower, query.upper)
        factors = network.log_factors(*sequences(norms, variances), c)
        return max(float(norms[-1] * math.exp(factors[network.levels.index(self.level)])), resolution)
