"""PosteriorScenario: norms of functions drawn from the posterior given all samples, against the posterior written out."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
from scipy.stats import binom

from safebo import RBF, AdaptiveScenario, Box, Constraint, Fixed, Matern, PosteriorScenario, SafeOptimizer, Scenario
from safebo.exceptions import InfeasibleScenarioError, InvalidValueError, NoGuaranteeWarning
from safebo.norms import LSTMNorm, NormQuery
from safebo.norms import conditioned as module
from safebo.norms.scales import LOG_SCALES
from safebo.posterior import Posterior
from safebo.problems import RKHSProblem
from safebo.rkhs import random_function
from tests.references import conditioned as naive
from tests.references.heading import correlations


def query(kernel, x, y, low, high, noise=0.05, seed=(0, 1)):
    low, high = np.array(low), np.array(high)
    inside = ((x >= low) & (x <= high)).all(axis=1)
    posterior = Posterior.empty(kernel, len(low), noise**2)
    if inside.any():
        posterior = posterior.extend(x[inside], y[inside])
    return NormQuery(posterior, noise, low, high, seed, (x, y))


def situation(seed, dim, kernel):
    rng = np.random.default_rng(seed)
    x = rng.random((4 + seed % 7, dim))
    return x, rng.normal(0.0, 1.0, len(x)), rng


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("kernel", [Matern(0.5, 0.3), Matern(1.5, 0.3), Matern(2.5, 0.3, 4.0), RBF(0.3), RBF(0.2, 4.0)])
@pytest.mark.parametrize("seed", range(3))
def test_the_mean_square_norm_is_that_of_the_posterior(seed, kernel, dim):
    """For a known scale the mean of ||f||^2 at the nodes is tr(K^-1 cov) + mean' K^-1 mean."""
    x, y, _ = situation(seed, dim, kernel)
    low, high = np.full(dim, 0.2), np.full(dim, 0.5)
    q = query(kernel, x, y, low, high)
    estimator = PosteriorScenario(m=20_000, gamma=0.5, median=float(np.exp(LOG_SCALES[360])), spread=1e-6)
    scale = float(np.exp(0.5 * (LOG_SCALES[359] + LOG_SCALES[360])))  # half a step below, where it is drawn
    found = estimator.norms(q) / module._DISCRETE
    box = module._box(module._rounded_up((high - low) / kernel.lengthscales(dim)), kernel)
    nodes = low + box.nodes
    mean, covariance = naive.posterior(kernel, x, y, 0.05, scale * np.sqrt(kernel.outputscale), nodes)
    inverse = np.linalg.inv(kernel(nodes, nodes) + 1e-8 * kernel.outputscale * np.eye(len(nodes)))
    expected = np.trace(inverse @ covariance) + mean @ inverse @ mean
    assert np.mean(found**2) == pytest.approx(expected, abs=5.0 * (found**2).std() / 140.0 + 0.002 * expected)


