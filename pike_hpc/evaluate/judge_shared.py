"""What a runner is given to start from: layouts, sources, weights, and how much room there is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch

from pike_hpc.evaluate.buffers import SharedBuffer
from pike_hpc.evaluate.judge_memory import Place
from pike_hpc.evaluate.layout import ALIGNMENT, Slot, buffer_bytes
from pike_hpc.evaluate.runner import kept_answers

SMALL_BYTES = 256 << 10
"""Outputs up to this lie on the host: the judge takes them in microseconds, without a turn of the
GPU between the clock's stop and the answer."""

MAX_PLACES, PLACES_BYTES = 8, 64 << 20
"""Calls that one window may hold, and what their inputs or outputs may take together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What judge and runner agree on: trees and slots."""

    input_tree: Any
    input_slots: tuple[Slot, ...]
    output_tree: Any
    output_slots: tuple[Slot, ...]
    weight_slots: tuple[Slot, ...]
    parameters: tuple[int, ...]
    """Which of the weights are parameters; the others are buffers."""
    layers: tuple[tuple[str, tuple[int, ...]], ...]
    """Kind and weights of torch's own layers, in the order in which the reference makes them."""
    on_host: tuple[int, ...]
    """Which outputs the reference itself leaves on the host; all of them where the device is it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What a runner is given to start from, beside its own buffers."""

    frame: Frame
    device: torch.device
    place: Place
    """Where inputs lie."""
    answers: Place
    """Where outputs lie (see `answers_in`)."""
    construct: str
    """Where constructors make their tensors: the device for large models, else the CPU."""
    sealed: bool
    """Whether inputs are put there before their key is told, so that no turn of the GPU falls
    between the clock's start and the model."""
    places: int
    """Calls that a window has room for (see `places_for`)."""
    resets: bool
    """Whether a call is preceded by putting back what the last one left in the model."""
    threads: int
    spin_cpus: tuple[int, ...]
    """Where a runner spins at the page while it is timed; empty where no cores can be spared."""
    task: str
    weights: SharedBuffer
    other_weights: SharedBuffer

    @property
    def buffer_bytes(self) -> tuple[int, int]:
        """Sizes of the input and of the output buffer."""
        ends = self.frame.input_slots, self.frame.output_slots
        sizes = (-(-buffer_bytes(slots) // ALIGNMENT) * ALIGNMENT for slots in ends)
        inputs, outputs = (self.places * size for size in sizes)
        return inputs, outputs

    def setup(
        self, candidate: str | None, libraries: list[dict[str, Any]], *, cache: bool
    ) -> bytes:
        """The JSON a runner reads.

        Args:
            candidate: the program's source, None for the task's.
            libraries: what was built ahead for it, in the order of the files that follow.
            cache: whether a compile cache of it is the last of them.
        """
        text = json.dumps(
            {
                "device": self.device.type,
                "memory": [self.place, self.answers],
                "construct": self.construct,
                "resets": self.resets,
                "keeps": kept_answers(buffer_bytes(self.frame.output_slots)),
                "threads": self.threads,
                "sealed": self.sealed,
                "places": self.places,
                "spin_cpus": self.spin_cpus,
                "buffer_bytes": self.buffer_bytes,
                "task": self.task,
                "candidate": candidate,
                "libraries": libraries,
                "cache": cache,
                "input_tree": self.frame.input_tree,
                "output_tree": self.frame.output_tree,
                "input_slots": [s.as_json() for s in self.frame.input_slots],
                "output_slots": [s.as_json() for s in self.frame.output_slots],
                "on_host": self.frame.on_host,
                "weight_slots": [s.as_json() for s in self.frame.weight_slots],
                "parameters": self.frame.parameters,
                "layers": self.frame.layers,
            }
        )
        return text.encode("ascii")


def answers_in(frame: Frame, inputs: Place) -> Place:
    """Where outputs lie, given where inputs do."""
    small = buffer_bytes(frame.output_slots) <= SMALL_BYTES
    return Place.HOST if small else inputs


def places_for(frame: Frame, *, answers: Place, resets: bool) -> int:
    """Calls that a window may hold.

    One where something must be done between calls, and one where taking an answer is a turn of the
    GPU: each answer is taken before the next input can be read, or a runner could do the work of
    all calls in one.
    """
    if answers is Place.DEVICE or resets:
        return 1
    size = max(buffer_bytes(frame.input_slots), buffer_bytes(frame.output_slots))
    return max(1, min(MAX_PLACES, PLACES_BYTES // size))
