"""Boxes, sub-domains, localities and grids."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safebo.domain import (
    MAX_GRID_POINTS,
    Box,
    Cube,
    DoublingCubes,
    GlobalDomain,
    Grid,
    LocalCubes,
    SampleHull,
    default_cubes,
    resolve_points_per_axis,
)
from safebo.exceptions import InvalidValueError
from tests.strategies import boxes, cubes, dims, points

BOX = Box({"kp": (0.0, 5.0), "kd": (-1.0, 1.0)})

# -- Box ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "named"),
    [
        ({}, "{}"),
        (None, "None"),
        ([("a", 0, 1)], "('a', 0, 1)"),
        ({"": (0, 1)}, "''"),
        ({3: (0, 1)}, "3"),
        ({"a": (1.0, 1.0)}, "(1.0, 1.0)"),
        ({"a": (2.0, 1.5)}, "(2.0, 1.5)"),
        ({"a": (0.0, math.nan)}, "nan"),
        ({"a": (-math.inf, 0.0)}, "-inf"),
        ({"a": (-1.5e308, 1.5e308)}, "1.5e+308"),
        ({"a": (0.0,)}, "(0.0,)"),
        ({"a": (0.0, 1.0, 2.0)}, "(0.0, 1.0, 2.0)"),
        ({"a": 1.0}, "1.0"),
        ({"a": "01"}, "'01'"),
        ({"a": ("0", "1")}, "('0', '1')"),
        ({"a": (False, True)}, "(False, True)"),
        ({"a": (None, 1.0)}, "(None, 1.0)"),
    ],
)
def test_bad_bounds_are_named(bounds, named):
    with pytest.raises(InvalidValueError) as error:
        Box(bounds)
    assert named in str(error.value)


@pytest.mark.parametrize("n", [0, -2, 1.0, "2", True, None])
def test_unit_box_needs_a_dimension(n):
    with pytest.raises(InvalidValueError) as error:
        Box.unit(n)
    assert repr(n) in str(error.value)


def test_unit_box():
    box = Box.unit(3)
    assert box.names == ("x1", "x2", "x3")
    assert box.bounds == {"x1": (0.0, 1.0), "x2": (0.0, 1.0), "x3": (0.0, 1.0)}


def test_box_is_a_value():
    assert Box({"kp": (0, 5), "kd": (-1, 1)}) == BOX
    assert hash(Box({"kp": (0, 5), "kd": (-1, 1)})) == hash(BOX)
    assert Box({"kd": (-1, 1), "kp": (0, 5)}) != BOX  # the order of the axes matters
    BOX.bounds["kp"] = (0.0, 1.0)  # a copy
    assert BOX.bounds["kp"] == (0.0, 5.0)
    with pytest.raises(ValueError, match="read-only"):
        BOX.low[0] = 3.0


def test_points_from_dicts_and_arrays():
    np.testing.assert_array_equal(BOX.point({"kd": 0.5, "kp": 2}), [2.0, 0.5])
    np.testing.assert_array_equal(BOX.point([2, 0.5]), [2.0, 0.5])
    np.testing.assert_array_equal(BOX.points([[2.0, 0.5], [1.0, -1.0]]), [[2.0, 0.5], [1.0, -1.0]])
    line = Box({"a": (0.0, 2.0)})
    np.testing.assert_array_equal(line.point(1.5), [1.5])
    np.testing.assert_array_equal(line.points([0.1, 0.2, 0.3]), [[0.1], [0.2], [0.3]])
    assert BOX.as_dict(np.array([2.0, 0.5])) == {"kp": 2.0, "kd": 0.5}


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"kp": 1.0}, "['kd']"),
        ({"kp": 1.0, "kd": 0.0, "ki": 2.0}, "['ki']"),
        ({"kp": 1.0, "Kd": 0.0}, "['Kd']"),
        ({"kp": [1.0, 2.0], "kd": [0.0, 0.5]}, "[1.0, 2.0]"),
        ({"kp": "1.0", "kd": 0.0}, "'1.0'"),
        ({"kp": None, "kd": 0.0}, "None"),
        ([1.0], "[1.0]"),
        ([1.0, 0.0, 2.0], "[1.0, 0.0, 2.0]"),
        ([1.0, [0.0, 1.0]], "[1.0, [0.0, 1.0]]"),
        ([math.nan, 0.0], "nan"),
        ([1.0, math.inf], "inf"),
        ([5.000001, 0.0], "'kp' = 5.000001"),
        ([1.0, -1.25], "'kd' = -1.25"),
        ([1j, 0.0], "1j"),
        ([True, False], "True"),
    ],
)
def test_bad_points_are_named(params, named):
    with pytest.raises(InvalidValueError) as error:
        BOX.point(params)
    assert named in str(error.value)


@pytest.mark.parametrize("several", [[0.1, 0.2, 0.3], {"x1": [0.1, 0.2]}])
def test_several_values_are_not_one_point_of_a_line(several):
    with pytest.raises(InvalidValueError, match="one point"):
        Box.unit(1).point(several)


def test_rounding_at_the_edge_is_forgiven():
    np.testing.assert_array_equal(BOX.point([5.0 * (1 + 1e-13), -1.0 - 1e-13]), [5.0, -1.0])


@given(st.data())
def test_unit_round_trip(data):
    box = data.draw(boxes())
    x = data.draw(points(box.dim))
    user = box.from_unit(x)
    assert (user >= box.low).all()
    assert (user <= box.high).all()
    np.testing.assert_allclose(box.to_unit(box.points(user)), x, atol=1e-9)


@given(boxes())
def test_corners_map_to_corners(box):
    np.testing.assert_array_equal(box.to_unit(np.stack([box.low, box.high])), np.stack([np.zeros(box.dim), np.ones(box.dim)]))


# -- Cube and localities ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lower", "upper"),
    [((), ()), ((0.0,), (0.0,)), ((0.5,), (0.25,)), ((0.0, 0.0), (1.0,)), ((math.nan,), (1.0,)), ((0.0,), (math.inf,))],
)
def test_bad_cubes_are_named(lower, upper):
    with pytest.raises(InvalidValueError) as error:
        Cube(lower, upper)
    assert f"{lower}, {upper}" in str(error.value)


@given(dims.flatmap(lambda n: points(n, max_size=1)), st.floats(1e-3, 3.0))
def test_cube_around_a_sample_is_clipped(x, edge):
    centre = x[0]
    cube = Cube.around(centre, edge)
    assert cube.contains(x).all()
    assert Cube.whole(cube.dim).encloses(cube)
    np.testing.assert_array_equal(cube.lower, np.maximum(centre - edge / 2, 0.0))
    np.testing.assert_array_equal(cube.upper, np.minimum(centre + edge / 2, 1.0))
    assert cube.width <= edge * (1 + 1e-9)


def test_contains_and_encloses():
    cube = Cube((0.2, 0.4), (0.6, 0.5))
    np.testing.assert_array_equal(
        cube.contains(np.array([[0.2, 0.4], [0.6, 0.5], [0.4, 0.45], [0.1, 0.45], [0.4, 0.51]])), [True, True, True, False, False]
    )
    assert cube.width == pytest.approx(0.4)
    assert cube.encloses(cube)
    assert cube.encloses(Cube((0.3, 0.4), (0.6, 0.45)))
    assert not cube.encloses(Cube((0.1, 0.4), (0.6, 0.45)))
    assert not cube.encloses(Cube((0.3, 0.4), (0.6, 0.55)))


def test_local_cubes_have_edge_length_k_delta():
    found = LocalCubes(n=4, delta=0.1).cubes(np.array([[0.5, 0.5]]))
    assert found[0] == Cube.whole(2)
    for k, cube in enumerate(found[1:], start=1):
        np.testing.assert_allclose(np.subtract(cube.upper, cube.lower), k * 0.1)
        np.testing.assert_allclose(np.add(cube.upper, cube.lower) / 2, 0.5)
    assert len(found) == 5


def test_local_cubes_are_clipped_and_listed_once():
    found = LocalCubes(n=3, delta=1.0).cubes(np.array([[0.0], [0.0], [0.5]]))
    assert found == [Cube((0.0,), (1.0,)), Cube((0.0,), (0.5,))]  # edges 2 and 3 at 0 and all edges at 0.5 are the whole domain


@given(dims.flatmap(lambda n: points(n, max_size=5)), st.integers(0, 4))
def test_local_cubes_are_nested_around_their_sample(x, n):
    found = LocalCubes(n=n, delta=0.15).cubes(x)
    assert len(found) == len(set(found)) <= 1 + n * len(x)
    for centre in x:
        around = [Cube.around(centre, k * 0.15) for k in range(1, n + 1)]
        assert set(around) <= set(found)
        assert all(b.encloses(a) for a, b in pairwise(around))


@pytest.mark.parametrize("n", [-1, 2.0, True, "3", None])
def test_bad_number_of_cubes_is_named(n):
    with pytest.raises(InvalidValueError, match=r"LocalCubes\.n") as error:
        LocalCubes(n=n)
    assert repr(n) in str(error.value)


@pytest.mark.parametrize("delta", [0.0, -0.1, math.nan, math.inf, "0.1", True, None])
def test_bad_delta_is_named(delta):
    with pytest.raises(InvalidValueError, match=r"LocalCubes\.delta") as error:
        LocalCubes(delta=delta)
    assert repr(delta) in str(error.value)


def test_global_domain_is_one_cube():
    assert GlobalDomain().cubes(np.full((3, 2), 0.5)) == [Cube.whole(2)]


def test_sample_hull():
    assert SampleHull().cubes(np.array([[0.3, 0.5]])) == [Cube.whole(2)]
    assert SampleHull().cubes(np.array([[0.3, 0.5], [0.6, 0.5]])) == [Cube.whole(2)]  # flat along the second axis
    whole, middle, hull = SampleHull().cubes(np.array([[0.3, 0.5], [0.6, 0.5], [0.4, 0.9]]))
    assert whole == Cube.whole(2)
    assert hull == Cube((0.3, 0.5), (0.6, 0.9))
    np.testing.assert_allclose(middle.lower, (0.15, 0.25))
    np.testing.assert_allclose(middle.upper, (0.8, 0.95))
    assert SampleHull().cubes(np.array([[0.0], [1.0]])) == [Cube.whole(1)]


# -- Grid ---------------------------------------------------------------------------------------------------------------


def test_grid_points_are_in_c_order():
    grid = Grid(Cube((0.0, 0.5), (1.0, 0.75)), (3, 2))
    expected = [[0.0, 0.5], [0.0, 0.75], [0.5, 0.5], [0.5, 0.75], [1.0, 0.5], [1.0, 0.75]]
    np.testing.assert_array_equal(grid.points(), expected)
    np.testing.assert_array_equal(grid.columns(), np.transpose(expected))
    np.testing.assert_allclose(grid.spacing, [0.5, 0.25])
    assert grid.size == 6
    assert grid.columns().flags.c_contiguous


@given(st.data())
def test_grid_point_agrees_with_points(data):
    dim = data.draw(st.integers(1, 3))
    grid = Grid(data.draw(cubes(dim)), tuple(data.draw(st.lists(st.integers(2, 5), min_size=dim, max_size=dim))))
    every = grid.points()
    assert every.shape == (grid.size, dim)
    assert grid.cube.contains(every).all()
    np.testing.assert_array_equal(grid.at(np.arange(grid.size)), every)
    np.testing.assert_array_equal(every[0], grid.cube.lower)
    np.testing.assert_array_equal(every[-1], grid.cube.upper)


@pytest.mark.parametrize("dim", range(1, 13))
def test_default_points_per_axis(dim):
    shape = resolve_points_per_axis(None, dim)
    assert len(shape) == dim
    assert 1000 <= math.prod(shape) <= MAX_GRID_POINTS


def test_points_per_axis_given():
    assert resolve_points_per_axis(7, 3) == (7, 7, 7)
    assert resolve_points_per_axis(np.int64(7), 2) == (7, 7)
    assert resolve_points_per_axis([5, 9], 2) == (5, 9)
    assert resolve_points_per_axis(np.array([5, 9]), 2) == (5, 9)


@pytest.mark.parametrize(
    ("given_points", "dim", "named"),
    [
        ((5, 9), 3, "(5, 9)"),
        (1, 2, "(1, 1)"),
        (-4, 1, "(-4,)"),
        ((10, 1), 2, "(10, 1)"),
        ((10, 2.7), 2, "(10, 2.7)"),
        ("12", 2, "'12'"),
        (3.0, 1, "3.0"),
        (True, 1, "True"),
        (100, 8, "(100, 100"),
    ],
)
def test_bad_points_per_axis_are_named(given_points, dim, named):
    with pytest.raises(InvalidValueError, match="points_per_axis") as error:
        resolve_points_per_axis(given_points, dim)
    assert named in str(error.value)


# -- cubes that double in size --------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    x=st.integers(1, 3).flatmap(lambda n: st.lists(st.tuples(*[st.floats(0.0, 1.0)] * n), min_size=1, max_size=12)),
    n=st.integers(0, 5),
    smallest=st.sampled_from([0.025, 0.1, 0.5]),
    spacing=st.sampled_from([0.0, 0.25, 1.0]),
)
def test_doubling_cubes(x, n, smallest, spacing):
    samples = np.array(x)
    locality = DoublingCubes(n, smallest, spacing)
    found = locality.cubes(samples)
    assert found[0] == Cube.whole(samples.shape[1]) and len(set(found)) == len(found) <= 1 + n * len(samples)
    for size in range(1, len(samples)):  # a new sample never takes a cube away, nor does it change the order of the others
        before = locality.cubes(samples[:size])
        assert found[: len(before)] == before
    for k in range(n):
        edge = smallest * 2.0**k
        sizes = [Cube.around(centre, edge) for centre in samples]
        kept = [centre for centre, cube in zip(samples, sizes, strict=True) if cube in found]
        for centre in samples:  # every sample is well inside a cube of every size
            assert min(np.abs(centre - other).max() for other in kept) <= 0.5 * spacing * edge + 1e-12


def test_doubling_cubes_without_spacing_surround_every_sample():
    points = np.array([[0.2], [0.21], [0.8]])
    assert len(DoublingCubes(3, 0.05, 0.0).cubes(points)) == 1 + 3 * 3
    assert len(DoublingCubes(3, 0.05, 0.5).cubes(points)) == 1 + 3 * 2  # 0.21 belongs to the cubes around 0.2


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("lengthscale", [0.03, 0.1, 0.3])
def test_default_cubes_resolve_a_small_first_step(lengthscale, dim):
    """Up to four lengthscales everywhere; up to six dimensions the finest default grid is within 0.003 lengthscales."""
    locality = default_cubes(lengthscale, dim)
    assert locality.smallest * 2.0 ** (locality.n - 1) == pytest.approx(4.0 * lengthscale)
    finest = locality.smallest / (resolve_points_per_axis(None, dim)[0] - 1) / lengthscale
    assert finest < 0.003 if dim <= 6 else locality.smallest == pytest.approx(0.25 * lengthscale)


@pytest.mark.parametrize(
    "arguments", [{"n": -1}, {"n": 2.5}, {"smallest": 0.0}, {"smallest": float("nan")}, {"spacing": -0.1}, {"spacing": True}]
)
def test_doubling_cubes_name_a_wrong_setting(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(InvalidValueError, match=rf"DoublingCubes.{name}.*{value}"):
        DoublingCubes(**arguments)
