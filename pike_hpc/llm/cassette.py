"""Cassettes: a model's answers on tape, so that a search can be replayed without the model.

Contract: one JSON line for each request, its answer or its error, flushed at once. Looked up by
the digest of model, messages and parameters, the sample, and the request key; where the key is
unknown, digest and sample decide alone. Of several rows for one request the last counts. A
request that is not on the tape is an error that says so. Prompts and keys are not recorded.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from pike_hpc.llm.errors import ModelRefused, ModelUnavailable, NotRecorded
from pike_hpc.llm.request import Completion, LanguageModel, ModelRequest
from pike_hpc.records import CodecError, PikeError, UsageError, from_json, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedError:
    """An error of the provider, as it was shown."""

    refused: bool
    what: str
    where: str | None
    fix: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a cassette. Either `completion` or `error` is set."""

    digest: str
    sample: int
    request_key: str
    model: str
    role: str
    max_cost_usd: float
    completion: Completion | None = None
    error: RecordedError | None = None


class RecordingModel:
    """Passes requests on to a model and appends what comes back to a cassette."""

    def __init__(self, inner: LanguageModel, path: Path) -> None:
        self._inner, self._path = inner, path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(path)

    @property
    def name(self) -> str:
        """The inner model's name."""
        return self._inner.name

    def max_cost_usd(self, request: ModelRequest) -> float:
        """The inner model's ceiling."""
        return self._inner.max_cost_usd(request)

    def complete(self, request: ModelRequest) -> Completion:
        """The inner model's answer or error, recorded before it is passed on.

        Raises NotRecorded, which carries the answer, where the tape can't be written.
        """
        try:
            completion = self._inner.complete(request)
        except (ModelRefused, ModelUnavailable) as error:
            refused = isinstance(error, ModelRefused)
            seen = RecordedError(refused=refused, what=error.what, where=error.where, fix=error.fix)
            with contextlib.suppress(OSError):  # the model's own error says more
                self._write(request, None, seen)
            raise
        try:
            self._write(request, completion, None)
        except OSError as error:
            raise NotRecorded(
                f"an answer could not be recorded: {error.strerror or error}",
                completion,
                where=str(self._path),
                fix="free space there, or go on without --record; the tape lacks this answer",
            ) from error
        return completion

    def _write(
        self, request: ModelRequest, completion: Completion | None, error: RecordedError | None
    ) -> None:
        row = Row(
            digest=request.digest(self.name),
            sample=request.sample,
            request_key=request.request_key,
            model=self.name,
            role=request.role.value,
            max_cost_usd=self.max_cost_usd(request),
            completion=completion,
            error=error,
        )
        line = to_json(row).encode() + b"\n"
        with self._lock, self._path.open("ab", buffering=0) as tape:
            size = tape.seek(0, os.SEEK_END)
            try:
                if tape.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                with contextlib.suppress(OSError):
                    tape.truncate(size)  # the next row shall not follow half a one
                raise


class CassetteModel:
    """Answers from a cassette and from nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        rows = _read(path)
        self._models = tuple(dict.fromkeys(row.model for row in rows))
        self._exact = {(row.digest, row.sample, row.request_key): row for row in rows}
        self._loose = {(row.digest, row.sample): row for row in rows}

    @property
    def name(self) -> str:
        """The recorded model's name; `cassette` where there are several."""
        return self._models[0] if len(self._models) == 1 else "cassette"

    def max_cost_usd(self, request: ModelRequest) -> float:
        """As it was recorded, so that budgets decide alike; 0 for what is not on the tape."""
        row = self._find(request)
        return row.max_cost_usd if row else 0.0

    def complete(self, request: ModelRequest) -> Completion:
        """The recorded answer or error. Raises UsageError for a request not on the tape."""
        row = self._find(request)
        if row is None:
            raise UsageError(
                f"the cassette has no answer for {request.role.value} request "
                f"{request.request_key or '(no key)'} (sample {request.sample})",
                where=str(self._path),
                valid=f"the requests of its {len(self._exact)} rows, unchanged to the byte",
                fix="replay with the task, options, versions and verdicts of the recording, "
                "or record again",
            )
        if row.completion is not None:
            return row.completion
        error = row.error
        assert error is not None
        kind: type[PikeError] = ModelRefused if error.refused else ModelUnavailable
        raise kind(error.what, where=error.where, fix=error.fix)

    def _find(self, request: ModelRequest) -> Row | None:
        for model in self._models:
            key = (request.digest(model), request.sample)
            row = self._exact.get((*key, request.request_key)) or self._loose.get(key)
            if row is not None:
                return row
        return None


def _read(path: Path) -> list[Row]:
    """The rows of a cassette; a last line without its end was torn by a kill and is left out."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read the cassette: {error.strerror}",
            where=str(path),
            fix="models: model is the path of a cassette that a recording wrote",
        ) from None
    rows = []
    for number, line in enumerate(raw.split(b"\n")[:-1], start=1):
        try:
            row = from_json(Row, line)
            if (row.completion is None) == (row.error is None):
                raise CodecError("neither an answer nor an error")
        except CodecError as error:
            raise UsageError(
                f"not a row of a cassette: {error.what}",
                where=f"{path}:{number}",
                fix="remove the line, or record again",
            ) from None
        rows.append(row)
    return rows


def _cut_torn_line(path: Path) -> None:
    """Remove a last line that a kill left unfinished, so that the next row starts its own."""
    if not path.exists():
        return
    raw = path.read_bytes()
    whole = raw.rfind(b"\n") + 1
    if whole != len(raw):
        os.truncate(path, whole)
