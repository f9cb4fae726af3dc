"""`blockaudit`: find the command, run it, and turn what happens into an exit status."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn, TextIO

import typer

from blockaudit import __version__
from blockaudit.cli import completion
from blockaudit.cli.audit import UNSERVED
from blockaudit.cli.commands import COMMANDS
from blockaudit.cli.lazy import LazyGroup
from blockaudit.cli.output import complain, flush, say
from blockaudit.errors import RequestError

INTERRUPTED = 130

app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 accepted, 1 rejected, 2 the request could not be served, 3 unverified. "
    "With several SOURCEs the worst counts: 2, 1, 3, 0 (docs/exit-status.md).",
)

# The root of typer's usage errors, which typer itself exports under no name (and which moved when it took in click).
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"blockaudit {__version__}\n")
        raise typer.Exit


@app.callback()
def blockaudit(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    show_completion: completion.Show = None,
    install_completion: completion.Install = None,
) -> None:
    """Audit a Transformer checkpoint against the block contract it is supposed to keep.

    A block is a contract: norm, epsilon, placement, residual, order.
    blockaudit asks independent witnesses for every field and shows where they disagree.
    It only reads: nothing in SOURCE is ever written or run.
    """


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point: never returns, always with an exit status of the contract."""
    _open_closed_streams()
    # A name that the terminal's encoding cannot show is shown by its escape, never as a crash.
    for stream in (sys.stdout, sys.stderr):
        _soften(stream)
    gc.disable()  # what a command makes is no garbage until it ends (several audits in one turn it on again)
    try:
        status = run(sys.argv[1:] if argv is None else argv)
    except Exception as error:
        status = _failed(error)
    flush()
    # The process ends here: looking through everything for garbage once more would take longer than a small audit.
    gc.freeze()
    gc.enable()
    sys.exit(status)


def run(argv: Sequence[str]) -> int:
    """Run one command line and say its exit status; any exception that leaves here is a bug."""
    command: Any = typer.main.get_command(app)
    if completion.wanted():
        return completion.complete(command)
    try:
        status = command.main(list(argv) or ["--help"], prog_name=completion.PROGRAM, standalone_mode=False)
    except RequestError as error:
        complain(str(error))
        return UNSERVED
    except _UsageError as error:
        complain(_usage(error, argv))
        return UNSERVED
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit:
        return 0  # the reader of a help page has gone; nothing else exits here
    return status if isinstance(status, int) else 0


def _usage(error: Any, argv: Sequence[str]) -> str:
    """One line: what is wrong, and where help is."""
    # The option parser does not say in which command it stood.
    command = f"blockaudit {argv[0]}" if argv and argv[0] in COMMANDS else "blockaudit"
    path = command if error.ctx is None else error.ctx.command_path
    return f"{error.format_message().rstrip('.')} (try: {path} --help)"


def _failed(error: Exception) -> int:
    """A bug of ours: one line that says where, and the whole of it where BLOCKAUDIT_TRACEBACK is set."""
    if os.environ.get("BLOCKAUDIT_TRACEBACK"):
        traceback.print_exception(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    complain(f"internal error, please report it: {type(error).__name__}: {error} ({where}; BLOCKAUDIT_TRACEBACK=1)")
    return UNSERVED


def _open_closed_streams() -> None:
    """A stream that the caller has closed (`>&-`) is one that nobody reads: no fault, and no descriptor for others."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _soften(stream: TextIO) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
