"""One sub-domain at one step: posteriors, norm bounds, intervals, sets, and the summary that outlives its grid (Alg. 2).

A sub-domain is a value: `prepare` and `conclude` return a new one and leave the old as it was. It changes only when its samples do.
Between those moments the optimizer needs just its summary: the best certified point, the most uncertain expander, and the
staircase of maximiser candidates. The arrays on the grid may therefore be dropped when memory is short; they are rebuilt, to the
same bits, from the samples and the betas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from safebo.bounds import EnvelopeBound, ScaledBound, norm_lower_bound
from safebo.domain import Cube, Grid
from safebo.exceptions import InvalidValueError
from safebo.norms import NormQuery
from safebo.outputs import Output
from safebo.posterior import PointField, Posterior, scaled_columns
from safebo.sets import covered, expanders, maximisers, staircase

FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]

_MAX_RAISES = 200  # each multiplies the norm by the margin: enough for sixteen orders of magnitude at 1.2


@dataclass(frozen=True)
class Rules:
    """The settings every sub-domain shares."""

    outputs: tuple[Output, ...]
    shape: tuple[int, ...]
    safe_set: str
    falsify: bool
    margin: float


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


@dataclass(frozen=True)
class Candidate:
    """A grid point with everything a trial's certificate needs."""

    x: tuple[float, ...]
    uncertainty: float
    lower: tuple[float, ...]  # per output, C_t
    upper: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class OutputState:
    """One output in one sub-domain."""

    posterior: Posterior
    norm: float = np.inf  # B_t
    floor: float = 0.0  # raised by refutations, never lowered
    norms: FloatArray = field(default_factory=lambda: np.empty(0))  # B after sample i where Q was formed, else -1
    betas: FloatArray = field(default_factory=lambda: np.empty(0))  # the same for beta (scaled bounds)
    grid: PointField | None = None
    seed_lower: FloatArray = field(default_factory=lambda: np.empty(0))  # C_t at the samples (t,)
    seed_upper: FloatArray = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True, eq=False)
class SubDomain:
    """A cube with its samples, its outputs and its summary."""

    cube: Cube
    rows: NDArray[np.intp]  # which samples lie in the cube
    seeds: Mask  # which of those were measured inside every limit
    outputs: tuple[OutputState, ...]
    safe: NDArray[np.uint8]  # S_t, packed bits
    any_safe: bool
    any_expander: bool
    highest_upper: float  # largest upper bound of the objective in S_t
    best: Candidate | None  # largest certified lower bound of the objective
    expander: Candidate | None  # most uncertain one
    stairs: tuple[Candidate, ...]  # maximiser candidates, by decreasing upper bound

    def maximiser(self, best_lower: float) -> Candidate | None:
        """The most uncertain maximiser for this best lower bound."""
        found = None
        for step in self.stairs:
            if step.upper[0] < best_lower:
                break
            found = step
        return found

    def candidate(self, best_lower: float) -> Candidate | None:
        """The most uncertain element of M u G, eq. (9)."""
        options = [c for c in (self.maximiser(best_lower), self.expander) if c is not None]
        return max(options, key=lambda c: c.uncertainty, default=None)

    def without_grid(self) -> SubDomain:
        """The same without its arrays on the grid."""
        return replace(self, outputs=tuple(replace(o, grid=None) for o in self.outputs))

    @property
    def nbytes(self) -> int:
        """Memory held by the arrays on the grid."""
        return sum(o.grid.nbytes for o in self.outputs if o.grid is not None)

    def safe_mask(self, size: int) -> Mask:
        """S_t as a mask over the grid, (G,)."""
        return np.unpackbits(self.safe, count=size).astype(bool)


@dataclass(frozen=True, eq=False)
class Draft:
    """First half of an update: the data are in, the raw norm estimates are known, nothing is decided yet."""

    cube: Cube
    previous: SubDomain | None
    rows: NDArray[np.intp]
    seeds: Mask
    posteriors: tuple[Posterior, ...]
    raw: tuple[float, ...]
    lower_bounds: tuple[float, ...]


