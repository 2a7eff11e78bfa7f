"""One runner of the pair that is timed: windows of calls, and what it answered."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch

from pike_hpc.evaluate.judge_link import RunnerLink
from pike_hpc.evaluate.runner import Op

Window = tuple[torch.Tensor, ...]
"""Inputs of the calls under one clock, the same for both sides."""


class WrongAnswer(Exception):
    """A timed output is wrong; the message says how."""


@dataclass(slots=True)
class Side:
    """One runner of the pair."""

    link: RunnerLink
    goes_on: bool = False
    """Whether each window goes on from a call of the one before, of a model that is put back first:
    what a call leaves to the next is paid for there, and not thrown away."""
    answers: list[torch.Tensor] = field(default_factory=list)
    """Room for a window's answers: (calls, bytes) each."""
    before: Window | None = None
    """The window that was run last, from which the next goes on: the same on both sides, which run
    the same ones in turn."""

    def make_room(self, count: int, calls: int) -> None:
        """Have room for the answers to `count` windows of `calls` calls."""
        if self.answers and self.answers[0].shape[0] != calls:
            self.answers.clear()
        while len(self.answers) < count:
            self.answers.append(self.link.spaces(calls))

    def run(
        self,
        windows: Sequence[Window],
        op: Op = Op.CALL,
        *,
        keep: bool = True,
        looks: Collection[int] = (),
        warmth: Window | None = None,
    ) -> list[float]:
        """The latency of a call of each window, in milliseconds.

        Args:
            windows: what it is asked.
            op: what it is asked to do.
            keep: whether its answers are kept.
            looks: indices of windows after which the inputs must be what they were.
            warmth: what it is asked before, untimed: a call after a rest is slower than others,
                by more than a short model takes.

        Raises:
            WrongAnswer: they are not.
            RunnerFailed: it did not answer.
        """
        self.link.watch()  # the other side rests: two that spin may slow each other
        rooms = self.answers if keep else [self.link.spaces(len(windows[0]))] * len(windows)
        if warmth is not None:
            self.link.windows(op, warmth, rooms[0][: len(warmth)])
        found = []
        for number, (window, answers) in enumerate(zip(windows, rooms, strict=False)):
            before = self.before if self.goes_on and op is Op.CALL else None
            if before is None:
                found.append(self.link.windows(op, window, answers))
            else:
                self.link.windows(op, before, answers)
                found.append(self.link.windows(op, window, answers, goes_on=True))
            self.before = window if op is Op.CALL else self.before
            if number in looks and self.link.inputs_changed(window):
                raise WrongAnswer("it changed its inputs, which the caller owns")
        self.link.rest()
        return found
