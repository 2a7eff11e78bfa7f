"""Who gets one connection to the GPU, and who all eight: it matters to whoever has several streams.

The driver makes and ends the channels of a machine's contexts under one lock, and a context has
some for each connection: with one in place of eight, twice as many contexts a second are made and
ended (docs/adr/0022). Work on one stream runs the same; on several, what would run side by side
runs one after the other. So references have all, and a candidate whose text or profile shows more
than one stream is judged with all of them, as it would run elsewhere.
"""

from __future__ import annotations

import re

from pike_hpc.evaluate.wire import Role
from pike_hpc.records import Profile, ProfileSource

_MAKES_STREAMS = re.compile(r"\bStream\s*\(|StreamCreate|StreamFromPool")
"""torch.cuda.Stream(), cudaStreamCreate(), getStreamFromPool(): whose text has it is not judged
twice. What it misses, the profile shows."""

BLIND = 3
"""Profiles in a row that say nothing of streams, after which none is expected to."""


class Streams:
    """What is known of streams on one device."""

    def __init__(self, device: str) -> None:
        """On cpu or cuda."""
        self._counts = device == "cuda"
        self._untold = 0

    @property
    def blind(self) -> bool:
        """Whether profiles tell nothing here, so that everybody gets all connections."""
        return self._untold >= BLIND

    def role(self, source: str) -> Role:
        """What a candidate's runner is started as."""
        if not self._counts:
            return Role.CANDIDATE
        return Role.SPREAD if self.blind or _MAKES_STREAMS.search(source) else Role.CANDIDATE

    def may_have_more(self, profile: Profile | None) -> bool:
        """Whether a candidate that passed with one connection may have more than one stream.

        So it is where nobody knows. What it says of itself is not believed, but whoever hides a
        stream is slower for it.
        """
        if not self._counts:
            return False
        if profile is None:
            return True
        self._untold = self._untold + 1 if profile.source is ProfileSource.EVENTS else 0
        return profile.streams != 1
