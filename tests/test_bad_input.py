"""Bad input: a clear error that shows the value, and an optimizer that is exactly what it was before."""

from __future__ import annotations

import copy
import json
import re
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from safebo import (
    RBF,
    AbbasiYadkori,
    Box,
    Constraint,
    Fixed,
    Hoeffding,
    LocalCubes,
    MartingaleMixture,
    Matern,
    Paper,
    SafeboError,
    SafeOptimizer,
    Scenario,
    StopReason,
    Trial,
)
from safebo.domain import Cube
from safebo.exceptions import (
    AlreadyToldError,
    InfeasibleScenarioError,
    InvalidValueError,
    JitterWarning,
    NoInitialSampleError,
    SafeboWarning,
    ScaleWarning,
    UnknownTrialError,
    UnsafeInitialSampleError,
    UnsafeMeasurementWarning,
)

NAN, INF = float("nan"), float("inf")
SMALL = Scenario(m=60, gamma=0.2, kappa=0.1)


def make(domain=None, threshold=0.0, **settings):
    """An optimizer of one parameter that answers in milliseconds."""
    defaults = {"norm": SMALL, "cubes": LocalCubes(n=2, delta=0.2), "points_per_axis": 21, "safe_set": "union"}
    defaults["bound"] = AbbasiYadkori()
    return SafeOptimizer(Box({"kp": (0.0, 5.0)}) if domain is None else domain, threshold, **{**defaults, **settings})


def started(**settings):
    opt = make(**settings)
    opt.tell({"kp": 1.0}, 0.8)
    return opt


def started_2d(**settings):
    opt = make(Box({"kp": (0.0, 5.0), "kd": (-1.0, 1.0)}), points_per_axis=7, **settings)
    opt.tell({"kp": 1.0, "kd": 0.2}, 0.8)
    return opt


def limited(**settings):
    """Two outputs: the objective, and a torque between -2 and 2."""
    opt = make(constraints={"torque": Constraint(threshold=-2.0, upper=2.0)}, **settings)
    opt.tell({"kp": 1.0}, 0.8, {"torque": -0.5})
    return opt


@contextmanager
def rejected(opt: SafeOptimizer, naming: str = "", error: type[Exception] = InvalidValueError) -> Iterator[None]:
    """The block raises an error about a value, naming it, and the optimizer does not notice."""
    before, trial = opt.state.to_json(), opt.ask()
    with pytest.raises(error, match=re.escape(naming)) as caught:
        yield
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, SafeboError)
    assert opt.state.to_json() == before
    assert opt.ask() == trial


# -- measurements -------------------------------------------------------------------------------------------------------

BAD_VALUES = [
    NAN, INF, -INF, np.float64("nan"), np.float32("inf"), "0.8", b"0.8", "", None, True, False, np.True_, 1 + 0j, {"value": 0.8},
    [0.8, 0.9], (), [], np.array([0.8, 0.9]), np.array([]), np.array([[0.8, 0.9]]), np.array("0.8"), np.array([NAN]),
    np.array([True]), np.datetime64("2024-01-01"), object,
]  # fmt: skip


@pytest.mark.parametrize("value", BAD_VALUES, ids=repr)
def test_measurement_that_is_no_finite_number(value):
    opt = started()
    shown = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
    with rejected(opt, f"'objective' must be a finite number, got {shown!r}"):
        opt.tell({"kp": 1.1}, value)
    with rejected(opt, "'objective'"):
        opt.tell(opt.ask(), value)


def test_measurement_too_large_for_a_float():
    opt = started()
    with rejected(opt, "objective"):
        opt.tell({"kp": 1.1}, 10**400)


@pytest.mark.parametrize("value", [np.ma.masked, np.ma.array([0.8], mask=[True])], ids=["masked", "masked array"])
def test_masked_measurement_is_a_missing_one(value):
    opt = started()
    with rejected(opt, "objective"):
        opt.tell({"kp": 1.1}, value)


@pytest.mark.parametrize("value", [1e200, -1e200, 1e308])
def test_absurd_measurement_does_not_disable_the_optimizer(value):
    """Rejected, or used: but not accepted and then unusable for ever."""
    opt = started()
    before = opt.state.to_json()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            opt.tell({"kp": 1.1}, value)
        except InvalidValueError:
            assert opt.state.to_json() == before
            return
        assert opt.ask() is None or opt.is_safe(opt.ask().params).all()


@pytest.mark.parametrize(
    "value", [0.8, 1, np.float32(0.8), np.int64(1), np.array(0.8), np.array([0.8]), np.ones((1, 1))], ids=repr
)
def test_every_kind_of_finite_number_is_a_measurement(value):
    opt = started()
    opt.tell({"kp": 1.1}, value)
    assert opt.state.samples[-1].values == (float(np.asarray(value).item()),)
    assert SafeOptimizer.from_json(opt.state.to_json()).state == opt.state


# -- parameters ---------------------------------------------------------------------------------------------------------

