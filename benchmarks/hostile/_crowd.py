"""`python _crowd.py HOST PORT IDLE STREAMS SLICES LONG BUSY TOKEN`: hostile clients in one process, until its input ends.

IDLE connections send nothing or the beginning of a request, and come back a second after they are closed. STREAMS event streams
read the whole record of the run LONG again and again. SLICES viewers ask for slices of the run BUSY, each another one, without
a break. Says `ready` once all of them have connected. Nothing but the standard library: it starts at once.
"""

from __future__ import annotations

import asyncio
import random
import resource
import sys
from collections import Counter

BEGINNINGS = (
    b"",
    b"G",
    b"GET /api/v1/runs HTTP/1.1\r\nhost: localhost\r\n",
    b"POST /api/v1/runs/busy/stop HTTP/1.1\r\ncontent-le",
)


class Crowd:
    def __init__(self, host: str, port: int, token: str) -> None:
        self.host, self.port, self.token = host, port, token
        self.counts: Counter[str] = Counter()
        self.connected = 0

    def head(self, path: str) -> bytes:
        lines = [f"GET /api/v1{path} HTTP/1.1", f"host: {self.host}:{self.port}", f"authorization: Bearer {self.token}", "", ""]
        return "\r\n".join(lines).encode()

    async def idle(self, number: int) -> None:
        first = True
        while True:
            try:
                reader, writer = await asyncio.open_connection(self.host, self.port)
                self.connected += first
                first = False
                writer.write(BEGINNINGS[number % len(BEGINNINGS)])
                await reader.read()
                writer.close()
                self.counts["idle connections that were closed"] += 1
            except OSError:
                self.counts["connections refused"] += 1
            await asyncio.sleep(1.0)

    async def stream(self, run: str) -> None:
        first = True
        while True:
            try:
                reader, writer = await asyncio.open_connection(self.host, self.port)
                self.connected += first
                first = False
                writer.write(self.head(f"/runs/{run}/events/stream?seconds=3"))
                status = (await reader.readline())[9:12].decode()
                self.counts[f"streams {status}"] += 1
                while part := await reader.read(1 << 18):
                    self.counts["bytes of streams"] += len(part)
                    if status != "200" or part.endswith(b"0\r\n\r\n"):
                        break
                writer.close()
            except OSError:
                self.counts["streams refused"] += 1
            await asyncio.sleep(0.2)

    async def slice(self, run: str, number: int) -> None:
        chance, first = random.Random(number), True
        reader: asyncio.StreamReader | None = None
        while True:
            try:
                if reader is None:
                    reader, writer = await asyncio.open_connection(self.host, self.port)
                    self.connected += first
                    first = False
                kind = chance.choice(("x=kp&y=kd", "x=kd&y=kp", f"x=kp&at=kd:{chance.random():.6f}"))
                writer.write(self.head(f"/runs/{run}/slice?{kind}&points={chance.randint(30, 61)}"))
                status, length = (await reader.readline())[9:12].decode(), 0
                while (line := await reader.readline()) not in (b"\r\n", b""):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line[15:])
                await reader.readexactly(length)
                self.counts[f"slices {status}"] += 1
                if status == "429":
                    await asyncio.sleep(0.05)  # far less than it is told
            except (OSError, asyncio.IncompleteReadError):
                reader = None
                await asyncio.sleep(0.2)

    async def run(self, idle: int, streams: int, slices: int, long: str, busy: str) -> None:
        works = [self.stream(long) for _ in range(streams)] + [self.slice(busy, i) for i in range(slices)]
        tasks = [asyncio.create_task(work) for work in works]
        for number in range(idle):
            tasks.append(asyncio.create_task(self.idle(number)))
            if number % 100 == 99:
                await asyncio.sleep(0.02)
        while self.connected < idle + streams + slices:
            await asyncio.sleep(0.02)
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        print(dict(self.counts), flush=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    host, port, idle, streams, slices, long, busy, token = sys.argv[1:]
    asyncio.run(Crowd(host, int(port), token).run(int(idle), int(streams), int(slices), long, busy))