def prepare(
    cube: Cube,
    previous: SubDomain | None,
    rules: Rules,
    x: FloatArray,
    values: FloatArray,
    inside: Mask,
    seed: tuple[int, ...],
    raw: Sequence[float] | None = None,
) -> Draft:
    """Extend the posteriors by the samples that are new to this cube and estimate its norms (or take recorded ones).

    x (t, n), values (t, outputs) and inside (t,) are all samples so far; the cube picks its own.
    """
    rows = np.flatnonzero(cube.contains(x))
    known = 0 if previous is None else len(previous.rows)
    fresh = rows[known:]
    posteriors, estimates, lower_bounds = [], [], []
    for i, output in enumerate(rules.outputs):
        regulariser = output.bound.regulariser(output.noise)
        old = Posterior.empty(output.kernel, x.shape[1], regulariser) if previous is None else previous.outputs[i].posterior
        posterior = old.extend(x[fresh], values[fresh, i]) if len(fresh) else old
        posteriors.append(posterior)
        at_noise = posterior
        if (raw is None or rules.falsify) and regulariser != output.noise**2:
            prior = Posterior.empty(output.kernel, x.shape[1], output.noise**2)
            at_noise = prior.extend(x[rows], values[rows, i]) if len(rows) else prior
        if raw is None:
            query = NormQuery(at_noise, output.noise, np.array(cube.lower), np.array(cube.upper), (*seed, i))
            estimate = float(output.norm.estimate(query))
            if not (np.isfinite(estimate) and estimate > 0.0):
                raise InvalidValueError(f"{output.norm!r} returned the norm {estimate!r} for {cube}; it must be positive and finite.")
            estimates.append(estimate)
        else:
            estimates.append(float(raw[i]))
        lower_bounds.append(norm_lower_bound(at_noise, output.noise, output.delta) if rules.falsify and len(rows) else 0.0)
    return Draft(cube, previous, rows, inside[rows], tuple(posteriors), tuple(estimates), tuple(lower_bounds))


def conclude(
    draft: Draft, rules: Rules, lower_bounds: Sequence[float], step: int, *, keep_grid: bool
) -> tuple[SubDomain, list[Refutation]]:
    """Second half: norm bound, interval C_t, sets S, M, G, and the summary (Alg. 2).

    lower_bounds: the smallest norm that the data of this cube, or of a cube inside it, do not refute.
    """
    grid = Grid(draft.cube, rules.shape)
    columns = grid.columns()
    events: list[Refutation] = []
    states, fields, halves = [], [], []
    for i, output in enumerate(rules.outputs):
        previous = draft.previous.outputs[i] if draft.previous is not None else None
        state, points, half, found = _interval(
            previous, draft.posteriors[i], output, draft.raw[i], lower_bounds[i], rules, draft.cube, step, columns, keep_grid
        )
        states.append(state)
        fields.append(points)
        halves.append(half / np.sqrt(output.kernel.outputscale))
        events.extend(found)
    uncertainty = halves[0] if len(halves) == 1 else np.maximum.reduce(halves)
    restarted = bool(events)
    old_safe = np.zeros(grid.size, dtype=bool)
    if draft.previous is not None and not restarted:
        old_safe = draft.previous.safe_mask(grid.size)
    seeds = draft.posteriors[0].x[draft.seeds]
    safe, certified = np.ones(grid.size, dtype=bool), np.ones(len(seeds), dtype=bool)
    limits = []  # (output, optimistic margin on the grid)
    for i, output in enumerate(rules.outputs):
        state, points = states[i], fields[i]
        for pessimistic, optimistic, seed_margin in _margins(output, points, state, draft.seeds):
            allowed = pessimistic >= 0.0 if rules.safe_set != "continuity" else np.zeros(grid.size, dtype=bool)
            if rules.safe_set != "confidence" and not allowed.all():
                allowed = allowed | covered(grid, output.kernel, state.norm, pessimistic, old_safe, seeds, seed_margin)
            safe &= allowed
            certified &= seed_margin >= 0.0
            limits.append((i, optimistic))
    expanding = np.zeros(grid.size, dtype=bool)
    if safe.any() and not safe.all():
        for i, optimistic in limits:
            expanding |= expanders(grid, rules.outputs[i].kernel, states[i].norm, optimistic, safe)
    summary = _summarise(grid, rules, states, fields, uncertainty, safe, expanding, seeds, draft.seeds, certified)
    return SubDomain(draft.cube, draft.rows, draft.seeds, tuple(states), np.packbits(safe), *summary), events


