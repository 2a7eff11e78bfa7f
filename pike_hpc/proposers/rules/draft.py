"""A candidate in the making: the reference's source and what rules have added to it.

Each rule takes a Draft and gives the next one, so rules compose by being applied in turn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pike_hpc.proposers.rules.toolchain import Toolchain


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where the candidate will be built and run."""

    toolchain: Toolchain
    device_kind: str
    """A GPU's model, or cpu."""

    @property
    def on_cpu(self) -> bool:
        """Whether the device is a CPU."""
        return self.device_kind == "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The parts of a candidate file. `emit` puts them together."""

    source: str
    """The reference, with whatever edits rules made in it."""
    imports: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    """Functions that the candidate defines beside the reference's."""
    steps: tuple[str, ...] = ()
    """Statements on `fast`, a copy of the model, run once at the first call."""
    before: tuple[str, ...] = ()
    """Expressions of `{x}`, applied to each input of each call."""
    after: tuple[str, ...] = ()
    """Expressions of `{x}`, applied to the output of each call."""
    compile_call: str | None = None
    """An expression of `{x}` that compiles a function."""
    own_output: bool = True
    """False where a later call may overwrite the output, which is then copied."""
    warm_up: bool = False
    """Whether the copy must run once, uncompiled, before it is compiled."""

    def plus(self, **parts: Any) -> Draft:
        """This draft with parts added: tuples are extended, other fields replaced."""
        merged: dict[str, Any] = {
            name: tuple(dict.fromkeys((*getattr(self, name), *value)))
            if isinstance(value, tuple)
            else value
            for name, value in parts.items()
        }
        return dataclasses.replace(self, **merged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rewrite of a task's source."""

    name: str
    summary: str
    """What the candidate does differently, one line for a person."""
    precondition: str
    """When it applies, one line for a person."""
    apply: Callable[[Draft, Setting], Draft | str]
    """The next draft, or the reason why the rule declines."""
    stock: bool = False
    """Whether it is a setting that any user of torch could flip: never a find of the search."""
    needs_compiler: bool = False
