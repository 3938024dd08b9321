"""Pictures of the pendulum by MuJoCo's renderer.

MuJoCo chooses its OpenGL backend when it is imported, so the pictures are drawn by a process of their own, which can try one
after the other. Without a display this needs EGL or OSMesa.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safebo.problems.furuta.parameters import FurutaParameters

BACKENDS = ("egl", "osmesa", "glfw")
TIMEOUT = 120.0


def film(parameters: FurutaParameters, states: ArrayLike, size: tuple[int, int] = (360, 420)) -> NDArray[np.uint8] | None:
    """Images (frames, height, width, 3) of the states (θ, α, ...), or None where OpenGL does not work."""
    rows = np.asarray(states, dtype=np.float64)[:, :2].tolist()
    order = json.dumps({"parameters": asdict(parameters), "states": rows, "size": size}).encode()
    wanted = os.environ.get("MUJOCO_GL")
    for backend in (wanted,) if wanted else BACKENDS:
        try:
            done = subprocess.run(
                [sys.executable, "-m", __name__], input=order, capture_output=True, timeout=TIMEOUT, check=False,
                env={**os.environ, "MUJOCO_GL": backend},
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            frames: NDArray[np.uint8] = np.load(io.BytesIO(done.stdout), allow_pickle=False)
            return frames
    return None


def _draw(order: dict[str, Any]) -> NDArray[np.uint8]:
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
    result = io.BytesIO()
    np.save(result, _draw(json.load(sys.stdin)))
    sys.stdout.buffer.write(result.getvalue())
