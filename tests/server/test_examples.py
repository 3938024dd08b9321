from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.conftest import OPERATOR, Served

pytestmark = pytest.mark.filterwarnings("default::safebo.exceptions.SafeboWarning")

HERE = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("curl") is None and not os.environ.get("CI"), reason="needs curl")
def test_a_run_with_curl(served: Served) -> None:
    environment = {**os.environ, "SAFEBO_OPERATOR_TOKEN": OPERATOR, "RUN": "by curl".replace(" ", "-"), "no_proxy": "*"}
    script = HERE / "examples/http/experiment.sh"
    done = subprocess.run(["sh", str(script), served.url, "3"], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and all(re.match(rf"{i} {{\"kp\":", line) for i, line in enumerate(lines[:3], 1)), lines
    assert json.loads(lines[-1])["lower"] > 0.0
    assert [e.kind for e in served.store.events("by-curl")] == ["created"] + 3 * ["asked", "started", "told"]
    again = subprocess.run(["sh", str(script), served.url, "1"], env=environment, capture_output=True, text=True, timeout=60)
    assert again.returncode == 1 and "already" in again.stderr


def test_the_paths_in_the_documents_exist(served: Served) -> None:
    known = set(served.viewer.get("/openapi.json").json()["paths"])
    text = (HERE / "docs/server.md").read_text() + (HERE / "examples/http/experiment.m").read_text()
    for verb in re.findall(r"/runs/(?:\{name\}|rig-2|' run ')/([a-z]+)", text):
        assert f"/api/v1/runs/{{name}}/{verb}" in known, verb
    documented = set(re.findall(r"/runs/\{name\}/([a-z/]+)", text)) | set(re.findall(r"`/([a-z]+)`", text))
    assert {path.removeprefix("/api/v1/runs/{name}/") for path in known if path.count("/") > 4} <= documented
