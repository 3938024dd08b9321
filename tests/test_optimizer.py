"""The optimizer as its user sees it: ask and tell, restarts, what the sets and intervals promise, refutations, presets."""

from __future__ import annotations

import json
import pickle
import sys
import threading
import warnings
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import pytest

import safebo
from safebo import (
    RBF,
    AbbasiYadkori,
    Box,
    Constraint,
    Cube,
    Fixed,
    Hoeffding,
    LocalCubes,
    MartingaleMixture,
    Matern,
    Paper,
    SafeOptimizer,
    Scenario,
    StopReason,
    presets,
)
from safebo.domain import GlobalDomain, SampleHull
from safebo.exceptions import AlreadyToldError, InvalidValueError, JitterWarning, NormRefutedWarning, SafeboWarning
from safebo.rkhs import random_function

KERNEL = Matern(nu=1.5, lengthscale=0.2)
SMALL = Scenario(m=60, gamma=0.2, kappa=0.1, centres=100)
BOUNDS = {"paper": Paper(), "abbasi": AbbasiYadkori(), "abbasi-noise": AbbasiYadkori("noise"), "mixture": MartingaleMixture()}

pytestmark = pytest.mark.filterwarnings("ignore::safebo.exceptions.NormRefutedWarning")  # 60 scenarios are few
ignore_unsafe = pytest.mark.filterwarnings("ignore::safebo.exceptions.UnsafeMeasurementWarning")


class Bench:
    """A smooth function of the unit cube with noise, and a second output; the noise depends on the point only."""

    def __init__(self, dim=1, norm=3.0, seed=0, noise=0.01, domain=None):
        self.domain = Box.unit(dim) if domain is None else domain
        self.f = random_function(KERNEL, dim, norm, seed, 20)
        self.g = random_function(KERNEL, dim, 2.0, seed + 100, 20)
        self.noise = noise
        values = self.f(np.random.default_rng(seed).random((500, dim)))
        self.threshold = float(np.quantile(values, 0.2))
        self.start = np.random.default_rng(seed).random((500, dim))[int(np.argsort(values)[350])]
        self.dim = dim

    def _noise(self, x):
        return self.noise * np.sin(1e4 * (1.0 + np.sum(x) * np.pi))

    def at(self, x):
        x = np.asarray(x, dtype=float).reshape(-1)
        return float(self.f(x[None])[0] + self._noise(x))

    def torque(self, x):
        x = np.asarray(x, dtype=float).reshape(-1)
        return float(self.g(x[None])[0] - self._noise(x))

    def optimizer(self, multi=False, **settings):
        defaults = {
            "kernel": KERNEL, "norm": SMALL, "points_per_axis": 41 if self.dim == 1 else 9, "cubes": LocalCubes(n=2, delta=0.2),
            "safe_set": "union",
        }  # fmt: skip
        if multi:
            here = self.torque(self.start)
            defaults["constraints"] = {"torque": Constraint(threshold=here - 1.0, upper=here + 1.0)}
        settings = {"threshold": self.threshold, **defaults, **settings}
        opt = SafeOptimizer(self.domain, **settings)
        self.tell(opt, self.domain.from_unit(self.start))
        return opt

    def tell(self, opt, what):
        x = what.x if isinstance(what, safebo.Trial) else opt.domain.to_unit(opt.domain.point(what))
        opt.tell(what, self.at(x), {"torque": self.torque(x)} if len(opt.state.outputs) > 1 else None)

    def run(self, opt, steps, each=lambda opt, trial: None):
        trials = []
        for _ in range(steps):
            trial = opt.ask()
            each(opt, trial)
            if trial is None:
                break
            trials.append(trial)
            self.tell(opt, trial)
        return trials


BENCHES = {1: Bench(1), 2: Bench(2)}


def view_of(opt, cube):
    return next(v for v in opt.subdomains() if v.cube == cube)


def place(view, x):
    """Index of a point of the view's grid."""
    (index,) = np.flatnonzero((view.points == np.asarray(x)).all(axis=1))
    return index


# -- ask is pure --------------------------------------------------------------------------------------------------------


def interrogate(opt):
    points = np.random.default_rng(0).random((5, opt.domain.dim))
    opt.bounds(points), opt.mean(points), opt.is_safe(points), opt.best(), opt.safe_set(), opt.subdomains(), opt.guarantee
    opt.stop_reason, opt.refutations, opt.state.to_json(), opt.domain


@pytest.mark.parametrize("multi", [False, True], ids=["single", "multi"])
@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
def test_asking_and_looking_change_nothing(bound, multi):
    bench = BENCHES[1]
    quiet, curious = (bench.optimizer(bound=bound, multi=multi) for _ in range(2))

    def look(opt, trial):
        before = opt.state
        interrogate(opt)
        assert opt.ask() == trial and opt.ask() == opt.ask()
        assert opt.state is before

    assert bench.run(curious, 5, look) == bench.run(quiet, 5)
    assert curious.state == quiet.state


def test_looking_before_the_first_ask_of_a_step_changes_nothing():
    bench = BENCHES[1]
    quiet, curious = bench.optimizer(), bench.optimizer()
    for _ in range(4):
        interrogate(curious)
        expected, trial = quiet.ask(), curious.ask()
        assert trial == expected
        bench.tell(quiet, expected)
        bench.tell(curious, trial)
    assert curious.state.to_json() == quiet.state.to_json()


def test_returned_arrays_are_copies():
    bench = BENCHES[1]
    opt = bench.optimizer()
    trial = opt.ask()
    for array in (*opt.bounds(np.linspace(0, 1, 5)), opt.safe_set(), opt.mean([0.5]), opt.state.x(), opt.state.values()):
        array[...] = 7.0
    for view in opt.subdomains():
        view.lower["objective"][...] = 7.0
        view.safe[...] = True
        view.points[...] = 0.0
    opt.best().params["x1"] = 7.0
    bench.tell(opt, trial)
    reference = bench.optimizer()
    bench.run(reference, 1)
    assert opt.ask() == reference.ask()


def test_trial_cannot_be_used_to_smuggle_in_another_point():
    bench = BENCHES[1]
    opt = bench.optimizer()
    trial, original = opt.ask(), dict(opt.ask().params)
    try:
        trial.params["x1"] = 1.0
        opt.tell(trial, 0.5)
    except (TypeError, InvalidValueError):
        return
    assert opt.state.samples[-1].point == tuple(original.values())


def test_the_caller_keeps_its_own_arrays():
    opt = BENCHES[1].optimizer()
    point = np.array([0.3])
    opt.tell(point, 0.9)
    point[0] = 0.9
    assert opt.state.samples[-1].point == (0.3,)


def test_no_global_generator_is_touched():
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    BENCHES[1].run(BENCHES[1].optimizer(), 3)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


