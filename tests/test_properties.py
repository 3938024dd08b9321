"""Properties over many random problems and histories: coverage, safety, replay; and what importing the package costs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import safebo
from safebo import (
    AbbasiYadkori,
    Box,
    Constraint,
    Fixed,
    LocalCubes,
    MartingaleMixture,
    Matern,
    Paper,
    SafeOptimizer,
    Scenario,
    presets,
)
from safebo.exceptions import InvalidValueError, SafeboWarning
from safebo.problems import RKHSProblem
from tests.strategies import boxes

RUNS = 30
BOUNDS = {"abbasi": AbbasiYadkori(), "mixture": MartingaleMixture()}


@pytest.fixture(scope="module")
def problems():
    """Random functions of norm 5 with a threshold at their 30 % quantile."""
    return [RKHSProblem.sample(1, 5.0, seed, n_centres=60) for seed in range(RUNS)]


def play(problem, opt, steps, seed):
    """(unsafe experiments, steps after which the function left its interval somewhere)."""
    measure = problem.plant(seed)
    mesh = np.linspace(0.0, 1.0, 201)
    truth = problem.f(mesh[:, None])
    unsafe = wrong = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SafeboWarning)
        opt.tell(problem.initial, max(measure(problem.initial), problem.threshold))
        for _ in range(steps):
            trial = opt.ask()
            if trial is None:
                break
            unsafe += not problem.is_safe(trial.params)
            lower, upper = opt.bounds(mesh)
            wrong += not ((lower <= truth) & (truth <= upper)).all()
            opt.tell(trial, measure(trial.params))
    return unsafe, wrong


# -- told the truth, the intervals hold it and nothing unsafe is tried --------------------------------------------------


@pytest.mark.statistical
@pytest.mark.parametrize("cubes", [None, LocalCubes(n=2, delta=0.2)], ids=["global", "local"])
@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
def test_true_norm_is_safe_and_covers(problems, bound, cubes):
    """delta = 0.01 a run: 30 runs without a single failure are what is expected, one would still be no contradiction."""
    outcomes = []
    for i, problem in enumerate(problems):
        opt = SafeOptimizer(
            problem.domain, problem.threshold, kernel=problem.kernel, noise=problem.noise, norm=Fixed(problem.norm), bound=bound,
            cubes=cubes, points_per_axis=101, delta=0.01,
        )  # fmt: skip
        outcomes.append(play(problem, opt, 8, i))
    unsafe, wrong = (sum(count > 0 for count in counts) for counts in zip(*outcomes, strict=True))
    assert unsafe == 0
    assert wrong <= 1


@pytest.mark.statistical
def test_true_norm_is_safe_in_two_dimensions():
    for seed in range(4):
        problem = RKHSProblem.sample(2, 5.0, seed, n_centres=30, kernel=Matern(1.5, 0.3))
        for bound in BOUNDS.values():
            opt = SafeOptimizer(
                problem.domain, problem.threshold, kernel=problem.kernel, norm=Fixed(problem.norm), bound=bound,
                cubes=LocalCubes(n=1, delta=0.3), points_per_axis=25,
            )  # fmt: skip
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SafeboWarning)
                measure = problem.plant(seed)
                opt.tell(problem.initial, max(measure(problem.initial), problem.threshold))
                for _ in range(6):
                    trial = opt.ask()
                    if trial is None:
                        break
                    assert problem.is_safe(trial.params)
                    opt.tell(trial, measure(trial.params))
            points = np.random.default_rng(seed).random((200, 2))
            lower, upper = opt.bounds(points)
            truth = problem.f(points)
            assert ((lower <= truth) & (truth <= upper)).all()


@pytest.mark.statistical
def test_a_norm_far_too_small_is_caught_being_unsafe(problems):
    """The checks above can fail: SafeOpt with a tenth of the norm and nobody to challenge it does what it must not do."""
    outcomes = []
    for i, problem in enumerate(problems[:15]):
        opt = presets.safeopt(problem.domain, problem.threshold, norm=0.5, kernel=problem.kernel, points_per_axis=101)
        outcomes.append(play(problem, opt, 8, i))
    unsafe, wrong = (sum(count > 0 for count in counts) for counts in zip(*outcomes, strict=True))
    assert unsafe >= 3
    assert wrong >= 10


@pytest.mark.statistical
def test_falsification_prevents_most_of_that(problems):
    """The same wrong norm, challenged by the data: fewer unsafe runs, and a norm that moves towards the truth."""
    unsafe, final = {True: 0, False: 0}, []
    for i, problem in enumerate(problems[:15]):
        for falsify in (True, False):
            opt = presets.safeopt(
                problem.domain, problem.threshold, norm=0.5, kernel=problem.kernel, points_per_axis=101, falsify=falsify
            )
            unsafe[falsify] += play(problem, opt, 8, i)[0] > 0
            if falsify:
                final.append(opt.subdomains()[0].norms["objective"])
    assert unsafe[True] < unsafe[False]
    assert np.median(final) > 1.5


# -- any history whatsoever ---------------------------------------------------------------------------------------------

unit_points = st.floats(0.0, 1.0)
measured = st.floats(-1.5, 2.5)  # most of it contradicts any smooth function: the optimizer has to live with that


class AnyHistory(RuleBasedStateMachine):
    """Asks, answers, questions, restarts and nonsense in any order: replay agrees with the original to the last bit."""

    @initialize(
        bound=st.sampled_from([Paper(), AbbasiYadkori(), MartingaleMixture(points=7)]),
        norm=st.sampled_from([Fixed(0.5), Fixed(5.0), Scenario(m=20, gamma=0.2, kappa=0.1, centres=40)]),
        rule=st.sampled_from(["union", "continuity", "confidence"]),
        screening=st.sampled_from([None, None, Fixed(1.0)]),
        falsify=st.booleans(),
        two=st.booleans(),
        budget=st.sampled_from([10**9, 3000, 0]),
        value=st.floats(0.3, 2.0),
        x=unit_points,
    )
    def start(self, bound, norm, rule, screening, falsify, two, budget, value, x):
        self.two = two
        self.opt = SafeOptimizer(
            Box({"a": (-2.0, 6.0)}), 0.0, norm=norm, bound=bound, safe_set=rule, screening=screening, falsify=falsify,
            constraints={"c": Constraint(upper=1.0)} if two else None, cubes=LocalCubes(n=2, delta=0.2), points_per_axis=15,
            kernel=Matern(1.5, 0.2), memory_budget=budget, noise=0.05,
        )  # fmt: skip
        self.pending = None
        self.tell([-2.0 + 8.0 * x], value)

    def tell(self, what, value):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SafeboWarning)
            self.opt.tell(what, value, {"c": 0.5 - 0.3 * value if isinstance(value, float) else 0.0} if self.two else None)

    def ask(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SafeboWarning)
            return self.opt.ask()

    @rule(value=measured)
    def answer(self, value):
        trial = self.ask()
        if trial is not None:
            self.tell(trial, value)

    @rule(x=unit_points, value=measured)
    def run_something_else(self, x, value):
        self.tell([-2.0 + 8.0 * x], value)

    @rule()
    def put_a_trial_aside(self):
        self.pending = self.ask()

    @precondition(lambda self: self.pending is not None)
    @rule(value=measured)
    def answer_it_late(self, value):
        trial, self.pending = self.pending, None
        if all(sample.trial != trial.id for sample in self.opt.state.samples):
            self.tell(trial, value)

    @rule()
    def restart(self):
        self.opt = SafeOptimizer.from_json(self.opt.state.to_json())
        self.pending = None

    @rule(value=st.sampled_from([float("nan"), float("inf"), None, "1"]))
    def tell_nonsense(self, value):
        before = self.opt.state
        with pytest.raises(InvalidValueError):
            self.tell([0.0], value)
        with pytest.raises(InvalidValueError):
            self.tell([99.0], 1.0)
        assert self.opt.state is before

    @invariant()
    def replay_agrees(self):
        again = SafeOptimizer.from_json(self.opt.state.to_json())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SafeboWarning)
            assert again.ask() == self.opt.ask()
            assert again.stop_reason is self.opt.stop_reason
            assert again.best() == self.opt.best()
        assert again.state == self.opt.state

    @invariant()
    def sets_and_intervals_are_proper(self):
        trial = self.ask()
        outputs = self.opt.state.outputs
        for view in self.opt.subdomains():
            for output in outputs:
                assert (view.lower[output.name] < view.upper[output.name]).all()
            assert not ((view.maximisers | view.expanders) & ~view.safe).any()
            if trial is not None and view.cube == trial.cube:
                (index,) = np.flatnonzero((view.points == np.array(trial.x)).all(axis=1))
                assert view.safe[index]
        assert trial is None or self.opt.is_safe(trial.params)[0]
        for sample, inside in zip(self.opt.state.samples, self.opt.state.inside(), strict=True):
            assert inside == all(o.satisfied(v) for o, v in zip(outputs, sample.values, strict=True))


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(
    max_examples=15,
    stateful_step_count=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)


@given(box=boxes(dim=2), x=st.tuples(unit_points, unit_points), value=st.floats(0.1, 5.0))
@settings(max_examples=15)
def test_any_box_is_a_unit_cube_inside(box, x, value):
    """In whatever units, the trial is a point of the domain and the start keeps its place."""
    opt = SafeOptimizer(box, 0.0, norm=Fixed(3.0), cubes=LocalCubes(n=1, delta=0.3), points_per_axis=7, kernel=Matern(1.5, 0.5))
    start = box.from_unit(np.array(x))
    opt.tell(start, value)
    assert opt.state.samples[0].x == pytest.approx(x, abs=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SafeboWarning)
        trial = opt.ask()
    if trial is not None:
        point = np.array([trial.params[name] for name in box.names])
        assert (box.low <= point).all() and (point <= box.high).all()
        opt.tell(trial, value)
        assert opt.state.samples[-1].x == trial.x


@given(
    threshold=st.floats(-5.0, 5.0), shift=st.sampled_from([0.5, 1.0, 4.0]), value=st.floats(0.05, 3.0), x=unit_points
)  # fmt: skip
@settings(max_examples=15)
def test_a_higher_threshold_never_enlarges_the_safe_set(threshold, shift, value, x):
    sizes = []
    for h in (threshold - shift, threshold):
        opt = SafeOptimizer(
            Box.unit(1), h, norm=Fixed(9.0), cubes=None, points_per_axis=31, kernel=Matern(1.5, 0.3), falsify=False
        )
        opt.tell([x], threshold + value)
        sizes.append(opt.subdomains()[0].safe)
    assert not (sizes[1] & ~sizes[0]).any()


@given(
    norms=st.tuples(st.floats(0.5, 3.0), st.floats(1.0, 4.0)), x=unit_points, bound=st.sampled_from([Paper(), *BOUNDS.values()])
)
@settings(max_examples=15)
def test_a_larger_norm_is_never_less_careful(norms, x, bound):
    small, factor = norms
    views = []
    for norm in (small, small * factor):
        opt = SafeOptimizer(
            Box.unit(1),
            0.0,
            norm=Fixed(norm),
            cubes=None,
            points_per_axis=31,
            kernel=Matern(1.5, 0.3),
            bound=bound,
            falsify=False,
        )
        opt.tell([x], 0.4 * small)
        views.append(opt.subdomains()[0])
    assert not (views[1].safe & ~views[0].safe).any()
    assert (views[1].lower["objective"] <= views[0].lower["objective"] + 1e-9).all()
    assert (views[1].upper["objective"] >= views[0].upper["objective"] - 1e-9).all()


# -- import and side effects --------------------------------------------------------------------------------------------

SOURCE = str(Path(safebo.__file__).parents[1])


def python(code, **environment):
    """What a fresh interpreter prints."""
    env = {**os.environ, "PYTHONPATH": SOURCE, **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light_and_quick():
    code = """
