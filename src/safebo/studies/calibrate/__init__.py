"""`safebo calibrate`: safety and progress over many random problems.

A run is unsafe if one experiment has f below the threshold, and solved once an experiment comes within 5 % of the reachable
optimum, relative to the initial value. It starts from one measurement; where nothing can be certified from that, the start is
measured again, as the advice is, at most `AGAIN` times, and every time counts as an experiment.

runs.csv grows as runs finish, so an interrupted study continues where it stopped; its column `settings` is a fingerprint of
method and problems, and runs made with other settings are refused. What was not measured is empty there. table.md, summary.json,
pareto.png and solved.png are written from whatever is there. bottlenecks.csv says how narrow the way to the optimum is in 2-D.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from safebo.domain import Cube
from safebo.exceptions import InvalidValueError, StopReason
from safebo.studies.calibrate import bottleneck
from safebo.studies.calibrate.cases import ELSEWHERE, FAMILIES, HELD_OUT, PARTS, fingerprint, optimizer, served
from safebo.studies.calibrate.coverage import known, measure
from safebo.studies.calibrate.summary import write_summary
from safebo.studies.common import Row, Table, parallel

FIELDS = (
    "part", "family", "method", "seed", "settings", "norm", "experiments", "unsafe", "worst", "norm_too_small", "interval_missed",
    "score_15", "score_30", "score_50", "first_solved", "best_score", "stop", "seconds",
)  # fmt: skip
KEY = ("part", "family", "method", "seed")
EXTRAS = ("norms", "bottlenecks")  # parts without an optimizer
AGAIN = 10
"""Repetitions of a start from which nothing can be certified, at most."""

Job = tuple[str, str, str, int, int | None, int | None]  # part, family, method, seed, m, experiments


def main(out: Path, *, quick: bool, jobs: int, only: list[str], runs: int | None = None) -> None:
    """Run what is missing, at most `runs` of each kind, then summarise."""
    unknown = [name for name in only if name not in (*PARTS, *EXTRAS)]
    if unknown:
        raise InvalidValueError(
            f"Unknown part {unknown[0]!r} of the study: choose from {', '.join(map(repr, [*PARTS, *EXTRAS]))}."
        )
    table = Table(out / "runs.csv", FIELDS, KEY)
    refuse_other_settings(table.rows, quick, table.path)
    todo = [job for job in study(only or [*PARTS], quick, runs) if dict(zip(KEY, job, strict=False)) not in table]
    for row in parallel(run, todo, jobs, "calibration"):
        table.add(row)
    norms = measure(out, 2 if quick else min(runs or 100, 100), jobs) if not only or "norms" in only else known(out)
    if not only or "bottlenecks" in only:
        seeds = [job[3] for job in study(["2-D"] if quick else ["2-D", HELD_OUT], quick, runs)]
        bottleneck.measure(out, list(dict.fromkeys(seeds)), jobs)
    order = {name: i for i, name in enumerate([*PARTS, *FAMILIES])}
    table.sort(lambda row: (order[row["part"]], order[row["family"]], row["method"], int(row["seed"])))
    write_summary(table.rows, norms, bottleneck.known(out), out, quick)
    print(f"{len(table.rows)} runs in {table.path}; table.md, summary.json and pictures beside it")


def refuse_other_settings(rows: list[Row], quick: bool, path: Path) -> None:
    """An error if rows were made with other settings than today's: a rate over both would describe neither."""
    today: dict[tuple[str, str, str], str] = {}
    for part, family, method, _, m, limit in study([*PARTS], quick, 1):
        today[part, family, method] = fingerprint(method, FAMILIES[family], m, limit)
    other: dict[tuple[str, str, str], int] = {}
    for row in rows:
        key = (row["part"], row["family"], row["method"])
        if row["settings"] != today.get(key):
            other[key] = other.get(key, 0) + 1
    if other:
        part, family, method = next(iter(other))
        raise InvalidValueError(
            f"{sum(other.values())} runs of {path} were made with other settings or problems than today's, the first ones by "
            f"{method!r} on {family!r} ({part}): delete these lines to run them again, or choose another folder."
        )


def study(parts: list[str], quick: bool, limit: int | None = None) -> list[Job]:
    """All runs; seeds go first, so that an interrupted study has some runs of everything."""
    found: list[Job] = []
    for name in [name for name in parts if name in PARTS]:
        part = PARTS[name]
        runs = 1 if quick else part.runs if limit is None else min(part.runs, limit)
        for seed in range(part.first, part.first + runs):
            for family in part.families:
                for method in part.methods:
                    left_out = FAMILIES[family].dim > 2 or (name in ("combinations", ELSEWHERE) and "/ay" in method)
                    if (quick and left_out) or not served(method, FAMILIES[family]):
                        continue
                    found.append((name, family, method, seed, 250 if quick else part.m, 3 if quick else part.experiments))
    return found


def run(job: Job) -> dict[str, Any]:
    """One method on one problem."""
    part, name, method, seed, m, limit = job
    family = FAMILIES[name]
    problem = family.problem(seed)
    tuner, plant = optimizer(method, family, problem, seed, m), family.plant(problem, seed)
    values: list[float] = []
    again = 0  # experiments so far that repeated the start
    too_small = missed = False
    start = time.perf_counter()
    checking = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they warn about is counted
        tuner.tell(problem.initial, plant(problem.initial))
        while len(values) < (limit or family.experiments):
            trial = tuner.ask()
            if trial is None:
                if tuner.stop_reason is not StopReason.EMPTY_SAFE_SET or len(values) > again or again == AGAIN:
                    break
                values.append(problem.initial_value)
                tuner.tell(problem.initial, plant(problem.initial))
                again += 1
                continue
            values.append(problem.value(trial.params))
            tuner.tell(trial, plant(trial.params))
            before = time.perf_counter()
            missed |= not trial.lower <= values[-1] <= trial.upper
            too_small |= family.has_local_norms and trial.norm < _local_norm(problem, trial.cube)
            checking += time.perf_counter() - before
        seconds = time.perf_counter() - start - checking
        points = np.random.default_rng((seed, 3)).random((200, family.dim))
        lower, upper = tuner.bounds(problem.domain.from_unit(points))
        truth = problem.f(points)
        missed |= bool(((truth < lower) | (truth > upper)).any())
        best = problem.score(problem.value(tuner.best().params))
    scores = np.maximum.accumulate([0.0, *(problem.score(v) for v in values)])
    first = next((i for i, score in enumerate(scores) if score >= 0.95), "")
    margins = [v - problem.threshold for v in values]
    reached = [round(float(scores[min(n, len(values))]), 4) if n <= (limit or family.experiments) else "" for n in (15, 30, 50)]
    norm_too_small = int(too_small) if family.has_local_norms else ""
    row: tuple[Any, ...] = (
        part, name, method, seed, fingerprint(method, family, m, limit), round(problem.f.norm, 4), len(values),
        sum(v < 0.0 for v in margins), round(min([0.0, *margins]), 4), norm_too_small, int(missed), *reached,
        first, round(best, 4), "" if tuner.stop_reason is None else tuner.stop_reason.name.lower(), round(seconds, 2),
    )  # fmt: skip
    return dict(zip(FIELDS, row, strict=True))


def _local_norm(problem: Any, cube: Cube) -> float:
    """||f||_c as far as a grid shows it."""
    return float(problem.f.local_norm(cube, {1: 64, 2: 9, 3: 7}[problem.domain.dim])) * (1.0 - 1e-6)