# -- determinism --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 2])
def test_same_seed_and_data_give_the_same_trials(dim):
    bench = BENCHES[dim]
    first, second = bench.optimizer(seed=3), bench.optimizer(seed=3)
    assert bench.run(first, 5) == bench.run(second, 5)
    assert first.state.to_json() == second.state.to_json()


@pytest.mark.parametrize("dim", [1, 2])
def test_another_seed_draws_other_functions(dim):
    norms = {BENCHES[dim].optimizer(seed=seed).ask().norm for seed in range(4)}
    assert len(norms) == 4
    assert max(norms) < 2.0 * min(norms)


def test_interleaved_optimizers_behave_as_if_alone():
    benches = [Bench(1, seed=1), Bench(2, seed=2), Bench(1, seed=3)]
    alone = [b.run(b.optimizer(seed=i), 4) for i, b in enumerate(benches)]
    together = [b.optimizer(seed=i) for i, b in enumerate(benches)]
    trials = [[], [], []]
    for _ in range(4):
        for bench, opt, found in zip(benches, together, trials, strict=True):
            found.extend(bench.run(opt, 1))
    assert trials == alone


def test_optimizers_in_threads_behave_as_if_alone():
    """Same seed and step in every thread: whatever is shared behind the scenes must not be mixed up."""
    benches = [Bench(1, seed=1), Bench(1, seed=2), Bench(2, seed=3), Bench(1, seed=4)]
    norms = [SMALL, SMALL, SMALL, Scenario(m=60, gamma=0.2, kappa=0.1, centres=300)]
    alone = [b.run(b.optimizer(norm=n), 4) for b, n in zip(benches, norms, strict=True)]
    found = [None] * len(benches)

    def work(i):
        found[i] = benches[i].run(benches[i].optimizer(norm=norms[i]), 4)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # as many switches as possible
    try:
        for _ in range(3):
            threads = [threading.Thread(target=work, args=(i,)) for i in range(len(benches))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert found == alone
    finally:
        sys.setswitchinterval(interval)


# -- restarts -----------------------------------------------------------------------------------------------------------

JOURNEYS = {
    f"{dim}d-{'multi' if multi else 'single'}-{name}": (dim, multi, {"bound": bound})
    for dim in (1, 2)
    for multi in (False, True)
    for name, bound in BOUNDS.items()
    if dim == 1 or name != "abbasi-noise"
} | {
    "1d-unfalsified": (1, False, {"falsify": False}),
    "1d-unfalsified-mixture": (1, False, {"falsify": False, "bound": MartingaleMixture(points=5)}),
    "1d-refuted": (1, False, {"norm": Fixed(0.05)}),
    "1d-refuted-mixture": (1, True, {"norm": Fixed(0.3), "bound": MartingaleMixture()}),
    "1d-global": (1, False, {"cubes": None}),
    "1d-paper-acquisition": (1, False, {"acquisition": "paper"}),
    "2d-paper-acquisition": (2, True, {"acquisition": "paper"}),
    "1d-hull": (1, False, {"cubes": SampleHull(), "norm": Hoeffding(m=1000, centres=20)}),
    "2d-hull": (2, False, {"cubes": SampleHull(), "norm": Fixed(3.0), "points_per_axis": 41}),
    "1d-continuity": (1, False, {"safe_set": "continuity"}),
    "2d-confidence": (2, True, {"safe_set": "confidence", "norm": Fixed(4.0)}),
    "1d-screening": (1, False, {"screening": Fixed(1.0)}),
    "1d-screening-refuted": (1, False, {"screening": Fixed(0.2), "norm": Fixed(0.2)}),
    "2d-screening-mixture": (2, True, {"screening": Fixed(1.0), "bound": MartingaleMixture()}),
    "1d-no-memory": (1, False, {"memory_budget": 0}),
    "2d-little-memory": (2, False, {"memory_budget": 5000}),
    "2d-ard": (2, False, {"kernel": RBF((0.2, 0.4), outputscale=1.7), "points_per_axis": (7, 11)}),
}


@pytest.mark.parametrize(("dim", "multi", "settings"), JOURNEYS.values(), ids=JOURNEYS)
@ignore_unsafe
def test_json_round_trip_at_every_step(dim, multi, settings):
    bench = BENCHES[dim]
    opt = bench.optimizer(multi=multi, **settings)
    points = bench.domain.from_unit(np.random.default_rng(1).random((4, dim)))

    def restart(opt, trial):
        text = opt.state.to_json()
        again = SafeOptimizer.from_json(text)
        assert again.state == opt.state
        assert again.state.to_json() == text
        assert again.ask() == trial
        assert again.stop_reason is opt.stop_reason
        np.testing.assert_array_equal(again.bounds(points), opt.bounds(points))

    trials = bench.run(opt, 4, restart)
    assert trials  # the journey went somewhere
    json.loads(opt.state.to_json())  # plain JSON


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
def test_a_run_with_a_restart_before_every_tell_is_the_same_run(bound):
    bench = BENCHES[1]
    expected = bench.run(bench.optimizer(bound=bound), 5)
    opt, trials = bench.optimizer(bound=bound), []
    for _ in range(5):
        trial = opt.ask()
        trials.append(trial)
        opt = SafeOptimizer.from_json(opt.state.to_json())
        bench.tell(opt, trial)  # issued before the restart
        opt = SafeOptimizer.from_json(opt.state.to_json())
    assert trials == expected


def test_trial_from_before_a_restart_after_an_identical_start():
    """The same state elsewhere, a backup machine say, issues the same trial and takes its measurement."""
    bench = BENCHES[1]
    trial = bench.optimizer().ask()
    other = bench.optimizer()
    bench.tell(other, trial)
    assert other.state.samples[-1].trial == trial.id


def test_state_holds_no_pickle_and_no_secrets_of_the_process():
    opt = BENCHES[1].optimizer()
    BENCHES[1].run(opt, 2)
    content = json.loads(opt.state.to_json())
    assert set(content) == {"safebo", "settings", "samples", "records", "aborts"}
    assert [len(s) for s in content["samples"]] == [4, 4, 4]


def test_late_trial_is_accepted_after_another_measurement():
    bench = BENCHES[1]
    opt = bench.optimizer()
    late = opt.ask()
    bench.tell(opt, bench.domain.from_unit(np.clip(bench.start + 0.01, 0.0, 1.0)))
    early = opt.ask()
    assert early.id != late.id
    bench.tell(opt, late)
    bench.tell(opt, early)  # late by now as well
    assert [s.trial for s in opt.state.samples] == [None, None, late.id, early.id]
    assert opt.ask() == SafeOptimizer.from_json(opt.state.to_json()).ask()
    trial = opt.ask()
    assert trial is not None
    bench.tell(opt, trial)
    assert opt.state.step == 5


def test_telling_parameters_instead_of_the_trial_is_a_measurement_too():
    bench = BENCHES[1]
    opt = bench.optimizer()
    trial = opt.ask()
    opt.tell(trial.params, bench.at(trial.x))
    assert opt.state.samples[-1].trial is None
    assert opt.state.samples[-1].x == pytest.approx(trial.x)
    assert opt.ask() is not None


# -- memory -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
@pytest.mark.parametrize(("dim", "multi"), [(1, False), (2, True)], ids=["1d", "2d-multi"])
@pytest.mark.parametrize("budget", [0, 6000])
def test_memory_budget_does_not_change_a_bit(bound, dim, multi, budget):
    bench = BENCHES[dim]
    rich, poor = bench.optimizer(multi=multi, bound=bound), bench.optimizer(multi=multi, bound=bound, memory_budget=budget)
    assert bench.run(poor, 4) == bench.run(rich, 4)
    assert (poor.state.samples, poor.state.records) == (rich.state.samples, rich.state.records)
    assert poor.ask() == rich.ask() and poor.best() == rich.best()


@pytest.mark.parametrize("bound", [Paper(), AbbasiYadkori()], ids=["paper", "abbasi"])
@pytest.mark.parametrize(("kernel", "noise"), [(RBF(0.5), 1e-8), (Matern(0.5, 0.3), 1e-9), (Matern(1.5, 0.3), 1e-8)], ids=repr)
def test_memory_budget_does_not_change_a_bit_at_the_edge_of_double_precision(bound, kernel, noise):
    """Noise so small that variances vanish and the kernel matrix needs a jitter in the middle of the run."""
    bench = BENCHES[1]
    found = []
    for budget in (10**9, 0):
        opt = bench.optimizer(
            bound=bound, memory_budget=budget, kernel=kernel, noise=noise, min_width=1e-9, norm=Fixed(50.0), falsify=False
        )
        trials = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JitterWarning)
            for step in range(6):
                trials += bench.run(opt, 1)
                if step == 2:  # the same place again and again
                    bench.tell(opt, bench.start)
                    bench.tell(opt, bench.start)
            found.append((trials, opt.best(), [v.safe.tolist() for v in opt.subdomains()]))
    assert found[0] == found[1]


