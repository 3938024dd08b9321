"""Whole runs of the optimizer beside the naive transcription, compared after every step.

Both sides are fed the library's trials. Ties between candidates are left open: the library's choice must be among the naive
contenders. The sets are compared exactly: on random functions a deciding quantity vanishes with probability zero.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest

from safebo import RBF, AbbasiYadkori, Box, Constraint, Fixed, LocalCubes, Matern, Paper, SafeOptimizer, Scenario
from safebo.exceptions import NormRefutedWarning, StopReason, UnsafeMeasurementWarning
from safebo.kernels import StationaryKernel
from safebo.rkhs import RKHSFunction, random_function
from tests.references import bounds
from tests.references.algorithm import NaiveOutput, NaiveSafeBO
from tests.references.kernels import metric, transcribed
from tests.references.measured import met, places
from tests.references.posterior import posterior

SCENARIO = Scenario(m=60, gamma=0.2, kappa=0.1)
TOLERANCE = 1e-7


# -- problems -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signal:
    """One output of a problem."""

    name: str
    f: RKHSFunction
    noise: float
    norm: Fixed | Scenario
    bound: Paper | AbbasiYadkori
    lower: float | None
    upper: float | None
    min_width: float

    @property
    def kernel(self) -> StationaryKernel:
        return self.f.kernel

    def margin(self, values):
        """Distance to the nearer limit."""
        above, below = (
            values - (-np.inf if self.lower is None else self.lower),
            (np.inf if self.upper is None else self.upper) - values,
        )
        return np.minimum(above, below)

    def measured(self, x, rng):
        return float(self.f(np.array([x]))[0]) + self.noise * rng.normal()


@dataclass(frozen=True)
class Problem:
    seed: int
    dim: int
    shape: tuple[int, ...]
    signals: tuple[Signal, ...]
    cubes: LocalCubes | None
    rule: str
    delta: float
    start: np.ndarray  # (k, n), unit cube
    steps: int
    domain: Box
    stride: float | None = None


KERNELS = [
    lambda scale: Matern(0.5, scale),
    lambda scale: Matern(1.5, scale, 2.0),
    lambda scale: Matern(2.5, scale),
    lambda scale: RBF(scale, 0.5),
]
BOUNDS = [Paper(), AbbasiYadkori(), AbbasiYadkori("noise"), AbbasiYadkori(0.01)]
LIMITS = [("lower",), ("lower", "upper"), ("", "upper"), ("lower", "upper", "lower upper"), ("", "lower")]


def random_signal(rng, number, dim, points, *, learned, limits):
    """A random function whose limits leave a part of the domain safe."""
    scales = rng.uniform(0.2, 0.6, dim)
    scale = float(scales[0]) if rng.random() < 0.5 else tuple(scales.tolist())
    kernel = KERNELS[rng.integers(len(KERNELS))](scale)
    norm = float(rng.uniform(2.0, 5.0))
    f = random_function(kernel, dim, norm, int(rng.integers(1 << 30)), 60)
    values = f(points)
    low, high = float(np.quantile(values, rng.uniform(0.05, 0.25))), float(np.quantile(values, rng.uniform(0.8, 0.95)))
    guess = norm * float(rng.choice([0.3, 1.0, 1.5]))  # the first is too small: its intervals contradict each other at times
    return Signal(
        name="objective" if number == 0 else f"g{number}",
        f=f,
        noise=float(rng.choice([0.003, 0.01, 0.05])),
        norm=replace(SCENARIO, alpha_bar=float(rng.choice([0.1, 0.4, 1.0]))) if learned else Fixed(guess),
        bound=BOUNDS[rng.integers(len(BOUNDS))],
        lower=low if "lower" in limits else None,
        upper=high if "upper" in limits else None,
        min_width=float(rng.choice([0.0, 0.05, 0.2])),
    )


def draw_problem(seed, attempt):
    """Everything follows from the seed; dimension, rule, locality and limits cycle so that all of them meet."""
    rng = np.random.default_rng([seed, attempt])
    dim = (1, 2, 1, 2, 1, 3)[seed % 6]
    points = rng.random((300, dim))
    signals = tuple(
        random_signal(rng, i, dim, points, learned=(seed + i) % 3 == 0, limits=limits)
        for i, limits in enumerate(LIMITS[seed % len(LIMITS)])
    )
    room = np.min([s.margin(s.f(points)) / s.f.norm for s in signals], axis=0)  # the start is well inside every limit
    return Problem(
        seed=seed,
        dim=dim,
        shape={1: (25,), 2: (7, 9) if seed % 4 else (8, 8), 3: (5, 5, 4)}[dim],
        signals=signals,
        cubes=None if seed % 7 == 0 else LocalCubes(3 if dim == 1 else 2, float(rng.uniform(0.1, 0.3))),
        rule=("union", "continuity", "confidence")[(seed + seed // 6) % 3],
        delta=float(rng.choice([0.01, 0.1])),
        start=points[np.argsort(-room)[: 1 + seed % 2]],
        steps={1: 8, 2: 6, 3: 5}[dim],
        domain=Box.unit(dim) if seed % 2 else Box({f"p{i}": (-1.0 - i, 2.0 + i) for i in range(dim)}),
        stride=(None, 0.5, 1.0, 0.25)[seed // 2 % 4],
    )


def random_problem(seed):
    """The first draw that leaves something to do; one in nine is taken as it comes."""
    for attempt in range(100):
        problem = draw_problem(seed, attempt)
        if seed % 9 == 8 or Pair(problem).opt.ask() is not None:
            return problem
    raise AssertionError(f"no draw of seed {seed} starts")


# -- both sides ---------------------------------------------------------------------------------------------------------


def optimizer(problem, **changes):
    first, *rest = problem.signals
    constraints = {
        s.name: Constraint(
            threshold=s.lower, upper=s.upper, kernel=s.kernel, noise=s.noise, norm=s.norm, bound=s.bound, min_width=s.min_width
        )
        for s in rest
    }
    arguments = {
        "kernel": first.kernel,
        "noise": first.noise,
        "norm": first.norm,
        "bound": first.bound,
        "delta": problem.delta,
        "cubes": problem.cubes,
        "points_per_axis": problem.shape,
        "safe_set": problem.rule,
        "acquisition": "paper",
        "min_width": first.min_width,
        "constraints": constraints,
        "falsify": False,
        "stride": problem.stride,
        "seed": problem.seed,
    }
    return SafeOptimizer(problem.domain, first.lower, **{**arguments, **changes})


def transcription(problem):
    """The naive algorithm on the same problem; learned norms come from the library's scenarios, so both sides use one B."""
    limits = sum(s.lower is not None or s.upper is not None for s in problem.signals)
    outputs = []
    for s in problem.signals:
        regulariser = s.bound.regulariser(s.noise)
        outputs.append(
            NaiveOutput(
                name=s.name,
                kernel=transcribed(s.kernel, problem.dim),
                sigma=s.noise,
                beta=bounds.paper_beta if isinstance(s.bound, Paper) else bounds.abbasi_yadkori_beta(regulariser),
                regulariser=regulariser,
                delta=problem.delta / limits if s.lower is not None or s.upper is not None else problem.delta,
                outputscale=s.kernel.outputscale,
                lengthscales=s.kernel.lengthscales(problem.dim),
                lower=s.lower,
                upper=s.upper,
                min_width=s.min_width,
            )
        )

    def norm(i, lower, upper, X, y, step):
        s = problem.signals[i]
        if isinstance(s.norm, Fixed):
            return s.norm.value
        drawn = s.norm.sample_norms(X, y, kernel=s.kernel, noise=s.noise, lower=lower, upper=upper, seed=(problem.seed, step, i))
        return s.norm.select(drawn)

    cubes = None if problem.cubes is None else (problem.cubes.n, problem.cubes.delta)
    return NaiveSafeBO(problem.dim, problem.shape, outputs, norm, cubes=cubes, safe_set=problem.rule, stride=problem.stride)


