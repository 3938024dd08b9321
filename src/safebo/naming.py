"""Names that do not match: which ones, and which ones were meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def unmatched(given: Iterable[object], known: Sequence[str]) -> str:
    """What is unknown and what is missing among given names, as "unknown ['kq'], missing ['kp']."; empty if they match."""
    names = list(given)
    unknown, missing = [n for n in names if n not in known], [n for n in known if n not in names]
    parts = [f"{word} {found}" for word, found in (("unknown", unknown), ("missing", missing)) if found]
    return ", ".join(parts) + "." + hint(unknown, missing or known) if parts else ""


def hint(unknown: Iterable[object], known: Iterable[str]) -> str:
    """Which of the known names were meant, as a sentence; empty if none is close."""
    names = list(known)
    close = [match for name in unknown for match in difflib.get_close_matches(str(name), names, n=1)]
    return f" Did you mean {', '.join(repr(name) for name in dict.fromkeys(close))}?" if close else ""