# -- what norms, intervals and sets promise -----------------------------------------------------------------------------

PROMISES = {
    f"{dim}d-{name}-{rule}": (dim, multi, bound, rule)
    for dim, multi, rule in ((1, False, "union"), (1, True, "continuity"), (2, False, "confidence"), (2, True, "union"))
    for name, bound in BOUNDS.items()
    if name != "abbasi-noise"
}


@pytest.mark.parametrize(("dim", "multi", "bound", "rule"), PROMISES.values(), ids=PROMISES)
def test_promises_along_a_run(dim, multi, bound, rule):
    bench = BENCHES[dim]
    opt = bench.optimizer(multi=multi, bound=bound, safe_set=rule)
    names = [o.name for o in opt.state.outputs]
    previous = {}

    def check(opt, trial):
        views = {v.cube: v for v in opt.subdomains()}
        refuted = {(r.cube, r.output) for r in opt.refutations}
        restarted = {cube for cube, _ in refuted}
        for cube, view in views.items():
            assert not (view.maximisers & ~view.safe).any()
            assert not (view.expanders & ~view.safe).any()
            for name in names:
                assert (view.lower[name] < view.upper[name]).all()
            old = previous.get(cube)
            for name in names if old is not None else ():
                if (cube, name) not in refuted:
                    assert view.norms[name] <= old.norms[name]
                    assert (view.lower[name] >= old.lower[name]).all()
                    assert (view.upper[name] <= old.upper[name]).all()
            if old is not None and cube not in restarted:
                assert not (old.safe & ~view.safe).any()
        assert set(previous) <= set(views)
        previous.update(views)
        if trial is None:
            return
        view = views[trial.cube]
        index = place(view, trial.x)
        assert view.safe[index] and (view.maximisers | view.expanders)[index]
        assert opt.is_safe(trial.params).all()
        assert trial.norms == view.norms and trial.norm == view.norms["objective"]
        for name, (lower, upper) in trial.bounds.items():
            assert (lower, upper) == (view.lower[name][index], view.upper[name][index])
        assert (trial.lower, trial.upper) == trial.bounds["objective"]
        assert any(u - low > o.min_width for o, (low, u) in zip(opt.state.outputs, trial.bounds.values(), strict=True))
        if rule == "confidence":
            for output, (lower, upper) in zip(opt.state.outputs, trial.bounds.values(), strict=True):
                assert output.lower_limit is None or lower >= output.lower_limit
                assert output.upper_limit is None or upper <= output.upper_limit

    bench.run(opt, 5, check)


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
def test_bounds_of_the_global_domain_are_nested(bound):
    bench = BENCHES[1]
    opt = bench.optimizer(bound=bound, cubes=None, norm=Fixed(3.5))
    mesh = np.linspace(0.0, 1.0, 97)
    last = opt.bounds(mesh)
    for _ in range(6):
        bench.run(opt, 1)
        assert not opt.refutations
        lower, upper = opt.bounds(mesh)
        assert (lower >= last[0]).all() and (upper <= last[1]).all() and (lower < upper).all()
        last = lower, upper


@pytest.mark.parametrize("dim", [1, 2])
def test_safe_set_and_is_safe_agree(dim):
    bench = BENCHES[dim]
    opt = bench.optimizer(multi=True)
    bench.run(opt, 3)
    safe = opt.safe_set()
    assert len(safe) and len(np.unique(safe, axis=0)) == len(safe)
    assert opt.is_safe(safe).all()
    for view in opt.subdomains():
        outside = ~opt.is_safe(view.points)
        assert not (view.safe & outside).any()
    trial = bench.optimizer().ask()
    opt = bench.optimizer()
    assert (np.abs(opt.safe_set() - bench.domain.point(trial.params)) < 1e-12).all(axis=1).any()


@pytest.mark.parametrize("multi", [False, True], ids=["single", "multi"])
def test_best_has_the_largest_certified_lower_bound(multi):
    bench = BENCHES[1]
    opt = bench.optimizer(multi=multi)

    def check(opt, trial):
        best = opt.best()
        for view in opt.subdomains():
            if view.safe.any():
                assert best.lower >= view.lower["objective"][view.safe].max()
        assert best.lower <= best.mean <= best.upper
        assert opt.is_safe(best.params).all()
        low, high = opt.bounds(best.params)
        assert low[0] >= best.lower - 1e-9 and high[0] <= best.upper + 1e-9

    bench.run(opt, 5, check)
    assert opt.best().lower > opt.state.outputs[0].lower_limit