class Pair:
    """The optimizer and its transcription, told the same."""

    def __init__(self, problem, **changes):
        self.problem = problem
        self.opt, self.naive = optimizer(problem, **changes), transcription(problem)
        self.rng = np.random.default_rng([problem.seed, 78])
        for x in problem.start:
            self.tell(problem.domain.from_unit(x), x)

    def tell(self, what, x, *values):
        values = values or [s.measured(x, self.rng) for s in self.problem.signals]
        self.opt.tell(what, values[0], {s.name: v for s, v in zip(self.problem.signals[1:], values[1:], strict=True)})
        self.naive.tell(self.opt.state.samples[-1].x, values)


def close(first, second, scale=1.0):
    np.testing.assert_allclose(first, second, rtol=TOLERANCE, atol=TOLERANCE * scale)


# -- comparisons --------------------------------------------------------------------------------------------------------


def compare_subdomains(pair, snapshot):
    """Boxes in their order, norms, intervals and sets."""
    names = [s.name for s in pair.problem.signals]
    ours = pair.opt.subdomains()
    assert [(v.cube.lower, v.cube.upper) for v in ours] == [
        (tuple(v.box_lower.tolist()), tuple(v.box_upper.tolist())) for v in snapshot.views
    ]
    for view, naive in zip(ours, snapshot.views, strict=True):
        np.testing.assert_array_equal(view.points, naive.grid)
        inner = pair.opt._require_analysis().subdomains[view.cube]
        assert (tuple(inner.rows), tuple(inner.rows[inner.seeds])) == (naive.samples, naive.seeds)
        close([view.norms[name] for name in names], naive.norms)
        for i, name in enumerate(names):
            close(view.lower[name], naive.lower[i])
            close(view.upper[name], naive.upper[i])
        np.testing.assert_array_equal(view.safe, naive.safe)
        np.testing.assert_array_equal(view.maximisers, naive.maximisers)
        np.testing.assert_array_equal(view.expanders, naive.expanders)


