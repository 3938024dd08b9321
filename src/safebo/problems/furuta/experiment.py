"""One experiment: swing up, catch, tap, balance for 1000 steps; and its reward.

Notation
    d    normalised deviation: d² = mean over the steps of [(α/α_max)² + (θ/θ_max)² + (u/u_max)²] / 3, with the angle of a fall,
         the limit of the arm and the voltage of the amplifier; 0 <= d <= 1 while the pendulum stands
    r    reward: (1/d² - 1) / 300 if the pendulum stands until the end, the inverse of a quadratic cost: 0 at the limits, about 1
         where the deviation is a 17th of them;
         -(1 - k / 1000) / 10 if it falls in step k, or k = 0 if it never stood

r < 0 if and only if the pendulum fell or was never caught: not within `PATIENCE` steps, or the arm left its hard limit before.
The gains under test were never tried then. The simulation counts that as a fall all the same (`Experiment.caught` tells); on a
rig it must be an error instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safebo.problems.furuta.controller import ARM_LIMIT, FALL, Controller, Phase
from safebo.problems.furuta.environment import CONTROL_STEP, FurutaPendulum

FloatArray = NDArray[np.float64]

STEPS = 1000
"""Steps that count for the reward, 5 s."""

PATIENCE = 4000
"""Steps in which the pendulum must have been caught and settled, 20 s; it takes about 530."""

TAP, TAP_SPREAD = 1.2, 0.02
"""rad/s that the pendulum is tapped with when the tuned gains take over, to either side, and its relative spread."""

SCALE = 300.0
"""Divides the reward, so that good controllers reach about 1."""

SMALLEST = 1e-4
"""d² that counts at least, about two encoder counts: a pendulum that friction holds still is not infinitely good."""

FALLEN = -0.1
"""Reward of a fall in the first step."""


@dataclass(frozen=True, eq=False)
class Experiment:
    """What happened: one row per control step from the swing-up on."""

    reward: float
    caught: bool
    fell: bool
    start: int
    """Row at which the tuned gains took over."""
    states: FloatArray
    """(steps, 4): θ, α, θ', α', exact."""
    voltages: FloatArray
    """(steps,), as commanded, saturated."""

    @property
    def time(self) -> FloatArray:
        """Seconds since the tuned gains took over."""
        return CONTROL_STEP * (np.arange(len(self.voltages), dtype=np.float64) - self.start)


def run_experiment(environment: FurutaPendulum, a: tuple[float, float], safe: tuple[float, float], seed: int) -> Experiment:
    """The experiment with the gains of `a`; those of `safe` catch the pendulum. The seed determines everything random."""
    controller = Controller(a, safe, CONTROL_STEP)
    observation, info = environment.reset(seed=seed)
    states, voltages, start = [], [], None
    limit = environment.parameters.max_voltage
    for step in range(PATIENCE + STEPS):
        voltage = controller(observation)
        if controller.phase is Phase.OFF or (start is not None and step - start == STEPS):
            break
        if controller.phase is Phase.BALANCE and start is None:
            start = step
            side = environment.np_random.choice((-1.0, 1.0))
            environment.tap(TAP * side * (1.0 + TAP_SPREAD * environment.np_random.standard_normal()))
        if start is None and step >= PATIENCE:
            break
        states.append(info["state"])
        voltages.append(min(max(voltage, -limit), limit))
        observation, _, over, _, info = environment.step(np.array([voltage]))
        if over:
            break
    caught, begin = start is not None, len(states) if start is None else start
    stood = len(states) - begin
    after = np.array(states)[begin:], np.array(voltages)[begin:]
    reward = reward_of(*after, limit) if stood == STEPS else FALLEN * (1.0 - stood / STEPS)
    return Experiment(reward, caught, caught and stood < STEPS, begin, np.array(states), np.array(voltages))


def reward_of(states: FloatArray, voltages: FloatArray, max_voltage: float) -> float:
    """r of a pendulum that stood."""
    parts = np.stack([states[:, 1] / FALL, states[:, 0] / ARM_LIMIT, voltages / max_voltage])
    return (1.0 / min(max(float(np.mean(parts**2)), SMALLEST), 1.0) - 1.0) / SCALE
