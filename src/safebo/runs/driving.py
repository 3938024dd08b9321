"""One runner per run: whoever sends experiments to a plant holds the run, and others find out.

SQLite: a locked file beside the database. PostgreSQL: an advisory lock of its own connection. Both end with the process, also
when it is killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from safebo.exceptions import DrivenError, StorageError
from safebo.runs.storage import Store, now

if TYPE_CHECKING:
    from safebo.runs.campaign import Campaign


@contextmanager
def driving(campaign: Campaign) -> Iterator[None]:
    """Hold the run while the body sends experiments; `DrivenError` if another process does."""
    if campaign.drives:
        yield
        return
    release = _claim(campaign.store, campaign.name)
    if release is None:
        raise DrivenError(
            f"Run {campaign.name!r} is being driven by {driver(campaign.store, campaign.name) or 'another process'}: two at once "
            "would send two experiments to one plant. Stop it, or wait until it has ended."
        )
    campaign.drives = True
    try:
        yield
    finally:
        campaign.drives = False
        release()


def driver(store: Store, name: str) -> str:
    """Who drives a run at this moment, in words; empty if nobody does."""
    release = _claim(store, name, look=True)
    if release is not None:
        release()
        return ""
    if store.dialect != "sqlite":
        return "another process"
    try:
        said = json.loads(_file(store, name).read_text(encoding="utf-8"))
        return f"process {said['pid']} on {said['host']} since {said['since']}"
    except (OSError, ValueError, KeyError):
        return "another process"


def _claim(store: Store, name: str, look: bool = False) -> Callable[[], None] | None:
    """A function that gives the run up again; None if another process holds it."""
    return _lock_file(store, name, look) if store.dialect == "sqlite" else _lock_connection(store, name)


def _file(store: Store, name: str) -> Path:
    path = Path(store.where)
    return path.with_name(f".{path.name}.{hashlib.sha256(name.encode()).hexdigest()[:12]}.driven")


def _lock_file(store: Store, name: str, look: bool) -> Callable[[], None] | None:
    path = _file(store, name)
    if look and not path.exists():
        return lambda: None
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if look:
            return lambda: None  # a copy that nobody can write to is not driven either
        raise StorageError(f"The run cannot be claimed beside its database: {error}.") from error
    if not _locked(handle):
        os.close(handle)
        return None
    if not look:
        text = json.dumps({"pid": os.getpid(), "host": platform.node(), "since": now()})
        os.ftruncate(handle, 0)
        os.write(handle, text.encode())
    return lambda: os.close(handle)  # the file stays: removing it would let two processes lock two files of one name


def _locked(handle: int) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            os.lseek(handle, 1 << 30, os.SEEK_SET)  # beyond the text, which others may read
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
            os.lseek(handle, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _lock_connection(store: Store, name: str) -> Callable[[], None] | None:
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
    connection = store.connection()
    if not connection.scalar(sa.select(sa.func.pg_try_advisory_lock(key))):
        connection.close()
        return None
    connection.commit()  # the lock belongs to the connection, not to a transaction

    def release() -> None:
        connection.invalidate()  # closes it for good, and its lock with it
        connection.close()

    return release
