"""The calibration study: its cases, one small run of each kind, resuming, and the numbers of its summary."""

from __future__ import annotations

import json

import numpy as np
import pytest

from safebo.exceptions import InvalidValueError
from safebo.studies import calibrate
from safebo.studies.calibrate import cases, coverage, summary

STARTS = np.linspace(0.0, 1.0, 401)[:, None]


def test_every_run_of_the_study_has_a_name_of_its_own():
    jobs = calibrate.study(list(cases.PARTS), quick=False)
    assert len({job[:4] for job in jobs}) == len(jobs) > 3000
    assert {job[1] for job in jobs} == set(cases.FAMILIES)
    assert max(job[3] for job in calibrate.study(list(cases.PARTS), quick=False, limit=7)) == 6


def test_every_combination_can_be_built():
    family = cases.FAMILIES["1-D, norm 1..10"]
    problem = family.problem(0)
    assert len(set(cases.COMBINATIONS)) == 4 * 4 * 3 * 2
    for method in cases.COMBINATIONS:
        opt = cases.optimizer(method, family, problem, 0, 250)
        assert opt.state.settings.safe_set == method.split("/")[2]


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


@pytest.mark.parametrize("name", ["kink at the limit", "step at the limit"])
def test_bent_functions_differ_only_where_it_is_unsafe(name):
    family = cases.FAMILIES[name]
    bent, plain = family.problem(3), cases.FAMILIES["1-D, norm 1..30"].problem(3)
    before, after = plain.f(STARTS), bent.f(STARTS)
    safe = before >= plain.threshold
    assert bent.threshold == plain.threshold and 0 < safe.sum() < len(safe)
    np.testing.assert_array_equal(after[safe], before[safe])
    assert (after[~safe] < before[~safe]).all()


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
        ("kink at the limit", "default"),
        ("heavy-tailed noise", "hoeffding/ay/continuity/global"),
        ("2-D, norm 1..10", "adaptive/mixture/confidence/global"),
    ],
)
def test_one_run(family, method):
    job = ("main", family, method, 1, None if method == "default" else 250, 2)
    row = calibrate.run(job)
    assert tuple(row) == calibrate.FIELDS
    assert row["experiments"] <= 2 and 0 <= row["unsafe"] <= row["experiments"]
    assert row["worst"] <= 0.0 and (row["worst"] < 0.0) == (row["unsafe"] > 0)
    assert 0.0 <= row["score_15"] <= row["score_30"] <= row["score_50"]
    assert {k: v for k, v in calibrate.run(job).items() if k != "seconds"} == {k: v for k, v in row.items() if k != "seconds"}


def test_study_resumes_after_an_interruption(tmp_path, monkeypatch):
    calls = []

    def counted(job):
        calls.append(job)
        values = dict.fromkeys(calibrate.FIELDS, 0) | dict(zip(calibrate.KEY, job, strict=False)) | {"first_solved": 3}
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
    assert (tmp_path / "pareto.png").read_bytes()[:4] == b"\x89PNG"
    assert "| 1-D, norm 1..10 | default | 1 |" in (tmp_path / "table.md").read_text()
    written = json.loads((tmp_path / "summary.json").read_text())
    assert {"command", "commit", "settings", "rows"} <= set(written) and len(written["rows"]) == 6


def test_coverage_of_norms_is_measured_and_kept(tmp_path):
    calibrate.main(tmp_path, quick=True, jobs=1, only=["norms"])
    rows = coverage.known(tmp_path)
    assert len(rows) == 2 * 27
    assert all(0.0 < float(r["local_norm"]) <= float(r["norm"]) * (1.0 + 1e-6) for r in rows)
    assert all(float(r["adaptive"]) > 0.0 and float(r["scenario"]) > 0.0 for r in rows)
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
