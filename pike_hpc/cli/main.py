"""`pike-hpc COMMAND …`: parse, run one command, turn errors into one message and an exit code.

stdout is data, stderr is progress and log. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 ran
but the candidate or some tasks failed, 75 try again later.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import logging
import os
import select
import sys
from collections.abc import Sequence

import pike_hpc
from pike_hpc.cli.plain import speak_plainly
from pike_hpc.machine import FULL, OUTAGE
from pike_hpc.records import PikeError

COMMANDS = {
    "submit": "start or continue a run",
    "resume": "continue a run from its own run.yaml",
    "cancel": "stop a run's jobs, keep all data",
    "status": "jobs, workers, queue, budget, best per task",
    "report": "tables and figures from archives",
    "evaluate": "judge one program, no queue",
    "baselines": "judge stock settings of torch and folders of solutions",
    "tasks": "list, show or check tasks",
    "agent": "what agent jobs run",
    "worker": "what eval-worker jobs run",
    "archive": "verify, rebuild or export archives",
    "doctor": "try everything a run needs here, say what to fix",
    "config": "the resolved configuration and where each value came from",
}
_MODULES = {"resume": "submit", "cancel": "submit"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    speak_plainly()
    arguments = sys.argv[1:] if argv is None else list(argv)
    name = next((a for a in arguments if not a.startswith("-")), "")
    parser, command = _parser(name)
    _refuse_empty(parser, arguments)
    if command is not None and arguments[0] == name and "--" not in arguments:
        # Words before, between and after options: `report A --json B`.
        options = command.parse_intermixed_args(arguments[1:], argparse.Namespace(command=name))
    else:
        options = parser.parse_args(arguments)
    options.arguments = arguments
    if options.command is None:
        parser.print_help()
        return 0
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except PikeError as error:
        print(f"pike-hpc: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("pike-hpc: stopped", file=sys.stderr)
        return 130
    except OSError as error:
        if error.errno == errno.EPIPE and _reader_left():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        if error.filename is None and error.errno not in FULL | OUTAGE:
            raise
        return _explain(error)
    return code


def _reader_left() -> bool:
    """Whether stdout is a pipe that nobody reads any more, as before `| head`.

    A BrokenPipeError alone doesn't tell: a file system may say so, and another program's pipe.
    """
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False


def _refuse_empty(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """A name that a shell's variable did not give would be taken for this folder."""
    for number, word in enumerate(arguments):
        before = arguments[number - 1] if number else ""
        # A setting may be empty: `--set=models.optimise.base_url=` goes back to none.
        set_empty = word.startswith("--set=") and word != "--set="
        if word == "" or (word.startswith("--") and word.endswith("=") and not set_empty):
            after = f" after {before!r}" if before else ""
            parser.error(f"an empty argument: {word!r}{after}; name something, or leave it out")


def _explain(error: OSError) -> int:
    """One message for a file or folder that this machine does not let us have."""
    code, fix = 2, "name another file or folder"
    # What was done so far stands, and the same command goes on.
    if error.errno in FULL:
        code, fix = 75, "free some space, then run the same command"
    elif error.errno in OUTAGE:
        code, fix = 75, "the file system fails: once it answers again, run the same command"
    print(f"pike-hpc: {error.strerror or error}", file=sys.stderr)
    if error.filename is not None:
        print(f"  where: {error.filename}", file=sys.stderr)
    print(f"  next:  {fix}", file=sys.stderr)
    return code


def _parser(
    name: str,
) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser | None]:
    """The parser and the command's own: only its module is imported, so that --help is instant."""
    parser = argparse.ArgumentParser(
        prog="pike-hpc",
        description="Faster PyTorch models, proven. `pike-hpc COMMAND --help` explains each.",
    )
    parser.add_argument("--version", action="version", version=f"pike-hpc {pike_hpc.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    asked = None
    for command, summary in COMMANDS.items():
        sub = commands.add_parser(command, help=summary, description=summary, allow_abbrev=False)
        if command == name:
            module = importlib.import_module(f"pike_hpc.cli.{_MODULES.get(command, command)}")
            getattr(module, f"add_{command}")(sub)
            asked = sub
    return parser, asked
