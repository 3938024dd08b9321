"""`python -m benchmarks [NAME ...] [--out DIR]`: speed beside that of a plain way; all of `ALL` if no name is given.

Every number is a ratio of two measurements taken in turns in the same process on the same cores; results are written as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks import plain
from safebo import Matern, SafeOptimizer, Scenario, presets
from safebo.bounds import MartingaleMixture
from safebo.domain import Cube, Grid, resolve_points_per_axis
from safebo.posterior import Posterior, scaled_columns
from safebo.problems import RKHSProblem
from safebo.sets import covered, expanders


def seconds(function: Callable[[], object], repeats: int, *, warm: bool = True) -> float:
    """Best of several runs, after one warm-up unless told otherwise."""
    if warm:
        function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def in_turns(slow: Callable[[], object], fast: Callable[[], object], rounds: int = 5, fasts: int = 7) -> dict[str, object]:
    """Rounds of one slow and the best of some fast runs: the machine's mood hits both. The round with the median ratio."""
    slow(), fast()
    pairs = sorted(
        ((seconds(slow, 1, warm=False), seconds(fast, fasts, warm=False)) for _ in range(rounds)), key=lambda p: p[0] / p[1]
    )
    plain_s, safebo_s = pairs[rounds // 2]
    ratios = [a / b for a, b in pairs]
    return {"plain_s": plain_s, "safebo_s": safebo_s, "ratio": plain_s / safebo_s, "ratios": ratios}


def scenario() -> list[dict[str, object]]:
    """Scenario norms with m = 1000 and N = 500: the library against a loop over scenarios."""
    return [_scenario(n) for n in (1, 2, 4, 8)]


def _scenario(n: int) -> dict[str, object]:
    rng = np.random.default_rng(n)
    x, y = rng.random((20, n)), rng.normal(size=20)
    kernel, estimator = Matern(1.5, 0.1), Scenario(m=1000)
    torch_kernel, tx, ty = kernel.to_gpytorch(), torch.from_numpy(x), torch.from_numpy(y)
    generator, zero, one = torch.Generator().manual_seed(0), torch.zeros(n).double(), torch.ones(n).double()
    seeds = iter(range(10_000))  # a fresh seed each time, as in a run: no draw is reused
    box = {"lower": np.zeros(n), "upper": np.ones(n)}
    with torch.no_grad():
        return {"n": n} | in_turns(
            lambda: plain.norms(tx, ty, torch_kernel, 0.01, zero, one, 1000, 500, generator),
            lambda: estimator.sample_norms(x, y, kernel=kernel, noise=0.01, **box, seed=next(seeds)),
        )


def algorithm4(experiments: int = 4) -> list[dict[str, object]]:
    """Algorithm 4 on the 1-D toy (N = 5, Delta = 0.1, 1000 points a cube): plain parts against the library.

    The plain version needs about a second per sub-domain and step, so it runs the first experiments only; the library runs the
    same ones (the same points are told to both), and then 30 for its own time.
    """
    problem = RKHSProblem.sample(1, 5.0, 2)
    ours = presets.algorithm_4(problem.domain, problem.threshold)
    theirs = plain.Algorithm4(problem.threshold, (1000,))
    warm = presets.algorithm_4(problem.domain, problem.threshold)
    warm.tell(problem.initial, problem.initial_value)
    warm.ask()
    plant = problem.plant(0)
    what, x, y = problem.initial, problem.initial, plant(problem.initial)
    fast, slow, first = 0.0, 0.0, 0.0
    for i in range(30):
        ours.tell(what, y)
        start = time.perf_counter()
        trial = ours.ask()
        fast += time.perf_counter() - start
        if i < experiments:
            first = fast
            theirs.tell(x, y)
            start = time.perf_counter()
            with torch.no_grad():
                theirs.ask()
            slow += time.perf_counter() - start
        if trial is None:
            break
        what, x, y = trial, np.array(trial.x), plant(trial.params)
    return [
        {
            "experiments_compared": experiments,
            "sub_domain_updates": theirs.updates,
            "plain_s": slow,
            "safebo_s": first,
            "ratio": slow / first,
            "safebo_30_experiments_s": fast,
        }
    ]


def sets() -> list[dict[str, object]]:
    """Safe set and expanders on a 500 x 500 grid: distance transforms against pairwise distances (1 % of them, times 100)."""
    grid, kernel, norm, h = Grid(Cube.whole(2), (500, 500)), Matern(1.5, 0.1), 5.0, 0.0
    points = grid.points()
    lower = np.sin(7 * points[:, 0]) + np.cos(5 * points[:, 1]) - 0.8
    upper = lower + 0.5
    safe = lower >= h
    none, nowhere = np.empty((0, 2)), np.empty(0)

    def fast() -> None:
        covered(grid, kernel, norm, lower - h, safe, none, nowhere)
        expanders(grid, kernel, norm, upper - h, safe)

    scaled = torch.from_numpy(np.ascontiguousarray(points / 0.1))
    inside, outside = scaled[torch.from_numpy(safe)], scaled[torch.from_numpy(~safe)]
    low, high = torch.from_numpy(lower[safe]), torch.from_numpy(upper[safe])
    chosen = torch.arange(0, len(inside), 100)  # every hundredth source: all of them take minutes
    start = time.perf_counter()
    for rows in chosen.split(100):
        for target, bound in ((scaled, low), (outside, high)):
            c = np.sqrt(3.0) * torch.cdist(inside[rows], target)
            metric = torch.sqrt(torch.clamp(2.0 - 2.0 * (1.0 + c) * torch.exp(-c), min=0.0))
            (bound[rows, None] - norm * metric >= h).any(dim=0)
    slow = (time.perf_counter() - start) * len(inside) / len(chosen)
    spent = seconds(fast, 5)
    return [{"grid": "500x500", "safe_points": int(safe.sum()), "plain_s": slow, "safebo_s": spent, "ratio": slow / spent}]


def intervals(samples: int = 20, norm: float = 5.0, noise: float = 0.1) -> list[dict[str, object]]:
    """The default's interval on the grid of one sub-domain, 20 samples: one fused pass against whole arrays in numpy."""
    rows: list[dict[str, object]] = []
    kernel, bound = Matern(1.5, 0.1), MartingaleMixture()
    for n in (1, 2, 6, 8):
        rng = np.random.default_rng(n)
        x = 0.4 + 0.2 * rng.random((samples, n))
        posterior = Posterior.empty(kernel, n, noise**2).extend(x, rng.random(samples))
        grid = Grid(Cube((0.4,) * n, (0.6,) * n), resolve_points_per_axis(None, n))
        columns, points = scaled_columns(grid.columns(), kernel), grid.points()
        bands = bound.bands(posterior, norm, noise, 0.01)
        assert bands is not None
        slow, fast = partial(plain.interval, posterior, points, *bands), partial(posterior.field, columns, *bands)
        rows.append({"n": n, "points": grid.size, "samples": samples} | in_turns(slow, fast))
    return rows


def handover(experiments: int = 15) -> list[dict[str, object]]:
    """A run in 1-D: every kernel handed to numba's threads ("plain") against small tasks where they are ("safebo")."""
    from safebo.compute import fused_cpu

    chosen = fused_cpu._Kernel.__call__

    def handed_over(kernel: fused_cpu._Kernel, _: int, *given: object) -> None:
        kernel.many(*given)

    def run(make: Callable[..., SafeOptimizer], call: Callable[..., None]) -> None:
        problem = RKHSProblem.sample(1, 5.0, 2)
        fused_cpu._Kernel.__call__ = call  # type: ignore[method-assign]
        try:
            optimizer = make(problem.domain, problem.threshold)
            optimizer.tell(problem.initial, problem.initial_value)
            for _ in range(experiments):
                trial = optimizer.ask()
                if trial is None:
                    break
                optimizer.tell(trial, problem.value(trial.params))
        finally:
            fused_cpu._Kernel.__call__ = chosen  # type: ignore[method-assign]

    return [
        {"method": make.__name__, "experiments": experiments}
        | in_turns(partial(run, make, handed_over), partial(run, make, chosen), rounds=3)
        for make in (presets.algorithm_4, SafeOptimizer)
    ]


def blas(experiments: int = 6) -> list[dict[str, object]]:
    """A run of the defaults: linear algebra in as many threads as there are cores ("plain") against one ("safebo")."""
    from safebo.compute import threads

    class Free:
        def limit(self, **_: object) -> Free:
            return self

        def restore_original_limits(self) -> None:
            pass

    def run(dim: int, controller: Callable[[], object]) -> None:
        problem = RKHSProblem.sample(dim, 10.0, 3, kernel=kernels[dim])
        chosen, threads._controller = threads._controller, controller  # type: ignore[assignment]
        try:
            optimizer = SafeOptimizer(problem.domain, problem.threshold, kernel=kernels[dim])
            optimizer.tell(problem.initial, problem.initial_value)
            for _ in range(experiments):
                trial = optimizer.ask()
                assert trial is not None
                optimizer.tell(trial, problem.value(trial.params))
        finally:
            threads._controller = chosen

    kernels = {dim: Matern(1.5, 0.1 * dim) for dim in (1, 2, 3)}
    return [
        {"dimensions": dim, "experiments": experiments}
        | in_turns(partial(run, dim, Free), partial(run, dim, threads._controller), fasts=1)
        for dim in kernels
    ]


def growth() -> list[dict[str, object]]:
    """Seconds of an ask against the number of samples (1-D, global and local) and against the grid (2-D)."""
    rows: list[dict[str, object]] = []
    problem = RKHSProblem.sample(1, 5.0, 2)
    for name, make in (("algorithm_1", presets.algorithm_1), ("algorithm_4", presets.algorithm_4)):
        for t in (10, 30, 100, 300):
            optimizer, rng = make(problem.domain, problem.threshold, memory_budget=10**9), np.random.default_rng(0)
            optimizer.tell(problem.initial, problem.initial_value)
            for x in rng.random(t - 2):
                optimizer.tell([x], problem.value([x]))
            optimizer.ask()  # everything so far at once; what follows is the price of one more sample
            trial = optimizer.ask()
            if trial is None:
                continue
            optimizer.tell(trial, problem.value(trial.params))
            start = time.perf_counter()
            optimizer.ask()
            rows.append({"preset": name, "samples": t, "points": 1000, "ask_s": time.perf_counter() - start})
    for per_axis in (32, 100, 316, 1000):
        flat = RKHSProblem.sample(2, 5.0, 1)
        optimizer = presets.algorithm_1(flat.domain, flat.threshold, points_per_axis=per_axis)
        optimizer.tell(flat.initial, flat.initial_value)
        for x in np.random.default_rng(0).random((4, 2)):
            optimizer.tell(x, flat.value(x))
        start = time.perf_counter()
        optimizer.ask()
        rows.append({"preset": "algorithm_1", "samples": 5, "points": per_axis**2, "ask_s": time.perf_counter() - start})
    return rows


def memory() -> list[dict[str, object]]:
    """The Ant setting in a process of its own: time and peak memory."""
    done = subprocess.run([sys.executable, "-m", "benchmarks.ant"], check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(done.stdout)]


ALL = {f.__name__: f for f in (scenario, algorithm4, sets, intervals, handover, blas, growth, memory)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*ALL, []], help="which benchmarks; default all")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    arguments.out.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    for name in arguments.names or ALL:
        rows = ALL[name]()
        print(f"\n{name}: {ALL[name].__doc__.splitlines()[0]}")
        for row in rows:
            print("  " + "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
        content = {
            "command": f"python -m benchmarks {name}",
            "commit": commit,
            "cores": os.cpu_count(),
            "machine": platform.processor() or platform.machine(),
            "rows": rows,
        }
        (arguments.out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
