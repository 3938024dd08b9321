"""Plain values that everything can store and read again: not nested too deeply, and of whole characters.

Python's JSON gives up beyond a depth that depends on the caller, so that what was written cannot be read: the limit is far below
it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

DEEPEST = 32
"""Levels of lists and mappings in what a user notes."""

READ = 3 * DEEPEST
"""Levels that are read; what the record wraps around a note has less than a third of them."""

_MARKS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')


def deeper(value: object, levels: int) -> bool:
    """Whether lists, tuples and mappings are nested deeper than this."""
    if isinstance(value, Mapping):
        return levels == 0 or any(deeper(inner, levels - 1) for inner in value.values())
    if isinstance(value, (list, tuple)):
        return levels == 0 or any(deeper(inner, levels - 1) for inner in value)
    return False


def whole(text: str) -> bool:
    """Whether there is no half of a character in it (a surrogate), which no file and no terminal can take."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def loads(text: object) -> Any:
    """Like json.loads, for records that were written when there was no limit: what lies deeper than `READ` becomes text."""
    if not isinstance(text, str) or text.count("[") + text.count("{") <= READ:
        return json.loads(text)  # type: ignore[arg-type]
    parts, done, depth, begin = [], 0, 0, 0
    for mark in _MARKS.finditer(text):
        sign = text[mark.start()]
        if sign in "[{":
            depth += 1
            if depth == READ + 1:
                begin = mark.start()
        elif sign in "]}":
            depth -= 1
            if depth == READ:
                parts += [text[done:begin], json.dumps(text[begin : mark.end()])]
                done = mark.end()
    return json.loads("".join([*parts, text[done:]]))