import sys, time
begin = time.process_time()
import safebo
took = time.process_time() - begin
heavy = [m for m in ("torch", "numba", "llvmlite", "matplotlib", "gpytorch", "pandas", "scipy.stats") if m in sys.modules]
print(took, *heavy)
"""
    took, heavy = [], []
    for _ in range(3):
        first, *heavy = python(code).split()
        took.append(float(first))
    assert heavy == []
    assert min(took) < 4.0  # a second of processor time when warm


def test_import_has_no_side_effects():
    code = """
import sys, os, warnings, random, threading
import numpy as np
import scipy.linalg, scipy.ndimage, scipy.special
before = (
    np.random.get_state()[1].tolist(), random.getstate(), np.geterr(), np.get_printoptions(), list(warnings.filters),
    dict(os.environ), threading.active_count(), os.getcwd(), sys.getrecursionlimit(), sys.getswitchinterval(), list(sys.path),
)
import safebo
after = (
    np.random.get_state()[1].tolist(), random.getstate(), np.geterr(), np.get_printoptions(), list(warnings.filters),
    dict(os.environ), threading.active_count(), os.getcwd(), sys.getrecursionlimit(), sys.getswitchinterval(), list(sys.path),
)
print([i for i, (a, b) in enumerate(zip(before, after)) if a != b])
"""
    assert python(code).strip() == "[]"


def test_torch_is_left_as_it_was():
    pytest.importorskip("torch")
    code = """
