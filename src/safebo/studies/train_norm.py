"""`safebo train-norm`: data, training and validation of the learned norm estimator, each stage resumable."""

from __future__ import annotations

from pathlib import Path

from safebo.studies import norm_data

STAGES = ("data", "train", "report", "all")


def main(out: Path, *, quick: bool = False, jobs: int = 0, seed: int = 0, stage: str = "all") -> None:
    """Run one stage or all of them; what exists already is not made again."""
    families = norm_data.quick_families() if quick else norm_data.FAMILIES
    if stage in ("data", "all"):
        made = norm_data.generate(out / "data", families, seed=seed, jobs=jobs)
        print(f"{made} shards made in {out / 'data'}")
