"""`python -m benchmarks.powercut [--cuts 500] [--seed 0]`: what a power cut leaves of an SQLite run. Needs strace.

A program stores events and notes each one that `append` has returned for. strace records its writes and syncs. For random
moments the disk is rebuilt as a cut would leave it: what was synced is there, of everything later a random part, down to single
sectors of 512 bytes; files that were created or removed since their folder was synced may be there or not. The database must
open, with every event that was acknowledged. The same program with the syncs switched off must lose some: that shows that the
cuts bite. Writes summary.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HELP = "strace is not installed: apt-get install strace."
SECTOR = 512
CALLS = "openat,pwrite64,write,ftruncate,fdatasync,fsync,unlink,close,rename"


# -- the program that is traced ---------------------------------------------------------------------------------------


def program(folder: Path, events: int, synced: bool) -> None:
    from sqlalchemy import event as listening

    from safebo.runs import Event, Store

    with (folder / "acknowledged").open("wb", buffering=0) as acknowledged:
        done = 0
        while done < events:  # opened and closed several times
            with Store.open(folder / "safebo.db") as store:
                if not synced:
                    store.close()
                    listening.listen(store._engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous=OFF"))
                if not done:
                    store.create("r", [Event("created")])
                    acknowledged.write(b"1")
                    done = 1
                for _ in range(events // 3 + 1):
                    store.append(
                        "r", done, [Event("told", {"value": done, "context": "x" * random.Random(done).randint(0, 9000)})]
                    )
                    acknowledged.write(b"1")
                    done += 1


# -- its trace --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Operation:
    """One system call on a file of the folder."""

    kind: str  # open, write, truncate, sync, unlink, acknowledged
    name: str = ""
    offset: int = 0
    data: bytes = b""


def _text(quoted: str) -> bytes:
    return bytes.fromhex(quoted.replace("\\x", ""))


def parse(trace: Path, folder: Path) -> list[Operation]:
    operations, halves = [], {}
    for raw in trace.read_text().splitlines():
        process, _, line = raw.partition(" ")
        line = line.strip()
        if line.endswith("<unfinished ...>"):
            halves[process] = line.removesuffix("<unfinished ...>").rstrip()
            continue
        if found := re.match(r"<\.\.\. \w+ resumed>(.*)", line):
            line = halves.pop(process) + found[1]
        found = re.match(r"(\w+)\((.*)\)\s+= (-?\d+)", line)
        if found is None or int(found[3]) < 0:
            continue
        call, arguments = found[1], found[2]
        strings = [_text(s) for s in re.findall(r'"((?:\\x[0-9a-f]{2})*)"', arguments)]
        paths = [_text(s).decode() for s in re.findall(r"\d+<((?:\\x[0-9a-f]{2})+)>", arguments)]
        numbers = [int(n) for n in re.findall(r", (\d+)(?=,|$)", arguments)]
        path = Path(strings[0].decode()) if call in ("openat", "unlink") else Path(paths[0]) if paths else Path("/")
        if path == folder and call in ("fsync", "fdatasync"):
            operations.append(Operation("sync"))
        if path.parent != folder or path.name.endswith("-shm"):  # the index of the log is rebuilt from it
            continue
        if call == "write" and path.name == "acknowledged":
            operations.append(Operation("acknowledged"))
        elif path.name == "acknowledged":
            continue
        elif call == "openat" and "O_CREAT" in arguments:
            operations.append(Operation("open", path.name))
        elif call == "pwrite64":
            operations.append(Operation("write", path.name, numbers[-1], strings[0][: int(found[3])]))
        elif call == "ftruncate":
            operations.append(Operation("truncate", path.name, numbers[-1]))
        elif call in ("fsync", "fdatasync"):
            operations.append(Operation("sync", path.name))
        elif call == "unlink":
            operations.append(Operation("unlink", path.name))
        elif call in ("rename", "write"):
            raise RuntimeError(f"A {call} of {path} is not expected.")
    return operations


# -- the disk after a cut ---------------------------------------------------------------------------------------------


class File:
    """What is certainly on the disk, and what may be."""

    def __init__(self) -> None:
        self.synced, self.later = b"", []  # type: tuple[bytes, list[Operation]]

    def sync(self) -> None:
        self.synced, self.later = self.content(None), []

    def content(self, rng: random.Random | None) -> bytes:
        """With all that came later, or with a random part of it."""
        data = bytearray(self.synced)
        for operation in self.later:
            if operation.kind == "truncate":
                if rng is None or rng.random() < 0.5:
                    del data[operation.offset :]
                    data.extend(bytes(operation.offset - len(data)))
                continue
            fate = 1.0 if rng is None else rng.choice([0.0, 0.5, 1.0])  # lost, torn, written
            for start in range(0, len(operation.data), SECTOR):
                if fate == 1.0 or (rng is not None and rng.random() < fate):
                    piece, at = operation.data[start : start + SECTOR], operation.offset + start
                    data.extend(bytes(max(0, at + len(piece) - len(data))))
                    data[at : at + len(piece)] = piece
        return bytes(data)


class Disk:
    """A folder whose writes are applied one by one."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.listed: dict[str, list[File | None]] = {}  # name -> what it meant at the last sync of the folder, and since
        self.acknowledged = self.unsynced = 0

    def apply(self, operation: Operation) -> None:
        name = operation.name
        if operation.kind == "acknowledged":
            self.acknowledged += 1
            self.unsynced += any(file.later for n, file in self.files.items() if n.endswith("-wal"))
        elif operation.kind == "open" and name not in self.files:
            self.files[name] = File()
            self.listed.setdefault(name, [None]).append(self.files[name])
        elif operation.kind == "unlink":
            del self.files[name]
            self.listed[name].append(None)
        elif operation.kind == "sync" and not name:
            self.listed = {n: [self.files.get(n)] for n in self.listed}
        elif operation.kind == "sync":
            self.files[name].sync()
        elif operation.kind in ("write", "truncate"):
            self.files[name].later.append(operation)

    def cut(self, folder: Path, rng: random.Random) -> None:
        """Write what a power cut at this moment may leave."""
        for name, meanings in self.listed.items():
            file = rng.choice(meanings)
            if file is not None:
                (folder / name).write_bytes(file.content(rng))


