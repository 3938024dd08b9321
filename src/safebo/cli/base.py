"""The command itself: exit codes, what all commands share, and how errors end."""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Optional

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from rich.console import Console

    from safebo.runs import Campaign, Store

SETUP, RUN, LOOK, STUDY = "Set up a run", "Experiments", "Look at a run", "Studies"


class Code(IntEnum):
    """Exit codes."""

    OK = 0
    SYSTEM = 1
    INPUT = 2
    NOTHING_LEFT = 3
    VIOLATION = 4
    PERSON = 5
    ABORTED = 6
    HALTED = 7
    INTERRUPTED = 130


MEANING = {
    Code.OK: "done: the experiments asked for were made, or the search has converged",
    Code.SYSTEM: "the operating system or the database refused (a file, a folder, a connection)",
    Code.INPUT: "wrong input: the message names the value, and the line of the file",
    Code.NOTHING_LEFT: "no certified experiment is left, though the search has not converged",
    Code.VIOLATION: "a measurement outside a limit stopped the run",
    Code.PERSON: "a person has to decide: approve, tell, retry or abandon an experiment; or another process drives the run",
    Code.ABORTED: "an experiment was aborted, or the plant could not be reached",
    Code.HALTED: "the run is paused or stopped",
    Code.INTERRUPTED: "interrupted (Ctrl-C or a request to terminate); the message says whether the plant was stopped",
}

EPILOG = "\n\n".join(["Exit codes", *(f"{code.value:>3}  {text}" for code, text in MEANING.items())])

ORDER = (
    *("init", "check", "import", "run", "resume", "tell", "void", "approve", "reject", "pause", "stop", "serve"),
    *("status", "list", "best", "plot", "report", "export", "verify"),
)
"""Commands as `safebo --help` lists them; what is not named comes last."""


class Commands(TyperGroup):
    """Ends with one line and an exit code, not with a traceback, where something is wrong with what was asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands, in the order of the work."""
        return sorted(super().list_commands(ctx), key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        from safebo.exceptions import (
            DrivenError,
            PendingTrialError,
            PlantError,
            SafeboError,
            SafeboWarning,
            StorageError,
            UntrustedPlantError,
        )

        _write_anything()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", SafeboWarning)
                warnings.showwarning = _show_warning
                return super().invoke(ctx)
        except KeyboardInterrupt:
            resumes = ctx.invoked_subcommand in ("reproduce", "calibrate", "train-norm", "train-policy")
            fail(
                ctx,
                "interrupted; the same command continues with what is not finished." if resumes else "interrupted.",
                Code.INTERRUPTED,
            )
        except (DrivenError, PendingTrialError, UntrustedPlantError) as error:
            fail(ctx, error, Code.PERSON)
        except PlantError as error:
            fail(ctx, error, Code.INPUT if isinstance(error, ValueError) else Code.ABORTED)
        except StorageError as error:
            fail(ctx, error, Code.SYSTEM)
        except OSError as error:  # a folder that cannot be written, say
            fail(ctx, _explained(error), Code.SYSTEM)
        except SafeboError as error:
            fail(ctx, error, Code.INPUT)


def _write_anything() -> None:
    """What a terminal cannot show is written as an escape: a unit such as an ohm sign must not end a command in its middle."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def _explained(error: OSError) -> object:
    """What is wrong with a path, and what to do about it; errors without one are left as they are."""
    if not isinstance(error.filename, str) or not error.strerror:
        return error
    path = Path(error.filename)
    if isinstance(error, (FileExistsError, NotADirectoryError)) and not path.is_dir():
        taken = next((p for p in (path, *path.parents) if p.is_file()), path)
        return f"{taken} is a file, and a folder is needed in its place: choose another name."
    if isinstance(error, IsADirectoryError):
        return f"{path} is a folder, and a file is needed: choose another name."
    return f"{error.strerror}: {path}. Check that it exists, and that you may read and write there."


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: str | None = None
) -> None:
    """One line; the place in our code means nothing to the reader."""
    typer.echo(f"warning: {message}", err=True)


def fail(ctx: Any, error: object, code: Code) -> NoReturn:
    """One message, as JSON as well where JSON was asked for, and an exit code."""
    from safebo.runs.words import moments

    message = str(error)
    said = moments(message, local=True)
    typer.echo(said if getattr(error, "problems", None) else f"safebo: {said}", err=True)
    if ctx.meta.get("json"):
        document = {"error": {"type": type(error).__name__ if isinstance(error, BaseException) else "Error", "message": message}}
        problems = getattr(error, "problems", ())
        if problems:
            document["error"]["problems"] = [{"line": line, "message": text} for line, text in problems]  # type: ignore[assignment]
        emit({**document, "exit_code": int(code)})
    raise typer.Exit(int(code))


app = typer.Typer(
    name="safebo",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Safe Bayesian optimization with a data-driven bound of the RKHS norm.",
    epilog=EPILOG,
)


def _version(value: bool) -> None:
    """Print the version and end."""
    if value:
        from safebo import __version__

        typer.echo(f"safebo {__version__}")
        raise typer.Exit(Code.OK)


@app.callback()
def everything(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Options that belong to no command."""


def _remember(ctx: typer.Context, value: bool) -> bool:
    ctx.meta["json"] = value
    return value


Json = Annotated[bool, typer.Option("--json", callback=_remember, help="One JSON document on standard output, nothing else.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run, or the TOML file that it was made from.")]
Database = Annotated[
    Optional[str],
    typer.Option(
        "--db",
        envvar="SAFEBO_DB",
        help="File or URL of the database; default: the one that the TOML file names, else safebo.db.",
        show_default=False,
    ),
]
Who = Annotated[
    str, typer.Option(envvar="SAFEBO_WHO", help="Your name, for the record; default: user@computer.", show_default=False)
]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that exists.")]


def console(stderr: bool = False) -> Console:
    """A terminal, or plain text where there is none."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=not sys.stdout.isatty())


def emit(document: Any) -> None:
    """A JSON document on standard output."""
    typer.echo(json.dumps(document, indent=2, allow_nan=False, default=str))


def locate(run: str, db: str | None) -> tuple[str, str]:
    """Database and name of a run that is given by its name or by its TOML file."""
    from safebo.runs import config

    if run.endswith(".toml"):
        read = config.read(Path(run))
        return db or read.database, read.name
    return db or config.DATABASE, run


@contextmanager
def opened(run: str, db: str | None) -> Iterator[tuple[Store, Campaign]]:
    """The store and the run; closed at the end."""
    from safebo.runs import Campaign, Store

    where, name = locate(run, db)
    store = Store.open(where, create=False)
    try:
        yield store, Campaign.open(store, name)
    finally:
        store.close()


def place(run: str, db: str | None) -> str:
    """How to name the run on the next command line."""
    from safebo.runs.config import DATABASE

    quoted = f"'{run}'" if " " in run else run
    usual = os.environ.get("SAFEBO_DB") or DATABASE
    known = db is None or db == usual or ("://" not in db + usual and Path(db).absolute() == Path(usual).absolute())
    return quoted if known else f"{quoted} --db {db}"


def write(path: Path, content: str | bytes, *, force: bool) -> None:
    """Write a file, whole or not at all; one that exists stays unless `force`."""
    from safebo.exceptions import InvalidValueError

    if path.exists() and not force:
        raise InvalidValueError(f"{path} exists: choose another name, or replace it with --force.")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
    part.replace(path)


def wrote(path: Path, as_json: bool) -> None:
    """Say which file was written."""
    if as_json:
        emit({"file": str(path)})
    else:
        console(stderr=True).print(f"wrote {path}", markup=False)
