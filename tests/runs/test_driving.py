"""Who drives a run: one at a time, looked at without hindering anybody, and fenced off when it was silent for too long."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from safebo.exceptions import DriveLostError, DrivenError, StorageError
from safebo.runs import Campaign, Store
from safebo.runs import driving as module
from safebo.runs.driving import claim, driver, driving
from safebo.runs.operate import operate
from safebo.runs.plants import CallablePlant, Watchdog
from safebo.runs.schema import leases
from tests.runs.common import execute, optimizer
from tests.runs.test_operate import Rig, Someone

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(database_url):
    with Store.open(database_url) as opened:
        Campaign.create(opened, "r", optimizer())
        yield opened


def elsewhere(store, seconds, **changes):
    """As if a process of another computer had taken the run over for some seconds."""
    said = {"pid": 7, "host": "lab2", "since": "2026", "place": "another", "born": "1", **changes}
    with store._writing() as connection:
        values = {"holder": "x" * 32, "who": json.dumps(said), "fence": leases.c.fence + 1}
        connection.execute(sa.update(leases).values(**values, expires=module._clock(store) + seconds))


def test_one_holds_a_run_and_the_others_are_told_who(store, database_url):
    campaign = Campaign.open(store, "r")
    assert driver(store, "r") == ""
    with Store.open(database_url) as other, driving(campaign):
        said = f"process {os.getpid()} on "
        assert driver(other, "r").startswith(said)
        with pytest.raises(DrivenError, match=rf"driven by {said}.*in 1\d s at the latest"), driving(Campaign.open(other, "r")):
            raise AssertionError
        with driving(campaign):  # the same object once more
            pass
        assert driver(other, "r").startswith(said)
    assert driver(store, "r") == ""
    with driving(Campaign.open(store, "r")):
        assert execute(database_url, "SELECT fence FROM safebo_leases") == [(2,)]


def test_looking_hinders_nobody(store, database_url):
    over, seen = threading.Event(), []

    def look():
        with Store.open(database_url) as own:
            while not over.is_set():
                seen.append(driver(own, "r"))

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(25):
            with driving(Campaign.open(store, "r")):  # refused again and again when looking took the lock
                pass
    finally:
        over.set()
        for looker in lookers:
            looker.join()
    assert seen


def test_a_reader_sees_who_drives(tmp_path):
    """Also one who may not write: there is no file that it would have to open."""
    with Store.open(tmp_path / "x.db") as store:
        Campaign.create(store, "r", optimizer())
        with driving(Campaign.open(store, "r")), Store.open(tmp_path / "x.db", read_only=True) as reader:
            assert driver(reader, "r").startswith("process ")
    assert [path.name for path in tmp_path.iterdir()] == ["x.db"]


HOLDS = """
import sys, time
from safebo.runs import Campaign, Store
from safebo.runs.driving import driving
with Store.open(sys.argv[1]) as store, driving(Campaign.open(store, "r")):
    print("holding", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(store, database_url):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", HOLDS, database_url]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "holding\n"
        yield process
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the lease has to end first")
def test_a_dead_process_of_this_computer_holds_nothing(store, holder):
    with pytest.raises(DrivenError, match=f"process {holder.pid}"):
        claim(store, "r")
    holder.kill()
    holder.wait()
    assert driver(store, "r") == ""
    claim(store, "r").end()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is not known whether it lives")
def test_nobody_takes_a_run_from_a_process_of_this_computer_that_hangs(store, holder, database_url):
    holder.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    execute(database_url, "UPDATE safebo_leases SET expires = 0")
    with pytest.raises(DrivenError, match="still lives: end that process first"):
        claim(store, "r")
    assert f"process {holder.pid}" in driver(store, "r")


def test_a_lease_of_another_computer_ends_by_itself(store):
    elsewhere(store, 1.5)
    assert driver(store, "r") == "process 7 on lab2 since 2026"
    with pytest.raises(DrivenError, match=r"process 7 on lab2 .* in [12] s at the latest"):
        claim(store, "r")
    time.sleep(1.6)
    assert driver(store, "r") == ""
    claim(store, "r").end()


def test_a_number_that_was_given_to_another_process_is_not_that_process(store):
    elsewhere(store, 60.0, pid=os.getppid(), place=module._place(), born="1")
    if module._place():
        claim(store, "r").end()
    else:
        assert driver(store, "r")


def test_a_lease_is_renewed(store, monkeypatch):
    monkeypatch.setattr(module, "BEAT", 0.1)
    monkeypatch.setattr(module, "LEASE", 1.5)
    lease = claim(store, "r")
    time.sleep(2.0)
    try:
        with store._reading() as connection:
            assert module._held(connection, lease.run).left > 0.5
        assert lease.lost == ""
    finally:
        lease.end()


def test_whoever_was_silent_for_too_long_writes_no_more(store, database_url):
    campaign = Campaign.open(store, "r")
    with driving(campaign):
        trial = campaign.hand_out().trial
        elsewhere(store, 60.0)
        for work in (lambda: campaign.tell(trial.id, 0.7), lambda: campaign.tell({"a": 0.5}, 0.7, key="k")):
            with pytest.raises(DriveLostError, match=r"no longer driven by this process.*NOT STORED: 0\.7"):
                work()
        for work in (lambda: campaign.abort(trial.id, "x"), campaign.pause, lambda: campaign.retry(trial.id)):
            with pytest.raises(DriveLostError, match="Nothing was stored"):
                work()
    assert driver(store, "r") == "process 7 on lab2 since 2026"  # what ends is only one's own
    assert [e.kind for e in Campaign.open(store, "r").events()] == ["created", "asked", "started"]


def test_a_runner_that_was_fenced_off_stops_its_plant(store, monkeypatch):
    monkeypatch.setattr(module, "BEAT", 0.1)
    stopped = threading.Event()

    def run(params):
        elsewhere(store, 60.0)
        assert stopped.wait(20.0)
        return 0.25

    plant = Watchdog(CallablePlant(run, emergency_stop=stopped.set), timeout=30.0)
    with pytest.raises(DriveLostError, match=r"took the run over.*plant was stopped.*(0\.25|what became of it)"):
        operate(Campaign.open(store, "r"), plant, Someone())
    assert Campaign.open(store, "r").ledger.pending.out


def test_a_measurement_of_a_fenced_runner_is_shown(store):
    def run(params):
        elsewhere(store, 60.0)
        return 0.25

    rig = Rig(lambda n: run(n))
    with pytest.raises(DriveLostError, match=r"NOT STORED: 0\.25"):
        operate(Campaign.open(store, "r"), rig.plant(), Someone())
    assert rig.stops == 1


def test_a_runner_without_its_database_stops_its_plant(server, monkeypatch):
    monkeypatch.setattr(module, "SILENT", 1.5)
    monkeypatch.setattr(module, "BEAT", 0.2)
    stopped = threading.Event()

    def run(params):
        server.crash()
        assert stopped.wait(20.0)
        raise RuntimeError("the motor is off")

    with Store.open(server.schema()) as store:
        Campaign.create(store, "r", optimizer())
        plant = Watchdog(CallablePlant(run, emergency_stop=stopped.set), timeout=30.0)
        try:
            with pytest.raises(DriveLostError, match=r"has not answered for 2 s.*plant was stopped"):
                operate(Campaign.open(store, "r"), plant, Someone())
        finally:
            server.start()
        deadline = time.monotonic() + 30.0
        while driver(store, "r") and time.monotonic() < deadline:  # given up as soon as the database is back
            time.sleep(0.1)
        assert driver(store, "r") == ""


@pytest.mark.parametrize("loss", ["terminated", "restarted"])
def test_a_lost_connection_does_not_lose_the_run(server, loss):
    """The lock of a connection ended with it, and a second runner drove the same plant."""
    url = server.schema()
    with Store.open(url) as store, Store.open(url) as other:
        Campaign.create(store, "r", optimizer())
        with driving(Campaign.open(store, "r")):
            if loss == "restarted":
                server.crash(signal.SIGINT)
                server.start()
            else:
                server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            with pytest.raises((DrivenError, StorageError)) as caught:
                claim(other, "r")
            if isinstance(caught.value, StorageError):
                with pytest.raises(DrivenError, match="driven by process"):
                    claim(other, "r")
