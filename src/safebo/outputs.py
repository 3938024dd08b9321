"""Named outputs: what is measured, which of it is limited, and how the failure probability is shared.

The paper's case is one output that is both the objective and the safety signal. In general there is one objective, with or
without a threshold, and any number of further outputs with a lower limit, an upper limit or both. Safe means inside every limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from safebo.bounds import ConfidenceBound
from safebo.exceptions import InvalidValueError
from safebo.kernels import StationaryKernel
from safebo.norms import NormEstimator
from safebo.norms.base import probability, provides

OBJECTIVE = "objective"

SMALLEST_NOISE = 1e-100
"""The square of a smaller noise is not a normal floating point number."""

LARGEST = 1e100
"""Larger limits and measurements are refused: their squares, divided by a noise variance, would overflow."""


def number(value: object, name: str) -> float:
    """A validated finite number of reasonable size."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InvalidValueError(f"{name} must be a finite number, got {value!r}.")
    try:
        result = float(value)
    except OverflowError:
        raise InvalidValueError(f"{name} must be a finite number, got an integer that is too large for a float.") from None
    if not np.isfinite(result):
        raise InvalidValueError(f"{name} must be a finite number, got {value!r}.")
    if abs(result) > LARGEST:
        raise InvalidValueError(f"{name} must not exceed {LARGEST:g} in size, got {value!r}: change its unit.")
    return result


@dataclass(frozen=True)
class Constraint:
    """A separate safety limit: threshold <= g(a) <= upper. Whatever is None is taken from the objective's settings.

    `delta` is this output's share of the failure probability; by default the optimizer's delta is shared evenly.
    """

    threshold: float | None = None
    kernel: StationaryKernel | None = None
    noise: float | None = None
    norm: NormEstimator | None = None
    upper: float | None = None
    bound: ConfidenceBound | None = None
    delta: float | None = None
    min_width: float | None = None

    def __post_init__(self) -> None:
        if self.threshold is None and self.upper is None:
            raise InvalidValueError("A Constraint needs a threshold (lower limit), an upper limit, or both; got neither.")
        for name in ("threshold", "upper"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, number(getattr(self, name), f"Constraint.{name}"))
        if self.threshold is not None and self.upper is not None and not self.threshold < self.upper:
            raise InvalidValueError(f"Nothing satisfies a Constraint with threshold {self.threshold} >= upper {self.upper}.")


@dataclass(frozen=True)
class Output:
    """One fully specified output."""

    name: str
    kernel: StationaryKernel
    noise: float
    norm: NormEstimator
    bound: ConfidenceBound
    delta: float
    lower_limit: float | None
    upper_limit: float | None
    min_width: float

    def __post_init__(self) -> None:
        noise = number(self.noise, f"noise of {self.name!r}")
        if noise <= 0.0:
            raise InvalidValueError(f"noise of {self.name!r} must be positive, got {self.noise!r}.")
        if noise < SMALLEST_NOISE:
            raise InvalidValueError(
                f"noise of {self.name!r} must be at least {SMALLEST_NOISE:g}, got {self.noise!r}: change its unit."
            )
        object.__setattr__(self, "noise", noise)
        object.__setattr__(self, "delta", probability(self.delta, f"delta of {self.name!r}"))
        for limit in ("lower_limit", "upper_limit"):
            if getattr(self, limit) is not None:
                object.__setattr__(self, limit, number(getattr(self, limit), f"{limit} of {self.name!r}"))
        width = number(self.min_width, f"min_width of {self.name!r}")
        if width < 0.0:
            raise InvalidValueError(f"min_width of {self.name!r} must not be negative, got {self.min_width!r}.")
        object.__setattr__(self, "min_width", width)
        if not isinstance(self.kernel, StationaryKernel):
            raise InvalidValueError(f"The kernel of {self.name!r} must be a Matern or RBF kernel, got {self.kernel!r}.")
        if not provides(self.norm, "estimate"):
            raise InvalidValueError(
                f"The norm of {self.name!r} must be a norm estimator such as Scenario() or Fixed(5), got {self.norm!r}."
            )
        if not provides(self.bound, "regulariser"):
            raise InvalidValueError(f"The bound of {self.name!r} must be a confidence bound such as Paper(), got {self.bound!r}.")

    @property
    def is_limit(self) -> bool:
        """Whether safety depends on this output."""
        return self.lower_limit is not None or self.upper_limit is not None

    def satisfied(self, value: float) -> bool:
        """Whether a measured value lies inside the limits."""
        above = self.lower_limit is None or value >= self.lower_limit
        return above and (self.upper_limit is None or value <= self.upper_limit)