BAD_PARAMS = [
    ({"kq": 1.0}, "unknown ['kq'], missing ['kp']"),
    ({}, "missing ['kp']"),
    ({"kp": 1.0, "kd": 2.0}, "unknown ['kd']"),
    ({"KP": 1.0}, "KP"),
    ({1: 1.0}, "unknown [1]"),
    ({"kp": 5.1}, "'kp' = 5.1 lies outside its bounds [0.0, 5.0]"),
    ({"kp": -1e-6}, "-1e-06"),
    ({"kp": NAN}, "nan"),
    ({"kp": INF}, "inf"),
    ({"kp": "1.0"}, "'1.0'"),
    ({"kp": None}, "None"),
    ({"kp": True}, "True"),
    ({"kp": [1.0, 2.0]}, "[1.0, 2.0]"),
    ({"kp": 10**400}, "1000000"),
    ([1.0, 2.0], "[1.0, 2.0]"),
    ([], "[]"),
    (np.array([[1.0], [2.0]]), "array([[1.]"),
    ([[1.0], [2.0, 3.0]], "[2.0, 3.0]"),
    (NAN, "nan"),
    (-INF, "-inf"),
    (7.5, "7.5"),
    ("kp", "'kp'"),
    (None, "None"),
    (True, "True"),
    (1 + 2j, "(1+2j)"),
]


@pytest.mark.parametrize(("params", "naming"), BAD_PARAMS, ids=[repr(p)[:40] for p, _ in BAD_PARAMS])
def test_bad_parameters(params, naming):
    opt = started()
    with rejected(opt, naming):
        opt.tell(params, 0.8)
    if np.isscalar(params) or params is None:
        for query in (opt.bounds, opt.is_safe, opt.mean):
            with rejected(opt, naming):
                query(params)


@pytest.mark.parametrize(
    ("params", "naming"),
    [({"kp": 1.0}, "missing ['kd']"), ([1.0], "[1.0]"), ([1.0, 0.2, 0.3], "[1.0, 0.2, 0.3]"), ([1.0, 1.5], "'kd' = 1.5"),
     ({"kp": 1.0, "kd": NAN}, "nan"), ([[1.0, 0.2], [1.1, 0.2]], "[1.1, 0.2]"), (1.0, "1.0")],
)  # fmt: skip
def test_bad_parameters_in_two_dimensions(params, naming):
    opt = started_2d()
    with rejected(opt, naming):
        opt.tell(params, 0.8)


def test_bad_points_of_queries():
    opt = started_2d()
    for query in (opt.bounds, opt.is_safe, opt.mean):
        with rejected(opt, "(3, 1)"):
            query(np.zeros((3, 1)))
        with rejected(opt, "9.0"):
            query([[1.0, 0.1], [9.0, 0.1]])
        with rejected(opt, "nan"):
            query([[1.0, NAN]])
        assert len(np.atleast_1d(query(np.empty((0, 2)))).T) == 0
    with rejected(opt, "'speed'"):
        opt.bounds([1.0, 0.1], output="speed")
    with rejected(opt, "'speed'"):
        opt.mean([1.0, 0.1], output="speed")


def test_points_on_the_rounding_edge_of_the_domain_are_inside():
    opt = started()
    opt.tell({"kp": 5.0 + 1e-13}, 0.8)
    assert opt.state.samples[-1].point == (5.0,)
    assert opt.state.samples[-1].x == (1.0,)


def test_missing_value_argument():
    opt = started()
    before = opt.state.to_json()
    with pytest.raises(InvalidValueError, match="'objective' must be a finite number, got None"):
        opt.tell({"kp": 1.0})
    assert opt.state.to_json() == before


# -- constraint values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraints", "naming"),
    [
        (None, "missing ['torque']"),
        ({}, "missing ['torque']"),
        ({"speed": 1.0}, "unknown ['speed'], missing ['torque']"),
        ({"torque": 0.1, "speed": 1.0}, "unknown ['speed']"),
        ({"torque": 0.1, "objective": 1.0}, "unknown ['objective']"),
        *[({"torque": v}, f"'torque' must be a finite number, got {v!r}") for v in (NAN, INF, None, "1", True, [0.1])],
        (0.1, "0.1"),
        ("torque", "torque"),
        ([0.1], "[0.1]"),
    ],
    ids=repr,
)
def test_bad_constraint_values(constraints, naming):
    opt = limited()
    with rejected(opt, naming):
        opt.tell({"kp": 1.1}, 0.8, constraints)
    with rejected(opt, naming):
        opt.tell(opt.ask(), 0.8, constraints)


def test_constraint_values_for_an_optimizer_without_constraints():
    opt = started()
    with rejected(opt, "unknown ['torque']"):
        opt.tell({"kp": 1.1}, 0.8, {"torque": 0.1})


def test_a_safe_constraint_does_not_excuse_a_bad_objective():
    opt = limited()
    with rejected(opt, "objective"):
        opt.tell({"kp": 1.1}, NAN, {"torque": 0.1})


# -- trials -------------------------------------------------------------------------------------------------------------


