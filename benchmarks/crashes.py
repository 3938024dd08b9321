"""`python -m benchmarks.crashes [--kills 400] [--seed 0]`: durable runs whose programs are killed with SIGKILL.

A program works on a run: asks, approves, starts, measures, tells, aborts, configures, pauses, resumes, and sends some requests
under a key. It is killed at a random time, or at a chosen moment of its k-th transaction (before the commit, inside it, after it,
before a statement), and started again, until the run is complete. What becomes of a pending trial is decided as a person would:
the plant has a log of its own that says whether it ran. Afterwards the record is compared with that of an undisturbed run. Also:
kills during the creation and the migration of the tables, and crashes of the PostgreSQL server itself. Both databases, with every
commit synced. Writes summary.json.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import hashlib
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event as listening

from benchmarks.postgres import Server
from safebo import Box, Fixed, Matern, SafeOptimizer
from safebo.exceptions import StorageError
from safebo.runs import Campaign, Event, RunConfig, Store
from safebo.runs import storage as tables
from safebo.runs.ledger import trial_entry

OPERATIONS = (
    "open",
    "load",
    "ask",
    "approve",
    "start",
    "plant",
    "tell",
    "abort",
    "tell with key",
    "configure",
    "pause",
    "resume",
)
OPERATIONS = (*OPERATIONS, "retry", *(f"migrate {version} -> {tables.SCHEMA}" for version in range(tables.SCHEMA)), "done")
MOMENTS = ("elsewhere", "before a statement", "before the commit", "in the commit", "after the commit")
EXPERIMENTS = 14


def make(seed: int) -> SafeOptimizer:
    settings = {"kernel": Matern(1.5, 0.15), "norm": Fixed(3.0), "cubes": None, "points_per_axis": 80, "abort_radius": 0.05}
    opt = SafeOptimizer(Box({"a": (0.0, 1.0)}), 0.0, min_width=0.001, seed=seed, **settings)  # type: ignore[arg-type]
    opt.tell({"a": 0.3 + 0.4 * random.Random(seed).random()}, 1.5)
    return opt


def measure(params: dict[str, float]) -> float:
    """A function of the parameters alone."""
    return 1.5 - (params["a"] - 0.55) ** 2 / 3.0


@dataclasses.dataclass(frozen=True)
class Kill:
    """When: after `seconds`, or at the `count`-th `moment`."""

    moment: str = "elsewhere"
    count: int = 0
    seconds: float = 0.0

    @classmethod
    def draw(cls, rng: random.Random, typical: float) -> Kill:
        moment = rng.choice(MOMENTS)
        seconds = rng.uniform(0.0, typical) if moment == "elsewhere" else rng.expovariate(1.0 / 0.003)
        return cls(moment, rng.randint(1, 12), seconds)


class Log:
    """Lines that are on disk when `write` returns: what the plant, or the person at the bench, knows by himself."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, *words: object) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(words) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[list[Any]]:
        found = self.path.read_text().splitlines() if self.path.exists() else []
        result = []
        for line in found:
            try:
                result.append(json.loads(line))
            except ValueError:  # cut off by the kill
                continue
        return result


