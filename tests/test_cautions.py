"""More safety gives more: floors that stay, and cautions that are the same at every door."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from safebo import RBF, AdaptiveScenario, Box, Constraint, LSTMNorm, Matern, PosteriorScenario, SafeOptimizer, Scenario, presets
from safebo.bounds import Paper
from safebo.exceptions import NoGuaranteeWarning, SafeboWarning, ScaleWarning, SettingsWarning
from safebo.norms.scenario import make_query
from safebo.notices import cautions
from safebo.runs import config

TWO = Box({"kp": (0.0, 5.0), "kd": (0.0, 1.0)})
ROOT = Path(__file__).parents[1]


def norm_of(*arguments, **options):
    return SafeOptimizer(*arguments, **options).state.outputs[0].norm


def warned(build):
    """The warnings of a call, as (class, text)."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        build()
    return [(w.category, str(w.message)) for w in found]


# -- the floor -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"gamma": 0.01}, {"m": 700}, {"alpha_bar": 2.0}, {"kappa": 0.001}, {}])
def test_any_adaptive_norm_has_the_floor_of_the_default(options):
    kappa = min(0.01, options.get("kappa", 1.0))
    expected = PosteriorScenario(kappa=kappa)
    for dim, kernel in ((2, Matern(1.5, 0.2)), (3, Matern(2.5, 0.3)), (1, RBF(0.2))):
        assert norm_of(Box.unit(dim), 0.0, kernel=kernel, norm=AdaptiveScenario(**options)) == AdaptiveScenario(
            **options, floor=expected
        )
    for dim, kernel in ((1, Matern(1.5, 0.2)), (4, Matern(1.5, 0.4))):
        found = norm_of(Box.unit(dim), 0.0, kernel=kernel, norm=AdaptiveScenario(**options))
        assert found == AdaptiveScenario(**options, floor=None)


def test_a_smaller_gamma_is_one_of_the_floor_too():
    norm = norm_of(TWO, 0.0, kernel=Matern(1.5, 0.2), norm=AdaptiveScenario(m=6000, gamma=0.001, kappa=0.02))
    assert (norm.floor.gamma, norm.floor.kappa) == (0.001, 0.01) and norm.floor.m >= 4603


def test_every_output_has_the_floor_of_its_own_kernel():
    limits = {"heat": Constraint(0.0, RBF(0.2)), "force": Constraint(0.0), "own": Constraint(0.0, norm=AdaptiveScenario(m=700))}
    opt = SafeOptimizer(Box.unit(1), 0.0, kernel=Matern(1.5, 0.2), norm=AdaptiveScenario(gamma=0.01), constraints=limits)
    floors = [o.norm.floor for o in opt.state.outputs]
    assert floors == [None, PosteriorScenario(), None, None]
    assert [o.norm.gamma for o in opt.state.outputs] == [0.01, 0.01, 0.01, 0.02]


def test_a_floor_inside_another_estimator_follows_too():
    found = norm_of(TWO, 0.0, kernel=Matern(1.5, 0.2), norm=Scenario(floor=AdaptiveScenario()), bound=Paper())
    assert found == Scenario(floor=AdaptiveScenario(floor=PosteriorScenario()))


def test_readme_says_how_a_certificate_gets_more_probable():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    advice = re.search(r"`SafeOptimizer\(\.\.\., (norm=AdaptiveScenario\(gamma=[\d.]+\), delta=[\d.]+)\)`", text)
    scope = {"SafeOptimizer": SafeOptimizer, "AdaptiveScenario": AdaptiveScenario, "Box": Box, "Matern": Matern}
    usual = SafeOptimizer(TWO, 0.0, kernel=Matern(1.5, 0.3))
    found = warned(
        lambda: scope.update(opt=eval(f"SafeOptimizer(Box.unit(2), 0.0, kernel=Matern(1.5, 0.3), {advice[1]})", scope))
    )
    assert found == []
    assert scope["opt"].guarantee.probability > usual.guarantee.probability
    assert scope["opt"].state.outputs[0].norm.floor == usual.state.outputs[0].norm.floor == PosteriorScenario()


