"""Numbers of the rotary inverted pendulum (Quanser QUBE-Servo 2).

Notation
    θ, α     arm angle; pendulum angle from upright; both in rad, upright at rest is (0, 0)
    m_r, r   mass and length of the arm, a slender rod turned about its end
    m_p, L   mass and length of the pendulum, a slender rod turned about its end; its centre of mass is at l = L/2
    J_r, J_p moments of inertia about these axes: m_r r²/3 + J_m and m_p L²/3
    τ        torque of the motor: k (u - k θ') / R, with the voltage u, the resistance R and k for both motor constants
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from safebo.exceptions import InvalidValueError
from safebo.outputs import number

FloatArray = NDArray[np.float64]

LONGEST_DELAY = 1.0
"""Seconds; nothing balances with a tenth of that."""

POSITIVE = {"pendulum_mass", "pendulum_length", "arm_mass", "arm_length", "resistance", "max_voltage", "counts"}
"""Parameters that must not be zero."""


@dataclass(frozen=True)
class FurutaParameters:
    """One pendulum. SI units; the defaults are the nominal device."""

    pendulum_mass: float = 0.024
    pendulum_length: float = 0.129
    arm_mass: float = 0.095
    arm_length: float = 0.085
    resistance: float = 8.4
    motor_constant: float = 0.042
    """N m/A, and V s/rad for the back-EMF."""
    rotor_inertia: float = 4.6e-6
    """Rotor and hub."""
    arm_damping: float = 2.0e-5
    """Bearing, N m s/rad. The back-EMF brakes the arm with k²/R = 2.1e-4 on top of it."""
    pendulum_damping: float = 1.0e-5
    arm_friction: float = 4.0e-4
    """Coulomb friction of motor and bearing, N m; as much as 0.08 V can overcome."""
    pendulum_friction: float = 2.0e-5
    gravity: float = 9.81
    max_voltage: float = 10.0
    counts: int = 2048
    """Encoder counts per revolution (512 lines, quadrature)."""
    delay: float = 0.0
    """From the encoder reading to the voltage at the motor, s."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            size = number(value, field.name)
            if size < 0.0 or (size == 0.0 and field.name in POSITIVE):
                raise InvalidValueError(
                    f"{field.name} must be finite and {'positive' if field.name in POSITIVE else 'not negative'}, got {value!r}."
                )
        if self.counts != round(self.counts):
            raise InvalidValueError(f"counts must be a whole number, got {self.counts!r}.")
        if self.delay > LONGEST_DELAY:
            raise InvalidValueError(f"delay must be at most {LONGEST_DELAY:g} s, got {self.delay!r}.")

    @property
    def half_length(self) -> float:
        """l, from the joint to the pendulum's centre of mass."""
        return 0.5 * self.pendulum_length

    @property
    def arm_inertia(self) -> float:
        """J_r, without the pendulum that it carries."""
        return self.arm_mass * self.arm_length**2 / 3.0 + self.rotor_inertia

    @property
    def pendulum_inertia(self) -> float:
        """J_p."""
        return self.pendulum_mass * self.pendulum_length**2 / 3.0

    @property
    def resolution(self) -> float:
        """Angle of one encoder count."""
        return 2.0 * math.pi / self.counts

    def energy(self, alpha: float, alpha_rate: float) -> float:
        """Energy of the pendulum with a resting arm, zero upright: J_p α'²/2 + m_p g l (cos α - 1)."""
        height = math.cos(alpha) - 1.0
        return 0.5 * self.pendulum_inertia * alpha_rate**2 + self.pendulum_mass * self.gravity * self.half_length * height

    def linearised(self, *, upright: bool = True) -> tuple[FloatArray, FloatArray]:
        """A (4, 4) and B (4,) of x' = A x + B u, x = (θ, α, θ', α'), without Coulomb friction.

        M (θ'', α'') = (τ - b_r θ', ± m_p g l α - b_p α'), M = [[J_r + m_p r², ∓ m_p r l], [∓ m_p r l, J_p]]; upper signs upright.
        """
        sign = 1.0 if upright else -1.0
        coupling = -sign * self.pendulum_mass * self.arm_length * self.half_length
        turning = self.arm_inertia + self.pendulum_mass * self.arm_length**2
        inverse = np.linalg.inv(np.array([[turning, coupling], [coupling, self.pendulum_inertia]]))
        back_emf = self.motor_constant**2 / self.resistance
        weight = self.pendulum_mass * self.gravity * self.half_length
        forces = np.array([[0.0, 0.0, -back_emf - self.arm_damping, 0.0], [0.0, sign * weight, 0.0, -self.pendulum_damping]])
        a = np.vstack([np.hstack([np.zeros((2, 2)), np.eye(2)]), inverse @ forces])
        b = np.concatenate([np.zeros(2), inverse @ np.array([self.motor_constant / self.resistance, 0.0])])
        return a, b


NOMINAL = FurutaParameters()
"""The device as the data sheet has it."""

PERTURBED = replace(
    NOMINAL,
    pendulum_mass=1.1 * NOMINAL.pendulum_mass,
    arm_damping=1.5 * NOMINAL.arm_damping,
    arm_friction=1.5 * NOMINAL.arm_friction,
    pendulum_damping=1.5 * NOMINAL.pendulum_damping,
    pendulum_friction=1.5 * NOMINAL.pendulum_friction,
    delay=0.019,
)
"""The device on the bench: heavier, stiffer, and slow to answer."""
