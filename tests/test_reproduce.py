"""Quick versions of the paper's figures: files, numbers against the paper's, resuming, and what is refused."""

from __future__ import annotations

import csv
import json
import math
import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from safebo import Matern, Scenario, cli
from safebo.exceptions import InvalidValueError, MissingExtraError
from safebo.norms.scenario import make_query
from safebo.rkhs import random_function
from safebo.studies import reproduce
from safebo.studies.reproduce import figure, locality, norm_ratio, random_functions, rl, rl_landscapes

NAMES = [
    "intro", "random-functions", "norm-ratio", "toy", "rl", "rl-landscapes", "cubes", "furuta", "tightness", "locality",
    "scenario-time",
    "scenario-ablation", "kernels", "locality-ablation",
]  # fmt: skip
KEYS = {
    "figure", "source", "title", "quick", "complete", "headline", "ours", "paper", "notes", "files", "seconds",
    "command", "settings", "version", "commit", "cores", "python",
}  # fmt: skip
TEXT = {
    "method",
    "stop",
    "gains",
    "environment",
    "axis",
    "through",
    "bias",
    "measured",
    "unsafe_at",
    "fingerprint",
}  # columns that hold no numbers
MAY_BE_EMPTY = {"first_near_optimum", "r"}  # never solved; infeasible
RESULTS = Path(__file__).parents[1] / "results" / "reproduce"


