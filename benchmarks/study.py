"""`python -m benchmarks.study [--runs 100] [--jobs 2]`: safety and progress of the presets over many random functions.

1-D, ||f|| = 5, threshold at the 30 % quantile, one initial sample between the 40 % and 50 % quantiles, 30 experiments. A run
is unsafe if one experiment has f < threshold, and solved if best() is within 5 % of the reachable optimum, relative to the
initial value. Writes results/study/runs.csv as runs finish (an interrupted study continues where it stopped) and summary.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import time
import warnings
from pathlib import Path
from typing import Any

from safebo.studies.common import parallel, rate_interval

FIELDS = ("method", "seed", "experiments", "unsafe", "worst", "score", "first_solved", "seconds", "stop")


def methods() -> dict[str, Any]:
    """Name -> factory(problem, seed)."""
    from safebo import SafeOptimizer, presets

    def preset(make: Any, **settings: Any) -> Any:
        return lambda p, seed: make(p.domain, p.threshold, kernel=p.kernel, noise=p.noise, seed=seed, **settings)

    return {
        "algorithm_4": preset(presets.algorithm_4),
        "algorithm_4, acquisition as printed": preset(presets.algorithm_4, acquisition="paper"),
        "algorithm_4, as printed, safe set union": preset(presets.algorithm_4, acquisition="paper", safe_set="union"),
        "SafeOptimizer defaults": preset(SafeOptimizer),
        "algorithm_1": preset(presets.algorithm_1),
        "safeopt, B = 1": preset(presets.safeopt, norm=1.0),
        "safeopt, B = 5 (true)": preset(presets.safeopt, norm=5.0),
        "safeopt, B = 25": preset(presets.safeopt, norm=25.0),
        "pacsbo_2024": preset(presets.pacsbo_2024),
    }


def run(job: tuple[str, int, int]) -> dict[str, Any]:
    """One method on one function."""
    from safebo.problems import RKHSProblem

    method, seed, experiments = job
    problem = RKHSProblem.sample(1, 5.0, seed)
    optimizer, plant = methods()[method](problem, seed), problem.plant(seed)
    optimizer.tell(problem.initial, plant(problem.initial))
    start, values, margins = time.perf_counter(), [], [0.0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they warn about is counted
        while len(values) < experiments and (trial := optimizer.ask()) is not None:
            values.append(problem.value(trial.params))
            margins.append(values[-1] - problem.threshold)
            optimizer.tell(trial, plant(trial.params))
    first = next((i + 1 for i, v in enumerate(values) if problem.solved(v)), "")
    stop = "" if len(values) == experiments else optimizer.stop_reason.value
    unsafe, score = sum(m < 0.0 for m in margins), problem.score(problem.value(optimizer.best().params))
    row = (method, seed, len(values), unsafe, round(min(margins), 4), round(score, 4), first)
    return dict(zip(FIELDS, (*row, round(time.perf_counter() - start, 2), stop), strict=True))


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per method."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        unsafe = sum(int(row["unsafe"]) > 0 for row in mine)
        firsts = sorted(int(row["first_solved"] or 10**6) for row in mine)
        median = firsts[(len(firsts) - 1) // 2]
        lines.append(
            {
                "method": method,
                "runs": len(mine),
                "unsafe_runs": unsafe,
                "unsafe_rate_95": [round(v, 4) for v in rate_interval(unsafe, len(mine))],
                "unsafe_experiments": sum(int(row["unsafe"]) for row in mine),
                "worst_violation": min(float(row["worst"]) for row in mine),
                "solved": sum(float(row["score"]) >= 0.95 for row in mine),
                "median_experiments_to_95": median if median < 10**6 else None,
                "mean_seconds": round(sum(float(row["seconds"]) for row in mine) / len(mine), 2),
            }
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study", description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--experiments", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--methods", nargs="*", default=list(methods()))
    parser.add_argument("--out", type=Path, default=Path("results/study"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "runs.csv"
    done = list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []
    known = {(row["method"], int(row["seed"])) for row in done}
    jobs = [(m, s, arguments.experiments) for m in arguments.methods for s in range(arguments.runs) if (m, s) not in known]
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if not done:
            writer.writeheader()
        for row in parallel(run, jobs, arguments.jobs):
            writer.writerow(row)
            file.flush()
            done.append(row)
    order = {m: i for i, m in enumerate(methods())}
    done.sort(key=lambda row: (order.get(row["method"], 99), int(row["seed"])))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(done)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    lines = summary(done)
    content = {"command": "python -m benchmarks.study", "seeds": f"0..{arguments.runs - 1}", "commit": commit, "methods": lines}
    (arguments.out / "summary.json").write_text(json.dumps(content, indent=1) + "\n")
    for line in lines:
        low, high = line["unsafe_rate_95"]
        print(
            f"{line['method']:42s} unsafe runs {line['unsafe_runs']:3d} of {line['runs']} (95 %: {low:.3f}..{high:.3f})  "
            f"solved {line['solved']:3d}  median experiments to 95 % {line['median_experiments_to_95']}  {line['mean_seconds']} s"
        )


if __name__ == "__main__":
    main()
