"""Synthetic problems: quantiles, the reachable optimum against a naive search, determinism, scores."""

from __future__ import annotations

import ast
import dataclasses
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from safebo import problems
from safebo.domain import Box, Cube, Grid
from safebo.exceptions import InvalidValueError
from safebo.kernels import RBF, Matern
from safebo.problems import RKHSProblem
from safebo.problems.synthetic import _safe_ascents, reachable_argmax

CASES = [
    (1, 5.0, 0, {}),
    (1, 1.0, 1, {"kernel": Matern(0.5, 0.2), "n_centres": (100, 400)}),
    (2, 5.0, 2, {"n_centres": 100}),
    (3, 5.0, 3, {"n_centres": 20, "kernel": RBF(0.3)}),
    (5, 20.0, 4, {"n_centres": 100, "kernel": Matern(2.5, (0.3, 0.4, 0.5, 0.6, 0.7))}),
]


@pytest.fixture(scope="module", params=CASES, ids=[f"{case[0]}d" for case in CASES])
def problem(request):
    dim, norm, seed, options = request.param
    return RKHSProblem.sample(dim, norm, seed, **options)


# -- what a problem promises --------------------------------------------------------------------------------------------


def test_norm_and_domain(problem):
    _, norm, _, _ = next(case for case in CASES if case[2] == problem.seed)
    assert problem.norm == problem.f.norm == pytest.approx(norm)
    assert problem.domain == Box.unit(problem.f.dim)
    assert problem.kernel == problem.f.kernel


def test_threshold_and_start_are_quantiles(problem):
    values = problem.f(np.random.default_rng(9).random((20_000, problem.f.dim)))
    assert np.mean(values < problem.threshold) == pytest.approx(0.3, abs=0.02)
    assert 0.38 <= np.mean(values < problem.initial_value) <= 0.52


def test_start_is_safe_and_optimum_is_better(problem):
    assert problem.is_safe(problem.initial)
    assert problem.value(problem.initial) == pytest.approx(problem.initial_value, rel=1e-12)
    assert problem.value(problem.optimum_x) == pytest.approx(problem.optimum, rel=1e-9)
    assert problem.is_safe(problem.optimum_x)
    assert problem.optimum - problem.initial_value >= 10 * problem.noise


def test_dicts_and_arrays_are_the_same_point(problem):
    assert problem.value(problem.domain.as_dict(problem.initial)) == problem.value(problem.initial)
    with pytest.raises(InvalidValueError, match=r"1\.5"):
        problem.value(np.full(problem.f.dim, 1.5))


def test_score(problem):
    assert problem.score(problem.initial_value) == 0.0
    assert problem.score(problem.optimum) == 1.0
    span = problem.optimum - problem.initial_value
    assert problem.solved(problem.optimum - 0.049 * span)
    assert not problem.solved(problem.optimum - 0.051 * span)
    assert problem.solved(problem.optimum - 0.19 * span, tolerance=0.2)


def test_problem_is_determined_by_its_seed(problem):
    dim, norm, seed, options = next(case for case in CASES if case[2] == problem.seed)
    again = RKHSProblem.sample(dim, norm, seed, **options)
    for field in dataclasses.fields(problem):
        if field.name != "f":
            np.testing.assert_array_equal(getattr(again, field.name), getattr(problem, field.name))
    np.testing.assert_array_equal(again.f.coefficients, problem.f.coefficients)


def test_problem_is_frozen(problem):
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.threshold = -10.0
    with pytest.raises(ValueError, match="read-only"):
        problem.initial[0] = 0.0


def test_seeds_differ():
    first, second = (RKHSProblem.sample(1, 5.0, seed, n_centres=50) for seed in (0, 1))
    assert first.threshold != second.threshold


# -- measurements -------------------------------------------------------------------------------------------------------


def test_measurements_are_gaussian_around_the_value():
    problem = RKHSProblem.sample(1, 5.0, 0, n_centres=50, noise=0.02)
    rng = np.random.default_rng(0)
    errors = np.array([problem.measure(problem.initial, rng) for _ in range(2000)]) - problem.initial_value
    assert np.mean(errors) == pytest.approx(0.0, abs=0.002)
    assert np.std(errors) == pytest.approx(0.02, rel=0.05)


def test_plants_of_the_same_seed_agree_and_do_not_influence_each_other():
    problem = RKHSProblem.sample(1, 5.0, 0, n_centres=50)
    one, two, other = problem.plant(3), problem.plant(3), problem.plant(4)
    first = [one({"x1": 0.3}) for _ in range(5)]
    assert first == [two({"x1": 0.3}) for _ in range(5)]
    assert first != [other({"x1": 0.3}) for _ in range(5)]


