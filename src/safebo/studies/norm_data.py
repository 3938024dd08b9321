"""Training data of the learned norm estimator: histories of sub-domains and their local norms.

A function is drawn, Algorithm 4 optimizes it, and each sub-domain of the run gives one history: ||mu_s|| and the mean posterior
variance after each of its samples. Its label is the local norm of the function on the box, from dense interpolation. A prefix of
a history is a training sample if the sub-domain existed by then. The first set is the paper's; the others, smaller, have other
kernels, dimensions, lengthscales and noise levels, so that the estimator is of use there, too.

Only where Algorithm 4 measures matters here, not its guarantee, so it runs with m = 100 scenarios instead of 1000. A third of the
runs goes on below `min_width` until the experiments are used up, as sub-domains with many samples would be rare otherwise.
"""

from __future__ import annotations

import warnings
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safebo import presets
from safebo.domain import Cube, LocalCubes
from safebo.exceptions import InvalidValueError, SafeboWarning
from safebo.kernels import RBF, Matern, StationaryKernel
from safebo.norms import Scenario
from safebo.norms.lstm import context, history
from safebo.posterior import Posterior
from safebo.problems import RKHSProblem
from safebo.rkhs import RKHSFunction
from safebo.studies.common import parallel

FloatArray = NDArray[np.float64]

SCENARIOS = 100
PER_SHARD = 10  # functions in one file
CUBES = 32  # sub-domains kept of one function: the global one and random others; together they are much alike
NODES = {1: 80, 2: 20, 3: 9}  # grid points per axis of a label, besides the centres in the box; 0.2 % accurate on the line
GRID = {1: 300, 2: 40, 3: 14}  # points per axis of the sub-domains' grids while optimizing


@dataclass(frozen=True)
class Family:
    """One kind of problems: what is fixed about it, and what is drawn per function."""

    name: str
    functions: int
    dim: int = 1
    experiments: int = 30
    nu: float | None = 1.5  # None: RBF
    lengthscale: tuple[float, float] = (0.1, 0.1)  # drawn log-uniformly
    delta: tuple[float, float] = (0.1, 0.1)  # step of the cubes' edges, drawn uniformly
    noise: tuple[float, float] | None = None  # as a share of what there is to gain, drawn log-uniformly; None: 0.01
    uniform: bool = False  # samples anywhere instead of those of Algorithm 4

    def kernel(self, lengthscale: float) -> StationaryKernel:
        """The kernel with this lengthscale."""
        return RBF(lengthscale) if self.nu is None else Matern(self.nu, lengthscale)


_WIDE: dict[str, Any] = {"noise": (1e-4, 2e-2), "delta": (0.1, 0.3)}

FAMILIES = (
    Family("matern32-1d", 1000, experiments=50),
    Family("matern32-1d-wide", 150, lengthscale=(0.03, 0.4), **_WIDE),
    Family("matern32-1d-uniform", 150, experiments=50, lengthscale=(0.05, 0.3), uniform=True, **_WIDE),
    Family("matern12-1d", 100, nu=0.5, lengthscale=(0.05, 0.4), **_WIDE),
    Family("matern52-1d", 150, nu=2.5, lengthscale=(0.05, 0.4), **_WIDE),
    Family("rbf-1d", 150, nu=None, lengthscale=(0.05, 0.4), **_WIDE),
    Family("matern32-2d", 150, 2, lengthscale=(0.1, 0.4), **_WIDE),
    Family("matern52-2d", 100, 2, nu=2.5, lengthscale=(0.1, 0.4), **_WIDE),
    Family("rbf-2d", 100, 2, nu=None, lengthscale=(0.1, 0.4), **_WIDE),
    Family("matern32-3d", 150, 3, lengthscale=(0.2, 0.6), **_WIDE),
    Family("matern52-3d", 100, 3, nu=2.5, lengthscale=(0.2, 0.6), **_WIDE),
    Family("rbf-3d", 100, 3, nu=None, lengthscale=(0.2, 0.6), **_WIDE),
)


def quick_families() -> tuple[Family, ...]:
    """The same kinds with a few functions and experiments, for a look or a test."""
    few = {"matern32-1d": 10, "matern32-1d-uniform": 20, "matern32-2d": 3}
    return tuple(replace(f, functions=few[f.name], experiments=10, delta=(0.1, 0.1)) for f in FAMILIES if f.name in few)


def part_of(families: tuple[Family, ...], share: float) -> tuple[Family, ...]:
    """The first functions of every family, this share of them, in full shards where there are as many."""
    return tuple(
        replace(f, functions=min(f.functions, PER_SHARD * max(1, round(share * f.functions / PER_SHARD)))) for f in families
    )


@dataclass(frozen=True)
class Shard:
    """Functions first..first + count - 1 of a family: one file, one job."""

    family: Family
    first: int
    count: int
    seed: int
    path: Path

    @property
    def settings(self) -> str:
        """What its content depends on, kept in the file."""
        constants = (SCENARIOS, CUBES, NODES[self.family.dim], GRID[self.family.dim])
        return repr((replace(self.family, functions=0), self.first, self.count, self.seed, constants))

    def read(self) -> dict[str, NDArray[Any]]:
        """Its arrays; an error where the file is damaged, or was made with another seed or size of the study."""
        try:
            with self.path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                arrays = dict(file)
        except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile) as error:
            raise InvalidValueError(f"{self.path} cannot be read ({error}): remove it, and it is made again.") from None
        if str(arrays.pop("settings", "")) != self.settings:
            raise InvalidValueError(
                f"{self.path} was made with another seed, with --quick or by another version: choose another --out, or remove "
                f"{self.path.parent} to make the data again."
            )
        return arrays


