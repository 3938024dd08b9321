"""Norm estimators: scenario (Alg. 3), Hoeffding (2024), fixed; the random functions behind them, scenario by scenario."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, kstest

from safebo.exceptions import InfeasibleScenarioError, InvalidValueError
from safebo.kernels import RBF, Matern
from safebo.norms import AdaptiveScenario, Fixed, Hoeffding, LSTMNorm, NormQuery, PosteriorScenario, Scenario
from safebo.norms import scenario as module
from safebo.norms.scenario import RandomFunctions, discards, make_query
from safebo.rkhs import random_function
from tests.references import scenario as reference
from tests.references.kernels import transcribed

DATA = Path(__file__).parent / "data"
SMALL = Scenario(m=60, gamma=0.2, kappa=0.1)


def rows(name):
    with (DATA / name).open() as file:
        return list(csv.DictReader(file))


def query(kernel, dim, t, *, noise=0.05, lower=0.0, upper=1.0, seed=(3, 1, 4)):
    """t samples of a random function in the box."""
    low, high = np.broadcast_to(lower, dim).astype(np.float64), np.broadcast_to(upper, dim).astype(np.float64)
    rng = np.random.default_rng(t)
    x = rng.uniform(low, high, (t, dim))
    y = random_function(kernel, dim, 3.0, 5, 50)(x) + noise * rng.normal(size=t)
    return make_query(x, y, kernel, noise, low, high, seed)


def tails(functions, q):
    """The library's own draws as naive (centres, coefficients), in the order in which they were drawn."""
    t, dim = q.posterior.x.shape
    # the library scales the centres in single precision; the rounded ones are the draw
    stretch = ((q.upper - q.lower) / q.kernel.lengthscales(dim)).astype(np.float32)
    drawn, coefficients = functions.draw(functions.tail_size(q.width, t), dim, q.seed, stretch)
    scaled = drawn.astype(np.float64).transpose(0, 2, 1)
    centres = q.lower + scaled * q.kernel.lengthscales(dim)
    return list(zip(centres, coefficients.astype(np.float64), strict=True))


def naive_norms(functions, q):
    kernel, (x, y) = transcribed(q.kernel, len(q.lower)), (q.posterior.x, q.posterior.y)
    return np.array([reference.random_norm(kernel, x, y, Z, a, q.noise) for Z, a in tails(functions, q)])


# -- random functions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "dim"),
    [
        (Matern(0.5, 0.1), 1),
        (Matern(1.5, 0.1, 2.5), 1),
        (Matern(2.5, 0.3), 1),
        (RBF(0.1, 0.4), 1),
        (Matern(0.5, (0.1, 0.4), 3.0), 2),
        (Matern(1.5, 0.1), 2),
        (Matern(2.5, (0.2, 0.1)), 2),
        (RBF(0.2, 1.7), 2),
        (Matern(1.5, (0.1, 0.2, 0.7), 0.3), 3),
        (Matern(0.5, 0.3), 3),
        (RBF((0.3, 0.2, 0.2)), 3),
    ],
    ids=repr,
)
@pytest.mark.parametrize("box", [(0.0, 1.0), (0.3, 0.42)], ids=["whole", "cube"])
def test_norms_equal_the_naive_ones_scenario_by_scenario(kernel, dim, box):
    functions = RandomFunctions(12, 1.3)
    q = query(kernel, dim, 7, lower=box[0], upper=box[1])
    exact = dim == 1 and kernel.family != "rbf"
    np.testing.assert_allclose(functions.norms(q), naive_norms(functions, q), rtol=1e-9 if exact else 2e-5)


def test_norms_in_a_box_with_unequal_edges():
    kernel, functions = Matern(1.5, (0.1, 0.3)), RandomFunctions(12)
    q = query(kernel, 2, 4, lower=(0.0, 0.45), upper=(0.5, 0.55))
    assert functions.tail_size(q.width, 4) == 246
    np.testing.assert_allclose(functions.norms(q), naive_norms(functions, q), rtol=2e-5)
    for Z, _ in tails(functions, q):
        assert ((q.lower - 1e-7 <= Z) & (q.upper + 1e-7 >= Z)).all()


