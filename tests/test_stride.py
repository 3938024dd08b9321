"""`stride`: experiments stay where the samples of their sub-domain leave little doubt. It removes candidates, never adds one."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safebo import RBF, AbbasiYadkori, AdaptiveScenario, Box, Constraint, Fixed, MartingaleMixture, Matern, Paper, SafeOptimizer
from safebo.exceptions import InvalidValueError, StopReason
from safebo.problems import RKHSProblem
from tests.references.kernels import transcribed
from tests.references.posterior import posterior

BOUNDS = [Paper(), AbbasiYadkori(), AbbasiYadkori("noise"), MartingaleMixture(points=5)]


def doubt(spec, dim, x, regulariser, points):
    """Posterior standard deviation, written out."""
    return posterior(transcribed(spec, dim), x, np.zeros(len(x)), regulariser, points)[1]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    stride=st.sampled_from([0.1, 0.3, 0.5, 1.0]),
    kernel=st.sampled_from([Matern(1.5, 0.2), Matern(2.5, 0.2, 2.0), RBF(0.15)]),
    bound=st.sampled_from(BOUNDS),
)
def test_no_trial_is_more_doubtful_than_one_sample_at_that_distance(seed, stride, kernel, bound):
    dim = 1 + seed % 2
    problem = RKHSProblem.sample(dim, 3.0, seed, kernel=kernel)
    plant = problem.plant(seed)
    opt = SafeOptimizer(
        problem.domain,
        problem.threshold,
        kernel=kernel,
        bound=bound,
        norm=Fixed(3.0),
        points_per_axis=15,
        stride=stride,
        seed=seed,
    )
    regulariser = bound.regulariser(0.01)
    scale = kernel.lengthscales(dim)
    away = np.eye(dim)[:1] * stride * scale
    allowed = doubt(kernel, dim, np.zeros((1, dim)), regulariser, away)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt.tell(problem.initial, plant(problem.initial))
        for _ in range(5):
            trial = opt.ask()
            if trial is None:
                break
            x = opt.state.x()
            inside = x[trial.cube.contains(x)]
            point = np.array([trial.x])
            assert doubt(kernel, dim, inside, regulariser, point)[0] <= allowed * (1.0 + 1e-6)
            assert opt.is_safe([list(trial.params.values())])[0]
            if len(inside) == 1:
                assert np.linalg.norm((point - inside) / scale) <= stride * (1.0 + 1e-6)
            opt.tell(trial, plant(trial.params))


@pytest.mark.parametrize("bound", [Paper(), MartingaleMixture()], ids=repr)
def test_a_very_long_stride_is_no_limit(bound):
    problem = RKHSProblem.sample(1, 5.0, 3)
    runs = []
    for stride in (None, 1e6):
        opt, plant = (
            SafeOptimizer(problem.domain, problem.threshold, bound=bound, norm=Fixed(5.0), stride=stride),
            problem.plant(3),
        )
        opt.tell(problem.initial, plant(problem.initial))
        for _ in range(5):
            trial = opt.ask()
            opt.tell(trial, plant(trial.params))
        runs.append([s.x for s in opt.state.samples])
    assert runs[0] == runs[1]


def test_it_removes_experiments_and_nothing_else():
    problem = RKHSProblem.sample(1, 5.0, 0)
    made = [SafeOptimizer(problem.domain, problem.threshold, norm=AdaptiveScenario(m=250), stride=s) for s in (None, 0.01)]
    for opt in made:
        opt.tell(problem.initial, problem.value(problem.initial))
    grid = np.linspace(0.0, 1.0, 500)[:, None]
    free, short = made
    np.testing.assert_array_equal(free.is_safe(grid), short.is_safe(grid))  # the certificate is the same
    np.testing.assert_array_equal(free.bounds(grid), short.bounds(grid))
    assert free.best() == short.best()
    for one, other in zip(free.subdomains(), short.subdomains(), strict=True):
        np.testing.assert_array_equal(one.safe, other.safe)
        assert not (other.maximisers & ~one.maximisers).any()
    start = free.state.x()[0]
    assert abs(short.ask().x[0] - start[0]) <= 0.01 * 0.1 * (1.0 + 1e-9) < abs(free.ask().x[0] - start[0])


def test_every_limited_output_counts_and_an_unlimited_objective_does_not():
    box = Box.unit(1)
    limit = {"g": Constraint(threshold=-1.0, kernel=Matern(1.5, 0.4), norm=Fixed(1.0))}
    opt = SafeOptimizer(box, None, kernel=Matern(1.5, 0.01), norm=Fixed(1.0), constraints=limit, cubes=None, stride=0.5)
    opt.tell([0.5], 0.0, {"g": 1.0})
    trial = opt.ask()  # far for the objective's lengthscale, within half of the limit's
    assert 0.01 < abs(trial.x[0] - 0.5) <= 0.2 * (1.0 + 1e-6)


def test_a_stride_travels_with_the_state():
    opt = SafeOptimizer(Box.unit(1), 0.0, norm=Fixed(1.0), stride=0.7)
    assert SafeOptimizer.from_json(opt.state.to_json()).state.settings.stride == 0.7
    assert SafeOptimizer(Box.unit(1), 0.0).state.settings.stride == 0.5
    free = SafeOptimizer(Box.unit(1), 0.0, stride=None)
    assert SafeOptimizer.from_json(free.state.to_json()).state.settings.stride is None


@pytest.mark.parametrize("stride", [0.0, -1.0, np.nan, np.inf, "far", True])
def test_a_bad_stride_is_an_error_that_names_it(stride):
    with pytest.raises(InvalidValueError, match="stride"):
        SafeOptimizer(Box.unit(1), 0.0, stride=stride)


def test_a_stride_shorter_than_the_grid_is_not_called_converged():
    opt = SafeOptimizer(Box.unit(1), 0.0, norm=Fixed(1.0), stride=1e-9)
    opt.tell([0.5], 1.0)
    while opt.ask() is not None:
        opt.tell(opt.ask(), 1.0)
    assert opt.stop_reason is StopReason.NO_CANDIDATES and "stride" in opt.stop_reason.advice
    assert opt.state.step < 5
