"""Commands of the studies: figures of the paper, calibration, training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from safebo.cli.base import STUDY, app

Jobs = Annotated[int, typer.Option("--jobs", "-j", min=0, help="Worker processes; 0: one per core.")]
Quick = Annotated[bool, typer.Option("--quick", help="A small version, for a look or a test.")]


@app.command(rich_help_panel=STUDY)
def reproduce(
    names: Annotated[Optional[list[str]], typer.Argument(help="Figures to make, or 'all'.", show_default=False)] = None,
    out: Annotated[Path, typer.Option(help="Folder for PNG, CSV and summary.json, one sub-folder per figure.")] = Path(
        "out/reproduce"
    ),
    listing: Annotated[bool, typer.Option("--list", help="Name the figures and stop.")] = False,
    env: Annotated[
        Optional[list[str]], typer.Option(help="Only this environment of the RL figures; may be repeated.", show_default=False)
    ] = None,
    quick: Quick = False,
    jobs: Jobs = 0,
) -> None:
    """Make the numerical figures of the paper."""
    from safebo.studies import reproduce as study

    study.main(names or [], out, listing=listing, quick=quick, jobs=jobs, env=env or ())


@app.command("train-norm", rich_help_panel=STUDY)
def train_norm(
    out: Annotated[Path, typer.Option(help="Folder for data, weights and the validation report.")] = Path("out/train-norm"),
    quick: Quick = False,
    jobs: Jobs = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of functions, split and training.")] = 0,
    stage: Annotated[str, typer.Option(help="data, train, report, unseen or all.")] = "all",
    share: Annotated[float, typer.Option(help="Share of the functions, for a smaller study.")] = 1.0,
) -> None:
    """Train the learned norm estimator from scratch; an interrupted run continues."""
    from safebo.studies import train_norm as study

    study.main(out, quick=quick, jobs=jobs, seed=seed, stage=stage, share=share)


@app.command("train-policy", rich_help_panel=STUDY)
def train_policy(
    env: Annotated[str, typer.Argument(help="cart_pole, mountain_car, swimmer, lunar_lander, half_cheetah or ant.")],
    out: Annotated[Optional[Path], typer.Option(help="Folder; default out/train-policy/ENV.", show_default=False)] = None,
    steps: Annotated[Optional[int], typer.Option(min=1, help="Environment steps in all.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the network, the exploration and the initial states.")] = 0,
    quick: Quick = False,
) -> None:
    """Train a policy in the nominal environment of an RL benchmark; an interrupted run continues."""
    from safebo.studies import train_policy as study

    study.main(env, out or Path("out/train-policy") / env, steps=steps, seed=seed, quick=quick)


@app.command("animate-policy", rich_help_panel=STUDY)
def animate_policy(
    env: Annotated[str, typer.Argument(help="An environment of the RL benchmarks.")],
    out: Annotated[Path, typer.Argument(help="The GIF to write; PNG and WebP can be animated as well.")],
    bias: Annotated[list[float], typer.Option(help="One per action, in order.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the initial state.")] = 0,
    number: Annotated[int, typer.Option(min=2, help="Number of pictures.")] = 30,
) -> None:
    """Show an episode of a policy in its changed environment, without and with a bias."""
    from safebo.problems.rl import RLProblem, pictures

    pictures.animation(RLProblem(env), bias, out, seed=seed, number=number)


@app.command(rich_help_panel=STUDY)
def calibrate(
    out: Annotated[Path, typer.Option(help="Folder for runs.csv, table and picture.")] = Path("out/calibration"),
    quick: Quick = False,
    jobs: Jobs = 0,
    only: Annotated[Optional[list[str]], typer.Option(help="Only these parts of the study.", show_default=False)] = None,
    runs: Annotated[Optional[int], typer.Option(min=1, help="At most so many runs of each kind.", show_default=False)] = None,
) -> None:
    """Measure safety and progress over thousands of random problems; an interrupted study continues."""
    from safebo.studies import calibrate as study

    study.main(out, quick=quick, jobs=jobs, only=only or [], runs=runs)