def test_trial_made_by_hand():
    opt = started()
    forged = Trial("7-0000000000", {"kp": 4.0}, (0.8,), 0.1, 0.9, 1.0, Cube.whole(1), 0.9)
    with rejected(opt, "7-0000000000", UnknownTrialError):
        opt.tell(forged, 0.8)


@pytest.mark.parametrize("how", ["params", "x", "id"])
def test_altered_trial(how):
    opt = started()
    trial = opt.ask()
    altered = {
        "params": lambda: replace(trial, params={"kp": trial.params["kp"] + 0.01}),
        "x": lambda: replace(trial, x=(trial.x[0] + 0.01,)),
        "id": lambda: replace(trial, id=trial.id[:-1] + ("0" if trial.id[-1] != "0" else "1")),
    }[how]()
    with rejected(opt, altered.id, UnknownTrialError):
        opt.tell(altered, 0.8)
    opt.tell(trial, 0.8)  # the real one is still good


def test_altered_trial_after_a_restart():
    opt = started()
    trial = opt.ask()
    again = SafeOptimizer.from_json(opt.state.to_json())
    with rejected(again, trial.id, UnknownTrialError):
        again.tell(replace(trial, params={"kp": 4.9}), 0.8)
    again.tell(trial, 0.8)


def test_trial_of_another_optimizer():
    opt, other = started(), started(seed=1)
    foreign = other.ask()
    with rejected(opt, foreign.id, UnknownTrialError):
        opt.tell(foreign, 0.8)


def test_trial_of_an_optimizer_that_knows_the_same_data_with_another_kernel():
    opt, other = started(), started(kernel=RBF(0.3))
    opt.ask()
    foreign = other.ask()
    assert foreign.x != opt.ask().x
    with rejected(opt, foreign.id, UnknownTrialError):
        opt.tell(foreign, 0.8)


def test_trial_told_twice():
    opt = started()
    trial = opt.ask()
    opt.tell(trial, 0.8)
    with rejected(opt, trial.id, AlreadyToldError):
        opt.tell(trial, 0.8)
    with rejected(opt, trial.id, AlreadyToldError):
        opt.tell(trial, 0.9)
    again = SafeOptimizer.from_json(opt.state.to_json())
    with rejected(again, trial.id, AlreadyToldError):
        again.tell(trial, 0.8)
    opt.tell(dict(trial.params), 0.8)  # a repetition, as the message says
    assert opt.state.step == 3


def test_trial_before_any_sample():
    trial, opt = started().ask(), make()
    with pytest.raises(UnknownTrialError, match=trial.id):
        opt.tell(trial, 0.8)
    assert opt.state.step == 0


def test_a_rejected_measurement_does_not_use_up_the_trial():
    opt = started()
    trial = opt.ask()
    with rejected(opt, "nan"):
        opt.tell(trial, NAN)
    opt.tell(trial, 0.8)
    assert opt.state.samples[-1].trial == trial.id


# -- before the first sample, and unsafe samples ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "question",
    [
        lambda opt: opt.ask(),
        lambda opt: opt.best(),
        lambda opt: opt.bounds([1.0]),
        lambda opt: opt.is_safe([1.0]),
        lambda opt: opt.safe_set(),
        lambda opt: opt.subdomains(),
        lambda opt: opt.stop_reason,
        lambda opt: opt.refutations,
    ],
    ids=["ask", "best", "bounds", "is_safe", "safe_set", "subdomains", "stop_reason", "refutations"],
)
def test_questions_before_any_sample(question):
    opt = make()
    with pytest.raises(NoInitialSampleError, match="tell at least one"):
        question(opt)
    with pytest.raises(NoInitialSampleError):
        question(SafeOptimizer.from_json(opt.state.to_json()))
    assert opt.state.step == 0


@pytest.mark.parametrize("value", [-1e-9, -5.0])
def test_initial_sample_below_the_threshold(value):
    opt = make()
    before = opt.state.to_json()
    with pytest.raises(UnsafeInitialSampleError, match=re.escape(f"objective = {value:g} is below its limit 0")) as caught:
        opt.tell({"kp": 1.0}, value)
    assert "sample kp = 1 is not safe" in str(caught.value)
    assert opt.state.to_json() == before
    with pytest.raises(NoInitialSampleError):
        opt.ask()


def test_initial_sample_exactly_at_the_threshold_is_inside():
    opt = make(threshold=0.8)
    opt.tell({"kp": 1.0}, 0.8)
    assert opt.state.inside().tolist() == [True]


@pytest.mark.parametrize(
    ("value", "torque", "naming"),
    [
        (0.8, -2.5, "torque = -2.5 is below its limit -2"),
        (0.8, 2.5, "torque = 2.5 is above its limit 2"),
        (-0.1, 0.0, "objective = -0.1 is below its limit 0"),
        (-0.1, 9.0, "objective = -0.1 is below its limit 0; torque = 9 is above its limit 2"),
    ],
)
def test_initial_sample_outside_any_limit(value, torque, naming):
    opt = make(constraints={"torque": Constraint(threshold=-2.0, upper=2.0)})
    with pytest.raises(UnsafeInitialSampleError, match=re.escape(naming)):
        opt.tell({"kp": 1.0}, value, {"torque": torque})
    assert opt.state.step == 0


