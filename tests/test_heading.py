"""acquisition="directed": a step of a plan. It chooses among certified points and certifies nothing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import dblquad, quad

from safebo import RBF, Box, Constraint, Fixed, Matern, SafeOptimizer, heading
from safebo.domain import Cube, Grid
from safebo.exceptions import StopReason
from safebo.kernels import convolved
from safebo.outputs import resolve_outputs
from safebo.problems import RKHSProblem
from tests.references import heading as naive

KERNEL = Matern(1.5, 0.2)


@pytest.fixture(autouse=True)
def _few_nodes(monkeypatch):
    """The transcription is slow; nothing depends on the number of nodes."""
    clear = heading._roads.cache_clear  # a test may replace the function
    clear()
    monkeypatch.setattr(heading, "NODES", 150)
    yield
    clear()


# -- the covariance of functions of the space ----------------------------------------------------------------------------


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
@pytest.mark.parametrize("distance", [0.3, 1.0, 2.5])
def test_the_convolution_of_a_matern_kernel_in_one_dimension_is_the_integral(nu, distance):
    kernel = Matern(nu, 1.0)

    def product(z, shift):
        return float(kernel.correlation(abs(z)) * kernel.correlation(abs(z - shift)))

    expected = [
        sum(quad(product, a, b, args=(shift,), epsabs=1e-11)[0] for a, b in ((-40, 0), (0, shift), (shift, 40)))
        for shift in (distance, 0.0)
    ]
    found = convolved(kernel, 1)(np.zeros((1, 1)), np.array([[distance]]))[0, 0]
    assert found == pytest.approx(expected[0] / expected[1], abs=1e-8)


@pytest.mark.parametrize("kernel", [Matern(1.5, 1.0), RBF(1.0)])
def test_the_convolution_in_two_dimensions_is_the_integral(kernel):
    def product(y, x, shift):
        return float(kernel.correlation(np.hypot(x, y)) * kernel.correlation(np.hypot(x - shift, y)))

    expected = [2.0 * dblquad(product, -9, 10, 0, 9, args=(shift,), epsabs=1e-6)[0] for shift in (1.0, 0.0)]
    found = convolved(kernel, 2)(np.zeros((1, 2)), np.array([[1.0, 0.0]]))[0, 0]
    assert found == pytest.approx(expected[0] / expected[1], abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 8), st.sampled_from([0.5, 1.5, 2.5]))
def test_the_convolution_is_a_covariance(seed, dim, nu):
    rng = np.random.default_rng(seed)
    x = rng.random((20, dim))
    kernel = Matern(nu, tuple(rng.uniform(0.1, 0.5, dim).tolist()), 3.0)
    gram = convolved(kernel, dim)(x, x)
    assert np.allclose(np.diagonal(gram), 1.0) and np.allclose(gram, gram.T)
    assert np.linalg.eigvalsh(gram).min() > -1e-9
    expected = naive.correlations(kernel, x[:3], x)
    assert np.allclose(gram[:3], expected, atol=1e-9)


# -- the plan ------------------------------------------------------------------------------------------------------------


def plan(seed):
    """Samples, outputs and places of a random situation."""
    rng = np.random.default_rng(seed)
    dim = 1 + seed % 3
    kernel = [Matern(1.5, 0.25), RBF(0.3), Matern(2.5, tuple(rng.uniform(0.2, 0.4, dim).tolist()), 2.0)][seed % 3]
    constraints = {"torque": Constraint(None, Matern(1.5, 0.4), 0.02, Fixed(2.0), 0.5)} if seed % 2 else {}
    outputs = resolve_outputs(-0.5, constraints, kernel, 0.05, Fixed(2.0), _bound(), 0.01, 0.1)
    x = rng.random((2 + seed % 9, dim))
    values = rng.normal(0.0, 0.5, (len(x), len(outputs)))
    inside = np.ones(len(x), dtype=bool)
    inside[-1] = seed % 4 != 0
    places = []
    for _ in range(3):
        low = rng.uniform(0.0, 0.7, dim)
        grid = Grid(Cube(tuple(low.tolist()), tuple((low + 0.3).tolist())), (5,) * dim)
        places.append((grid, np.flatnonzero(rng.random(grid.size) < 0.5)))
    return outputs, x, values, inside, places


def _bound():
    from safebo import MartingaleMixture

    return MartingaleMixture(points=5)


@pytest.mark.parametrize("seed", range(24))
def test_the_step_is_the_best_of_the_transcription(seed):
    outputs, x, values, inside, places = plan(seed)
    found = heading.step_towards(outputs, x, values, inside, places)
    candidates = np.concatenate([grid.at(heading.spread(index)) for grid, index in places])
    candidates = candidates[naive.is_new(outputs, x, values, candidates, heading.NOVELTY)]
    if found is None:
        assert not len(candidates)
        return
    owner, point = found
    grid, index = places[owner]
    assert (grid.at(index) == point).all(axis=1).any(), "a point that may not be measured"
    nodes = heading.even_points(x.shape[1], heading.NODES)
    at_once, later, first = naive.plans(outputs, x, values, inside, candidates, nodes, vars(heading))
    best = max(at_once.max(), later.max())
    good = [c for c, worth in zip(candidates, at_once, strict=True) if worth >= best - 1e-6]
    everything = np.concatenate([grid.at(index) for grid, index in places if len(index)])
    everything = everything[naive.is_new(outputs, x, values, everything, heading.NOVELTY)]
    lengthscales = outputs[0].kernel.lengthscales(x.shape[1])
    for target in nodes[np.unique(first[later >= best - 1e-6])]:
        distances = np.linalg.norm((everything - target) / lengthscales, axis=1)
        good += list(everything[distances <= distances.min() + 1e-9])
    assert any((g == point).all() for g in good)


def test_the_way_around_an_obstacle_is_taken():
    """A wall of bad values between the samples and the best place, with a gap at the top: the step goes up, not to the wall."""
    kernel = Matern(1.5, 0.15)
    y, rows = np.linspace(0.05, 0.95, 8), []
    for b in y:
        rows += [(0.1, b, 0.6), (0.25, b, 0.6)]
        rows += [(0.5, b, -2.0)] if b < 0.8 else [(0.4, b, 0.6), (0.5, b, 0.6)]
    rows += [(0.9, 0.1, 1.0)]  # promising, and measured once
    data = np.array(rows)
    outputs = resolve_outputs(0.0, {}, kernel, 0.01, Fixed(2.0), _bound(), 0.01, 0.1)
    left = Grid(Cube((0.0, 0.0), (0.6, 1.0)), (13, 21))
    allowed = np.flatnonzero((left.points()[:, 0] <= 0.3) | (left.points()[:, 1] >= 0.75))
    found = heading.step_towards(outputs, data[:, :2], data[:, 2:], np.ones(len(data), dtype=bool), [(left, allowed)])
    assert found is not None and found[1][0] >= 0.5 and found[1][1] >= 0.75


def test_no_way_leads_through_a_wall_for_nothing(monkeypatch):
    """A wall of dear nodes right beside the candidates: whatever lies behind it costs its crossing, or the way around."""
    monkeypatch.setattr(heading, "NODES", 2048)
    nodes, lengthscales = heading.even_points(2, heading.NODES), np.full(2, 0.2)
    wall = (abs(nodes[:, 0] - 0.4) < 0.05) & (nodes[:, 1] < 0.8)
    price = np.where(wall, 40.0, 1.0)
    edge = np.linspace(0.0, 0.4, 9)
    candidates = np.stack([np.full(9, 0.3), edge], axis=1)
    cost, entry = heading._ways(lengthscales, candidates, price)
    legs = np.linalg.norm((nodes[:, None] - candidates) / lengthscales, axis=2).min(axis=1)
    assert (legs[entry] <= heading.FIRST_LEG).all()
    behind = (nodes[:, 0] > 0.5) & (nodes[:, 1] < 0.4)
    straight = np.linalg.norm((nodes[behind, None] - candidates) / lengthscales, axis=2).min(axis=1)
    around = np.linalg.norm((candidates[-1] - [0.4, 0.8]) / lengthscales)
    assert (cost[behind] >= around).all() and (cost[behind] > straight + 2.0).all()
    assert np.isfinite(cost).all() and (cost[nodes[:, 0] < 0.3] <= 1.2 * legs[nodes[:, 0] < 0.3] + 0.2).all()


def test_nodes_to_which_no_way_leads_are_no_destination(monkeypatch):
    """Islands of nodes: what cannot be reached costs infinitely much, and the plan goes elsewhere."""
    nodes = heading.even_points(2, 150)
    near = np.argsort(np.linalg.norm(nodes[:, None] - nodes, axis=2), axis=1)[:, 1:9]
    left = nodes[:, 0] < 0.5
    near = np.where(left[near] == left[:, None], near, np.arange(150)[:, None])  # no road between the halves
    distance = np.linalg.norm(nodes[:, None] - nodes[near], axis=2) / 0.2
    monkeypatch.setattr(heading, "_roads", lambda _: (nodes / 0.2, near, distance))
    cost, entry = heading._ways(np.full(2, 0.2), np.array([[0.1, 0.1]]), np.ones(150))
    assert np.isinf(cost[~left]).all() and np.isfinite(cost[left]).all()
    assert left[entry[left]].all()
    # an output that promises everything on the right: a point on the left is measured nevertheless
    outputs = resolve_outputs(0.0, {}, KERNEL, 0.01, Fixed(2.0), _bound(), 0.01, 0.1)
    data = np.array([(0.1, 0.1, 0.5), (0.9, 0.9, 5.0)])
    grid = Grid(Cube((0.0, 0.0), (0.3, 0.3)), (7, 7))
    found = heading.step_towards(outputs, data[:, :2], data[:, 2:], np.array([True, False]), [(grid, np.arange(grid.size))])
    assert found is not None and (found[1] <= 0.3).all()


def test_novelty_is_that_of_the_kernel_and_noise_does_not_count():
    """A sample makes its own place known and its surroundings partly; the outlook's covariance would know far more of them."""
    kernel = Matern(1.5, 0.2, 4.0)
    x = np.array([[0.5, 0.5], [0.5, 0.54]])
    points = np.array([[0.5, 0.5], [0.5, 0.52], [0.5, 0.6], [0.0, 0.0]])
    found = heading.novelty(kernel, x, points)
    assert found[0] < 0.01 and 0.05 < found[1] < found[2] < found[3] <= 1.0
    more = heading.novelty(kernel, np.vstack([x, [[0.3, 0.3]]]), points)
    assert (more <= found + 1e-12).all()
    outlook = heading.Outlook.of(kernel, x, np.array([0.3, 0.2]), 1e-4)
    assert (outlook.at(points[1:3])[1] / outlook.scale < 0.5 * found[1:3]).all()