def compare_choice(pair, trial, suggestion):
    """None on both sides, or a contender with its omega, norms and intervals."""
    analysis = pair.opt._require_analysis()
    assert (trial is None) == (suggestion is None)
    if trial is None or suggestion is None:
        assert pair.opt.stop_reason is not None
        return
    assert pair.opt.stop_reason is None
    cubes = list(analysis.subdomains)
    cube, candidate = analysis.choice
    close(candidate.uncertainty, suggestion.omega)
    position = cubes.index(cube)
    grid = suggestion.snapshot.views[position].grid
    (index,) = np.flatnonzero((grid == trial.x).all(axis=1))
    assert (position, int(index)) in suggestion.contenders
    view = suggestion.snapshot.views[position]
    assert trial.cube == cube
    close(trial.norm, view.norms[0])
    for i, s in enumerate(pair.problem.signals):
        close(trial.norms[s.name], view.norms[i])
        close(trial.bounds[s.name], (view.lower[i, index], view.upper[i, index]))
    assert (trial.lower, trial.upper) == trial.bounds["objective"]
    assert pair.problem.domain.point(dict(trial.params)) == pytest.approx(pair.problem.domain.from_unit(np.array(trial.x)))


def naive_joint_options(pair, snapshot):
    """Per sub-domain, its most uncertain maximisers and expanders: {(cube, grid index): joint uncertainty} with all ties.

    Nothing where the intersection is known to within min_width, or shows that the point is no maximiser.
    """
    groups = []
    for c, view in enumerate(snapshot.views):
        wide = np.zeros(len(view.grid), dtype=bool)
        for i, spec in enumerate(pair.naive.outputs):
            wide |= view.upper[i] - view.lower[i] > spec.min_width
        for mask, expands in ((view.maximisers & wide, False), (view.expanders & wide, True)):
            tied = np.flatnonzero(mask & (view.omega >= (1.0 - 1e-9) * np.max(view.omega, where=mask, initial=0.0)))
            lower, upper = naive_joint_interval(pair, view.grid[tied])
            group = {}
            for j, g in enumerate(tied):
                width = upper[:, j] - lower[:, j]
                worth = any(w > o.min_width for w, o in zip(width, pair.naive.outputs, strict=True))
                scaled = [0.5 * w / math.sqrt(o.outputscale) for w, o in zip(width, pair.naive.outputs, strict=True)]
                group[c, int(g)] = max(scaled) if worth and (expands or upper[0, j] >= snapshot.best_lower) else 0.0
            if group:
                groups.append(group)
    return groups


