"""The host's end of one build: gives it a job and takes what it sends, which is hostile.

Bounded bytes in fixed frames; nothing of them is parsed beyond lengths and one short name.
"""

from __future__ import annotations

import hashlib
import json
import re
import select
import socket
import struct
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType

from pike_hpc.evaluate.ward import Ward

MAX_LIBRARIES = 16
MAX_LIBRARY_BYTES = 64 << 20
"""One extension of a few kernels has 0.1 to 1 MB; with CUTLASS, some 10 MB."""
MAX_BYTES = 128 << 20

# As evaluate.runner.build packs them; that module needs torch.
_LENGTH = struct.Struct(">I")
_LIBRARY = struct.Struct(">c32s?HQ")
_END = struct.Struct(">cB")
_COMPILE_FAILED = 1
_OUTCOMES = 3
_NAME = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be imported."""

    task: str
    candidate: str
    arch: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLibrary:
    """A library as it came."""

    key: str
    name: str
    is_module: bool
    content: bytes

    @property
    def sha256(self) -> str:
        """Of the content, in hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(slots=True, kw_only=True)
class Made:
    """What a build sent."""

    libraries: list[RawLibrary] = field(default_factory=list)
    seconds: float = 0.0
    outcome: int | None = None

    @property
    def failed(self) -> bool:
        """Whether it says that a compiler's error ended it."""
        return self.outcome == _COMPILE_FAILED

    @property
    def outcome_known(self) -> bool:
        """Whether it came to an end of its own, so that a second build would do the same."""
        return self.outcome is not None


class _Over(Exception):
    """The other side hung up, talks nonsense, or was too slow."""


class BuildLink:
    """A socket that one build connects to."""

    def __init__(self, address: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(address))
        address.chmod(0o666)
        self._listener.listen(1)
        self._deadline = 0.0

    def __enter__(self) -> BuildLink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()

    def serve(self, job: Job, ward: Ward, stop: int, timeout_s: float) -> Made:
        """Hand out the job and take the answer, until its end, a nonsense, or `stop` is readable.

        Args:
            job: what is to be imported.
            ward: of the process that does it.
            stop: a descriptor.
            timeout_s: for all of it.
        """
        self._deadline = time.monotonic() + timeout_s
        made = Made()
        try:
            self._await(self._listener, ward, stop)
            link, _ = self._listener.accept()
        except _Over:
            return made
        start = time.monotonic()
        with link:
            link.setblocking(False)
            try:
                self._give(link, job, ward, stop)
                self._take(link, made, ward, stop)
            except (_Over, OSError):
                made.outcome = None
        made.seconds = time.monotonic() - start
        return made

    def _give(self, link: socket.socket, job: Job, ward: Ward, stop: int) -> None:
        text = json.dumps(asdict(job)).encode("ascii")
        view = memoryview(_LENGTH.pack(len(text)) + text)
        while view:
            try:
                view = view[link.send(view) :]
            except BlockingIOError:
                self._await(link, ward, stop, writing=True)

    def _take(self, link: socket.socket, made: Made, ward: Ward, stop: int) -> None:
        left = MAX_BYTES
        while True:
            kind = self._read(link, 1, ward, stop)
            if kind == b"E":
                (outcome,) = self._read(link, _END.size - 1, ward, stop)
                if outcome >= _OUTCOMES:
                    raise _Over
                made.outcome = outcome
                return
            if kind != b"L" or len(made.libraries) == MAX_LIBRARIES:
                raise _Over
            head = kind + self._read(link, _LIBRARY.size - 1, ward, stop)
            _, key, is_module, name_bytes, size = _LIBRARY.unpack(head)
            name = self._read(link, name_bytes, ward, stop).decode("ascii", "replace")
            left -= size
            if size > MAX_LIBRARY_BYTES or left < 0 or not _NAME.fullmatch(name):
                raise _Over
            content = self._read(link, size, ward, stop)
            made.libraries.append(
                RawLibrary(key=key.hex(), name=name, is_module=is_module, content=content)
            )

    def _read(self, link: socket.socket, size: int, ward: Ward, stop: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = link.recv(min(size - len(parts), 1 << 20))
            except BlockingIOError:
                self._await(link, ward, stop)
                continue
            if not part:
                raise _Over
            parts += part
        return bytes(parts)

    def _await(self, link: socket.socket, ward: Ward, stop: int, *, writing: bool = False) -> None:
        """Until the socket is ready. Raises _Over."""
        while True:
            left = 0.0 if ward.has_ended else self._deadline - time.monotonic()
            sources = [stop] + ([] if ward.has_ended else [ward])
            readers = sources if writing else [link, *sources]
            writers = [link] if writing else []
            ready, ready_to_write, _ = select.select(readers, writers, [], max(0.0, left))
            if link in ready or ready_to_write:
                return
            if stop in ready or ward not in ready:
                raise _Over
            ward.pump()