import torch
state = lambda: (
    torch.get_default_dtype(), torch.get_num_threads(), torch.initial_seed(), torch.get_rng_state().tolist(),
    torch.is_grad_enabled(), torch.get_default_device(), torch.are_deterministic_algorithms_enabled(),
)
before = state()
import safebo
opt = safebo.SafeOptimizer(safebo.Box.unit(1), 0.0, norm=safebo.Scenario(m=20, gamma=0.2, kappa=0.1), points_per_axis=101)
opt.tell([0.5], 1.0)
opt.ask()
print(state() == before)
"""
    assert python(code).strip() == "True"


def test_a_run_needs_no_torch_and_prints_nothing():
    code = """
import sys
import numpy as np
before = np.random.get_state()[1].tolist()
import safebo
opt = safebo.SafeOptimizer(safebo.Box.unit(1), 0.0, norm=safebo.Scenario(m=20, gamma=0.2, kappa=0.1), points_per_axis=101)
opt.tell([0.5], 1.0)
opt.tell(opt.ask(), 1.0)
assert opt.ask() is not None
assert np.random.get_state()[1].tolist() == before
assert "torch" not in sys.modules and "matplotlib" not in sys.modules
"""
    assert python(code) == ""


def test_trials_do_not_depend_on_the_number_of_threads():
    code = """