@pytest.mark.parametrize(("dim", "kernel"), [(2, Matern(1.5, 0.3)), (1, RBF(0.3)), (1, Matern(1.5, 0.3))])
def test_an_estimator_used_by_itself_follows_the_query(dim, kernel):
    rng = np.random.default_rng(3)
    x = 0.2 + 0.3 * rng.random((4, dim))
    q = make_query(x, np.sin(5.0 * x[:, 0]), kernel, 0.05, np.full(dim, 0.2), np.full(dim, 0.5), 1)
    auto = AdaptiveScenario(m=60, gamma=0.2, kappa=0.1)
    assert auto.estimate(q) == auto.resolved(kernel, dim).estimate(q)
    assert isinstance(auto.resolved(kernel, dim).floor, PosteriorScenario) == (dim == 2 or isinstance(kernel, RBF))


def test_stored_settings_hold_the_floor_and_old_ones_stay_as_they_were():
    opt = SafeOptimizer(TWO, 0.0, kernel=Matern(1.5, 0.3), norm=AdaptiveScenario(gamma=0.01), points_per_axis=11)
    text = opt.state.to_json()
    assert json.loads(text)["settings"]["outputs"][0]["norm"]["floor"]["type"] == "PosteriorScenario"
    assert SafeOptimizer.from_json(text).state == opt.state and SafeOptimizer.from_json(text).state.to_json() == text
    old = json.loads(text)
    old["settings"]["outputs"][0]["norm"]["floor"] = None
    loaded = []
    assert warned(lambda: loaded.append(SafeOptimizer.from_json(json.dumps(old)))) == []
    assert loaded[0].state.outputs[0].norm == AdaptiveScenario(gamma=0.01, floor=None)
    assert json.loads(loaded[0].state.to_json()) == old


@pytest.mark.parametrize("floor", ["posterior", "none", 3.0, PosteriorScenario])
def test_what_is_no_floor_is_refused(floor):
    with pytest.raises(ValueError, match=r"AdaptiveScenario\.floor must be"):
        AdaptiveScenario(floor=floor)


# -- cautions ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dim", "kernel", "number"),
    [(2, Matern(1.5, 0.2), 1), (3, Matern(1.5, 0.3), 1), (1, RBF(0.2), 1), (1, Matern(1.5, 0.2), 0), (4, Matern(1.5, 0.5), 0)],
)
def test_leaving_out_a_floor_warns_where_there_should_be_one(dim, kernel, number):
    found = warned(lambda: SafeOptimizer(Box.unit(dim), 0.0, kernel=kernel, norm=AdaptiveScenario(floor=None)))
    assert [category for category, _ in found] == [NoGuaranteeWarning] * number
    assert warned(lambda: SafeOptimizer(Box.unit(dim), 0.0, kernel=kernel)) == []


@pytest.mark.parametrize("dim", [1, 2])
def test_what_was_published_is_meant(dim):
    for preset in (presets.algorithm_1, presets.algorithm_4, presets.pacsbo_2024):
        assert warned(lambda preset=preset: preset(Box.unit(dim), 0.0)) == []
    assert warned(lambda: presets.safeopt(Box.unit(dim), 0.0, norm=5.0)) == []


def test_a_preset_with_another_norm_is_looked_at():
    with pytest.warns(NoGuaranteeWarning, match="no floor"):
        presets.algorithm_4(Box.unit(2), 0.0, norm=AdaptiveScenario(floor=None))
    with pytest.warns(NoGuaranteeWarning, match="no slack"):
        presets.algorithm_4(Box.unit(2), 0.0, bound=SafeOptimizer(TWO, 0.0).state.outputs[0].bound)


def test_an_estimate_is_advised_as_a_floor_that_keeps_the_other_one():
    with pytest.warns(NoGuaranteeWarning, match=r"AdaptiveScenario\(floor=PosteriorScenario\(floor=LSTMNorm\(.*\)\)\)"):
        SafeOptimizer(Box.unit(2), 0.0, norm=LSTMNorm())
    with pytest.warns(NoGuaranteeWarning, match=r"AdaptiveScenario\(floor=LSTMNorm\("):
        SafeOptimizer(Box.unit(1), 0.0, norm=LSTMNorm())


