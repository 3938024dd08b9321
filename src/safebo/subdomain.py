"""One sub-domain at one step: posteriors, norm bounds, intervals, sets, and the summary that outlives its grid (Alg. 2).

A sub-domain is a value: `prepare` and `conclude` return a new one and leave the old as it was. It changes only when its
samples do, or when samples elsewhere raise its norm. Between those moments the optimizer needs just its summary: the best
certified point, the most uncertain expander, and the staircase of maximiser candidates. The arrays on the grid may therefore
be dropped when memory is short; they are rebuilt from the samples and the recorded betas, for bounds of the form mean +- beta
sd to the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from safebo.bounds import norm_lower_bound
from safebo.domain import Cube, Grid
from safebo.exceptions import InvalidValueError
from safebo.intervals import OutputState, Refutation, Rules, decide, form
from safebo.norms import NormQuery
from safebo.outputs import Output
from safebo.posterior import PointField, Posterior
from safebo.sets import covered, expanders, staircase

FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Candidate:
    """A grid point with everything a trial's certificate needs."""

    x: tuple[float, ...]
    uncertainty: float
    lower: tuple[float, ...]  # per output, C_t
    upper: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Points:
    """Several candidates as arrays."""

    x: FloatArray  # (k, n)
    uncertainty: FloatArray  # (k,)
    lower: FloatArray  # (k, outputs)
    upper: FloatArray  # (k, outputs)

    def __getitem__(self, i: int) -> Candidate:
        return Candidate(
            tuple(self.x[i].tolist()), float(self.uncertainty[i]), tuple(self.lower[i].tolist()), tuple(self.upper[i].tolist())
        )


@dataclass(frozen=True, eq=False)
class SubDomain:
    """A cube with its samples, its outputs and its summary."""

    cube: Cube
    rows: NDArray[np.intp]  # which samples lie in the cube
    seeds: Mask  # which of those were measured inside every limit
    outputs: tuple[OutputState, ...]
    safe: NDArray[np.uint8]  # S_t, packed bits
    near: NDArray[np.uint8]  # the part of it where experiments may be, see `within_stride`
    any_safe: bool
    any_expander: bool
    highest_upper: float  # largest upper bound of the objective in S_t
    best: Candidate | None  # largest certified lower bound of the objective
    expander: Candidate | None  # most uncertain one
    stairs: Points  # maximiser candidates, by decreasing upper bound and increasing uncertainty

    def maximiser(self, best_lower: float) -> Candidate | None:
        """The most uncertain maximiser for this best lower bound."""
        reaching = int(np.count_nonzero(self.stairs.upper[:, 0] >= best_lower))
        return self.stairs[reaching - 1] if reaching else None

    def candidate(self, best_lower: float) -> Candidate | None:
        """The most uncertain element of M u G, eq. (9)."""
        options = [c for c in (self.maximiser(best_lower), self.expander) if c is not None]
        return max(options, key=lambda c: c.uncertainty, default=None)

    @property
    def nbytes(self) -> int:
        """Memory held by the arrays on the grid."""
        return sum(o.grid.nbytes for o in self.outputs if o.grid is not None)

    def safe_mask(self, size: int) -> Mask:
        """S_t as a mask over the grid, (G,)."""
        return np.unpackbits(self.safe, count=size).astype(bool)

    def near_mask(self, size: int) -> Mask:
        """Where in S_t experiments may be, (G,)."""
        return np.unpackbits(self.near, count=size).astype(bool)


