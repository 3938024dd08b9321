"""Safe set, expanders and maximisers in linear time against their definitions over all pairs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import safebo.sets
from safebo.domain import Cube, Grid
from safebo.kernels import RBF, Matern
from safebo.sets import covered, expanders, maximisers, outside_distance, staircase
from tests.references import sets as reference
from tests.references.kernels import metric, scaled_distance, transcribed
from tests.strategies import cubes, kernels, seeds

FAMILIES = [Matern(0.5, 0.3), Matern(1.5, 0.3), Matern(2.5, 0.3), RBF(0.3)]


@st.composite
def grids(draw):
    """A grid of an anisotropic box and a kernel, possibly ARD."""
    dim = draw(st.integers(1, 3))
    centred = draw(st.booleans())
    if centred:  # as the optimizer makes them: clipped at the domain's edge
        centre = np.array([draw(st.floats(0.0, 1.0)) for _ in range(dim)])
        cube = Cube.around(centre, draw(st.floats(0.05, 1.5)))
    else:
        cube = draw(cubes(dim))
    largest = {1: 50, 2: 9, 3: 5}[dim]
    shape = tuple(draw(st.integers(2, largest)) for _ in range(dim))
    return Grid(cube, shape), draw(kernels(dim))


@st.composite
def problems(draw):
    """Grid, kernel, norm, margins on the grid, a mask, and seeds off the grid with their margins."""
    grid, kernel = draw(grids())
    norm = draw(st.floats(0.1, 20.0))
    rng = np.random.default_rng(draw(seeds))
    # margins from none to a ball that holds everything: d_k is at most sqrt(2 outputscale)
    reach = norm * np.sqrt(2.0 * kernel.outputscale) * draw(st.sampled_from([0.05, 0.3, 1.0, 3.0]))
    margin = reach * rng.uniform(-0.5, 1.0, grid.size)
    margin[rng.random(grid.size) < 0.05] = 0.0
    mask = rng.random(grid.size) < draw(st.sampled_from([0.05, 0.3, 0.7]))
    count = draw(st.integers(0, 3))
    low, high = np.array(grid.cube.lower), np.array(grid.cube.upper)
    return grid, kernel, norm, margin, mask, rng.uniform(low, high, (count, len(low))), reach * rng.uniform(-0.5, 1.0, count)


def best_slack(kernel, dim, norm, sources, margins, points):
    """max over sources of margin - B d_k, for every point: covered where it is not negative."""
    if not len(sources):
        return np.full(len(points), -np.inf)
    return (margins[:, None] - norm * metric(transcribed(kernel, dim), sources, points)).max(axis=0)


def assert_same_mask(ours, theirs, slack, scale):
    """Identical, except where the deciding quantity vanishes up to rounding."""
    differ = ours != theirs
    assert (abs(slack[differ]) <= 1e-9 * scale).all(), (np.flatnonzero(differ), slack[differ])


# -- covered ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs_at_once", [0, 100_000], ids=["windows", "pairs"])
@settings(max_examples=150)
@given(problem=problems())
def test_covered_is_eq_6_over_all_pairs(pairs_at_once, problem):
    grid, kernel, norm, margin, mask, off_grid, off_margin = problem
    dim, points = len(grid.shape), grid.points()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(safebo.sets, "_PAIRS_AT_ONCE", pairs_at_once)
        ours = covered(grid, kernel, norm, margin, mask, off_grid, off_margin)
    sources, margins = np.concatenate([points[mask], off_grid]), np.concatenate([margin[mask], off_margin])
    naive, scale = transcribed(kernel, dim), max(1.0, norm * np.sqrt(kernel.outputscale))
    slack = best_slack(kernel, dim, norm, sources, margins, points)
    for h in (0.0, 2.0):
        lower = reference.continuity_lower(naive, norm, sources, h + margins, points, h)
        upper = reference.continuity_upper(naive, norm, sources, h - margins, points, h)
        assert_same_mask(ours, lower, slack, scale)
        assert_same_mask(ours, upper, slack, scale)


@pytest.mark.parametrize("kernel", FAMILIES, ids=lambda k: k.family)
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_an_infinite_radius_covers_everything(kernel, dim):
    grid = Grid(Cube((0.2,) * dim, (0.9,) * dim), (5,) * dim)
    huge = 1.5 * np.sqrt(2.0)  # beyond the largest value of d_k
    margin, mask = np.full(grid.size, -1.0), np.zeros(grid.size, dtype=bool)
    none = np.empty((0, dim)), np.empty(0)
    assert not covered(grid, kernel, 1.0, margin, mask, *none).any()
    mask[3], margin[3] = True, huge
    assert covered(grid, kernel, 1.0, margin, mask, *none).all()
    seed = np.full((1, dim), 0.51)
    empty = np.zeros(grid.size, dtype=bool)
    assert covered(grid, kernel, 1.0, margin, empty, seed, np.array([huge])).all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(safebo.sets, "_PAIRS_AT_ONCE", 0)
        assert covered(grid, kernel, 1.0, margin, empty, seed, np.array([huge])).all()


@pytest.mark.parametrize("pairs_at_once", [0, 100_000], ids=["windows", "pairs"])
def test_seeds_between_the_grid_points(pairs_at_once, monkeypatch):
    """Matern 1/2, lengthscale 1: d_k <= 1 exactly where r <= log 2."""
    monkeypatch.setattr(safebo.sets, "_PAIRS_AT_ONCE", pairs_at_once)
    grid, kernel = Grid(Cube((0.0,), (1.0,)), (101,)), Matern(0.5, 1.0)
    nobody, margin = np.zeros(101, dtype=bool), np.zeros(101)
    ours = covered(grid, kernel, 2.0, margin, nobody, np.array([[0.105]]), np.array([2.0]))
    np.testing.assert_array_equal(ours, grid.axes[0] <= 0.105 + np.log(2.0))
    assert not covered(grid, kernel, 2.0, margin, nobody, np.array([[0.105]]), np.array([-1e-9])).any()
    assert not covered(grid, kernel, 2.0, margin, nobody, np.array([[0.105]]), np.array([0.0])).any()
    on_grid = covered(grid, kernel, 2.0, margin, nobody, grid.points()[[40]], np.array([0.0]))
    assert np.flatnonzero(on_grid).tolist() == [40]


def test_a_source_without_margin_covers_itself_only():
    grid, kernel = Grid(Cube((0.0, 0.0), (1.0, 0.5)), (6, 5)), RBF((0.2, 0.4))
    mask, margin = np.zeros(30, dtype=bool), np.full(30, 5.0)
    mask[[7, 20]] = True
    margin[[7, 20]] = 0.0, -1e-12
    ours = covered(grid, kernel, 3.0, margin, mask, np.empty((0, 2)), np.empty(0))
    assert np.flatnonzero(ours).tolist() == [7]


# -- expanders ----------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(problems())
def test_expanders_are_eq_8_over_all_pairs(problem):
    grid, kernel, norm, margin, safe, _, _ = problem
    naive, points = transcribed(kernel, len(grid.shape)), grid.points()
    ours = expanders(grid, kernel, norm, margin, safe)
    slack = np.full(grid.size, -np.inf)
    if (~safe).any():
        slack = (margin[:, None] - norm * metric(naive, points, points[~safe])).max(axis=1)
    scale = max(1.0, norm * np.sqrt(kernel.outputscale))
    assert_same_mask(ours, reference.expanders_lower(naive, norm, points, safe, 1.5 + margin, 1.5), slack, scale)
    assert_same_mask(ours, reference.expanders_upper(naive, norm, points, safe, 1.5 - margin, 1.5), slack, scale)
    assert not (ours & ~safe).any()


@given(problems())
def test_outside_distance_is_the_nearest_of_all(problem):
    grid, kernel, _, _, safe, _, _ = problem
    points = grid.points()
    ours = outside_distance(grid, kernel, safe)
    assert (ours[~safe] == 0.0).all()
    if safe.all():
        assert (ours == np.inf).all()
    else:
        nearest = scaled_distance(points, points[~safe], kernel.lengthscales(len(grid.shape))).min(axis=1)
        np.testing.assert_allclose(ours, nearest, rtol=1e-9, atol=1e-12)


def test_without_an_outside_there_are_no_expanders():
    grid = Grid(Cube((0.0,), (1.0,)), (9,))
    everything = np.ones(9, dtype=bool)
    assert not expanders(grid, RBF(), 1.0, np.full(9, 100.0), everything).any()
    assert not expanders(grid, RBF(), 1.0, np.full(9, 100.0), ~everything).any()
    one_outside = everything.copy()
    one_outside[8] = False
    assert expanders(grid, RBF(), 1.0, np.full(9, 100.0), one_outside).tolist() == one_outside.tolist()


# -- maximisers and the staircase ---------------------------------------------------------------------------------------


@given(seeds, st.floats(-3.0, 3.0))
def test_maximisers_are_eq_7(seed, best_lower):
    rng = np.random.default_rng(seed)
    upper, safe = rng.normal(size=30), rng.random(30) < 0.5
    if seed % 2:
        best_lower = float(upper[3])  # reached exactly
    ours = maximisers(upper, safe, best_lower)
    np.testing.assert_array_equal(ours, reference.maximisers(safe, upper, best_lower))
    assert not (ours & ~safe).any()


@given(seeds, st.integers(0, 40), st.booleans())
def test_the_staircase_answers_every_threshold(seed, count, coarse):
    """The last step that reaches a threshold is as uncertain as the most uncertain candidate that reaches it."""
    rng = np.random.default_rng(seed)
    upper, uncertainty = rng.normal(size=50), rng.random(50)
    if coarse:  # many ties
        upper, uncertainty = np.round(upper), np.round(3.0 * uncertainty)
    candidates = np.sort(rng.choice(50, count, replace=False))
    stairs = staircase(upper, uncertainty, candidates)
    assert set(stairs) <= set(candidates)
    assert (np.diff(upper[stairs]) <= 0.0).all() and (np.diff(uncertainty[stairs]) > 0.0).all()
    for threshold in (-np.inf, *upper, *(upper + 1e-9), np.inf):
        reaching = candidates[upper[candidates] >= threshold]
        steps = np.count_nonzero(upper[stairs] >= threshold)
        assert (steps == 0) == (len(reaching) == 0)
        if steps:
            assert uncertainty[stairs[steps - 1]] == uncertainty[reaching].max()


# -- a step of the algorithm on the sets alone ---------------------------------------------------------------------------


@settings(max_examples=40)
@given(problems(), seeds)
def test_one_step_of_the_recursion(problem, seed):
    """S from its predecessor, then M and G inside S, as the definitions compose them."""
    grid, kernel, norm, margin, old, off_grid, off_margin = problem
    naive, points = transcribed(kernel, len(grid.shape)), grid.points()
    width = np.random.default_rng(seed).uniform(0.0, 1.0, grid.size)
    safe = (margin >= 0.0) | covered(grid, kernel, norm, margin, old, off_grid, off_margin)
    sources, margins = np.concatenate([points[old], off_grid]), np.concatenate([margin[old], off_margin])
    near = reference.continuity_lower(naive, norm, sources, margins, points, 0.0)
    slack = np.maximum(margin, best_slack(kernel, len(grid.shape), norm, sources, margins, points))
    scale = max(1.0, norm * np.sqrt(kernel.outputscale))
    assert_same_mask(safe, reference.combine("union", near, reference.confidence_lower(margin, 0.0)), slack, scale)
    assert (safe | ~(old & (margin >= 0.0))).all()  # a certified member of the predecessor stays
    found = expanders(grid, kernel, norm, margin + width, safe)
    top = maximisers(margin + width, safe, margin[safe].max() if safe.any() else -np.inf)
    assert not (found & ~safe).any() and not (top & ~safe).any()
    if safe.any():
        assert top[np.flatnonzero(safe)[np.argmax(margin[safe])]]  # the best point is a maximiser of itself


def test_spacing_follows_the_lengthscales():
    """The same grid with one axis stretched, and the lengthscale with it: the same sets."""
    rng = np.random.default_rng(3)
    square, flat = Grid(Cube((0.0, 0.0), (1.0, 1.0)), (8, 8)), Grid(Cube((0.0, 0.0), (1.0, 0.125)), (8, 8))
    margin, mask = rng.uniform(-0.5, 1.5, 64), rng.random(64) < 0.2
    none = np.empty((0, 2)), np.empty(0)
    for family, scale in product((Matern, RBF), (0.2, 0.6)):
        wide, narrow = (
            family(**({"nu": 1.5} if family is Matern else {}), lengthscale=lengthscale)
            for lengthscale in ((scale, scale), (scale, scale / 8.0))
        )
        np.testing.assert_array_equal(
            covered(square, wide, 2.0, margin, mask, *none), covered(flat, narrow, 2.0, margin, mask, *none)
        )
        np.testing.assert_array_equal(expanders(square, wide, 2.0, margin, mask), expanders(flat, narrow, 2.0, margin, mask))