def test_a_narrow_passage_costs_more_than_a_wide_one():
    """Two ways that are equally known and safe: the price falls with the margin to the nearest limit, on either side."""
    kernel = Matern(1.5, 0.2)
    outputs = resolve_outputs(
        0.0, {"torque": Constraint(None, kernel, 0.01, Fixed(2.0), 1.0)}, kernel, 0.01, Fixed(2.0), _bound(), 0.01, 0.1
    )
    x = np.array([[0.1, 0.1]])
    outlooks = [heading.Outlook.of(kernel, x, np.array([1.0]), 0.01) for _ in outputs]
    sd, far = np.full(4, 0.001), np.full(4, -5.0)
    mean = outlooks[0].scale * np.array([0.01, 0.1, 0.5, 2.0])
    found = heading.prices(outputs, outlooks, [(mean, sd), (far, sd)])
    caps = np.maximum([0.01, 0.1, 0.5, 2.0], heading.NARROWEST)
    assert np.allclose(found, 1.0 + heading.NARROW / caps, atol=1e-6)
    other = heading.prices(outputs, outlooks, [(np.full(4, 9.0), sd), (1.0 - mean, sd)])
    assert np.allclose(other, found, atol=1e-6)


def test_a_crash_does_not_raise_the_aim_and_blocked_places_are_no_destination():
    """A value far outside the limits leaves the aim alone; where every destination is blocked, the best candidate is measured."""
    kernel = Matern(1.5, 0.15)
    x = np.array([[0.5, 0.5], [0.45, 0.5], [0.9, 0.9]])
    values = np.array([[0.5], [0.6], [-50.0]])
    inside = np.array([True, True, False])
    outputs = resolve_outputs(0.0, {}, kernel, 0.01, Fixed(2.0), _bound(), 0.01, 0.1)
    grid = Grid(Cube((0.3, 0.3), (0.7, 0.7)), (21, 21))
    places = [(grid, np.arange(grid.size))]
    aims = []
    with pytest.MonkeyPatch.context() as patch:
        plain = heading.log_gain
        patch.setattr(heading, "log_gain", lambda mean, sd, aim: aims.append(aim) or plain(mean, sd, aim))
        free = heading.step_towards(outputs, x, values, inside, places)
    assert free is not None and max(aims) < 1.0
    other = heading.step_towards(outputs, x, values, inside, places, lambda p: np.ones(len(p), dtype=bool))
    assert other is not None
    candidates = grid.at(heading.spread(places[0][1]))
    candidates = candidates[heading.novelty(kernel, x, candidates) >= heading.NOVELTY]
    outlook = heading.Outlook.of(kernel, x, values[:, 0], 0.01)
    gains = heading.log_gain(*outlook.at(candidates), aims[0])
    assert (candidates[np.argmax(gains)] == other[1]).all()