@pytest.mark.parametrize("kernel", [Matern(2.5, 0.3), RBF(0.3)], ids=repr)
def test_norms_of_smooth_functions_with_many_precise_samples(kernel):
    """The samples explain nearly all of the tail: what is left is a small difference of large numbers."""
    functions, q = RandomFunctions(12), query(kernel, 1, 40, noise=1e-5)
    np.testing.assert_allclose(functions.norms(q), naive_norms(functions, q), rtol=1e-4)


@pytest.mark.parametrize("dim", [1, 2])
def test_norms_without_samples_are_those_of_the_tails(dim):
    functions, kernel = RandomFunctions(10), Matern(1.5, 0.1)
    q = make_query(np.empty((0, dim)), [], kernel, 0.1, np.zeros(dim), np.ones(dim), 0)
    naive = transcribed(kernel, dim)
    expected = [math.sqrt(a @ naive(Z, Z) @ a) for Z, a in tails(functions, q)]
    np.testing.assert_allclose(functions.norms(q), expected, rtol=5e-6)


@pytest.mark.parametrize(
    ("width", "samples", "expected"), [(1.0, 1, 499), (1.0, 29, 471), (0.1, 3, 47), (0.02, 8, 10), (0.1, 45, 10), (0.5, 240, 10)]
)
def test_tail_size(width, samples, expected):
    size = RandomFunctions().tail_size(width, samples)
    assert size == expected
    assert size == reference.number_of_centres(np.zeros(1), np.array([width]), samples) - samples


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_draws_are_uniform(dim):
    centres, coefficients = RandomFunctions(200, 2.5).draw(60, dim, (9,))
    assert centres.shape == (200, dim, 60) and coefficients.shape == (200, 60)
    for axis in range(dim):
        assert kstest(centres[:, axis].ravel(), "uniform").pvalue > 1e-4  # several tests with fixed seeds: one in a thousand
    assert kstest(coefficients.ravel(), "uniform", args=(-2.5, 5.0)).pvalue > 1e-4
    assert abs(np.corrcoef(centres[:, 0].ravel(), coefficients.ravel())[0, 1]) < 0.03


@pytest.mark.statistical
def test_sorted_draws_are_order_statistics_of_uniform_ones():
    """On the line: centre number k of T is Beta(k, T + 1 - k) distributed."""
    centres, _ = RandomFunctions(2000).draw(40, 1, (2,))
    assert (np.diff(centres[:, 0], axis=1) >= 0.0).all()
    for k in (1, 2, 13, 39, 40):
        assert kstest(centres[:, 0, k - 1], beta(k, 41 - k).cdf).pvalue > 0.01


@pytest.mark.statistical
@pytest.mark.parametrize("kernel", [Matern(1.5, 0.1), RBF(0.3)], ids=repr)
def test_sorted_draws_give_the_same_norms_as_independent_ones(kernel):
    q = query(kernel, 1, 5, upper=0.12)
    ours = RandomFunctions(1500).norms(q)
    rng, T = np.random.default_rng(11), RandomFunctions().tail_size(q.width, 5)
    drawn = [reference.draw_tail(rng, q.lower, q.upper, T) for _ in range(1500)]
    naive = reference.random_norms(transcribed(kernel, 1), q.posterior.x, q.posterior.y, drawn, q.noise)
    assert kstest(ours, naive).pvalue > 0.01


@pytest.mark.parametrize("dim", [1, 2])
def test_draws_depend_on_seed_and_size_only(dim):
    functions = RandomFunctions(20)
    sizes, names = [50, 400, 129, 10, 128, 50], [(1, 2), (1, 3), (1, 2, 7)]
    first = {(size, name): functions.draw(size, dim, name) for name in names for size in sizes}
    for size in reversed(sizes):
        for name in names:  # another order: what was drawn before differs every time
            RandomFunctions(7).draw(300, dim, name)
            for old, new in zip(first[size, name], functions.draw(size, dim, name), strict=True):
                np.testing.assert_array_equal(old, new)
    for name in names[1:]:
        assert not np.array_equal(first[50, names[0]][0], first[50, name][0])


def test_draws_are_not_shared_with_the_caller():
    functions = RandomFunctions(5)
    centres, coefficients = functions.draw(30, 1, (1,))
    kept = centres.copy(), coefficients.copy()
    centres[:], coefficients[:] = 0.0, 0.0
    for again, old in zip(functions.draw(30, 1, (1,)), kept, strict=True):
        np.testing.assert_array_equal(again, old)