def _margins(
    output: Output, points: PointField, state: OutputState, seeds: Mask
) -> list[tuple[FloatArray, FloatArray, FloatArray]]:
    """(pessimistic, optimistic, pessimistic at the seeds) for every limit of an output."""
    found = []
    if output.lower_limit is not None:
        h = output.lower_limit
        found.append((points.lower - h, points.upper - h, state.seed_lower[seeds] - h))
    if output.upper_limit is not None:
        h = output.upper_limit
        found.append((h - points.upper, h - points.lower, h - state.seed_upper[seeds]))
    return found


# -- intervals -----------------------------------------------------------------------------------------------------------


def _interval(
    previous: OutputState | None,
    posterior: Posterior,
    output: Output,
    raw: float,
    lower_bound: float,
    rules: Rules,
    cube: Cube,
    step: int,
    columns: FloatArray,
    keep_grid: bool,
) -> tuple[OutputState, PointField, FloatArray, list[Refutation]]:
    """B_t (Alg. 3, Case III, with falsification) and C_t on the grid and at the samples; also the half-width of Q_t."""
    scaled = isinstance(output.bound, ScaledBound)
    before = OutputState(posterior) if previous is None else previous
    floor = before.floor
    norm = max(min(raw, before.norm), floor)
    events: list[Refutation] = []

    def raised(reason: str, smallest: float, target: float) -> float:
        events.append(Refutation(step, cube, output.name, norm, smallest, target, reason))
        return target

    mandatory = not scaled  # an envelope bound with a refuted norm has no interval at all
    if lower_bound > norm and rules.falsify:
        norm = floor = raised("norm", lower_bound, rules.margin * lower_bound)
    scale_columns = scaled_columns(columns, posterior.kernel)
    sample_columns = scaled_columns(posterior.x.T, posterior.kernel)
    for _ in range(_MAX_RAISES):
        history = before if not events else replace(before, norms=np.empty(0), betas=np.empty(0), grid=None)
        state = replace(
            history,
            posterior=posterior,
            norm=norm,
            floor=floor,
            norms=_appended(history.norms, posterior.size, norm),
            betas=_appended(
                history.betas, posterior.size,
                output.bound.beta(posterior, norm, output.noise, output.delta) if isinstance(output.bound, ScaledBound) else -1.0,
            ),  # fmt: skip
        )
        if scaled:
            points, half = _scaled_grid(state, scale_columns, keep_grid)
            at_samples = PointField.prior(posterior.size, posterior.kernel).advanced(
                sample_columns, posterior, state.betas, keep_basis=False
            )
        else:
            points, half = _envelope_grid(state, output, scale_columns)
            at_samples = _envelope_samples(state, output, restarted=bool(events))
        if (points.lower < points.upper).all() and (at_samples.lower <= at_samples.upper).all():
            break
        # Q_t alone is never empty for a scaled bound: it contradicts C_{t-1}, so some norm was too small. Restart from Q_t.
        target = norm * rules.margin if (rules.falsify or mandatory) else norm
        norm = raised("interval", lower_bound, target)
        floor = max(floor, norm) if target > 0.0 and (rules.falsify or mandatory) else floor
    else:
        raise InvalidValueError(f"No norm makes the intervals of {output.name!r} in {cube} consistent: check noise and kernel.")
    state = replace(state, seed_lower=at_samples.lower, seed_upper=at_samples.upper, grid=points if keep_grid else None)
    return state, points, half, events


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


def _cross(posterior: Posterior, columns: FloatArray) -> FloatArray:
    """k(X, points), (t, G), from scaled columns."""
    scale = posterior.kernel.lengthscales(len(columns))
    return posterior.kernel(posterior.x, columns.T * scale)


