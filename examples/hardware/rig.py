"""The pendulum as a rig, the simulation standing in for the motor: `python rig.py pipes` or `python rig.py socket --port 5555`.

For a real pendulum, replace `SimulatedQube` by a class with the same three methods (see README.md).
"""

from __future__ import annotations

import argparse
import threading

from protocol import nothing_to_stop, serve_pipes, serve_socket

LIMITS = {"a1": (0.0, 1.0), "a2": (0.0, 1.0)}
"""The rig checks what it is asked to run, whatever the optimizer says."""


class SimulatedQube:
    """Swing up, catch, balance for 5 s, report the reward. The limits of arm, pendulum and voltage are in the controller."""

    def __init__(self, seed: int = 0) -> None:
        import numpy as np

        from safebo.problems.furuta import FurutaProblem

        self._problem, self._rng = FurutaProblem.perturbed(), np.random.default_rng(seed)
        self._off = threading.Event()  # set: the motor is off
        self._off.set()
        self._lock, self._stops = threading.Lock(), 0

    def reset(self) -> None:
        """Release the emergency stop, unless another one comes in the meantime."""
        with self._lock:
            stops = self._stops
        self.wait_for_rest()
        with self._lock:
            if self._stops != stops:
                raise RuntimeError("stopped during the reset")
            self._off.clear()

    def wait_for_rest(self) -> None:
        """A real rig lets the pendulum come to rest and sets its encoders to zero; every simulation starts at rest."""

    def run(self, params: dict[str, float]) -> float:
        """One experiment."""
        if self._off.is_set():
            raise RuntimeError("the motor is off: reset first")
        if set(params) != set(LIMITS):
            raise ValueError(f"expected the parameters {sorted(LIMITS)}, got {sorted(params)}")
        for name, (low, high) in LIMITS.items():
            if not low <= params[name] <= high:
                raise ValueError(f"{name} = {params[name]} is outside [{low}, {high}]")
        experiment = self._problem.experiment(params, int(self._rng.integers(2**31)))
        if self._off.is_set():
            raise RuntimeError("stopped during the experiment")
        if not experiment.caught:
            raise RuntimeError("the pendulum was never caught: the gains were not tried")
        return experiment.reward

    def stop(self) -> None:
        """Motor off."""
        with self._lock:
            self._stops += 1
            self._off.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("via", choices=("pipes", "socket"))
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at: whoever reaches it can run the motor")
    parser.add_argument("--port", type=int, default=5555, help="0: any free port, which is printed")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    nothing_to_stop()  # the simulation takes a second to load
    rig = SimulatedQube(options.seed)
    if options.via == "pipes":
        serve_pipes(rig)
    else:
        serve_socket(rig, options.host, options.port, lambda port: print(f"listening on {options.host} port {port}", flush=True))


if __name__ == "__main__":
    main()