def naive_joint_interval(pair, points, slack=0.0):
    """Intersection over the sub-domains around each point, (outputs, p); what spans all where two of them contradict."""
    lowers, uppers = [], []
    for i in range(len(pair.naive.outputs)):
        lows, highs = [], []
        for c in pair.naive.subdomains:
            inside = ((c.box_lower - slack <= points) & (points <= c.box_upper + slack)).all(axis=1)
            low, high = pair.naive.interval(c, i, points)
            lows.append(np.where(inside, low, np.nan))
            highs.append(np.where(inside, high, np.nan))
        tight = np.nanmax(lows, axis=0), np.nanmin(highs, axis=0)
        crossed = tight[0] > tight[1]
        lowers.append(np.where(crossed, np.nanmin(lows, axis=0), tight[0]))
        uppers.append(np.where(crossed, np.nanmax(highs, axis=0), tight[1]))
    return np.array(lowers), np.array(uppers)


def naive_places(pair):
    """The measured points of the transcription."""
    everything, outputs = range(len(pair.naive.X)), pair.naive.outputs
    values = np.stack([pair.naive._values(everything, i) for i in range(len(outputs))], axis=1)
    sigmas, deltas = [o.sigma for o in outputs], [o.delta for o in outputs]
    return places(pair.naive._points(everything), values, sigmas, deltas, pair.problem.domain.rounding)


def compare_best(pair, snapshot):
    """The best lower bound, and the best parameters: measured ones, or certified ones that are surely better."""
    close(pair.opt._require_analysis().best_lower, snapshot.best_lower)
    if snapshot.best_lower == -math.inf:
        assert pair.opt.stop_reason is StopReason.EMPTY_SAFE_SET
    spec, everything = pair.naive.outputs[0], range(len(pair.naive.X))
    data = pair.naive._points(everything), pair.naive._values(everything, 0)

    def offer(x, low, high):
        mean, _ = posterior(spec.kernel, *data, spec.regulariser, x[None, :])
        return low, float(np.clip(mean[0], low, high)), high, x

    measured = []  # what ranks them, lower, mean, upper, point
    for place in naive_places(pair):
        if not all(o.allows(m, m) for o, m in zip(pair.naive.outputs, place.mean, strict=True)):
            continue
        lower, upper = naive_joint_interval(pair, place.x[None, :], pair.problem.domain.rounding)
        low, high = met(lower[0, 0], upper[0, 0], place.lower[0], place.upper[0])
        _, mean, _, _ = offer(place.x, low, high)
        mean = float(np.clip(mean, place.lower[0], place.upper[0]))
        measured.append((max(low, place.lower[0]), low, mean, high, place.x))
    best = pair.opt.best()
    where = pair.problem.domain.to_unit(np.array(list(best.params.values())))
    top = max(m[0] for m in measured)
    first = [m[1:] for m in measured if m[0] >= top - TOLERANCE]
    if all(snapshot.best_lower <= mean + TOLERANCE for _, mean, _, _ in first):
        offers = first
    else:
        offers = []
        for c, view in zip(pair.naive.subdomains, snapshot.views, strict=True):
            for x in np.concatenate([view.grid[view.safe], pair.naive._points(view.seeds)]):
                low, high = pair.naive.interval(c, 0, x[None, :])
                if abs(low[0] - snapshot.best_lower) <= TOLERANCE:
                    offers.append(offer(x, low[0], high[0]))
    matching = [o for o in offers if np.allclose(o[3], where, atol=1e-12)]
    assert any(np.allclose((best.lower, best.mean, best.upper), o[:3], rtol=0.0, atol=TOLERANCE) for o in matching)


def compare_bounds(pair, points):
    """At points that were never measured, and at those that were."""
    known = naive_places(pair)
    points_and_places = np.concatenate([points, [place.x for place in known]])
    lower, upper = naive_joint_interval(pair, points_and_places, pair.problem.domain.rounding)
    for i, s in enumerate(pair.problem.signals):
        for j, place in enumerate(known, len(points)):
            lower[i, j], upper[i, j] = met(lower[i, j], upper[i, j], place.lower[i], place.upper[i])
        low, high = pair.opt.bounds(pair.problem.domain.from_unit(points_and_places), s.name)
        close(low, lower[i])
        close(high, upper[i])