def _envelope_at(state: OutputState, output: Output, columns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """C_t at any points: intersection over the history of the sub-domain."""
    bound = output.bound
    assert isinstance(bound, EnvelopeBound)
    cross = _cross(state.posterior, columns)
    lower, upper = np.full(columns.shape[1], -np.inf), np.full(columns.shape[1], np.inf)
    for row in np.flatnonzero(state.norms >= 0.0):
        past = state.posterior.prefix(row + 1)
        low, high = bound.interval(past, cross[: row + 1], float(state.norms[row]), output.noise, output.delta)
        lower, upper = np.maximum(lower, low), np.minimum(upper, high)
    return lower, upper


def _envelope_grid(state: OutputState, output: Output, columns: FloatArray) -> tuple[PointField, FloatArray]:
    bound = output.bound
    assert isinstance(bound, EnvelopeBound)
    low, high = bound.interval(state.posterior, _cross(state.posterior, columns), state.norm, output.noise, output.delta)
    if state.grid is not None:
        lower, upper = np.maximum(low, state.grid.lower), np.minimum(high, state.grid.upper)
    else:
        lower, upper = _envelope_at(state, output, columns)
    mean = 0.5 * (low + high)
    return PointField(mean, np.zeros_like(mean), lower, upper, state.posterior.size), 0.5 * (high - low)


def _envelope_samples(state: OutputState, output: Output, *, restarted: bool) -> PointField:
    """C_t at the samples, intersected from the step on at which each was taken."""
    bound = output.bound
    assert isinstance(bound, EnvelopeBound)
    posterior = state.posterior
    gram = posterior.kernel(posterior.x, posterior.x)
    low, high = bound.interval(posterior, gram, state.norm, output.noise, output.delta)
    known = 0 if restarted else len(state.seed_lower)
    low[:known] = np.maximum(low[:known], state.seed_lower[:known])
    high[:known] = np.minimum(high[:known], state.seed_upper[:known])
    return PointField(0.5 * (low + high), np.zeros_like(low), low, high, posterior.size)


def interval_at(state: OutputState, output: Output, points: FloatArray) -> tuple[FloatArray, FloatArray]:
    """C_t of one output at arbitrary points (p, n) of the sub-domain."""
    columns = scaled_columns(points.T, state.posterior.kernel)
    if isinstance(output.bound, ScaledBound):
        prior = PointField.prior(len(points), state.posterior.kernel)
        found = prior.advanced(columns, state.posterior, state.betas, keep_basis=False)
        return found.lower, found.upper
    return _envelope_at(state, output, columns)


# -- summary -------------------------------------------------------------------------------------------------------------


def _summarise(
    grid: Grid,
    rules: Rules,
    states: list[OutputState],
    fields: list[PointField],
    uncertainty: FloatArray,
    safe: Mask,
    expanding: Mask,
    seeds: FloatArray,
    seed_mask: Mask,
    certified: Mask,
) -> tuple[bool, bool, float, Candidate | None, Candidate | None, tuple[Candidate, ...]]:
    """What outlives the grid: see `SubDomain`."""

    def on_grid(index: int) -> Candidate:
        return Candidate(
            tuple(grid.point(index).tolist()),
            float(uncertainty[index]),
            tuple(float(f.lower[index]) for f in fields),
            tuple(float(f.upper[index]) for f in fields),
        )

    best: Candidate | None = None
    inside = np.flatnonzero(safe)
    lower, upper = fields[0].lower, fields[0].upper
    if len(inside):
        best = on_grid(int(inside[np.argmax(lower[inside])]))
    if certified.any():
        rows = np.flatnonzero(seed_mask)[certified]
        j = int(np.argmax(states[0].seed_lower[rows]))
        if best is None or states[0].seed_lower[rows[j]] > best.lower[0]:
            best = Candidate(
                tuple(seeds[certified][j].tolist()),
                0.0,
                tuple(float(s.seed_lower[rows[j]]) for s in states),
                tuple(float(s.seed_upper[rows[j]]) for s in states),
            )
    worth = np.zeros(grid.size, dtype=bool)
    for f, output in zip(fields, rules.outputs, strict=True):
        worth |= f.upper - f.lower > output.min_width
    promising = np.flatnonzero(safe & worth & (upper >= (best.lower[0] if best is not None else -np.inf)))
    stairs = tuple(on_grid(int(i)) for i in staircase(upper, uncertainty, promising))
    open_expanders = np.flatnonzero(expanding & worth)
    expander = on_grid(int(open_expanders[np.argmax(uncertainty[open_expanders])])) if len(open_expanders) else None
    highest = float(upper[inside].max()) if len(inside) else -np.inf
    return bool(len(inside)), bool(expanding.any()), highest, best, expander, stairs


# -- for inspection ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SubDomainView:
    """Everything about a sub-domain on its grid, rebuilt from its samples: for plots, tests and curious users."""

    cube: Cube
    points: FloatArray  # (G, n), unit cube
    norms: dict[str, float]
    lower: dict[str, FloatArray]
    upper: dict[str, FloatArray]
    safe: Mask
    maximisers: Mask
    expanders: Mask


def view(subdomain: SubDomain, rules: Rules, best_lower: float) -> SubDomainView:
    """Rebuild the arrays of a sub-domain on its grid."""
    grid = Grid(subdomain.cube, rules.shape)
    points, safe = grid.points(), subdomain.safe_mask(grid.size)
    lower, upper, norms = {}, {}, {}
    expanding = np.zeros(grid.size, dtype=bool)
    for output, state in zip(rules.outputs, subdomain.outputs, strict=True):
        low, high = interval_at(state, output, points)
        lower[output.name], upper[output.name], norms[output.name] = low, high, state.norm
        if output.lower_limit is not None:
            expanding |= expanders(grid, output.kernel, state.norm, high - output.lower_limit, safe)
        if output.upper_limit is not None:
            expanding |= expanders(grid, output.kernel, state.norm, output.upper_limit - low, safe)
    objective = rules.outputs[0].name
    return SubDomainView(
        subdomain.cube, points, norms, lower, upper, safe, maximisers(upper[objective], safe, best_lower), expanding
    )


def certifies(subdomain: SubDomain, rules: Rules, points: FloatArray) -> Mask:
    """Which points (p, n) of the cube are certified by the safe-set rule, with the sub-domain's own S_t and seeds as sources."""
    result = np.ones(len(points), dtype=bool)
    grid = Grid(subdomain.cube, rules.shape)
    sources: FloatArray | None = None
    if rules.safe_set != "confidence":
        on_grid = grid.points()[subdomain.safe_mask(grid.size)]
        sources = np.concatenate([on_grid, subdomain.outputs[0].posterior.x[subdomain.seeds]])
    for output, state in zip(rules.outputs, subdomain.outputs, strict=True):
        if not output.is_limit:
            continue
        low, high = interval_at(state, output, points)
        at_sources = interval_at(state, output, sources) if sources is not None and len(sources) else None
        for sign, limit in ((1.0, output.lower_limit), (-1.0, output.upper_limit)):
            if limit is None:
                continue
            margin = low - limit if sign > 0 else limit - high
            allowed = margin >= 0.0 if rules.safe_set != "continuity" else np.zeros(len(points), dtype=bool)
            if at_sources is not None and sources is not None and not allowed.all():
                source_margin = at_sources[0] - limit if sign > 0 else limit - at_sources[1]
                todo = np.flatnonzero(~allowed)
                allowed[todo] = _covers(output, state.norm, sources, source_margin, points[todo])
            result &= allowed
    return result


def _covers(output: Output, norm: float, sources: FloatArray, margin: FloatArray, points: FloatArray) -> Mask:
    """Eq. (6) at arbitrary points, pair by pair in blocks."""
    usable = margin >= 0.0
    sources, margin = sources[usable], margin[usable]
    result = np.zeros(len(points), dtype=bool)
    block = max(1, 4_000_000 // max(len(points), 1))
    for first in range(0, len(sources), block):
        piece = slice(first, first + block)
        result |= (norm * output.kernel.metric(points, sources[piece]) <= margin[piece]).any(axis=1)
    return result
