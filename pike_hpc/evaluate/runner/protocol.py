"""What judge and runner say to each other, and how a request ended."""

from __future__ import annotations

import enum
import re
import struct
import traceback
from typing import Any

import torch

BELL = struct.Struct("<BBHQ")
"""What the judge rings: an Op, where weights come from, a place of inputs and outputs, and a
number: the constructor's seed, the bits of a mixture or the key of a call's input."""

DONE = struct.Struct("<B")
"""What is answered: a Code."""

FILES = 10
"""bell, done, page, setup, inputs, outputs, weights, other weights, profile, room for a compile
cache: in this order."""

MAX_LIBRARIES = 16
"""Descriptors that may follow: extensions built for this program, as `libraries` of the setup. One
more may come last: its compile cache, where the setup says so."""

KEPT_BYTES = 1 << 26
"""Of larger answers only the last two are kept."""


def kept_answers(size_bytes: int) -> int:
    """How many of its last answers a runner keeps: enough to see two buffers that take turns.

    Args:
        size_bytes: of one answer.
    """
    return 3 if size_bytes <= KEPT_BYTES else 2


class Op(enum.IntEnum):
    """What the judge asks for."""

    IMPORT = 1
    LOAD = 2
    """A fresh model, with weights from where the bell says."""
    RELOAD = 3
    """Weights from there into the model that lives."""
    CALL = 4
    NULL = 5
    """Copy the last outputs again, with no model: the constant of the protocol."""
    AGAIN = 6
    """Copy the oldest answer that is kept: has a later call changed it?"""
    RESET = 7
    """Put back what the model kept beside its parameters when it had been loaded."""
    WATCH = 8
    """From now on look for rings in the page, spinning."""
    REST = 9
    """Back to the pipe."""
    TOUCH = 11
    """Have the GPU turn to this process."""
    PROFILE = 10
    """Profile a few calls on the last input and write the profile's sheet."""
    KEEP = 12
    """Pack what compilers left in the caches, for the next run of the same program."""
    SHED = 13
    """Give back the device's memory that holds nothing now."""


class Source(enum.IntEnum):
    """Where a model's weights come from."""

    STATE = 0
    """The weights buffer: those that are judged with."""
    SEED = 1
    """The constructor, from its seed alone."""
    OTHER = 2
    """The buffer of other weights, which answers must follow."""
    MIXED = 3
    """Each from one of the two buffers: see `is_other`."""


MIXTURE_BITS = 64


def is_other(bits: int, slot: int) -> bool:
    """Whether a weight of a mixture is the other one.

    Args:
        bits: the bell's number.
        slot: the weight's place in the setup; MIXTURE_BITS further on the bits begin again.
    """
    return bool(bits >> slot % MIXTURE_BITS & 1)


class Code(enum.IntEnum):
    """How it went. All but OK and PLACED end the evaluation, NEED_SEED after one more try."""

    OK = 0
    RAISED = 1
    IMPORT_FAILED = 2
    COMPILE_FAILED = 3
    NO_MODEL = 4
    NOT_A_MODULE = 5
    CONSTRUCTOR_RAISED = 6
    NEED_SEED = 7
    """The weights have no place in this model."""
    PREPARE_RAISED = 8
    OUT_OF_MEMORY = 9
    OUTPUT_TREE = 10
    OUTPUT_TYPE = 11
    OUTPUT_SHAPE = 12
    OUTPUT_DTYPE = 13
    PLACED = 14
    """Loaded, with weights in places that were guessed: a wrong answer may come from that."""
    OUTPUT_DEVICE = 15


class Refused(Exception):
    """An answer that can't be given to the judge."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


class phase:  # noqa: N801 - reads as the statement it is
    """Name the failure of a block, unless it names itself: `with phase(Code.IMPORT_FAILED):`."""

    def __init__(self, code: Code) -> None:
        self._code = code

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and not isinstance(error, Refused):
            traceback.print_exception(kind, error, trace)
            code = code_of(error)
            raise Refused(self._code if code is Code.RAISED else code) from None


NO_MEMORY = re.compile(
    r"out[ _]of[ _]memory|(?<!Device)MemoryError|bad_alloc|can(no|')t allocate memory"
    r"|DefaultCPUAllocator|ALLOC(ATION)?_FAILED|MemoryAllocation",
    re.IGNORECASE,
)
"""How host, CUDA, Triton, cuBLAS and cuDNN say it, also where torch's allocator was not asked:
kernels that are loaded late, handles and workspaces take their memory themselves. Not a
DeviceMemoryError, which names what the driver said: a runner may not be able to map buffers."""


def code_of(error: BaseException) -> Code:
    """The code of what a program raised."""
    if isinstance(error, Refused):
        return error.code
    try:
        text = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    except Exception:  # the program's own __str__
        return Code.RAISED
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or NO_MEMORY.search(text):
        return Code.OUT_OF_MEMORY
    if text.startswith(("torch._inductor.", "torch._dynamo.exc.Backend", "triton.compiler.")):
        return Code.COMPILE_FAILED
    return Code.RAISED