class Monitor:
    """Shared memory: what the program is doing, for the one that kills it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 2)

    def doing(self, operation: str) -> None:
        self._memory[0] = OPERATIONS.index(operation)

    def at(self, moment: str) -> None:
        self._memory[1] = MOMENTS.index(moment)

    @property
    def now(self) -> tuple[str, str]:
        return OPERATIONS[self._memory[0]], MOMENTS[self._memory[1]]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(kill: Kill | None, monitor: Monitor) -> None:
    """Report where transactions are, and end this process at the chosen moment. Counts over all connections."""
    seen: collections.Counter[str] = collections.Counter()

    def reached(moment: str) -> bool:
        monitor.at(moment)
        seen[moment] += 1
        return kill is not None and kill.moment == moment and seen[moment] == kill.count

    def statement(connection: sa.Connection, cursor: Any, text: str, *_: Any) -> None:
        if text.lstrip().upper().startswith(("INSERT", "CREATE", "DELETE", "UPDATE")) and reached("before a statement"):
            die()

    listening.listen(sa.Engine, "before_cursor_execute", statement)
    from sqlalchemy.engine.default import DefaultDialect

    commit = DefaultDialect.do_commit

    def committing(self: Any, connection: Any) -> None:
        if reached("before the commit"):
            die()
        if reached("in the commit"):
            assert kill is not None
            threading.Timer(kill.seconds, die).start()
        commit(self, connection)
        if reached("after the commit"):
            die()
        monitor.at("elsewhere")

    DefaultDialect.do_commit = committing  # type: ignore[method-assign]


# -- the program that is killed ---------------------------------------------------------------------------------------


def work(url: str, seed: int, folder: Path, monitor: Monitor, patient: bool = False) -> None:
    """Bring the run to its end, from wherever it is. patient: wait for a database that does not answer."""
    while True:
        try:
            return _work(url, seed, Log(folder / "plant.jsonl"), Log(folder / "acknowledged.jsonl"), monitor)
        except StorageError:
            if not patient:
                raise
            time.sleep(0.05)


def _work(url: str, seed: int, plant: Log, acknowledged: Log, monitor: Monitor) -> None:
    monitor.doing("open")
    with Store.open(url) as store:
        monitor.doing("load")
        if "r" not in store.names():
            Campaign.create(store, "r", make(seed), config=RunConfig(confirm=True), source="[run]\n", who="script")
        campaign = Campaign.open(store, "r")
        again(campaign, acknowledged, monitor)
        while step(campaign, plant, acknowledged, monitor):
            pass
    monitor.doing("done")


def again(campaign: Campaign, log: Log, monitor: Monitor) -> None:
    """A request under a key that was not answered is sent again: it must count once."""
    answered = {line[1] for line in log.lines() if line[0] == "answered"}
    for _, key, params, value in [line for line in log.lines() if line[0] == "sent"]:
        if key not in answered:
            monitor.doing("tell with key")
            campaign.tell(params, value, key=key)
            log.write("answered", key)


def step(campaign: Campaign, plant: Log, log: Log, monitor: Monitor) -> bool:
    """The next thing to do, decided by the record alone; False when all is done."""
    ledger = campaign.ledger
    n = len(ledger.samples) + len(ledger.aborts)
    confirm = n % 4 < 3
    if ledger.halted is not None:
        monitor.doing("resume")
        campaign.resume("go on", who="operator")
    elif ledger.pending is None and n % 5 == 2 and ledger.config.notes != f"pause {n}":
        monitor.doing("configure")
        campaign.configure(notes=f"pause {n}", confirm=confirm, who="operator")
        monitor.doing("pause")
        campaign.pause("coffee", who="operator")
    elif ledger.pending is None and ledger.config.confirm != confirm:
        monitor.doing("configure")
        campaign.configure(confirm=confirm)
    elif ledger.pending is None and n >= EXPERIMENTS:
        return False
    elif ledger.pending is None and n % 6 == 4:  # measured by hand, and sent over an unreliable line
        monitor.doing("tell with key")
        params = {"a": round(0.5 + 0.01 * n, 4)}
        log.write("sent", f"key {n}", params, measure(params))
        campaign.tell(params, measure(params), key=f"key {n}")
        log.write("answered", f"key {n}")
    elif ledger.pending is None:
        monitor.doing("ask")
        assert campaign.ask() is not None, ledger
    elif ledger.pending.out:
        resolve(campaign, plant, log, monitor)
    elif ledger.config.confirm and ledger.pending.approved is None:
        monitor.doing("approve")
        campaign.approve(ledger.pending.trial.id, who="operator")
    else:
        trial = ledger.pending.trial
        monitor.doing("start")
        campaign.start(trial.id)
        monitor.doing("plant")
        plant.write("begin", trial.id)
        plant.write("end", trial.id, None if n % 7 == 5 else measure(trial.params))
        report(campaign, trial.id, None if n % 7 == 5 else measure(trial.params), log, monitor)
    return True


def resolve(campaign: Campaign, plant: Log, log: Log, monitor: Monitor) -> None:
    """A trial is out and the program that ran it is gone: the plant's own log says whether it was executed."""
    assert campaign.ledger.trial is not None
    identity = campaign.ledger.trial.id
    ends = [line for line in plant.lines() if line[:2] == ["end", identity]]
    if ends:
        report(campaign, identity, ends[0][2], log, monitor)
    else:
        monitor.doing("retry")
        campaign.retry(identity, who="operator")


def report(campaign: Campaign, identity: str, value: float | None, log: Log, monitor: Monitor) -> None:
    if value is None:
        monitor.doing("abort")
        campaign.abort(identity, "limit switch")
    else:
        monitor.doing("tell")
        campaign.tell(identity, value)
    log.write("told", identity, value)


# -- the one that kills -----------------------------------------------------------------------------------------------