@dataclass(frozen=True, eq=False)
class Draft:
    """First half of an update: the data are in, the raw norm estimates are known, nothing is decided yet."""

    cube: Cube
    previous: SubDomain | None
    rows: NDArray[np.intp]
    seeds: Mask
    posteriors: tuple[tuple[Posterior, Posterior], ...]  # per output: at the bound's regulariser, at sigma^2
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
    fresh = rows[0 if previous is None else len(previous.rows) :]
    posteriors, estimates, lower_bounds = [], [], []
    for i, output in enumerate(rules.outputs):
        posterior, at_noise = _posteriors(output, x.shape[1]) if previous is None else _stored(previous.outputs[i])
        shared = at_noise is posterior
        if len(fresh):
            posterior = posterior.extend(x[fresh], values[fresh, i])
            at_noise = posterior if shared else at_noise.extend(x[fresh], values[fresh, i])
        posteriors.append((posterior, at_noise))
        if raw is None:
            box = np.array(cube.lower), np.array(cube.upper)
            query = NormQuery(at_noise, output.noise, *box, (*seed, i), (x, np.ascontiguousarray(values[:, i])))
            estimate = float(output.norm.estimate(query))
            if not (np.isfinite(estimate) and estimate > 0.0):
                raise InvalidValueError(
                    f"{output.norm!r} returned the norm {estimate!r} for {cube}; it must be positive and finite."
                )
            estimates.append(estimate)
        else:
            estimates.append(float(raw[i]))
        lower_bounds.append(norm_lower_bound(at_noise, output.noise, output.delta) if rules.falsify and len(rows) else 0.0)
    return Draft(cube, previous, rows, inside[rows], tuple(posteriors), tuple(estimates), tuple(lower_bounds))


def _posteriors(output: Output, dim: int) -> tuple[Posterior, Posterior]:
    """The priors of an output: at the regulariser of its bound, and at sigma^2."""
    regulariser = output.bound.regulariser(output.noise)
    prior = Posterior.empty(output.kernel, dim, regulariser)
    return prior, prior if regulariser == output.noise**2 else Posterior.empty(output.kernel, dim, output.noise**2)


def _stored(state: OutputState) -> tuple[Posterior, Posterior]:
    return state.posterior, state.at_noise


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
        before = OutputState(*draft.posteriors[i]) if draft.previous is None else draft.previous.outputs[i]
        before = replace(before, posterior=draft.posteriors[i][0], at_noise=draft.posteriors[i][1])
        formed, found = decide(before, output, draft.raw[i], lower_bounds[i], rules, draft.cube, step, columns, keep_grid)
        states.append(formed.state)
        fields.append(formed.points)
        halves.append(formed.half_width)
        events.extend(found)
    old_norms = [np.inf] * len(states) if draft.previous is None else [o.norm for o in draft.previous.outputs]
    restarted = bool(events) or any(new.norm > old for new, old in zip(states, old_norms, strict=True))
    old_safe = np.zeros(grid.size, dtype=bool)
    if draft.previous is not None and not restarted:
        old_safe = draft.previous.safe_mask(grid.size)
    seeds = draft.posteriors[0][0].x[draft.seeds]
    safe = np.ones(grid.size, dtype=bool)
    for i, output in enumerate(rules.outputs):
        state, points = states[i], fields[i]
        for pessimistic, _, seed_margin in _margins(output, points, state, draft.seeds):
            allowed = pessimistic >= 0.0 if rules.safe_set != "continuity" else np.zeros(grid.size, dtype=bool)
            if rules.safe_set != "confidence" and not allowed.all():
                allowed = allowed | covered(grid, output.kernel, state.norm, pessimistic, old_safe, seeds, seed_margin)
            safe &= allowed
    return _concluded(draft.cube, draft.rows, draft.seeds, rules, states, fields, halves, safe), events


def without(subdomain: SubDomain, rules: Rules, removed: Mask) -> SubDomain:
    """The same sub-domain with the marked grid points (G,) taken out of its safe set."""
    grid = Grid(subdomain.cube, rules.shape)
    columns = grid.columns()
    formed = [form(state, o, columns) for state, o in zip(subdomain.outputs, rules.outputs, strict=True)]
    safe = subdomain.safe_mask(grid.size) & ~removed
    fields, halves = [f.points for f in formed], [f.half_width for f in formed]
    return _concluded(subdomain.cube, subdomain.rows, subdomain.seeds, rules, list(subdomain.outputs), fields, halves, safe)


