"""Norm bound and interval of one output in one sub-domain: Alg. 3 with falsification, then Q_t and C_t.

Notation
    B_t     norm bound, non-increasing unless the data refute it or its estimator revises it
    Q_t     interval of the current step, mean +- beta sd or an intersection of such
    C_t     intersection of all Q_s since the sub-domain exists, or since its norm last rose
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from safebo.bounds import EnvelopeBound, intersection, is_scaled
from safebo.domain import Cube
from safebo.exceptions import InvalidValueError
from safebo.outputs import Output
from safebo.posterior import PointField, Posterior, scaled_columns

FloatArray = NDArray[np.float64]

_MAX_RAISES = 200  # each multiplies the norm by the margin: enough for sixteen orders of magnitude at 1.2


@dataclass(frozen=True)
class Rules:
    """The settings every sub-domain shares."""

    outputs: tuple[Output, ...]
    shape: tuple[int, ...]
    safe_set: str
    falsify: bool
    margin: float
    stride: float | None = None


@dataclass(frozen=True)
class Refutation:
    """A norm bound that the data contradict: what it was, the smallest norm they allow, and what it was raised to."""

    step: int
    cube: Cube
    output: str
    norm: float
    lower_bound: float
    raised_to: float
    reason: str  # "norm": below the data's lower bound; "interval": C_{t-1} and Q_t do not meet


@dataclass(frozen=True, eq=False)
class OutputState:
    """One output in one sub-domain."""

    posterior: Posterior  # at the regulariser of the bound
    at_noise: Posterior  # at sigma^2, for norm estimates; the same object where the regularisers agree
    norm: float = np.inf  # B_t
    floor: float = 0.0  # raised by refutations, never lowered
    norms: FloatArray = field(default_factory=lambda: np.empty(0))  # B after sample i where Q was formed, else -1
    betas: FloatArray = field(default_factory=lambda: np.empty(0))  # the same for beta (scaled bounds)
    grid: PointField | None = None
    seed_lower: FloatArray = field(default_factory=lambda: np.empty(0))  # C_t at the samples (t,)
    seed_upper: FloatArray = field(default_factory=lambda: np.empty(0))

    def restarted(self) -> OutputState:
        """The same data and norm without any memory of earlier intervals."""
        return OutputState(self.posterior, self.at_noise, self.norm, self.floor)


@dataclass(frozen=True, eq=False)
class Formed:
    """An output with its interval: C_t on the grid and the half-width of Q_t there."""

    state: OutputState
    points: PointField
    half_width: FloatArray

    @property
    def consistent(self) -> bool:
        """Whether C_t is a proper interval at every grid point and every sample."""
        on_grid = (self.points.lower < self.points.upper).all()
        return bool(on_grid and (self.state.seed_lower < self.state.seed_upper).all())


def decide(
    before: OutputState,
    output: Output,
    raw: float,
    lower_bound: float,
    rules: Rules,
    cube: Cube,
    step: int,
    columns: FloatArray,
    keep_grid: bool,
) -> tuple[Formed, list[Refutation]]:
    """B_t (Alg. 3, Case III, then falsification) and the interval it gives.

    A norm below the data's lower bound is raised. So is one whose Q_t contradicts C_{t-1}: some norm was too small.
    Either way what was computed with the refuted norm is dropped and C_t restarts from Q_t.
    """
    may_raise = rules.falsify or not is_scaled(output.bound)  # a refuted norm leaves an envelope bound without any interval
    events: list[Refutation] = []
    revises = bool(getattr(output.norm, "revises", False))
    norm, floor = max(raw if revises else min(raw, before.norm), before.floor), before.floor
    if norm > before.norm:  # only an estimator that revises gets here: its smaller norms of before were wrong
        before = before.restarted()
    if rules.falsify and norm < lower_bound:
        target = rules.margin * lower_bound
        events.append(Refutation(step, cube, output.name, norm, lower_bound, target, "norm"))
        norm = floor = target
    for _ in range(_MAX_RAISES):
        history = before.restarted() if events else before
        formed = form(replace(history, norm=norm, floor=floor), output, columns, keep_grid)
        if formed.consistent:
            return formed, events
        target = norm * rules.margin if may_raise else norm
        events.append(Refutation(step, cube, output.name, norm, lower_bound, target, "interval"))
        norm, floor = target, target if may_raise else floor
    raise InvalidValueError(f"No norm makes the intervals of {output.name!r} in {cube} consistent: check its noise and kernel.")


def form(state: OutputState, output: Output, columns: FloatArray, keep_grid: bool = False) -> Formed:
    """Q_t with the norm of the state, intersected with what the state remembers; repeating it changes nothing."""
    posterior, bound = state.posterior, output.bound
    beta = bound.beta(posterior, state.norm, output.noise, output.delta) if is_scaled(bound) else -1.0
    state = replace(
        state, norms=_appended(state.norms, posterior.size, state.norm), betas=_appended(state.betas, posterior.size, beta)
    )
    on_grid = scaled_columns(columns, posterior.kernel)
    if is_scaled(bound):
        points, half = _scaled_grid(state, on_grid, keep_grid)
        prior = PointField.prior(posterior.size, posterior.kernel)
        samples = prior.advanced(scaled_columns(posterior.x.T, posterior.kernel), posterior, state.betas, keep_basis=False)
        lower, upper = samples.lower, samples.upper
    else:
        points, half = _envelope_grid(state, output, on_grid)
        lower, upper = _envelope_samples(state, output)
    return Formed(replace(state, seed_lower=lower, seed_upper=upper, grid=points if keep_grid else None), points, half)


def _appended(values: FloatArray, size: int, last: float) -> FloatArray:
    """values extended to `size` entries: -1 for samples without an interval of their own, `last` for the newest."""
    result = np.full(size, -1.0)
    result[: len(values)] = values
    if size:
        result[-1] = last
    return result


def _scaled_grid(state: OutputState, columns: FloatArray, keep_basis: bool) -> tuple[PointField, FloatArray]:
    posterior = state.posterior
    start = state.grid if state.grid is not None else PointField.prior(columns.shape[1], posterior.kernel)
    points = start.advanced(columns, posterior, state.betas, keep_basis=keep_basis)
    return points, state.betas[-1] * np.sqrt(np.maximum(points.variance, 0.0))


def _latest(state: OutputState, output: Output, columns: FloatArray) -> PointField:
    """Q_t of an envelope bound, without the history."""
    return intersection(cast(EnvelopeBound, output.bound), state.posterior, columns, state.norm, output.noise, output.delta)


def _earlier(state: OutputState, output: Output, columns: FloatArray, now: PointField) -> tuple[FloatArray, FloatArray]:
    """C_t at any points: `now`, which is Q_t, intersected with every Q_s of the sub-domain's history."""
    bound, lower, upper = cast(EnvelopeBound, output.bound), now.lower, now.upper
    for row in np.flatnonzero(state.norms[:-1] >= 0.0):
        past = state.posterior.prefix(int(row) + 1)
        then = intersection(bound, past, columns, float(state.norms[row]), output.noise, output.delta)
        lower, upper = np.maximum(lower, then.lower), np.minimum(upper, then.upper)
    return lower, upper


