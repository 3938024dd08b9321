"""Time and memory of the paper's Ant setting on a synthetic function: 8-D, 5 points per axis, N = 10, Delta = 0.05."""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings

from safebo import LocalCubes, Matern, presets
from safebo.problems import RKHSProblem


def main(experiments: int = 50) -> None:
    warnings.simplefilter("ignore")
    # In eight dimensions a lengthscale of 0.1 makes every function of norm 5 vanish in the noise: the problem uses 0.4.
    kernel = Matern(nu=1.5, lengthscale=0.4)
    problem = RKHSProblem.sample(8, 5.0, 0, kernel=kernel)
    optimizer = presets.algorithm_4(
        problem.domain, problem.threshold, kernel=kernel, noise=problem.noise, cubes=LocalCubes(10, 0.05), points_per_axis=5
    )
    plant = problem.plant(0)
    optimizer.tell(problem.initial, plant(problem.initial))
    start, unsafe, done = time.perf_counter(), 0, 0
    for done in range(1, experiments + 1):
        trial = optimizer.ask()
        if trial is None:
            break
        unsafe += not problem.is_safe(trial.params)
        optimizer.tell(trial, plant(trial.params))
        print(f"{done:3d}  {time.perf_counter() - start:7.1f} s  sub-domains {1 + 10 * done}", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(json.dumps({"experiments": done, "unsafe": unsafe, "seconds": round(seconds, 1), "peak_gib": round(peak, 2)}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
