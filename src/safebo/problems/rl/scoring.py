"""What an episode is worth: pure functions of its trajectory, on the unit scale, negative where the episode failed.

Notation
    o_t     observations, t = 0..T, an array (T + 1, k); T < H where the environment ended the episode before the horizon H
    q       score: of the order of 1 for a good episode, below 0 for a failure, never below -1
    failed  what the paper calls unsafe: the pole dropped, the goal not reached, backward movement, a crash, a fall

A failure implies q <= FAILED < 0. Where the physics lets it, q also falls towards 0 before the failure happens: then a limit on q
can be seen coming. The units below are those of the environments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

FAILED = -0.1
"""No failed episode scores more than this."""


@dataclass(frozen=True)
class Episode:
    """Score and failure of one episode, and how many steps it took."""

    score: float
    failed: bool
    steps: int


@dataclass(frozen=True, eq=False)
class Trajectory:
    """What was observed: o (T + 1, k), the environment's own rewards (T,), whether it ended the episode, and the horizon."""

    observations: Array
    rewards: Array
    ended: bool
    horizon: int

    @property
    def steps(self) -> int:
        """T."""
        return len(self.rewards)


Constants = Mapping[str, float]


def balance(path: Trajectory, c: Constants) -> tuple[float, bool]:
    """Cart pole: q = mean over H steps of 1 - (x_t / reach)^2, at least -1 each; -1 for every step after the pole dropped.

    o = (cart position x, pole angle, ...); the environment ends the episode when the angle exceeds 0.2 rad.
    """
    worth = np.maximum(1.0 - (path.observations[1:, 0] / c["reach"]) ** 2, -1.0)
    return float((worth.sum() - (path.horizon - path.steps)) / path.horizon), path.ended


def arrival(path: Trajectory, c: Constants) -> tuple[float, bool]:
    """Mountain car: q = (R - zero) / (one - zero); R is the environment's own return, 100 at the goal less 0.1 a_t^2 per step.

    The environment ends the episode at the goal. Without the goal R is negative, and so is q.
    """
    return (float(path.rewards.sum()) - c["zero"]) / (c["one"] - c["zero"]), not path.ended


def progress(path: Trajectory, c: Constants) -> tuple[float, bool]:
    """Swimmer: q = mean forward velocity / speed; failed where that is negative."""
    mean = float(path.observations[1:, int(c["velocity"])].mean())
    return mean / c["speed"], mean < 0.0


def _running(velocity: Array, standing: Array, path: Trajectory, c: Constants) -> tuple[float, bool]:
    """q = mean over H steps of v_t / speed up to the fall, if any, and -1 for every step from the fall on."""
    fallen = np.flatnonzero(~standing)
    until = int(fallen[0]) if len(fallen) else path.steps
    fell = bool(len(fallen)) or path.ended
    worth = float(velocity[:until].sum()) / c["speed"]
    return (worth - (path.horizon - until if fell else 0)) / path.horizon, fell


def cheetah(path: Trajectory, c: Constants) -> tuple[float, bool]:
    """Half cheetah: forward velocity until it falls: a pitch of more than `pitch`, head or back to the ground.

    o = (height, pitch, six joints, forward velocity at index 8, ...). The environment itself knows no fall.
    """
    after = path.observations[1:]
    return _running(after[:, 8], np.abs(after[:, 1]) <= c["pitch"], path, c)


def ant(path: Trajectory, c: Constants) -> tuple[float, bool]:
    """Ant: forward velocity until it falls: height outside the environment's healthy range, which ends it, or upside down.

    o = (height, quaternion w x y z, eight joints, forward velocity at index 13, ...); upright is 1 - 2 (x^2 + y^2) = 1.
    """
    after = path.observations[1:]
    up = 1.0 - 2.0 * (after[:, 2] ** 2 + after[:, 3] ** 2)
    return _running(after[:, 13], up > c["up"], path, c)


def landing(path: Trajectory, c: Constants) -> tuple[float, bool]:
    """Lunar lander: q = 1 - T / 2H at rest after T steps, `waiting` if it has not come to rest by H, -1 after a crash.

    A crash is the body on the ground (tipped over) or the lander out of sight. The environment ends the episode with reward -100
    after a crash and +100 at rest.
    """
    if not path.ended:
        return c["waiting"], False
    crashed = float(path.rewards[-1]) < 0.0
    return -1.0 if crashed else 1.0 - path.steps / (2.0 * path.horizon), crashed


SCORES: dict[str, Callable[[Trajectory, Constants], tuple[float, bool]]] = {
    "cart_pole": balance,
    "mountain_car": arrival,
    "swimmer": progress,
    "lunar_lander": landing,
    "half_cheetah": cheetah,
    "ant": ant,
}


def score(name: str, path: Trajectory, constants: Constants) -> Episode:
    """The episode of this environment."""
    q, failed = SCORES[name](path, constants)
    return Episode(max(min(q, FAILED) if failed else q, -1.0), failed, path.steps)
