"""Who gets one connection to the GPU, and who all eight: it matters to whoever has several streams.

The driver makes and ends the channels of a machine's contexts under one lock, and a context has
some for each connection: with one in place of eight, twice as many contexts a second are made and
ended (docs/adr/0022). On several streams, what would run side by side may run one after the other.
So references have all, and a candidate whose text or profile shows more than one stream is judged
with all of them, as it would run elsewhere.
"""

from __future__ import annotations

import re

from pike_hpc.evaluate.wire import RunnerRole
from pike_hpc.records import EvalRequest, Profile, ProfileSource

_MAKES_STREAMS = re.compile(r"\bStream\s*\(|StreamCreate|StreamFromPool")
"""torch.cuda.Stream(), cudaStreamCreate(), getStreamFromPool(): whose text has it is not judged
twice. What it misses, the profile of an honest program shows."""

BLIND = 3
"""Profiles in a row that tell no streams, after which none is expected to: most likely CUPTI does
not work here."""


class Streams:
    """What one judge knows of programs' streams."""

    def __init__(self, device: str) -> None:
        """On cpu or cuda."""
        self._counts = device == "cuda"
        self._untold = 0
        self._several: set[str] = set()
        """Candidates that may have more than one."""

    @property
    def blind(self) -> bool:
        """Whether profiles tell nothing here, so that everybody gets all connections."""
        return self._untold >= BLIND

    def role(self, request: EvalRequest) -> RunnerRole:
        """What a candidate's runner is started as. A CPU has no connections to save."""
        known = request.key.candidate_id in self._several
        if known or not self._counts or self.blind:
            return RunnerRole.WIDE
        makes = _MAKES_STREAMS.search(request.candidate_source)
        return RunnerRole.WIDE if makes else RunnerRole.NARROW

    def note(self, request: EvalRequest, profile: Profile | None) -> bool:
        """Learn from one that passed; whether its work may be on more than one stream.

        So it is where nobody knows. What it says of itself is not believed, but whoever hides a
        stream is slower for it. It is remembered, for its next judging.
        """
        if not self._counts:
            return False
        if profile is not None:
            self._untold = self._untold + 1 if profile.source is ProfileSource.EVENTS else 0
        if profile is not None and profile.streams == 1:
            return False
        self._several.add(request.key.candidate_id)
        return True
