"""What is shown as certified is certified by the present data, and a measurement says something of its own point."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safebo import AdaptiveScenario, Box, Constraint, Fixed, LocalCubes, Matern, SafeOptimizer
from safebo.analysis import analyse, joint_interval
from safebo.measured import measured_points
from safebo.problems import RKHSProblem
from safebo.state import register

QUIET = pytest.mark.filterwarnings("ignore::safebo.exceptions.SafeboWarning")


@register
@dataclass(frozen=True)
class Grows:
    """A norm that rises with every sample, wherever it was taken."""

    gamma: float = 0.1
    kappa: float = 0.1
    revises = True

    def estimate(self, query):
        return 0.3 * len(query.everything[0])


def rising():
    """Sub-domains at both ends of a line; the last samples are all at its right end."""
    opt = SafeOptimizer(
        Box({"a": (0.0, 1.0)}), 0.0, norm=Grows(), kernel=Matern(1.5, 0.2), cubes=LocalCubes(1, 0.2), points_per_axis=40
    )
    for a in (0.1, 0.9, 0.88, 0.92, 0.86):
        opt.tell({"a": a}, 1.0)
    return opt


def test_everything_shown_rests_on_norms_that_know_all_samples():
    opt = rising()
    opt.tell(opt.ask(), 1.0)
    assert opt.ask() is not None
    analysis = opt._require_analysis()
    stale = [s for cube, s in analysis.subdomains.items() if cube not in analysis.current]
    assert min(s.outputs[0].norm for s in stale) < 1.8
    assert {view.norms["objective"] for view in opt.subdomains()} == {0.3 * 6}
    fresh = analyse(opt.state, {}).subdomains  # every sub-domain from nothing, with the norm of now
    everywhere = np.linspace(0.0, 1.0, 101)[:, None]
    lower, upper = opt.bounds(everywhere)
    wanted = joint_interval(fresh, opt.state.outputs, everywhere, only=0)
    never = measured_points(opt.state, opt.domain.rounding).index_of(everywhere) < 0
    np.testing.assert_allclose(lower[never], wanted[0][never, 0], atol=1e-9)
    np.testing.assert_allclose(upper[never], wanted[1][never, 0], atol=1e-9)
    assert opt.is_safe(opt.safe_set()).all()


@QUIET
def test_no_shown_norm_is_below_what_the_estimator_says_now():
    problem = RKHSProblem.sample(1, norm=8.0, seed=5)
    opt = SafeOptimizer(problem.domain, problem.threshold, norm=AdaptiveScenario(m=300, gamma=0.05, kappa=0.05), seed=2)
    rng = np.random.default_rng(0)
    opt.tell(problem.initial, problem.initial_value)
    for _ in range(12):
        trial = opt.ask()
        opt.tell(trial, problem.measure(trial.params, rng))
    analysis = opt._require_analysis()
    before = {c: s.outputs[0].norm for c, s in analysis.subdomains.items()}
    shown = {v.cube: v.norms["objective"] for v in opt.subdomains()}
    assert all(shown[c] >= before[c] for c in before)
    assert opt._present(None).current == frozenset(shown)
    again = opt.ask()
    state = SafeOptimizer.from_json(opt.state.to_json())
    assert state.ask() == again  # looking changes nothing


# -- what a measurement says by itself ----------------------------------------------------------------------------------------


def guessed(norm, noise=0.05, **more):
    return SafeOptimizer(
        Box({"a": (0.0, 10.0), "b": (-1.0, 1.0)}), None, noise=noise, norm=Fixed(norm), kernel=Matern(1.5, 0.3), cubes=None,
        points_per_axis=9, constraints={"heat": Constraint(upper=1.0)}, **more,
    )  # fmt: skip


@QUIET
def test_a_norm_far_too_large_takes_no_certificate_from_a_measured_point():
    opt = guessed(1e6)
    opt.tell({"a": 2.0, "b": 0.0}, 3.1, {"heat": 0.4})
    opt.tell({"a": 9.0, "b": 0.9}, -52.0, {"heat": 0.3})
    opt.tell({"a": 5.0, "b": 0.5}, 2.0, {"heat": 0.99})  # inside its limit, but not by more than the noise
    points = np.array([[2.0, 0.0], [9.0, 0.9], [5.0, 0.5], [2.0, 0.01]])
    assert opt.is_safe(points).tolist() == [True, True, False, False]
    half = 0.05 * math.sqrt(2.0 * math.log(2.0 / opt.state.outputs[1].delta))
    lower, upper = opt.bounds(points[:1], "heat")
    assert 0.4 - half - 1e-12 <= lower[0] and upper[0] <= 0.4 + half + 1e-12
    certified = opt.safe_set()
    assert any(np.allclose(x, points[0]) for x in certified) and not any(np.allclose(x, points[2]) for x in certified)


@QUIET
@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(-1, 1), st.floats(-50, 50), st.floats(-2, 2)), min_size=1, max_size=8),
    st.sampled_from([0.1, 5.0, 1e6]),
)
def test_best_is_never_worse_than_the_best_measured_inside_all_limits(rows, norm):
    opt = guessed(norm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt.tell({"a": 1.0, "b": -0.5}, 0.0, {"heat": 0.0})
        for a, b, value, heat in rows:
            opt.tell({"a": a, "b": b}, value, {"heat": heat})
        best = opt.best()
    places = measured_points(opt.state, opt.domain.rounding)
    radius = 0.05 * math.sqrt(2.0 * math.log(2.0 / opt.state.outputs[0].delta))
    top = max(mean[0] for mean in places.mean if mean[1] <= 1.0)
    where = opt.domain.to_unit(opt.domain.point(best.params)[None])
    known = places.index_of(where)[0]
    if known >= 0:
        assert places.mean[known, 1] <= 1.0
        assert places.mean[known, 0] >= top - 2.0 * radius  # the noise decides between such
    else:
        assert best.lower > 0.0 or best.lower >= top - 2.0 * radius
    assert best.lower <= best.mean <= best.upper


def test_repetitions_narrow_the_interval_and_are_one_point():
    opt = guessed(1e6)
    for value in (0.2, 0.3, 0.4, 0.3):
        opt.tell({"a": 2.0, "b": 0.0}, value, {"heat": 0.4})
    found = measured_points(opt.state, opt.domain.rounding)
    assert found.x.shape == (1, 2) and found.mean[0, 0] == pytest.approx(0.3)
    half = 0.5 * 0.05 * math.sqrt(2.0 * math.log(2.0 / opt.state.outputs[0].delta))
    assert found.upper[0, 0] - found.mean[0, 0] == pytest.approx(half)


@pytest.mark.statistical
def test_the_interval_of_a_measurement_holds_as_often_as_it_says():
    rng = np.random.default_rng(3)
    missed = 0
    for _ in range(2000):
        opt = guessed(1.0, noise=0.1, delta=0.2)
        for _ in range(3):
            opt.tell({"a": 2.0, "b": 0.0}, 0.1 * rng.standard_normal(), {"heat": 0.0})
        found = measured_points(opt.state, 0.0)
        missed += not found.lower[0, 0] <= 0.0 <= found.upper[0, 0]
    assert missed / 2000 <= opt.state.outputs[0].delta


def test_an_abort_next_to_a_measured_point_is_stronger_than_its_measurement():
    opt = guessed(5.0)
    opt.tell({"a": 2.0, "b": 0.0}, 3.1, {"heat": 0.4})
    opt.tell({"a": 2.0, "b": 0.0}, status="aborted", reason="smoke")
    blocked = opt.state.blocked(opt.domain.to_unit(np.array([[2.0, 0.0]])))
    assert opt.is_safe({"a": 2.0, "b": 0.0})[0] == (not blocked[0])


# -- trials that are told late, and their names -------------------------------------------------------------------------------


def line(seed=0):
    opt = SafeOptimizer(Box({"a": (0.0, 1.0)}), 0.0, norm=AdaptiveScenario(m=200, gamma=0.1, kappa=0.1), seed=seed)
    opt.tell({"a": 0.5}, 1.0)
    return opt


@QUIET
def test_a_trial_that_is_told_late_keeps_its_norms():
    opt = line()
    first = opt.ask()
    record = opt._require_analysis().record
    opt.tell({"a": 0.52}, 0.98)
    second = opt.ask()
    opt.tell(second, 0.97)
    assert [r.step for r in opt.state.records] == [2]
    opt.tell(first, 0.99)
    assert [r.step for r in opt.state.records] == [1, 2] and opt.state.records[0] == record
    assert SafeOptimizer.from_json(opt.state.to_json()).ask() == opt.ask()


@QUIET
def test_two_histories_never_share_a_name():
    asked, told = line(), line()
    trial = asked.ask()
    asked.tell(trial, 0.9)
    told.tell(trial.params, 0.9)  # the same data, but nobody asked for it: other intervals are remembered
    assert asked.state.samples[-1].values == told.state.samples[-1].values
    assert asked.ask().id != told.ask().id


@QUIET
def test_a_state_without_a_sample_forgets_what_was_estimated_with_it():
    opt = line()
    for value in (0.9, 0.8, 0.7):
        opt.tell(opt.ask(), value)
    opt.tell({"a": 0.9}, status="aborted", reason="noise")
    state = opt.state.without(2)
    assert [s.values for s in state.samples] == [s.values for i, s in enumerate(opt.state.samples) if i != 2]
    assert [r.step for r in state.records] == [1, 2] and state.aborts[0].step == 3
    assert SafeOptimizer.from_json(state.to_json()).ask() is not None
    with pytest.raises(ValueError, match="no measurement 9"):
        opt.state.without(8)


@QUIET
def test_the_first_measurement_left_must_be_a_safe_one():
    opt = line()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt.tell({"a": 0.9}, -1.0)
    with pytest.raises(ValueError, match=r"cannot be taken back.*-1\.0"):
        opt.state.without(0)
