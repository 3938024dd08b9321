"""Who drives the rig: lookers, restarted servers, lost connections and processes that sleep beyond their lease.

Processes claim a run again and again while others look who drives it: looking must refuse nobody. A runner drives while the
backends of PostgreSQL are terminated and the server is restarted, and others try to take the run: at no moment may two drive. A
process that holds a run is stopped (SIGSTOP) until its lease has ended and another computer has taken the run over; when it goes
on (SIGCONT), what it writes must be refused.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.hostile import Rows
from benchmarks.postgres import Server
from safebo import Box, Fixed, Matern, SafeOptimizer
from safebo.exceptions import DrivenError, SafeboError, StorageError
from safebo.runs import Campaign, Store
from safebo.runs import driving as module
from safebo.runs.driving import driver, driving

_spawn = multiprocessing.get_context("spawn")


def create(url: str) -> None:
    opt = SafeOptimizer(Box({"a": (0.0, 1.0)}), 0.0, norm=Fixed(2.0), kernel=Matern(1.5, 0.2), cubes=None, points_per_axis=50)
    opt.tell({"a": 0.5}, 1.0)
    with Store.open(url) as store:
        Campaign.create(store, "r", opt)


# -- looking ------------------------------------------------------------------------------------------------------------------


def _look(url: str, ready: Any, over: Any) -> None:
    with Store.open(url) as store:
        ready.release()
        while not over.is_set():
            with contextlib.suppress(StorageError):
                driver(store, "r")


def looking(url: str, claims: int, lookers: int) -> dict[str, Any]:
    """How many claims were refused because somebody looked."""
    create(url)
    over, ready = _spawn.Event(), _spawn.Semaphore(0)
    processes = [_spawn.Process(target=_look, args=(url, ready, over)) for _ in range(lookers)]
    for process in processes:
        process.start()
    refused = 0
    try:
        for _ in processes:
            ready.acquire(timeout=60.0)
        with Store.open(url) as store:
            for _ in range(claims):
                try:
                    with driving(Campaign.open(store, "r")):
                        pass
                except DrivenError:
                    refused += 1
    finally:
        over.set()
        for process in processes:
            process.join(60.0)
    return {"attack": "claims while others look", "claims": claims, "lookers": lookers, "refused": refused, "held": not refused}


# -- lost connections ---------------------------------------------------------------------------------------------------------


def contending(server: Server, disturbances: list[Callable[[], None]], rivals: int) -> dict[str, Any]:
    """How often two drove at once while a runner held the run and its connections were lost."""
    url = server.schema()
    create(url)
    holding, over = threading.Event(), threading.Event()
    stolen, refused, unreachable = [0], [0], [0]

    def rival(store: Store) -> None:
        while not over.is_set():
            try:
                with driving(Campaign.open(store, "r")):
                    stolen[0] += holding.is_set()
            except DrivenError:
                refused[0] += 1
            except SafeboError:
                unreachable[0] += 1
            time.sleep(0.02)

    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(Store.open(url)) for _ in range(rivals + 1)]
        threads = [threading.Thread(target=rival, args=(store,)) for store in stores[1:]]
        with driving(campaign := Campaign.open(stores[0], "r")):
            holding.set()
            for thread in threads:
                thread.start()
            for disturb in disturbances:
                disturb()
                time.sleep(module.BEAT / 3.0)
            lost = bool(campaign.driving_lost)
            holding.clear()
            over.set()
            for thread in threads:
                thread.join(60.0)
    return {
        "attack": "backends terminated, server restarted",
        "disturbances": len(disturbances),
        "rivals refused": refused[0],
        "rivals without a database": unreachable[0],
        "two drivers": stolen[0],
        "runner lost the run": lost,
        "held": refused[0] > 0 and stolen[0] == 0 and not lost,
    }


# -- asleep beyond the lease --------------------------------------------------------------------------------------------------


def _sleeper(url: str, pipe: Connection) -> None:
    module.__dict__["_place"] = lambda: "another computer"  # where this process cannot be looked up
    with Store.open(url) as store, driving(campaign := Campaign.open(store, "r")):
        pending = campaign.hand_out()
        assert pending is not None
        pipe.send(pending.trial.id)
        pipe.recv()  # waits while it is stopped
        try:
            campaign.tell(pending.trial.id, 0.7)
            pipe.send("stored")
        except SafeboError as error:
            pipe.send(str(error))


def asleep(url: str, lease: float) -> dict[str, Any]:
    """What becomes of a late write."""
    create(url)
    ours, theirs = _spawn.Pipe()
    process = _spawn.Process(target=_sleeper, args=(url, theirs))
    process.start()
    try:
        trial = ours.recv()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        start, early = time.monotonic(), 0
        with Store.open(url) as store:
            campaign = Campaign.open(store, "r")
            while True:
                try:
                    with driving(campaign):
                        waited = time.monotonic() - start
                        os.kill(process.pid, signal.SIGCONT)
                        ours.send("go on")
                        answer = ours.recv() if ours.poll(30.0) else "no answer"
                        campaign.abandon(trial, "nobody knows")
                    break
                except DrivenError:
                    early += 1
                    time.sleep(0.25)
            told = [event for event in campaign.events() if event.kind == "told"]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.join(30.0)
    refused = "no longer driven by this process" in answer and "NOT STORED: 0.7" in answer
    return {
        "attack": "stopped beyond its lease, then goes on",
        "taken over after (s)": round(waited, 1),
        "lease (s)": lease,
        "late write refused": refused,
        "held": refused and not told and waited > lease - 2.0 * module.BEAT,
    }


def run(quick: bool) -> Rows:
    rows: Rows = []
    server = Server()
    try:
        server.start()

        def terminate() -> None:
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'safebo' AND pid <> pg_backend_pid()"
            )

        def restart() -> None:
            server.crash(signal.SIGINT)
            server.start()

        with tempfile.TemporaryDirectory() as folder:
            claims, lookers = (20, 1) if quick else (400, 3)
            rows.append({"database": "SQLite", **looking(f"sqlite:///{folder}/a.db", claims, lookers)})
            rows.append(
                {
                    "database": "PostgreSQL",
                    **contending(server, [terminate, restart] if quick else [terminate, terminate, restart] * 8, 2),
                }
            )
            if not quick:
                rows.append({"database": "PostgreSQL", **looking(server.schema(), claims, lookers)})
                if sys.platform != "win32":
                    rows.append({"database": "SQLite", **asleep(f"sqlite:///{folder}/b.db", module.LEASE)})
                    rows.append({"database": "PostgreSQL", **asleep(server.schema(), module.LEASE)})
    finally:
        server.stop()
    return rows
