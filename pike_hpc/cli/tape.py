"""--record DIR and --replay DIR: model answers and verdicts on tape, or from it.

With the same workflow and a tape, a whole search replays on any machine, without model, key or
device: `archive export --canonical` of both is the same text.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from pike_hpc.records import UsageError

VERDICT_TAPE = "verdicts.jsonl"
"""Name of the verdicts' cassette in the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tape:
    """At most one of the two is set."""

    record: Path | None = None
    replay: Path | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """For the command lines of agents and workers."""
        if self.record is not None:
            return ("--record", str(self.record.absolute()))
        return ("--replay", str(self.replay.absolute())) if self.replay is not None else ()


def add_tape(parser: argparse.ArgumentParser) -> None:
    """The two options."""
    tape = parser.add_mutually_exclusive_group()
    tape.add_argument("--record", type=Path, metavar="DIR", help="write answers and verdicts here")
    tape.add_argument("--replay", type=Path, metavar="DIR", help="take them from here instead")


def tape_from(options: argparse.Namespace) -> Tape:
    """What the options say. Raises UsageError for a file where the tape's folder should be."""
    for option in ("record", "replay"):
        folder = getattr(options, option)
        if folder is not None and folder.exists() and not folder.is_dir():
            raise UsageError(
                "a tape is a folder, and this is a file",
                where=f"--{option} {folder}",
                fix=f"name a folder: --{option} {folder.with_suffix('')}-tape",
            )
    return Tape(record=options.record, replay=options.replay)
