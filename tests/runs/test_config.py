"""The configuration file: what is written is what runs, and every mistake is reported with its line."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safebo import RBF, Box, Constraint, Fixed, LocalCubes, Matern, SafeOptimizer, Scenario, presets
from safebo.bounds import AbbasiYadkori, Paper
from safebo.exceptions import ConfigError, InvalidValueError
from safebo.norms import AdaptiveScenario, LSTMNorm, PosteriorScenario
from safebo.runs import config
from safebo.runs.plant_spec import KINDS
from safebo.runs.template import template

SMALL = """\
[run]
name = "small"

[parameters.a]
bounds = [0.0, 1.0]

[objective]
threshold = 0.0
"""


def same(text, expected):
    assert config.parse(text).optimizer.state.settings == expected.state.settings


@pytest.mark.parametrize("plant", KINDS)
def test_what_init_writes_is_accepted(plant):
    read = config.parse(template("my run", plant))
    assert (read.name, read.plant["type"], read.warnings) == ("my run", plant, ())
    assert read.starts == ({"kp": 2.0, "kd": 0.3},)
    assert read.run["units"] == {"kp": "V/rad", "kd": "V s/rad", "torque": "N m"}
    expected = SafeOptimizer(
        Box({"kp": (0.0, 5.0), "kd": (0.0, 1.0)}),
        0.0,
        kernel=Matern(nu=1.5, lengthscale=0.5),
        noise=0.02,
        constraints={"torque": Constraint(upper=1.5, noise=0.02)},
    )
    assert read.optimizer.state.settings == expected.state.settings


def test_the_smallest_file_has_the_defaults():
    same(SMALL, SafeOptimizer(Box({"a": (0.0, 1.0)}), 0.0))
    assert config.parse(SMALL).run == {
        "title": "", "notes": "", "experiments": None, "confirm": False, "on_violation": "stop", "units": {},
        "plant": {"type": "manual"},
    }  # fmt: skip


def test_every_setting_arrives():
    text = """
        [run]
        name = "all"
        seed = 7
        [parameters]
        a = { lower = -1, upper = 1.0 }
        "b c" = { bounds = [0, 2] }
        [objective]
        noise = 0.03
        min_width = 0.2
        [limits.heat]
        threshold = -1.0
        upper = 1
        noise = 0.05
        min_width = 0.3
        delta = 0.002
        norm = { type = "scenario", m = 500, gamma = 0.05, floor = "lstm" }
        bound = "paper"
        kernel = { type = "rbf", lengthscale = [0.2, 0.3], outputscale = 2.0 }
        [limits.torque]
        upper = 2.0
        norm = 3
        [kernel]
        nu = 2.5
        lengthscale = { a = 0.2, "b c" = 0.4 }
        [algorithm]
        cubes = { type = "local", n = 3, delta = 0.2 }
        bound = { type = "abbasi-yadkori", lam = 0.5 }
        safe_set = "union"
        acquisition = "balanced"
        stride = "none"
        points_per_axis = [20, 30]
        delta = 0.02
        abort_radius = 0.5
        memory_budget = 1000
        falsify = false
        refutation_margin = 1.5
        screening = "lstm"
        """
    same(
        text,
        SafeOptimizer(
            Box({"a": (-1.0, 1.0), "b c": (0.0, 2.0)}),
            None,
            kernel=Matern(nu=2.5, lengthscale=(0.2, 0.4)),
            noise=0.03,
            min_width=0.2,
            bound=AbbasiYadkori(lam=0.5),
            delta=0.02,
            cubes=LocalCubes(n=3, delta=0.2),
            points_per_axis=(20, 30),
            safe_set="union",
            acquisition="balanced",
            stride=None,
            abort_radius=0.5,
            falsify=False,
            refutation_margin=1.5,
            screening=LSTMNorm(),
            memory_budget=1000,
            seed=7,
            constraints={
                "heat": Constraint(
                    -1.0, RBF(lengthscale=(0.2, 0.3), outputscale=2.0), 0.05, Scenario(m=500, gamma=0.05, floor=LSTMNorm()),
                    1.0, Paper(), 0.002, 0.3,
                ),
                "torque": Constraint(upper=2.0, norm=Fixed(3.0)),
            },
        ),
    )  # fmt: skip


TWO = """
    [run]
    name = "two parameters"
    [parameters]
    a = { lower = 0, upper = 1 }
    b = { lower = 0, upper = 1 }
    [objective]
    threshold = 0.0
    """
TWO_BOX = Box({"a": (0.0, 1.0), "b": (0.0, 1.0)})


def test_norms_from_all_samples_and_directed_experiments():
    text = """
        [kernel]
        lengthscale = 0.2
        [algorithm]
        norm = { type = "posterior", m = 600, median = 2.0 }
        acquisition = "directed"
        """
    norm = PosteriorScenario(m=600, median=2.0)
    same(TWO + text, SafeOptimizer(TWO_BOX, 0.0, kernel=Matern(lengthscale=0.2), norm=norm, acquisition="directed"))


def test_a_floor_by_its_name():
    text = """
        [algorithm]
        norm = { type = "adaptive", floor = "posterior" }
        acquisition = "auto"
        """
    same(TWO + text, SafeOptimizer(TWO_BOX, 0.0, norm=AdaptiveScenario(floor=PosteriorScenario())))
    same(TWO + text, SafeOptimizer(TWO_BOX, 0.0))


@pytest.mark.parametrize("preset", ["algorithm_1", "algorithm_4", "pacsbo_2024"])
def test_presets(preset):
    same(SMALL + f"[algorithm]\npreset = '{preset}'\n", getattr(presets, preset)(Box({"a": (0.0, 1.0)}), 0.0))
    same(
        SMALL + "[algorithm]\npreset = 'safeopt'\nnorm = 5\ndelta = 0.1",
        presets.safeopt(Box({"a": (0.0, 1.0)}), 0.0, norm=5.0, delta=0.1),
    )


def test_several_starts_and_where_paths_begin(tmp_path):
    text = (
        SMALL + "[[start]]\na = 0.5\n[[start]]\na = 0.6\n[plant]\ntype = 'command'\ncommand = ['x']\ntimeout = 1\nfolder = 'sub'"
    )
    (tmp_path / "file.toml").write_text(text)
    read = config.read(tmp_path / "file.toml")
    repeated = config.parse(text.replace('"small"', '"small"\nstart_repeats = 3'))
    assert (repeated.plant["repeats"], "repeats" in read.plant) == (3, False)
    assert read.starts == ({"a": 0.5}, {"a": 0.6})
    assert read.database == str(tmp_path / "safebo.db")
    assert read.plant["folder"] == str(tmp_path / "sub")
    assert config.parse(SMALL.replace('"small"', '"small"\ndatabase = "sqlite:///x.db"')).database == "sqlite:///x.db"


MISTAKES = [
    ('name = "x"', 'nam = "x"', "unknown key 'nam' in [run]. Did you mean 'name'? Allowed: confirm, database"),
    ('name = "x"', 'name = ""', "must begin with a letter"),
    ('name = "x"', 'name = "../x"', "'../x'"),
    ('title = ""', "title = 3", 'title must be text in quotes, such as title = "3"'),
    ("experiments = 30", "experiments = 1.5", "experiments must be an integer >= 0, got 1.5"),
    ("experiments = 30", "experiments = -1", "-1"),
    ("confirm = false", 'confirm = "yes"', "confirm must be true or false, got 'yes'"),
    ('on_violation = "stop"', 'on_violation = "stopp"', "'stop', 'continue', got 'stopp'. Did you mean 'stop'?"),
    ("seed = 0 ", "seed = -3 ", "seed"),
    ("bounds = [0.0, 5.0]", "bounds = [5.0, 0.0]", "low < high"),
    ("bounds = [0.0, 5.0]", "bounds = [0.0]", "two numbers"),
    ("bounds = [0.0, 5.0]", "bounds = [0.0, nan]", "nan"),
    ("bounds = [0.0, 5.0]", "lower = 0.0", "needs bounds"),
    ("bounds = [0.0, 1.0]", "lower = 0.0\nupper = 'x'", "upper must be a finite number, got 'x'"),
    ("[parameters.kp]", "[parameter.kp]", "unknown key 'parameter' in the file. Did you mean 'parameters'?"),
    ("threshold = 0.0", 'threshold = "0"', "threshold must be a finite number, got '0'"),
    ("noise = 0.02                # standard", "noise = -0.02  #", "noise of 'objective' must be positive, got -0.02"),
    ("upper = 1.5\nnoise = 0.02", "upper = 1.5\nnoise = 0", "noise of 'torque' must be positive, got 0"),
    ("min_width = 0.1", "min_width = -1", "min_width of 'objective'"),
    ("upper = 1.5", "uper = 1.5", "unknown key 'uper' in [limits.torque]. Did you mean 'upper'?"),
    ("upper = 1.5", "upper = inf", "upper must be a finite number, got inf"),
    ("upper = 1.5", "upper = 1.5\nthreshold = 2.0", "Nothing satisfies"),
    ("upper = 1.5", "upper = 1.5\ndelta = 0.5", "use up delta"),
    ("[limits.torque]", "[limits.kp]", "the name 'kp' is taken"),
    ('type = "matern"', 'type = "mattern"', "'matern', 'rbf', got 'mattern'. Did you mean 'matern'?"),
    ("nu = 1.5 ", "nu = 1.4 ", "nu"),
    ("lengthscale = 0.5 ", "lengthscale = 0.0 ", "lengthscale must be positive and finite, got 0.0"),
    ("lengthscale = 0.5 ", "lengthscale = [0.3] ", "1 numbers, there are 2 parameters"),
    ("lengthscale = 0.5 ", "lengthscale = { kp = 0.3 }", "missing ['kd']"),
    ("lengthscale = 0.5 ", "lengthscale = 1e-9", "No grid resolves the lengthscale 1e-09"),
    ("kp = 2.0", "kp = 7.0", "'kp' = 7.0 lies outside its bounds [0.0, 5.0]"),
    ("kp = 2.0", "kq = 2.0", "unknown ['kq'], missing ['kp']"),
    ("# [algorithm]", "[algorithm]\npreset = 'safopt'", "Did you mean 'safeopt'?"),
    ("# [algorithm]", "[algorithm]\npreset = 'safeopt'", "needs the guessed norm"),
    ("# [algorithm]", "[algorithm]\ndelta = 2", "delta must lie strictly between 0 and 1, got 2"),
    ("# [algorithm]", "[algorithm]\nstride = 'no'", "stride must be a positive number of lengthscales, or 'none'"),
    ("# [algorithm]", "[algorithm]\nstride = 0", "stride must be positive"),
    ("# [algorithm]", "[algorithm]\npoints_per_axis = 1", "points_per_axis must be at least 2"),
    ("# [algorithm]", "[algorithm]\nnorm = 'adaptiv'", "Did you mean 'adaptive'?"),
    ("# [algorithm]", "[algorithm]\nnorm = -1.0", "must be positive and finite, got -1.0"),
    ("# [algorithm]", "[algorithm]\nnorm = { m = 3 }", "norm needs a type"),
    ("# [algorithm]", "[algorithm]\nnorm = { type = 'fixed' }", "a fixed norm needs its value"),
    ("# [algorithm]", "[algorithm]\nnorm = { type = 'adaptive', gama = 0.1 }", "Did you mean 'gamma'?"),
    ("# [algorithm]", "[algorithm]\nnorm = { type = 'adaptive', gamma = 2 }", "AdaptiveScenario.gamma must lie strictly"),
    ("# [algorithm]", "[algorithm]\nnorm = { type = 'scenario', m = 3 }", "The smallest m that works is 44"),
    ("# [algorithm]", "[algorithm]\ncubes = 'Auto'", "Did you mean 'auto'?"),
    ("# [algorithm]", "[algorithm]\nmemory_budget = -1", "memory_budget"),
    ("# [algorithm]", "[algorithm]\nrefutation_margin = 1", "refutation_margin must exceed 1"),
    ('type = "python"', 'type = "pyhton"', "Did you mean 'python'?"),
    ('callable = "experiment:measure"', 'callable = "experiment"', 'must name a function as "module:function"'),
    ('callable = "experiment:measure"', "command = ['x']", "unknown key 'command' in [plant]. Allowed: callable"),
    ("timeout = 60.0", "timeout = 0", "timeout must be positive"),
]


@pytest.mark.parametrize(("right", "wrong", "message"), MISTAKES)
def test_mistakes_point_to_their_line(right, wrong, message):
    text = template("x")
    assert text.count(right) == 1
    broken = text.replace(right, wrong)
    line = broken[: broken.index(wrong) + len(wrong.rstrip())].count("\n") + 1
    with pytest.raises(ConfigError) as caught:
        config.parse(broken, "my.toml")
    found = [text for number, text in caught.value.problems if number == line]
    assert any(message in text for text in found), caught.value.problems
    assert f"my.toml:{line}: " in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "[run] is missing"),
        ("a = 1\nb = \n", 2, "not valid TOML: invalid value"),
        ("a = 1\n\na = 2", 3, "cannot overwrite a value"),
        ("a = '''x", 1, "not valid TOML"),
        ("[run]\nname = 'x'\n\n[objective]\nnoise = 0.1\n[parameters.a]\nbounds = [0, 1]", 4, "nothing is limited"),
        ("run = 3", 1, "run must be a table, got 3: write [run]"),
        (SMALL + "[plant]\ntimeout = 3", 9, "[plant] needs a type"),
        (SMALL + "[plant]\ntype = 'socket'\nport = 3", 9, "a socket plant needs host and timeout"),
        (SMALL + "[plant]\ntype = 'socket'\nhost = 'x'\nport = 0\ntimeout = 3", 12, "port must be a whole number"),
        (SMALL + "[plant]\ntype = 'command'\ncommand = 'ls'\ntimeout = 3", 11, "command must be a list"),
        (SMALL + "[plant]\ntype = 'command'\ncommand = ['ls']\nretries = -1\ntimeout = 3", 12, "retries"),
        (SMALL + "start = 3", 9, "unknown key 'start'"),
        ("start = [3]\n" + SMALL, 1, "must name a value for every parameter, got 3"),
        (SMALL + "[kernel]\ntype = 'rbf'\nnu = 1.5", 11, "an RBF kernel has no nu"),
        (SMALL.replace("bounds", "lower = 0\nbounds"), 5, "not both"),
    ],
)
def test_mistakes_of_whole_sections(text, line, message):
    with pytest.raises(ConfigError) as caught:
        config.parse(text)
    assert any(number == line and message in found for number, found in caught.value.problems), caught.value.problems


def test_all_mistakes_at_once():
    text = SMALL.replace("bounds = [0.0, 1.0]", "bounds = 3").replace("threshold", "treshold")
    with pytest.raises(ConfigError) as caught:
        config.parse(text)
    assert [line for line, _ in caught.value.problems] == [5, 7, 8]


def test_warnings_have_a_line():
    read = config.parse(SMALL + "[kernel]\nlengthscale = 2.0")
    assert [line for line, _ in read.warnings] == [10]
    assert "longer than its whole range" in read.warnings[0][1]


def test_files_that_are_no_text(tmp_path):
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"x\.toml:1: not a text file"):
        config.read(tmp_path / "x.toml")


def test_unknown_plants_have_no_template():
    with pytest.raises(InvalidValueError, match="pyhton"):
        template("x", "pyhton")


WORDS = st.sampled_from(
    ["run", "parameters", "limits", "start", "plant", "kernel", "norm", "name", "type", "a", "bounds", "objective"]
)
VALUES = st.recursive(
    st.sampled_from(["1", "-0.5", "nan", "true", '"matern"', '"python"', '"x"', "1979-05-27", "[]", "{}"]),
    lambda v: (
        st.lists(v, max_size=2).map(lambda x: f"[{', '.join(x)}]")
        | st.dictionaries(WORDS, v, max_size=2).map(lambda d: "{" + ", ".join(f"{k} = {x}" for k, x in d.items()) + "}")
    ),
    max_leaves=4,
)
LINES = st.tuples(WORDS, VALUES).map(lambda pair: f"{pair[0]} = {pair[1]}") | WORDS.map(lambda w: f"[{w}]")


@given(st.lists(LINES, max_size=8))
def test_no_file_ends_in_anything_but_a_config_error(lines):
    with contextlib.suppress(ConfigError):
        config.parse("\n".join(lines))