def test_cubes_share_the_coefficients_of_their_step():
    """On the line a smaller sub-domain uses the first centres of the same streams."""
    functions = RandomFunctions(5)
    (few_z, few), (_, many) = functions.draw(30, 1, (1,)), functions.draw(200, 1, (1,))
    np.testing.assert_array_equal(few, many[:, :30])
    assert (few_z[:, 0, -1] > 0.7).all()  # spread over the whole box nevertheless


# -- discards -----------------------------------------------------------------------------------------------------------

decimals = st.integers(1, 999).map(lambda i: i / 1000)


def naive_discards(m, gamma, kappa):
    try:
        return reference.discards(m, gamma, kappa)
    except ValueError:
        return None


@settings(max_examples=300)
@given(st.integers(1, 400), decimals, st.one_of(decimals, st.integers(1, 99).map(lambda i: i * 1e-5)))
def test_discards_equal_exact_integer_arithmetic(m, gamma, kappa):
    expected = naive_discards(m, gamma, kappa)
    try:
        found = discards(m, gamma, kappa)
    except InfeasibleScenarioError:
        found = None
    if found != expected:  # only where the two sides of Theorem 1 agree to rounding
        r = max(-1 if v is None else v for v in (found, expected))
        assert float(reference.binomial_sum(m, r, gamma)) == pytest.approx(kappa, rel=1e-12)


@settings(max_examples=200)
@given(decimals, decimals)
def test_the_smallest_m_is_named_and_works(gamma, kappa):
    smallest = reference.smallest_m(gamma, kappa)
    if float(reference.binomial_sum(smallest, 0, gamma)) == pytest.approx(kappa, rel=1e-12):
        smallest += 1  # a tie in exact arithmetic, which rounding may break either way
        assert discards(smallest, gamma, kappa) >= 0
        return
    assert discards(smallest, gamma, kappa) >= 0
    if smallest > 1:
        with pytest.raises(InfeasibleScenarioError, match=rf"smallest m that works is {smallest}\.$"):
            discards(smallest - 1, gamma, kappa)


@pytest.mark.parametrize(("gamma", "kappa"), [(0.99, 1e-4), (0.2, 0.64), (0.3, 0.343), (0.7, 0.027), (0.9, 0.001), (0.5, 0.125)])
def test_the_named_m_works_where_theorem_1_holds_with_equality(gamma, kappa):
    for m in range(1, reference.smallest_m(gamma, kappa) + 2):
        try:
            discards(m, gamma, kappa)
        except InfeasibleScenarioError as error:
            named = int(re.search(r"works is (\d+)", str(error)).group(1))
            assert named > m
            assert discards(named, gamma, kappa) >= 0
            if named - 1 > m:
                with pytest.raises(InfeasibleScenarioError):
                    discards(named - 1, gamma, kappa)


def check_published(m, gamma, kappa, r):
    """Whether the row is feasible. Where it is not the paper plots 0; the error names the smallest m that works."""
    if (1.0 - gamma) ** m <= kappa:
        assert discards(m, gamma, kappa) == r
        return True
    assert r == 0
    with pytest.raises(InfeasibleScenarioError) as error:
        discards(m, gamma, kappa)
    smallest = int(re.search(r"works is (\d+)", str(error.value)).group(1))
    assert discards(smallest, gamma, kappa) == 0
    with pytest.raises(InfeasibleScenarioError):
        discards(smallest - 1, gamma, kappa)
    return False


def test_discards_reproduce_the_published_curves():
    over_gamma = [
        check_published(2500, float(row["gamma"]), 0.001, int(row["r"])) for row in rows("discards_vs_gamma_m2500_kappa0.001.csv")
    ]
    assert len(over_gamma) == 99 and over_gamma.count(False) == 2
    over_m = [
        check_published(int(row["m"]), 0.01, 0.001, int(row["r"])) for row in rows("discards_vs_m_gamma0.01_kappa0.001.csv")
    ]
    assert len(over_m) == 14 and over_m.count(False) == 1


def test_confidence_without_discards_reproduces_the_published_curve():
    table = rows("kappa_vs_m_r0_gamma0.01.csv")
    assert len(table) == 14
    for row in table:
        m, kappa = int(row["m"]), float(row["kappa"])
        assert discards(m, 0.01, kappa * (1.0 + 1e-9)) == 0
        with pytest.raises(InfeasibleScenarioError, match=rf"works is {m + 1}\."):
            discards(m, 0.01, kappa * (1.0 - 1e-9))


