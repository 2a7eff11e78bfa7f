"""Options of a strategy: `search.options` of the workflow made into a frozen dataclass.

Contract: every option is a whole number of at least the least value that its field names; an
unknown name or another type is one clear error with the nearest valid name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from pike_hpc.records import UsageError, did_you_mean

Options = TypeVar("Options")


def option(default: int, *, least: int) -> Any:
    """A field for a whole number of at least `least`."""
    return dataclasses.field(default=default, metadata={"least": least})


def parse_options(kind: type[Options], given: Mapping[str, object], *, strategy: str) -> Options:
    """The options of `strategy` in a mapping from the workflow. Raises UsageError."""
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name, value in given.items():
        where = f"search.options.{name}"
        if name not in fields:
            raise UsageError(
                f"strategy {strategy} has no option {name!r}",
                where=where,
                valid=", ".join(fields) or "none: it takes no options",
                fix=did_you_mean(name, fields),
            )
        least = fields[name].metadata["least"]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UsageError(
                f"{value!r} is not valid for option {name}",
                where=where,
                valid=f"a whole number of at least {least}",
            )
    return kind(**given)
