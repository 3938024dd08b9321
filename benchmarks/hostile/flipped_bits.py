"""Damage: one flipped bit anywhere in an SQLite file must not change what is read without an error.

A file with two runs is damaged at every sampled byte, one bit at a time. What a program would read (the list of runs, their
events, the answers to keys) is compared with the original. A flip is effective if something is refused, lost or different;
`unnoticed` counts those that changed what was read without an error.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import tempfile
import warnings
from pathlib import Path
from typing import Any

from benchmarks.hostile import Rows
from safebo import Box, Fixed, Matern, SafeOptimizer
from safebo.exceptions import SafeboError
from safebo.runs import Campaign, Store
from safebo.runs.ledger import Ledger

KEYS = [f"key {i}" for i in range(4)]


def make(path: Path) -> None:
    """Two runs, one of them with requests."""
    with Store.open(path) as store:
        for name in ("pendulum", "reactor"):
            opt = SafeOptimizer(Box({"a": (0.0, 1.0)}), 0.0, norm=Fixed(2.0), kernel=Matern(1.5, 0.2), cubes=None)
            opt.tell({"a": 0.5}, 1.0)
            campaign = Campaign.create(store, name, opt)
            for i, key in enumerate(KEYS):
                campaign.tell({"a": 0.4 + 0.05 * i}, 0.9, key=key if name == "pendulum" else None)
            campaign.pause("lunch")
            campaign.resume()


def read(path: Path) -> Any:
    """All that a program reads of the record, or the error that it gets."""
    try:
        with Store.open(path, create=False) as store:
            names = store.names()
            runs = {name: store.events(name) for name in names}
            for name, events in runs.items():
                Ledger.of(name, events)
            return runs, [store.request(name, key) for name in names for key in KEYS], [store.last(name) for name in names]
    except SafeboError as error:
        return error


def raw(path: Path) -> Any:
    """What stands in the tables, past the library: tells which flips have an effect."""
    tables = ("safebo_runs", "safebo_events", "safebo_requests")
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            connection.text_factory = bytes
            return [connection.execute(f"SELECT * FROM {table} NOT INDEXED").fetchall() for table in tables]
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: the name of a column
        return str(error)


def run(quick: bool) -> Rows:
    rng = random.Random(0)
    counts = {"flips": 0, "effective": 0, "refused": 0, "unnoticed": 0, "other errors": 0}
    examples: list[str] = []
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        original, copy = Path(scratch) / "original.db", Path(scratch) / "copy.db"
        make(original)
        content = original.read_bytes()
        copy.write_bytes(content)
        expected, tables = read(copy), raw(copy)
        assert not isinstance(expected, Exception), expected
        used = [i for i, byte in enumerate(content) if byte]
        for at in sorted(rng.sample(used, 150)) if quick else used[:: max(1, len(used) // 6000)]:
            damaged = bytearray(content)
            damaged[at] ^= 1 << rng.randrange(8)
            for part in Path(scratch).glob("copy.db*"):
                part.unlink()
            copy.write_bytes(damaged)
            differs = raw(copy) != tables
            try:
                found = read(copy)
            except Exception as error:
                counts["other errors"] += 1
                examples.append(f"byte {at}: {type(error).__name__}: {error}"[:200])
                continue
            refused = isinstance(found, Exception)
            counts["flips"] += 1
            counts["effective"] += refused or differs
            counts["refused"] += refused
            if not refused and found != expected:
                counts["unnoticed"] += 1
                examples.append(f"byte {at}: {found}"[:200])
    held = counts["unnoticed"] == 0 and counts["other errors"] == 0
    return [{"database": "SQLite", "bytes": len(content), **counts, "examples": examples[:5], "held": held}]