@pytest.mark.filterwarnings("ignore::safebo.exceptions.ScaleWarning")
def test_initial_sample_outside_an_upper_limit_alone():
    opt = make(threshold=None, constraints={"heat": Constraint(upper=1.0)})
    with pytest.raises(UnsafeInitialSampleError, match=re.escape("heat = 1.5 is above its limit 1")):
        opt.tell({"kp": 1.0}, -100.0, {"heat": 1.5})
    opt.tell({"kp": 1.0}, -100.0, {"heat": 0.0})  # the objective is no limit
    assert opt.state.inside().tolist() == [True]


@pytest.mark.parametrize("safe_set", ["union", "continuity", "confidence"])
@pytest.mark.parametrize("bound", [Paper(), MartingaleMixture()], ids=["paper", "mixture"])
def test_later_unsafe_measurement_is_data_but_no_seed(safe_set, bound):
    opt = started(safe_set=safe_set, norm=Fixed(3.0), bound=bound)
    with pytest.warns(UnsafeMeasurementWarning, match=re.escape("objective = -0.5 is below its limit 0")):
        opt.tell({"kp": 1.5}, -0.5)
    assert opt.state.inside().tolist() == [True, False]
    assert not opt.is_safe({"kp": 1.5})[0]
    assert opt.bounds([1.5])[1][0] < 0.0
    near = np.abs(opt.safe_set()[:, 0] - 1.5) < 0.05
    assert not near.any()
    for view in opt.subdomains():
        centre = 0.5 * (view.cube.lower[0] + view.cube.upper[0])
        if abs(centre - 0.3) < 1e-9 and view.cube.upper[0] - view.cube.lower[0] < 0.2 - 1e-9:
            assert not view.safe.any()  # a cube that holds nothing but the unsafe sample
    for _ in range(3):
        trial = opt.ask()
        if trial is None:
            break
        assert abs(trial.params["kp"] - 1.5) > 0.05
        opt.tell(trial, 0.5)


def test_measurement_slightly_above_the_limit_between_unsafe_ones_is_no_certificate():
    """A seed needs a certified lower bound, not only a measured value inside the limit."""
    opt = started(norm=Fixed(3.0), noise=0.1)
    opt.tell({"kp": 4.0}, 1e-6)
    assert opt.state.inside().all()
    assert not opt.is_safe({"kp": 4.0})[0]


def test_unsafe_warning_points_at_the_caller():
    opt = started()
    with pytest.warns(UnsafeMeasurementWarning) as caught:
        opt.tell({"kp": 4.0}, -0.5)
    assert caught[0].filename == __file__


def test_unsafe_constraint_warns_too():
    opt = limited()
    with pytest.warns(UnsafeMeasurementWarning, match=re.escape("torque = 3 is above its limit 2")):
        opt.tell({"kp": 1.1}, 0.8, {"torque": 3.0})
    assert opt.state.inside().tolist() == [True, False]


def test_several_safe_samples_may_precede_the_first_question():
    opt = make()
    for kp in (0.5, 1.0, 1.5):
        opt.tell([kp], 0.8)
    assert opt.ask() is not None
    with pytest.warns(UnsafeMeasurementWarning):
        opt.tell([4.5], -1.0)
    assert opt.ask() is not None


@pytest.mark.parametrize("safe_set", ["union", "continuity", "confidence"])
@pytest.mark.parametrize("bound", [Paper(), AbbasiYadkori(), MartingaleMixture()], ids=["paper", "abbasi", "mixture"])
def test_threshold_that_cannot_be_certified(safe_set, bound):
    opt = make(threshold=0.999999, safe_set=safe_set, bound=bound)
    opt.tell({"kp": 1.0}, 1.0)
    assert opt.ask() is None
    assert opt.stop_reason is StopReason.EMPTY_SAFE_SET
    assert "measurement" in opt.stop_reason.advice and "threshold" in opt.stop_reason.advice
    assert not opt.is_safe([1.0])[0]
    assert opt.safe_set().shape == (0, 1)
    best = opt.best()  # nothing but the measured sample
    assert best.params == {"kp": pytest.approx(1.0)} and best.lower < 0.999999 < best.upper
    opt.tell({"kp": 1.0}, 1.0)  # it still takes data
    assert SafeOptimizer.from_json(opt.state.to_json()).stop_reason is opt.stop_reason


