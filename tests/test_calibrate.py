"""The calibration study: its cases, one small run of each kind, resuming, and the numbers of its summary."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from safebo.exceptions import InvalidValueError
from safebo.optimizer import SafeOptimizer
from safebo.problems import RKHSProblem
from safebo.studies import calibrate
from safebo.studies.calibrate import bottleneck, cases, coverage, summary
from safebo.studies.common import Table

STARTS = np.linspace(0.0, 1.0, 401)[:, None]


def test_every_run_of_the_study_has_a_name_of_its_own():
    jobs = calibrate.study(list(cases.PARTS), quick=False)
    assert len({job[:4] for job in jobs}) == len(jobs) > 3000
    assert {job[1] for job in jobs} == set(cases.FAMILIES)
    limited = calibrate.study(list(cases.PARTS), quick=False, limit=7)
    assert all(cases.PARTS[job[0]].first <= job[3] < cases.PARTS[job[0]].first + 7 for job in limited)
    assert max(job[3] for job in limited if job[0] == "main") == 6


def test_every_combination_can_be_built():
    family = cases.FAMILIES["1-D, norm 1..10"]
    problem = family.problem(0)
    assert len(set(cases.COMBINATIONS)) == 6 * 4 * 3 * 2
    for method in cases.COMBINATIONS:
        opt = cases.optimizer(method, family, problem, 0, 250)
        assert opt.state.settings.safe_set == method.split("/")[2]


def test_study_asks_for_nothing_that_a_method_refuses():
    jobs = calibrate.study([cases.ELSEWHERE], quick=False, limit=1)
    assert {job[5] for job in jobs} == {30}
    asked: dict[int, set[str]] = {}
    for _, family_name, method, *_ in jobs:
        asked.setdefault(cases.FAMILIES[family_name].dim, set()).add(method.split("/")[0])
    every = set(cases.ESTIMATORS)
    assert asked == {1: every, 2: every, 3: every, 6: every - {"posterior", "both"}}
    family = cases.FAMILIES["6-D, norm 1..30"]
    refused = [method for method in cases.COMBINATIONS if not cases.served(method, family)]
    assert len(refused) == 48
    for method in refused:
        with pytest.raises(InvalidValueError, match="one to three dimensions"):
            cases.fingerprint(method, family, 250)  # builds the optimizer


@pytest.mark.parametrize(("limit", "measured"), [(15, (15,)), (None, (15, 30)), (50, (15, 30, 50))])
def test_scores_after_the_end_are_not_measured(limit, measured):
    row = calibrate.run((cases.ELSEWHERE, "1-D, norm 1..30, RBF", "posterior/mixture/confidence/global", 0, 250, limit))
    assert [n for n in (15, 30, 50) if row[f"score_{n}"] != ""] == list(measured)
    scores = [row[f"score_{n}"] for n in measured]
    assert min(scores) >= 0.0 and scores == sorted(scores) and max(scores) <= 1.0


@pytest.mark.parametrize("method", ["adaptive", "guess/paper/union/local", "true/paper/union/local/x"])
def test_unknown_method_is_named(method):
    family = cases.FAMILIES["1-D, norm 1..10"]
    with pytest.raises(InvalidValueError, match=method):
        cases.optimizer(method, family, family.problem(0), 0)


def test_unknown_part_is_named(tmp_path):
    with pytest.raises(InvalidValueError, match=r"'nothing'.*main"):
        calibrate.main(tmp_path, quick=True, jobs=1, only=["nothing"])


def test_norms_of_a_family_are_spread_over_their_range():
    norms = [cases.FAMILIES["1-D, norm 1..30"].problem(seed).norm for seed in range(12)]
    assert 1.0 <= min(norms) < 10.0 < 20.0 < max(norms) <= 30.0


@pytest.mark.parametrize("shape", ["kink", "step", "cliff"])
def test_bent_functions_break_where_it_is_still_safe(shape):
    bent, plain = cases.FAMILIES[f"{shape} above the limit"].problem(3), cases.FAMILIES["1-D, norm 1..30"].problem(3)
    assert bent.threshold == plain.threshold and bent.value(bent.initial) == pytest.approx(plain.initial_value)
    x = np.linspace(0.0, 1.0, 20_001)[:, None]
    before, after, edge = plain.f(x), bent.f(x), 0.5 * (plain.threshold + plain.initial_value)
    np.testing.assert_array_equal(after[before >= edge], before[before >= edge])
    assert (after[before < edge] < before[before < edge]).all()
    just_below = (before < edge) & (before > edge - 1e-3)
    margin = after[just_below] - bent.threshold  # half of the start's at the kink, a quarter below the step, none below the cliff
    share = {"kink": 1.0, "step": 0.5, "cliff": None}[shape]
    if share is None:
        assert (margin < 0.0).all()
    else:
        assert just_below.any() and margin == pytest.approx(share * (edge - plain.threshold), abs=3e-3)


@pytest.mark.parametrize("shape", ["kink", "step", "cliff"])
def test_optimum_of_a_bent_function_can_be_reached(shape):
    for seed in range(6):
        bent = cases.FAMILIES[f"{shape} above the limit"].problem(seed)
        ends = sorted([float(bent.initial[0]), float(bent.optimum_x[0])])
        way = np.append(np.linspace(*ends, 4001), ends)[:, None]
        assert bent.f(way).min() >= bent.threshold and bent.f(way).max() == pytest.approx(bent.optimum, abs=1e-3)
        assert bent.score(bent.optimum) == 1.0 and bent.optimum > bent.initial_value + 5.0 * bent.noise


def test_heavy_tailed_noise_has_the_stated_standard_deviation():
    family = cases.FAMILIES["heavy-tailed noise"]
    problem = family.problem(0)
    plant, value = family.plant(problem, 0), problem.value(problem.initial)
    errors = np.array([plant(problem.initial) - value for _ in range(4000)])
    assert errors.std() == pytest.approx(family.noise, rel=0.4)
    assert np.abs(errors).max() > 6.0 * family.noise


@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("1-D, norm 1..30", "default"),
        ("wrong kernel: RBF for Matern 3/2", "scenario/paper/union/local"),
        ("kink above the limit", "default"),
        ("heavy-tailed noise", "hoeffding/ay/continuity/global"),
        ("2-D, norm 1..10", "adaptive/mixture/confidence/global"),
        ("3-D, norm 1..10", "true/mixture/confidence/local"),
        ("6-D, norm 1..10", "true/mixture/confidence/global"),
    ],
)
def test_one_run(family, method):
    job = ("main", family, method, 1, None if method == "default" else 250, 2)
    row = calibrate.run(job)
    assert tuple(row) == calibrate.FIELDS
    assert row["experiments"] <= 2 and 0 <= row["unsafe"] <= row["experiments"]
    assert row["worst"] <= 0.0 and (row["worst"] < 0.0) == (row["unsafe"] > 0)
    assert row["score_15"] == row["score_30"] == row["score_50"] == ""  # the run ended before
    assert (row["norm_too_small"] == "") == (
        family.startswith(("wrong", "kink", "6-D"))
    )  # f is not in the model's space, or a grid too coarse
    assert {k: v for k, v in calibrate.run(job).items() if k != "seconds"} == {k: v for k, v in row.items() if k != "seconds"}


def made(job):
    """A row of zeros, with the fingerprint of its job."""
    _, family, method, _, m, limit = job
    settings = cases.fingerprint(method, cases.FAMILIES[family], m, limit)
    return (
        dict.fromkeys(calibrate.FIELDS, 0)
        | dict(zip(calibrate.KEY, job, strict=False))
        | {"first_solved": 3, "settings": settings}
    )


def changed_default(monkeypatch, name, value):
    """As if the optimizer had another default."""
    build = SafeOptimizer.__init__
    monkeypatch.setattr(SafeOptimizer, "__init__", lambda self, *a, **given: build(self, *a, **{name: value} | given))


@pytest.mark.parametrize(
    ("name", "value", "methods"),
    [("stride", 0.4, {"default"}), ("min_width", 0.2, {"default", cases.YARDSTICK, "scenario/paper/union/local"})],
)
def test_fingerprint_changes_with_a_default_that_the_method_uses(monkeypatch, name, value, methods):
    family = cases.FAMILIES["1-D, norm 1..10"]
    every = ("default", cases.YARDSTICK, "scenario/paper/union/local")
    before = {method: cases.fingerprint(method, family) for method in every}
    changed_default(monkeypatch, name, value)
    assert {method for method in every if cases.fingerprint(method, family) != before[method]} == methods


def test_fingerprint_is_the_same_for_all_seeds_and_differs_with_the_problems():
    family = cases.FAMILIES["1-D, norm 1..10"]
    for method in ("default", cases.KNOWN, cases.YARDSTICK):
        assert calibrate.run(("main", "1-D, norm 1..10", method, 1, None, 1))["settings"] == cases.fingerprint(
            method, family, None, 1
        )
    others = [{"quantile": 0.2}, {"experiments": 31}, {"heavy_tails": True}, {"norms": (1.0, 11.0)}, {"noise": 0.02}]
    marks = [cases.fingerprint("default", family), cases.fingerprint("default", family, None, 3)]
    marks += [cases.fingerprint("default", cases.replace(family, **other)) for other in others]
    assert len(set(marks)) == len(marks)


def test_runs_of_other_settings_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(calibrate, "run", made)
    calibrate.main(tmp_path, quick=True, jobs=1, only=["main"])
    before = (tmp_path / "runs.csv").read_text()
    calibrate.main(tmp_path, quick=True, jobs=1, only=["main"])  # nothing changed
    with pytest.raises(InvalidValueError, match="6 runs of"):  # longer runs than those of --quick
        calibrate.main(tmp_path, quick=False, jobs=1, only=["main"])
    changed_default(monkeypatch, "stride", 0.4)
    with pytest.raises(InvalidValueError, match=r"2 runs of .*runs.csv.*'default' on '1-D, norm 1..10'.*delete these lines"):
        calibrate.main(tmp_path, quick=True, jobs=1, only=["main"])
    assert (tmp_path / "runs.csv").read_text() == before


def test_committed_runs_have_the_settings_of_today():
    path = Path(__file__).parents[1] / "results/calibration/runs.csv"
    rows = Table(path, calibrate.FIELDS, calibrate.KEY).rows
    calibrate.refuse_other_settings(rows, quick=False, path=path)
    assert len(rows) > 3000


def test_study_resumes_after_an_interruption(tmp_path, monkeypatch):
    calls = []

    def counted(job):
        calls.append(job)
        values = made(job)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return values

    monkeypatch.setattr(calibrate, "run", counted)
    with pytest.raises(KeyboardInterrupt):
        calibrate.main(tmp_path, quick=True, jobs=1, only=["main"])
    path = tmp_path / "runs.csv"
    assert len(path.read_text().splitlines()) == 1 + 3
    path.write_text(path.read_text() + "main,half a li")
    calibrate.main(tmp_path, quick=True, jobs=1, only=["main"])
    assert len(calls) == 1 + 6  # the interrupted one again
    lines = path.read_text().splitlines()
    assert len(lines) == 1 + 6 and not any("half" in line for line in lines)
    calibrate.main(tmp_path, quick=True, jobs=1, only=["main"])
    assert len(calls) == 1 + 6
    assert all((tmp_path / name).read_bytes()[:4] == b"\x89PNG" for name in ("pareto.png", "solved.png"))
    assert "| 1-D, norm 1..10 | default | 1 |" in (tmp_path / "table.md").read_text()
    written = json.loads((tmp_path / "summary.json").read_text())
    assert {"command", "commit", "settings", "rows"} <= set(written) and len(written["rows"]) == 6


def test_a_start_from_which_nothing_is_certified_is_measured_again_and_counts():
    """With the true norm of 200 nothing is certified after ten repetitions; with the default one or two are enough here."""
    job = ("conditions", "1-D, norm 1..30, noise 0.05", "default", 33, None, 6)
    row = calibrate.run(job)
    assert 0 < row["experiments"] <= 6 and row["unsafe"] == 0
    family = cases.replace(cases.FAMILIES[job[1]], norms=(200.0, 201.0), noise=5.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cases.FAMILIES, job[1], family)
        row = calibrate.run((*job[:2], cases.YARDSTICK, 33, None, None))
    assert row["experiments"] == calibrate.AGAIN and row["stop"] == "empty_safe_set" and row["first_solved"] == ""


def test_coverage_of_norms_is_measured_and_kept(tmp_path):
    calibrate.main(tmp_path, quick=True, jobs=1, only=["norms"])
    rows = coverage.known(tmp_path)
    assert len(rows) == 2 * 27
    assert all(0.0 < float(r["local_norm"]) <= float(r["norm"]) * (1.0 + 1e-6) for r in rows)
    assert all(min(float(r[name]) for name in ("scenario", "adaptive", "posterior")) > 0.0 for r in rows)
    assert all(float(r["largest"]) > float(r["scenario"]) for r in rows)
    text = (tmp_path / "table.md").read_text()
    calibrate.main(tmp_path, quick=True, jobs=1, only=["norms"])
    assert (tmp_path / "table.md").read_text() == text and "| 26 | 0.1 | 3 | 2 |" in text


def test_summary_by_hand():
    def row(seed, unsafe, first, worst=0.0):
        values = {"part": "main", "family": "1-D, norm 1..10", "method": "default", "seed": seed, "norm": 2.0, "experiments": 30}
        rest = {"norm_too_small": 1, "interval_missed": 0, "score_15": 0.5, "score_30": 1.0, "score_50": 1.0, "best_score": 1.0}
        return values | rest | {"unsafe": unsafe, "worst": worst, "first_solved": first, "stop": "", "seconds": 2.0}

    rows = [{k: str(v) for k, v in row(*r).items()} for r in [(0, 0, 5), (1, 2, 9, -0.5), (2, 0, ""), (3, 0, 7)]]
    (line,) = summary.summarise(rows)
    assert (line["runs"], line["unsafe_runs"], line["unsafe_experiments"], line["worst_violation"]) == (4, 1, 2, -0.5)
    assert (line["solved"], line["median_experiments_to_95"], line["norm_too_small"]) == (3, 7.0, 4)
    low, high = line["unsafe_rate_95"]
    assert low == pytest.approx(0.0063, abs=1e-4) and high == pytest.approx(0.8059, abs=1e-4)  # exact binomial interval of 1 in 4
    assert line["score_15"] == 0.5 and line["assumptions"] is True
    (line,) = lines = summary.summarise([row | {"score_50": "", "norm_too_small": ""} for row in rows])
    assert line["score_50"] is None and line["norm_too_small"] is None  # not measured is not zero
    assert "| - | 0 | 0.50 / 1.00 / - | 75 % | 7 |" in summary.table(lines)


def test_the_widest_way_by_hand():
    values = np.array([[5.0, 1.0, 9.0], [4.0, 0.0, 2.0], [4.5, 3.0, 6.0]])
    assert bottleneck.max_min(values, 0, values >= 9.0) == 2.0  # around, not through the 1 or the 0
    assert bottleneck.max_min(values, 0, values >= 6.0) == 3.0
    assert bottleneck.max_min(values, 0, values >= 5.0) == 5.0  # the start itself
    assert bottleneck.max_min(values, 4, values >= 9.0) == 0.0  # no level is higher than the start


def test_a_wider_bottleneck_lets_one_go_further():
    problem = RKHSProblem.sample(2, 5.0, 1)
    steps = [bottleneck.first_step(problem, margin) for margin in (0.001, 0.1, 0.5, 2.0)]
    assert steps[0][1] == 0.0 and [reach for _, reach in steps] == sorted(reach for _, reach in steps)
    # sd = sqrt(1 - k^2) of a Matern 3/2 kernel is about sqrt(3) d / l near a sample, and a step needs norm * sd <= margin
    assert steps[1][1] == pytest.approx(0.1 / 5.0 / 3.0**0.5, rel=0.3)
    assert all(0.1 * problem.noise < width < 10.0 * problem.noise for width, _ in steps)


def test_bottlenecks_are_written_once_and_shown_with_the_outcome(tmp_path, monkeypatch):
    calibrate.main(tmp_path, quick=True, jobs=1, only=["bottlenecks"])
    rows = bottleneck.known(tmp_path)
    assert [row["family"] for row in rows] == ["2-D, norm 1..10", "2-D, norm 1..30"]
    assert all(0.0 < float(row["bottleneck"]) <= float(row["start"]) for row in rows)
    monkeypatch.setattr(bottleneck, "estimate", None)  # not called again
    calibrate.main(tmp_path, quick=True, jobs=1, only=["bottlenecks"])
    outcome = {"part": "2-D", "family": "2-D, norm 1..10", "seed": "0"}
    runs = [outcome | {"method": "default", "first_solved": "17"}, outcome | {"method": cases.KNOWN, "first_solved": ""}]
    text = bottleneck.bottleneck_table(rows, runs)
    assert "| 17 | - | not run |" in text and text.count("not run | not run | not run") == 1


def test_held_out_problems_are_others():
    seeds: dict[tuple[bool, str], set[int]] = {}
    for part, family, _, seed, _, _ in calibrate.study([*cases.PARTS], quick=False):
        seeds.setdefault((part.endswith(", held out"), family), set()).add(seed)
    held_out = {family: chosen for (out, family), chosen in seeds.items() if out}
    assert {cases.FAMILIES[family].dim for family in held_out} == {1, 2, 3, 6}
    assert len(held_out["1-D, norm 1..10"]) == 200 and len(held_out["2-D, norm 1..10"]) == 80
    for family, chosen in held_out.items():
        assert not chosen & seeds[False, family]
