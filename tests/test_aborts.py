"""Aborted experiments: recorded, never learned from, and a reason to stay away."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safebo import AbbasiYadkori, Box, Constraint, Fixed, LocalCubes, MartingaleMixture, Matern, Paper, SafeOptimizer
from safebo.exceptions import AlreadyToldError, InvalidValueError, StopReason, UnknownTrialError
from safebo.problems import RKHSProblem

KERNEL = Matern(1.5, 0.2)


def started(seed=0, dim=1, **changes):
    problem = RKHSProblem.sample(dim, 3.0, seed, kernel=KERNEL)
    arguments = {"kernel": KERNEL, "norm": Fixed(3.0), "points_per_axis": 41 if dim == 1 else 13, "seed": seed, **changes}
    opt = SafeOptimizer(problem.domain, problem.threshold, **arguments)
    plant = problem.plant(seed)
    opt.tell(problem.initial, plant(problem.initial))
    return opt, plant


def distance(opt, x, y):
    """In lengthscales."""
    return float(np.linalg.norm((np.array(x) - np.array(y)) / KERNEL.lengthscales(opt.domain.dim)))


def apart(opt, x, abort, radius):
    """Not ruled out, up to rounding: beyond the radius, or nearer to a good measurement from before the abort."""
    away = distance(opt, x, abort.x)
    known = [s.x for s, good in zip(opt.state.samples[: abort.step], opt.state.inside(), strict=False) if good]
    nearest = min((distance(opt, x, k) for k in known), default=np.inf)
    return (away > radius * (1.0 - 1e-9) or nearest < away * (1.0 + 1e-9)) and tuple(x) != abort.x


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 500),
    radius=st.sampled_from([0.0, 0.1, 0.25, 0.6]),
    bound=st.sampled_from([Paper(), AbbasiYadkori(), MartingaleMixture(points=5)]),
    rule=st.sampled_from(["confidence", "union"]),
    aborted=st.sets(st.integers(0, 6), min_size=1, max_size=3),
)
def test_nothing_is_asked_or_recommended_next_to_an_aborted_experiment(seed, radius, bound, rule, aborted):
    opt, plant = started(seed, 1 + seed % 2, abort_radius=radius, bound=bound, safe_set=rule)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(7):
            trial = opt.ask()
            if trial is None:
                break
            assert all(apart(opt, trial.x, a, radius) for a in opt.state.aborts)
            if i in aborted:
                known = opt.state.step
                opt.tell(trial, status="aborted", reason="arm blocked")
                assert (opt.state.step, opt.state.aborts[-1].x, opt.state.aborts[-1].trial) == (known, trial.x, trial.id)
            else:
                opt.tell(trial, plant(trial.params))
        measured = [s.x for s in opt.state.samples]
        best = tuple(opt.domain.to_unit(opt.domain.point(opt.best().params)).tolist())
        assert min(distance(opt, best, m) for m in measured) < 1e-9 or all(apart(opt, best, a, radius) for a in opt.state.aborts)
        for a in opt.state.aborts:
            assert not opt.is_safe([a.point])[0]
            assert all(apart(opt, g, a, radius) for g in opt.domain.to_unit(opt.safe_set()).tolist())
    again = SafeOptimizer.from_json(opt.state.to_json())
    first, second = opt.ask(), again.ask()
    assert (first is None) == (second is None)
    assert first is None or (first.id, first.x, first.bounds) == (second.id, second.x, second.bounds)
    assert again.state == opt.state


def test_an_abort_elsewhere_changes_nothing_but_the_identity_of_the_next_trial():
    (opt, _), (free, _) = started(3), started(3)
    trial = free.ask()
    far = [0.0] if trial.x[0] > 0.5 else [1.0]
    opt.tell(far, status="aborted", reason="tripped before it started")
    other = opt.ask()
    assert (other.x, other.bounds, other.norms) == (trial.x, trial.bounds, trial.norms) and other.id != trial.id
    with pytest.raises(UnknownTrialError):
        opt.tell(trial, 1.0)


def test_aborts_do_not_enter_the_norms_or_what_is_committed():
    """The same measurements with and without an abort far away: identical records, and the run goes on alike."""
    (opt, plant), (free, other) = started(5, cubes=LocalCubes(3, 0.1)), started(5, cubes=LocalCubes(3, 0.1))
    opt.tell([0.0], status="aborted")
    for _ in range(4):
        one, two = opt.ask(), free.ask()
        assert one.x == two.x
        opt.tell(one, plant(one.params))
        free.tell(two, other(two.params))
    assert opt.state.records == free.state.records and opt.state.x().tolist() == free.state.x().tolist()


def test_a_blocked_run_says_so():
    opt, _ = started(1, abort_radius=100.0)
    opt.tell(opt.state.samples[0].point, status="aborted", reason="pendulum fell")
    assert opt.ask() is None and opt.stop_reason is StopReason.BLOCKED
    assert "aborted" in opt.stop_reason.advice
    assert opt.best().params == opt.domain.as_dict(np.array(opt.state.samples[0].point))  # what was measured stays


def test_the_limit_with_the_longest_lengthscale_decides():
    limits = {"g": Constraint(threshold=-1.0, kernel=Matern(1.5, 0.4), norm=Fixed(1.0))}
    opt = SafeOptimizer(Box.unit(1), None, kernel=Matern(1.5, 0.01), norm=Fixed(1.0), constraints=limits, abort_radius=0.5)
    opt.tell([0.5], 0.0, {"g": 1.0})
    opt.tell([0.4], status="aborted")
    points = np.linspace(0.0, 1.0, 101)[:, None]
    np.testing.assert_array_equal(opt.state.blocked(points), (points[:, 0] >= 0.2 - 1e-12) & (points[:, 0] <= 0.45))
    opt.tell([0.42], 0.0, {"g": 1.0})  # measured later: what was ruled out stays so
    np.testing.assert_array_equal(opt.state.blocked(points), (points[:, 0] >= 0.2 - 1e-12) & (points[:, 0] <= 0.45))
    opt.tell([0.5], status="aborted")  # where it was good before
    assert opt.state.blocked(np.array([[0.5], [0.65]])).all() and not opt.state.blocked(np.array([[0.71]])).any()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"value": 1.0, "status": "aborted"}, "no measurement"),
        ({"constraints": {}, "status": "aborted"}, "no measurement"),
        ({"status": "aborted", "reason": 3}, "must be text, got 3"),
        ({"value": 1.0, "status": "failed"}, "'measured' or 'aborted', got 'failed'"),
        ({"value": 1.0, "reason": "why"}, "belongs to an aborted"),
        ({}, "objective"),
    ],
)
def test_a_wrong_report_changes_nothing(arguments, match):
    opt, _ = started()
    trial, before = opt.ask(), opt.state
    with pytest.raises(InvalidValueError, match=match):
        opt.tell(trial, **arguments)
    assert opt.state is before and opt.ask() == trial


def test_an_aborted_trial_cannot_be_told():
    opt, _ = started()
    trial = opt.ask()
    opt.tell(trial, status="aborted")
    for report in ({"value": 1.0}, {"status": "aborted"}):
        with pytest.raises(AlreadyToldError):
            opt.tell(trial, **report)
    assert len(opt.state.aborts) == 1 and opt.state.step == 1


@pytest.mark.parametrize("radius", [-0.1, np.nan, np.inf, "wide", None])
def test_a_bad_radius_is_an_error_that_names_it(radius):
    with pytest.raises(InvalidValueError, match="abort_radius"):
        SafeOptimizer(Box.unit(1), 0.0, abort_radius=radius)


@pytest.mark.parametrize(
    ("entry", "match"),
    [
        ([[0.5], [0.4], 0, "", None], "not \\[0.4\\] in the unit cube"),
        ([[0.5], [0.5], 9, "", None], "beyond the 1 samples"),
        ([[0.5], [0.5], -1, "", None], "step"),
        ([[0.5], [0.5], 0, 7, None], "is text, got 7"),
        ([[0.5], [0.5], 0, "", 7], "a string, got 7"),
        ([[0.5], [0.5], 0], "damaged"),
    ],
)
def test_damaged_aborts_are_refused(entry, match):
    opt = SafeOptimizer(Box.unit(1), 0.0, norm=Fixed(1.0))
    opt.tell([0.5], 1.0)
    content = json.loads(opt.state.to_json())
    content["aborts"] = [entry]
    with pytest.raises(InvalidValueError, match=match):
        SafeOptimizer.from_json(json.dumps(content))
