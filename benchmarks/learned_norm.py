"""`python -m benchmarks.learned_norm [--seeds 20] [--jobs 1]`: what the learned norm estimator buys.

Algorithm 4 with the scenario bound alone, with LSTMNorm for screening, as a floor of the scenario bound, and as both; the same
for the library's defaults. Per run: seconds per ask, sub-domains certified per ask, experiments until one comes within 5 % of the
reachable optimum, unsafe experiments. Writes results/learned_norm/runs.csv as runs finish (an interrupted study continues) and
summary.json. Times are those of the machine, with one core per run: all runs on one machine, with no more jobs than cores (noted
with each run), and nothing else on it, for times that can be compared.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

from safebo.studies.common import Table, cores, parallel, provenance, rate_interval, write_json

FIELDS = (
    "case", "method", "seed", "experiments", "unsafe", "worst", "score", "first_solved",
    "ask_seconds", "certified_per_ask", "stop", "cores",
)  # fmt: skip

CASES: dict[str, dict[str, Any]] = {
    "1-D, norm 5": {"dim": 1, "norm": 5.0, "lengthscale": 0.1, "experiments": 30, "points": None},
    "1-D, norm 20": {"dim": 1, "norm": 20.0, "lengthscale": 0.1, "experiments": 30, "points": None},
    "2-D, norm 5": {"dim": 2, "norm": 5.0, "lengthscale": 0.2, "experiments": 25, "points": 50},
    "2-D, norm 20": {"dim": 2, "norm": 20.0, "lengthscale": 0.2, "experiments": 25, "points": 50},
}


def methods(dim: int = 1) -> dict[str, dict[str, Any]]:
    """Name -> settings of the optimizer."""
    from safebo import AdaptiveScenario, LSTMNorm, PosteriorScenario, SafeOptimizer, Scenario, presets

    learned = LSTMNorm(0.9)
    floor = learned if dim == 1 else PosteriorScenario(floor=learned)  # in two dimensions the default has a floor already

    published = {
        "scenario": {"norm": Scenario()},
        "screening": {"norm": Scenario(), "screening": LSTMNorm()},
        "floor": {"norm": Scenario(floor=LSTMNorm())},
        "floor, level 0.9": {"norm": Scenario(floor=learned)},
        "both": {"norm": Scenario(floor=LSTMNorm()), "screening": LSTMNorm()},
    }
    default = {
        "default": {},
        "default, screening": {"screening": LSTMNorm()},
        "default, floor, level 0.9": {"norm": AdaptiveScenario(floor=floor)},
    }
    return {name: {"make": presets.algorithm_4, **given} for name, given in published.items()} | {
        name: {"make": SafeOptimizer, **given} for name, given in default.items()
    }


def run(job: tuple[str, str, int]) -> dict[str, Any]:
    """One method on one function."""
    from safebo import Matern
    from safebo.problems import RKHSProblem

    case, method, seed = job
    given = CASES[case]
    problem = RKHSProblem.sample(given["dim"], given["norm"], seed, kernel=Matern(1.5, given["lengthscale"]))
    settings = {
        "kernel": problem.kernel,
        "noise": problem.noise,
        "points_per_axis": given["points"],
        "seed": seed,
        **methods(given["dim"])[method],
    }
    optimizer = settings.pop("make")(problem.domain, problem.threshold, **settings)
    plant, values, margins, seconds = problem.plant(seed), list[float](), [0.0], 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they warn about is counted
        optimizer.tell(problem.initial, plant(problem.initial))
        while len(values) < given["experiments"]:
            start = time.perf_counter()
            trial = optimizer.ask()
            seconds += time.perf_counter() - start
            if trial is None:
                break
            values.append(problem.value(trial.params))
            margins.append(values[-1] - problem.threshold)
            optimizer.tell(trial, plant(trial.params))
        stop = "" if len(values) == given["experiments"] else optimizer.stop_reason.value
        score = problem.score(problem.value(optimizer.best().params))
    asks = len(values) + (stop != "")
    certified = sum(len(record.estimates) for record in optimizer.state.records)
    first = next((i + 1 for i, v in enumerate(values) if problem.solved(v)), "")
    row = (case, method, seed, len(values), sum(m < 0.0 for m in margins), round(min(margins), 4), round(score, 4), first)
    return dict(
        zip(FIELDS, (*row, round(seconds / asks, 5), round(certified / max(len(values), 1), 2), stop, cores()), strict=True)
    )


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per case and method."""
    lines = []
    for case, method in dict.fromkeys((row["case"], row["method"]) for row in rows):
        mine = [row for row in rows if (row["case"], row["method"]) == (case, method)]
        unsafe = sum(int(row["unsafe"]) > 0 for row in mine)
        firsts = sorted(int(row["first_solved"] or 10**6) for row in mine)
        median, times = firsts[(len(firsts) - 1) // 2], sorted(float(row["ask_seconds"]) for row in mine)
        lines.append(
            {
                "case": case,
                "method": method,
                "runs": len(mine),
                "unsafe_runs": unsafe,
                "unsafe_rate_95": [round(v, 4) for v in rate_interval(unsafe, len(mine))],
                "unsafe_experiments": sum(int(row["unsafe"]) for row in mine),
                "solved": sum(float(row["score"]) >= 0.95 for row in mine),
                "median_experiments_to_95": median if median < 10**6 else None,
                "median_seconds_per_ask": times[len(times) // 2],
                "certified_per_ask": round(sum(float(row["certified_per_ask"]) for row in mine) / len(mine), 2),
            }
        )
    return lines


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learned_norm", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="functions per case")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side; 0: one per core")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--methods", nargs="*", default=list(methods()), choices=list(methods()))
    parser.add_argument("--out", type=Path, default=Path("results/learned_norm"))
    given = parser.parse_args(arguments)
    table = Table(given.out / "runs.csv", FIELDS, ("case", "method", "seed"))
    jobs = [
        (case, method, seed)
        for case in given.cases
        for seed in range(given.seeds)
        for method in given.methods
        if {"case": case, "method": method, "seed": seed} not in table
    ]
    for row in parallel(run, jobs, given.jobs, "runs"):
        table.add(row)
    cases, names = list(CASES), list(methods())
    table.sort(lambda row: (cases.index(row["case"]), names.index(row["method"]), int(row["seed"])))
    lines = summary(table.rows)
    note = "Command and commit are those of the last call. The cores of the machine that made a run are in runs.csv."
    origin = provenance(seeds=given.seeds, jobs=given.jobs) | {"note": note}
    write_json(given.out / "summary.json", {"provenance": origin, "methods": lines})
    for line in lines:
        print(
            f"{line['case']:13s} {line['method']:17s} unsafe runs {line['unsafe_runs']:2d} of {line['runs']}  "
            f"solved {line['solved']:2d}  experiments to 95 % {line['median_experiments_to_95']}  "
            f"{1e3 * line['median_seconds_per_ask']:.1f} ms per ask  {line['certified_per_ask']} certified"
        )


if __name__ == "__main__":
    main()