# -- settings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "gamma", "kappa", "smallest"), [(500, 0.01, 0.001, 688), (10, 0.2, 0.1, 11), (1, 0.1, 0.01, 44), (43, 0.1, 0.01, 44)]
)
def test_infeasible_scenario_names_the_smallest_m(m, gamma, kappa, smallest):
    with pytest.raises(InfeasibleScenarioError, match=f"m = {m} .*smallest m that works is {smallest}") as caught:
        Scenario(m=m, gamma=gamma, kappa=kappa)
    assert f"gamma = {gamma:g}" in str(caught.value) and f"kappa = {kappa:g}" in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert Scenario(m=smallest, gamma=gamma, kappa=kappa).discards == 0
    with pytest.raises(InfeasibleScenarioError):
        Scenario(m=smallest - 1, gamma=gamma, kappa=kappa)


@pytest.mark.parametrize("gamma", [0.001, 0.013, 0.1, 0.25, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("kappa", [1e-9, 1e-3, 0.1, 0.5, 0.999])
def test_the_named_m_works_and_one_less_does_not(gamma, kappa):
    try:
        assert Scenario(m=1, gamma=gamma, kappa=kappa).discards >= 0
    except InfeasibleScenarioError as error:
        smallest = int(re.search(r"works is (\d+)", str(error)).group(1))
        assert Scenario(m=smallest, gamma=gamma, kappa=kappa).discards >= 0
        with pytest.raises(InfeasibleScenarioError):
            Scenario(m=smallest - 1, gamma=gamma, kappa=kappa)


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, -0.1, 1.1, NAN, INF, None, "0.1", True])
@pytest.mark.parametrize("name", ["gamma", "kappa"])
def test_scenario_probabilities_outside_the_unit_interval(name, value):
    with pytest.raises(InvalidValueError, match=re.escape(f"Scenario.{name} must lie strictly between 0 and 1, got {value!r}")):
        Scenario(**{name: value})


@pytest.mark.parametrize("value", [0, -3, 1.5, 60.0, NAN, None, "60", True])
@pytest.mark.parametrize(
    ("estimator", "name"), [(Scenario, "m"), (Scenario, "centres"), (Hoeffding, "m"), (Hoeffding, "centres")]
)
def test_counts_that_are_no_positive_integers(estimator, name, value):
    with pytest.raises(InvalidValueError, match=re.escape(f"{estimator.__name__}.{name} must be an integer >= 1, got {value!r}")):
        estimator(**{name: value})


@pytest.mark.parametrize("value", [0.0, -1.0, NAN, INF, None, "1"])
@pytest.mark.parametrize("estimator", [Scenario, Hoeffding])
def test_bad_alpha_bar(estimator, value):
    with pytest.raises(InvalidValueError, match=re.escape(repr(value))):
        estimator(alpha_bar=value)


@pytest.mark.parametrize("value", [0, -5, NAN, INF, None, "5", True])
def test_bad_fixed_norm(value):
    with pytest.raises(InvalidValueError, match=re.escape(repr(value))):
        Fixed(value)


BAD_SETTINGS = [
    *[("delta", v, repr(v)) for v in (0, 1, -0.1, 1.5, NAN, None, "0.1", True)],
    *[("noise", v, repr(v)) for v in (0, 0.0, -0.01, NAN, INF, None, "0.01", True)],
    ("noise", 1e-200, "1e-200"),  # its square is zero
    *[("min_width", v, repr(v)) for v in (-0.1, NAN, INF, None, "0.1")],
    *[("threshold", v, repr(v)) for v in (NAN, INF, -INF, "0", True)],
    *[("kernel", v, repr(v)) for v in ("matern", 3, Matern)],
    ("kernel", Matern(lengthscale=(0.1, 0.2)), "2 lengthscales (0.1, 0.2), the domain has 1 parameters"),
    *[("norm", v, f"such as Scenario() or Fixed(5), got {v!r}") for v in (5, 5.0, "scenario", Scenario, Fixed)],
    *[("bound", v, f"such as Paper(), got {v!r}") for v in ("paper", 2.0, Paper, MartingaleMixture)],
    *[("cubes", v, repr(v)) for v in (5, "local", (5, 0.1), LocalCubes, True)],
    *[("screening", v, repr(v)) for v in (5, "lstm", Scenario)],
    *[("safe_set", v, f"['union', 'continuity', 'confidence'], got {v!r}") for v in ("both", None, 1, ("union",))],
    *[("acquisition", v, f"['balanced', 'directed', 'joint', 'paper'], got {v!r}") for v in ("random", None, 0)],
    *[("points_per_axis", v, repr(v)) for v in (1, 0, -3, 1.5, True, "20", (7.0,), (5, 5))],
    ("points_per_axis", 6_000_000, "6,000,000 points"),
    ("points_per_axis", 10**30, "points per sub-domain"),
    *[("memory_budget", v, repr(v)) for v in (-1, 1.5, None, "1", True)],
    *[("seed", v, repr(v)) for v in (-1, 0.5, None, "0", True)],
    *[("refutation_margin", v, repr(v)) for v in (1.0, 0.5, -1, NAN, INF, None, "2")],
    *[("constraints", v, repr(v)) for v in (5, ["torque"], "torque")],
    ("constraints", {"torque": -2.0}, "constraints['torque'] must be a Constraint, got -2.0"),
    *[("constraints", {name: Constraint(threshold=0.0)}, f"{name!r}") for name in ("objective", "", 3, "kp")],
    *[("domain", v, repr(v)) for v in (3, {"kp": (0, 5)}, [(0, 5)])],
]


