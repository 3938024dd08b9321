"""The learned norm estimator: features, network, and its use as a floor and for screening."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import safebo
from benchmarks import learned_norm
from safebo import RBF, Box, LocalCubes, LSTMNorm, Matern, SafeOptimizer, Scenario
from safebo.exceptions import InvalidValueError, NoGuaranteeWarning
from safebo.norms.lstm import HIDDEN, LAYERS, LEVELS, SHIPPED, context, history, load_network, sequences, shapes
from safebo.norms.scenario import make_query
from safebo.rkhs import random_function
from tests.strategies import kernels, seeds


def query(t, dim=1, kernel=None, *, noise=0.01, lower=0.2, upper=0.6, seed=0, scale=1.0):
    kernel = kernel or Matern(1.5, 0.1)
    rng = np.random.default_rng(seed)
    low, high = np.full(dim, lower), np.full(dim, upper)
    x = rng.uniform(low, high, (t, dim))
    y = scale * (random_function(kernel, dim, 4.0, seed, 60)(x) + noise * rng.standard_normal(t))
    return make_query(x, y, kernel, noise, low, high, seed)


# -- features -----------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(kernels(2), st.integers(1, 12), seeds)
def test_the_history_equals_that_of_the_prefixes(kernel, t, seed):
    q = query(t, 2, kernel, noise=0.1, seed=seed)
    norms, variances = history(q.posterior, q.lower, q.upper)
    for s in range(1, t + 1):
        prefix = q.posterior.prefix(s)
        assert norms[s - 1] == pytest.approx(prefix.mean_norm, rel=1e-6, abs=1e-9)
        points = q.lower + (q.upper - q.lower) * np.random.default_rng(0).random((4000, 2))
        assert variances[s - 1] == pytest.approx((prefix.at(points)[1] ** 2).mean() / kernel.outputscale, rel=0.15, abs=0.02)
    assert (np.diff(variances) <= 1e-12).all()


@pytest.mark.parametrize("dim", [1, 2, 3, 8])
def test_the_integration_points_fill_the_box(dim):
    from safebo.norms.base import even_points
    from safebo.norms.lstm import INTEGRATION_POINTS

    points = even_points(dim, INTEGRATION_POINTS)
    assert ((points >= 0.0) & (points < 1.0)).all() and len(np.unique(points[:, 0])) == len(points)
    np.testing.assert_allclose(points.mean(axis=0), 0.5, atol=0.02)
    np.testing.assert_allclose((points**2).mean(axis=0), 1.0 / 3.0, atol=0.02)


def test_growth_starts_at_one_and_ends_at_nothing_new():
    growth, density = sequences(np.array([0.0, 2.0, 2.5, 2.5]), np.array([0.5, 0.25, 0.125, 0.125]))
    np.testing.assert_allclose(growth, [1.0, 1.0, 0.2, 0.0])
    np.testing.assert_allclose(density, np.log([2.0, 4.0, 8.0, 8.0]))


def test_the_context_is_relative_to_lengthscale_and_outputscale():
    low, high = np.array([0.0, 0.2]), np.array([0.2, 0.6])
    one = context(Matern(1.5, (0.1, 0.2)), 0.1, low, high)
    np.testing.assert_allclose(one, [math.log(2.0), 2.0, 1.0 / 3.0, math.log(0.1)])
    np.testing.assert_allclose(context(Matern(1.5, (0.1, 0.2), 100.0), 1.0, low, high), one)
    assert context(RBF(0.1), 0.1, low, high)[2] == 0.0


# -- network ------------------------------------------------------------------------------------------------------------


def in_torch(arrays, growth, density, c):
    """The same network with torch.nn.LSTM, in double precision."""
    scaled = 2.0 * (np.clip(c, arrays["context.low"], arrays["context.high"]) - arrays["context.low"])
    scaled = scaled / (arrays["context.high"].astype(float) - arrays["context.low"]) - 1.0
    cells = (arrays["start.weight"].astype(float) @ scaled + arrays["start.bias"]).reshape(2, LAYERS, 1, HIDDEN)
    last = []
    for branch, x, cell in zip(("growth", "density"), (growth, density), torch.from_numpy(cells), strict=True):
        lstm = torch.nn.LSTM(1, HIDDEN, LAYERS, batch_first=True).double()
        lstm.load_state_dict({n: torch.from_numpy(arrays[f"{branch}.{n}"]).double() for n in lstm.state_dict()})
        with torch.no_grad():
            last.append(lstm(torch.from_numpy(x)[None, :, None], (torch.tanh(cell), cell))[0][0, -1].numpy())
    z = arrays["head.weight"].astype(float) @ np.concatenate(last) + arrays["head.bias"]
    return np.maximum.accumulate(np.maximum(z, 0.0))


def test_inference_equals_torch_with_the_shipped_weights():
    arrays, network = load_file(SHIPPED), LSTMNorm().network
    rng = np.random.default_rng(0)
    for t in range(1, 61):
        growth, density = rng.random(t), np.cumsum(rng.exponential(0.2, t))
        c = np.array([rng.uniform(-2, 3), rng.integers(1, 5), rng.random(), rng.uniform(-7, -1)])
        np.testing.assert_allclose(network.log_factors(growth, density, c), in_torch(arrays, growth, density, c), atol=1e-6)


def test_the_weights_are_small_and_say_where_they_come_from():
    assert SHIPPED.stat().st_size < 1_000_000
    arrays = load_file(SHIPPED)
    assert {name: array.shape for name, array in arrays.items()} == shapes(len(LEVELS))
    assert LSTMNorm().network.levels == LEVELS
    with safe_open(SHIPPED, "numpy") as file:
        content = json.loads(file.metadata()["safebo"])
    assert content["origin"]["settings"]["quick"] is False and len(content["losses"]) == content["origin"]["settings"]["epochs"]


def test_a_missing_or_damaged_weights_file_is_named(tmp_path):
    q, path = query(3), tmp_path / "w.safetensors"
    with pytest.raises(InvalidValueError, match=r"w\.safetensors.*Reinstall"):
        LSTMNorm(weights=str(path)).estimate(q)
    path.write_bytes(SHIPPED.read_bytes()[:5000])
    with pytest.raises(InvalidValueError, match=r"w\.safetensors.*Reinstall"):
        LSTMNorm(weights=str(path)).estimate(q)
    arrays = load_file(SHIPPED)
    for change, named in (
        ({"head.bias": np.full_like(arrays["head.bias"], np.nan)}, "not finite"),
        ({"head.weight": arrays["head.weight"][:, 1:]}, "head.weight"),
        ({"levels": arrays["levels"][:0]}, "levels"),
    ):
        other = tmp_path / f"{next(iter(change))}.safetensors"
        save_file({n: np.ascontiguousarray(a) for n, a in {**arrays, **change}.items()}, other)
        with pytest.raises(InvalidValueError, match="does not hold") as error:
            LSTMNorm(weights=str(other)).estimate(q)
        assert named in str(error.value) or "levels" in change
    (tmp_path / "other.safetensors").write_bytes(SHIPPED.read_bytes())
    mine = LSTMNorm(weights=str(tmp_path / "other.safetensors"))
    assert mine.estimate(q) == LSTMNorm().estimate(q)
    save_file({**arrays, "levels": np.array([0.1, 0.2, 0.3, 0.4], np.float32)}, tmp_path / "levels.safetensors")
    with pytest.raises(InvalidValueError, match="trained for"):
        LSTMNorm(weights=str(tmp_path / "levels.safetensors")).estimate(q)


# -- the estimator ------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(kernels(), st.integers(1, 3), st.integers(0, 60), seeds)
def test_estimates_are_finite_and_not_below_the_mean_norm(kernel, dim, t, seed):
    q = query(t, dim, kernel, seed=seed)
    values = [LSTMNorm(level).estimate(q) for level in LEVELS]
    assert np.isfinite(values).all() and values == sorted(values)
    assert values[0] >= q.posterior.mean_norm * (1.0 - 1e-6) - 1e-9 and values[0] > 0.0


@settings(max_examples=40)
@given(st.integers(1, 30), st.integers(1, 3), st.floats(1.0, 1e6), seeds)
def test_the_estimate_is_proportional_to_the_measurements(t, dim, scale, seed):
    one = LSTMNorm().estimate(query(t, dim, seed=seed))
    if one > 1.001 * 0.01:  # not at the resolution of the noise
        assert LSTMNorm().estimate(query(t, dim, seed=seed, scale=scale)) == pytest.approx(scale * one, rel=1e-6)


def test_the_estimate_follows_the_outputscale():
    """sqrt(s2) times the norm, with the noise in the same unit, is what does not change."""
    x, y = np.array([0.1, 0.3, 0.35]), np.array([1.0, 0.4, 0.8])
    small = make_query(x, y, Matern(1.5, 0.1), 0.01, 0.0, 1.0, 0)
    large = make_query(x, 7.0 * y, Matern(1.5, 0.1, 49.0), 0.07, 0.0, 1.0, 0)
    assert LSTMNorm().estimate(large) == pytest.approx(LSTMNorm().estimate(small), rel=1e-9)


def test_without_signal_the_noise_is_the_resolution():
    assert LSTMNorm().estimate(make_query([], [], Matern(), 0.02, 0.0, 1.0, 0)) == 0.02
    assert LSTMNorm().estimate(make_query([0.5, 0.6], [0.0, 0.0], Matern(outputscale=4.0), 0.02, 0.0, 1.0, 0)) == 0.01


def test_the_estimate_is_close_to_the_norm_of_a_well_sampled_function():
    kernel = Matern(1.5, 0.1)
    ratios = []
    for seed in range(10):
        f = random_function(kernel, 1, 7.0, seed, 800)
        x = np.random.default_rng(seed).random((40, 1))
        q = make_query(x, f(x), kernel, 0.01, 0.0, 1.0, 0)
        ratios.append(LSTMNorm().estimate(q) / 7.0)
    assert 0.85 < np.median(ratios) < 1.2 and min(ratios) > 0.6 and max(ratios) < 1.6


@settings(max_examples=15)
@given(st.integers(1, 15), st.sampled_from(LEVELS), seeds)
def test_a_floor_never_lowers_the_scenario_bound(t, level, seed):
    q, bare = query(t, seed=seed), Scenario(m=60, gamma=0.2, kappa=0.1)
    floor = LSTMNorm(level)
    raised = Scenario(m=60, gamma=0.2, kappa=0.1, floor=floor).estimate(q)
    assert raised >= max(bare.estimate(q), floor.estimate(q))


def test_it_promises_nothing():
    assert (LSTMNorm().gamma, LSTMNorm().kappa) == (1.0, 0.0)
    with pytest.warns(NoGuaranteeWarning, match=r"'objective' comes from LSTMNorm\(.*an estimate and not a bound"):
        opt = SafeOptimizer(Box.unit(1), threshold=-1.0, norm=LSTMNorm(), cubes=None)
    assert opt.guarantee.probability == 0.0


@pytest.mark.parametrize("bad", [0.6, 0.0, "0.5", None, True])
def test_other_levels_are_refused(bad):
    with pytest.raises(InvalidValueError, match="level") as error:
        LSTMNorm(bad)
    assert repr(bad) in str(error.value)


def test_a_weights_path_is_text():
    assert LSTMNorm(weights=SHIPPED).weights == str(SHIPPED)
    with pytest.raises(InvalidValueError, match="weights"):
        LSTMNorm(weights=5)


# -- in the optimizer ---------------------------------------------------------------------------------------------------


F = random_function(Matern(1.5, 0.1), 1, 3.0, 1, 100)  # |f| <= 3


def optimizer(**settings):
    scenario = Scenario(m=60, gamma=0.2, kappa=0.1, floor=settings.pop("floor", None))
    opt = SafeOptimizer(
        Box.unit(1), threshold=-3.0, norm=scenario, cubes=LocalCubes(2, 0.2), points_per_axis=101, seed=3, **settings
    )
    opt.tell([0.4], float(F([[0.4]])[0]))
    return opt


def run(opt, steps):
    for _ in range(steps):
        trial = opt.ask()
        opt.tell(trial, float(F([[trial.params["x1"]]])[0]))
    return opt


@pytest.mark.parametrize(
    "settings", [{"screening": LSTMNorm()}, {"floor": LSTMNorm(0.9)}, {"screening": LSTMNorm(0.75)}], ids=repr
)
def test_an_optimizer_with_it_travels_through_json(settings):
    opt = run(optimizer(**settings), 3)
    again = SafeOptimizer.from_json(opt.state.to_json())
    assert again.state == opt.state and again.ask() == opt.ask()
    floor = opt.state.outputs[0].norm.floor
    assert floor == again.state.outputs[0].norm.floor and again.state.settings.screening == opt.state.settings.screening


def test_screened_trials_are_certified_with_the_scenario_bound():
    opt = run(optimizer(screening=LSTMNorm()), 4)
    trial = opt.ask()
    assert trial.lower >= -3.0 and opt.is_safe([list(trial.params.values())]).all()
    assert opt.guarantee.probability > 0.7


def test_inference_does_not_import_torch():
    code = (
        "import sys, safebo\n"
        "opt = safebo.SafeOptimizer(safebo.Box.unit(1), threshold=-1.0, norm=safebo.LSTMNorm(), cubes=None)\n"
        "opt.tell([0.4], 0.5)\n"
        "assert opt.ask() is not None\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'gpytorch')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_weights_are_read_once_and_late():
    code = (
        "import sys, safebo\n"
        "safebo.LSTMNorm()\n"
        "assert 'safetensors' not in sys.modules\n"
        "assert safebo.LSTMNorm().network is safebo.LSTMNorm(0.9).network"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert load_network(str(SHIPPED)) is safebo.LSTMNorm().network


def test_the_benchmark_resumes_and_summarises(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(learned_norm.CASES, "1-D, norm 5", {**learned_norm.CASES["1-D, norm 5"], "experiments": 3, "points": 201})
    options = ["--seeds", "1", "--cases", "1-D, norm 5", "--out", str(tmp_path)]
    learned_norm.main([*options, "--methods", "scenario", "both"])
    first = (tmp_path / "runs.csv").read_text()
    learned_norm.main([*options, "--methods", "scenario", "both"])  # nothing left to do
    assert (tmp_path / "runs.csv").read_text() == first and len(first.splitlines()) == 3
    lines = json.loads((tmp_path / "summary.json").read_text())["methods"]
    assert [line["method"] for line in lines] == ["scenario", "both"] and all(line["unsafe_runs"] == 0 for line in lines)
    assert "1-D, norm 5" in capsys.readouterr().out
