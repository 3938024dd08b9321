"""A server of its own for each test: real sockets, real threads, a real database."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from safebo.runs import Store
from safebo.server import Limits, Token, Tokens
from safebo.server.main import server_of

OPERATOR, RIG, VIEWER = "operator-secret-000000", "rig-secret-00000000000", "viewer-secret-00000000"

LINE: dict[str, Any] = {
    "name": "line",
    "parameters": {"kp": {"low": 0.0, "high": 5.0, "unit": "V"}},
    "threshold": 0.0,
    "kernel": {"lengthscale": 0.3},
    "norm": {"type": "fixed", "value": 5.0},
    "points_per_axis": 50,
    "initial": {"params": {"kp": 2.0}, "objective": 0.8},
}


def truth(params: dict[str, float]) -> float:
    return 1.0 - 0.2 * (params["kp"] - 2.5) ** 2


class Served:
    """A running server and clients of it."""

    def __init__(self, store: Store, url: str, server: uvicorn.Server) -> None:
        self.store, self.url, self.server = store, url, server
        self.operator, self.viewer, self.stranger = self.client(OPERATOR), self.client(VIEWER), self.client(None)
        self.rig = self.client(RIG)

    def client(self, token: str | None) -> httpx.Client:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=60.0, trust_env=False)

    def create(self, **changes: Any) -> str:
        answer = self.operator.post("/runs", json={**LINE, **changes})
        assert answer.status_code == 201, answer.text
        return f"/runs/{answer.json()['name']}"

    def close(self) -> None:
        for client in (self.operator, self.rig, self.viewer, self.stranger):
            client.close()


@contextlib.contextmanager
def serving(store: Store, tokens: Tokens | None, limits: Limits) -> Iterator[Served]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = server_of(store, tokens, limits=limits, local="local", log_level="warning", timeout_graceful_shutdown=1)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    served = Served(store, f"http://127.0.0.1:{listening.getsockname()[1]}", server)
    try:
        yield served
    finally:
        served.close()
        server.should_exit = True
        thread.join()
        listening.close()


def tokens() -> Tokens:
    known = ("olga", "operator", OPERATOR), ("rig-2", "rig", RIG), ("vera", "viewer", VIEWER)
    return Tokens(Token.of(*one) for one in known)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Store.open(tmp_path / "runs.db"))

        def start(known: Tokens | None = None, limits: Limits | None = None) -> Served:
            return stack.enter_context(serving(store, tokens() if known is None else known, limits or Limits(rate=0.0)))

        yield start


@pytest.fixture
def served(start: Callable[..., Served]) -> Served:
    return start()
