"""Swing-up by energy control, then state feedback.

Notation
    x      (θ, α, θ', α'), measured; the reference is 0
    K      (-10 a_1, 100 a_2, -1.504, 3.034), volts per unit of x
    E      energy of the pendulum, 0 upright

The feedback is u = K (0 - x): K acts on the deviation reference minus measured, as the maker's own examples have it; with
u = +K x no gain balances. A positive gain on the pendulum and a negative one on the arm belong together: to bring the arm back,
the pendulum must first be tilted towards the middle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from safebo.problems.furuta.parameters import NOMINAL, FurutaParameters

FloatArray = NDArray[np.float64]

RATE_GAINS = (-1.504, 3.034)
"""Gains of θ' and α', not tuned."""

CATCH = math.radians(20.0)
"""|α| below which the state feedback may take over from the swing-up."""

CATCH_RATE = 3.0
"""|α' + ω α| below which it does: with ω² = m_p g l / J_p this is 0 for a pendulum that would come to rest upright by itself."""

FALL = math.radians(30.0)
"""|α| at which a balanced pendulum counts as fallen and the motor is switched off."""

ARM_LIMIT = math.radians(120.0)
"""|θ| at which a balanced pendulum counts as fallen and the motor is switched off; a catch is given up there."""

HARD_ARM_LIMIT = math.radians(150.0)
"""|θ| at which the motor is switched off in every phase, before the encoder cable is wound up. The swing-up reaches 122°."""

SETTLE = 2.0
"""Seconds between the catch and the tuned gains."""

CUTOFF = 100.0
"""Bandwidth of the differentiator ω s / (s + ω), rad/s."""

PUMP, PUMP_LIMIT = 2200.0, 6.6
"""Swing-up: volts per joule of missing energy, and volts at most."""

PUMP_RATE = 0.7
"""rad/s of the pendulum at which the pump acts fully."""

SURPLUS = 0.003
"""Joules above the upright energy that the swing-up aims for, since friction takes some on the last way up."""

CENTRE, BRAKE = 3.2, 0.13
"""Volts per rad and per rad/s that keep the arm near the middle during the swing-up."""


class Phase(Enum):
    """What the controller does: pump energy, catch and settle the pendulum, balance it with the tuned gains, or nothing."""

    SWING_UP = "swing-up"
    CATCH = "catch"
    BALANCE = "balance"
    OFF = "off"


def gains(a: tuple[float, float]) -> tuple[float, float, float, float]:
    """K of the tuned parameters."""
    return (-10.0 * a[0], 100.0 * a[1], *RATE_GAINS)


@dataclass(frozen=True)
class RateFilter:
    """Rates from encoder readings: r_k = q r_(k-1) + (1 - q) (y_k - y_(k-1)) / T, q = exp(-ω T)."""

    period: float
    cutoff: float = CUTOFF

    def update(self, rate: float, before: float, now: float) -> float:
        """The next rate; the shorter way round is taken between two angles."""
        q = math.exp(-self.cutoff * self.period)
        change = (now - before + math.pi) % (2.0 * math.pi) - math.pi
        return q * rate + (1.0 - q) * change / self.period


class Controller:
    """The program of the rig's computer: called once per period with both encoder angles, it returns the voltage.

    The gains that are known to be safe catch the pendulum; the tuned ones take over when it has stood for `SETTLE` seconds. A
    missed catch (α beyond `FALL` or θ beyond `ARM_LIMIT`) is followed by another swing-up; the same under the tuned gains is a
    fall and switches the motor off. An arm beyond `HARD_ARM_LIMIT` switches it off in every phase. Off is for good: 0 V from
    then on. The controller knows the nominal parameters only (for the energy), whatever pendulum it is connected to.
    """

    def __init__(
        self, a: tuple[float, float], safe: tuple[float, float], period: float, model: FurutaParameters = NOMINAL
    ) -> None:
        self.gains, self.catch_gains, self.model = gains(a), gains(safe), model
        self.phase = Phase.SWING_UP
        self._filter = RateFilter(period)
        self._settle = round(SETTLE / period)
        self._omega = math.sqrt(model.pendulum_mass * model.gravity * model.half_length / model.pendulum_inertia)
        self._angles: tuple[float, float] | None = None
        self._rates = (0.0, 0.0)
        self._standing = 0  # periods since the catch

    def __call__(self, observation: FloatArray) -> float:
        """The voltage for the next period."""
        theta, alpha = (float(angle) for angle in observation)
        if self._angles is not None:
            self._rates = (
                self._filter.update(self._rates[0], self._angles[0], theta),
                self._filter.update(self._rates[1], self._angles[1], alpha),
            )
        self._angles = theta, alpha
        self._change_phase(theta, alpha)
        if self.phase is Phase.OFF:
            return 0.0
        if self.phase is Phase.SWING_UP:
            return self._pump(theta, alpha)
        k = self.gains if self.phase is Phase.BALANCE else self.catch_gains
        return -(k[0] * theta + k[1] * alpha + k[2] * self._rates[0] + k[3] * self._rates[1])

    def _change_phase(self, theta: float, alpha: float) -> None:
        lost = abs(alpha) > FALL or abs(theta) > ARM_LIMIT
        if abs(theta) > HARD_ARM_LIMIT:
            self.phase = Phase.OFF
        elif self.phase is Phase.SWING_UP:
            if abs(alpha) < CATCH and abs(self._rates[1] + self._omega * alpha) < CATCH_RATE:
                self.phase, self._standing = Phase.CATCH, 0
        elif self.phase is Phase.CATCH:
            self._standing += 1
            if lost:
                self.phase = Phase.SWING_UP
            elif self._standing >= self._settle:
                self.phase = Phase.BALANCE
        elif self.phase is Phase.BALANCE and lost:
            self.phase = Phase.OFF

    def _pump(self, theta: float, alpha: float) -> float:
        """u = sat(μ (E_0 - E)) sat(α' cos α), and a damped spring to the middle: E' has the sign of θ'' α' cos α."""
        theta_rate, rate = self._rates
        push = _clip(PUMP * (SURPLUS - self.model.energy(alpha, rate)), PUMP_LIMIT)
        hanging = math.cos(alpha) < -0.99 and abs(rate) < 0.1 * PUMP_RATE  # at rest: give it a kick to one side
        swing = 1.0 if hanging else _clip(rate * math.cos(alpha) / PUMP_RATE, 1.0)
        return push * swing - CENTRE * theta - BRAKE * theta_rate


def _clip(value: float, limit: float) -> float:
    return min(max(value, -limit), limit)
