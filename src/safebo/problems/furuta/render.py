"""Pictures of the pendulum by MuJoCo's renderer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from safebo.exceptions import SafeboError
from safebo.problems.furuta.parameters import FurutaParameters
from safebo.problems.rendering import Images, draw, drawn


def film(parameters: FurutaParameters, states: ArrayLike, size: tuple[int, int] = (360, 420)) -> Images | None:
    """Images (frames, height, width, 3) of the states (θ, α, ...), or None where OpenGL does not work."""
    rows = np.asarray(states, dtype=np.float64)[:, :2].tolist()
    try:
        return drawn(__name__, {"parameters": asdict(parameters), "states": rows, "size": size})
    except SafeboError:
        return None


def _draw(order: dict[str, Any]) -> Images:
    import mujoco

    from safebo.problems.furuta.model import build

    model, data = build(FurutaParameters(**order["parameters"]))
    frames = []
    with mujoco.Renderer(model, *order["size"]) as renderer:
        for state in order["states"]:
            data.qpos[:] = state
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, camera="bench")
            frames.append(renderer.render().copy())
    return np.array(frames)


if __name__ == "__main__":
    draw(_draw)
