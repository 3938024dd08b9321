"""Start scripts, daemons and floods: does anything of a rig's program outlive the stop, fill memory, or run the stop twice?

The rig's motor writes the time into a file, fifty times a second, for as long as any process of it lives. Deaf ones ignore
SIGTERM. Every stop comes in the middle of an experiment that would take a minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.hostile import Rows
from safebo.exceptions import PlantError
from safebo.runs import SubprocessPlant

LONGEST = 8.0
"""Seconds that a stop may take on a busy computer: 0.2 s to end in order, 2 s after SIGTERM, two stop programs."""

MEMORY = 20.0
"""Megabytes that a rig that talks on may cost."""

RIG = """
import json, os, signal, sys, threading, time
SETUP
def tick():
    while True:
        with open(TICKS, "a") as file:
            file.write(f"{time.time()}\\n")
        time.sleep(0.02)
threading.Thread(target=tick, daemon=True).start()
for line in sys.stdin:
    request = json.loads(line)
    if request["command"] == "run":
        EXPERIMENT
    print(json.dumps({"id": request["id"], **({"objective": 1.0} if request["command"] == "run" else {})}), flush=True)
"""

DEAF = "[signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]"
OBEYS = "signal.signal(signal.SIGTERM, lambda *_: os._exit(0))"
DAEMON = "os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0)"

WRAPPERS: dict[str, tuple[str, str]] = {
    "no script, the rig obeys SIGTERM": ("exec {rig}", OBEYS),
    "sh -c exec, deaf rig": ("exec {rig}", DEAF),
    "sh -c, deaf rig": ("{rig}; exit $?", DEAF),
    "sh -c that ignores SIGTERM, deaf rig": ("trap '' TERM INT HUP; {rig}; exit $?", DEAF),
    "env in sh in sh, deaf rig": ('sh -c "env A=1 {rig}; true"; true', DEAF),
    "double fork with setsid, deaf rig": ("{rig}; exit 0", f"{DAEMON}; {DEAF}"),
    "grandchild holds stdout open, rig obeys": ("sleep 60 & {rig}; exit $?", OBEYS),
    "background job that left its group": ("exec 3<&0; setsid {rig} <&3 & wait", DEAF),
}
QUICK = ("sh -c that ignores SIGTERM, deaf rig", "double fork with setsid, deaf rig", "grandchild holds stdout open, rig obeys")

KILLED = """
import sys
from safebo.runs import SubprocessPlant
plant = SubprocessPlant(sys.argv[1:], timeout=60)
plant.reset()
plant.run({"a": 1.0})
"""


class Bench:
    """A folder with a rig."""

    def __init__(self, folder: Path, setup: str = "pass", experiment: str = "time.sleep(60)") -> None:
        self.ticking, self.log = folder / "ticks", folder / "stops"
        text = RIG.replace("SETUP", setup).replace("EXPERIMENT", experiment).replace("TICKS", repr(str(self.ticking)))
        (folder / "rig.py").write_text(text)
        self.rig = [sys.executable, str(folder / "rig.py")]
        self.stop = ["sh", "-c", f"echo off >> {shlex.quote(str(self.log))}"]

    def ticks(self) -> list[float]:
        """When its motor ran."""
        return [float(line) for line in self.ticking.read_text().splitlines()[:-1]] if self.ticking.exists() else []

    def stops(self) -> int:
        """How often the stop program ran."""
        return len(self.log.read_text().split()) if self.log.exists() else 0

    def wait(self, condition: Callable[[], object]) -> None:
        """Until a condition holds, at most half a minute."""
        patience = time.monotonic() + 30.0
        while not condition() and time.monotonic() < patience:
            time.sleep(0.02)


def in_a_folder(work: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return work(Path(folder))


def stopped(name: str, script: str, setup: str, folder: Path) -> dict[str, Any]:
    """An emergency stop, twice and from two threads, as after a Ctrl-C."""
    bench = Bench(folder, setup)
    plant = SubprocessPlant(["sh", "-c", script.replace("{rig}", shlex.join(bench.rig))], timeout=60, stop=bench.stop)
    plant.reset()
    running = threading.Thread(target=quietly, args=(plant.run, {"a": 1.0}))
    running.start()
    time.sleep(0.3)
    begun = time.time()
    both = [threading.Thread(target=quietly, args=(plant.emergency_stop,)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    plant.emergency_stop()
    ended = time.time()
    running.join()
    time.sleep(0.5)
    ticks = bench.ticks()
    late = sum(tick > ended for tick in ticks)
    return {
        "attack": name,
        "stop_s": round(ended - begun, 2),
        "last_tick_s": round(max(ticks[-1] - begun, 0.0), 2),
        "ticks_after_the_stop": late,
        "stop_programs": bench.stops(),
        "held": late == 0 and bool(ticks) and ended - begun < LONGEST and bench.stops() <= 2,
    }


def quietly(work: Callable[..., object], *arguments: object) -> None:
    with contextlib.suppress(PlantError):
        work(*arguments)


TOML = """\
[run]
name = "wrapped"
experiments = 2

