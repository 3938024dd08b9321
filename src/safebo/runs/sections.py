"""Reading a TOML file with errors that name the line: tables that know what was asked of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from safebo.exceptions import ConfigError, InvalidValueError
from safebo.naming import hint
from safebo.runs.toml_lines import Path, lines_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
Check = Callable[[Any, str], T]
"""A validated value from what the file holds; the second argument is the name of the key."""

_POSITION = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")


class Document:
    """A parsed file and the mistakes found in it so far."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.problems: list[tuple[int, str]] = []
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            found = _POSITION.search(str(error))
            line = int(found[1]) if found and found[1] else text.count("\n") + 1
            message = _POSITION.sub("", str(error))
            raise ConfigError(file, [(line, f"not valid TOML: {message[:1].lower()}{message[1:]}.")]) from None
        except RecursionError:
            raise ConfigError(file, [(1, "not valid TOML: nested too deeply.")]) from None
        self._lines = lines_of(text)
        self.root = Section(self, (), content)

    def line(self, path: Path) -> int:
        """The line of a path, or of the nearest table around it that is in the file."""
        while path not in self._lines:
            path = path[:-1]
        return self._lines[path]

    def complain(self, path: Path, message: str) -> None:
        """Note a mistake."""
        problem = self.line(path), message
        if problem not in self.problems:
            self.problems.append(problem)

    def raise_problems(self) -> None:
        """`ConfigError` if there are any."""
        if self.problems:
            raise ConfigError(self.file, self.problems)


class Section:
    """One table of the file."""

    def __init__(self, document: Document, path: Path, content: Mapping[str, Any]) -> None:
        self.document, self.path, self.content = document, path, content
        self._known: set[str] = set()

    @property
    def title(self) -> str:
        """As its header is written: [limits.torque]."""
        return "[" + ".".join(str(part) for part in self.path) + "]" if self.path else "the file"

    def __contains__(self, key: str) -> bool:
        return key in self.content

    def take(self, key: str, check: Check[T], default: Any = None) -> T | Any:
        """The checked value of a key, or the default; a mistake is noted."""
        self._known.add(key)
        if key not in self.content:
            return default
        with self.blame(key):
            return check(self.content[key], key)
        return default

    def table(self, key: str, *, required: bool = False) -> Section | None:
        """A table inside this one."""
        self._known.add(key)
        if key not in self.content:
            if required:
                self.complain(f"[{key}] is missing.")
            return None
        value = self.content[key]
        if isinstance(value, Mapping):
            return Section(self.document, (*self.path, key), value)
        self.complain(f"{key} must be a table, got {value!r}: write [{'.'.join(map(str, (*self.path, key)))}].", key)
        return None

    def tables(self, key: str) -> list[Section]:
        """The tables inside a table: [parameters.kp], [parameters.kd], ..."""
        outer = self.table(key)
        found = [] if outer is None else [outer.table(name) for name in outer.content]
        return [section for section in found if section is not None]

    def complain(self, message: str, *keys: str) -> None:
        """Note a mistake, at the first of the keys that is in the file."""
        key = next((k for k in keys if k in self.content), None)
        self.document.complain(self.path if key is None else (*self.path, key), message)

    @contextmanager
    def blame(self, *keys: str) -> Iterator[None]:
        """Note what the body finds wrong, at the key that its message speaks of."""
        try:
            yield
        except InvalidValueError as error:
            text = str(error)
            spoken = sorted((k for k in keys if k in self.content), key=lambda k: re.search(rf"\b{re.escape(k)}\b", text) is None)
            self.complain(text, *spoken)

    def done(self, *further: str) -> None:
        """Note every key that nobody asked for."""
        known = sorted(self._known | set(further))
        for key in self.content:
            if key not in known:
                self.complain(f"unknown key {key!r} in {self.title}.{hint([key], known)} Allowed: {', '.join(known)}.", key)


# -- checks ------------------------------------------------------------------------------------------------------------------


def raw(value: Any, name: str) -> Any:
    """Whatever it is: a constructor checks it."""
    return value


def text(value: Any, name: str) -> str:
    """Any text."""
    if not isinstance(value, str):
        raise InvalidValueError(f'{name} must be text in quotes, such as {name} = "{value}", got {value!r}.')
    return value


def flag(value: Any, name: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise InvalidValueError(f"{name} must be true or false, got {value!r}.")
    return value


def choice(options: Iterable[str]) -> Check[str]:
    """One of some words."""
    words = list(options)

    def check(value: Any, name: str) -> str:
        if value in words and isinstance(value, str):
            return value
        meant = hint([value], words) if isinstance(value, str) else ""
        raise InvalidValueError(f"{name} must be one of {', '.join(map(repr, words))}, got {value!r}.{meant}")

    return check