def naive_is_safe(pair, snapshot, points):
    """The rule at arbitrary points with S_t and the seeds as sources, and how clearly it decides."""
    decided, clear = np.zeros(len(points), dtype=bool), np.ones(len(points), dtype=bool)
    for c, view in zip(pair.naive.subdomains, snapshot.views, strict=True):
        sources = np.concatenate([view.grid[view.safe], pair.naive._points(view.seeds)])
        slack = np.full(len(points), np.inf)
        for i, spec in enumerate(pair.naive.outputs):
            low, high = pair.naive.interval(c, i, points)
            at = pair.naive.interval(c, i, sources)
            d = metric(spec.kernel, sources, points)
            for limit, margin, at_sources in (
                (spec.lower, low - (spec.lower or 0.0), at[0] - (spec.lower or 0.0)),
                (spec.upper, (spec.upper or 0.0) - high, (spec.upper or 0.0) - at[1]),
            ):
                if limit is None:
                    continue
                near = (at_sources[:, None] - c.norms[i] * d).max(axis=0) if len(sources) else np.full(len(points), -np.inf)
                slack = np.minimum(
                    slack, {"confidence": margin, "continuity": near}.get(pair.problem.rule, np.maximum(margin, near))
                )
        inside = ((c.box_lower <= points) & (points <= c.box_upper)).all(axis=1)
        decided |= inside & (slack >= 0.0)
        clear &= ~inside | (abs(slack) > 1e-7)
    return decided, clear


def compare_certificates(pair, snapshot, points):
    """At points that were never measured, and at those that were."""
    known = naive_places(pair)
    points = np.concatenate([points, [place.x for place in known]])
    expected, clear = naive_is_safe(pair, snapshot, points)
    for j, place in enumerate(known, len(points) - len(known)):
        alone = [o.allows(low, high) for o, low, high in zip(pair.naive.outputs, place.lower, place.upper, strict=True)]
        expected[j] |= all(alone)
    ours = pair.opt.is_safe(pair.problem.domain.from_unit(points))
    np.testing.assert_array_equal(ours[clear], expected[clear])


def run_and_compare(problem, *, extra=False, **changes):
    """The number of trials and the pair at the end; `extra` adds measurements that nobody asked for."""
    pair = Pair(problem, **changes)
    rng, asked, restarts = np.random.default_rng([problem.seed, 79]), 0, 0
    for step in range(problem.steps):
        trial, suggestion = pair.opt.ask(), pair.naive.ask()
        snapshot = pair.naive.last
        compare_subdomains(pair, snapshot)
        compare_choice(pair, trial, suggestion)
        compare_best(pair, snapshot)
        points = rng.random((12, problem.dim))
        if step % 2:
            compare_bounds(pair, points)
        else:
            compare_certificates(pair, snapshot, points)
        assert pair.naive.restarts - restarts == len(pair.opt.refutations)
        restarts = pair.naive.restarts
        if trial is None:
            break
        assert pair.opt.is_safe(trial.params).all()
        asked += 1
        pair.tell(trial, np.array(trial.x))
        if extra and step % 2:
            x = rng.random(problem.dim)
            pair.tell(problem.domain.from_unit(x), x)
    return asked, pair


