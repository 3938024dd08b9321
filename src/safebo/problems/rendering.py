"""Pictures by MuJoCo's renderer, drawn by a process of their own.

MuJoCo chooses its OpenGL backend when it is imported, so another process can try one after the other. Without a display this
needs EGL or OSMesa.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safebo.exceptions import SafeboError

Images = NDArray[np.uint8]

BACKENDS = ("egl", "osmesa", "glfw")
TIMEOUT = 120.0


def drawn(module: str, order: Mapping[str, Any]) -> Images:
    """Images (frames, height, width, 3) that `python -m module` draws; it calls `draw`. The backend is MUJOCO_GL, else any."""
    wanted = os.environ.get("MUJOCO_GL")
    reasons = []
    for backend in (wanted,) if wanted else BACKENDS:
        found = _attempt(module, json.dumps(order).encode(), backend)
        if not isinstance(found, str):
            return found
        reasons.append(f"{backend}: {found}")
    raise SafeboError(
        f"MuJoCo cannot draw here ({'; '.join(reasons)}): set MUJOCO_GL to what works, {', '.join(BACKENDS)}; without a display "
        "EGL or OSMesa must be installed."
    )


def _attempt(module: str, order: bytes, backend: str) -> Images | str:
    """The images, or why there are none."""
    environment = {**os.environ, "MUJOCO_GL": backend, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", module]
    try:
        done = subprocess.run(command, input=order, capture_output=True, timeout=TIMEOUT, check=False, env=environment)
    except subprocess.TimeoutExpired:
        return f"not done after {TIMEOUT:g} s"
    except OSError as error:
        return str(error)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {done.returncode}"
    images: Images = np.load(io.BytesIO(done.stdout), allow_pickle=False)
    return images


def draw(make: Callable[[dict[str, Any]], Images]) -> None:
    """The other side: images of the order on standard input to standard output. What libraries print there goes elsewhere."""
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    images = io.BytesIO()
    np.save(images, make(json.load(sys.stdin)))
    with os.fdopen(out, "wb") as file:
        file.write(images.getvalue())
