"""Whether the parts of a plant are there: modules, functions and programs. Nothing is imported or started to find out."""

from __future__ import annotations

import ast
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_INTERPRETER = re.compile(r"(python|bash|sh|perl|ruby|node|octave|julia|Rscript)[\d.]*(\.exe)?")
_NO_SCRIPT = ("-c", "-m", "-e", "--eval", "-E")
"""Options of interpreters after which there is no script, but code or a module."""


def missing_parts(plant: Mapping[str, Any]) -> list[str]:
    """What of a plant cannot be found, in sentences."""
    folder = Path(plant.get("folder") or ".")
    if plant.get("type") == "python":
        return [text for key in ("callable", "reset", "stop") if key in plant for text in _function(str(plant[key]), key, folder)]
    if plant.get("type") == "command":
        return [text for key in ("command", "stop") if plant.get(key) for text in _program(plant[key], key, folder)]
    return []


def _function(value: str, key: str, folder: Path) -> Iterator[str]:
    module, _, function = value.partition(":")
    top, *inner = module.split(".")
    beside = folder / f"{top}.py"
    if not beside.exists() and not (folder / top).is_dir():
        if find_spec(top) is None:
            yield (
                f"There is no module {top!r}, neither in {str(folder)!r} nor installed: {key} = {value!r} of the plant cannot be "
                "loaded."
            )
        return
    if inner or not beside.exists():
        return  # a package: only its import says more
    try:
        names = _names(ast.parse(beside.read_bytes(), str(beside)))
    except (SyntaxError, ValueError, OSError) as error:
        yield f"{beside} cannot be read as Python ({error}): {key} = {value!r} of the plant cannot be loaded."
        return
    if names is not None and function.partition(".")[0] not in names:
        yield f"{beside} has no {function!r}: {key} = {value!r} of the plant cannot be loaded."


def _names(tree: ast.Module) -> set[str] | None:
    """What a module defines at its top level, in `if` and `try` too; None if that cannot be told."""
    found: set[str] = set()
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.name == "__getattr__":
                return None
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.asname or alias.name.partition(".")[0] for alias in node.names]
            if "*" in names:
                return None
            found.update(names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        else:
            todo += ast.iter_child_nodes(node)
    return found


def _program(command: Sequence[Any], key: str, folder: Path) -> Iterator[str]:
    program, *arguments = (os.fsdecode(part) for part in command)
    named = os.path.dirname(program) != ""  # a path and not a name: it starts in the plant's folder
    path = folder / program
    if named and not path.is_file():
        yield f"There is no program {str(path)!r}: {_purpose(key)}."
    elif named and not os.access(path, os.X_OK):
        yield f"{str(path)!r} is not executable (chmod +x): {_purpose(key)}."
    elif not named and shutil.which(program) is None:
        here = f"; the file beside the plant is called './{program}'" if path.is_file() else ""
        yield f"There is no program {program!r} in the PATH{here}: {_purpose(key)}."
    if _INTERPRETER.fullmatch(Path(program).name) and (script := _script(arguments)) and not (folder / script).is_file():
        yield f"There is no file {str(folder / script)!r}, which {program!r} is to run: {_purpose(key)}."


def _script(arguments: Sequence[str]) -> str:
    """The file that an interpreter is to run; empty if it is none."""
    for argument in arguments:
        if argument in _NO_SCRIPT:
            return ""
        if not argument.startswith("-"):
            return argument
    return ""


def _purpose(key: str) -> str:
    return "the plant cannot be started" if key == "command" else "the stop of the plant cannot be run"