def test_discards_of_the_default_setting():
    assert Scenario().discards == Scenario(m=1000, gamma=0.1, kappa=0.01).discards == 78
    with pytest.raises(InfeasibleScenarioError, match=r"m = 500 .*works is 688"):
        Scenario(m=500, gamma=0.01, kappa=0.001)


# -- Algorithm 3 --------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.0, 100.0), min_size=60, max_size=60), st.one_of(st.just(0.0), st.floats(0.0, 120.0)), st.data())
def test_select_is_algorithm_3(values, floor, data):
    norms = np.sort(values)
    if data.draw(st.booleans()):
        floor = float(data.draw(st.sampled_from(norms)))  # exactly at one of the norms
    if norms[-1] == 0.0:
        return
    assert SMALL.select(norms, floor) == reference.algorithm_3(norms, 0.2, 0.1, floor)


def test_select_keeps_as_many_as_theorem_1_allows():
    norms = np.arange(1.0, 1001.0)
    assert Scenario().select(norms) == 922.0
    assert Scenario().select(norms, 922.0) == 923.0
    assert Scenario().select(norms, 1234.0) == 1234.0


@given(st.lists(st.floats(0.1, 100.0), min_size=80, max_size=80), st.tuples(decimals, decimals), st.tuples(decimals, decimals))
def test_the_bound_does_not_increase_in_gamma_or_kappa(values, gammas, kappas):
    norms = np.sort(values)

    def bound(gamma, kappa):
        try:
            return Scenario(m=80, gamma=gamma, kappa=kappa).select(norms)
        except InfeasibleScenarioError:
            return math.inf

    assert bound(max(gammas), kappas[0]) <= bound(min(gammas), kappas[0])
    assert bound(gammas[0], max(kappas)) <= bound(gammas[0], min(kappas))


@dataclass(frozen=True)
class Constant:
    """A floor that knows its answer."""

    value: float

    def estimate(self, query):
        return self.value


@pytest.mark.parametrize("floor", ["lstm", 3, LSTMNorm])
@pytest.mark.parametrize("estimator", [Scenario, AdaptiveScenario, PosteriorScenario])
def test_a_floor_that_is_none_is_refused_at_once(estimator, floor):
    with pytest.raises(InvalidValueError, match=rf"{estimator.__name__}\.floor must be a norm estimator") as error:
        estimator(floor=floor)
    assert repr(floor) in str(error.value)


@pytest.mark.parametrize("floor", [0.0, 5.0, 11.5, 1e3])
def test_estimate_is_the_selection_from_the_sampled_norms(floor):
    q = query(Matern(1.5, 0.1), 1, 6)
    scenario = Scenario(m=60, gamma=0.2, kappa=0.1, floor=Constant(floor))
    norms = np.sort(naive_norms(scenario.functions, q))
    assert scenario.estimate(q) == pytest.approx(reference.algorithm_3(norms, 0.2, 0.1, floor), rel=1e-9)
    assert scenario.estimate(q) >= max(floor, SMALL.estimate(q))


def test_alpha_bar_scales_the_tails():
    """Without data to pass, twice the coefficients are twice the norm."""
    kernel = Matern(1.5, 0.1)
    ones, twos = (
        np.sort(RandomFunctions(20, alpha_bar).norms(query(kernel, 1, 1, noise=1e6))) for alpha_bar in (1.0, 2.0)
    )  # a measurement that says nothing
    np.testing.assert_allclose(twos, 2.0 * ones, rtol=1e-5)


@pytest.mark.statistical
def test_ratio_to_the_true_norm_falls_as_published():
    """Twenty functions with norms between 1 and 10: the published mean ratio falls to 0.34 of its first value."""
    kernel, noise, scenario = Matern(1.5, 0.1), 0.01, Scenario(m=200, gamma=0.1, kappa=0.01)
    ratios = {1: [], 29: []}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        norm = rng.uniform(1.0, 10.0)
        f, x = random_function(kernel, 1, norm, seed, 500), rng.random((29, 1))
        y = f(x) + noise * rng.normal(size=29)
        for t, found in ratios.items():
            norms = scenario.sample_norms(x[:t], y[:t], kernel=kernel, noise=noise, lower=0.0, upper=1.0, seed=(seed, t))
            found.append(scenario.select(norms) / norm)
    published = {int(row["iteration"]): row["mean_ratio"] for row in rows("norm_ratio_over_iterations.csv")}
    target = float(published[29]) / float(published[1])
    assert np.mean(ratios[29]) / np.mean(ratios[1]) == pytest.approx(target, rel=0.35)
    assert 1.0 < np.mean(ratios[29]) < 2.5
    assert 3.0 < np.mean(ratios[1]) < 8.0


