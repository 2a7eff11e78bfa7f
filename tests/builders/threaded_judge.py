"""A judge in a thread of the test, where a lane has a process: all else of it is real."""

import contextlib
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from builders.tiny_task import asked

from pike_hpc import sandbox
from pike_hpc.evaluate.built import NOTHING
from pike_hpc.evaluate.cell import Cell
from pike_hpc.evaluate.crew import Crew
from pike_hpc.evaluate.gate import Gate
from pike_hpc.evaluate.judge import Judge
from pike_hpc.evaluate.judge_host import Host
from pike_hpc.evaluate.judge_process import serve
from pike_hpc.evaluate.wire import Channel
from pike_hpc.records import Isolation, encode

OPENING = {
    "device": "cpu",
    "threads": torch.get_num_threads(),
    "isolation": encode(Isolation(level="L0", engine="none")),
    "spares": False,
}
"""What a crew tells it first."""

Make = Callable[..., Judge]


class ThreadedJudge:
    """`serve` in a thread, by a judge that `make` makes. Its host can be another kind's."""

    def __init__(self, folder: Path, make: Make, host: Callable[..., Host] = Host) -> None:
        ours, self._theirs = socket.socketpair()
        self.channel, self.has_ended = Channel(ours), False
        given = host(Channel(self._theirs), folder)
        self._thread = threading.Thread(target=self._serve, args=(given, make), daemon=True)
        self._thread.start()

    def _serve(self, host: Host, make: Make) -> None:
        with self._theirs, contextlib.suppress(SystemExit):  # as which a process would end
            serve(host, make)

    def sources(self):
        return [self.channel]

    def pump(self) -> None:
        pass

    def forget_words(self) -> None:
        pass

    def last_words(self) -> str:
        return "its last words"

    def end(self) -> None:
        self.channel.close()
        self._thread.join(60)
        self.has_ended = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadedCell(Cell):
    """Starts real runners for it."""

    make: Make
    host: Callable[..., Host] = Host

    def start_judge(self, folder: Path) -> ThreadedJudge:
        return ThreadedJudge(folder, self.make, self.host)


def judged_by(
    make: Make,
    host: Callable[..., Host],
    source: str,
    kind: type[ThreadedCell] = ThreadedCell,
) -> tuple[dict[str, Any], bool]:
    """What such a judge finds of a tiny task's candidate, and whether it left a cache."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path is short
        Path(folder).chmod(0o711)
        cell = kind(
            engine=sandbox.choose("auto", sandbox.look()),
            folder=Path(folder, "lane"),
            device="cpu",
            threads=1,
            memory_mb=2048,
            scratch_mb=1024,
            processes=64,
            extra={},
            make=make,
            host=host,
        )
        crew = Crew(cell, Gate(), lambda: OPENING)
        with contextlib.closing(crew):
            message = {"request": encode(asked(source)), "built": encode(NOTHING), "keep": True}
            result = crew.order({"order": "evaluate", **message})
            return result, crew.left is not None
