"""Verdicts on tape, so that a search can be replayed without a device.

Contract: one JSON line a verdict, appended and fsynced before it is passed on. A replay answers
with the tape's verdict for the same task, program and kind of device, measured times included,
and marks nothing: it is what was measured then. A program that is not on the tape is an error
of the replay, never of the candidate.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from pike_hpc.records import (
    CodecError,
    EvalRequest,
    EvalResult,
    ResultKey,
    UsageError,
    from_json,
    to_json,
)
from pike_hpc.worker.judge import Judge, JudgeUnwell, judge_error

_Program = tuple[str, str, str, int]
"""Task digest, candidate id, device kind, and which time it was judged (ResultKey.retime)."""


class RecordingJudge:
    """Passes requests on to a judge and appends its verdicts to a cassette."""

    def __init__(self, inner: Judge, path: Path) -> None:
        self._inner, self._path = inner, path
        path.parent.mkdir(parents=True, exist_ok=True)

    @property
    def device_kind(self) -> str:
        """The inner judge's."""
        return self._inner.device_kind

    def evaluate(self, request: EvalRequest, on_phase: Callable[[str], None]) -> EvalResult:
        """The inner judge's verdict, on tape when this returns or says that the judge is unwell."""
        try:
            result = self._inner.evaluate(request, on_phase)
        except JudgeUnwell as unwell:
            self._keep(unwell.result)
            raise
        self._keep(result)
        return result

    def _keep(self, result: EvalResult) -> None:
        with self._path.open("ab", buffering=0) as tape:
            tape.write(to_json(result).encode() + b"\n")
            os.fsync(tape.fileno())

    def close(self) -> None:
        """Close the inner judge."""
        self._inner.close()


class CassetteJudge:
    """Judges from a cassette and from nothing else."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError for a file that is no cassette of verdicts."""
        self._path = path
        self._tape = _read(path)

    @property
    def device_kind(self) -> str:
        """The kind of device that the tape was recorded on."""
        return next(iter(self._tape))[2]

    def evaluate(self, request: EvalRequest, on_phase: Callable[[str], None]) -> EvalResult:
        """The recorded verdict under the request's key, or a JUDGE_ERROR that names the tape."""
        on_phase("replay")
        key = request.key
        recorded = self._tape.get(_program(key))
        if recorded is None:
            return judge_error(
                request, f"the cassette {self._path} has no verdict on {key.candidate_id[:12]}"
            )
        return dataclasses.replace(recorded, key=key)

    def close(self) -> None:
        """Nothing runs."""


def _program(key: ResultKey) -> _Program:
    return key.task_digest, key.candidate_id, key.device_kind, key.retime


def _read(path: Path) -> dict[_Program, EvalResult]:
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UsageError(f"cannot read the cassette: {error.strerror}", where=str(path)) from None
    tape: dict[_Program, EvalResult] = {}
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break  # torn by a kill; what was passed on lies before it
        try:
            result = from_json(EvalResult, line)
        except CodecError as error:
            raise UsageError(
                f"not a cassette of verdicts: {error.what}", where=f"{path}:{number}"
            ) from None
        tape[_program(result.key)] = result
    if not tape:
        raise UsageError(
            "the cassette holds no verdict",
            where=str(path),
            fix="record one: pike-hpc submit … --record DIR",
        )
    return tape