@pytest.mark.parametrize("bound", [Paper(), MartingaleMixture()], ids=["paper", "mixture"])
def test_intervals_hold_what_was_measured(bound):
    """True norm told, no noise beyond the stated level: every interval holds the function at the measured points."""
    bench = BENCHES[1]
    opt = bench.optimizer(bound=bound, norm=Fixed(3.0))
    bench.run(opt, 6)
    lower, upper = opt.bounds(opt.state.x())
    truth = bench.f(opt.state.x())
    assert (lower <= truth).all() and (truth <= upper).all()


def test_bounds_of_every_output():
    bench = BENCHES[1]
    opt = bench.optimizer(multi=True, norm=Fixed(3.0))
    bench.run(opt, 4)
    mesh = np.linspace(0.0, 1.0, 50)
    for name, f in (("objective", bench.f), ("torque", bench.g)):
        lower, upper = opt.bounds(mesh, output=name)
        assert ((lower <= f(mesh[:, None])) & (f(mesh[:, None]) <= upper)).all()
        assert (np.abs(opt.mean(mesh, output=name)) < 5.0).all()
    np.testing.assert_array_equal(opt.bounds(mesh), opt.bounds(mesh, output="objective"))
    assert not np.array_equal(opt.bounds(mesh), opt.bounds(mesh, output="torque"))


# -- domains ------------------------------------------------------------------------------------------------------------

AWKWARD = Box({"kp": (-0.3, 7.1), "kd": (1e-3, 0.7)})


def test_named_parameters_in_any_form():
    opts = [SafeOptimizer(AWKWARD, 0.0, norm=SMALL, points_per_axis=9, seed=1) for _ in range(4)]
    for opt, point in zip(opts, ({"kp": 1.0, "kd": 0.2}, {"kd": 0.2, "kp": 1.0}, [1.0, 0.2], np.array([1.0, 0.2])), strict=True):
        opt.tell(point, 0.8)
    assert len({opt.state.to_json() for opt in opts}) == 1
    assert list(opts[1].ask().params) == ["kp", "kd"]


@pytest.mark.parametrize(
    "bounds",
    [(-4.0, 4.0), (0.0, 5.0), (-0.3, 7.1), (1e6, 1e6 + 3.0), (1e-9, 3e-9), (-1e8, 1e-3)],
    ids=str,
)
def test_trials_stay_in_the_domain_and_are_safe_in_user_units(bounds):
    low, high = bounds
    bench = Bench(1, domain=Box({"a": bounds}))
    opt = bench.optimizer(cubes=LocalCubes(n=3, delta=0.1))

    def check(opt, trial):
        assert low <= trial.params["a"] <= high
        assert opt.is_safe(trial.params).all()
        assert opt.is_safe([trial.params["a"]]).all()
        assert bench.domain.to_unit(bench.domain.point(trial.params)) == pytest.approx(trial.x, abs=1e-7)

    assert len(bench.run(opt, 8, check)) == 8
    assert all(s.point == tuple(opt.domain.from_unit(np.array(s.x))) for s in opt.state.samples[1:])


@pytest.mark.parametrize("bounds", [(1e9, 1e9 + 1.0), (-1e-300, 1e-300), (-1e90, 1e90)], ids=str)
def test_states_of_extreme_domains_can_be_loaded_again(bounds):
    """Where the units of the user resolve the domain poorly, a sample and its place in the unit cube agree only roughly."""
    bench = Bench(1, domain=Box({"a": bounds}))
    opt = bench.optimizer()
    bench.run(opt, 4, lambda opt, trial: SafeOptimizer.from_json(opt.state.to_json()).ask() == trial or pytest.fail("differs"))
    assert opt.state.step == 5


@pytest.mark.parametrize("bounds", [(1e6, 1e6 + 3.0), (1e9, 1e9 + 1.0), (1e12, 1e12 + 1.0), (1e15, 1e15 + 8.0)], ids=str)
def test_rounding_never_certifies_more(bounds):
    """A range far from zero has few numbers in it. It may be refused; it must not make more points safe than they are."""
    try:
        box = Box({"a": bounds})
    except InvalidValueError:
        return
    unit, far = Bench(1), Bench(1, domain=box)
    unit.start = far.start = np.array([0.75])
    settings = {"cubes": LocalCubes(n=1, delta=0.1), "norm": Fixed(3.0)}
    mesh = np.linspace(0.0, 1.0, 65)[:, None]
    there = box.from_unit(mesh)
    expected, found = unit.optimizer(**settings), far.optimizer(**settings)
    nearby = [expected.is_safe(np.clip(box.to_unit(there) + step, 0.0, 1.0)) for step in (-1e-3, 0.0, 1e-3)]
    assert not (found.is_safe(there) & ~np.any(nearby, axis=0)).any()
    trial = found.ask()
    assert box.to_unit(box.point(trial.params)) == pytest.approx(trial.x, abs=1e-3)  # what is certified is what is run


@pytest.mark.parametrize("box", [Box({"a": (-4.0, 4.0)}), Box({"a": (0.0, 1024.0)})], ids=str)
def test_a_rescaled_domain_gives_the_same_run(box):
    bench = BENCHES[1]
    scaled = Bench(1, domain=box)
    scaled.start = bench.start = np.array([0.625])
    unit, other = bench.optimizer(), scaled.optimizer()
    first, second = bench.run(unit, 5), scaled.run(other, 5)
    assert [t.x for t in first] == [t.x for t in second]
    assert [(t.lower, t.upper, t.norm, t.cube) for t in first] == [(t.lower, t.upper, t.norm, t.cube) for t in second]
    low, high = box.low[0], box.high[0]
    assert [t.params["a"] for t in second] == [low + t.x[0] * (high - low) for t in first]
    np.testing.assert_array_equal(unit.bounds([0.25, 0.5]), other.bounds(box.from_unit(np.array([[0.25], [0.5]]))))


def test_lengthscales_belong_to_their_axes():
    opt = SafeOptimizer(AWKWARD, 0.0, kernel=Matern(1.5, (1.0, 0.05)), norm=Fixed(1.0), cubes=None, points_per_axis=21)
    opt.tell({"kp": 3.4, "kd": 0.35}, 0.8)
    width = np.subtract(*opt.bounds([[4.0, 0.35], [3.4, 0.41]])[::-1])  # a tenth of the range along either axis
    assert width[0] < 0.5 * width[1]


