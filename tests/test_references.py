"""The references themselves: against GPyTorch, the paper's data, hand calculation, coverage."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import gpytorch
import numpy as np
import pytest
import torch

from tests.references import algorithm, bounds, kernels, posterior, scenario, sets

DATA = Path(__file__).parent / "data"
NU = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open() as file:
        return list(csv.DictReader(file))


def rkhs_function(seed: int, norm: float, kernel: kernels.Kernel, dim: int = 1, centres: int = 200):
    """A random f = sum_s c_s k(., z_s) with ||f|| = norm."""
    rng = np.random.default_rng(seed)
    Z, c = rng.uniform(size=(centres, dim)), rng.uniform(-1, 1, centres)
    c *= norm / math.sqrt(c @ kernel(Z, Z) @ c)
    return lambda A: kernel(np.asarray(A, dtype=np.float64).reshape(-1, dim), Z) @ c


# ------------------------------------------------------------------ kernels and posterior


def gpytorch_kernel(profile: str, lengthscales: list[float], outputscale: float):
    n = len(lengthscales)
    if profile == "rbf":
        base = gpytorch.kernels.RBFKernel(ard_num_dims=n)
    else:
        base = gpytorch.kernels.MaternKernel(nu=NU[profile], ard_num_dims=n)
    scaled = gpytorch.kernels.ScaleKernel(base).double()
    base.lengthscale = torch.tensor(lengthscales, dtype=torch.float64)
    scaled.outputscale = torch.tensor(outputscale, dtype=torch.float64)
    return scaled


@pytest.mark.parametrize("profile", sorted(kernels.PROFILES))
def test_kernel_matches_gpytorch(profile: str) -> None:
    rng = np.random.default_rng(0)
    A, B = rng.uniform(size=(5, 3)), rng.uniform(size=(4, 3))
    ours = kernels.make_kernel(profile, [0.2, 0.5, 0.9], 2.5)(A, B)
    module = gpytorch_kernel(profile, [0.2, 0.5, 0.9], 2.5)
    theirs = module(torch.from_numpy(A), torch.from_numpy(B)).to_dense().detach().numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_metric_of_a_stationary_kernel() -> None:
    rng = np.random.default_rng(1)
    A, B = rng.uniform(size=(6, 2)), rng.uniform(size=(5, 2))
    k = kernels.make_kernel("matern32", [0.3, 0.4], 4.0)
    np.testing.assert_allclose(kernels.metric(k, A, B) ** 2, 2 * (4.0 - k(A, B)), atol=1e-13)
    assert np.all(np.diag(kernels.metric(k, A, A)) == 0)


def test_posterior_matches_gpytorch_and_the_inverse() -> None:
    rng = np.random.default_rng(2)
    X, A, y = rng.uniform(size=(7, 2)), rng.uniform(size=(9, 2)), rng.normal(size=7)
    lengthscales, noise = [0.3, 0.6], 0.05
    k = kernels.make_kernel("matern52", lengthscales, 1.7)
    mean, sd = posterior.posterior(k, X, y, noise**2, A)

    inverse = np.linalg.inv(k(X, X) + noise**2 * np.eye(7))
    np.testing.assert_allclose(mean, k(A, X) @ inverse @ y, rtol=1e-9)
    np.testing.assert_allclose(sd**2, 1.7 - np.diag(k(A, X) @ inverse @ k(X, A)), rtol=1e-7)

    class Model(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
            likelihood.noise = noise**2
            super().__init__(torch.from_numpy(X), torch.from_numpy(y), likelihood)
            self.covar_module = gpytorch_kernel("matern52", lengthscales, 1.7)

        def forward(self, x):
            zero = torch.zeros(x.shape[0], dtype=torch.float64)
            return gpytorch.distributions.MultivariateNormal(zero, self.covar_module(x))

    model = Model().eval()
    with torch.no_grad():
        prediction = model(torch.from_numpy(A))
    np.testing.assert_allclose(mean, prediction.mean.numpy(), rtol=1e-6)
    np.testing.assert_allclose(sd**2, prediction.variance.numpy(), rtol=1e-6)


def test_posterior_without_data_is_the_prior() -> None:
    k = kernels.make_kernel("rbf", [0.2], 3.0)
    mean, sd = posterior.posterior(k, np.empty((0, 1)), np.empty(0), 0.1, np.array([[0.3]]))
    assert mean[0] == 0 and sd[0] == pytest.approx(math.sqrt(3.0))


def test_mean_norm_is_the_norm_of_the_coefficients_and_stays_below_the_function_norm() -> None:
    k = kernels.make_kernel("matern32", [0.1])
    f = rkhs_function(3, 5.0, k)
    X = np.random.default_rng(3).uniform(size=(25, 1))
    few = posterior.mean_norm(k, X[:5], f(X[:5]), 1e-10)
    many = posterior.mean_norm(k, X, f(X), 1e-10)
    assert few < many < 5.0


# -------------------------------------------------------------------------------- bounds


def test_paper_beta_by_hand() -> None:
    K = np.array([[1.0]])
    expected = 2.0 + math.sqrt(0.01 * math.log(1 + 1 / 0.01) - 2 * 0.01 * math.log(0.1))
    assert bounds.paper_beta(K, 2.0, 0.01, 0.1) == pytest.approx(expected, rel=1e-14)


def test_printed_beta_is_abbasi_yadkori_with_regulariser_sigma() -> None:
    k = kernels.make_kernel("matern32", [0.2])
    K = k(*(2 * [np.random.default_rng(4).uniform(size=(6, 1))]))
    derived = bounds.abbasi_yadkori_beta(0.03)(K, 1.5, 0.03, 0.01)
    assert bounds.paper_beta(K, 1.5, 0.03, 0.01) == pytest.approx(derived, rel=1e-12)


def test_ridge_minimum_is_the_printed_difference() -> None:
    rng = np.random.default_rng(5)
    X, y = rng.uniform(size=(8, 1)), rng.normal(size=8)
    K = kernels.make_kernel("matern52", [0.2])(X, X)
    for alpha in (1e-3, 0.1, 10.0):
        printed = y @ y - y @ K @ np.linalg.solve(K + alpha * np.eye(8), y)
        assert bounds.ridge_minimum(K, y, alpha) == pytest.approx(printed, rel=1e-8)


@pytest.mark.parametrize("profile", ["matern32", "rbf"])
def test_valid_bounds_cover_functions_of_the_told_norm(profile: str) -> None:
    """25 functions, delta = 0.01: neither the mixture nor Abbasi-Yadkori misses one."""
    k, sigma, norm = kernels.make_kernel(profile, [0.15]), 0.05, 3.0
    A = np.linspace(0, 1, 60)[:, None]
    beta = bounds.abbasi_yadkori_beta(sigma**2)
    for seed in range(25):
        f = rkhs_function(seed, norm, k)
        rng = np.random.default_rng(1000 + seed)
        X = rng.uniform(size=(12, 1))
        y = f(X) + sigma * rng.normal(size=12)
        lower, upper = bounds.mixture_interval(k, X, y, A, sigma=sigma, delta=0.01, B=norm)
        assert np.all(lower <= f(A)) and np.all(f(A) <= upper)
        lower, upper = bounds.beta_interval(k, X, y, A, regulariser=sigma**2, beta=beta, B=norm, sigma=sigma, delta=0.01)
        assert np.all(lower <= f(A)) and np.all(f(A) <= upper)
        assert bounds.falsification_bound(k(X, X), y, sigma, 0.01) <= norm


def test_norm_is_refuted_exactly_below_the_falsification_bound() -> None:
    k, sigma = kernels.make_kernel("matern32", [0.3]), 0.01
    X = np.linspace(0, 1, 10)[:, None]
    y = 5 * np.sin(20 * X[:, 0])
    least = bounds.falsification_bound(k(X, X), y, sigma, 0.01)
    assert least > 1
    assert np.min(bounds.mixture_slack(k(X, X), y, sigma, 0.01, least * (1 + 1e-6))) > 0
    with pytest.raises(ValueError, match="refuted"):
        bounds.mixture_interval(k, X, y, X, sigma=sigma, delta=0.01, B=least * (1 - 1e-6))


# ------------------------------------------------------------------------------ scenario


def test_random_norm_is_the_split_form_and_interpolates_subject_to_noise() -> None:
    rng = np.random.default_rng(6)
    k, sigma = kernels.make_kernel("matern32", [0.2, 0.3], 1.4), 0.1
    X, y = rng.uniform(size=(5, 2)), rng.normal(size=5)
    Z, a = scenario.draw_tail(rng, np.array([0.2, 0.0]), np.array([0.6, 1.0]), 40, 2.0)
    assert Z[:, 0].min() >= 0.2 and Z[:, 0].max() <= 0.6 and np.abs(a).max() > 1
    b = scenario.head_coefficients(k, X, y, Z, a, sigma)
    np.testing.assert_allclose(k(X, X) @ b + k(X, Z) @ a + sigma**2 * b, y, atol=1e-10)
    squared = b @ k(X, X) @ b + 2 * b @ k(X, Z) @ a + a @ k(Z, Z) @ a
    assert scenario.random_norm(k, X, y, Z, a, sigma) == pytest.approx(math.sqrt(squared))


def test_number_of_centres() -> None:
    assert scenario.number_of_centres(np.zeros(2), np.ones(2), 3) == 500
    assert scenario.number_of_centres(np.zeros(2), np.array([0.1, 0.02]), 3) == 50
    assert scenario.number_of_centres(np.zeros(1), np.array([0.02]), 8) == 18


def test_discards_of_the_default_setting() -> None:
    assert scenario.discards(1000, 0.1, 0.01) == 78
    assert scenario.binomial_sum(1000, 78, 0.1) <= scenario.Fraction("0.01")
    assert scenario.binomial_sum(1000, 79, 0.1) > scenario.Fraction("0.01")


def check_discards(m: int, gamma: float, kappa: float, published: int) -> bool:
    """Compares one published row; where r = 0 is infeasible the paper plots 0 and we raise."""
    if (1 - gamma) ** m > kappa:
        assert published == 0
        needed = scenario.smallest_m(gamma, kappa)
        with pytest.raises(ValueError, match=f"m >= {needed}"):
            scenario.discards(m, gamma, kappa)
        return False
    assert scenario.discards(m, gamma, kappa) == published
    return True


def test_discards_reproduce_the_paper() -> None:
    feasible = [
        check_discards(2500, float(row["gamma"]), 0.001, int(row["r"])) for row in rows("discards_vs_gamma_m2500_kappa0.001.csv")
    ]
    assert len(feasible) == 99 and feasible.count(False) == 2  # gamma = 0.001 and 0.002
    feasible = [
        check_discards(int(row["m"]), 0.01, 0.001, int(row["r"])) for row in rows("discards_vs_m_gamma0.01_kappa0.001.csv")
    ]
    assert len(feasible) == 14 and feasible.count(False) == 1  # m = 500


def test_smallest_m_is_the_first_feasible_one() -> None:
    m = scenario.smallest_m(0.01, 0.001)
    assert scenario.discards(m, 0.01, 0.001) == 0
    with pytest.raises(ValueError, match=str(m)):
        scenario.discards(m - 1, 0.01, 0.001)


def test_kappa_without_discards_reproduces_the_paper() -> None:
    table = rows("kappa_vs_m_r0_gamma0.01.csv")
    assert len(table) == 14
    for row in table:
        exact = float(scenario.binomial_sum(int(row["m"]), 0, 0.01))
        assert exact == pytest.approx(float(row["kappa"]), rel=1e-12)


def test_algorithm_3_with_floor_and_previous_norm() -> None:
    norms = np.arange(1.0, 1001.0)  # r = 78, so ||rho_{m-r}|| = 922
    assert scenario.algorithm_3(norms[::-1], 0.1, 0.01) == 922
    assert scenario.algorithm_3(norms, 0.1, 0.01, floor=921.5) == 922
    assert scenario.algorithm_3(norms, 0.1, 0.01, floor=922.0) == 923
    assert scenario.algorithm_3(norms, 0.1, 0.01, floor=999.5) == 1000
    assert scenario.algorithm_3(norms, 0.1, 0.01, floor=1000.0) == 1000
    assert scenario.algorithm_3(norms, 0.1, 0.01, floor=1234.0) == 1234
    assert scenario.algorithm_3(norms, 0.1, 0.01, previous=7.0) == 7
    assert scenario.algorithm_3(norms, 0.1, 0.01, floor=1234.0, previous=1000.0) == 1000


def test_ratio_to_the_true_norm_falls_as_published() -> None:
    """Three functions at t = 1 and t = 29 lie in the published band of one standard deviation."""
    published = {int(r["iteration"]): r for r in rows("norm_ratio_over_iterations.csv")}
    k, sigma, unit = kernels.make_kernel("matern32", [0.1]), 0.01, (np.zeros(1), np.ones(1))
    means = []
    for t in (1, 29):
        ratios = []
        for seed in range(3):
            rng = np.random.default_rng(seed)
            f = rkhs_function(seed, 5.0, k)
            X = rng.uniform(size=(t, 1))
            y = f(X) + sigma * rng.normal(size=t)
            T = scenario.number_of_centres(*unit, t) - t
            tails = [scenario.draw_tail(rng, *unit, T) for _ in range(50)]
            B = scenario.algorithm_3(scenario.random_norms(k, X, y, tails, sigma), 0.1, 0.01)
            ratios.append(B / 5.0)
        means.append(float(np.mean(ratios)))
        low, high = published[t]["mean_minus_std"], published[t]["mean_plus_std"]
        assert float(low) < means[-1] < float(high)
    assert means[1] < 0.7 * means[0]


def test_hoeffding_norm() -> None:
    assert scenario.hoeffding_norm(np.array([1.0, 3.0]), 1.0, 5.0, math.exp(-1)) == pytest.approx(4)
    rng = np.random.default_rng(8)
    k = kernels.make_kernel("matern32", [0.1], 2.0)
    X, y = rng.uniform(size=(4, 1)), rng.normal(size=4)
    tails = [scenario.draw_tail(rng, np.zeros(1), np.ones(1), 30) for _ in range(20)]
    a, b = scenario.hoeffding_range(k, X, y, tails, 0.01, 1.0, outputscale=2.0)
    norms = scenario.random_norms(k, X, y, tails, 0.01)
    assert a < norms[0] and norms[-1] < b


# ---------------------------------------------------------------------------------- sets


def test_sets_by_hand() -> None:
    """Matern 1/2, lengthscale 1: d_k = sqrt(2 - 2 exp(-r)) <= 1 exactly where r <= log 2."""
    k = kernels.make_kernel("matern12", [1.0])
    points = np.array([[0.0], [0.69], [0.70], [1.38], [1.39]])
    source = np.array([[0.0]])
    near = [True, True, False, False, False]
    assert sets.continuity_lower(k, 2.0, source, np.array([3.0]), points, 1.0).tolist() == near
    assert sets.continuity_upper(k, 2.0, source, np.array([-3.0]), points, -1.0).tolist() == near
    assert not sets.continuity_lower(k, 2.0, source, np.array([0.9]), points, 1.0).any()
    assert not sets.continuity_lower(k, 2.0, source[:0], np.empty(0), points, 1.0).any()

    # the nearest unsafe point of 0.69 is 0.70, that of 0.0 is at 0.70 > log 2
    safe = np.array(near)
    expected = [False, True, False, False, False]
    values = np.full(5, 3.0)
    assert sets.expanders_lower(k, 2.0, points, safe, values, 1.0).tolist() == expected
    assert sets.expanders_upper(k, 2.0, points, safe, -values, -1.0).tolist() == expected
    assert not sets.expanders_lower(k, 2.0, points, np.ones(5, dtype=bool), values, 1.0).any()

    upper = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert sets.maximisers(safe, upper, 2.0).tolist() == expected
    assert sets.confidence_lower(upper, 4.0).tolist() == [False, False, False, True, True]
    assert sets.confidence_upper(upper, 1.0).tolist() == [True, False, False, False, False]


def test_union_holds_both_rules() -> None:
    first, second = np.array([True, False, False]), np.array([False, True, False])
    assert sets.combine("union", first, second).tolist() == [True, True, False]
    assert sets.combine("continuity", first, second) is first
    assert sets.combine("confidence", first, second) is second
    with pytest.raises(ValueError, match="nonsense"):
        sets.combine("nonsense", first, second)


# ----------------------------------------------------------------------------- algorithm

K1 = kernels.make_kernel("matern32", [0.2])


def output(**changes) -> algorithm.NaiveOutput:
    defaults = {
        "name": "f",
        "kernel": K1,
        "sigma": 0.01,
        "beta": bounds.paper_beta,
        "regulariser": 1e-4,
        "delta": 0.01,
        "lower": 0.0,
        "min_width": 0.1,
    }
    return algorithm.NaiveOutput(**{**defaults, **changes})


def constant_norm(value: float) -> algorithm.Norm:
    return lambda i, lower, upper, X, y, step: value


def start_of(f, h: float) -> float:
    """A point well inside the safe region."""
    A = np.linspace(0.05, 0.95, 91)
    values = f(A)
    return float(A[np.argmin(np.abs(values - (h + 0.6 * (values.max() - h))))])


@pytest.mark.parametrize("rule", ["continuity", "confidence", "union"])
@pytest.mark.parametrize("cubes", [None, (3, 0.1)])
def test_one_output_explores_inside_the_safe_set(rule: str, cubes) -> None:
    f = rkhs_function(11, 2.0, K1)
    values = f(np.linspace(0, 1, 201))
    h = float(np.quantile(values, 0.3))
    bo = algorithm.NaiveSafeBO(1, (41,), [output(lower=h)], constant_norm(2.0), cubes=cubes, safe_set=rule)
    rng = np.random.default_rng(11)
    x0 = [start_of(f, h)]
    bo.tell(x0, [float(f([x0])[0]) + 0.01 * rng.normal()])
    previous: dict[int, np.ndarray] = {}
    asked = 0
    for _ in range(8):
        suggestion = bo.ask()
        assert bo.last is not None
        for c, view in enumerate(bo.last.views):
            assert not np.any(view.maximisers & ~view.safe)
            assert not np.any(view.expanders & ~view.safe)
            assert not np.any(view.candidates & ~(view.maximisers | view.expanders))
            if c in previous:  # nested intervals and a constant norm: S never shrinks
                assert np.all(view.safe[previous[c]])
            previous[c] = np.flatnonzero(view.safe)
        if suggestion is None:
            break
        asked += 1
        view = suggestion.snapshot.views[suggestion.cube]
        assert view.safe[suggestion.index]
        assert (suggestion.cube, suggestion.index) in suggestion.contenders
        assert suggestion.upper[0] - suggestion.lower[0] > 0.1
        truth = float(f([suggestion.x])[0])
        assert truth >= h
        assert suggestion.lower[0] <= truth <= suggestion.upper[0]
        bo.tell(suggestion.x, [truth + 0.01 * rng.normal()])
    assert asked >= 2


def test_asking_twice_changes_nothing() -> None:
    calls: list[tuple[int, int]] = []

    def norm(i, lower, upper, X, y, step) -> float:
        calls.append((step, len(X)))
        return 3.0 - 0.1 * step

    bo = algorithm.NaiveSafeBO(1, (15,), [output(lower=-1.0)], norm, cubes=(2, 0.2))
    bo.tell([0.5], [1.0])
    first, made = bo.ask(), len(calls)
    second = bo.ask()
    assert first is not None and second is not None
    assert len(calls) == made == 3
    assert first.omega == second.omega and np.array_equal(first.x, second.x)
    assert [len(h) for c in bo.subdomains for h in c.history] == [1, 1, 1]


def test_only_touched_subdomains_are_updated_and_norms_never_rise() -> None:
    bo = algorithm.NaiveSafeBO(1, (9,), [output()], lambda i, lo, up, X, y, step: float(step), cubes=(1, 0.2))
    bo.tell([0.2], [1.0])
    bo.ask()
    old = bo.subdomains[1].lower.copy()
    bo.tell([0.8], [1.0])  # far from the first cube
    bo.ask()
    assert [c.samples for c in bo.subdomains] == [(0, 1), (0,), (1,)]
    assert [len(c.history[0]) for c in bo.subdomains] == [2, 1, 1]
    assert [c.norms[0] for c in bo.subdomains] == [1.0, 1.0, 2.0]
    assert np.array_equal(bo.subdomains[1].lower, old)
    np.testing.assert_allclose(bo.subdomains[1].box_lower, [0.1])
    np.testing.assert_allclose(bo.subdomains[1].box_upper, [0.3])


def test_boxes_are_clipped_and_kept_once() -> None:
    bo = algorithm.NaiveSafeBO(2, (3, 4), [output()], constant_norm(1.0), cubes=(4, 0.5))
    bo.tell([0.0, 1.0], [1.0])
    bo.tell([0.0, 1.0], [1.0])
    corners = [(lo.tolist(), up.tolist()) for lo, up in bo.boxes()]
    assert corners == [
        ([0.0, 0.0], [1.0, 1.0]),
        ([0.0, 0.75], [0.25, 1.0]),
        ([0.0, 0.5], [0.5, 1.0]),
        ([0.0, 0.25], [0.75, 1.0]),
    ]  # the fourth cube is the whole domain again
    grid = bo.make_grid(*bo.boxes()[1])
    assert grid.shape == (12, 2)
    first = [[0, 0.75], [0, 5 / 6], [0, 11 / 12], [0, 1], [0.125, 0.75]]
    np.testing.assert_allclose(grid[:5], first)


def test_intervals_are_the_intersection_over_the_history() -> None:
    bo = algorithm.NaiveSafeBO(1, (11,), [output()], constant_norm(2.0))
    widths = []
    for x, y in ((0.5, 1.0), (0.55, 0.9), (0.4, 1.1)):
        bo.tell([x], [y])
        view = bo.snapshot().views[0]
        widths.append(view.upper[0] - view.lower[0])
    assert np.all(widths[1] <= widths[0]) and np.all(widths[2] <= widths[1])
    c = bo.subdomains[0]
    lower, upper = np.full(11, -np.inf), np.full(11, np.inf)
    for record in c.history[0]:
        low, high = bounds.beta_interval(
            K1, record.X, record.y, c.grid, regulariser=1e-4, beta=bounds.paper_beta,
            B=2.0, sigma=0.01, delta=0.01,
        )  # fmt: skip
        lower, upper = np.maximum(lower, low), np.minimum(upper, high)
    np.testing.assert_allclose(c.lower[0], lower, rtol=1e-12)
    np.testing.assert_allclose(c.upper[0], upper, rtol=1e-12)


def test_several_outputs_are_safe_for_every_limit() -> None:
    scale = 4.0
    K2 = kernels.make_kernel("matern52", [0.3], scale)
    f, g = rkhs_function(21, 2.0, K1), rkhs_function(22, 2.0, K2)
    ceiling = float(np.quantile(g(np.linspace(0, 1, 201)), 0.7))
    outs = [
        output(lower=None),
        output(name="g", kernel=K2, outputscale=scale, lower=None, upper=ceiling, min_width=0.05),
    ]
    bo = algorithm.NaiveSafeBO(1, (31,), outs, constant_norm(2.0), cubes=(2, 0.2))
    x0 = [start_of(lambda A: -g(A), -ceiling)]
    bo.tell(x0, [float(f([x0])[0]), float(g([x0])[0])])
    asked = 0
    while asked < 5 and (suggestion := bo.ask()) is not None:
        asked += 1
        assert float(g([suggestion.x])[0]) <= ceiling
        view = suggestion.snapshot.views[suggestion.cube]
        expected = np.maximum(view.omegas[0], view.omegas[1] / 2.0)
        np.testing.assert_array_equal(view.omega, expected)
        assert len(suggestion.norm) == len(suggestion.lower) == 2
        bo.tell(suggestion.x, [float(f([suggestion.x])[0]), float(g([suggestion.x])[0])])
    assert asked >= 2


def test_samples_that_measured_below_the_limit_are_no_seeds() -> None:
    bo = algorithm.NaiveSafeBO(1, (21,), [output(lower=0.5)], constant_norm(5.0), safe_set="continuity")
    bo.tell([0.3], [0.4])
    assert bo.ask() is None
    assert bo.last is not None
    assert bo.last.views[0].seeds == () and not bo.last.views[0].safe.any()
    assert bo.last.best_lower == -math.inf


def test_maximisers_use_the_best_lower_bound_of_all_subdomains() -> None:
    bo = algorithm.NaiveSafeBO(1, (21,), [output(lower=-5.0)], constant_norm(2.0), cubes=(1, 0.1))
    bo.tell([0.2], [2.0])
    bo.tell([0.8], [-2.0])
    snapshot = bo.snapshot()
    good, bad = snapshot.views[1], snapshot.views[2]
    assert good.maximisers.any() and not bad.maximisers.any() and bad.safe.any()
    assert snapshot.best_lower >= max(float(v.lower[0][v.safe].max()) for v in snapshot.views)


def test_asking_without_data_is_an_error() -> None:
    bo = algorithm.NaiveSafeBO(1, (5,), [output()], constant_norm(1.0))
    with pytest.raises(ValueError, match="initial sample"):
        bo.ask()
