"""`safebo serve` as a program of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.server.conftest import LINE, OPERATOR, VIEWER


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "safebo.cli", "serve", *arguments]


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SAFEBO_")}


@pytest.mark.parametrize(
    ("arguments", "environment", "what"),
    [
        (("--host", "0.0.0.0"), {}, "needs a token"),
        (("--token-file", "none"), {}, "cannot be read"),
        ((), {"SAFEBO_VIEWER_TOKEN": "short"}, "at least 16"),
        (("--certificate", "cert.pem"), {}, "both a certificate"),
    ],
)
def test_it_does_not_start(tmp_path: Path, arguments: tuple[str, ...], environment: dict[str, str], what: str) -> None:
    done = subprocess.run(
        command("runs.db", *arguments), cwd=tmp_path, env={**clean(), **environment}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and what in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("empty", [False, True])
def test_it_serves_until_it_is_told_to_stop(tmp_path: Path, empty: bool) -> None:
    if empty:
        (tmp_path / "runs.db").touch()  # a file without anything in it, and none at all, are both databases without a run
    tokens = tmp_path / "tokens"
    tokens.write_text(f"olga operator {OPERATOR}\nvera viewer {VIEWER}\n")
    tokens.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = ("runs.db", "--port", str(port), "--token-file", str(tokens))
    server = subprocess.Popen(command(*arguments), cwd=tmp_path, env=clean(), stderr=subprocess.PIPE, text=True)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60.0) as client:
            for _ in range(600):
                try:
                    assert "safebo" in client.get("/").text
                    break
                except httpx.ConnectError:
                    time.sleep(0.1)
            client.headers["authorization"] = f"Bearer {OPERATOR}"
            assert client.post("/api/v1/runs", json=LINE).status_code == 201
            assert client.get("/api/v1/runs").json()["you"] == "olga"
            assert client.post("/api/v1/runs/line/ask").json()["ready"]
            second = client.post("/api/v1/runs", json={**LINE, "name": "second", "min_width": 0.001})
            assert any("min_width 0.001" in text for text in second.json()["warnings"])
    finally:
        server.send_signal(signal.SIGTERM)
        _, said = server.communicate(timeout=60)
    assert OPERATOR not in said and VIEWER not in said
    assert "min_width" not in said  # whoever created the run has the warning, with the run's name
    assert "There is no run in runs.db yet: `safebo init` writes" in said and "safebo run --db runs.db" in said
    assert (tmp_path / "runs.db").exists()


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("no key")
    for certificate, said in (("cert.pem", "No such file or directory: cert.pem."), ("key.pem", "are not a certificate and its")):
        arguments = command("runs.db", "--port", "0", "--certificate", certificate, "--private-key", "key.pem")
        found = subprocess.run(arguments, cwd=tmp_path, env=clean(), capture_output=True, text=True, timeout=60.0)
        assert found.returncode in (1, 2) and said in found.stderr and "Traceback" not in found.stderr
