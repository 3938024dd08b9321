"""What commands and documents say: true, and in the words of people."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

BEST = "the best measured inside all limits, or certified ones that are surely better"


def test_what_best_means_is_said_alike_everywhere(folder):
    pytest.importorskip("fastapi")
    from safebo.server import app, models

    texts = [
        " ".join(folder("best", "--help").stdout.replace("│", " ").split()),
        *((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("command-line.md", "server.md")),
        Path(app.__file__).read_text(encoding="utf-8"),
        str(models.BestAnswer.__doc__),
    ]
    for text in texts:
        assert BEST in text and "largest certified lower bound" not in text
