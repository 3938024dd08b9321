"""The analysis of one step: from the state and the committed sub-domains to the next candidate. Pure functions (Alg. 4, l. 3-7).

Only sub-domains that a new sample touches are recomputed; the others are taken over as they are. Where the norm estimator learns
from all samples (`revises`), those that the choice rests on are brought up to date too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from safebo.compute.threads import one_blas_thread
from safebo.domain import Cube, Grid
from safebo.exceptions import StopReason
from safebo.heading import step_towards
from safebo.inspection import view
from safebo.intervals import Refutation, Rules, interval_at
from safebo.outputs import Output
from safebo.state import NormRecord, Settings, State
from safebo.subdomain import Candidate, Draft, SubDomain, conclude, prepare, without

FloatArray = NDArray[np.float64]
SubDomains = dict[Cube, SubDomain]

# Grid points over all sub-domains up to which the last search for something worth measuring is exhaustive (seconds). Beyond,
# the sub-domains' own uncertainty decides, so that no run stops before the paper's would.
_SEARCHED = 1_000_000

# A norm that samples elsewhere raise by less is left as it is: that is the noise of the random functions.
_NOTICEABLE = 1.02

# "balanced" acquisition: every so many experiments go to the largest upper bound.
_EXPLOIT_EVERY = 3

# "directed" acquisition: every so many experiments go to the most uncertain point all the same, so that no corner is forgotten.
_EXPLORE_EVERY = 5

Estimates = list[tuple[int, tuple[float, ...]]]  # (cube number, raw norm estimate per output)
Choice = tuple[Cube, Candidate] | None
Revised = tuple[SubDomains, Estimates, list[Refutation], Choice, frozenset[Cube]]


@dataclass(frozen=True, eq=False)
class Analysis:
    """All sub-domains after a step, and what follows from them."""

    subdomains: SubDomains
    open: SubDomains  # the same without the neighbourhoods of aborted experiments: what choice and best rest on
    record: NormRecord
    refutations: tuple[Refutation, ...]
    best_lower: float
    choice: Choice
    stop_reason: StopReason | None
    current: frozenset[Cube]  # the sub-domains whose norms fit all samples; the others wait until they are needed, see `present`


def rules_of(settings: Settings) -> Rules:
    """What the sub-domains need to know of the settings."""
    return Rules(settings.outputs, settings.shape, settings.safe_set, settings.falsify, settings.margin, settings.stride)


@one_blas_thread()
def analyse(state: State, committed: SubDomains) -> Analysis:
    """The next candidate and everything behind it, or why there is none."""
    if state.settings.screening is None:
        revised = _revise(state, committed, *_update(state, committed, state.step))
    else:
        revised = _screen(state, committed)
    subdomains, estimates, refutations, choice, current = revised
    usable = unblocked(state, subdomains)
    best_lower = _best_lower(usable)
    reason = None if choice is not None else _stop_reason(state, subdomains, usable, best_lower)
    record = NormRecord(state.step, tuple(estimates))
    return Analysis(subdomains, usable, record, tuple(refutations), best_lower, choice, reason, current)


@one_blas_thread()
def present(state: State, analysis: Analysis, points: FloatArray | None = None) -> Analysis:
    """The analysis with every sub-domain around `points` (p, n) certified by all samples; without points, every sub-domain.

    A step brings only those sub-domains up to date that its choice rests on. What is shown as certified must not rest on the norm
    that a sub-domain had at its last sample, since samples elsewhere may have taught since then that it is too small. This is for
    looking: nothing of it is recorded.
    """
    slack = state.settings.domain.rounding
    around = [cube for cube in analysis.subdomains if points is None or cube.contains(points, slack).any()]
    old = frozenset(around) - analysis.current
    if not old:
        return analysis
    subdomains = _update(state, analysis.subdomains, state.step, only=old)[0]
    usable, current = unblocked(state, subdomains), analysis.current | old
    return replace(analysis, subdomains=subdomains, open=usable, best_lower=_best_lower(usable), current=current)


@one_blas_thread()
def unblocked(state: State, subdomains: SubDomains) -> SubDomains:
    """The sub-domains without the neighbourhoods of aborted experiments. They are not stored: the state determines them."""
    if not state.aborts:
        return subdomains
    rules, result = rules_of(state.settings), dict[Cube, SubDomain]()
    for cube, subdomain in subdomains.items():
        removed = state.blocked(Grid(cube, rules.shape).points())
        result[cube] = without(subdomain, rules, removed) if removed.any() else subdomain
    return result


@one_blas_thread()
def repeat(state: State, committed: SubDomains, record: NormRecord) -> SubDomains:
    """The sub-domains after a recorded analysis, in the order in which it treated them, without estimating norms again."""
    result, entries = committed, list(record.estimates)
    if state.settings.screening is None:  # those with new samples together, then the revised ones
        x = state.x()[: record.step]
        order = state.settings.locality.cubes(x)
        together = [entry for entry in entries if _touched(order[entry[0]], committed, x)]
        result = _update(state, result, record.step, NormRecord(record.step, tuple(together)))[0]
        entries = [entry for entry in entries if entry not in together]
    for entry in entries:  # screening certifies one sub-domain at a time
        result = _update(state, result, record.step, NormRecord(record.step, (entry,)))[0]
    return result


def _update(
    state: State, base: SubDomains, step: int, record: NormRecord | None = None, only: frozenset[Cube] | None = None
) -> tuple[SubDomains, Estimates, list[Refutation]]:
    """Sub-domains after `step` samples.

    With a record exactly its sub-domains are recomputed, with its estimates. `only` restricts a fresh computation to some of
    them, which may then be some without new samples: those change if their norms rise.
    """
    settings, rules = state.settings, rules_of(state.settings)
    x, values, inside = state.x()[:step], state.values()[:step], state.inside()[:step]
    recorded = None if record is None else dict(record.estimates)
    order = settings.locality.cubes(x)
    drafts: dict[Cube, Draft] = {}
    estimates: Estimates = []
    for position, cube in enumerate(order):
        raw = None if recorded is None else recorded.get(position)
        wanted = recorded is None and (only is None or cube in only)
        touched = wanted and _touched(cube, base, x)
        stale = wanted and only is not None and not touched and cube in base
        if raw is None and not touched and not stale:
            continue
        draft = prepare(cube, base.get(cube), rules, x, values, inside, (settings.seed, step), raw)
        current = _raised(draft, base[cube]) if stale else draft
        if current is not None:
            drafts[cube] = current
            estimates.append((position, current.raw))
    lower_bounds = _enclosed_lower_bounds(list(drafts.values()))
    result: SubDomains = {}
    refutations: list[Refutation] = []
    held = sum(s.nbytes for cube, s in base.items() if cube not in drafts)
    for cube in order:
        if cube in drafts:
            keep = held < settings.memory_budget
            result[cube], found = conclude(drafts[cube], rules, lower_bounds[cube], step, keep_grid=keep)
            held += result[cube].nbytes
            refutations.extend(found)
        elif cube in base:
            result[cube] = base[cube]
    return result, estimates, refutations


def _touched(cube: Cube, base: Mapping[Cube, SubDomain], x: FloatArray) -> bool:
    """Whether a cube holds samples that it has not seen; a cube without samples knows nothing and is left out."""
    known = base.get(cube)
    return (0 if known is None else len(known.rows)) < int(cube.contains(x).sum())


def _revise(
    state: State, committed: SubDomains, subdomains: SubDomains, estimates: Estimates, refutations: list[Refutation]
) -> Revised:
    """The choice, where every sub-domain it rests on has a norm that fits ALL samples (for estimators that learn from them).

    Those are the sub-domain that certifies the choice and the one that holds the best lower bound. Others keep the norm of their
    last sample until they are needed; before a run ends, every one is revised.
    """
    current = {cube for cube, s in subdomains.items() if s is not committed.get(cube)}
    while True:
        usable = unblocked(state, subdomains)
        choice = _choose(usable, _best_lower(usable), state)
        if not _revises(state.settings):
            return subdomains, estimates, refutations, choice, frozenset(subdomains)
        needed = list(subdomains) if choice is None else [choice[0], _best_cube(usable)]
        old = [cube for cube in needed if cube is not None and cube not in current]
        if not old:
            return subdomains, estimates, refutations, choice, frozenset(current)
        for cube in old:
            subdomains, found, events = _update(state, subdomains, state.step, only=frozenset([cube]))
            estimates, refutations = estimates + found, refutations + events
            current.add(cube)


def _best_cube(subdomains: Mapping[Cube, SubDomain]) -> Cube | None:
    """The sub-domain with the largest certified lower bound."""
    certified = [(s.best.lower[0], cube) for cube, s in subdomains.items() if s.best is not None]
    return max(certified, key=lambda pair: pair[0], default=(0.0, None))[1]


def _revises(settings: Settings) -> bool:
    """Whether a norm estimator learns from samples outside of a sub-domain."""
    return any(getattr(o.norm, "revises", False) for o in settings.outputs)


def _raised(draft: Draft, before: SubDomain) -> Draft | None:
    """The draft of a sub-domain without new samples, if what was learned elsewhere raises one of its norms, else None."""
    norms = [o.norm for o in before.outputs]
    if not any(raw > _NOTICEABLE * norm for raw, norm in zip(draft.raw, norms, strict=True)):
        return None
    return replace(draft, raw=tuple(max(raw, norm) for raw, norm in zip(draft.raw, norms, strict=True)))


def _screen(state: State, committed: SubDomains) -> Revised:
    """Rank the touched sub-domains with the screening norm and certify them one by one (appendix "Role of the RNN").

    The first sub-domain whose certified candidate is the screened one wins. If none does, every touched sub-domain has been
    certified by then, and the most uncertain certified candidate is taken.
    """
    screened = _screened(state, committed)
    ranking = unblocked(state, {**{c: s for c, s in committed.items() if c not in screened}, **screened})
    best = _best_lower(ranking)
    ranked = [(cube, subdomain.candidate(best)) for cube, subdomain in ranking.items()]
    ranked.sort(key=lambda pair: -pair[1].uncertainty if pair[1] is not None else np.inf)
    current, estimates, refutations = committed, list[tuple[int, tuple[float, ...]]](), list[Refutation]()
    done = set[Cube]() if _revises(state.settings) else set(committed) - set(screened)
    for cube, wanted in ranked:
        if cube in screened or _revises(state.settings):
            current, found, events = _update(state, current, state.step, only=frozenset([cube]))
            done.add(cube)
            estimates.extend(found)
            refutations.extend(events)
        usable = unblocked(state, current)
        certified = usable[cube].candidate(_best_lower(usable))
        if wanted is not None and certified is not None and certified.x == wanted.x:
            return current, estimates, refutations, (cube, certified), frozenset(done)
    usable = unblocked(state, current)
    return current, estimates, refutations, _choose(usable, _best_lower(usable), state), frozenset(done)


def _screened(state: State, committed: SubDomains) -> SubDomains:
    """The touched sub-domains as the screening norm sees them; nothing of this is kept."""
    settings, screening = state.settings, state.settings.screening
    assert screening is not None
    x, values, inside = state.x(), state.values(), state.inside()
    rules = replace(rules_of(settings), outputs=tuple(replace(o, norm=screening) for o in settings.outputs), falsify=False)
    result: SubDomains = {}
    for cube in settings.locality.cubes(x):
        if _touched(cube, committed, x):
            draft = prepare(cube, committed.get(cube), rules, x, values, inside, (settings.seed, state.step))
            result[cube] = conclude(draft, rules, draft.lower_bounds, state.step, keep_grid=False)[0]
    return result


def _best_lower(subdomains: Mapping[Cube, SubDomain]) -> float:
    return max((s.best.lower[0] for s in subdomains.values() if s.best is not None), default=-np.inf)


def _choose(subdomains: Mapping[Cube, SubDomain], best_lower: float, state: State) -> Choice:
    """The next experiment among the candidates of all sub-domains.

    "paper": the most uncertain candidate, each as uncertain as its own sub-domain says (Alg. 4, l. 7). "joint": see
    `_choose_jointly`. "balanced": every third experiment is `_choose_optimistically`, the others are joint. "directed": all but
    every fifth are `_choose_heading`. The run ends when the rest would end it. Ties go to the earlier sub-domain.
    """
    settings = state.settings
    own: Choice = None
    for cube, subdomain in subdomains.items():
        candidate = subdomain.candidate(best_lower)
        if candidate is not None and (own is None or candidate.uncertainty > own[1].uncertainty):
            own = cube, candidate
    if own is None or settings.acquisition == "paper":
        return own
    choice: Choice = None
    if settings.acquisition == "balanced" and state.step % _EXPLOIT_EVERY == 0:
        choice = _choose_optimistically(subdomains, best_lower, settings)
    if choice is None:
        choice = own if len(subdomains) == 1 else _choose_jointly(subdomains, best_lower, settings)
    if choice is None:
        points = len(subdomains) * math.prod(settings.shape)
        choice = _search_jointly(subdomains, best_lower, settings) if points <= _SEARCHED else own
    if settings.acquisition == "directed" and choice is not None and state.step % _EXPLORE_EVERY:
        return _choose_heading(subdomains, state) or choice
    return choice


def _choose_heading(subdomains: Mapping[Cube, SubDomain], state: State) -> Choice:
    """The certified point on the way to the most promising place, see `heading`; None if that teaches nothing."""
    settings, cubes = state.settings, list(subdomains)
    grids = [Grid(cube, settings.shape) for cube in cubes]
    places = [(grid, np.flatnonzero(subdomains[cube].near_mask(grid.size))) for cube, grid in zip(cubes, grids, strict=True)]
    blocked = state.blocked if state.aborts else None
    found = step_towards(settings.outputs, state.x(), state.values(), state.inside(), places, blocked)
    if found is None:
        return None
    cube, point = cubes[found[0]], found[1][None, :]
    lower, upper = joint_interval(subdomains, settings.outputs, point, latest=True)
    if not np.any(upper - lower > np.array([o.min_width for o in settings.outputs])):
        return None
    bounds = [interval_at(s, o, point) for s, o in zip(subdomains[cube].outputs, settings.outputs, strict=True)]
    low, high = tuple(float(b[0][0]) for b in bounds), tuple(float(b[1][0]) for b in bounds)
    scale = [math.sqrt(o.kernel.outputscale) for o in settings.outputs]
    uncertainty = max(0.5 * (b - a) / c for a, b, c in zip(low, high, scale, strict=True))
    return cube, Candidate(tuple(point[0].tolist()), uncertainty, low, high)


def _choose_optimistically(subdomains: Mapping[Cube, SubDomain], best_lower: float, settings: Settings) -> Choice:
    """Of every sub-domain's most promising candidate, the one with the largest upper bound given all sub-domains around it.

    Uncertainty alone explores everything that is safe before it settles on what is good. None if nothing that could beat the best
    lower bound is uncertain by more than min_width.
    """
    promising = [(c, s.stairs[0]) for c, s in subdomains.items() if len(s.stairs.x) and s.stairs.upper[0, 0] >= best_lower]
    if not promising:
        return None
    points = np.array([candidate.x for _, candidate in promising])
    lower, upper = joint_interval(subdomains, settings.outputs, points, latest=True)
    worth = np.any(upper - lower > np.array([o.min_width for o in settings.outputs]), axis=1) & (upper[:, 0] >= best_lower)
    return promising[int(np.argmax(np.where(worth, upper[:, 0], -np.inf)))] if worth.any() else None


def _choose_jointly(subdomains: Mapping[Cube, SubDomain], best_lower: float, settings: Settings) -> Choice:
    """The candidate that is most uncertain given what ALL sub-domains around it know: the intersection of their intervals.

    A sub-domain with few samples is uncertain of points that another one knows well; measuring them again teaches nothing. Every
    candidate is still certified by its own sub-domain, so this changes which safe experiment is run, never what counts as safe. A
    maximiser must be one for every sub-domain around it. None if all candidates are known to within min_width.
    """
    candidates = [(c, k, False) for c, s in subdomains.items() if (k := s.maximiser(best_lower)) is not None]
    candidates += [(c, k, True) for c, s in subdomains.items() if (k := s.expander) is not None]
    points = np.array([k.x for _, k, _ in candidates])
    lower, upper = joint_interval(subdomains, settings.outputs, points, latest=True)
    scale = np.array([np.sqrt(o.kernel.outputscale) for o in settings.outputs])
    width = upper - lower
    worth = np.any(width > np.array([o.min_width for o in settings.outputs]), axis=1)
    uncertainty = (0.5 * width / scale).max(axis=1)
    choice, largest = None, 0.0
    for i, (cube, candidate, expands) in enumerate(candidates):
        if worth[i] and uncertainty[i] > largest and (expands or upper[i, 0] >= best_lower):
            choice, largest = (cube, candidate), float(uncertainty[i])
    return choice


def _search_jointly(subdomains: Mapping[Cube, SubDomain], best_lower: float, settings: Settings) -> Choice:
    """The same over ALL maximisers and expanders, for when the most uncertain ones of every sub-domain teach nothing any more.

    None means converged: no point of M u G in any sub-domain is uncertain by more than min_width given all that is known.
    """
    rules, widths = rules_of(settings), np.array([o.min_width for o in settings.outputs])
    scale = np.array([np.sqrt(o.kernel.outputscale) for o in settings.outputs])
    choice: Choice = None
    largest = 0.0
    for cube, subdomain in subdomains.items():
        if subdomain.candidate(best_lower) is None:
            continue
        seen = view(subdomain, rules, best_lower)
        open_points = np.flatnonzero(seen.maximisers | seen.expanders)
        lower, upper = joint_interval(subdomains, settings.outputs, seen.points[open_points])
        uncertainty = (0.5 * (upper - lower) / scale).max(axis=1)
        useful = seen.expanders[open_points] | (upper[:, 0] >= best_lower)
        uncertainty[~(np.any(upper - lower > widths, axis=1) & useful)] = 0.0
        if len(uncertainty) and uncertainty.max() > largest:
            index = open_points[int(np.argmax(uncertainty))]
            largest = float(uncertainty.max())
            choice = (
                cube,
                Candidate(
                    tuple(seen.points[index].tolist()),
                    largest,
                    tuple(float(seen.lower[o.name][index]) for o in settings.outputs),
                    tuple(float(seen.upper[o.name][index]) for o in settings.outputs),
                ),
            )
    return choice


@one_blas_thread()
def joint_interval(
    subdomains: Mapping[Cube, SubDomain],
    outputs: tuple[Output, ...],
    points: FloatArray,
    only: int | None = None,
    slack: float = 0.0,
    latest: bool = False,
) -> tuple[FloatArray, FloatArray]:
    """Intersection of the intervals of all sub-domains around each point: lower and upper, (p, outputs) or one output `only`.

    Where two sub-domains contradict each other (one of their norms must be wrong) it is the interval that spans all of them.
    Points that no sub-domain with samples contains get (-inf, inf).
    """
    chosen = range(len(outputs)) if only is None else [only]
    shape = (len(points), len(chosen))
    lower, upper = np.full(shape, -np.inf), np.full(shape, np.inf)
    lowest, highest = np.full(shape, np.inf), np.full(shape, -np.inf)
    for cube, subdomain in subdomains.items():
        where = np.flatnonzero(cube.contains(points, slack))
        if not len(where) or not len(subdomain.rows):
            continue
        for i, index in enumerate(chosen):
            low, high = interval_at(subdomain.outputs[index], outputs[index], points[where], latest=latest)
            lower[where, i], upper[where, i] = np.maximum(lower[where, i], low), np.minimum(upper[where, i], high)
            lowest[where, i], highest[where, i] = np.minimum(lowest[where, i], low), np.maximum(highest[where, i], high)
    crossed = lower > upper
    return np.where(crossed, lowest, lower), np.where(crossed, highest, upper)


def _stop_reason(state: State, subdomains: SubDomains, usable: SubDomains, best_lower: float) -> StopReason:
    if state.aborts and _choose(subdomains, _best_lower(subdomains), state) is not None:
        return StopReason.BLOCKED
    if not any(s.any_safe for s in usable.values()):
        return StopReason.EMPTY_SAFE_SET
    if not any(np.unpackbits(s.near).sum() > len(s.rows) for s in usable.values()):  # nowhere to go but where it has been
        return StopReason.NO_CANDIDATES
    if any(s.any_expander or s.highest_upper >= best_lower for s in usable.values()):
        return StopReason.CONVERGED
    return StopReason.NO_CANDIDATES


def _enclosed_lower_bounds(drafts: list[Draft]) -> dict[Cube, tuple[float, ...]]:
    """Per cube, the smallest norms that its data and those of the cubes inside it allow.

    A box inside a box has the smaller norm, so what refutes a norm in a cube refutes it in every cube around it.
    """
    if not drafts:
        return {}
    low, high = np.array([d.cube.lower for d in drafts]), np.array([d.cube.upper for d in drafts])
    around = np.asarray((low[:, None] <= low[None]).all(axis=2) & (high[:, None] >= high[None]).all(axis=2))  # [i, j]: i around j
    own = np.array([d.lower_bounds for d in drafts])  # (cubes, outputs)
    largest = np.where(around[:, :, None], own[None], 0.0).max(axis=1)
    return {d.cube: tuple(row) for d, row in zip(drafts, largest.tolist(), strict=True)}