FILE = """
[run]
name = "rig"
[parameters.a]
bounds = [0.0, 1.0]
[parameters.b]
bounds = [0.0, 1.0]
[objective]
threshold = -30.0
min_width = 0.001
[kernel]
lengthscale = 1.5
[algorithm]
norm = { type = "adaptive", floor = "none" }
points_per_axis = 5
[start]
a = 0.5
b = 0.5
[plant]
type = "socket"
host = "127.0.0.1"
port = 5555
timeout = 10.0
"""


def test_python_the_file_and_the_server_say_the_same():
    pytest.importorskip("fastapi")
    from safebo.cli.setup import warnings_of
    from safebo.server.answers import cautions as answered
    from safebo.server.models import NewRun

    options = {"kernel": Matern(1.5, 1.5), "min_width": 0.001, "points_per_axis": 5}
    built = []
    python = warned(
        lambda: built.append(SafeOptimizer(Box({"a": (0, 1), "b": (0, 1)}), -30.0, norm=AdaptiveScenario(floor=None), **options))
    )
    assert {category for category, _ in python} == {SettingsWarning, ScaleWarning, NoGuaranteeWarning} and len(python) == 6
    texts = [text for _, text in python]
    assert texts == [c.text for c in cautions(built[0].state.settings)]
    checked = warnings_of(config.parse(FILE))
    assert [re.sub(r"^line \d+: ", "", text) for text in checked] == texts
    assert all(text.startswith("line ") for text in checked)
    new = {
        "name": "rig", "parameters": {"a": {"low": 0, "high": 1}, "b": {"low": 0, "high": 1}}, "threshold": -30.0,
        "min_width": 0.001, "kernel": {"lengthscale": 1.5}, "points_per_axis": 5, "norm": {"floor": "none"},
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SafeboWarning)
        optimizer, run = NewRun.model_validate(new).build()
    assert answered(optimizer.state, run) == texts


def test_floors_by_their_names():
    def of(text):
        return config.parse(FILE.replace('floor = "none"', text)).optimizer.state.outputs[0].norm

    assert of('floor = "auto"') == of("gamma = 0.02") == of('floor = "posterior"') == AdaptiveScenario(floor=PosteriorScenario())
    assert of('floor = "none"') == AdaptiveScenario(floor=None)
    with pytest.raises(ValueError, match=r"Scenario\.floor must be"):
        config.parse(FILE.replace('{ type = "adaptive", floor = "none" }', '{ type = "scenario", floor = "auto" }'))


# -- measurements --------------------------------------------------------------------------------------------------------


def test_every_measurement_is_looked_at_and_each_doubling_is_told_once():
    limits = {"heat": Constraint(upper=5.0)}
    opt = SafeOptimizer(Box.unit(1), None, constraints=limits, points_per_axis=11)
    told = [
        warned(lambda v=v: opt.tell([0.5], 1.0, {"heat": v})) for v in (1.0, 4.0, -12.0, -13.0, -20.0, 2.0, -36.0, -36.0, -100.0)
    ]
    assert [[c for c, _ in some] for some in told] == [
        [],
        [],
        [ScaleWarning],
        [],
        [ScaleWarning],
        [],
        [ScaleWarning],
        [],
        [ScaleWarning],
    ]
    assert "'heat' is not on the scale of its kernel: measurement 3, -12," in told[2][0][1]


def test_earlier_measurements_told_together_draw_one_warning_per_output():
    opt = SafeOptimizer(Box.unit(1), 0.0, points_per_axis=11)
    rows = [([0.1 * i], float(v)) for i, v in enumerate((1.0, 30.0, 500.0, 400.0, 2.0))]
    found = warned(lambda: opt.tell_many(rows))
    assert [c for c, _ in found] == [ScaleWarning] and "measurement 3, 500" in found[0][1]
