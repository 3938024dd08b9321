from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from safebo.exceptions import InvalidValueError
from safebo.server import Limits, Token, Tokens
from safebo.server.auth import is_loopback
from safebo.server.limits import Buckets
from safebo.server.main import check_address
from tests.server.conftest import LINE, OPERATOR, RIG, VIEWER, Served, truth

pytestmark = pytest.mark.filterwarnings("default::safebo.exceptions.SafeboWarning")

POSTS = ("ask", "tell", "abort", "abandon", "retry", "approve", "reject", "pause", "resume", "stop")
GETS = ("", "/samples", "/best", "/events", "/events/stream?seconds=0", "/slice?x=kp", "/norms", "/export")


def test_no_token_nothing(start) -> None:
    served = start(limits=Limits(rate=0.0, failures=1000))
    run = served.create()
    for path in ("/runs", "/openapi.json", "/none", *(run + g for g in GETS)):
        for headers in ({}, {"authorization": "Bearer nonsense"}, {"authorization": f"Basic {OPERATOR}"}):
            answer = served.stranger.get(path, headers=headers)
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert served.stranger.post("/runs", content="{").status_code == 401
    assert served.store.last("line") == 1


def test_every_endpoint_needs_a_token(served: Served) -> None:
    paths = served.viewer.get("/openapi.json").json()["paths"]
    served.create()
    for path, methods in paths.items():
        for method in methods:
            url = path.removeprefix("/api/v1").replace("{name}", "line")
            assert served.stranger.request(method, url).status_code == 401, path
    assert len(paths) == 20 and served.store.last("line") == 1


def test_a_viewer_changes_nothing(served: Served) -> None:
    run = served.create()
    assert served.viewer.post("/runs", json={**LINE, "name": "other"}).status_code == 403
    for verb in POSTS:
        answer = served.viewer.post(f"{run}/{verb}", json={"trial": "x", "objective": 1.0, "reason": "r"})
        assert answer.status_code == 403 and "viewer" in answer.json()["detail"]
    for method in ("PUT", "DELETE", "PATCH"):
        assert served.viewer.request(method, run).status_code == 403
        assert served.operator.request(method, run).status_code == 405
    assert served.store.last("line") == 1 and served.store.names() == ["line"]
    for path in GETS:
        assert served.viewer.get(run + path).status_code == 200
    assert served.store.last("line") == 1


def test_a_rig_runs_its_loop_and_may_halt_but_consents_to_nothing(served: Served) -> None:
    run = served.create(confirm=True)
    assert served.rig.get(run).json()["role"] == "rig"
    trial = served.rig.post(f"{run}/ask").json()["trial"]
    before = served.store.last("line")
    for verb in ("approve", "reject", "abandon", "retry", "resume", "void", "configure"):
        answer = served.rig.post(f"{run}/{verb}", json={"trial": trial["id"], "reason": "r"})
        assert answer.status_code == 403 and "is a rig and may look, ask, tell" in answer.json()["detail"], verb
    refused = [
        served.rig.post("/runs", json={**LINE, "name": "other"}),
        served.rig.post(f"{run}/%61pprove", json={"trial": trial["id"]}),
        served.rig.post("/runs/approve/ask/approve", json={"trial": trial["id"]}),
        *(served.rig.request(method, f"{run}/ask") for method in ("PUT", "DELETE", "PATCH")),
    ]
    assert [a.status_code for a in refused] == [403] * 6
    assert served.store.last("line") == before and served.store.names() == ["line"]
    served.operator.post(f"{run}/approve", json={"trial": trial["id"]})
    assert served.rig.post(f"{run}/ask").json()["ready"]
    told = served.rig.post(f"{run}/tell", json={"trial": trial["id"], "objective": truth(trial["params"])})
    assert told.status_code == 200
    away = served.rig.post(f"{run}/abort", json={"params": {"kp": 4.9}, "reason": "the cable was loose"})
    assert away.status_code == 200
    assert served.rig.post(f"{run}/pause").status_code == 200 and served.rig.post(f"{run}/stop").status_code == 200
    assert {e.who for e in served.store.events("line") if e.kind in ("asked", "told", "aborted", "stopped")} == {"rig-2"}