# -- stopping -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cubes", [None, LocalCubes(n=1, delta=0.4)], ids=["global", "local"])
def test_converged(cubes):
    bench = BENCHES[1]
    opt = bench.optimizer(norm=Fixed(3.0), min_width=0.5, cubes=cubes, bound=Paper())
    trials = bench.run(opt, 60)
    assert opt.ask() is None and 0 < len(trials) < 60
    assert opt.stop_reason is StopReason.CONVERGED
    assert "min_width" in opt.stop_reason.advice
    for view in opt.subdomains():  # known to within min_width given what all sub-domains know together
        lower, upper = opt.bounds(view.points[view.maximisers | view.expanders])
        assert (upper - lower)[upper >= opt.best().lower].max(initial=0.0) <= 0.5
    assert SafeOptimizer.from_json(opt.state.to_json()).stop_reason is StopReason.CONVERGED
    bench.tell(opt, bench.start)  # further data are welcome
    assert opt.stop_reason is StopReason.CONVERGED


def test_stop_reason_is_none_while_there_is_a_trial():
    opt = BENCHES[1].optimizer()
    assert opt.ask() is not None and opt.stop_reason is None


def test_converged_at_once_with_a_large_min_width():
    opt = BENCHES[1].optimizer(min_width=1e6)
    assert opt.ask() is None and opt.stop_reason is StopReason.CONVERGED
    assert opt.best().lower <= opt.best().upper


def test_empty_safe_set():
    bench = BENCHES[1]
    opt = bench.optimizer(norm=Fixed(1e6), noise=0.5)
    assert opt.ask() is None and opt.stop_reason is StopReason.EMPTY_SAFE_SET
    assert "threshold" in opt.stop_reason.advice


def test_no_candidates_on_a_grid_that_misses_the_good_part():
    opt = SafeOptimizer(Box.unit(1), 0.0, kernel=KERNEL, norm=Fixed(6.0), cubes=None, points_per_axis=2)
    for x, y in ((0.0, 1.0), (1.0, 1.0), (0.5, 5.0)):
        opt.tell([x], y)
    assert opt.ask() is None
    assert opt.stop_reason is StopReason.NO_CANDIDATES
    assert "points_per_axis" in opt.stop_reason.advice
    assert opt.best().params == {"x1": 0.5} and opt.best().lower > 4.0


@pytest.mark.parametrize("reason", StopReason)
def test_every_stop_reason_gives_advice(reason):
    assert len(reason.advice) > 40 and reason.advice.endswith(".")


# -- guarantees ---------------------------------------------------------------------------------------------------------


def test_guarantee_of_one_limit():
    opt = SafeOptimizer(Box.unit(1), 0.0, norm=Scenario(m=1000, gamma=0.1, kappa=0.01), delta=0.01)
    assert opt.guarantee.probability == pytest.approx(0.9 * 0.99)
    assert opt.guarantee.confidence == pytest.approx(0.99)
    assert opt.guarantee.shares == {"objective": (0.1, 0.01, 0.01)}
    opt.tell([0.5], 0.8)
    assert opt.ask().confidence == opt.guarantee.probability


def test_guarantee_of_a_guessed_norm():
    opt = presets.safeopt(Box.unit(1), 0.0, norm=5.0, delta=0.05)
    assert opt.guarantee.probability == pytest.approx(0.95) and opt.guarantee.confidence == 1.0


def test_guarantee_of_several_limits():
    norm = Scenario(m=1000, gamma=0.02, kappa=0.01)
    opt = SafeOptimizer(
        Box.unit(1),
        0.0,
        norm=norm,
        delta=0.03,
        constraints={"a": Constraint(threshold=0.0), "b": Constraint(upper=1.0, norm=Scenario(gamma=0.1, kappa=0.02))},
    )
    shares = opt.guarantee.shares
    assert {name: share[1] for name, share in shares.items()} == pytest.approx({"objective": 0.01, "a": 0.01, "b": 0.01})
    failure = 2 * (1 - 0.98 * 0.99) + (1 - 0.9 * 0.99)
    assert opt.guarantee.probability == pytest.approx(1.0 - failure)
    assert opt.guarantee.confidence == pytest.approx(1.0 - 0.04)


def test_delta_shares():
    constraints = {"a": Constraint(threshold=0.0, delta=0.004), "b": Constraint(threshold=0.0), "c": Constraint(upper=0.0)}
    opt = SafeOptimizer(Box.unit(1), 0.0, norm=Fixed(1.0), delta=0.01, constraints=constraints)
    deltas = {o.name: o.delta for o in opt.state.outputs}
    assert deltas == pytest.approx({"objective": 0.002, "a": 0.004, "b": 0.002, "c": 0.002})
    assert sum(deltas.values()) == pytest.approx(0.01)
    free = SafeOptimizer(Box.unit(1), None, norm=Fixed(1.0), delta=0.01, constraints={"b": Constraint(threshold=0.0)})
    assert {o.name: o.delta for o in free.state.outputs if o.is_limit} == {"b": 0.01}
    assert set(free.guarantee.shares) == {"b"}
    assert free.guarantee.probability == pytest.approx(0.99)


def test_guarantee_never_falls_below_zero():
    many = {f"c{i}": Constraint(threshold=0.0) for i in range(30)}
    opt = SafeOptimizer(Box.unit(1), 0.0, norm=Scenario(m=60, gamma=0.2, kappa=0.1), constraints=many)
    assert opt.guarantee.probability == 0.0 and opt.guarantee.confidence == 0.0


# -- several outputs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["union", "continuity", "confidence"])
def test_safe_means_inside_every_limit(rule):
    bench = BENCHES[1]
    opt = bench.optimizer(multi=True, safe_set=rule, norm=Fixed(3.0))
    limits = {o.name: (o.lower_limit, o.upper_limit) for o in opt.state.outputs}

    def check(opt, trial):
        for view in opt.subdomains():
            f, g = bench.f(view.points[view.safe]), bench.g(view.points[view.safe])
            assert (f >= limits["objective"][0]).all()
            assert (g >= limits["torque"][0]).all() and (g <= limits["torque"][1]).all()

    trials = bench.run(opt, 8, check)
    assert len(trials) == 8 and opt.state.inside().all()


def test_an_upper_limit_mirrors_a_lower_one():
    """g <= u for g is -g >= -u for -g: the same run."""
    bench = BENCHES[1]
    h = bench.torque(bench.start) - 0.7
    common = {"kernel": KERNEL, "norm": Fixed(3.0), "points_per_axis": 41, "cubes": LocalCubes(n=2, delta=0.2)}
    below = SafeOptimizer(Box.unit(1), None, constraints={"g": Constraint(threshold=h)}, **common)
    above = SafeOptimizer(Box.unit(1), None, constraints={"g": Constraint(upper=-h)}, **common)
    below.tell(bench.start, bench.at(bench.start), {"g": bench.torque(bench.start)})
    above.tell(bench.start, bench.at(bench.start), {"g": -bench.torque(bench.start)})
    for _ in range(5):
        one, other = below.ask(), above.ask()
        assert one.x == other.x and (one.lower, one.upper) == (other.lower, other.upper)
        assert one.bounds["g"] == pytest.approx(tuple(-v for v in reversed(other.bounds["g"])))
        below.tell(one, bench.at(one.x), {"g": bench.torque(one.x)})
        above.tell(other, bench.at(other.x), {"g": -bench.torque(other.x)})


