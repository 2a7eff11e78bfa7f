"""What an answer is off by, beside what it may be: for the verdict's sentence.

Who repairs a program reads it, and who doubts the verdict. It holds the judge's own numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from pike_hpc.evaluate.pieces import LOCAL_ELEMENTS


class Kind(Enum):
    """Of what, and how that is said."""

    WHOLE = "off by {error} of the signal, over {limit}"
    PART = (
        f"a part of it is off by {{error}} of its own size or signal, over {{limit}} for "
        f"{LOCAL_ELEMENTS} elements"
    )
    NOT_FINITE = "it holds values that are not finite"
    CONSTANT = "it is no longer what never changes with the input"
    NUMBERS = "{error} whole numbers differ, and {limit} may"
    NEIGHBOURS = "{error} whole numbers differ, too many of them side by side or in one column"
    PIKE = "{error} of its elements are outside of PIKE's allclose(1e-2), and {limit} may be"

    @property
    def floating(self) -> bool:
        """Whether it is of an output in floating numbers."""
        return self not in (Kind.NUMBERS, Kind.NEIGHBOURS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Off:
    """One output of one call, beside a limit that it broke or did not."""

    error: float
    limit: float
    kind: Kind = Kind.WHOLE
    output: str = ""
    """Which one, where there are several."""

    @property
    def fits(self) -> bool:
        """Whether it is no further off than it may be."""
        return self.error <= self.limit  # NaN is not

    @property
    def times(self) -> float:
        """How many limits it is off by."""
        return self.error / self.limit if self.limit > 0.0 else math.inf

    def __str__(self) -> str:
        if self.kind.floating:
            said = told_apart(self.error, self.limit)
        else:
            said = f"{self.error:.0f}", f"{self.limit:.0f}"
        return self.output + self.kind.value.format(error=said[0], limit=said[1])


def off(error: float, limit: float, local: float, most: float, output: str = "") -> Off:
    """A floating output, by its whole, or by a stretch where that is further over `most`."""
    if not math.isfinite(error):
        kind = Kind.CONSTANT if math.isfinite(local) else Kind.NOT_FINITE
        return Off(error=math.inf, limit=limit, kind=kind, output=output)
    whole = Off(error=error, limit=limit, output=output)
    part = Off(error=local, limit=most, kind=Kind.PART, output=output)
    return worst((whole, part)) or whole


def worst(found: Iterable[Off]) -> Off | None:
    """The one that breaks its limit by most; None where all fit."""
    return max((o for o in found if not o.fits), key=lambda o: o.times, default=None)


def named(number: int, count: int) -> str:
    """How one of so many outputs is called, before what is said of it."""
    return f"output {number + 1} of {count}: " if count > 1 else ""


def told_apart(error: float, limit: float) -> tuple[str, str]:
    """Both as they are printed: with two digits, or as many as it takes to show which is larger."""
    for digits in range(1, 17):
        said, end = f"{error:.{digits}e}", f"{limit:.{digits}e}"
        if said != end:
            break
    return said, end
