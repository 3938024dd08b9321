"""The pendulum as a Gymnasium environment, `safebo/FurutaPendulum-v0`.

One step is one period of the controller, 5 ms: the action is a voltage, held for the period and saturated by the amplifier; the
observation is what the two encoders read, θ and α in rad, α from upright and in [-π, π). Rates are not measured.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

from safebo.exceptions import InvalidValueError
from safebo.outputs import number
from safebo.problems.furuta.model import PHYSICS_STEP, build
from safebo.problems.furuta.parameters import NOMINAL, FurutaParameters

FloatArray = NDArray[np.float64]

CONTROL_STEP = 0.005
"""200 Hz."""

SUBSTEPS = round(CONTROL_STEP / PHYSICS_STEP)

CABLE = 2.0 * math.pi
"""|θ| at which an episode is terminated: the encoder cable is wound up."""

TILT = math.radians(1.0)
"""Standard deviation of the random tilt of a hanging pendulum at the start."""


def wrapped(angle: float) -> float:
    """The same angle in [-π, π)."""
    return (angle + math.pi) % (2.0 * math.pi) - math.pi


def voltage_of(action: object) -> float:
    """The voltage of an action: one number, or an array of one; infinite ones are left to the amplifier."""
    try:
        values = np.asarray(action)
    except ValueError:  # lists of different lengths
        values = np.array(None)
    if values.size != 1 or values.dtype.kind not in "fiu":
        raise InvalidValueError(f"The action must be one number, the voltage, got {action!r}.")
    voltage = float(values.reshape(-1)[0])
    if math.isnan(voltage):
        raise InvalidValueError("The voltage is NaN.")
    return voltage


class FurutaPendulum(gymnasium.Env[FloatArray, FloatArray]):  # type: ignore[misc]
    """The rotary pendulum; hangs down after `reset`, or stands where the option "state" (θ, α, θ', α') puts it.

    The reward of a step is cos α - (θ/π)²/10: 1 upright in the middle, -1 hanging. `disturbance` is the standard deviation of
    a random torque on the pendulum, white from period to period, in N m.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 50}

    def __init__(
        self, parameters: FurutaParameters = NOMINAL, *, disturbance: float = 0.0, render_mode: str | None = None
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise InvalidValueError(f"Unknown render_mode {render_mode!r}: choose from {self.metadata['render_modes']} or None.")
        if number(disturbance, "disturbance") < 0.0:
            raise InvalidValueError(f"disturbance is a standard deviation and must not be negative, got {disturbance!r}.")
        self.parameters, self.disturbance, self.render_mode = parameters, float(disturbance), render_mode
        self.observation_space = gymnasium.spaces.Box(
            np.array([-1.1 * CABLE, -math.pi]), np.array([1.1 * CABLE, math.pi]), dtype=np.float64
        )
        limit = parameters.max_voltage
        self.action_space = gymnasium.spaces.Box(-limit, limit, (1,), np.float64)
        self.model, self.data = build(parameters)
        self._renderer: Any = None
        late = round(parameters.delay / PHYSICS_STEP)
        self._late_periods, self._late_substeps = divmod(late, SUBSTEPS)
        self._voltages: deque[float] = deque(maxlen=self._late_periods + 2)  # the last ones, newest first

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[FloatArray, dict[str, Any]]:
        """Start again: hanging with a random tilt, the arm in the middle, or in the option "state"."""
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        state = (options or {}).get("state")
        if state is None:
            state = (0.0, math.pi + TILT * self.np_random.standard_normal(), 0.0, 0.0)
        state = np.asarray(state, dtype=np.float64)
        if state.shape != (4,) or not np.isfinite(state).all():
            raise InvalidValueError(f"The option 'state' must be four finite numbers (θ, α, θ', α'), got {state!r}.")
        self.data.qpos[:], self.data.qvel[:] = state[:2], state[2:]
        self._voltages.extend([0.0] * (self._late_periods + 2))
        mujoco.mj_forward(self.model, self.data)
        return self._observe(), self._info(0.0)

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        """One control period with the given voltage; what the motor sees of it comes `delay` later."""
        limit = self.parameters.max_voltage
        self._voltages.appendleft(min(max(voltage_of(action), -limit), limit))
        if self.disturbance > 0.0:
            self.data.qfrc_applied[1] = self.disturbance * self.np_random.standard_normal()
        for late, steps in ((1, self._late_substeps), (0, SUBSTEPS - self._late_substeps)):
            if steps:
                self.data.ctrl[0] = self._voltages[self._late_periods + late]
                mujoco.mj_step(self.model, self.data, steps)
        theta, alpha = self.data.qpos
        reward = math.cos(alpha) - 0.1 * (theta / math.pi) ** 2
        return self._observe(), reward, bool(abs(theta) > CABLE), False, self._info(float(self.data.ctrl[0]))

    def tap(self, rate: float) -> None:
        """Add to the rate of the pendulum, as a finger does."""
        self.data.qvel[1] += rate

    def _observe(self) -> FloatArray:
        """Both angles rounded to encoder counts."""
        resolution = self.parameters.resolution
        theta, alpha = (resolution * round(angle / resolution) for angle in self.data.qpos)
        edge = 1.1 * CABLE
        return np.array([min(max(theta, -edge), edge), wrapped(alpha)])

    def _info(self, voltage: float) -> dict[str, Any]:
        """What the encoders do not show: the exact state and the voltage at the motor."""
        theta, alpha = self.data.qpos
        return {"state": np.array([theta, wrapped(alpha), *self.data.qvel]), "voltage": voltage}

    def render(self) -> Any:
        """An image (480, 640, 3) of the bench; needs OpenGL (without a display: MUJOCO_GL=egl)."""
        if self.render_mode is None:
            return None
        if self._renderer is None:
            self._renderer = mujoco.Renderer(self.model, 480, 640)
        self._renderer.update_scene(self.data, camera="bench")
        return self._renderer.render()

    def close(self) -> None:
        """Free the renderer."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
