"""One thing that doctor has tried, and how a list of things is tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from pike_hpc.records import PikeError


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One thing tried."""

    name: str
    state: str
    """ok, warn, fail or unknown."""
    detail: str
    fix: str = ""
    hosts: tuple[str, ...] = ()
    """Named in what is said."""
    accounts: tuple[str, ...] = ()


def tried(tries: Mapping[str, Callable[[], Check]]) -> Iterator[Check]:
    """Each check by its name; one that raises has failed, and says why."""
    for name, attempt in tries.items():
        try:
            yield dataclasses.replace(attempt(), name=name)
        except PikeError as error:
            yield Check(name, "fail", error.what, error.fix or "")
        except OSError as error:
            yield Check(name, "fail", str(error))
