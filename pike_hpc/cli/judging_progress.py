"""Judges side by side, and a line on the terminal for each program of theirs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from pike_hpc.cli.baselines_plan import Entry
from pike_hpc.cli.baselines_table import row, said
from pike_hpc.evaluate.screen import printable
from pike_hpc.records import EvalRequest, EvalResult
from pike_hpc.worker import Judge, JudgeUnwell


class Progress:
    """A line for each program: begun at once where one is judged at a time, else in the end."""

    def __init__(self, log: TextIO, total: int) -> None:
        self._log, self._total, self._begun = log, total, 0
        self._lock = threading.Lock()
        self.alone = True
        """Whether one is judged at a time."""

    def begin(self, entry: Entry) -> str:
        """How the line of a program begins that is about to be judged."""
        name = printable(f"{entry.task.key} {entry.task.name} · {entry.label}", 300)
        with self._lock:
            self._begun += 1
            head = f"[{self._begun}/{self._total}] {name} … "
            if self.alone:
                print(head, end="", file=self._log, flush=True)
        return head

    def end(self, head: str, tail: str) -> None:
        """How it ends."""
        with self._lock:
            print(tail if self.alone else head + tail, file=self._log, flush=True)


class ToldJudge:
    """A judge that says what it is at."""

    def __init__(
        self,
        inner: Judge,
        progress: Progress,
        entries: Mapping[str, Entry],
        keep: Callable[[EvalResult], None],
    ) -> None:
        """Nothing is said yet.

        Args:
            inner: judges.
            progress: of all judges.
            entries: what is judged, by request.
            keep: is given each verdict at once, before anybody hears of it.
        """
        self._inner, self._progress, self._entries = inner, progress, entries
        self._keep, self.device_kind = keep, inner.device_kind

    def evaluate(self, request: EvalRequest, on_phase: Callable[[str], None]) -> EvalResult:
        """The inner judge's verdict. Raises JudgeLost."""
        entry, start = self._entries[request.request_id], time.monotonic()
        head = self._progress.begin(entry)
        try:
            result = self._inner.evaluate(request, on_phase)
        except JudgeUnwell as unwell:
            result = unwell.result  # no other worker shares this queue: a rest would save nothing
        except BaseException:  # lost, or told to stop
            self._progress.end(head, "no verdict")
            raise
        self._keep(result)
        self._progress.end(head, f"{said(row(entry, result))}, {time.monotonic() - start:.1f} s")
        return result

    def close(self) -> None:
        """Kill what runs."""
        self._inner.close()
