"""What is said about a run before it starts."""

from __future__ import annotations

import pytest

from safebo import (
    RBF,
    AdaptiveScenario,
    Box,
    Constraint,
    Fixed,
    Hoeffding,
    LSTMNorm,
    Matern,
    PosteriorScenario,
    SafeOptimizer,
    Scenario,
    presets,
)
from safebo.exceptions import ScaleWarning
from safebo.runs import describe

pytestmark = pytest.mark.filterwarnings("ignore::safebo.exceptions.SafeboWarning")  # what is said in words is tested here

BOX = Box({"a": (0.0, 1.0), "b": (0.0, 2.0)})
RUN = {"plant": {"type": "socket", "start": [{"a": 0.5, "b": 0.5}]}, "on_violation": "stop"}


def settings(*arguments, **options):
    return SafeOptimizer(*(arguments or (BOX, 0.0)), **options).state.settings


def test_the_promise_is_not_rounded_up():
    assert describe.percent(0.9702) == "97 %"
    assert describe.percent(0.95999) == "95.9 %"
    assert describe.percent(0.99999) == "99.99 %"
    assert describe.percent(1.0) == "100 %"


def test_the_promise():
    first, second = describe.promise(settings())
    assert "confidence 99 %" in first
    assert "objective inside its limit with probability at least 97 %" in first
    assert "one certificate" in second
    assert "No proof covers a whole run" in second
    several = describe.promise(settings(BOX, 0.0, constraints={"heat": Constraint(upper=1.0)}))[0]
    assert "objective and heat inside their limits" in several
    guessed = describe.promise(settings(norm=Fixed(5.0)))[0]
    assert "confidence" not in guessed


def test_what_it_rests_on():
    text = "\n".join(describe.assumptions(settings(BOX, 0.0, norm=Fixed(5.0), kernel=Matern(lengthscale=(0.1, 0.2)))))
    assert "Matern 3/2, lengthscale a 0.1, b 0.2" in text
    assert "at most 5: your guess" in text
    for norm, word in ((Scenario(), "scenario"), (Hoeffding(), "hoeffding"), (PosteriorScenario(), "posterior")):
        assert word in "\n".join(describe.assumptions(settings(norm=norm)))


def test_defaults_have_no_differences():
    assert describe.differences(settings()) == []
    assert describe.differences(settings(noise=0.3, kernel=Matern(lengthscale=0.4))) == []
    assert describe.differences(settings(BOX, None, constraints={"heat": Constraint(upper=1.0)})) == []


def test_differences():
    found = {d.name for d in describe.differences(presets.algorithm_4(BOX, 0.0).state.settings)}
    assert found == {"norm", "bound", "cubes", "falsify", "stride", "acquisition"}
    found = describe.differences(settings(delta=0.1, points_per_axis=20, refutation_margin=2.0))
    assert {d.name: (d.value, d.default) for d in found} == {
        "delta": ("0.1", "0.01"),
        "points_per_axis": ("(20, 20)", "(100, 100)"),
        "refutation_margin": ("2", "1.2"),
    }


def test_defaults_that_follow_kernel_and_screening_are_no_differences():
    limits = {"heat": Constraint(0.0, RBF(0.2)), "force": Constraint(0.0, Matern(2.5, 0.2))}
    assert describe.differences(SafeOptimizer(BOX, 0.0, constraints=limits).state.settings) == []
    found = describe.differences(SafeOptimizer(BOX, 0.0, screening=LSTMNorm()).state.settings)
    assert [(d.name, d.default) for d in found] == [("screening", "none")]
    with pytest.warns(ScaleWarning):
        long = SafeOptimizer(BOX, 0.0, kernel=RBF(1.5))
    assert [d.name for d in describe.differences(long.state.settings)] == []


def test_nothing_to_warn_about():
    assert describe.cautions(settings(), RUN) == []