def _envelope_grid(state: OutputState, output: Output, columns: FloatArray) -> tuple[PointField, FloatArray]:
    now = _latest(state, output, columns)
    if state.grid is not None:
        lower, upper = np.maximum(now.lower, state.grid.lower), np.minimum(now.upper, state.grid.upper)
    else:
        lower, upper = _earlier(state, output, columns, now)
    return replace(now, lower=lower, upper=upper), 0.5 * (now.upper - now.lower)


def _envelope_samples(state: OutputState, output: Output) -> tuple[FloatArray, FloatArray]:
    """C_t at the samples, intersected from the step on at which each was taken."""
    now = _latest(state, output, scaled_columns(state.posterior.x.T, state.posterior.kernel))
    low, high = now.lower, now.upper
    known = len(state.seed_lower)
    low[:known] = np.maximum(low[:known], state.seed_lower)
    high[:known] = np.minimum(high[:known], state.seed_upper)
    return low, high


def interval_at(state: OutputState, output: Output, points: FloatArray, *, latest: bool = False) -> tuple[FloatArray, FloatArray]:
    """C_t of one output at arbitrary points (p, n) of the sub-domain.

    `latest`: for an envelope bound Q_t alone, without the history, which costs a decomposition per earlier sample.
    """
    columns = scaled_columns(points.T, state.posterior.kernel)
    if is_scaled(output.bound):
        prior = PointField.prior(len(points), state.posterior.kernel)
        found = prior.advanced(columns, state.posterior, state.betas, keep_basis=False)
        return found.lower, found.upper
    now = _latest(state, output, columns)
    return (now.lower, now.upper) if latest else _earlier(state, output, columns, now)
