"""The configuration file that `safebo init` writes, and the simulated experiments to try it with."""

from __future__ import annotations

import json

from safebo.exceptions import InvalidValueError
from safebo.runs.config import run_name
from safebo.runs.plant_spec import KINDS

_HEAD = """\
# What to tune, what must hold, and how an experiment is run. `safebo check {file}` says whether it is complete and what is
# guaranteed; `safebo run {file}` starts. Every key is described in docs/command-line.md.

[run]
name = {name}
title = ""                  # for reports
database = "safebo.db"      # a file beside this one, or a URL such as "postgresql+psycopg://user@host/db"
experiments = 30            # how many in all, beside the start
confirm = {confirm:5}             # true: nothing is sent to the plant before a person approves it
on_violation = "stop"       # after a measurement outside a limit: "stop" or "continue"
seed = 0                    # same seed and measurements, same experiments

# -- what is tuned: one table per parameter ----------------------------------------------------------------------------

[parameters.kp]
bounds = [0.0, 5.0]         # nothing outside is ever tried
unit = "V/rad"              # for display

[parameters.kd]
bounds = [0.0, 1.0]
unit = "V s/rad"

# -- what is measured --------------------------------------------------------------------------------------------------
# Scale what you measure so that values are of order 1: subtract an offset and divide by the typical variation.

[objective]                 # is maximised
threshold = 0.0             # must stay above it; leave it out if only the limits below matter
noise = 0.02                # standard deviation of a repeated measurement; state it rather too large
min_width = 0.1             # what is known this well is not measured again
unit = ""

[limits.torque]             # one table per further limit: threshold, upper, or both
upper = 1.5
noise = 0.02
unit = "N m"

# -- how smooth it is --------------------------------------------------------------------------------------------------

[kernel]
type = "matern"             # or "rbf"
nu = 1.5                    # 0.5, 1.5 or 2.5; larger is smoother
lengthscale = 0.5           # FRACTION of a parameter's range that changes the result; rather too short than too long.
                            # One per parameter: lengthscale = {{ kp = 0.5, kd = 0.4 }}

# -- where to start ----------------------------------------------------------------------------------------------------

[start]                     # parameters that are known to be safe; they are measured first
kp = 2.0
kd = 0.3

# -- how it is tuned: the defaults are good, docs/command-line.md lists the others --------------------------------------

# [algorithm]
# delta = 0.01
# acquisition = "auto"
# stride = 0.5
# norm = {{ type = "adaptive", gamma = 0.02, kappa = 0.01 }}

# -- how an experiment is run ------------------------------------------------------------------------------------------

[plant]
"""

_PLANTS = {
    "python": """\
type = "python"             # or "command", "socket", "http", "manual"
callable = "experiment:measure"   # module:function; called with {"kp": .., "kd": ..}
stop = "experiment:stop"    # makes the plant harmless at once
timeout = 60.0              # seconds; an experiment that takes longer is stopped and aborted
""",
    "command": """\
type = "command"            # or "python", "socket", "http", "manual"
command = ["python3", "rig.py"]   # reads one line of JSON per request, writes one line per answer
stop = ["python3", "rig.py", "off"]   # a program that switches the rig off, whatever the other one does
timeout = 60.0              # seconds; an experiment that takes longer is stopped and aborted
reset_timeout = 60.0
retries = 0                 # how often a program that cannot be started is tried again; an experiment is never sent twice
""",
    "socket": """\
type = "socket"             # or "python", "command", "http", "manual"
host = "127.0.0.1"          # the rig's server; it has no password, use a private line
port = 5555
timeout = 60.0              # seconds; an experiment that takes longer is stopped and aborted
reset_timeout = 60.0
retries = 3                 # how often a connection that was never made is tried again; an experiment is never sent twice
retry_wait = 2.0            # seconds in between
""",
    "http": """\
type = "http"               # or "python", "command", "socket", "manual"
timeout = 600.0             # seconds after which an experiment that was handed out is shown as overdue
""",
    "manual": """\
type = "manual"             # or "python", "command", "socket", "http": you run the experiment and enter what you measured
""",
}