@pytest.mark.parametrize("seed", range(4))
def test_norms_are_distributed_as_those_of_plain_draws(seed):
    """Quantiles of the norms against draws of the dense Gaussian, the scale drawn from its written-out posterior."""
    kernel = Matern(1.5, 0.3)
    x, y, rng = situation(seed, 1, kernel)
    low, high = np.array([0.1]), np.array([0.4])
    found = PosteriorScenario(m=20_000, gamma=0.5).norms(query(kernel, x, y, low, high)) / module._DISCRETE
    scales = np.exp(np.linspace(np.log(0.01), np.log(9e3), 600))
    weight = np.array([naive.log_density_of_scale(kernel, x, y, 0.05, s, 1.0, 1.0) for s in scales])
    weight = np.exp(weight - weight.max())
    nodes = low + module._box(module._rounded_up((high - low) / 0.3), kernel).nodes
    inverse = np.linalg.inv(kernel(nodes, nodes) + 1e-8 * np.eye(len(nodes)))
    norms = []
    for s in rng.choice(scales, size=400, p=weight / weight.sum()):
        mean, covariance = naive.posterior(kernel, x, y, 0.05, s, nodes)
        draws = rng.multivariate_normal(mean, covariance, size=20, method="eigh")
        norms.append(np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", draws, inverse, draws), 0.0)))
    for level in (0.1, 0.5, 0.9):
        assert np.quantile(found, level) == pytest.approx(np.quantile(np.concatenate(norms), level), rel=0.1)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("kernel", [Matern(1.5, 0.25), RBF(0.25)])
def test_it_covers_functions_of_its_family_as_often_as_it_says(kernel, dim):
    """Many draws of the family, one query each; the bound at gamma = 0.1 fails for about 0.1 of them."""
    noise, failures, draws = 0.01, 0, 300 if dim < 3 else 60
    for seed in range(draws):
        rng = np.random.default_rng((dim, seed))
        s = float(np.exp(rng.normal(0.0, 1.0)))
        low, edge = rng.uniform(0.2, 0.5, dim), 0.25
        box = module._box(module._rounded_up(np.full(dim, edge) / 0.25), kernel)
        nodes, x = low + box.nodes, rng.random((8, dim))
        points = np.concatenate([nodes, x])
        gram = module.convolved(kernel, dim)(points, points)
        values = s * np.linalg.cholesky(gram + 1e-10 * np.eye(len(points))) @ rng.standard_normal(len(points))
        f, y = values[: len(nodes)], values[len(nodes) :] + noise * rng.standard_normal(8)
        true = float(np.linalg.norm(box.transform @ f))
        q = query(kernel, x, y, low, low + edge, noise, (seed, 3))
        failures += PosteriorScenario(m=200, gamma=0.1).estimate(q) < true
    assert failures <= binom.ppf(0.999, draws, 0.1)


def test_samples_next_to_the_sub_domain_count():
    """One sample inside: what surrounds it makes the bound smaller, and `AdaptiveScenario` cannot see that."""
    kernel = Matern(1.5, 0.2)
    x = np.array([[a, b] for a in (0.3, 0.4, 0.5, 0.6, 0.7) for b in (0.3, 0.4, 0.5, 0.6, 0.7)])
    y = np.sin(3.0 * x[:, 0]) * np.cos(2.0 * x[:, 1])
    around = PosteriorScenario().estimate(query(kernel, x, y, [0.475, 0.475], [0.525, 0.525], 0.01))
    alone = PosteriorScenario().estimate(query(kernel, x[[12]], y[[12]], [0.475, 0.475], [0.525, 0.525], 0.01))
    adaptive = AdaptiveScenario(m=460, gamma=0.01, floor=None).estimate(query(kernel, x, y, [0.475, 0.475], [0.525, 0.525], 0.01))
    assert around < 0.5 * alone and around < adaptive


def test_nodes_are_dense_enough():
    """More than twice the nodes per axis raise the mean square norm by less than the allowance for it."""
    for kernel in (Matern(1.5, 0.2), Matern(2.5, 0.2)):
        for edge in (0.25, 1.0, 4.0):
            coarse = module._box((edge,), kernel).variances.sum()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(module, "_FEWEST", 33)
                patch.setattr(module, "_SPACING", 0.1)
                fine = module._box.__wrapped__((edge,), kernel).variances.sum()
            assert np.sqrt(fine / coarse) < module._DISCRETE


@pytest.mark.parametrize(
    ("nu", "edge", "missing"), [(1.5, 0.25, 0.005), (2.5, 1.0, 0.01), (0.5, 2.0, 0.011), (1.5, 2.0, 0.011), (2.5, 2.0, 0.017)]
)
def test_nodes_in_three_dimensions(nu, edge, missing):
    """Nine per axis, the most there are: with eleven the root of the mean square norm is larger by this share at most."""
    kernel = Matern(nu, 0.2)
    coarse = module._box((edge,) * 3, kernel)
    assert coarse.nodes.shape == (729, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEWEST", 11)
        patch.setattr(module, "_MOST", {3: 11})
        fine = module._box.__wrapped__((edge,) * 3, kernel)
    assert 1.0 <= np.sqrt(fine.variances.sum() / coarse.variances.sum()) < 1.0 + missing


@pytest.mark.parametrize("edge", [0.25, 0.3, 0.9999999, 1.0, 1.7, 3.99, 4.0])
def test_edges_are_rounded_up_and_powers_of_two_are_exact(edge):
    (rounded,) = module._rounded_up(np.array([edge]))
    assert edge - 1e-6 <= rounded <= 1.25 * edge
    if edge in (0.25, 1.0, 4.0):
        assert rounded == edge


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("edge", [0.25, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_an_rbf_norm_is_at_least_that_of_a_function_close_by(seed, edge, dim):
    """|T f| >= ||g|| for the g that the regularised interpolation gives, and |f - g| <= 1e-4 sqrt(outputscale) ||f|| at nodes."""
    kernel = RBF(0.2, 4.0)
    f = random_function(kernel, dim, 20.0, seed, 200)
    box = module._box((edge,) * dim, kernel)
    nodes = 0.3 + box.nodes
    values, gram = f(nodes), kernel(nodes, nodes)
    weights = np.linalg.solve(gram + 4e-8 * np.eye(len(nodes)), values)
    g, norm = gram @ weights, np.sqrt(weights @ gram @ weights)
    assert module._DISCRETE * np.linalg.norm(box.transform @ values) / 2.0 >= norm * (1.0 - 1e-6)
    assert np.abs(values - g).max() <= 2e-4 * f.norm


@pytest.mark.parametrize("kernel", [Matern(2.5, 0.3), RBF(0.3)])
def test_repeated_and_crowded_samples_are_no_problem(kernel):
    x = np.concatenate([np.full((6, 2), 0.5), 0.5 + 1e-7 * np.arange(12).reshape(6, 2)])
    y = 0.3 + 0.01 * np.random.default_rng(0).standard_normal(12)
    found = PosteriorScenario().estimate(query(kernel, x, y, [0.4, 0.4], [0.6, 0.6], 0.01))
    assert np.isfinite(found) and found > 0.3


def test_the_same_query_gives_the_same_bound_and_another_seed_another():
    kernel = Matern(1.5, 0.2)
    x, y, _ = situation(3, 2, kernel)
    a, b, c = (
        PosteriorScenario().estimate(query(kernel, x, y, [0.2, 0.2], [0.4, 0.4], seed=s)) for s in ((1, 1), (1, 1), (1, 2))
    )
    assert a == b != c


def test_without_samples_it_is_the_prior():
    kernel = Matern(1.5, 0.2)
    found = PosteriorScenario(m=5000, gamma=0.5, spread=1e-6).norms(
        query(kernel, np.empty((0, 2)), np.empty(0), [0.2, 0.2], [0.4, 0.4])
    )
    expected = module._box((1.0, 1.0), kernel).variances.sum()
    assert np.mean((found / module._DISCRETE) ** 2) == pytest.approx(expected, rel=0.05)


def test_a_floor_is_kept():
    kernel = Matern(1.5, 0.2)
    x, y, _ = situation(3, 2, kernel)
    q = query(kernel, x, y, [0.2, 0.2], [0.4, 0.4])

    class High:
        def estimate(self, _):
            return 1e6

    assert PosteriorScenario(floor=High()).estimate(q) == 1e6
    assert PosteriorScenario(floor=LSTMNorm()).estimate(q) >= PosteriorScenario().estimate(q)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_as_a_floor_it_gives_the_larger_of_both_bounds(seed, dim):
    """At least both; beyond the larger one at most by one step among the norms that Algorithm 3 sorts."""
    kernel = Matern(1.5, 0.3)
    x, y, _ = situation(seed, dim, kernel)
    q = query(kernel, x, y, np.full(dim, 0.2), np.full(dim, 0.5))
    both = AdaptiveScenario(floor=PosteriorScenario())
    found, own, other = both.estimate(q), AdaptiveScenario(floor=None).estimate(q), PosteriorScenario().estimate(q)
    assert found >= max(own, other)
    above = np.sort(both.norms(q))
    above = above[above > other]
    assert found == (own if own > other else above[0] if len(above) else other)


@pytest.mark.parametrize("estimator", [PosteriorScenario(), AdaptiveScenario(floor=None), AdaptiveScenario()], ids=repr)
@pytest.mark.parametrize(("dim", "factor"), [(1, 0.1), (2, 0.1), (2, 1e5), (3, 0.1)])
@pytest.mark.parametrize("family", [partial(Matern, 1.5), RBF], ids=["matern", "rbf"])
def test_the_bound_does_not_depend_on_the_unit_of_the_output(family, estimator, dim, factor):
    """Values, noise and output scale in another unit: the norm, which is relative to the output scale, stays."""
    x, y, _ = situation(4, dim, None)
    low, high = np.full(dim, 0.2), np.full(dim, 0.5)
    found = estimator.estimate(query(family(0.3), x, y, low, high))
    other = estimator.estimate(query(family(0.3, factor**2), x, factor * y, low, high, noise=0.05 * factor))
    assert other == pytest.approx(found, rel=1e-5)


def test_a_floor_that_does_not_serve_a_kernel_is_refused_before_the_run():
    norm = AdaptiveScenario(floor=PosteriorScenario())
    for dim, kernel in ((4, RBF(0.3)), (5, Matern(1.5, 0.3))):
        with pytest.raises(InvalidValueError, match=r"Matern and RBF kernels in one to three dimensions, got .* in [45]"):
            SafeOptimizer(Box.unit(dim), 0.0, kernel=kernel, norm=norm)
        with pytest.raises(InvalidValueError, match=r"Matern and RBF kernels in one to three dimensions, got .* in [45]"):
            SafeOptimizer(Box.unit(dim), 0.0, kernel=kernel, norm=Scenario(floor=PosteriorScenario()))
    SafeOptimizer(Box.unit(4), 0.0, kernel=Matern(1.5, 0.3), norm=AdaptiveScenario(floor=LSTMNorm()))


@pytest.mark.filterwarnings("ignore:With the RBF kernel")
def test_the_default_norm_and_acquisition_follow_the_dimension():
    matern, rbf = Matern(1.5, 0.3), RBF(0.3)
    both, one = AdaptiveScenario(floor=PosteriorScenario()), AdaptiveScenario(floor=None)

    def defaults(dim, **options):
        settings = SafeOptimizer(Box.unit(dim), 0.0, **options).state.settings
        return settings.outputs[0].norm, settings.acquisition

    assert defaults(1, kernel=matern) == (one, "joint") and defaults(1, kernel=rbf) == (both, "joint")
    assert (
        defaults(2, kernel=matern) == defaults(2, kernel=rbf) == defaults(2, kernel=Matern(2.5, (0.2, 0.3))) == (both, "directed")
    )
    for kernel, own, expected in (
        (matern, rbf, [one, both]),
        (rbf, matern, [both, one]),
        (matern, None, [one, one]),
        (rbf, None, [both, both]),
    ):
        opt = SafeOptimizer(Box.unit(1), 0.0, kernel=kernel, constraints={"heat": Constraint(0.0, own)})
        assert [o.norm for o in opt.state.outputs] == expected
    given = {"heat": Constraint(0.0, rbf, norm=Fixed(3.0)), "rest": Constraint(0.0)}
    opt = SafeOptimizer(Box.unit(2), 0.0, kernel=matern, constraints=given)
    assert [o.norm for o in opt.state.outputs] == [both, Fixed(3.0), both]
    assert defaults(2, kernel=matern, screening=LSTMNorm()) == (both, "joint")
    with pytest.warns(NoGuaranteeWarning, match="no floor"):
        assert defaults(2, kernel=matern, acquisition="joint", norm=one) == (one, "joint")
    assert defaults(3, kernel=matern) == defaults(3, kernel=rbf) == (both, "directed")
    assert defaults(3, kernel=matern, screening=LSTMNorm()) == (both, "joint")
    assert defaults(4, kernel=matern) == defaults(4, kernel=rbf) == (one, "joint")


def test_bad_settings_are_named():
    with pytest.raises(InvalidValueError, match=r"PosteriorScenario\.median must be positive and finite, got 0"):
        PosteriorScenario(median=0)
    with pytest.raises(InvalidValueError, match=r"PosteriorScenario\.m"):
        PosteriorScenario(m=0.5)
    with pytest.raises(InfeasibleScenarioError, match="smallest m that works is 459"):
        PosteriorScenario(m=100)
    for kernel, dim in ((Matern(1.5, 0.2), 4), (RBF(0.2), 4)):
        with pytest.raises(
            InvalidValueError, match=r"for Matern and RBF kernels in one to three dimensions, got .*: use Adaptive"
        ):
            SafeOptimizer(Box.unit(dim), 0.0, kernel=kernel, norm=PosteriorScenario())


def test_a_run_with_it_is_restored_from_json():
    opt = SafeOptimizer(Box.unit(2), 0.0, kernel=Matern(1.5, 0.2), norm=PosteriorScenario(m=500), points_per_axis=9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt.tell([0.5, 0.5], 0.8)
        for _ in range(3):
            trial = opt.ask()
            assert trial is not None
            opt.tell(trial, 0.7)
        again = SafeOptimizer.from_json(opt.state.to_json())
        assert again.state == opt.state and again.ask() == opt.ask()


def test_the_written_out_correlations_are_the_ones_used():
    kernel = Matern(1.5, 0.2)
    x = np.random.default_rng(0).random((5, 2))
    assert np.allclose(correlations(kernel, x, x), module.convolved(kernel, 2)(x, x), atol=1e-9)


@pytest.mark.parametrize(("kernel", "dim", "experiments"), [(RBF(0.2), 1, 6), (RBF(0.2), 2, 4), (Matern(1.5, 0.4), 4, 2)])
def test_defaults_go_on_safely_where_they_differ_from_the_rest(kernel, dim, experiments):
    """RBF kernels, whose norm has a floor, and four dimensions, whose cubes are smaller: first steps, none unsafe."""
    problem = RKHSProblem.sample(dim, 6.0, 1, kernel=kernel, noise=0.01, threshold_quantile=0.3, initial_quantiles=(0.4, 0.5))
    opt = SafeOptimizer(problem.domain, problem.threshold, kernel=kernel, noise=0.01, seed=1)
    rng, best = np.random.default_rng(1), problem.initial_value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt.tell(problem.initial, problem.measure(problem.initial, rng))
        for _ in range(experiments):
            trial = opt.ask()
            assert trial is not None and problem.is_safe(trial.params)
            opt.tell(trial, problem.measure(trial.params, rng))
            best = max(best, problem.value(trial.params))
    assert best > problem.initial_value