@pytest.fixture(autouse=True)
def _tolerate_refuted_norms_and_unsafe_measurements():
    """Both happen with learned norms and are compared like everything else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NormRefutedWarning)
        warnings.simplefilter("ignore", UnsafeMeasurementWarning)
        yield


# -- runs ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(32))
def test_every_step_equals_the_transcription(seed):
    problem = random_problem(seed)
    asked, pair = run_and_compare(problem)
    assert asked == problem.steps or pair.opt.stop_reason is not None
    assert asked > 0 or seed % 9 == 8


@pytest.mark.parametrize("seed", [3, 22, 30])
def test_joint_acquisition_measures_what_all_subdomains_together_know_least(seed):
    """The same sub-domains and sets; only the choice among their candidates differs."""
    problem = random_problem(seed)
    pair = Pair(problem, acquisition="joint")
    for _ in range(problem.steps):
        trial, suggestion = pair.opt.ask(), pair.naive.ask()
        snapshot = pair.naive.last
        compare_subdomains(pair, snapshot)
        assert (trial is None) == (suggestion is None)
        if trial is None:
            break
        position = list(pair.opt._require_analysis().subdomains).index(trial.cube)
        (index,) = np.flatnonzero((snapshot.views[position].grid == trial.x).all(axis=1))
        place, groups = (position, int(index)), naive_joint_options(pair, snapshot)
        chosen = max(group.get(place, 0.0) for group in groups)
        if chosen > 0.0:  # rounding picks one of each group's ties, so the least of them is what the choice must reach
            assert chosen >= max(min(group.values()) for group in groups) - TOLERANCE
        else:
            assert all(min(group.values()) == 0.0 for group in groups) and place in suggestion.contenders
        pair.tell(trial, np.array(trial.x))


@pytest.mark.parametrize("seed", range(1, 31, 3))
def test_balanced_acquisition_takes_the_largest_upper_bound_every_third_time(seed):
    """With a multiple of three samples the choice is the most promising of the sub-domains' most promising maximisers."""
    problem = random_problem(seed)
    pair = Pair(problem, acquisition="balanced")
    for _ in range(problem.steps):
        joint = SafeOptimizer.from_json(pair.opt.state.to_json().replace('"balanced"', '"joint"'))
        trial, usual, _ = pair.opt.ask(), joint.ask(), pair.naive.ask()
        snapshot = pair.naive.last
        compare_subdomains(pair, snapshot)
        assert (trial is None) == (usual is None)
        if trial is None:
            break
        options = naive_optimistic_options(pair, snapshot) if len(pair.naive.X) % 3 == 0 else []
        if not any(max(group.values()) > -math.inf for group in options):
            assert (trial.x, trial.cube, trial.bounds) == (usual.x, usual.cube, usual.bounds)
        else:
            position = list(pair.opt._require_analysis().subdomains).index(trial.cube)
            (index,) = np.flatnonzero((snapshot.views[position].grid == trial.x).all(axis=1))
            chosen = max(group.get((position, int(index)), -math.inf) for group in options)
            assert chosen >= max(min(group.values()) for group in options) - TOLERANCE
        pair.tell(trial, np.array(trial.x))


def naive_optimistic_options(pair, snapshot):
    """Per sub-domain, its most promising maximisers: {(cube, grid index): joint upper bound}, -inf if not worth measuring."""
    groups = []
    for c, view in enumerate(snapshot.views):
        tied = np.flatnonzero(view.candidates & view.maximisers)
        tied = tied[view.upper[0][tied] >= np.max(view.upper[0][tied], initial=-math.inf) - 1e-9]
        lower, upper = naive_joint_interval(pair, view.grid[tied])
        group = {}
        for j, g in enumerate(tied):
            worth = any(w > o.min_width for w, o in zip(upper[:, j] - lower[:, j], pair.naive.outputs, strict=True))
            group[c, int(g)] = float(upper[0, j]) if worth and upper[0, j] >= snapshot.best_lower else -math.inf
        if group:
            groups.append(group)
    return groups


@pytest.mark.parametrize("seed", [100, 101, 105])
def test_measurements_that_nobody_asked_for_are_data_like_any_other(seed):
    """Some of them violate a limit: they are used as data, but no ball grows around them."""
    run_and_compare(random_problem(seed), extra=True)


def line_problem(seed, rule, *, guess, noise, steps, cubes):
    """A line, one output with norm 5, started at its maximum."""
    f = random_function(Matern(1.5, 0.3), 1, 5.0, seed, 60)
    points = np.linspace(0.0, 1.0, 101)[:, None]
    values = f(points)
    signal = Signal("objective", f, noise, Fixed(guess), Paper(), float(np.quantile(values, 0.3)), None, 0.0)
    return Problem(3, 1, (25,), (signal,), cubes, rule, 0.01, points[[int(np.argmax(values))]], steps, Box.unit(1))


