"""One objective and two separate safety limits: heat a reactor for the best yield.

The yield itself is not a limit here (threshold=None). The flow must not fall below a lower limit (too cold: the pipe clogs) and
the pressure must not exceed an upper one (too hot); an experiment is safe only inside both.
"""

from __future__ import annotations

import numpy as np

from safebo import Box, Constraint, Matern, SafeOptimizer

START = {"temperature": 55.0}  # known to be safe
LIMITS = {"flow": Constraint(threshold=0.5, noise=0.02), "pressure": Constraint(upper=1.8)}


def reactor(temperature: float, rng: np.random.Generator) -> tuple[float, dict[str, float]]:
    """Yield, flow and pressure, measured with noise."""
    heat = (temperature - 20.0) / 100.0
    product = np.exp(-(((heat - 0.65) / 0.25) ** 2)) + rng.normal(0.0, 0.01)
    flow = np.tanh(4.0 * heat) + rng.normal(0.0, 0.02)
    pressure = 0.5 + 2.0 * heat**2 + rng.normal(0.0, 0.01)
    return float(product), {"flow": float(flow), "pressure": float(pressure)}


def main(experiments: int = 20) -> None:
    rng = np.random.default_rng(0)
    opt = SafeOptimizer(
        Box({"temperature": (20.0, 120.0)}),
        threshold=None,
        kernel=Matern(nu=1.5, lengthscale=0.3),
        noise=0.01,
        constraints=LIMITS,
    )
    opt.tell(START, *reactor(START["temperature"], rng))
    while opt.state.step <= experiments and (trial := opt.ask()) is not None:
        opt.tell(trial, *reactor(trial.params["temperature"], rng))

    best, violations = opt.best(), int((~opt.state.inside()).sum())
    print(f"best: {best.params['temperature']:.1f} degrees, yield between {best.lower:.2f} and {best.upper:.2f}")
    print(f"violations in {opt.state.step - 1} experiments: {violations}")
    print(
        f"promised for each: safe with probability {opt.guarantee.probability:.2f} at confidence {opt.guarantee.confidence:.2f}"
    )


if __name__ == "__main__":
    main()
