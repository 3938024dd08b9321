"""A servo axis that can be tuned too hard: the plant of `servo.toml` and of `make demo`.

A motor turns a load to a new angle (a step of one radian) under PD control, with dead time and noise in its sensor:

    J theta'' = u(t - 4 ms) - b theta',   u = clip(kp (1 - theta) - kd theta', -8, 8)

`measure` returns the objective, 1 less the mean absolute error relative to that of the start, and the overshoot in radians, which
must stay below 0.2: beyond it the load hits its end stop. Tuning `kp` up makes it quick; too much, or too little `kd`, and it rings.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

J, B, DEAD, STEP, DURATION = 0.02, 0.05, 4, 1e-3, 1.0
START = {"kp": 1.0, "kd": 0.12}
OBJECTIVE_NOISE, OVERSHOOT_NOISE = 0.005, 0.003


def response(kp: float, kd: float) -> np.ndarray:
    """The angle over time."""
    angle = speed = 0.0
    delayed = [0.0] * DEAD
    angles = np.empty(int(DURATION / STEP))
    for i in range(len(angles)):
        delayed.append(min(max(kp * (1.0 - angle) - kd * speed, -8.0), 8.0))
        speed += STEP * (delayed.pop(0) - B * speed) / J
        angle += STEP * speed
        angles[i] = angle
    return angles


def truth(params: Mapping[str, float]) -> dict[str, float]:
    """The objective and the overshoot, without noise."""
    angles = response(params["kp"], params["kd"])
    return {
        "objective": 1.0 - float(np.mean(np.abs(1.0 - angles))) / _START_ERROR,
        "overshoot": max(float(angles.max()) - 1.0, 0.0),
    }


_START_ERROR = float(np.mean(np.abs(1.0 - response(**START))))


def measure(params: Mapping[str, float]) -> dict[str, object]:
    """One experiment."""
    rng = np.random.default_rng()
    values = truth(params)
    return {
        "objective": values["objective"] + OBJECTIVE_NOISE * rng.standard_normal(),
        "constraints": {"overshoot": values["overshoot"] + OVERSHOOT_NOISE * rng.standard_normal()},
    }