[parameters.a]
bounds = [0.0, 1.0]

[objective]
threshold = 0.0

[algorithm]
norm = 1.0
points_per_axis = 20

[start]
a = 0.5

[plant]
type = "command"
command = {command}
stop = {stop}
timeout = 60.0
"""


def told_to_stop(name: str, script: str, setup: str, folder: Path) -> dict[str, Any]:
    """`safebo stop` in another terminal."""
    bench = Bench(folder, setup)
    command = ["sh", "-c", script.replace("{rig}", shlex.join(bench.rig))]
    (folder / "wrapped.toml").write_text(TOML.format(command=json.dumps(command), stop=json.dumps(bench.stop)))
    safebo = [sys.executable, "-m", "safebo.cli"]
    pipes = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, "text": True}
    with subprocess.Popen([*safebo, "run", "wrapped.toml"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **pipes) as runner:
        bench.wait(lambda: len(bench.ticks()) > 20 or runner.poll() is not None)
        begun = time.time()
        subprocess.run([*safebo, "stop", "wrapped.toml", "--reason", "smoke"], check=True, capture_output=True, **pipes)
        stored = time.time()
        said = runner.communicate(timeout=60)[1]
    ended = time.time()
    time.sleep(0.5)
    ticks = bench.ticks()
    return {
        "attack": f"safebo stop: {name}",
        "command_s": round(stored - begun, 2),
        "last_tick_s": round(max(ticks[-1] - begun, 0.0), 2),
        "stop_programs": bench.stops(),
        "held": ticks[-1] < ended and ticks[-1] - stored < LONGEST and bench.stops() <= 2 and "FAILED" not in said,
    }


def killed(name: str, script: str, setup: str, folder: Path) -> dict[str, Any]:
    """SIGKILL for safebo."""
    bench = Bench(folder, setup)
    command = [sys.executable, "-c", KILLED, "sh", "-c", script.replace("{rig}", shlex.join(bench.rig))]
    with subprocess.Popen(command) as process:
        bench.wait(lambda: len(bench.ticks()) > 20)
        begun = time.time()
        process.send_signal(signal.SIGKILL)
    bench.wait(lambda: bench.ticks()[-1] < time.time() - 1.0)
    last = bench.ticks()[-1]
    return {
        "attack": f"safebo gets SIGKILL: {name}",
        "last_tick_s": round(max(last - begun, 0.0), 2),
        "held": last - begun < LONGEST,
    }


def flooded(name: str, experiment: str, seconds: float, folder: Path) -> dict[str, Any]:
    """A rig that talks on."""
    bench = Bench(folder, OBEYS, experiment)
    plant = SubprocessPlant(bench.rig, timeout=60)
    plant.reset()
    before = megabytes()
    said = ""
    for _ in range(2):
        try:
            plant.run({"a": 1.0})
            time.sleep(seconds)
        except PlantError as error:
            said = type(error).__name__
            break
    grown = megabytes() - before
    plant.close()
    return {"attack": name, "megabytes": round(grown, 1), "said": said, "held": grown < MEMORY and bool(said)}


def megabytes() -> float:
    """Memory of this process, where the system says how much there is now; else the most that there was."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


FLOODS = {
    "the rig talks on instead of an answer": "[print('x' * 1000) for _ in iter(int, 1)]",
    "the rig talks on after its answer": "print(json.dumps({'id': request['id'], 'objective': 1.0})); "
    "[print('x' * 1000) for _ in iter(int, 1)]",
    "a line without an end": "[sys.stdout.write('x' * 1000) for _ in iter(int, 1)]",
}


def run(quick: bool) -> Rows:
    """The rows of the table."""
    if os.name == "nt":
        return [{"attack": "start scripts of POSIX", "held": True}]
    names = QUICK if quick else tuple(WRAPPERS)
    jobs = [lambda folder, name=name: stopped(name, *WRAPPERS[name], folder) for name in names]
    if not quick:
        jobs += [lambda folder, name=name: told_to_stop(name, *WRAPPERS[name], folder) for name in (next(iter(WRAPPERS)), *QUICK)]
    jobs += [lambda folder, name=name: killed(name, *WRAPPERS[name], folder) for name in (QUICK[:1] if quick else names)]
    with ThreadPoolExecutor(len(jobs) if quick else 2) as threads:
        rows = list(threads.map(in_a_folder, jobs))
    rows += [
        in_a_folder(lambda folder, name=name: flooded(name, FLOODS[name], 1.0 if quick else 8.0, folder))
        for name in (list(FLOODS)[1:2] if quick else FLOODS)
    ]
    return rows