@pytest.mark.filterwarnings("ignore::safebo.exceptions.ScaleWarning")
def test_objective_without_threshold_is_no_argument_about_safety():
    bench = BENCHES[1]
    here = bench.torque(bench.start)
    views = []
    for value in (-50.0, 0.0, 50.0):  # no complaint about any of them
        opt = SafeOptimizer(
            Box.unit(1), None, kernel=KERNEL, norm=Fixed(100.0), points_per_axis=41, cubes=None,
            constraints={"torque": Constraint(threshold=here - 1.0, norm=Fixed(3.0))},
        )  # fmt: skip
        opt.tell(bench.start, value, {"torque": here})
        assert opt.is_safe(bench.start).all() and opt.ask() is not None
        views.append(opt.subdomains()[0].safe.tolist())
    assert views[0] == views[1] == views[2] and any(views[0])


def test_constraint_settings_are_its_own():
    opt = SafeOptimizer(
        Box.unit(1), 0.0, kernel=KERNEL, norm=SMALL, noise=0.02, min_width=0.2, bound=Paper(),
        constraints={
            "plain": Constraint(threshold=0.0),
            "own": Constraint(0.0, RBF(0.3), 0.5, Fixed(2.0), 9.0, MartingaleMixture(), 0.001, 0.7),
        },
    )  # fmt: skip
    _, plain, own = opt.state.outputs
    assert (plain.kernel, plain.noise, plain.norm, plain.bound, plain.min_width) == (KERNEL, 0.02, SMALL, Paper(), 0.2)
    assert (own.kernel, own.noise, own.norm, own.bound) == (RBF(0.3), 0.5, Fixed(2.0), MartingaleMixture())
    assert (own.lower_limit, own.upper_limit, own.delta, own.min_width) == (0.0, 9.0, 0.001, 0.7)


def test_tighter_limit_gives_a_smaller_safe_set():
    bench = BENCHES[1]
    here = bench.torque(bench.start)
    sizes = []
    for slack in (0.3, 0.6, 3.0):
        opt = bench.optimizer(norm=Fixed(3.0), cubes=None, multi=True, constraints={"torque": Constraint(threshold=here - slack)})
        sizes.append(int(opt.subdomains()[0].safe.sum()))
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]


# -- parts made by the user ---------------------------------------------------------------------------------------------


@safebo.register
@dataclass(frozen=True)
class TwiceTheInterpolant:
    """A norm estimator of a user."""

    factor: float = 2.0
    gamma: float = 0.05
    kappa: float = 0.01

    def estimate(self, query):
        return self.factor * query.posterior.mean_norm + 1.0


@safebo.register
@dataclass(frozen=True)
class Halves:
    """A locality of a user."""

    def cubes(self, x):
        whole = Cube.whole(x.shape[1])
        return [whole, *(Cube((low,), (low + 0.5,)) for low in (0.0, 0.5))]


@dataclass(frozen=True)
class Unregistered:
    gamma: float = 0.0
    kappa: float = 0.0

    def estimate(self, query):
        return 4.0


@dataclass(frozen=True)
class Broken:
    value: float
    gamma: float = 0.0
    kappa: float = 0.0

    def estimate(self, query):
        return self.value


def test_parts_of_the_user_work_and_travel():
    bench = BENCHES[1]
    opt = bench.optimizer(norm=TwiceTheInterpolant(factor=1.5), cubes=Halves())
    assert opt.guarantee.probability == pytest.approx(0.95 * 0.99)

    def restart(opt, trial):
        again = SafeOptimizer.from_json(opt.state.to_json())
        assert again.state == opt.state and again.ask() == trial
        assert again.state.outputs[0].norm == TwiceTheInterpolant(factor=1.5)
        assert again.state.settings.locality == Halves()
        assert 2 <= len(opt.subdomains()) <= 3  # a box without samples knows nothing and is left out

    assert len(bench.run(opt, 4, restart)) == 4


def test_unregistered_parts_work_but_say_how_to_travel():
    opt = BENCHES[1].optimizer(norm=Unregistered())
    assert opt.ask().norm == 4.0
    with pytest.raises(InvalidValueError, match=r"Unregistered.*safebo\.register"):
        opt.state.to_json()


def test_only_dataclasses_are_registered():
    with pytest.raises(InvalidValueError, match="dataclass"):
        safebo.register(dict)


def test_registering_does_not_replace_a_known_type(monkeypatch):
    """A class of the user that happens to be called Fixed must not take over stored states."""
    monkeypatch.setattr(safebo.state, "_TYPES", dict(safebo.state._TYPES))
    namesake = dataclass(frozen=True)(type("Fixed", (), {"__annotations__": {"value": float}}))
    with pytest.raises(InvalidValueError, match="Fixed"):
        safebo.register(namesake)
    assert safebo.register(TwiceTheInterpolant) is TwiceTheInterpolant  # twice the same is harmless


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, -1.0])
def test_norm_estimator_that_returns_nonsense(value):
    opt = BENCHES[1].optimizer(norm=Broken(value))
    before = opt.state
    with pytest.raises(InvalidValueError, match=rf"Broken.*returned the norm {value!r}"):
        opt.ask()
    assert opt.state is before


# -- screening ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("screening", [Fixed(1.0), Scenario(m=30, gamma=0.2, kappa=0.1, centres=50), Fixed(50.0)], ids=repr)
@pytest.mark.parametrize("multi", [False, True], ids=["single", "multi"])
def test_screened_trials_are_certified_with_the_norm(screening, multi):
    bench = BENCHES[1]
    opt = bench.optimizer(multi=multi, screening=screening)
    plain = bench.optimizer(multi=multi)
    lowest = {}  # the smallest certified estimate of every cube, from the records

    def check(opt, trial):
        if trial is None:
            return
        view = view_of(opt, trial.cube)
        assert view.safe[place(view, trial.x)] and opt.is_safe(trial.params).all()
        assert trial.norms == view.norms

    first = opt.ask()
    reference = view_of(plain, first.cube)  # the same cube, certified without any screening
    assert reference.norms == dict(first.norms)
    assert reference.safe[place(reference, first.x)]
    trials = bench.run(opt, 6, check)
    assert len(trials) == 6
    cubes, raised = opt.state.settings.locality, set()
    for record, trial in zip(opt.state.records, trials, strict=True):
        order = cubes.cubes(opt.state.x()[: record.step])
        for position, estimates in record.estimates:
            known = lowest.get(order[position], (np.inf,) * len(estimates))
            lowest[order[position]] = tuple(map(min, known, estimates))
        raised |= {r.cube for r in trial.refutations}  # a refuted norm stays raised
        if trial.cube not in raised:
            assert tuple(trial.norms.values()) == lowest[trial.cube]  # never a norm that the estimator did not give