# -- plain arrays -------------------------------------------------------------------------------------------------------

GIVEN = {"kernel": Matern(1.5, 0.2), "noise": 0.1, "lower": [0.0, 0.2], "upper": [0.5, 1.0]}
X, Y = [[0.1, 0.3], [0.4, 0.9], [0.5, 0.2]], [1.0, 0.5, -0.2]


def test_sampled_norms_ascend_and_are_determined_by_the_seed():
    norms = SMALL.sample_norms(X, Y, **GIVEN, seed=5)
    assert norms.shape == (60,) and norms.dtype == np.float64
    assert (np.diff(norms) >= 0.0).all() and norms[0] > 0.0
    np.testing.assert_array_equal(norms, SMALL.sample_norms(np.array(X), np.array(Y), **GIVEN, seed=(5,)))
    assert not np.array_equal(norms, SMALL.sample_norms(X, Y, **GIVEN, seed=6))
    assert not np.array_equal(norms, SMALL.sample_norms(X, Y, **GIVEN, seed=(5, 0, 1)))


def test_one_dimensional_samples_may_be_flat():
    flat = SMALL.sample_norms([0.1, 0.4], [1.0, 2.0], kernel=RBF(), noise=0.1, lower=0.0, upper=0.5)
    column = SMALL.sample_norms([[0.1], [0.4]], [1.0, 2.0], kernel=RBF(), noise=0.1, lower=[0.0], upper=[0.5])
    np.testing.assert_array_equal(flat, column)


def test_sampled_norms_equal_the_naive_ones():
    q = make_query(X, Y, GIVEN["kernel"], GIVEN["noise"], GIVEN["lower"], GIVEN["upper"], 5)
    expected = np.sort(naive_norms(SMALL.functions, q))
    np.testing.assert_allclose(SMALL.sample_norms(X, Y, **GIVEN, seed=5), expected, rtol=2e-5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"x": [[0.1, 0.3], [0.4, 0.9], [0.6, 0.2]]}, r"\[0\.6, 0\.2\] lies outside"),
        ({"x": [[0.1, 0.3], [0.4, 0.9], [0.5, 0.1]]}, r"\[0\.5, 0\.1\] lies outside"),
        ({"x": [[0.1, 0.3], [0.4, 0.9], [0.5, math.nan]]}, "finite"),
        ({"y": [1.0, math.inf, 0.0]}, "finite"),
        ({"y": [math.nan, 1.0, 0.0]}, "finite"),
        ({"noise": 0.0}, "0.0"),
        ({"noise": -0.1}, "-0.1"),
        ({"noise": math.nan}, "nan"),
        ({"noise": math.inf}, "inf"),
        ({"lower": [0.5, 0.2]}, "lower < upper"),
        ({"upper": [0.5, math.nan]}, "lower < upper"),
        ({"lower": [0.0], "upper": [1.0]}, "Shapes"),
        ({"x": [0.1, 0.2, 0.3]}, "Shapes"),
        ({"y": [1.0, 0.5, 0.2, 0.1, 0.0, 0.7]}, "Shapes"),
        ({"kernel": Matern(1.5, (0.1, 0.2, 0.3))}, "3 lengthscales"),
    ],
)
def test_bad_samples_are_named(change, named):
    arguments = {"x": X, "y": Y, **GIVEN, **change}
    with pytest.raises(InvalidValueError, match=named):
        SMALL.sample_norms(**arguments)


@pytest.mark.parametrize(
    "change",
    [
        {"x": np.array(X).T, "lower": [0.0, 0.0], "upper": [1.0, 1.0]},  # axes and samples exchanged
        {"y": [1.0, 0.5]},
        {"x": [[0.1, 0.3], [0.4, 0.9]]},
        {"upper": [math.inf, 1.0]},
    ],
    ids=["transposed", "few values", "few points", "infinite box"],
)
def test_samples_of_the_wrong_shape_are_refused(change):
    with pytest.raises(InvalidValueError):
        SMALL.sample_norms(**{"x": X, "y": Y, **GIVEN, **change})


