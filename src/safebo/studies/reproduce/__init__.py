"""The numerical figures of the paper, made again: `safebo reproduce NAME...` or `safebo reproduce all`.

Every figure has a folder with its PNG, the CSVs behind it, and summary.json: our numbers, the paper's where it gives one, the
settings, and where the file came from. Long figures write their rows as they come and continue after an interruption.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safebo.exceptions import InvalidValueError
from safebo.problems.rl.environments import environment
from safebo.report.style import require_matplotlib
from safebo.studies.reproduce import (
    cubes,
    furuta,
    intro,
    locality,
    norm_ratio,
    random_functions,
    rl,
    rl_landscapes,
    scenario_ablation,
    scenario_time,
    tightness,
    toy,
)
from safebo.studies.reproduce.figure import Figure, produce

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        intro.FIGURE,
        random_functions.FIGURE,
        norm_ratio.FIGURE,
        toy.TOY,
        rl.FIGURE,
        rl_landscapes.FIGURE,
        cubes.FIGURE,
        furuta.FIGURE,
        tightness.FIGURE,
        locality.FIGURE,
        scenario_time.FIGURE,
        scenario_ablation.FIGURE,
        toy.KERNELS,
        toy.LOCALITY,
    )
}


def main(
    names: Sequence[str], out: Path, *, listing: bool = False, quick: bool = False, jobs: int = 0, env: Sequence[str] = ()
) -> None:
    """Make the named figures, or all of them, in the order given; `env` limits those of the RL benchmarks to some."""
    if listing:
        for figure in FIGURES.values():
            print(f"{figure.name:<18} {figure.source:<16} {figure.title}")
        return
    chosen = _chosen(names)
    for name in env:
        environment(name)  # an unknown name is an error before anything runs
        if not any(figure.name.startswith("rl") for figure in chosen):
            raise InvalidValueError(f"--env {name} is for the figures rl and rl-landscapes, not for {', '.join(names)}.")
    require_matplotlib()
    for figure in chosen:
        figure.require()
    for figure in chosen:
        only = tuple(dict.fromkeys(env)) if figure.name.startswith("rl") else ()
        summary = produce(figure, Path(out) / figure.name, quick=quick, jobs=jobs, only=only)
        print(f"{figure.name}: {summary['headline']} ({summary['seconds']:.1f} s, {Path(out) / figure.name})", flush=True)


def _chosen(names: Sequence[str]) -> list[Figure]:
    """The figures behind the names, each once."""
    known = f"{', '.join(FIGURES)}, or all"
    if not names:
        raise InvalidValueError(f"Name at least one figure: {known}.")
    unknown = [name for name in names if name != "all" and name not in FIGURES]
    if unknown:
        raise InvalidValueError(f"Unknown figure {', '.join(map(repr, unknown))}: choose from {known}.")
    return list(FIGURES.values()) if "all" in names else [FIGURES[name] for name in dict.fromkeys(names)]