@pytest.mark.parametrize(("name", "value", "naming"), BAD_SETTINGS, ids=[f"{n}={v!r}"[:60] for n, v, _ in BAD_SETTINGS])
def test_bad_settings(name, value, naming):
    """At construction, not at the first ask on the bench."""
    with pytest.raises(InvalidValueError, match=re.escape(naming)):
        make(**{name: value})


def test_too_many_grid_points_in_several_dimensions():
    with pytest.raises(InvalidValueError, match="100,000,000 points"):
        make(Box.unit(4), points_per_axis=100)
    with pytest.raises(InvalidValueError, match=re.escape("points_per_axis has 2 entries (5, 5), the domain has 4 parameters")):
        make(Box.unit(4), points_per_axis=(5, 5))


@pytest.mark.parametrize(
    ("arguments", "naming"),
    [({"n": -1}, "-1"), ({"n": 1.5}, "1.5"), ({"n": True}, "True"), ({"n": None}, "None"), ({"delta": 0.0}, "0.0"),
     ({"delta": -0.1}, "-0.1"), ({"delta": NAN}, "nan"), ({"delta": INF}, "inf"), ({"delta": "0.1"}, "'0.1'"),
     ({"delta": True}, "True")],
)  # fmt: skip
def test_bad_cubes(arguments, naming):
    with pytest.raises(InvalidValueError, match=re.escape(naming)):
        LocalCubes(**arguments)


@pytest.mark.parametrize("lam", [0.0, -1.0, NAN, INF, "sigma", None, True])
def test_bad_regulariser(lam):
    with pytest.raises(InvalidValueError, match=re.escape(repr(lam))):
        AbbasiYadkori(lam)


@pytest.mark.parametrize(
    "arguments", [{"low": 0.0}, {"low": -1.0}, {"low": NAN}, {"high": INF}, {"low": 2.0, "high": 1.0}, {"points": 0}], ids=repr
)
def test_bad_mixture(arguments):
    with pytest.raises(InvalidValueError, match="MartingaleMixture needs"):
        MartingaleMixture(**arguments)


@pytest.mark.parametrize("arguments", [{"points": 2.5}, {"points": "25"}, {"low": "a"}, {"high": None}])
def test_mixture_of_wrong_types(arguments):
    with pytest.raises(InvalidValueError, match="MartingaleMixture"):
        MartingaleMixture(**arguments)


# -- several limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "naming"),
    [
        ({}, "got neither"),
        ({"threshold": 1.0, "upper": 1.0}, "threshold 1.0 >= upper 1.0"),
        ({"threshold": 2.0, "upper": 1.0}, "threshold 2.0 >= upper 1.0"),
        ({"threshold": NAN}, "nan"),
        ({"upper": INF}, "inf"),
        ({"threshold": "0"}, "'0'"),
        ({"upper": True}, "True"),
    ],
)
def test_bad_constraint(arguments, naming):
    with pytest.raises(InvalidValueError, match=re.escape(naming)):
        Constraint(**arguments)


@pytest.mark.parametrize(
    ("arguments", "naming"),
    [
        ({"noise": -1.0}, "noise of 'torque' must be positive, got -1.0"),
        ({"norm": 5}, "norm of 'torque' must be a norm estimator such as Scenario() or Fixed(5), got 5"),
        ({"kernel": "rbf"}, "kernel of 'torque' must be a Matern or RBF kernel, got 'rbf'"),
        ({"kernel": RBF((0.1, 0.2))}, "2 lengthscales"),
        ({"bound": "paper"}, "bound of 'torque' must be a confidence bound such as Paper(), got 'paper'"),
        ({"min_width": -1.0}, "min_width of 'torque' must not be negative, got -1.0"),
        ({"delta": 0.01}, "0.01"),
        ({"delta": 0.5}, "0.5"),
        ({"delta": NAN}, "nan"),
        ({"delta": 0.0}, "must lie strictly between 0 and 1, got 0.0"),
        ({"delta": -2.0}, "-2.0"),
        ({"delta": "0.001"}, "0.001"),
    ],
    ids=repr,
)
def test_bad_settings_of_a_constraint(arguments, naming):
    with pytest.raises(InvalidValueError, match=re.escape(naming)):
        make(constraints={"torque": Constraint(threshold=-2.0, **arguments)})


def test_shares_that_exceed_delta():
    a, b = Constraint(threshold=0.0, delta=0.006), Constraint(threshold=0.0, delta=0.005)
    with pytest.raises(InvalidValueError, match=re.escape("[0.006, 0.005] exceed delta = 0.01")):
        make(threshold=None, constraints={"a": a, "b": b})
    with pytest.raises(InvalidValueError, match=re.escape("([0.006, 0.005]); nothing is left for the other 1 limits")):
        make(threshold=0.0, constraints={"a": a, "b": b})