def _concluded(
    cube: Cube,
    rows: NDArray[np.intp],
    seeds: Mask,
    rules: Rules,
    states: list[OutputState],
    fields: list[PointField],
    halves: list[FloatArray],
    safe: Mask,
) -> SubDomain:
    """A sub-domain from its intervals and its safe set: where experiments may be, expanders, summary."""
    grid = Grid(cube, rules.shape)
    certified = np.ones(int(seeds.sum()), dtype=bool)
    near = safe & within_stride(rules, fields)
    expanding = np.zeros(grid.size, dtype=bool)
    for output, state, points in zip(rules.outputs, states, fields, strict=True):
        for _, optimistic, seed_margin in _margins(output, points, state, seeds):
            certified &= seed_margin >= 0.0
            if near.any() and not near.all():
                expanding |= expanders(grid, output.kernel, state.norm, optimistic, near)
    scaled = [half / np.sqrt(output.kernel.outputscale) for half, output in zip(halves, rules.outputs, strict=True)]
    uncertainty = scaled[0] if len(scaled) == 1 else np.maximum.reduce(scaled)
    places = states[0].posterior.x[seeds]
    summary = _summarise(grid, rules, states, fields, uncertainty, safe, near, expanding, places, seeds, certified)
    return SubDomain(cube, rows, seeds, tuple(states), np.packbits(safe), np.packbits(near), *summary)


def within_stride(rules: Rules, fields: Sequence[PointField]) -> Mask:
    """Grid points where every limited output is at most as uncertain as `stride` lengthscales away from one measurement.

    Posterior variance <= k(0) (1 - rho^2 k(0) / (k(0) + lambda)) with rho the correlation at that distance. A certificate rests
    on a norm learned from samples; far from all of them little speaks for it.
    """
    result = np.ones(len(fields[0].lower), dtype=bool)
    if rules.stride is None:
        return result
    for output, points in zip(rules.outputs, fields, strict=True):
        if output.is_limit:
            scale, rho = output.kernel.outputscale, float(output.kernel.correlation(rules.stride))
            result &= points.variance <= scale * (1.0 - rho**2 * scale / (scale + output.bound.regulariser(output.noise)))
    return result


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


# -- summary -------------------------------------------------------------------------------------------------------------


def _summarise(
    grid: Grid,
    rules: Rules,
    states: list[OutputState],
    fields: list[PointField],
    uncertainty: FloatArray,
    safe: Mask,
    near: Mask,
    expanding: Mask,
    seeds: FloatArray,
    seed_mask: Mask,
    certified: Mask,
) -> tuple[bool, bool, float, Candidate | None, Candidate | None, Points]:
    """What outlives the grid: see `SubDomain`."""

    def on_grid(index: NDArray[np.intp]) -> Points:
        return Points(
            grid.at(index),
            uncertainty[index],
            np.stack([f.lower[index] for f in fields], axis=1),
            np.stack([f.upper[index] for f in fields], axis=1),
        )

    best: Candidate | None = None
    inside = np.flatnonzero(safe)
    lower, upper = fields[0].lower, fields[0].upper
    if len(inside):
        best = on_grid(inside[[np.argmax(lower[inside])]])[0]
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
    promising = np.flatnonzero(near & worth & (upper >= (best.lower[0] if best is not None else -np.inf)))
    stairs = on_grid(staircase(upper, uncertainty, promising))
    open_expanders = np.flatnonzero(expanding & worth)
    expander = on_grid(open_expanders[[np.argmax(uncertainty[open_expanders])]])[0] if len(open_expanders) else None
    highest = float(upper[inside].max()) if len(inside) else -np.inf
    return bool(len(inside)), bool(expanding.any()), highest, best, expander, stairs