def shards_of(folder: Path, families: tuple[Family, ...], seed: int) -> list[Shard]:
    """All files of a study."""
    return [
        Shard(family, first, min(PER_SHARD, family.functions - first), seed, folder / f"{family.name}-{first:04d}.npz")
        for family in families
        for first in range(0, family.functions, PER_SHARD)
    ]


def generate(folder: Path, families: tuple[Family, ...], *, seed: int, jobs: int) -> int:
    """Make the shards that do not exist yet; returns how many were made."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = []
    for shard in sorted(shards_of(folder, families, seed), key=lambda s: -s.family.dim):  # long jobs first
        if shard.path.exists():
            shard.read()
        else:
            missing.append(shard)
    return sum(1 for _ in parallel(make_shard, missing, jobs, "functions"))


def make_shard(shard: Shard) -> Path:
    """Write one shard. The file appears when it is complete."""
    number = [f.name for f in FAMILIES].index(shard.family.name)
    records: list[dict[str, Any]] = []
    for function in range(shard.first, shard.first + shard.count):
        records.extend(histories(shard.family, function, np.random.default_rng([shard.seed, number, function])))
    partial = shard.path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez_compressed(
            file,
            settings=np.array(shard.settings),
            function=np.array([r["function"] for r in records], np.int32),
            label=np.array([r["label"] for r in records], np.float32),
            created=np.array([r["created"] for r in records], np.int16),  # samples it held when it came into being
            context=np.array([r["context"] for r in records], np.float32),
            length=np.array([len(r["norms"]) for r in records], np.int16),
            norms=np.concatenate([r["norms"] for r in records]).astype(np.float32),
            variances=np.concatenate([r["variances"] for r in records]).astype(np.float32),
        )
    partial.replace(shard.path)
    return shard.path


def histories(family: Family, function: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """The histories of one function."""
    problem, locality = _problem(family, rng), LocalCubes(3, float(rng.uniform(*family.delta)))
    if family.uniform:
        x = rng.random((family.experiments, family.dim))
        y = problem.f(x) + problem.noise * rng.standard_normal(len(x))
    else:
        x, y = _optimized(problem, locality, family, rng)
    cubes = locality.cubes(x)
    kept = np.concatenate([[0], 1 + rng.permutation(len(cubes) - 1)[: CUBES - 1]])
    found = []
    for cube in (cubes[i] for i in kept):
        rows = np.flatnonzero(cube.contains(x))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SafeboWarning)
            posterior = Posterior.empty(problem.kernel, family.dim, problem.noise**2).extend(x[rows], y[rows])
        lower, upper = np.array(cube.lower), np.array(cube.upper)
        norms, variances = history(posterior, lower, upper)
        found.append(
            {
                "function": function,
                "label": local_norm(problem.f, cube),
                "created": _created(cube, locality, x, rows),
                "context": context(problem.kernel, problem.noise, lower, upper),
                "norms": norms,
                "variances": variances,
            }
        )
    return found


def local_norm(f: RKHSFunction, cube: Cube) -> float:
    """The label: local norm on the box; on the whole domain it is the norm."""
    return f.norm if cube == Cube.whole(f.dim) else f.local_norm(cube, NODES[f.dim])


def _problem(family: Family, rng: np.random.Generator) -> RKHSProblem:
    """A random function with 600 to 1000 centres and norm in [0.5, 30], and the safe-optimization problem about it."""
    norm = float(rng.uniform(0.5, 30.0))
    low, high = np.log(family.lengthscale)
    kernel = family.kernel(float(np.exp(rng.uniform(low, high))))
    seed = int(rng.integers(2**32))
    problem = RKHSProblem.sample(family.dim, norm, seed, kernel=kernel, n_centres=(600, 1000), noise=0.0)
    if family.noise is None:
        return replace(problem, noise=0.01)
    share = float(np.exp(rng.uniform(*np.log(family.noise))))
    return replace(problem, noise=max(share * (problem.optimum - problem.initial_value), 1e-4 * norm))


def _optimized(
    problem: RKHSProblem, locality: LocalCubes, family: Family, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """The samples of a run of Algorithm 4, (t, n) and (t,)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SafeboWarning)
        optimizer = presets.algorithm_4(
            problem.domain, problem.threshold, kernel=problem.kernel, noise=problem.noise,
            norm=Scenario(m=SCENARIOS), cubes=locality, points_per_axis=GRID[family.dim],
            min_width=float(rng.choice([0.1, 0.1, 0.0])), seed=int(rng.integers(2**32)),
        )  # fmt: skip
        plant = problem.plant(int(rng.integers(2**32)))
        optimizer.tell(problem.initial, max(plant(problem.initial), problem.threshold))  # a start that is safe despite the noise
        for _ in range(family.experiments):
            trial = optimizer.ask()
            if trial is None:
                break
            optimizer.tell(trial, plant(trial.params))
    return optimizer.state.x(), optimizer.state.values()[:, 0]


def _created(cube: Cube, locality: LocalCubes, x: FloatArray, rows: NDArray[np.intp]) -> int:
    """How many samples the sub-domain held when it came into being: with the sample at its centre."""
    if cube == Cube.whole(x.shape[1]):
        return 1
    first = next(s for s in rows if cube in locality.cubes(x[s : s + 1]))
    return int(np.searchsorted(rows, first)) + 1


def load(folder: Path, families: tuple[Family, ...], seed: int) -> dict[str, dict[str, NDArray[Any]]]:
    """The shards of each family that are there, arrays joined."""
    joined = {}
    for family in families:
        parts = [shard.read() for shard in shards_of(folder, (family,), seed) if shard.path.exists()]
        if parts:
            joined[family.name] = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    if not joined:
        raise InvalidValueError(f"There are no training data in {folder}: run the stage 'data' first.")
    return joined