def test_strange_headers_are_refused_in_words(start) -> None:
    strange = (
        "http://[::1",
        "http://[",
        "http://[::1]:x",
        "//",
        "http://[v1.x]",
        "http://a]b",
        "\u00ff",
        "null",
        "http://\u2100",
    )
    for served in (start(Tokens()), start()):
        for name in ("host", "origin", "sec-fetch-site", "authorization", "content-type", "last-event-id", "idempotency-key"):
            for value in strange:
                headers = {"authorization": f"Bearer {VIEWER}", name: value.encode("utf-8")}
                for method in ("GET", "POST"):
                    answer = served.stranger.request(method, "/runs", headers=headers)
                    assert answer.status_code < 500, (name, value, answer.text)
        with contextlib.closing(socket.create_connection((urlsplit(served.url).hostname, urlsplit(served.url).port))) as raw:
            raw.sendall(b"POST /api/v1/runs HTTP/1.1\r\nhost: localhost\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n")
            raw.settimeout(5)
            assert raw.recv(100).startswith(b"HTTP/1.1 4")


def test_large_bodies_are_not_read(served: Served) -> None:
    run = served.create()
    assert served.operator.post(f"{run}/tell", json={"objective": 1, "context": {"a": "x" * 300_000}}).status_code == 413

    def chunks():
        for _ in range(100):
            yield b" " * 10_000

    headers = {"content-type": "application/json"}
    assert served.operator.post(f"{run}/tell", content=chunks(), headers=headers).status_code == 413
    place = urlsplit(served.url)
    with socket.create_connection((place.hostname, place.port)) as raw:  # announced, never sent: answered at once
        head = f"POST /api/v1/runs HTTP/1.1\r\nhost: {place.netloc}\r\nauthorization: Bearer {OPERATOR}\r\n"
        raw.sendall(f"{head}content-type: application/json\r\ncontent-length: 1000000000\r\n\r\n".encode())
        raw.settimeout(5)
        assert raw.recv(100).startswith(b"HTTP/1.1 413")
    assert served.store.last("line") == 1


def test_only_json_is_read(served: Served) -> None:
    run = served.create()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/python-pickle"):
        assert served.operator.post(f"{run}/pause", content=b"{}", headers={"content-type": kind}).status_code == 415
    assert served.store.last("line") == 1