def test_screening_with_the_norm_itself_finds_the_same_first_trial():
    bench = BENCHES[1]
    settings = {"norm": SMALL, "falsify": False, "acquisition": "paper"}  # what screening ranks by
    screened, plain = bench.optimizer(screening=SMALL, **settings), bench.optimizer(**settings)
    assert replace(screened.ask(), refutations=()) == replace(plain.ask(), refutations=())
    bench.run(screened, 8)
    bench.run(plain, 8)
    assert screened.state.inside().all()
    assert screened.best().lower > screened.state.samples[0].values[0] - 1.0


def test_screening_with_a_hopeless_norm_does_not_end_the_run():
    """A screening norm under which nothing is safe ranks badly; what can be certified is still proposed."""
    bench = BENCHES[1]
    opt = bench.optimizer(screening=Fixed(1e6))
    assert len(bench.run(opt, 4)) == 4 and opt.state.inside().all()


@pytest.mark.parametrize("screening", [Fixed(1.0), SMALL], ids=["guessed", "learned"])
def test_everything_can_be_asked_under_screening(screening):
    bench = BENCHES[1]
    opt = bench.optimizer(screening=screening)
    mesh = np.linspace(0.0, 1.0, 11)
    for _ in range(3):
        lower, upper = opt.bounds(mesh)
        assert (lower < upper).all()
        assert np.isfinite(opt.mean(mesh)).all()
        assert opt.is_safe(opt.safe_set()).all()
        assert opt.best().lower >= opt.state.outputs[0].lower_limit
        bench.run(opt, 1)


# -- refuted norms ------------------------------------------------------------------------------------------------------

ROUGH = Bench(1, norm=5.0, seed=4)


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
@pytest.mark.parametrize("cubes", [None, LocalCubes(n=2, delta=0.2)], ids=["global", "local"])
def test_refuted_norm_is_raised_and_reported(bound, cubes):
    opt = ROUGH.optimizer(norm=Fixed(0.05), bound=bound, cubes=cubes, refutation_margin=1.5)
    with pytest.warns(NormRefutedWarning, match="from 0.05 to"):
        trial = opt.ask()
    assert trial is not None and trial.refutations == opt.refutations != ()
    for event in trial.refutations:
        assert (event.step, event.output) == (1, "objective")
        assert 0.05 <= event.norm < event.raised_to
        assert event.reason in ("norm", "interval")
        if event.reason == "norm":
            assert event.lower_bound > event.norm and event.raised_to == pytest.approx(1.5 * event.lower_bound)
    assert {event.cube for event in trial.refutations} <= {view.cube for view in opt.subdomains()}
    last = {event.cube: event.raised_to for event in trial.refutations}
    for view in opt.subdomains():
        assert view.norms["objective"] == last.get(view.cube, 0.05)
        assert (view.upper["objective"] > view.lower["objective"]).all()


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
@pytest.mark.parametrize("falsify", [True, False], ids=["falsify", "unchallenged"])
@pytest.mark.parametrize("cubes", [None, LocalCubes(n=2, delta=0.2)], ids=["global", "local"])
def test_intervals_stay_proper_however_wrong_the_norm(bound, falsify, cubes):
    """Samples all over the domain, far apart and close together, with a norm a hundred times too small."""
    opt = ROUGH.optimizer(norm=Fixed(0.05), bound=bound, falsify=falsify, cubes=cubes)
    rng = np.random.default_rng(0)
    events, norms = [], {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SafeboWarning)
        for x in (*rng.random(4), 0.31, 0.3101, *rng.random(2)):
            trial = opt.ask()
            events += opt.refutations
            if trial is not None:
                ROUGH.tell(opt, trial)
            ROUGH.tell(opt, [x])
            for view in opt.subdomains():
                assert (view.upper["objective"] > view.lower["objective"]).all()
                assert np.isfinite(view.norms["objective"])
                norms[view.cube] = view.norms["objective"]
            lower, upper = opt.bounds(np.linspace(0.0, 1.0, 33))
            assert (lower < upper).all()
    slack = isinstance(bound, AbbasiYadkori) and not falsify  # so wide that nothing contradicts it
    assert slack or events or opt.refutations
    whole = norms[Cube.whole(1)]
    if falsify:
        assert whole > 0.5  # most of the way from 0.05 to 5
    if not falsify and not isinstance(bound, MartingaleMixture):
        assert whole == 0.05  # left as published, only the intersection restarts
        assert all((e.reason, e.raised_to) == ("interval", e.norm) for e in events)


def test_raised_norm_is_kept():
    opt = ROUGH.optimizer(norm=Fixed(0.05), cubes=None)
    last = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NormRefutedWarning)
        for _ in range(6):
            trial = opt.ask()
            assert trial.norm >= last
            last = trial.norm
            ROUGH.tell(opt, trial)


@pytest.mark.filterwarnings("ignore::safebo.exceptions.ScaleWarning")
def test_what_refutes_a_cube_refutes_the_cubes_around_it():
    opt = ROUGH.optimizer(norm=Fixed(0.05), cubes=LocalCubes(n=4, delta=0.2), threshold=-10.0)
    for x in (0.3, 0.35, 0.7):
        ROUGH.tell(opt, [x])
    with pytest.warns(NormRefutedWarning):
        opt.ask()
    views = opt.subdomains()
    for outer in views:
        for inner in views:
            if outer.cube.encloses(inner.cube):
                assert outer.norms["objective"] >= inner.norms["objective"] - 1e-12


def test_true_norm_is_not_refuted():
    bench = Bench(1, norm=3.0, seed=7)
    opt = bench.optimizer(norm=Fixed(3.0))
    bench.run(opt, 10, lambda opt, trial: None)
    assert opt.refutations == ()


def test_warning_is_issued_once_per_step_and_names_the_caller():
    opt = ROUGH.optimizer(norm=Fixed(0.05))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opt.ask()
        opt.ask()
        opt.bounds([0.5])
        opt.best()
    assert [w.category for w in caught] == [NormRefutedWarning]
    assert caught[0].filename == __file__


# -- trials as objects --------------------------------------------------------------------------------------------------


def test_trial_goes_where_experiments_are_run():
    """To JSON, to another process, into sets and keyword arguments."""
    bench = BENCHES[1]
    opt = bench.optimizer()
    trial = opt.ask()
    assert {trial: 1}[opt.ask()] == 1
    assert (lambda x1: x1)(**trial.params) == trial.params["x1"]
    assert json.loads(json.dumps(dict(trial.params))) == dict(trial.params)
    assert trial.id in repr(trial)