@pytest.mark.parametrize("rule", ["union", "continuity", "confidence"])
@pytest.mark.parametrize(("seed", "noise"), [(3, 0.003), (5, 0.01)])
def test_intervals_that_contradict_each_other_restart_on_both_sides(rule, seed, noise):
    """The guess is less than half of the norm: soon Q_t and C_{t-1} do not meet, and S starts from the seeds again."""
    _, pair = run_and_compare(line_problem(seed, rule, guess=2.0, noise=noise, steps=10, cubes=LocalCubes(2, 0.2)))
    assert pair.naive.restarts > 0


@pytest.mark.parametrize("rule", ["union", "continuity", "confidence"])
def test_an_outlier_below_the_limit_is_data_but_no_seed(rule):
    """Many measurements certify the neighbourhood, so that its lower bound is above the limit in spite of the outlier."""
    problem = line_problem(1, rule, guess=5.0, noise=0.05, steps=1, cubes=LocalCubes(2, 0.15))
    pair = Pair(problem)
    h, x = problem.signals[0].lower, problem.start[0]
    for _ in range(12):
        pair.tell(x, x, h + 2.0)
    outlier = x - 0.01 if x[0] > 0.5 else x + 0.01
    pair.tell(outlier, outlier, h - 1e-3)
    suggestion = pair.naive.ask()
    assert pair.naive.last.views[0].seeds == tuple(range(13))
    lower, _ = pair.naive.interval(pair.naive.subdomains[0], 0, outlier[None])
    assert lower[0] > h
    compare_subdomains(pair, pair.naive.last)
    compare_choice(pair, pair.opt.ask(), suggestion)
    compare_certificates(pair, pair.naive.last, np.linspace(0.0, 1.0, 301)[:, None])


@pytest.mark.parametrize("seed", [5, 22])  # guessed norms; the scenario sums of this backend are slow
def test_runs_do_not_depend_on_the_backend(seed, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("SAFEBO_COMPUTE", "torch")
    run_and_compare(replace(random_problem(seed), steps=4))


@pytest.mark.parametrize("seed", [2, 11])
def test_runs_do_not_depend_on_the_memory_budget(seed):
    """Grids that are rebuilt give the same trials as grids that are kept, bit for bit."""
    problem = random_problem(seed)
    runs = []
    for budget in (1_000_000_000, 0, 20_000):
        pair, trials = Pair(problem, memory_budget=budget), []
        while len(trials) < problem.steps and (trial := pair.opt.ask()) is not None:
            trials.append((trial.x, trial.cube, dict(trial.bounds), dict(trial.norms)))
            pair.tell(trial, np.array(trial.x))
        runs.append(trials)
    assert runs[0] == runs[1] == runs[2] and runs[0]


@pytest.mark.parametrize("seed", [1, 11])
def test_trials_at_the_edge_of_their_cube_are_certified_in_user_units(seed):
    """Parameters and back is a rounding error, which must not take a trial out of the cube that certifies it."""
    kernel = Matern(1.5, 0.1)
    f = random_function(kernel, 1, 5.0, seed, 300)
    points = np.linspace(0.0, 1.0, 200)[:, None]
    values = f(points)
    h = float(np.quantile(values, 0.3))
    start = points[np.argmin(abs(values - (h + 0.6 * (values.max() - h))))]
    rng = np.random.default_rng(seed)
    domain = Box({"a": (float(rng.uniform(-5.0, 0.0)), float(rng.uniform(1.0, 9.0)))})
    opt = SafeOptimizer(
        domain,
        h,
        kernel=kernel,
        norm=SCENARIO,
        bound=Paper(),
        cubes=LocalCubes(2, 0.07),
        points_per_axis=40,
        falsify=False,
        safe_set="union",
        acquisition="paper",
    )
    opt.tell(domain.from_unit(start), float(f(start[None])[0]))
    for _ in range(12):
        trial = opt.ask()
        assert opt.is_safe(trial.params).all()
        opt.tell(trial, float(f(np.array([trial.x]))[0]) + 0.01 * rng.normal())
