"""Silent connections: a cable is pulled or a firewall forgets a line, nothing is closed, and a runner has an experiment running.

A proxy on loopback swallows every byte without closing anything. If only the open connections fall silent, a stop that another
process writes has to be noticed over a new one. If the database is out of reach for good, the runner has to stop its plant before
its lease ends and another one may drive.
"""

from __future__ import annotations

import threading
import time

from benchmarks.hostile import Rows
from benchmarks.hostile._proxy import Proxy
from benchmarks.postgres import Server
from safebo import Box, Fixed, Matern, SafeOptimizer
from safebo.exceptions import DriveLostError
from safebo.runs import CallablePlant, Campaign, Store, Watchdog
from safebo.runs.driving import LEASE, SILENT
from safebo.runs.operate import POLL, End, Step, operate

LIMIT = {"one line": 15.0, "no line": LEASE}
"""Seconds within which the plant has to be stopped."""


class Nobody:
    """Follows a runner and says nothing."""

    def approve(self, step: Step) -> bool | None:
        return None

    def refused(self, step: Step) -> str:
        return ""

    def waits(self) -> bool:
        return False

    def say(self, text: str) -> None:
        return None

    def measured(self, *_: object) -> None:
        return None


def attack(server: Server, what: str) -> dict[str, object]:
    """Seconds from the silence, or from the stop, until the plant is stopped."""
    url = server.schema()
    proxy = Proxy(server.folder)
    begun, stopped = threading.Event(), threading.Event()
    outcome: list[str] = []

    def measure(params: object) -> float:
        begun.set()
        stopped.wait(60.0)
        raise RuntimeError("the motor is off")

    def drive() -> None:
        try:
            with Store.open(proxy.url(url)) as store:
                plant = Watchdog(CallablePlant(measure, emergency_stop=stopped.set), timeout=90.0)
                outcome.append(operate(Campaign.open(store, "r"), plant, Nobody()).end.value)
        except DriveLostError:
            outcome.append("lost")

    with Store.open(url) as direct:
        opt = SafeOptimizer(Box({"a": (0.0, 1.0)}), 0.0, norm=Fixed(2.0), kernel=Matern(1.5, 0.2), cubes=None, points_per_axis=50)
        opt.tell({"a": 0.5}, 1.0)
        campaign = Campaign.create(direct, "r", opt)
        runner = threading.Thread(target=drive)
        runner.start()
        try:
            assert begun.wait(30.0)
            time.sleep(POLL)
            start = time.monotonic()
            proxy.silence(also_new=what == "no line")
            if what == "one line":
                campaign.stop("smoke")
            stopped.wait(60.0)
            seconds = time.monotonic() - start
        finally:
            stopped.set()
            runner.join(120.0)
            proxy.close()
    ended = End.STOPPED.value if what == "one line" else "lost"
    return {
        "silent": what,
        "plant stopped after (s)": round(seconds, 1),
        "limit (s)": LIMIT[what],
        "runner": ", ".join(outcome),
        "held": seconds < LIMIT[what] and outcome == [ended],
    }


def run(quick: bool) -> Rows:
    server = Server()
    try:
        server.start()
        whats = ["one line"] if quick else ["one line", "no line"] * 3
        return [{"runner gives up after (s)": SILENT, **attack(server, what)} for what in whats]
    finally:
        server.stop()
