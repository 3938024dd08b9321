"""`python -m benchmarks.serve_load [--readers 50] [--seconds 30] [--out results/benchmarks]`: many readers, one writer.

A server in a process of its own; a client asks and tells all the time, while the readers look at the run as the page does: its
state most of the time, the measurements, the record, the best parameters, slices and norm bounds now and then, and five of them
keep an event stream open as well. Reports errors, latencies, and how quickly a stop is answered meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

TOKENS = {"operator": "operator-secret-000000", "viewer": "viewer-secret-00000000"}

RUN: dict[str, Any] = {
    "name": "load",
    "parameters": {"kp": {"low": 0.0, "high": 5.0}, "kd": {"low": 0.0, "high": 1.0}},
    "threshold": 0.0,
    "kernel": {"lengthscale": 0.3},
    "points_per_axis": 50,
    "initial": {"params": {"kp": 2.0, "kd": 0.3}, "objective": 0.71},
}
LOOKS = ("",) * 6 + ("/samples", "/events?after=5", "/best", "/slice?x=kp&y=kd", "/slice?x=kp", "/norms")


def truth(p: dict[str, float]) -> float:
    return 1.0 - (p["kp"] - 3.0) ** 2 / 4.0 - 4.0 * (p["kd"] - 0.4) ** 2


class Load:
    """Clients and their stop-watches."""

    def __init__(self, url: str, seconds: float) -> None:
        self.url, self.seconds, self.end = url, seconds, 0.0
        self.times: dict[str, list[float]] = {}
        self.errors: list[str] = []
        self.told = self.events = 0

    def client(self, role: str) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {TOKENS[role]}"}
        return httpx.AsyncClient(base_url=f"{self.url}/api/v1", headers=headers, timeout=600.0, trust_env=False)

    async def timed(self, kind: str, request: Any) -> httpx.Response | None:
        started = time.perf_counter()
        try:
            answer: httpx.Response = await request
        except httpx.HTTPError as error:
            self.errors.append(f"{kind}: {error!r}")
            return None
        self.times.setdefault(kind, []).append(time.perf_counter() - started)
        if not answer.is_success:
            self.errors.append(f"{kind}: {answer.status_code} {answer.text[:200]}")
        return answer

    async def write(self) -> None:
        async with self.client("operator") as client:
            while time.perf_counter() < self.end:
                asked = await self.timed("ask", client.post("/runs/load/ask"))
                if asked is None or (trial := asked.json()["trial"]) is None:
                    return
                body = {"trial": trial["id"], "objective": truth(trial["params"])}
                await self.timed("tell", client.post("/runs/load/tell", json=body))
                self.told += 1

    async def read(self, number: int) -> None:
        chance = random.Random(number)
        async with self.client("viewer") as client:
            while time.perf_counter() < self.end:
                path = chance.choice(LOOKS)
                await self.timed("look " + (path.partition("?")[0] or "/state"), client.get(f"/runs/load{path}"))
                await asyncio.sleep(chance.uniform(0.5, 1.5))  # a page asks when something happened

    async def listen(self) -> None:
        seconds = max(1.0, self.end - time.perf_counter())
        async with (
            self.client("viewer") as client,
            client.stream("GET", f"/runs/load/events/stream?seconds={seconds:.0f}") as answer,
        ):
            async for line in answer.aiter_lines():
                self.events += line.startswith("data: ")

    async def stop_and_resume(self) -> None:
        async with self.client("operator") as client:
            while time.perf_counter() < self.end - 2.0:
                await asyncio.sleep(3.0)
                await self.timed("pause", client.post("/runs/load/pause"))
                await self.timed("resume", client.post("/runs/load/resume"))

    async def run(self, readers: int) -> None:
        async with self.client("operator") as client:
            answer = await client.post("/runs", json=RUN)
            assert answer.status_code == 201, answer.text
            await client.post("/runs/load/ask")  # the first one compiles
            trial = (await client.get("/runs/load")).json()["pending"]
            await client.post("/runs/load/tell", json={"trial": trial["id"], "objective": truth(trial["params"])})
            await client.get("/runs/load/slice?x=kp&y=kd")
        self.end = time.perf_counter() + self.seconds
        works = [
            self.write(),
            self.stop_and_resume(),
            *(self.read(i) for i in range(readers)),
            *(self.listen() for _ in range(5)),
        ]
        await asyncio.gather(*works)

    def summary(self) -> dict[str, Any]:
        def figures(times: list[float]) -> dict[str, float]:
            ms = 1000.0 * np.array(times)
            marks = {"p50": 50, "p95": 95, "p99": 99, "max": 100}
            return {"requests": len(times), **{name: round(float(np.percentile(ms, at)), 1) for name, at in marks.items()}}

        looks = [t for kind, times in self.times.items() if kind.startswith("look") for t in times]
        return {
            "errors": len(self.errors),
            "first errors": self.errors[:5],
            "experiments told": self.told,
            "events streamed": self.events,
            "readers, ms": figures(looks),
            "by request, ms": {kind: figures(times) for kind, times in sorted(self.times.items())},
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        environment = {**os.environ, "SAFEBO_OPERATOR_TOKEN": TOKENS["operator"], "SAFEBO_VIEWER_TOKEN": TOKENS["viewer"]}
        command = [sys.executable, "-m", "safebo.cli", "serve", f"{folder}/load.db", "--port", str(port), "--rate", "0"]
        server = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            load = Load(f"http://127.0.0.1:{port}", options.seconds)
            for _ in range(600):
                try:
                    httpx.get(load.url, trust_env=False)
                    break
                except httpx.HTTPError:
                    time.sleep(0.1)
            asyncio.run(load.run(options.readers))
        finally:
            server.terminate()
            server.wait()
    busy = os.getloadavg()[0]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {busy:.1f} at the end"
    result = {"readers": options.readers, "seconds": options.seconds, "machine": machine, **load.summary()}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "serve_load.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
