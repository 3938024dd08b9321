"""Many connections, slow clients, many who look: those who act are served all the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fastapi import HTTPException

from safebo.exceptions import InvalidValueError
from safebo.runs import Campaign, Store
from safebo.server import Limits
from safebo.server.desk import Desk
from safebo.server.looking import Apart, Looking, answer
from safebo.server.models import NewRun
from safebo.server.record import BATCH, Record
from tests.server.conftest import LINE, OPERATOR, VIEWER, Served

pytestmark = pytest.mark.filterwarnings("default::safebo.exceptions.SafeboWarning")

HEAD = f"POST /api/v1/runs/line/stop HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {OPERATOR}\r\n"


def connected(served: Served, buffer: int = 0) -> socket.socket:
    place = urlsplit(served.url)
    raw = socket.socket()
    if buffer:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    raw.connect((place.hostname, place.port))
    raw.settimeout(30.0)
    return raw


def closed(raw: socket.socket) -> bytes:
    """What comes until the other end closes."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := raw.recv(65536):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    "begun",
    [
        "",
        "GET / HTTP/1.1\r\nhost: loc",
        f"{HEAD}content-type: application/json\r\ncontent-length: 100\r\n\r\n{{",
        f"{HEAD}content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{{\r\n",
    ],
)
def test_whoever_sends_a_byte_now_and_then_is_dropped(start, begun: str) -> None:
    served = start(limits=Limits(rate=0.0, patience=1.0))
    served.create()
    with connected(served) as raw:
        raw.sendall(begun.encode())
        alive = threading.Event()

        def dribble() -> None:
            with contextlib.suppress(OSError):
                while not alive.wait(0.2):
                    raw.sendall(b"x" if "chunked" not in begun else b"1\r\n \r\n")

        threading.Thread(target=dribble, daemon=True).start()
        begin = time.monotonic()
        said = closed(raw)
        alive.set()
    assert time.monotonic() - begin < 15.0
    assert not said or b"408" in said.partition(b"\r\n")[0]
    assert served.operator.post("/runs/line/pause").status_code == 200


def test_a_second_request_on_a_connection_has_its_deadline_too(start) -> None:
    served = start(limits=Limits(rate=0.0, patience=1.0))
    with connected(served) as raw:
        raw.sendall(b"GET /icon.svg HTTP/1.1\r\nhost: localhost\r\n\r\nGET /icon")
        assert b" 200 " in raw.recv(100)
        assert b" 408 " in closed(raw)


def test_whoever_does_not_read_is_dropped(start) -> None:
    served = start(limits=Limits(rate=0.0, patience=1.0))
    served.create()
    notes = [({"kp": 2.0}, 0.8, None, {"note": "x" * 19_000}) for _ in range(600)]
    Campaign.open(served.store, "line").tell_many(notes)
    with connected(served, 4096) as raw:
        raw.sendall(f"GET /api/v1/runs/line/export HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {VIEWER}\r\n\r\n".encode())
        register = served.server.config.loaded_app.state.connections
        deadline = time.monotonic() + 30.0
        while len(register) != 1 and time.monotonic() < deadline:
            time.sleep(0.1)  # not before the server has begun with it
        while len(register) > 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(register) <= 1  # the client that created the run


def test_idle_connections_keep_nobody_from_stopping(start) -> None:
    served = start(limits=Limits(rate=0.0, connections=40))
    run = served.create()
    assert served.viewer.get(run).status_code == 200  # a connection that is known
    idle = [connected(served) for _ in range(120)]
    try:
        assert served.stranger.get("/runs").status_code == 401
        with served.client(OPERATOR) as fresh:
            assert fresh.post(f"{run}/stop").status_code == 200
        assert served.viewer.get(run).json()["status"] == "stopped"
        register = served.server.config.loaded_app.state.connections
        assert len(register) <= 40 and register.closed >= 80
    finally:
        for raw in idle:
            raw.close()


def test_one_caller_leaves_streams_to_others(start) -> None:
    served = start(limits=Limits(rate=0.0, streams_each=2))
    run = served.create()
    with contextlib.ExitStack() as stack:
        following = [stack.enter_context(served.viewer.stream("GET", f"{run}/events/stream")).iter_raw() for _ in range(2)]
        assert all(next(chunks) for chunks in following)
        refused = served.viewer.get(f"{run}/events/stream?seconds=0")
        assert refused.status_code == 429 and "close some" in refused.json()["detail"]
        assert served.operator.get(f"{run}/events/stream?seconds=0").status_code == 200