def survivors(folder: Path) -> int:
    """How many events a new program finds; raises if the database is damaged."""
    from safebo.exceptions import UnknownRunError
    from safebo.runs import Event, Store

    with Store.open(folder / "safebo.db") as store:
        try:
            found = len(store.events("r"))
            store.append("r", found, [Event("paused")])
        except UnknownRunError:
            found = 0
    connection = sqlite3.connect(folder / "safebo.db")
    check = connection.execute("PRAGMA integrity_check").fetchall()
    connection.close()
    if check != [("ok",)]:
        raise RuntimeError(f"Damaged: {check}.")
    return found


def study(events: int, cuts: int, seed: int, synced: bool) -> dict[str, Any]:
    """Trace the program, cut the power at random moments, count what is lost."""
    from safebo.exceptions import StorageError

    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder, trace = Path(scratch).resolve() / "disk", Path(scratch) / "trace"
        folder.mkdir()
        words = [sys.executable, "-m", "benchmarks.powercut", "--program", str(folder), "--events", str(events)]
        command = ["strace", "-f", "-y", "-xx", "-s", "1000000", "-e", f"trace={CALLS}", "-o", str(trace), *words]
        subprocess.run([*command, *([] if synced else ["--unsynced"])], check=True, stdout=subprocess.DEVNULL)
        operations = parse(trace, folder)
        moments = sorted(rng.choices(range(len(operations) + 1), k=cuts))
        disk, applied = Disk(), 0
        lost = damaged = 0
        for moment in moments:
            for operation in operations[applied:moment]:
                disk.apply(operation)
            applied = moment
            image = Path(scratch) / "image"
            image.mkdir()
            disk.cut(image, rng)
            try:
                lost += survivors(image) < disk.acknowledged
            except (StorageError, RuntimeError, sqlite3.Error) as error:
                if synced:
                    print(f"after {moment} calls: {error}", file=sys.stderr)
                damaged += 1
            shutil.rmtree(image)
        for operation in operations[applied:]:
            disk.apply(operation)
    kinds = [o.kind for o in operations]
    counts = {f"{kind}s": kinds.count(kind) for kind in ("write", "sync", "truncate", "unlink")}
    return {
        "events": events,
        "calls": counts,
        "acknowledged": disk.acknowledged,
        "acknowledged_before_a_sync": disk.unsynced,
        "cuts": cuts,
        "cuts_that_lost_an_acknowledged_event": lost,
        "cuts_that_damaged_the_database": damaged,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.powercut", description=__doc__)
    parser.add_argument("--cuts", type=int, default=500)
    parser.add_argument("--events", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/powercut"))
    parser.add_argument("--program", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--unsynced", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.program:
        return program(arguments.program, arguments.events, not arguments.unsynced)
    if shutil.which("strace") is None:
        sys.exit(HELP)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    content = {
        "command": f"python -m benchmarks.powercut --cuts {arguments.cuts} --events {arguments.events}",
        "seed": arguments.seed,
        "commit": commit,
        "sqlite": sqlite3.sqlite_version,
        "durable": study(arguments.events, arguments.cuts, arguments.seed, True),
        "without_syncs": study(arguments.events, arguments.cuts, arguments.seed, False),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "summary.json").write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps({key: content[key] for key in ("durable", "without_syncs")}))
    durable, control = content["durable"], content["without_syncs"]
    faults = [v for k, v in durable.items() if k.startswith(("cuts_that", "acknowledged_before"))]  # type: ignore[union-attr]
    biting = control["cuts_that_lost_an_acknowledged_event"] + control["cuts_that_damaged_the_database"]  # type: ignore[index]
    sys.exit(any(faults) or not biting)


if __name__ == "__main__":
    main()
