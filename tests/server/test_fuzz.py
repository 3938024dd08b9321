from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fuzz import Fuzzer

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("default::safebo.exceptions.SafeboWarning"),
]


def test_nothing_that_is_sent_breaks_the_server(tmp_path: Path) -> None:
    fuzzer = Fuzzer(tmp_path, number=1)
    try:
        fuzzer.run(500, each=2)
        summary = fuzzer.summary()
    finally:
        fuzzer.close()
    assert summary["server errors"] == 0 and summary["requests"] >= 500
    assert {"200", "401", "403", "409", "422"} <= set(summary["by status"])
    assert set(fuzzer.endpoints) == {f"{o.method.upper()} {o.path}" for o in fuzzer.operations}