EXPERIMENT = '''\
"""A simulated experiment; replace what `measure` does by your rig."""

import random

NOISE = random.Random(0)


def measure(params):
    """One experiment: the objective, and a value for every limit."""
    kp, kd = params["kp"], params["kd"]
    objective = 1.0 - (kp - 3.0) ** 2 / 4.0 - 4.0 * (kd - 0.4) ** 2
    torque = 0.2 + 0.3 * kp + 0.4 * kd
    return {
        "objective": objective + NOISE.gauss(0.0, 0.01),
        "constraints": {"torque": torque + NOISE.gauss(0.0, 0.01)},
    }


def stop():
    """Make the rig harmless at once; may be called at any time, from another thread too."""
'''


RIG = '''\
"""A simulated rig; replace what `reset`, `run` and `off` do by yours.

safebo starts this program and sends one line of JSON per request; it writes one line per answer, with the id of its request:

    {"id": 1, "command": "reset"}                                    {"id": 1}
    {"id": 2, "command": "run", "params": {"kp": 2.0, "kd": 0.3}}    {"id": 2, "objective": 0.7, "constraints": {"torque": 0.9}}
    what did not work                                                {"id": 2, "error": "the arm is blocked"}

It switches the rig off and ends with status 0 when its input closes, when it is terminated and at a Ctrl-C.
`python3 rig.py off` switches the rig off too, whatever the other process does. Messages go to standard error.
"""

import json
import os
import random
import signal
import sys

BOUNDS = {"kp": (0.0, 5.0), "kd": (0.0, 1.0)}  # nothing else is run, whatever is asked for
NOISE = random.Random(0)


def reset():
    """Bring the rig to where experiments start."""


def run(params):
    """One experiment: the objective, and a value for every limit."""
    for name, (low, high) in BOUNDS.items():
        if not low <= params[name] <= high:
            raise ValueError(f"{name} = {params[name]} is outside [{low}, {high}]")
    kp, kd = params["kp"], params["kd"]
    objective = 1.0 - (kp - 3.0) ** 2 / 4.0 - 4.0 * (kd - 0.4) ** 2
    torque = 0.2 + 0.3 * kp + 0.4 * kd
    return {
        "objective": objective + NOISE.gauss(0.0, 0.01),
        "constraints": {"torque": torque + NOISE.gauss(0.0, 0.01)},
    }


def off():
    """Switch the rig off; may be called at any time."""


def leave(*_):
    """The rig is off: end at once, with status 0."""
    off()
    os._exit(0)


def answer(request):
    """What belongs to a request."""
    if request["command"] == "reset":
        reset()
        return {}
    if request["command"] == "run":
        return run(request["params"])
    raise ValueError(f"unknown command {request['command']!r}")


def main():
    """Answer requests until there are no more."""
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), leave)
    try:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                reply = answer(request)
            except Exception as error:
                off()
                reply = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps({"id": request["id"], **reply}), flush=True)
    finally:
        off()


if __name__ == "__main__":
    off() if sys.argv[1:] == ["off"] else main()
'''

PROGRAMS = {"python": ("experiment.py", EXPERIMENT), "command": ("rig.py", RIG)}
"""Simulated experiments that `safebo init` writes beside the file, by type of plant."""


def template(name: str, plant: str = "python", file: str = "safebo.toml") -> str:
    """A commented configuration file with a plant of the given type."""
    if plant not in _PLANTS:
        raise InvalidValueError(f"plant must be one of {', '.join(map(repr, KINDS))}, got {plant!r}.")
    confirm = "true" if plant in ("socket", "http") else "false"  # the other plants are simulated, or a person
    return _HEAD.format(name=json.dumps(run_name(name), ensure_ascii=False), confirm=confirm, file=file) + _PLANTS[plant]
