"""Disks that are full or cannot be written: a clear error, nothing damaged, and the same step succeeds afterwards."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess

import pytest

from safebo import SafeOptimizer
from safebo.exceptions import StorageError
from safebo.runs import Campaign, Event, Follower, Store
from tests.runs.common import certificate, optimizer, plant

pytestmark = pytest.mark.filterwarnings("ignore::safebo.exceptions.SafeboWarning")


@contextlib.contextmanager
def mounted(folder, *options):
    """A filesystem of its own; skips where we may not mount one (that needs root)."""
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"Cannot mount a filesystem here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def until_full(campaign, context):
    for _ in range(1000):
        campaign.tell({"a": 0.5}, 0.9, context=context)


def full_disk(path, fill, free):
    """A run on a disk that fills up: `tell` fails and says so, and succeeds once there is space."""
    with Store.open(path) as store:
        campaign = Campaign.create(store, "r", optimizer())
        pending = campaign.ask()
        campaign.start(pending.trial.id)
        value = plant(pending.trial.params)
        fill()
        context = {"note": "x" * 15000}
        with pytest.raises(StorageError, match=r"disk.* NOT STORED: 0\.9 at"):
            until_full(campaign, context)
        with pytest.raises(StorageError, match=r"(Make space|Check its disk).*Nothing was stored\. NOT STORED: .* tell it again"):
            campaign.tell(pending.trial.id, value, context=context)
        assert campaign.ledger.state == campaign.optimizer.state  # reading works
        assert campaign.ledger.pending.trial == pending.trial
        stored = campaign.ledger.state.to_json()
        free()
        campaign.tell(pending.trial.id, value, context=context)
        assert campaign.ledger.state == campaign.optimizer.state
        assert campaign.ledger.state.to_json() != stored and campaign.ledger.pending is None
        following = campaign.ask().trial
    with Store.open(path, create=False) as again:
        assert Campaign.open(again, "r").ledger.trial == following
        assert certificate(SafeOptimizer.from_json(Follower(again, "r").ledger.state.to_json()).ask()) == certificate(following)


def test_a_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted(disk, "-t", "tmpfs", "-o", "size=600k", "tmpfs"):

        def fill():
            with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
                for _ in range(1000):
                    file.write(bytes(4096))
            with (disk / "ballast").open("r+b") as file:
                file.truncate((disk / "ballast").stat().st_size - 40_000)

        full_disk(disk / "safebo.db", fill, (disk / "ballast").unlink)


def test_a_file_that_may_not_grow(tmp_path):
    """A quota; needs no rights."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        full_disk(
            tmp_path / "safebo.db",
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, before[1])),
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before),
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_that_is_full_from_the_start(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted(disk, "-t", "tmpfs", "-o", "size=8k", "tmpfs"):
        with pytest.raises(StorageError, match=r"Make space|Check its disk"):
            Store.open(disk / "safebo.db")
        subprocess.run(["mount", "-o", "remount,size=2m", str(disk)], check=True)
        with Store.open(disk / "safebo.db") as store:
            Campaign.create(store, "r", optimizer())


def made(path):
    with Store.open(path) as store:
        campaign = Campaign.create(store, "r", optimizer())
        campaign.tell({"a": 0.6}, plant({"a": 0.6}))
        return certificate(SafeOptimizer.from_json(campaign.ledger.state.to_json()).ask())


def read_only(path, expected):
    """Writing fails clearly, and everything can be read."""
    before = path.read_bytes()
    with pytest.raises(StorageError, match=r"mounted read-only"), Store.open(path, create=False) as store:
        store.append("r", 2, [Event("paused")])
    with pytest.raises(StorageError, match=r"mounted read-only"):
        SafeOptimizer.load(str(path), "r").ask()
    with Store.open(path, read_only=True) as store:
        assert store.names() == ["r"] and [e.kind for e in store.events("r")] == ["created", "told"]
        assert certificate(Follower(store, "r").optimizer().ask()) == expected
        with pytest.raises(StorageError, match=r"readonly|read-only"):
            store.append("r", 2, [Event("paused")])
    assert path.read_bytes() == before


def test_a_read_only_filesystem(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    expected = made(disk / "safebo.db")
    with mounted(disk, "--bind", str(disk)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(disk)], check=True)
        read_only(disk / "safebo.db", expected)
        with pytest.raises(StorageError, match="mounted read-only"):
            Store.open(disk / "new.db")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_rights(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    expected = made(disk / "safebo.db")
    (disk / "safebo.db").chmod(0o444)
    disk.chmod(0o555)
    try:
        read_only(disk / "safebo.db", expected)
    finally:
        disk.chmod(0o755)


def test_a_file_that_nobody_may_change(tmp_path):
    expected = made(tmp_path / "safebo.db")
    done = subprocess.run(["chattr", "+i", str(tmp_path / "safebo.db")], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"Cannot make a file immutable here: {done.stderr.strip()}")
    try:
        read_only(tmp_path / "safebo.db", expected)
    finally:
        subprocess.run(["chattr", "-i", str(tmp_path / "safebo.db")], check=True)


def test_reading_only_writes_nothing_and_follows_a_writer(database_url, tmp_path):
    with Store.open(database_url) as store:
        campaign = Campaign.create(store, "r", optimizer())
        with Store.open(database_url, read_only=True) as reader:
            follower = Follower(reader, "r")
            campaign.pause()
            assert follower.ledger.status == "paused"
            with pytest.raises(StorageError, match=r"readonly|read-only"):
                Campaign.open(reader, "r").resume()
        campaign.resume()
    if not database_url.startswith("sqlite"):
        return
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(tmp_path / "safebo.db", copy / "safebo.db")
    with Store.open(copy / "safebo.db", read_only=True) as reader:
        assert reader.last("r") == 3
    with pytest.raises(StorageError, match="There is no database"):
        Store.open(copy / "none.db", read_only=True)


def test_a_copy_with_its_log_on_a_read_only_disk_is_not_read_halfway(tmp_path):
    """Copied while a program wrote: half of the run is in the log. Reading without it would show an old state."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with Store.open(tmp_path / "safebo.db") as store:
        campaign = Campaign.create(store, "r", optimizer())
        campaign.pause()
        for name in ("safebo.db", "safebo.db-wal"):
            shutil.copy(tmp_path / name, disk / name)
    with mounted(disk, "--bind", str(disk)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(disk)], check=True)
        with pytest.raises(StorageError, match="mounted read-only"):
            Store.open(disk / "safebo.db", read_only=True)
    with Store.open(disk / "safebo.db", read_only=True) as store:
        assert store.last("r") == 2