def rows(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def numbers(path, column):
    return np.array([float(row[column]) for row in rows(path)])


def quick(name, out, jobs=1):
    reproduce.main([name], out, quick=True, jobs=jobs)
    return json.loads((out / name / "summary.json").read_text())


# -- every figure ------------------------------------------------------------------------------------------------------------


def check_intro(summary, folder):
    example = summary["ours"]["example"]  # the story of the drawn function
    assert example["safeopt-true"]["unsafe"] == example["algorithm-4"]["unsafe"] == 0
    assert example["safeopt-small"]["unsafe"] > 0
    assert example["safeopt-large"]["experiments"] == 0 and example["safeopt-large"]["stop"] == "empty_safe_set"
    assert (folder / "over-estimation.png").exists()


def check_random_functions(summary, folder):
    assert (np.diff(numbers(folder / "distance.csv", "rms_distance")) < 0.0).all()  # they approach f


def check_norm_ratio(summary, folder):
    mean, paper = numbers(folder / "ratio.csv", "mean_ratio"), numbers(folder / "ratio.csv", "paper_mean_ratio")
    assert (np.diff(mean) <= 0.0).all()
    assert summary["ours"]["t29_over_t1"] == pytest.approx(summary["paper"]["t29_over_t1"], rel=0.2)
    np.testing.assert_allclose(mean, paper, rtol=0.35)  # the level follows the 12 drawn norms
    published = figure.published("norm_ratio_over_iterations.csv")
    given = np.array([row["mean_ratio"] for row in published])
    np.testing.assert_allclose(paper[np.isfinite(given)], given[np.isfinite(given)], rtol=1e-6)  # middle of the band


def check_toy(summary, folder):
    example = summary["ours"]["example"]
    assert example["algorithm-4"]["unsafe"] == example["safeopt-large"]["unsafe"] == 0
    assert example["safeopt-small"]["unsafe"] > 0 and example["safeopt-large"]["score"] < 0.95


def check_rl(summary, folder):
    ours = summary["ours"]["cart_pole"]
    assert ours["default"]["unsafe_experiments"] == 0 and ours["default"]["improvement_median"] > 0.0
    assert ours["safeopt-30"]["improvement_median"] < ours["default"]["improvement_median"]
    assert summary["paper"]["ant"]["algorithm-4"]["last_iteration"] == 50
    assert summary["paper"]["lunar_lander"]["safeopt-0.2"]["unsafe_experiments"] == 5


def check_rl_landscapes(summary, folder):
    ours = summary["ours"]["cart_pole"]
    assert ours["best"] > ours["initial"] > 0.0 > ours["worst"] and 0.0 < ours["unsafe_share"] < 1.0


def check_cubes(summary, folder):
    assert summary["ours"] == summary["paper"]


def check_furuta(summary, folder):
    methods = summary["ours"]["methods"]
    assert methods["algorithm-4"]["falls"] == methods["default"]["falls"] == 0
    assert methods["safeopt-large"]["experiments"] == 0 and methods["safeopt-large"]["stops"] == ["empty_safe_set"]
    assert summary["ours"]["start"]["nominal"]["mean"] > summary["ours"]["start"]["perturbed"]["mean"] > 0.0
    assert summary["ours"]["optimum"] is None and "reachable" not in summary["headline"]  # the quick map is too coarse
    assert any("too coarse" in note for note in summary["notes"])
    assert all((float(row["reward"]) < 0.0) == (row["fell"] == "1") for row in rows(folder / "samples.csv"))


def check_tightness(summary, folder):
    for method, tolerance in (("scenario", 0.15), ("hoeffding_2024", 0.12)):
        mine = [row for row in rows(folder / "tightness.csv") if row["method"] == method]
        ours, paper = ([float(row[name]) for row in mine] for name in ("ratio", "paper_ratio"))
        np.testing.assert_allclose(ours, paper, rtol=tolerance)
    assert 1.8 < summary["ours"]["hoeffding_over_scenario"] < 2.7


def check_locality(summary, folder):
    ours = summary["ours"]
    assert ours["norm_left"] < 0.3 * ours["global_norm"] > ours["norm_right"] and ours["norm_centre"] <= ours["global_norm"]
    for part in ("left", "centre", "right"):
        assert (np.diff(numbers(folder / "local_norms.csv", part)) > -1e-3).all()  # the norm grows with the cube


def check_scenario_time(summary, folder):
    assert (numbers(folder / "seconds.csv", "seconds") > 0.0).all()
    assert summary["ours"]["seconds_m1000"] > 0.0 and summary["paper"]["seconds_m1000"] > 0.0


def check_scenario_ablation(summary, folder):
    for name in ("gamma", "m"):
        for row in rows(folder / f"discards_vs_{name}.csv"):
            assert row["r"] == (row["paper_r"] if row["feasible"] == "1" else "")
    infeasible = [row["m"] for row in rows(folder / "discards_vs_m.csv") if row["feasible"] == "0"]
    assert infeasible == ["500"] and summary["ours"]["infeasible"] == 3
    np.testing.assert_allclose(
        numbers(folder / "kappa_vs_m.csv", "kappa"), numbers(folder / "kappa_vs_m.csv", "paper_kappa"), rtol=1e-8
    )
    assert summary["ours"]["discards_m1000_gamma0.1_kappa0.01"] == 78


def check_kernels(summary, folder):
    assert set(summary["ours"]["many"]) == {"matern32", "matern52", "rbf"}


def check_locality_ablation(summary, folder):
    example = summary["ours"]["example"]
    assert all(run["unsafe"] == 0 for run in example.values())
    assert example["n0"]["score"] <= example["n5"]["score"]  # without cubes it explores less


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_quick_figure(name, tmp_path, capsys):
    summary, folder = quick(name, tmp_path), tmp_path / name
    assert set(summary) == KEYS and summary["complete"] and summary["figure"] == name
    assert summary["quick"] == (name != "cubes")  # which has one version
    assert summary["ours"] and summary["notes"] and summary["seconds"] > 0.0
    assert summary["files"] == sorted(path.name for path in folder.iterdir() if path.suffix != ".json")
    assert f"{name}: {summary['headline']}" in capsys.readouterr().out
    pictures, tables = list(folder.glob("*.png")), list(folder.glob("*.csv"))
    assert pictures and tables and (folder / f"{name}.png") in pictures
    for path in pictures:
        with Image.open(path) as image:
            image.load()
            assert min(image.size) > 300 and len(image.convert("RGB").getcolors(1_000_000)) > 10
        assert path.stat().st_size < 200_000
    for path in tables:
        content = rows(path)
        assert content
        for row in content:
            for column, value in row.items():
                assert column in TEXT or (not value and column in MAY_BE_EMPTY) or math.isfinite(float(value)), (path, row)
    globals()[f"check_{name.replace('-', '_')}"](summary, folder)


# -- the command ---------------------------------------------------------------------------------------------------------------


def test_list_names_every_figure(tmp_path, capsys):
    reproduce.main([], tmp_path, listing=True)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == NAMES == list(reproduce.FIGURES)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("names", [["norm-ration"], [], ["cubes", "figure-1"]])
def test_unknown_names_are_refused_before_anything_runs(names, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["safebo", "reproduce", *names, "--quick", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    assert exit_info.value.code == 2
    message = capsys.readouterr().err
    assert all(name in message for name in (*NAMES, "all")) and "Traceback" not in message
    assert not list(tmp_path.iterdir())


def test_all_means_every_figure_once():
    assert [f.name for f in reproduce._chosen(["all"])] == NAMES
    assert [f.name for f in reproduce._chosen(["cubes", "toy", "cubes"])] == ["cubes", "toy"]


def test_missing_matplotlib_is_an_error_that_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[plot\]'"):
        reproduce.main(["cubes"], tmp_path, quick=True)


def test_missing_mujoco_is_an_error_before_anything_runs(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("safebo.problems.furuta")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[furuta\]'"):
        reproduce.main(["cubes", "furuta"], tmp_path, quick=True)
    assert not list(tmp_path.iterdir())


# -- resuming ------------------------------------------------------------------------------------------------------------------


def test_an_interrupted_figure_continues(tmp_path, monkeypatch):
    quick("norm-ratio", tmp_path / "whole")
    done, work = [], norm_ratio.ratios

    def counted(job):
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(job["function"])
        return work(job)

    monkeypatch.setattr(norm_ratio, "ratios", counted)
    with pytest.raises(KeyboardInterrupt):
        quick("norm-ratio", tmp_path)
    folder = tmp_path / "norm-ratio"
    assert not json.loads((folder / "summary.json").read_text())["complete"]
    with (folder / "functions.csv").open("a") as file:
        file.write("5,3.1,2.")  # a line that was cut off
    done.clear()
    monkeypatch.setattr(norm_ratio, "ratios", lambda job: done.append(job["function"]) or work(job))
    assert quick("norm-ratio", tmp_path)["complete"] and done == list(range(5, 12))
    for name in ("functions.csv", "ratio.csv"):
        assert (folder / name).read_text() == (tmp_path / "whole" / "norm-ratio" / name).read_text()


@pytest.mark.slow
def test_the_number_of_workers_does_not_change_the_result(tmp_path):
    for jobs in (1, 2):
        quick("norm-ratio", tmp_path / str(jobs), jobs)
    for name in ("functions.csv", "ratio.csv"):
        one, two = ((tmp_path / jobs / "norm-ratio" / name).read_text() for jobs in "12")
        assert one == two


def test_a_quick_figure_never_replaces_a_full_one(tmp_path):
    quick("scenario-ablation", tmp_path)
    reproduce.main(["scenario-ablation"], tmp_path, jobs=1)  # a full one replaces a quick one
    before = {path: path.read_bytes() for path in (tmp_path / "scenario-ablation").iterdir()}
    with pytest.raises(InvalidValueError, match="choose another --out"):
        quick("scenario-ablation", tmp_path)
    assert {path: path.read_bytes() for path in (tmp_path / "scenario-ablation").iterdir()} == before


def test_a_damaged_summary_is_named(tmp_path):
    path = tmp_path / "cubes" / "summary.json"
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(InvalidValueError, match=r"summary\.json cannot be read .*: remove it"):
        quick("cubes", tmp_path)
    assert path.read_text() == "{"


def test_runs_of_another_problem_are_not_reused(tmp_path, monkeypatch):
    done = []

    def fake(job):
        done.append((job["method"], job["fingerprint"]))
        given = {name: job[name] for name in rl.KEY}
        return {**dict.fromkeys(rl.FIELDS, 1), "stop": "", "measured": "0.4 0.5", "unsafe_at": "", **given}

    monkeypatch.setattr(rl, "run", fake)
    quick("rl", tmp_path)
    before = sorted(done)
    assert [method for method, _ in before] == sorted(rl.METHODS)
    quick("rl", tmp_path)
    assert sorted(done) == before  # nothing to do
    task = replace(rl.ENVIRONMENTS["cart_pole"].task, noise=0.002)
    monkeypatch.setitem(rl.ENVIRONMENTS, "cart_pole", replace(rl.ENVIRONMENTS["cart_pole"], task=task))
    rl._problem.cache_clear()
    done.clear()
    quick("rl", tmp_path)
    rl._problem.cache_clear()
    assert [method for method, _ in sorted(done)] == sorted(rl.METHODS) and not set(done) & set(before)
    assert {row["fingerprint"] for row in rows(tmp_path / "rl" / "runs.csv")} == {found for _, found in done}


# -- parts ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [2, 12])
def test_drawn_random_functions_are_those_of_the_scenario_bound(t):
    kernel, rng = Matern(1.5, 0.1), np.random.default_rng(t)
    f = random_function(kernel, 1, 5.0, 0)
    x = rng.random((t, 1)) * 0.5 + 0.25
    query = make_query(x, f(x), kernel, 0.01, [0.2], [0.8], (7, t))
    family = Scenario(m=100).functions
    drawn = random_functions.random_rkhs_functions(family, query, 20)
    assert len(drawn) == 20
    np.testing.assert_allclose([rho.norm for rho in drawn], family.norms(query)[:20], rtol=1e-3)
    for rho in drawn:
        np.testing.assert_allclose(rho(x), f(x), atol=0.1)


def test_a_quick_look_at_other_environments(tmp_path):
    reproduce.main(["rl-landscapes"], tmp_path, quick=True, jobs=1, env=["swimmer", "cart_pole", "swimmer"])
    summary = json.loads((tmp_path / "rl-landscapes" / "summary.json").read_text())
    assert list(summary["ours"]) == ["swimmer", "cart_pole"] and summary["complete"]


def test_what_is_told_to_the_optimizers_does_not_change_the_landscape(monkeypatch):
    problem = rl.RLProblem("cart_pole")
    before = rl.plant_identity(problem), rl.identity(problem)
    monkeypatch.setattr(problem, "row", replace(problem.row, task=replace(problem.row.task, noise=0.5, episodes=7)))
    assert rl.plant_identity(problem) == before[0] and rl.identity(problem) != before[1]
    monkeypatch.setattr(problem, "row", replace(problem.row, task=replace(problem.row.task, horizon=7)))
    assert rl.plant_identity(problem) != before[0]


def test_the_function_of_the_locality_figure_has_its_norm():
    assert locality.steep_in_the_middle(5.0, 0.1, 81, 0.05).norm == pytest.approx(5.0)


def test_published_numbers_are_complete():
    assert len(figure.published("scenario_seconds.csv")) == 24
    assert len(figure.published("norm_ratio_tightness.csv")) == 30
    assert all(row["ratio"] > 1.0 for row in figure.published("norm_ratio_tightness.csv"))


@pytest.mark.skipif(not RESULTS.exists(), reason="results are not part of the source distribution")
@pytest.mark.parametrize("name", NAMES)
def test_committed_results_are_full_and_have_the_present_settings(name):
    summary = json.loads((RESULTS / name / "summary.json").read_text())
    assert summary["complete"] and not summary["quick"]
    assert summary["settings"] == json.loads(json.dumps(reproduce.FIGURES[name].settings(False)))
    assert all((RESULTS / name / file).exists() for file in summary["files"])
    assert f"`{name}`" in (RESULTS.parents[1] / "docs" / "reproduce.md").read_text()


@pytest.mark.skipif(not RESULTS.exists(), reason="results are not part of the source distribution")
def test_committed_landscapes_are_those_of_the_package():
    for name in ("cart_pole", "mountain_car", "swimmer", "lunar_lander"):
        packaged = resources.files("safebo.problems.rl").joinpath("landscapes", f"{name}.csv").read_text()
        assert packaged == (RESULTS / "rl-landscapes" / f"{name}.csv").read_text()
    found = {row["environment"]: row["fingerprint"] for row in rows(RESULTS / "rl-landscapes" / "points.csv")}
    episodes = rl_landscapes.settings(False)["episodes"]
    assert found == {name: f"{rl.plant_identity(rl.RLProblem(name))}-{episodes[name]}" for name in rl.ENVIRONMENTS}


@pytest.mark.skipif(not RESULTS.exists(), reason="results are not part of the source distribution")
def test_the_documented_table_is_the_one_of_the_study():
    assert (RESULTS / "rl" / "table.md").read_text() in (RESULTS.parents[1] / "docs" / "benchmarks.md").read_text()
    study = {(row["environment"], row["method"]): row for row in rows(RESULTS / "rl" / "runs.csv")}
    assert len(rows(RESULTS / "rl" / "runs.csv")) == len(rl.ENVIRONMENTS) * len(rl.METHODS) * rl.settings(False)["seeds"]
    for (environment, method), row in study.items():
        job = {"environment": environment, "method": method, "seed": int(row["seed"]), **rl.settings(False)}
        assert row["fingerprint"] == rl.fingerprint(job)