def test_the_nearest_new_point_is_found_wherever_it_is():
    """Among more points than are looked at first, new ones near and far; without any the nearest point is taken."""
    grid = Grid(Cube((0.0, 0.0), (1.0, 1.0)), (40, 40))
    index = np.arange(0, 1600, 3)
    places = [(grid, np.empty(0, dtype=np.intp)), (grid, index)]
    points, target, scale = grid.at(index), np.array([0.3, 0.7]), np.array([0.2, 0.4])
    order = np.argsort(np.linalg.norm((points - target) / scale, axis=1), kind="stable")
    for rank in (0, 5, 200, len(index) - 1):
        wanted = points[order[rank]]
        place, found = heading._nearest(places, target, scale, lambda p, w=wanted: (p == w).all(axis=1))
        assert place == 1 and (found == wanted).all()
    place, found = heading._nearest(places, target, scale, lambda p: np.zeros(len(p), dtype=bool))
    assert place == 1 and (found == points[order[0]]).all()


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0]), min_size=1, max_size=60), st.integers(1, 70))
def test_the_smallest_are_those_of_a_stable_sort(values, size):
    distances = np.array(values)
    assert heading._smallest(distances, size).tolist() == np.argsort(distances, kind="stable")[:size].tolist()


def test_nothing_new_to_learn_is_no_step():
    outputs = resolve_outputs(0.0, {}, KERNEL, 0.01, Fixed(2.0), _bound(), 0.01, 0.1)
    grid = Grid(Cube((0.4, 0.4), (0.6, 0.6)), (3, 3))
    x = np.repeat(grid.points(), 3, axis=0)
    arguments = outputs, x, np.ones((len(x), 1)), np.ones(len(x), dtype=bool)
    assert heading.step_towards(*arguments, [(grid, np.arange(9))]) is None
    assert heading.step_towards(*arguments, [(grid, np.arange(0))]) is None
    assert heading.step_towards(*arguments, []) is None