def test_params_are_a_dict():
    trial = BENCHES[1].optimizer().ask()
    assert isinstance(trial.params, dict)
    assert json.loads(json.dumps(trial.params)) == trial.params


@pytest.mark.parametrize("copy", [lambda t: pickle.loads(pickle.dumps(t)), deepcopy], ids=["pickle", "deepcopy"])
def test_trial_can_be_sent_to_another_process_and_back(copy):
    bench = BENCHES[1]
    opt = bench.optimizer()
    back = copy(opt.ask())
    assert back == opt.ask()
    bench.tell(opt, back)


# -- presets ------------------------------------------------------------------------------------------------------------


def test_algorithm_4():
    opt = presets.algorithm_4(Box.unit(2), 0.1)
    (output,) = opt.state.outputs
    assert output.norm == Scenario(m=1000, gamma=0.1, kappa=0.01, alpha_bar=1.0)
    assert output.norm.discards == 78
    assert opt.state.settings.locality == LocalCubes(n=5, delta=0.1)
    assert (output.bound, output.delta, output.noise, output.min_width, output.lower_limit) == (Paper(), 0.01, 0.01, 0.1, 0.1)
    assert output.kernel == Matern(nu=1.5, lengthscale=0.1) and not opt.state.settings.falsify


def test_algorithm_1_is_global():
    opt = presets.algorithm_1(Box.unit(2), 0.1)
    assert opt.state.settings.locality == GlobalDomain()
    assert opt.state.outputs[0].norm == Scenario(m=1000, gamma=0.1, kappa=0.01)
    opt = presets.algorithm_1(Box.unit(1), 0.0, norm=SMALL, points_per_axis=21)
    opt.tell([0.5], 0.8)
    opt.tell(opt.ask(), 0.7)
    assert [v.cube for v in opt.subdomains()] == [Cube.whole(1)]


@pytest.mark.parametrize("norm", [5, 5.0, np.float64(5.0), np.float32(5.0), np.int64(5), Fixed(5.0)], ids=repr)
def test_safeopt_takes_a_number_or_an_estimator(norm):
    opt = presets.safeopt(Box.unit(1), 0.0, norm=norm)
    assert opt.state.outputs[0].norm == Fixed(5.0)
    assert opt.state.settings.locality == GlobalDomain()
    opt.tell([0.5], 0.8)
    assert opt.ask().norm == 5.0


@pytest.mark.parametrize("norm", [0.0, -1, np.nan, True, "5", None])
def test_safeopt_needs_a_proper_norm(norm):
    with pytest.raises(InvalidValueError):
        presets.safeopt(Box.unit(1), 0.0, norm=norm)
    with pytest.raises(TypeError, match="norm"):
        presets.safeopt(Box.unit(1), 0.0)


def test_pacsbo_2024():
    opt = presets.pacsbo_2024(Box.unit(1), 0.0, points_per_axis=31)
    assert opt.state.outputs[0].norm == Hoeffding() and opt.state.settings.locality == SampleHull()
    opt.tell([0.4], 0.8)
    assert len(opt.subdomains()) == 1  # a hull needs two samples
    opt.tell([0.6], 0.8)
    assert [(v.cube.lower[0], v.cube.upper[0]) for v in opt.subdomains()] == [(0.0, 1.0), (0.2, 0.8), (0.4, 0.6)]


@pytest.mark.parametrize("preset", [presets.algorithm_1, presets.algorithm_4, presets.pacsbo_2024, presets.safeopt])
def test_presets_can_be_overridden(preset):
    constraints = {"torque": Constraint(threshold=-2.0)}
    opt = preset(
        Box.unit(1), None, norm=Fixed(3.0), kernel=RBF(0.2), noise=0.05, delta=0.2, bound=AbbasiYadkori(), falsify=True, seed=7,
        cubes=LocalCubes(n=1, delta=0.3), points_per_axis=11, safe_set="confidence", min_width=0.01, constraints=constraints,
    )  # fmt: skip
    objective, torque = opt.state.outputs
    settings = opt.state.settings
    assert (objective.norm, objective.kernel, objective.noise, objective.bound) == (Fixed(3.0), RBF(0.2), 0.05, AbbasiYadkori())
    assert (settings.locality, settings.seed, settings.falsify, settings.shape) == (LocalCubes(n=1, delta=0.3), 7, True, (11,))
    assert (settings.safe_set, objective.min_width, torque.delta) == ("confidence", 0.01, 0.2)
    with pytest.raises(TypeError, match="surprise"):
        preset(Box.unit(1), 0.0, norm=Fixed(1.0), surprise=1)


@pytest.mark.parametrize(
    "preset",
    [presets.algorithm_1, presets.algorithm_4, presets.pacsbo_2024, lambda *a, **k: presets.safeopt(*a, norm=3.0, **k)],
    ids=["algorithm_1", "algorithm_4", "pacsbo_2024", "safeopt"],
)
def test_presets_run_and_restart(preset):
    bench = BENCHES[1]
    opt = preset(bench.domain, bench.threshold, kernel=KERNEL, points_per_axis=101)
    bench.tell(opt, bench.start)
    bench.run(opt, 4, lambda opt, trial: SafeOptimizer.from_json(opt.state.to_json()).ask() == trial or pytest.fail("differs"))
    assert opt.state.inside().all()
    assert opt.best().lower >= bench.threshold


# -- scale and threads ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threshold", "value", "scale", "warned"),
    [(0.0, 1.0, 1.0, False), (-30.0, 0.02, 1.0, True), (35.0, 41.0, 1.0, True), (35.0, 41.0, 100.0, False)],
)
@pytest.mark.filterwarnings("ignore:The limit")
def test_outputs_off_the_scale_of_the_kernel_are_pointed_out(threshold, value, scale, warned):
    opt = SafeOptimizer(Box.unit(1), threshold, kernel=Matern(1.5, 0.2, scale), points_per_axis=11)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        opt.tell([0.5], value)
    assert [w.category.__name__ for w in found] == (["ScaleWarning"] if warned else [])
    assert opt.state.step == 1
    if warned:
        assert found[0].filename == __file__  # it points at the caller


def test_threads_that_share_an_optimizer_leave_a_sound_state():
    opt = SafeOptimizer(Box.unit(1), 0.0, norm=Scenario(m=30, gamma=0.2, kappa=0.1), points_per_axis=51)
    opt.tell([0.5], 1.0)
    refused = []

    def work() -> None:
        for _ in range(4):
            try:
                opt.tell(opt.ask(), 1.0)
            except AlreadyToldError as error:
                refused.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opt.state.step + len(refused) == 13
    assert SafeOptimizer.from_json(opt.state.to_json()).ask() == opt.ask()
