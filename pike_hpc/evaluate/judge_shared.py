"""What a runner is given to start from: layouts, sources, weights, and how much room there is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch

from pike_hpc.evaluate.buffers import SharedBuffer
from pike_hpc.evaluate.judge_memory import Place
from pike_hpc.evaluate.layout import ALIGNMENT, Slot, buffer_bytes

MAX_PLACES, PLACES_BYTES = 32, 4 << 20
"""Calls that one window may hold, and what their outputs may take together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What judge and runner agree on: trees and slots."""

    input_tree: Any
    input_slots: tuple[Slot, ...]
    output_tree: Any
    output_slots: tuple[Slot, ...]
    weight_slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What a runner is given to start from, beside its own buffers."""

    frame: Frame
    device: torch.device
    place: Place
    """Where inputs and outputs lie."""
    construct: str
    """Where constructors make their tensors: the device for large models, else the CPU."""
    places: int
    """Calls whose outputs have room at once (see `places_for`)."""
    resets: bool
    """Whether a call is preceded by putting back what the last one left in the model."""
    threads: int
    spins: bool
    """Whether there are cores to spare for spinning at the page while it is timed."""
    task: str
    weights: SharedBuffer
    other_weights: SharedBuffer

    @property
    def stride(self) -> int:
        """Bytes from one call's outputs to the next one's."""
        return -(-buffer_bytes(self.frame.output_slots) // ALIGNMENT) * ALIGNMENT

    @property
    def buffer_bytes(self) -> tuple[int, int]:
        """Sizes of the input and of the output buffer."""
        return buffer_bytes(self.frame.input_slots), self.stride * self.places

    def setup(self, candidate: str | None) -> bytes:
        """The JSON a runner reads. `candidate` is the program's source, None for the task's."""
        text = json.dumps(
            {
                "device": self.device.type,
                "memory": self.place,
                "construct": self.construct,
                "resets": self.resets,
                "threads": self.threads,
                "places": self.places,
                "buffer_bytes": self.buffer_bytes,
                "task": self.task,
                "candidate": candidate,
                "input_tree": self.frame.input_tree,
                "output_tree": self.frame.output_tree,
                "input_slots": [s.as_json() for s in self.frame.input_slots],
                "output_slots": [s.as_json() for s in self.frame.output_slots],
                "weight_slots": [s.as_json() for s in self.frame.weight_slots],
            }
        )
        return text.encode("ascii")


def places_for(frame: Frame, place: Place, *, resets: bool) -> int:
    """Calls that a window may hold.

    One on a CPU, where a program could do one call's work in the next one's time; on a GPU the
    next input is copied after what is queued there.
    """
    if place is not Place.DEVICE or resets:
        return 1
    return max(1, min(MAX_PLACES, PLACES_BYTES // buffer_bytes(frame.output_slots)))