def outside(outputs: Sequence[Output], values: Sequence[float]) -> dict[str, float]:
    """The outputs whose values lie outside their limits, with these values."""
    return {o.name: v for o, v in zip(outputs, values, strict=True) if not o.satisfied(v)}


def beyond(output: Output, value: float) -> str:
    """What a value outside a limit is, in words: "torque = 2.9 is above its limit 2.6"."""
    low = output.lower_limit
    side = f"below its limit {low:g}" if low is not None and value < low else f"above its limit {output.upper_limit:g}"
    return f"{output.name} = {value:g} is {side}"


@dataclass(frozen=True)
class Guarantee:
    """What a certificate promises: with confidence `confidence`, its experiment is safe with probability `probability`.

    One limit: probability (1 - gamma)(1 - delta) and confidence 1 - kappa as in Theorem 4, which states it for a whole run; what
    of that is proven is in docs/guarantees.md. Several limits: union bound over them.
    """

    probability: float
    confidence: float
    shares: dict[str, tuple[float, float, float]]  # output -> (gamma, delta, kappa)


def guarantee(outputs: tuple[Output, ...]) -> Guarantee:
    """The budget over all outputs that are limits."""
    limits = [output for output in outputs if output.is_limit]
    failure = sum(1.0 - (1.0 - o.norm.gamma) * (1.0 - o.delta) for o in limits)
    doubt = sum(o.norm.kappa for o in limits)
    shares = {o.name: (o.norm.gamma, o.delta, o.norm.kappa) for o in limits}
    return Guarantee(max(0.0, 1.0 - failure), max(0.0, 1.0 - doubt), shares)


def resolve_outputs(
    threshold: float | None,
    constraints: Mapping[str, Constraint],
    kernel: StationaryKernel,
    noise: float,
    norm: NormEstimator,
    bound: ConfidenceBound,
    delta: float,
    min_width: float,
) -> tuple[Output, ...]:
    """The objective first, then the constraints in their order; delta is shared evenly over the limits without their own."""
    delta = probability(delta, "delta")
    if threshold is None and not constraints:
        raise InvalidValueError("Nothing is limited: give a threshold for the objective, or constraints.")
    for name, constraint in constraints.items():
        if not isinstance(name, str) or not name or name == OBJECTIVE:
            raise InvalidValueError(f"A constraint needs a name other than {OBJECTIVE!r}, got {name!r}.")
        if not isinstance(constraint, Constraint):
            raise InvalidValueError(f"constraints[{name!r}] must be a Constraint, got {constraint!r}.")
    own = [probability(c.delta, f"delta of {name!r}") for name, c in constraints.items() if c.delta is not None]
    sharing = len(constraints) - len(own) + (threshold is not None)
    rest = delta - sum(own)
    if sharing and not rest > 0.0:
        raise InvalidValueError(
            f"The constraints use up delta = {delta:g} ({own}); nothing is left for the other {sharing} limits."
        )
    if not sharing and rest < -1e-12:
        raise InvalidValueError(f"The constraints' shares {own} exceed delta = {delta:g}.")
    share = rest / sharing if sharing else delta
    limit = None if threshold is None else number(threshold, "threshold")
    objective = Output(OBJECTIVE, kernel, noise, norm, bound, share if limit is not None else delta, limit, None, min_width)
    return (
        objective,
        *(
            Output(
                name,
                c.kernel or kernel,
                noise if c.noise is None else c.noise,
                c.norm or norm,
                c.bound or bound,
                share if c.delta is None else c.delta,
                c.threshold,
                c.upper,
                min_width if c.min_width is None else c.min_width,
            )
            for name, c in constraints.items()
        ),
    )
