"""Reads the sheet on which a runner profiled itself: bounded, clamped, and never believed.

The bytes are hostile. A fixed layout is unpacked, numbers are finite and in range or the sheet is
none, names keep only what a kernel's name is made of. What comes out is a hint for the search.
"""

from __future__ import annotations

import math
import re

from pike_hpc.evaluate.runner import HEAD, MAGIC, ROW, TOP
from pike_hpc.evaluate.screen import printable
from pike_hpc.records import KernelShare, Profile, ProfileSource

MAX_NAME = 72
MAX_COUNT = 1e7
"""Launches in one call; whoever names more names nothing."""

CLOCK_SLACK = 1.1
"""Time on the device can't be more than that on the judge's clock; the two are not exact."""

_SOURCES = {1: ProfileSource.KERNELS, 2: ProfileSource.EVENTS, 3: ProfileSource.OPERATIONS}
_STRANGE = re.compile(r"[^A-Za-z0-9_:<>,.*&()\[\]=+ /#-]+")


def read_sheet(sheet: bytes, candidate_ms: float) -> tuple[Profile, float | None] | None:
    """The profile and the milliseconds of a call on the device; None for a sheet that is none.

    Args:
        sheet: the bytes, copied once.
        candidate_ms: a call on the judge's own clock; more time on the device is not believed.
    """
    if len(sheet) < HEAD.size + TOP * ROW.size:
        return None
    magic, source, count, streams, *numbers = HEAD.unpack_from(sheet)
    if magic != MAGIC or source not in _SOURCES or count > TOP:
        return None
    if not all(0.0 <= number <= MAX_COUNT for number in numbers):
        return None  # NaN and infinity compare False or lie outside
    rows = [_row(*ROW.unpack_from(sheet, HEAD.size + i * ROW.size)) for i in range(count)]
    busy_ms, launches, copies, copies_ms, replays = numbers
    profile = Profile(
        source=_SOURCES[source],
        launches=_rounded(launches),
        copies=_rounded(copies),
        copies_ms=_rounded(copies_ms),
        graph_replays=_rounded(replays),
        streams=streams,
        kernels=tuple(row for row in rows if row is not None),
    )
    honest = 0.0 < busy_ms <= CLOCK_SLACK * candidate_ms
    return profile, _rounded(min(busy_ms, candidate_ms)) if honest else None


def _row(raw: bytes, share: float, launches: float) -> KernelShare | None:
    if not (0.0 <= share <= 1.0 and 0.0 <= launches <= MAX_COUNT):
        return None
    text = raw.split(b"\0", 1)[0].decode("utf-8", "replace")
    name = _STRANGE.sub("_", printable(text, MAX_NAME).removesuffix("…"))
    return KernelShare(name=name or "unnamed", share=_rounded(share), launches=_rounded(launches))


def _rounded(number: float) -> float:
    """Four digits: more would be noise in every record and prompt."""
    if number == 0.0:
        return 0.0
    return round(number, 3 - math.floor(math.log10(number)))
