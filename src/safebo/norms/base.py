"""What a norm estimator is given and what it promises."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from safebo.exceptions import InvalidValueError
from safebo.kernels import StationaryKernel
from safebo.posterior import Posterior

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class NormQuery:
    """One sub-domain at one step: its samples in the order they were taken, its box, and the seed of the step.

    All sub-domains of a step share the seed: the scenarios of ONE sub-domain are independent, which is what Theorem 1 needs, and
    sharing them across sub-domains removes noise from the comparison of sub-domains. Different steps have different seeds, so the
    scenarios of a step are independent of the data they are compared with.
    """

    posterior: Posterior  # at regulariser sigma^2
    noise: float
    lower: FloatArray  # (n,)
    upper: FloatArray  # (n,)
    seed: tuple[int, ...]
    everything: tuple[FloatArray, FloatArray] | None = None  # all samples of the output, in whatever sub-domain: x (t, n), y (t,)

    @property
    def kernel(self) -> StationaryKernel:
        """The kernel of the output."""
        return self.posterior.kernel

    @property
    def width(self) -> float:
        """Longest edge of the box."""
        return float(np.max(self.upper - self.lower))


class NormFloor(Protocol):
    """An estimate below which a bound does not fall. It may be heuristic: the bound's own guarantee does not rest on it.

    If it is a bound itself, such as `PosteriorScenario`, the result holds wherever either of them does.
    """

    def estimate(self, query: NormQuery) -> float:
        """An estimate of the norm."""
        ...


def provides(part: object, method: str) -> bool:
    """Whether an object (not a class: Scenario() rather than Scenario) has a method."""
    return not isinstance(part, type) and callable(getattr(part, method, None))


def check_floor(floor: object, name: str) -> None:
    """Refuse what cannot be a floor."""
    if floor is not None and not provides(floor, "estimate"):
        raise InvalidValueError(f"{name} must be a norm estimator, such as LSTMNorm(), or None, got {floor!r}.")


def check_served(estimator: object, kernel: StationaryKernel, dim: int) -> None:
    """Ask an estimator or a floor whether it serves this kernel in this many dimensions; most serve all and have no `check`."""
    check = getattr(estimator, "check", None)
    if callable(check):
        check(kernel, dim)


def resolve(estimator: Any, kernel: StationaryKernel, dim: int) -> Any:
    """The estimator or floor with what follows the kernel and the dimension written out; most have nothing that does."""
    resolved = getattr(estimator, "resolved", None)
    return resolved(kernel, dim) if callable(resolved) else estimator


def with_floor(estimator: Any, floor: object) -> Any:
    """The estimator with this floor; itself where it has it already."""
    return estimator if floor is estimator.floor else replace(estimator, floor=floor)


class NormEstimator(Protocol):
    """An upper bound on the norm: with confidence 1 - kappa, B >= ||f|| with probability 1 - gamma.

    An estimator that is not made for every kernel and dimension may have a method `check(kernel, dim)` that raises: it is called
    before a run starts. One with a part that follows them may have `resolved(kernel, dim)`: what it returns is stored and used.
    """

    @property
    def gamma(self) -> float:
        """Failure probability of the bound; 0 for a bound that is assumed."""
        ...

    @property
    def kappa(self) -> float:
        """One minus the confidence in that probability."""
        ...

    def estimate(self, query: NormQuery) -> float:
        """The raw bound of this step.

        The optimizer takes the minimum with the previous one (Alg. 3, Case III), unless the estimator has an attribute
        `revises` that is true: then new data may raise the bound, and what was computed with a smaller one is dropped.
        """
        ...


@lru_cache(maxsize=16)
def even_points(dim: int, size: int) -> FloatArray:
    """Points that fill the unit cube evenly, (size, n): multiples of the powers of the root g of g^(n+1) = g + 1, modulo 1."""
    root = 2.0
    for _ in range(64):
        root = (1.0 + root) ** (1.0 / (dim + 1))
    steps = root ** -np.arange(1.0, dim + 1.0)
    points = np.asarray((0.5 + np.outer(np.arange(1, size + 1), steps)) % 1.0)
    points.flags.writeable = False
    return points


def _float(value: object) -> float:
    """The value as a float, NaN if it is not a number."""
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return float(value) if is_number else np.nan  # type: ignore[arg-type]


def positive(value: object, name: str) -> float:
    """A validated positive, finite number."""
    number = _float(value)
    if not (np.isfinite(number) and number > 0.0):
        raise InvalidValueError(f"{name} must be positive and finite, got {value!r}.")
    return number


def probability(value: object, name: str) -> float:
    """A validated number in (0, 1)."""
    number = _float(value)
    if not 0.0 < number < 1.0:
        raise InvalidValueError(f"{name} must lie strictly between 0 and 1, got {value!r}.")
    return number


def count(value: object, name: str, smallest: int = 1) -> int:
    """A validated integer >= smallest."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < smallest:
        raise InvalidValueError(f"{name} must be an integer >= {smallest}, got {value!r}.")
    return int(value)