import warnings; warnings.simplefilter("ignore")
from safebo import *
for bound in (Paper(), MartingaleMixture()):
    opt = SafeOptimizer(Box.unit(2), 0.0, norm=Scenario(m=40, gamma=0.2, kappa=0.1, centres=100), points_per_axis=40, bound=bound)
    opt.tell([0.5, 0.5], 1.0)
    for value in (0.9, 1.1, 1.0):
        trial = opt.ask()
        print(repr(trial))
        opt.tell(trial, value)
"""
    one = python(code, NUMBA_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    two = python(code, NUMBA_NUM_THREADS="2", OPENBLAS_NUM_THREADS="2")
    assert one == two and one.count("Trial(") == 6


# -- compilation --------------------------------------------------------------------------------------------------------


def test_long_compilation_is_announced_once(capsys):
    fused = pytest.importorskip("safebo.compute.fused_cpu")
    key = object()
    with fused._exclusive("a test kernel", key):
        time.sleep(1.3)
    captured = capsys.readouterr()
    assert captured.err.count("preparing a test kernel") == 1 and captured.out == ""
    with fused._exclusive("a test kernel", key):  # compiled by now: however long it takes, nothing is said
        time.sleep(1.2)
    assert capsys.readouterr().err == ""


def test_quick_compilation_is_silent(capsys):
    fused = pytest.importorskip("safebo.compute.fused_cpu")
    with fused._exclusive("a quick kernel", object()):
        pass
    time.sleep(1.2)
    assert capsys.readouterr().err == ""


def test_failed_compilation_releases_the_lock_and_is_tried_again(capsys):
    fused = pytest.importorskip("safebo.compute.fused_cpu")
    key = object()
    with pytest.raises(RuntimeError), fused._exclusive("a broken kernel", key):
        raise RuntimeError
    with fused._exclusive("a broken kernel", key):
        time.sleep(1.2)
    assert "a broken kernel" in capsys.readouterr().err