# -- reachable optimum --------------------------------------------------------------------------------------------------


def naive_argmax(values, threshold, start):
    """Breadth-first search, one grid point at a time."""
    first = np.unravel_index(start, values.shape)
    seen, queue = {first}, deque([first])
    while queue:
        here = queue.popleft()
        for axis in range(values.ndim):
            for move in (-1, 1):
                there = (*here[:axis], here[axis] + move, *here[axis + 1 :])
                inside = 0 <= there[axis] < values.shape[axis]
                if inside and there not in seen and values[there] >= threshold:
                    seen.add(there)
                    queue.append(there)
    return max(seen, key=lambda where: values[where])


@given(st.data())
def test_flood_fill_agrees_with_breadth_first_search(data):
    shape = data.draw(st.one_of(st.tuples(st.integers(2, 40)), st.tuples(st.integers(2, 9), st.integers(2, 9))))
    values = data.draw(hnp.arrays(np.float64, shape, elements=st.floats(-1.0, 1.0, width=16)))
    start = data.draw(st.integers(0, values.size - 1))
    threshold = min(0.0, values.flat[start])
    assert values.flat[reachable_argmax(values, threshold, start)] == values[naive_argmax(values, threshold, start)]


def test_diagonal_neighbours_are_not_connected():
    values = np.array([[1.0, -1.0], [-1.0, 2.0]])
    assert reachable_argmax(values, 0.0, 0) == 0
    with pytest.raises(InvalidValueError, match="-1"):
        reachable_argmax(values, 0.0, 1)


@pytest.mark.parametrize(("dim", "per_axis", "seed"), [(1, 10_001, 3), (1, 10_001, 4), (2, 301, 1)])
def test_optimum_of_a_problem_agrees_with_breadth_first_search(dim, per_axis, seed):
    problem = RKHSProblem.sample(dim, 5.0, seed, n_centres=60)
    grid = Grid(Cube.whole(dim), (per_axis,) * dim)
    values = problem.f(grid.points()).reshape(grid.shape)
    start = np.argmin(np.abs(grid.points() - problem.initial).sum(axis=1))
    best = values[naive_argmax(values, problem.threshold, start)]
    assert best <= problem.optimum <= best + 2e-3 * (best - problem.initial_value)  # refined within one cell


def test_safe_ascents_agree_with_the_flood_fill():
    """The search for more than three dimensions, used in two, where the answer is known."""
    filled = [RKHSProblem.sample(2, 5.0, seed, n_centres=60, kernel=RBF(0.2)) for seed in range(4)]
    for problem in filled:
        _, value = _safe_ascents(problem.f, problem.threshold, problem.initial, np.random.default_rng(0))
        assert problem.score(value) == pytest.approx(1.0, abs=1e-3)


# -- draws --------------------------------------------------------------------------------------------------------------


def test_degenerate_draws_are_replaced():
    drawn = [RKHSProblem.sample(1, 1.0, seed, n_centres=50, noise=0.03) for seed in range(12)]
    assert any(p.redraws for p in drawn)
    assert all(p.optimum - p.initial_value >= 10 * p.noise for p in drawn)


def test_hopeless_noise_is_an_error(monkeypatch):
    monkeypatch.setattr("safebo.problems.synthetic._MAX_REDRAWS", 2)
    with pytest.raises(InvalidValueError, match=r"50\.0"):
        RKHSProblem.sample(1, 1.0, 0, n_centres=20, noise=50.0)


@pytest.mark.parametrize(
    "options",
    [
        {"threshold_quantile": -0.1},
        {"threshold_quantile": 0.6},
        {"initial_quantiles": (0.5, 0.4)},
        {"initial_quantiles": (0.5, 1.2)},
        {"noise": -1.0},
        {"noise": float("nan")},
    ],
)
def test_bad_options_are_named(options):
    with pytest.raises(InvalidValueError) as error:
        RKHSProblem.sample(1, 1.0, 0, n_centres=5, **options)
    assert repr(next(iter(options.values()))) in str(error.value)


@pytest.mark.parametrize("seed", [-1, 0.5, True, None])
def test_bad_seed_is_named(seed):
    with pytest.raises(InvalidValueError, match="seed"):
        RKHSProblem.sample(1, 1.0, seed)


@pytest.mark.parametrize("source", sorted(Path(problems.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_problems_do_not_import_the_optimizer(source):
    imported = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    above = ("safebo.optimizer", "safebo.presets", "safebo.runs", "safebo.SafeOptimizer")
    assert not [name for name in imported if name.startswith(above)]
