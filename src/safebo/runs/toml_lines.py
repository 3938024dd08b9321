"""In which line of a TOML file a key stands: Python's parser keeps no positions.

`lines_of` walks through a text that the parser has accepted, so it only has to tell keys, strings, arrays and tables apart.
"""

from __future__ import annotations

from bisect import bisect_right

Path = tuple[str | int, ...]
"""The way to a value: keys, and numbers for the elements of arrays."""

_ENDS = frozenset(",]}#\n")  # what ends a number, a date or a boolean
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\", "e": "\x1b"}
_DIGITS = {"u": 4, "U": 8, "x": 2}  # digits of \uXXXX and the like


def lines_of(text: str) -> dict[Path, int]:
    """Line, from 1, of every key, table and array element of a valid TOML text; () is the first line."""
    return _Walk(text.replace("\r\n", "\n")).document()


class _Walk:
    """One walk through a text; `at` is the position in it."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.breaks = [i for i, character in enumerate(text) if character == "\n"]
        self.found: dict[Path, int] = {(): 1}
        self.tables: dict[Path, int] = {}  # arrays of tables: how many elements so far

    def document(self) -> dict[Path, int]:
        table: Path = ()
        while self.skip():
            if self.text.startswith("[[", self.at):
                table = self.header(2)
            elif self.text[self.at] == "[":
                table = self.header(1)
            else:
                self.pair(table)
        return self.found

    def header(self, brackets: int) -> Path:
        start = self.at
        self.at += brackets
        path = self.resolved(self.key())
        self.skip()
        self.at += brackets
        if brackets == 2:
            self.mark(path, start)
            number = self.tables.get(path, -1) + 1
            self.tables[path] = number
            path = (*path, number)
        self.mark(path, start, table=True)
        return path

    def resolved(self, key: Path) -> Path:
        """A header's key with the number of the latest element after every array of tables on the way."""
        path: Path = ()
        for i, part in enumerate(key):
            path = (*path, part)
            if i + 1 < len(key) and path in self.tables:
                path = (*path, self.tables[path])
        return path

    def pair(self, table: Path) -> None:
        start = self.at
        key = self.key()
        for length in range(1, len(key) + 1):
            self.mark((*table, *key[:length]), start)
        self.skip()
        self.at += 1  # "="
        self.value((*table, *key))

    def key(self) -> Path:
        """A key with its dots, the position behind it."""
        parts: list[str | int] = []
        while True:
            self.blanks()
            if self.text[self.at] in "\"'":
                parts.append(self.string())
            else:
                start = self.at
                while self.at < len(self.text) and (self.text[self.at].isalnum() or self.text[self.at] in "-_"):
                    self.at += 1
                parts.append(self.text[start : self.at])
            self.blanks()
            if self.text[self.at : self.at + 1] != ".":
                return tuple(parts)
            self.at += 1

    def value(self, path: Path) -> None:
        self.skip()
        first = self.text[self.at]
        if first in "\"'":
            self.string()
        elif first == "[":
            self.at += 1
            number = 0
            while self.skip() and self.text[self.at] != "]":
                self.mark((*path, number), self.at)
                self.value((*path, number))
                number += 1
                self.comma()
            self.at += 1
        elif first == "{":
            self.at += 1
            while self.skip() and self.text[self.at] != "}":
                self.pair(path)
                self.comma()
            self.at += 1
        else:
            while self.at < len(self.text) and self.text[self.at] not in _ENDS:
                self.at += 1

    def string(self) -> str:
        """A string of any of the four kinds; escapes are resolved, since a key may be written with them."""
        quote = self.text[self.at]
        mark = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(mark)
        parts: list[str] = []
        while not self.text.startswith(mark, self.at):
            character = self.text[self.at]
            self.at += 1
            if character == "\\" and quote == '"':
                character = self.escape()
            parts.append(character)
        self.at += len(mark)
        while len(mark) == 3 and self.text[self.at : self.at + 1] == quote:  # quotes may stand before the closing ones
            parts.append(quote)
            self.at += 1
        return "".join(parts)

    def escape(self) -> str:
        kind = self.text[self.at]
        self.at += 1
        if kind in _DIGITS:
            digits = self.text[self.at : self.at + _DIGITS[kind]]
            self.at += _DIGITS[kind]
            return chr(int(digits, 16))
        return _ESCAPES.get(kind, "")

    def skip(self) -> bool:
        """Pass blanks, line ends and comments; whether something follows."""
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text[self.at] in " \t\n":
                self.at += 1
            else:
                return True
        return False

    def blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1

    def comma(self) -> None:
        if self.skip() and self.text[self.at] == ",":
            self.at += 1

    def mark(self, path: Path, position: int, *, table: bool = False) -> None:
        """Note the line of a path: its first mention, except that a table's own header is where to look for it."""
        line = bisect_right(self.breaks, position - 1) + 1
        if table:
            self.found[path] = line
            for length in range(1, len(path)):
                self.found.setdefault(path[:length], line)
        else:
            self.found.setdefault(path, line)