def spawn(function: Callable[[], None]) -> int:
    """Run in a child process; exit status 0 if it ends by itself, 1 with a traceback if it fails."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        function()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def killed(function: Callable[[], None], kill: Kill, monitor: Monitor) -> bool:
    """Start it and kill it; False if it had ended before. A failure of its own is an error."""

    def child() -> None:
        arm(kill, monitor)
        function()

    monitor.doing("open")
    monitor.at("elsewhere")
    pid = spawn(child)
    if kill.moment == "elsewhere":
        time.sleep(kill.seconds)
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError(f"The program failed by itself (exit status {code}), killed at {kill}, doing {monitor.now}.")
    return code != 0


def complete(function: Callable[[], None]) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(spawn(function), 0)[1])
    if code != 0:
        raise RuntimeError(f"The program failed by itself: exit status {code}.")


def outcome(url: str) -> dict[str, Any]:
    """What must not depend on crashes: measurements, norms, aborts, trials with their certificates, and the next suggestion."""
    with Store.open(url, create=False) as store:
        events = store.events("r")
        campaign = Campaign.open(store, "r")
        state = campaign.ledger.state.to_json()
        asked = [e.body["trial"] for e in events if e.kind == "asked"]
        closed = [(e.body["sample"][3], e.body["sample"][2]) for e in events if e.kind == "told"]
        aborted = [e.body["abort"][4] for e in events if e.kind == "aborted"]
        fresh = SafeOptimizer.from_json(state).ask()
        pending = campaign.ask()
        campaign.configure(confirm=False)
    loaded = SafeOptimizer.load(url, "r")
    suggested = loaded.ask()
    assert fresh is not None and pending is not None and suggested is not None
    following = [trial_entry(t) for t in (fresh, pending.trial, suggested)]
    return {"state": state, "asked": asked, "told": closed, "aborted": aborted, "next": following}


def compare(found: dict[str, Any], reference: dict[str, Any], folder: Path) -> dict[str, int]:
    """How often something was lost, doubled, or differs from the undisturbed run."""
    logs = Log(folder / "acknowledged.jsonl").lines()
    told = collections.Counter((identity, values[0]) for identity, values in found["told"] if identity is not None)
    identities = [identity for identity, _ in found["told"] if identity is not None] + found["aborted"]
    lost = sum(told[identity, value] == 0 for kind, identity, value in (x for x in logs if x[0] == "told") if value is not None)
    lost += sum(
        identity not in found["aborted"] for kind, identity, value in (x for x in logs if x[0] == "told") if value is None
    )
    keyed = sum(identity is None for identity, _ in found["told"])
    lost += max(0, len({x[1] for x in logs if x[0] == "answered"}) - keyed)
    ends = collections.Counter(x[1] for x in Log(folder / "plant.jsonl").lines() if x[0] == "end")
    doubled = len(identities) - len(set(identities)) + sum(n > 1 for n in ends.values())
    doubled += max(0, keyed - sum(identity is None for identity, _ in reference["told"]))
    doubled += len(found["asked"]) - len({json.dumps(t["id"]) for t in found["asked"]})
    differing = sum(a != b for a, b in zip(found["asked"], reference["asked"], strict=False))
    differing += abs(len(found["asked"]) - len(reference["asked"])) + (found["state"] != reference["state"])
    differing += sum(t != reference["next"][0] for t in (*found["next"], *reference["next"]))
    return {"lost": lost, "duplicated": doubled, "differing": differing}


class Study:
    """Kills until there are enough of them."""

    def __init__(self, seed: int, server: Server | None, scratch: Path) -> None:
        self.rng, self.server, self.scratch = random.Random(seed), server, scratch
        self.monitor = Monitor()
        self.counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self.faults: collections.Counter[str] = collections.Counter({"lost": 0, "duplicated": 0, "differing": 0})
        self.runs: collections.Counter[str] = collections.Counter()
        self._databases = 0
        self._references: dict[int, tuple[dict[str, Any], float]] = {}

    def folder(self) -> Path:
        self._databases += 1
        path = self.scratch / str(self._databases)
        path.mkdir()
        return path

    def url(self, database: str, folder: Path) -> str:
        if database == "sqlite":
            return f"sqlite:///{folder}/safebo.db"
        assert self.server is not None
        return self.server.schema()

    def reference(self, seed: int) -> tuple[dict[str, Any], float]:
        """An undisturbed run, and the seconds it took."""
        if seed not in self._references:
            folder, start = self.folder(), time.monotonic()
            url = self.url("sqlite", folder)
            complete(lambda: work(url, seed, folder, self.monitor))
            self._references[seed] = outcome(url), time.monotonic() - start
        return self._references[seed]

    def count(self, database: str) -> None:
        operation, moment = self.monitor.now
        self.counts[database][f"{operation}, {moment}"] += 1

    def kills(self, database: str) -> int:
        return sum(self.counts[database].values())

    def run(self, database: str, kills: int) -> None:
        """One run, killed again and again."""
        seed = self.rng.randrange(8)
        reference, seconds = self.reference(seed)
        folder = self.folder()
        url = self.url(database, folder)
        program = lambda: work(url, seed, folder, self.monitor)  # noqa: E731
        for _ in range(self.rng.randint(5, 15)):
            if self.kills(database) >= kills or not killed(program, Kill.draw(self.rng, seconds / 3.0), self.monitor):
                break
            self.count(database)
        complete(program)
        self.runs[database] += 1
        self.faults.update(compare(outcome(url), reference, folder))

    def migration(self, database: str, version: int) -> None:
        """Tables made or brought up to date by programs that are killed while they do it."""
        folder = self.folder()
        url = self.url(database, folder)
        operation = f"migrate {version} -> {tables.SCHEMA}"
        if version:
            outdated(url, version)

        def program() -> None:
            self.monitor.doing(operation)
            Store.open(url).close()

        for _ in range(6):
            drawn = Kill.draw(self.rng, 0.05)
            if killed(program, dataclasses.replace(drawn, count=self.rng.randint(1, 3)), self.monitor):
                self.monitor.doing(operation)  # where it had not begun as well
                self.count(database)
        with Store.open(url) as store:
            known = {name: [e.body for e in store.events(name)] for name in store.names()}
            whole = store.version() == tables.SCHEMA and known == ({"r": [{"value": 1.5}]} if version else {})
            store.create("new", [Event("created")])
            store.append("new", 1, [Event("paused")], tables.Request("key", "f"))
        self.faults["lost"] += not whole

    def server_crash(self) -> None:
        """The server is killed and restarted under a program that keeps working."""
        assert self.server is not None
        seed = self.rng.randrange(8)
        reference, seconds = self.reference(seed)
        folder = self.folder()
        url = self.url("postgresql", folder)
        pid = spawn(lambda: (arm(None, self.monitor), work(url, seed, folder, self.monitor, patient=True))[1])
        for _ in range(self.rng.randint(2, 5)):
            time.sleep(self.rng.uniform(0.0, seconds))
            if self.monitor.now[0] == "done":
                break
            self.server.crash(self.rng.choice([signal.SIGQUIT, signal.SIGKILL]))
            self.counts["postgresql server"]["{}, {}".format(*self.monitor.now)] += 1
            self.server.start()
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
            raise RuntimeError("The program failed by itself.")
        self.runs["postgresql server"] += 1
        self.faults.update(compare(outcome(url), reference, folder))


def outdated(url: str, version: int) -> None:
    """Tables of an earlier version, with a run."""
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        for migration in tables.MIGRATIONS[:version]:
            migration(connection)
        body = json.dumps({"value": 1.5})
        digest = hashlib.sha256(json.dumps(["", 1, "created", "2026", "", body]).encode()).hexdigest()
        connection.execute(sa.text(f"INSERT INTO safebo_meta VALUES ('schema', '{version}')"))
        connection.execute(sa.text("INSERT INTO safebo_runs (name) VALUES ('r')"))
        event = sa.text("INSERT INTO safebo_events VALUES (1, 1, 'created', '2026', '', :body, :digest)")
        connection.execute(event, {"body": body, "digest": digest})
    engine.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crashes", description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=400, help="of the program, shared by the databases; those during migrations come on top"
    )
    parser.add_argument("--server-crashes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--databases", nargs="+", choices=["sqlite", "postgresql"], default=["sqlite", "postgresql"])
    parser.add_argument("--out", type=Path, default=Path("results/crashes"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)  # fork beside idle threads of the linear algebra
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    make(0).ask()  # compiled code, for all children
    start = time.monotonic()
    server = Server() if "postgresql" in arguments.databases else None
    try:
        if server is not None:
            server.start()
        with tempfile.TemporaryDirectory() as scratch:
            study = Study(arguments.seed, server, Path(scratch))
            share = arguments.kills // len(arguments.databases)
            for database in arguments.databases:
                while study.kills(database) < share:
                    study.run(database, share)
                    print(f"{database}: {study.kills(database)} kills, {dict(study.faults)}", file=sys.stderr)
                for i in range(max(tables.SCHEMA, share // 20)):
                    study.migration(database, i % tables.SCHEMA)
            while server is not None and study.counts["postgresql server"].total() < arguments.server_crashes:
                study.server_crash()
    finally:
        if server is not None:
            server.stop()
    content = {
        "command": f"python -m benchmarks.crashes --kills {arguments.kills} --server-crashes {arguments.server_crashes}",
        "seed": arguments.seed,
        "commit": commit,
        "seconds": round(time.monotonic() - start),
        "experiments_per_run": EXPERIMENTS,
        "runs": dict(study.runs),
        "kills": {name: counter.total() for name, counter in study.counts.items()},
        "faults": dict(study.faults),
        "kills_by_moment": {name: dict(sorted(counter.items())) for name, counter in study.counts.items()},
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "summary.json").write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps({key: content[key] for key in ("runs", "kills", "faults", "seconds")}))
    sys.exit(any(study.faults.values()))


if __name__ == "__main__":
    main()