def test_too_many_requests_are_told_to_wait_and_stopping_still_works(start) -> None:
    served = start(limits=Limits(rate=5.0, burst=10))
    run = served.create()
    statuses = [served.viewer.get(run).status_code for _ in range(18)]
    assert statuses[:10] == [200] * 10 and 429 in statuses
    refused = next(a for a in iter(lambda: served.viewer.get(run), None) if a.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert served.operator.post(f"{run}/stop").status_code == 200  # another caller, and another bucket


def test_wrong_tokens_are_limited(start) -> None:
    served = start(limits=Limits(rate=0.0, failures=3))
    statuses = [served.stranger.get("/runs", headers={"authorization": "Bearer wrong"}).status_code for _ in range(6)]
    assert statuses == [401, 401, 401, 429, 429, 429]
    assert served.viewer.get("/runs").status_code == 200  # who has a token is not affected


def test_an_open_local_server_refuses_pages_of_other_sites(start) -> None:
    served = start(Tokens())
    place = urlsplit(served.url).netloc
    assert served.stranger.get("/runs").json() == {"runs": [], "you": "local", "role": "operator"}
    for headers in (
        {"host": "evil.example"},
        {"host": f"127.0.0.1.evil.example:{urlsplit(served.url).port}"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        assert served.stranger.get("/runs", headers=headers).status_code == 403, headers
        assert served.stranger.post("/runs", json=LINE, headers=headers).status_code == 403, headers
    assert served.store.names() == []
    own = {"origin": f"http://{place}", "sec-fetch-site": "same-origin"}
    assert served.stranger.post("/runs", json=LINE, headers=own).status_code == 201


def test_headers_that_protect_the_page(served: Served) -> None:
    for path in ("/", "/app.js", "/api/v1/runs", "/none"):
        headers = served.stranger.get(f"{served.url}{path}").headers
        assert "default-src 'none'" in headers["content-security-policy"] and "unsafe" not in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY" and headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers or "uvicorn" in headers["server"]


def test_no_answer_says_where_the_database_is(served: Served) -> None:
    run = served.create()
    answers = [served.viewer.get("/runs/none"), served.operator.post("/runs", json=LINE), served.viewer.get(f"{run}/export")]
    assert [a.status_code for a in answers] == [404, 409, 200]
    assert all("runs.db" not in a.text for a in answers)


def test_only_the_files_of_the_page_are_served(served: Served) -> None:
    for path in ("/static/../app.py", "/..%2fapp.py", "/app.py", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/static/app.js"):
        assert served.stranger.get(f"{served.url}{path}").status_code == 404
    assert served.stranger.get(f"{served.url}/").headers["content-type"].startswith("text/html")


def test_without_a_token_only_this_computer_is_served() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "rig.lab"):
        with pytest.raises(InvalidValueError, match="needs a token"):
            check_address(host, Tokens())
        check_address(host, Tokens([Token.of("a", "viewer", VIEWER)]))
    for host in ("127.0.0.1", "localhost", "::1"):
        check_address(host, Tokens())
        assert is_loopback(host)


def test_token_files(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# who may do what\n\nolga operator {OPERATOR}\nvera viewer {VIEWER}\n")
    if os.name == "posix":
        path.chmod(0o644)
        with pytest.raises(InvalidValueError, match="chmod 600"):
            Tokens.read(path)
    path.chmod(0o600)
    tokens = Tokens.read(path)
    assert len(tokens) == 2 and OPERATOR not in repr(vars(tokens))
    olga, vera = tokens.caller(OPERATOR), tokens.caller(VIEWER)
    assert olga is not None and olga.name == "olga" and olga.may("resume") and vera is not None and not vera.may("stop")
    assert tokens.caller("") is None and tokens.caller(OPERATOR + "x") is None
    for text, what in (
        ("olga operator", "2 words"),
        (f"olga admin {OPERATOR}", "viewer, rig, operator"),
        ("olga operator short", "at least 16"),
        (f"olga operator {OPERATOR}\nolga viewer {VIEWER}", "Two tokens are called"),
        (f"olga operator {OPERATOR}\nvera viewer {OPERATOR}", "are the same"),
        ("", "holds no token"),
    ):
        path.write_text(text)
        with pytest.raises(InvalidValueError, match=what) as caught:
            Tokens.read(path)
        assert OPERATOR not in str(caught.value)
    with pytest.raises(InvalidValueError, match="cannot be read"):
        Tokens.read(tmp_path / "none")
    assert len(Tokens.from_environment({"SAFEBO_VIEWER_TOKEN": VIEWER})) == 1 and not Tokens.from_environment({})
    rig = Tokens.from_environment({"SAFEBO_RIG_TOKEN": RIG}).caller(RIG)
    assert rig is not None and (rig.name, rig.role) == ("rig", "rig")


def test_buckets_refill() -> None:
    now = [0.0]
    buckets = Buckets(2.0, 3, clock=lambda: now[0], keys=2)
    assert [buckets.spend("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    now[0] = 0.5
    assert buckets.spend("a") == 0.0 and buckets.spend("a") == 0.5
    for key in "bcd":
        assert buckets.spend(key) == 0.0
    assert len(buckets._levels) == 2