def test_no_limit_at_all():
    with pytest.raises(InvalidValueError, match="Nothing is limited"):
        make(threshold=None)
    with pytest.raises(InvalidValueError, match="Nothing is limited"):
        make(threshold=None, constraints={})


@pytest.mark.parametrize(
    "settings",
    [{"delta": np.float32(0.01)}, {"norm": Scenario(m=60, gamma=np.float32(0.2), kappa=0.1)}, {"noise": np.float32(0.01)},
     {"threshold": np.float32(0.0)}, {"min_width": np.int64(0)}, {"points_per_axis": np.int64(21)}, {"seed": np.int64(3)},
     {"kernel": Matern(1.5, np.float32(0.1))}, {"norm": Fixed(np.float32(3.0))}],
    ids=repr,
)  # fmt: skip
def test_what_is_accepted_can_be_saved(settings):
    """numpy's numbers come out of every configuration file reader: a run with them must not turn out unsaveable at its end."""
    opt = started(**settings)
    opt.tell(opt.ask(), 0.7)
    again = SafeOptimizer.from_json(opt.state.to_json())
    assert again.state == opt.state and again.ask() == opt.ask()


# -- many samples at one place ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [Paper(), MartingaleMixture()], ids=["paper", "mixture"])
def test_repetitions_at_one_place(bound):
    opt = make(bound=bound)
    rng = np.random.default_rng(0)
    for _ in range(40):
        opt.tell({"kp": 1.0}, 0.8 + 0.01 * rng.standard_normal())
    lower, upper = opt.bounds([1.0])
    assert lower[0] < 0.8 < upper[0]
    trial = opt.ask()
    assert trial is not None and opt.is_safe(trial.params)[0]
    assert SafeOptimizer.from_json(opt.state.to_json()).ask() == trial


@pytest.mark.parametrize(
    ("bound", "count"), [(Paper(), 1000), (AbbasiYadkori(), 1000), (MartingaleMixture(), 400)], ids=["paper", "abbasi", "mixture"]
)
def test_a_thousand_samples_at_one_place(bound, count):
    opt = make(bound=bound, norm=Scenario(m=20, gamma=0.2, kappa=0.1, centres=50), points_per_axis=11, cubes=None)
    rng = np.random.default_rng(0)
    begin = time.process_time()
    for value in 0.8 + 0.01 * rng.standard_normal(count):
        opt.tell({"kp": 1.0}, value)
    trial = opt.ask()
    assert time.process_time() - begin < 60.0  # seconds of both cores; a few are needed
    assert trial is not None or opt.stop_reason is not None
    lower, upper = opt.bounds(np.linspace(0.0, 5.0, 6))
    assert (lower < upper).all()
    assert lower[1] < 0.8 < upper[1]


def test_contradicting_repetitions_keep_proper_intervals():
    """Measurements at one place that no noise of this level explains."""
    opt = started(noise=0.001)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SafeboWarning)
        for value in (0.2, 1.9, 0.1, 1.5):
            opt.tell({"kp": 1.0}, value)
            opt.ask()
            for view in opt.subdomains():
                assert (view.lower["objective"] < view.upper["objective"]).all()


def test_nearly_coincident_samples_at_tiny_noise():
    opt = started(noise=1e-8, kernel=RBF(0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitterWarning)
        for i in range(12):
            opt.tell({"kp": 1.0 + 1e-9 * i}, 0.8)
        opt.ask()
        assert all((v.lower["objective"] < v.upper["objective"]).all() for v in opt.subdomains())


# -- stored states ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored():
    opt = started()
    opt.tell(opt.ask(), 0.7)
    opt.tell(opt.ask(), 0.75)
    return json.loads(opt.state.to_json())


def altered(stored, path, value):
    """The stored state with one entry replaced; `...` deletes it."""
    content = copy.deepcopy(stored)
    place = content
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    "text", ["", "not json", "{", "[]", "{}", "null", "3", '"safebo"', "NaN", None, 5, [], {"safebo": 1}, b"\xff\xfe"], ids=repr
)
def test_text_that_is_no_state(text):
    with pytest.raises(InvalidValueError, match="safebo state"):
        SafeOptimizer.from_json(text)


