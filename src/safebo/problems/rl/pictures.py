"""Pictures of a policy: the same episode without and with a bias, side by side, as an animation or as a strip."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from safebo.exceptions import InvalidValueError
from safebo.problems.rendering import Images, draw, drawn
from safebo.problems.rl.actor import Actor
from safebo.problems.rl.environments import make
from safebo.problems.rl.problem import Params, RLProblem, roll_out
from safebo.rkhs import checked_seed

SUFFIXES = (".gif", ".png", ".webp")
"""Formats of an animation."""

CAMERAS: dict[str, dict[str, Any]] = {
    "cart_pole": {"default_camera_config": {"distance": 2.6, "elevation": -8.0, "lookat": np.array([0.0, 0.0, 0.25])}},
    "swimmer": {"default_camera_config": {"distance": 9.0, "elevation": -90.0, "azimuth": 90.0, "type": 0}},
}
"""Options of the renderer where its own view shows too little."""


def frames(problem: RLProblem, params: Params, seed: int, steps: int, number: int) -> Images:
    """So many pictures of one episode, evenly spread over `steps`; the last one is repeated when the episode ends early."""
    point, seed = problem.domain.point(params), checked_seed(seed)
    if not problem.row.model:
        return _frames(problem, point, seed, steps, number)
    with tempfile.TemporaryDirectory(prefix="safebo-") as folder:
        actor = Path(folder) / "actor.safetensors"
        problem.actor.save(actor, {})
        return drawn(__name__, {"name": problem.name, "actor": str(actor), "episode": [point.tolist(), seed, steps, number]})


def _draw(order: dict[str, Any]) -> Images:
    return _frames(RLProblem(order["name"], Actor.load(Path(order["actor"]))), *order["episode"])


def _frames(problem: RLProblem, params: Params, seed: int, steps: int, number: int) -> Images:
    """The pictures, drawn by this process."""
    env = make(problem.name, changed=True, render_mode="rgb_array", **CAMERAS.get(problem.name, {}))
    wanted = set(np.linspace(0, steps - 1, number).astype(int).tolist())
    found: list[Images] = []

    def look(step: int) -> None:
        if step in wanted:
            found.append(np.asarray(env.render(), np.uint8))

    roll_out(env, problem.actor, problem.domain.point(params), seed, steps, problem.start(0.5), look)
    env.close()
    return np.array(found + [found[-1]] * (number - len(found)))


def animation(problem: RLProblem, params: Params, path: Path, *, seed: int = 0, number: int = 40, width: int = 240) -> None:
    """A GIF, or another of `SUFFIXES`: left without bias, right with it."""
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidValueError(f"An animation ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got {str(path)!r}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    from PIL import Image as Pillow
    from PIL import ImageDraw

    steps = max(problem.trajectory(b, seed).steps for b in (problem.initial, params))
    pairs = zip(*(frames(problem, b, seed, steps, number) for b in (problem.initial, params)), strict=True)
    height = 0
    pictures = []
    for left, right in pairs:
        height = height or round(left.shape[0] * width / left.shape[1])
        sheet = Pillow.new("RGB", (2 * width + 6, height + 16), "white")
        for place, image, label in ((0, left, "no bias"), (width + 6, right, "learned bias")):
            sheet.paste(Pillow.fromarray(image).resize((width, height), Pillow.Resampling.LANCZOS), (place, 16))
            ImageDraw.Draw(sheet).text((place + 4, 2), label, fill="black")
        pictures.append(sheet.quantize(64, Pillow.Quantize.MAXCOVERAGE, dither=Pillow.Dither.NONE))
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=100, loop=0, optimize=True)


if __name__ == "__main__":
    draw(_draw)
