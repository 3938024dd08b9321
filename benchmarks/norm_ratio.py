"""`python -m benchmarks.norm_ratio [--functions 200]`: the ratio B_t / ||f|| over iterations (the paper's norm investigation).

||f|| ~ U[1, 10], 100 to 1000 centres, uniform samples, m = 1000. Writes results/norm_ratio/ratio.csv with the paper's mean
beside ours, and summary.json with the number of functions whose norm was under-estimated at some iteration.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
from pathlib import Path

import numpy as np

from safebo import Matern, Scenario
from safebo.rkhs import random_function

ITERATIONS = 29


def ratios(function: int, m: int = 1000) -> np.ndarray:
    """B_t / ||f|| for t = 1..29 on one random function, B_t non-increasing as in Alg. 3."""
    rng = np.random.default_rng([2025, function])
    kernel, norm, noise = Matern(nu=1.5, lengthscale=0.1), rng.uniform(1.0, 10.0), 0.01
    f = random_function(kernel, 1, norm, int(rng.integers(2**31)), n_centres=(100, 1000))
    x = rng.random((ITERATIONS, 1))
    y = f(x) + noise * rng.normal(size=ITERATIONS)
    estimator, bound, result = Scenario(m=m), np.inf, []
    for t in range(1, ITERATIONS + 1):
        norms = estimator.sample_norms(x[:t], y[:t], kernel=kernel, noise=noise, lower=[0.0], upper=[1.0], seed=(function, t))
        bound = min(bound, estimator.select(norms))
        result.append(bound / norm)
    return np.array(result)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.norm_ratio", description=__doc__)
    parser.add_argument("--functions", type=int, default=200)
    parser.add_argument("--paper", type=Path, default=Path("tests/data/norm_ratio_over_iterations.csv"))
    parser.add_argument("--out", type=Path, default=Path("results/norm_ratio"))
    arguments = parser.parse_args()
    table = np.array([ratios(i) for i in range(arguments.functions)])
    paper = [row["mean_ratio"] for row in csv.DictReader(arguments.paper.read_text().splitlines())]
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "ratio.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["iteration", "mean_ratio", "std", "paper_mean_ratio"])
        for t in range(ITERATIONS):
            writer.writerow([t + 1, round(table[:, t].mean(), 4), round(table[:, t].std(), 4), paper[t]])
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    content = {
        "command": "python -m benchmarks.norm_ratio",
        "commit": commit,
        "functions": arguments.functions,
        "mean_ratio_t1": round(float(table[:, 0].mean()), 4),
        "mean_ratio_t29": round(float(table[:, -1].mean()), 4),
        "t29_over_t1": round(float(table[:, -1].mean() / table[:, 0].mean()), 4),
        "under_estimated": int((table < 1.0).any(axis=1).sum()),
        "paper": {"t1": 4.135, "t29_over_t1": round(1.423 / 4.135, 3), "under_estimated": 2},
    }
    (arguments.out / "summary.json").write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
