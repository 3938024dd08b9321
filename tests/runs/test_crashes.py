"""Quick versions of the studies with kill -9 and power cuts, `benchmarks.crashes` and `benchmarks.powercut`."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import crashes, postgres, powercut
from safebo.runs import Campaign, Event, Store
from tests.runs.common import optimizer
from tests.runs.conftest import missing

ROOT = Path(__file__).parents[2]


def study(name, out, *arguments):
    """Run it in a program of its own and read what it wrote."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", f"benchmarks.{name}", "--out", str(out), *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((out / "summary.json").read_text())


def test_kills_lose_double_and_change_nothing_in_sqlite(tmp_path):
    found = study("crashes", tmp_path, "--kills", "12", "--server-crashes", "0", "--databases", "sqlite")
    assert found["faults"] == {"lost": 0, "duplicated": 0, "differing": 0} and found["kills"]["sqlite"] >= 12


@pytest.mark.usefixtures("server")  # says what is missing
def test_kills_lose_double_and_change_nothing_in_postgresql(tmp_path):
    found = study("crashes", tmp_path, "--kills", "8", "--server-crashes", "1", "--databases", "postgresql")
    assert found["faults"] == {"lost": 0, "duplicated": 0, "differing": 0} and found["kills"]["postgresql"] >= 8
    assert found["kills"]["postgresql server"] >= 1


def test_power_cuts_lose_nothing(tmp_path):
    if shutil.which("strace") is None:
        postgres.install("strace")
    if shutil.which("strace") is None:
        missing(powercut.HELP)
    found = study("powercut", tmp_path, "--cuts", "25", "--events", "40")
    assert found["durable"]["acknowledged"] >= 40 and found["durable"]["acknowledged_before_a_sync"] == 0
    assert found["durable"]["cuts_that_lost_an_acknowledged_event"] == found["durable"]["cuts_that_damaged_the_database"] == 0
    assert found["without_syncs"]["acknowledged_before_a_sync"] > 0  # the cuts bite


def test_the_study_notices_what_it_looks_for(tmp_path):
    log = crashes.Log(tmp_path / "acknowledged.jsonl")
    log.write("told", "1-a", 0.5)
    log.write("told", "2-b", None)
    crashes.Log(tmp_path / "plant.jsonl").write("end", "1-a", 0.5)
    good = {
        "state": "s",
        "asked": [{"id": "1-a"}, {"id": "2-b"}],
        "told": [("1-a", [0.5])],
        "aborted": ["2-b"],
        "next": [1, 1, 1],
    }

    def faults(**changes):
        return crashes.compare({**copy.deepcopy(good), **changes}, good, tmp_path)

    assert faults() == {"lost": 0, "duplicated": 0, "differing": 0}
    assert faults(told=[])["lost"] == 1 and faults(aborted=[])["lost"] == 1 and faults(told=[("1-a", [0.4])])["lost"] == 1
    assert faults(told=[("1-a", [0.5])] * 2)["duplicated"] == 1 and faults(asked=[{"id": "1-a"}] * 2)["duplicated"] == 1
    assert faults(told=[("1-a", [0.5]), (None, [1.0])])["duplicated"] == 1
    assert faults(state="t")["differing"] == 1 and faults(next=[1, 1, 2])["differing"] == 1
    assert faults(asked=[{"id": "1-a"}])["differing"] == 1
    crashes.Log(tmp_path / "plant.jsonl").write("end", "1-a", 0.5)
    assert faults()["duplicated"] == 1  # executed twice


HOLDS = """
import sys, time
from safebo.runs import Event, Store
with Store.open(sys.argv[1]) as store, store._writing() as connection:
    store._insert(connection, store._head(connection, "r", lock=True), [Event("paused")])
    print("holding", flush=True)
    time.sleep(600)
"""


def test_a_killed_writer_leaves_no_lock_behind(database_url):
    with Store.open(database_url) as store:
        store.create("r", [Event("created")])
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "-c", HOLDS, database_url]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout.readline() == "holding\n"
                assert [e.kind for e in store.events("r")] == ["created"]
            finally:
                process.send_signal(signal.SIGKILL)
        start = time.monotonic()
        store.append("r", 1, [Event("stopped")])
        assert time.monotonic() - start < 10.0
        assert [e.kind for e in store.events("r")] == ["created", "stopped"]


def test_a_crash_of_the_server_is_survived_by_a_campaign_in_memory(server):
    """The very same object goes on; what had been acknowledged is there."""
    with Store.open(server.schema()) as store:
        campaign = Campaign.create(store, "r", optimizer())
        for i, sent in enumerate([signal.SIGQUIT, signal.SIGKILL]):
            campaign.tell({"a": 0.5 + 0.01 * i}, 0.9)
            server.crash(sent)
            server.start()
            assert len(campaign.ledger.samples) == i + 2
            campaign.abort({"a": 0.1 * i}, "the lights went out")
        assert campaign.ledger.state == campaign.optimizer.state
        assert len(campaign.ledger.aborts) == 2
