"""Tune the balancing controller of a pendulum that is somewhere else: behind a pipe, or behind a socket.

python examples/hardware/tune.py subprocess
python examples/hardware/rig.py socket --port 5555 &  python examples/hardware/tune.py socket --port 5555
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from safebo import Box, Matern, SafeOptimizer
from safebo.exceptions import ExperimentAborted
from safebo.runs import Plant, SocketPlant, SubprocessPlant, Watchdog, drive

START = {"a1": 0.239, "a2": 0.424}  # known to be safe
EXPERIMENT, RESET = 60.0, 60.0  # seconds that an experiment and a reset may take; a real experiment takes about 8


def connect(options: argparse.Namespace) -> Plant:
    """The rig behind the chosen line, watched."""
    if options.via == "socket":
        plant: Plant = SocketPlant(options.host, options.port, timeout=EXPERIMENT, reset_timeout=RESET)
    else:
        rig = Path(__file__).with_name("rig.py")
        plant = SubprocessPlant([sys.executable, str(rig), "pipes"], timeout=EXPERIMENT, reset_timeout=RESET)
    return Watchdog(plant, timeout=EXPERIMENT + 5.0, reset_timeout=RESET + 5.0)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("via", choices=("subprocess", "socket"))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5555)
    parser.add_argument("--experiments", type=int, default=30)
    options = parser.parse_args(arguments)

    optimizer = SafeOptimizer(
        Box({"a1": (0.0, 1.0), "a2": (0.0, 1.0)}), threshold=0.0, noise=0.07, kernel=Matern(nu=1.5, lengthscale=0.2)
    )
    plant = connect(options)
    try:
        drive(
            optimizer, plant, options.experiments, initial=START,
            on_result=lambda trial, result: print(
                f"{optimizer.state.step - 1:3d}  a1 {trial.params['a1']:.3f}  a2 {trial.params['a2']:.3f}  "
                f"certified above {trial.lower:.2f}, measured {result.objective:.2f}"
            ),
        )  # fmt: skip
    except ExperimentAborted as error:
        print(error, file=sys.stderr)
        if optimizer.state.step > 0:
            Path("aborted-run.json").write_text(optimizer.state.to_json())
            print("The run so far is in aborted-run.json; SafeOptimizer.from_json continues it.", file=sys.stderr)
        return 1
    finally:
        plant.close()
    best = optimizer.best()
    print(f"best a1 {best.params['a1']:.3f}, a2 {best.params['a2']:.3f}: between {best.lower:.2f} and {best.upper:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