# -- Hoeffding and fixed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "dim", "upper"),
    [(Matern(1.5, 0.1), 1, 1.0), (Matern(2.5, 0.2, 3.0), 1, 0.2), (RBF((0.2, 0.3), 0.5), 2, 0.3)],
    ids=repr,
)
def test_hoeffding_equals_the_transcription(kernel, dim, upper):
    q = query(kernel, dim, 6, upper=upper)
    hoeffding = Hoeffding(m=40, gamma=0.05, alpha_bar=1.5)
    drawn = tails(RandomFunctions(40, 1.5), q)
    naive, (x, y) = transcribed(kernel, dim), (q.posterior.x, q.posterior.y)
    smallest, largest = reference.hoeffding_range(naive, x, y, drawn, q.noise, 1.5, kernel.outputscale)
    norms = reference.random_norms(naive, x, y, drawn, q.noise)
    expected = reference.hoeffding_norm(norms, smallest, largest, 0.05)
    assert hoeffding.estimate(q) == pytest.approx(expected, rel=1e-5)
    assert norms[-1] < largest
    assert (hoeffding.gamma, hoeffding.kappa) == (0.05, 0.0)


def test_hoeffding_is_looser_than_the_scenario_bound():
    q = query(Matern(1.5, 0.1), 1, 10)
    assert Hoeffding(m=200).estimate(q) > Scenario(m=200).estimate(q)


def test_fixed_is_the_guess():
    fixed = Fixed(7)
    assert fixed.estimate(query(RBF(), 1, 1)) == fixed.value == 7.0
    assert (fixed.gamma, fixed.kappa) == (0.0, 0.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "5", None, True])
def test_bad_guesses_are_named(bad):
    with pytest.raises(InvalidValueError) as error:
        Fixed(bad)
    assert repr(bad) in str(error.value)


@pytest.mark.parametrize("estimator", [Scenario, Hoeffding])
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"m": 0}, "0"),
        ({"m": 10.5}, "10.5"),
        ({"m": True}, "True"),
        ({"gamma": 0.0}, "0.0"),
        ({"gamma": 1.0}, "1.0"),
        ({"gamma": math.nan}, "nan"),
        ({"alpha_bar": 0.0}, "0.0"),
        ({"alpha_bar": -2.0}, "-2.0"),
        ({"alpha_bar": math.inf}, "inf"),
        ({"alpha_bar": "1"}, "'1'"),
        ({"centres": 0}, "0"),
    ],
)
def test_bad_settings_are_named(estimator, change, named):
    with pytest.raises(InvalidValueError, match=next(iter(change))) as error:
        estimator(**change)
    assert named in str(error.value)


@pytest.mark.parametrize("kappa", [0.0, 1.0, -0.1, "0.1"])
def test_bad_confidence_is_named(kappa):
    with pytest.raises(InvalidValueError, match="kappa"):
        Scenario(kappa=kappa)


def test_queries_know_their_box():
    q = query(Matern(1.5, (0.1, 0.2)), 2, 3, lower=(0.1, 0.2), upper=(0.4, 0.9))
    assert isinstance(q, NormQuery)
    assert q.width == pytest.approx(0.7)
    assert q.kernel == Matern(1.5, (0.1, 0.2)) and q.posterior.regulariser == pytest.approx(0.05**2)


@pytest.mark.parametrize("dim", [1, 2])
def test_draws_do_not_depend_on_threads(dim, monkeypatch):
    draws = []
    for few, threads in ((0, "2"), (0, "1"), (10**9, "2")):
        monkeypatch.setattr(module, "_FEW", few)
        monkeypatch.setenv("NUMBA_NUM_THREADS", threads)
        module._latest[0] = ((), *module._latest[0][1:])  # forget the draws of the step before
        draws.append(RandomFunctions(m=200).draw(60, dim, (1, 2, dim)))
    for centres, coefficients in draws[1:]:
        np.testing.assert_array_equal(centres, draws[0][0])
        np.testing.assert_array_equal(coefficients, draws[0][1])