@pytest.mark.parametrize(
    ("options", "run", "word"),
    [
        ({"points_per_axis": 3}, {}, "lengthscales between its points"),
        ({"min_width": 0.001}, {}, "below its noise"),
        ({"constraints": {"heat": Constraint(upper=100.0)}}, {}, "far from values of order 1"),
        ({"norm": Scenario()}, {}, "no slack"),
        ({"kernel": RBF(0.2), "norm": AdaptiveScenario(floor=None)}, {}, "by up to 40 %: use a Matern kernel"),
        ({"falsify": False}, {}, "falsify is off"),
        ({"safe_set": "union"}, {}, "more sensitive"),
        ({}, {"plant": {"type": "socket"}}, r"no [start]"),
        ({}, {"on_violation": "continue"}, "goes on after"),
        ({}, {"plant": {"type": "command", "start": [{}]}}, "no stop"),
    ],
)
def test_warnings(options, run, word):
    found = describe.cautions(settings(BOX, 0.0, **options), {**RUN, **run})
    assert len(found) == 1
    assert word in found[0]


def test_a_coarse_default_grid():
    given = settings(Box.unit(8), 0.0)
    found = describe.cautions(given, RUN)[0]
    assert "NO_CANDIDATES" in found and f"smallest = {given.outputs[0].kernel.lengthscales(8).min() / 64.0:.2g}," in found
    for dim in (1, 2, 3, 4, 5, 6):
        assert describe.cautions(settings(Box.unit(dim), 0.0), RUN) == []


def test_a_norm_bound_without_its_floor_deserves_a_second_look():
    for dim, number in ((1, 0), (2, 1), (3, 1), (4, 0)):
        found = describe.cautions(settings(Box.unit(dim), 0.0, kernel=Matern(1.5, 0.2), norm=AdaptiveScenario(floor=None)), RUN)
        assert sum("no floor" in text for text in found) == number == len(found)
        assert describe.cautions(settings(Box.unit(dim), 0.0, kernel=Matern(1.5, 0.2)), RUN) == []


def test_nodes_that_are_too_few_for_the_domain_deserve_a_second_look():
    for dim, lengthscale, number in ((3, 0.2, 1), (3, 0.3, 0), (2, 0.1, 0)):
        found = describe.cautions(settings(Box.unit(dim), 0.0, kernel=Matern(1.5, lengthscale), norm=PosteriorScenario()), RUN)
        assert sum("alone is too small" in text for text in found) == number == len(found)


def test_an_rbf_kernel_beyond_three_parameters_deserves_a_second_look():
    for dim, number in ((1, 0), (2, 0), (3, 0), (4, 1)):
        found = describe.cautions(settings(Box.unit(dim), 0.0, kernel=RBF(0.2)), RUN)
        assert sum("Matern kernel" in text for text in found) == number == len(found)
    assert (
        describe.cautions(settings(Box.unit(1), 0.0, kernel=RBF(0.2), cubes=None, norm=AdaptiveScenario(floor=None)), RUN) == []
    )


def test_bounds_as_printed():
    assert "as printed" in "".join(describe.cautions(presets.algorithm_1(BOX, 0.0).state.settings, RUN))


def test_plants_in_a_line():
    assert describe.plant_text({"type": "command", "command": ["a", "b"], "timeout": 3.0}) == "command: a b, time-out 3 s"
    assert describe.plant_text({"type": "socket", "host": "x", "port": 7, "timeout": 3}) == "socket: x:7, time-out 3 s"
    assert "person" in describe.plant_text({})


def test_a_plant_that_is_not_there(tmp_path):
    settings = SafeOptimizer(Box({"a": (0.0, 1.0)}), 0.0).state.settings
    (tmp_path / "bench.py").write_text("def measure(params):\n    return 1.0\n")

    def said(**plant):
        run = {"plant": {"start": [{"a": 0.5}], "folder": str(tmp_path), **plant}}
        return [text for text in describe.cautions(settings, run) if "plant cannot be" in text]

    assert said(type="python", callable="bench:measure") == [] and said(type="python", callable="json:dumps") == []
    assert "'bnech'" in said(type="python", callable="bnech:measure")[0]
    assert "has no 'off'" in said(type="python", callable="bench:measure", stop="bench:off")[0]
    assert said(type="command", command=["sh", "-c", "x"]) == []
    assert "'no-such-program'" in said(type="command", command=["no-such-program"])[0]
