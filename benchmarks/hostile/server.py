"""Crowds against the server: idle connections of strangers, event streams and slices of viewers, and all of them at once.

Strangers open connections and send nothing, or half a request. One viewer reads the record of a run of 1 000 experiments through
60 streams, and asks for slices 60 at a time. Meanwhile an operator asks, tells, pauses and stops, over connections opened
for each. `quiet` is the same without a crowd; every row has a run of its own, and all runs ask for the same trials.
"""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.hostile import Rows
from benchmarks.serve_load import RUN, TOKENS, truth
from safebo import Box, Fixed, SafeOptimizer
from safebo.runs import Campaign, Store
from safebo.runs.storage import Event

STOP_WITHIN, QUICK_STOP_WITHIN = 0.5, 5.0
"""Seconds. The quick version is a test on a machine that may be busy."""

SLOWER, QUICK_SLOWER = 2.0, 10.0
"""How many times the quiet median an ask or a tell may take under attack."""

CROWD = Path(__file__).with_name("_crowd.py")


def long_run(store: Store, experiments: int) -> None:
    """A run with so many experiments, written at once: three events each."""
    optimizer = SafeOptimizer(Box({"kp": (0.0, 5.0)}), 0.0, norm=Fixed(5.0), cubes=None, points_per_axis=50)
    optimizer.tell({"kp": 2.0}, 0.8)
    campaign = Campaign.create(store, "long", optimizer)
    campaign.hand_out()
    asked = store.events("long", 1)[0]
    trial = asked.body["trial"]
    campaign.tell(trial["id"], 0.8)
    told = store.events("long", 3)[0].body["sample"]
    events = []
    for number in range(1, experiments):
        name = f"{number}-{trial['id']}"
        events.append(Event("asked", {"trial": {**trial, "id": name}}, "rig"))
        events.append(Event("started", {"trial": name}, "rig"))
        events.append(Event("told", {"sample": [*told[:3], name], "record": None, "violated": {}}, "rig"))
    store.append("long", 4, events)


@contextmanager
def served(folder: Path, experiments: int) -> Iterator[str]:
    """`safebo serve` with a long run, warmed up."""
    with Store.open(folder / "hostile.db") as store:
        long_run(store, experiments)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "SAFEBO_OPERATOR_TOKEN": TOKENS["operator"], "SAFEBO_VIEWER_TOKEN": TOKENS["viewer"]}
    command = [sys.executable, "-m", "safebo.cli", "serve", str(folder / "hostile.db"), "--port", str(port)]
    server = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                httpx.get(url, trust_env=False)
                break
            except httpx.HTTPError:
                time.sleep(0.05)
        yield url
    finally:
        server.terminate()
        server.wait(60.0)


class Operator:
    """Somebody who works while the crowd is there. Every request has a connection of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.times: dict[str, list[float]] = {}
        self.refused: list[str] = []

    def post(self, kind: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {TOKENS['operator']}"}
        start = time.perf_counter()
        try:
            answer = httpx.post(f"{self.url}/api/v1{path}", json=body, headers=headers, timeout=60.0, trust_env=False)
        except httpx.HTTPError as error:
            self.refused.append(f"{kind}: {error!r}")
            return {}
        self.times.setdefault(kind, []).append(time.perf_counter() - start)
        if not answer.is_success:
            self.refused.append(f"{kind}: {answer.status_code} {answer.text[:100]}")
        found: dict[str, Any] = answer.json()
        return found

    def experiment(self, run: str) -> None:
        trial = self.post("ask", f"/runs/{run}/ask").get("trial")
        if trial is not None:
            self.post("tell", f"/runs/{run}/tell", {"trial": trial["id"], "objective": truth(trial["params"])})

    def halt(self, run: str) -> None:
        for verb in ("pause", "resume", "stop", "resume"):
            self.post("stop" if verb in ("pause", "stop") else verb, f"/runs/{run}/{verb}")

    def work(self, run: str, experiments: int) -> None:
        for _ in range(experiments):
            self.experiment(run)
            self.halt(run)
            self.halt("long")


@contextmanager
def crowd(url: str, run: str, idle: int, streams: int, slices: int) -> Iterator[dict[str, int]]:
    """Hostile clients, from the moment in which all have connected; what they got is there at the end."""
    host, port = url.removeprefix("http://").split(":")
    command = [sys.executable, str(CROWD), host, port, *map(str, (idle, streams, slices)), "long", run, TOKENS["viewer"]]
    found: dict[str, int] = {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield found
        process.stdin.close()
        found.update(ast.literal_eval(process.stdout.readline()))


def run(quick: bool) -> Rows:
    """One row without a crowd, one for each kind of crowd, one for all at once."""
    idle, streams, slices, experiments, length = (300, 10, 10, 3, 200) if quick else (5000, 60, 60, 15, 1000)
    crowds = {"quiet": (0, 0, 0), "together": (idle, streams, slices)}
    if not quick:
        crowds |= {"idle connections": (idle, 0, 0), "streams": (0, streams, 0), "slices": (0, 0, slices)}
    rows: Rows = []
    quiet: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), length) as url:
        warm = Operator(url)
        for name in ("warm", *crowds):
            warm.post("create", "/runs", {**RUN, "name": name})
        warm.work("warm", 2)
        httpx.get(
            f"{url}/api/v1/runs/warm/best", headers={"authorization": f"Bearer {TOKENS['viewer']}"}, trust_env=False, timeout=60
        )
        for name, sizes in crowds.items():
            operator = Operator(url)
            with crowd(url, name, *sizes) as found:
                operator.work(name, experiments)
            middle = {kind: float(np.median(times)) for kind, times in operator.times.items()}
            quiet = quiet or middle
            slower, within = (QUICK_SLOWER, QUICK_STOP_WITHIN) if quick else (SLOWER, STOP_WITHIN)
            row: dict[str, Any] = {"attack": name, "idle": sizes[0], "streams": sizes[1], "slices": sizes[2]}
            for kind in ("ask", "tell", "stop"):
                row[f"{kind}, median s"] = round(middle.get(kind, -1.0), 4)
                row[f"{kind}, worst s"] = round(max(operator.times.get(kind, [-1.0])), 4)
            row |= {"refused": len(operator.refused), "first refused": operator.refused[:3], "crowd": dict(found)}
            floor = 1.0 if quick else 0.0
            served_well = all(middle.get(kind, 1e9) <= max(slower * quiet[kind], floor) for kind in ("ask", "tell"))
            stopped = max(operator.times.get("stop", [1e9])) <= within
            rows.append({**row, "held": served_well and stopped and not operator.refused})
    return rows