def test_one_caller_leaves_computations_to_others(start) -> None:
    served = start(limits=Limits(rate=0.0, waiting_each=1))
    run = served.create()
    served.operator.get(f"{run}/best")
    found: list[int] = []

    def look(points: int) -> None:
        with served.client(VIEWER) as client:
            found.append(client.get(f"{run}/slice", params={"x": "kp", "points": points}).status_code)

    looks = [threading.Thread(target=look, args=(200 + i,)) for i in range(12)]
    for one in looks:
        one.start()
    assert served.operator.get(f"{run}/slice", params={"x": "kp", "points": 50}).status_code == 200
    for one in looks:
        one.join()
    assert set(found) <= {200, 429} and 200 in found


# -- looking -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "runs.db") as store:
        optimizer, config = NewRun(**LINE).build()
        Campaign.create(store, "line", optimizer, config=config)
        yield store


SLICE = ("slice", ("kp",), (), None, 21)


def test_what_many_ask_for_is_computed_once_per_state(store: Store) -> None:
    desk, asked = Desk(store), []

    def counting(name: str, question: tuple) -> bytes:
        asked.append(question)
        time.sleep(0.05)
        return answer(desk, name, question)

    async def crowd() -> list[bytes]:
        ledger = desk.run("line").ledger
        return await asyncio.gather(*(looking.ask(ledger, SLICE, f"viewer {i}") for i in range(60)))

    looking = Looking(counting, Limits())
    first = asyncio.run(crowd())
    assert len(asked) == 1 and set(first) == {first[0]}
    assert asyncio.run(crowd())[0] == first[0] and len(asked) == 1
    Campaign.open(store, "line").pause()  # nothing that was measured has changed
    asyncio.run(crowd())
    assert len(asked) == 1
    Campaign.open(store, "line").tell({"kp": 2.2}, 0.9)
    assert asyncio.run(crowd())[0] != first[0] and len(asked) == 2
    looking.close()


def test_a_process_of_its_own_says_the_same_and_is_replaced_when_it_ends(store: Store, tmp_path: Path) -> None:
    desk, apart = Desk(store), Apart(str(tmp_path / "runs.db"))
    try:
        for question in (SLICE, ("best",), ("norms",)):
            assert apart("line", question) == answer(desk, "line", question)
        with pytest.raises(InvalidValueError, match="Unknown output 'none'"):
            apart("line", ("slice", ("kp",), (), "none", 21))
        assert apart._process is not None
        apart._process.kill()
        assert json.loads(apart("line", SLICE))["measurements"] == 1
    finally:
        apart.close()
    broken = Apart(str(tmp_path / "none" / "runs.db"))
    with pytest.raises(HTTPException, match="503"):
        broken("line", SLICE)
    broken.close()


@pytest.mark.skipif(os.name == "nt", reason="no SIGSTOP")
def test_a_server_that_ends_waits_for_no_computation(store: Store, tmp_path: Path) -> None:
    apart = Apart(str(tmp_path / "runs.db"))
    apart("line", SLICE)
    process, begun = apart._process, threading.Event()
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)  # it computes and computes
    said: list[Exception] = []

    def look() -> None:
        begun.set()
        try:
            apart("line", ("best",))
        except HTTPException as error:
            said.append(error)

    looking = threading.Thread(target=look)
    looking.start()
    begun.wait()
    time.sleep(0.2)
    apart.close()
    looking.join(20.0)
    assert not looking.is_alive() and "being stopped" in str(said[0].detail)
    assert process.poll() is not None and apart._process is None  # no other one was started


def test_a_record_is_sent_in_batches_and_read_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign, record = Campaign.open(store, "line"), Record(store, "line")
    campaign.tell_many([({"kp": 2.0}, 0.8)] * 800)
    assert record.update() == 801
    read: list[int] = []
    events = store.events
    monkeypatch.setattr(store, "events", lambda name, after=0, digest="": read.append(after) or events(name, after, digest))
    assert record.update() == 801 and read == [801]
    sent, last, batches = b"", 0, 0
    while last < record.last:
        content, last = record.batch(last)
        sent, batches = sent + content, batches + 1
    assert 1 < batches <= len(sent) // BATCH + 1
    assert [json.loads(line[6:])["seq"] for line in sent.decode().splitlines() if line.startswith("data: ")] == [*range(1, 802)]
    assert json.loads(record.events(398, 2)) == json.loads(record.events())[398:400]