def test_truncated_state(stored):
    text = json.dumps(stored)
    for length in (1, 10, len(text) // 2, len(text) - 1):
        with pytest.raises(InvalidValueError, match="safebo state"):
            SafeOptimizer.from_json(text[:length])


@pytest.mark.parametrize("number", [0, 2, 99, "1", None, 1.5])
def test_other_format_number(stored, number):
    with pytest.raises(InvalidValueError, match=re.escape(f"format 1: found format {number!r}")):
        SafeOptimizer.from_json(altered(stored, ["safebo"], number))


def test_missing_keys(stored):
    paths = [[key] for key in ("settings", "samples", "records")] + [["settings", key] for key in stored["settings"]]
    for path in paths:
        with pytest.raises(InvalidValueError, match=path[-1]):
            SafeOptimizer.from_json(altered(stored, path, ...))


def test_additional_key(stored):
    with pytest.raises(InvalidValueError, match="surprise"):
        SafeOptimizer.from_json(altered(stored, ["settings", "surprise"], 1))


@pytest.mark.parametrize("name", ["Surprise", "os.system", None, 3, "Settings", "State"])
@pytest.mark.parametrize("path", [["locality"], ["outputs", 0, "norm"], ["outputs", 0, "kernel"]], ids=str)
def test_unknown_type(stored, path, name):
    with pytest.raises(InvalidValueError, match=f"Unknown type {name!r}"):
        SafeOptimizer.from_json(altered(stored, ["settings", *path, "type"], name))


@pytest.mark.parametrize(
    "path",
    [
        *[["settings"], ["samples"], ["records"], ["samples", 1], ["records", 0]],
        *[["settings", key] for key in ("domain", "outputs", "locality", "shape", "safe_set", "acquisition", "margin")],
        *[["settings", key] for key in ("memory_budget", "seed")],
        *[["settings", "outputs", 0], *(["settings", "outputs", 0, key] for key in ("kernel", "norm", "bound"))],
    ],
    ids=str,
)
@pytest.mark.parametrize("value", [None, "abc", [1], -7.5, NAN], ids=repr)
def test_damaged_part(stored, path, value):
    """Nothing but a well-formed state is loaded, and what is wrong turns up at once, not at the bench."""
    with pytest.raises(InvalidValueError):
        SafeOptimizer.from_json(altered(stored, path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["samples", 1, 2], [NAN]),
        (["samples", 1, 2], [INF]),
        (["samples", 1, 2], ["0.7"]),
        (["samples", 1, 2], []),
        (["samples", 1, 2], [0.7, 0.8]),
        (["samples", 1, 1], [NAN]),
        (["samples", 1, 1], [1.7]),
        (["samples", 1, 1], [0.1, 0.2]),
        (["samples", 1, 0], [NAN]),
        (["samples", 1, 0], [17.0]),
        (["samples", 0, 2], [-5.0]),
        (["samples", 1], [[1.0], [0.2]]),
        (["records", 0, 0], 99),
        (["records", 0, 0], 0),
        (["records", 0, 0], "1"),
        (["records", 0, 1, 0, 1], [NAN]),
        (["records", 0, 1, 0, 1], [0.0]),
        (["records", 0, 1, 0, 1], [-3.0]),
        (["records", 0, 1, 0, 1], ["3"]),
        (["records", 0, 1, 0, 1], []),
        (["records", 0, 1, 0, 0], 99),
        (["settings", "outputs", 0, "lower_limit"], NAN),
        (["settings", "outputs", 0, "lower_limit"], "0"),
        (["settings", "outputs", 0, "lower_limit"], None),
        (["settings", "outputs", 0, "noise"], NAN),
        (["settings", "outputs", 0, "delta"], 2.0),
        (["settings", "outputs", 0, "kernel", "lengthscale"], [0.1, 0.2]),
        (["settings", "outputs", 0, "kernel", "lengthscale"], NAN),
        (["settings", "outputs", 0, "norm", "gamma"], NAN),
        (["settings", "outputs"], []),
        (["settings", "domain", "bounds", "kp"], [0.0, NAN]),
        (["settings", "domain", "bounds"], {}),
        (["settings", "shape"], [1]),
        (["settings", "shape"], [5, 5]),
        (["settings", "margin"], 0.5),
        (["settings", "seed"], -1),
        (["settings", "safe_set"], "none"),
        (["settings", "locality"], {"type": "Matern"}),
        (["settings", "screening"], {"type": "Matern"}),
    ],
    ids=lambda v: str(v)[:50],
)
def test_wrong_values_inside_a_state(stored, path, value):
    """A state is checked like the arguments of the constructor: in particular it cannot lose its limit or its norms."""
    with pytest.raises(InvalidValueError):
        SafeOptimizer.from_json(altered(stored, path, value))


def test_a_lengthscale_in_the_unit_of_the_parameter_is_warned_about():
    with pytest.warns(ScaleWarning, match="fractions of a parameter's range"):
        SafeOptimizer(Box({"kp": (0.0, 500.0)}), 0.0, kernel=Matern(lengthscale=50.0))


@pytest.mark.parametrize("lengthscale", [1e-300, 1e-7])
def test_a_lengthscale_that_no_grid_resolves_is_refused(lengthscale):
    with pytest.raises(InvalidValueError, match=f"lengthscale {lengthscale:g}"):
        SafeOptimizer(Box.unit(1), 0.0, kernel=Matern(lengthscale=lengthscale))


@pytest.mark.parametrize("bounds", [(0.0, 1e300), (0.0, 5e-324), (-1e150, 0.0)])
def test_bounds_that_a_saved_state_could_not_hold_are_refused(bounds):
    with pytest.raises(InvalidValueError, match="change its unit"):
        Box({"a": bounds})