def test_far_below_the_aim_the_gain_stays_comparable():
    mean = np.linspace(-30.0, 2.0, 2000)
    gain = heading.log_gain(mean, np.full(2000, 0.7), 1.0)
    assert np.isfinite(gain).all() and (np.diff(gain) > -0.02).all()
    assert gain[-1] == pytest.approx(np.log(naive.improvement(2.0, 0.7, 1.0)), abs=1e-9)


# -- in the loop ---------------------------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([1, 2, 3]), st.booleans())
def test_every_directed_trial_is_certified_within_its_stride_and_repeatable(seed, dim, limited):
    problem = RKHSProblem.sample(dim, 2.0, seed, kernel=KERNEL) if dim < 3 else None
    box = Box.unit(dim)
    value = problem.value if problem else lambda p: 1.0 - float(np.sum((np.array(list(p.values())) - 0.4) ** 2))
    start = problem.initial if problem else np.full(3, 0.5)
    threshold = problem.threshold if problem else 0.3
    constraints = {"side": Constraint(-3.0, KERNEL, 0.01, Fixed(2.0), 3.0)} if limited else None
    side = (lambda p: {"side": 0.1}) if limited else (lambda p: None)
    opt = SafeOptimizer(
        box, threshold, kernel=KERNEL, norm=Fixed(2.0), points_per_axis=9, acquisition="directed", constraints=constraints
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt.tell(start, value(box.as_dict(np.asarray(start))), side(start))
        for _ in range(7):
            trial = opt.ask()
            if trial is None:
                assert opt.stop_reason is not None
                break
            assert opt.ask() == trial
            assert opt.is_safe(trial.params).all()
            assert trial.lower >= threshold - 1e-12
            again = SafeOptimizer.from_json(opt.state.to_json()).ask()
            assert again is not None and (again.x, again.cube) == (trial.x, trial.cube)
            widths = [high - low for low, high in trial.bounds.values()]
            assert max(widths) > 0.1  # min_width
            opt.tell(trial, value(trial.params), side(trial.params))


def test_a_directed_run_ends_when_the_others_end():
    opt = SafeOptimizer(Box.unit(2), 0.0, kernel=Matern(1.5, 1.0), norm=Fixed(0.6), points_per_axis=7, acquisition="directed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt.tell([0.5, 0.5], 0.5)
        for _ in range(60):
            trial = opt.ask()
            if trial is None:
                break
            opt.tell(trial, 0.5)
    assert opt.stop_reason is StopReason.CONVERGED


def test_no_experiment_next_to_an_aborted_one():
    opt = SafeOptimizer(Box.unit(2), 0.0, kernel=KERNEL, norm=Fixed(1.0), points_per_axis=9, acquisition="directed")
    opt.tell([0.5, 0.5], 0.8)
    trial = opt.ask()
    assert trial is not None
    opt.tell(trial, status="aborted", reason="belt slipped")
    for _ in range(4):
        other = opt.ask()
        if other is None:
            break
        assert not opt.state.blocked(np.array([other.x])).any() and other.x != trial.x
        opt.tell(other, 0.8)
