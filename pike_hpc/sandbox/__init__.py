"""One door to everything that keeps an untrusted program apart: pure argv, chosen and measured."""

from pike_hpc.sandbox.bytecode import with_bytecode
from pike_hpc.sandbox.choose import answer, available, choose, python_trial
from pike_hpc.sandbox.command import command
from pike_hpc.sandbox.guard import protect_memory
from pike_hpc.sandbox.host import (
    HostFacts,
    give_scratch,
    interpreter,
    look,
    python_prefixes,
)
from pike_hpc.sandbox.image import Image, inspect
from pike_hpc.sandbox.leftovers import forget_ended
from pike_hpc.sandbox.levels import ATTACKS, LEVELS, level, meets
from pike_hpc.sandbox.probe import measure
from pike_hpc.sandbox.spec import SCRATCH, Engine, SandboxSpec, environment, home
from pike_hpc.sandbox.toolchain import Toolchain, toolchain

__all__ = [
    "ATTACKS",
    "LEVELS",
    "SCRATCH",
    "Engine",
    "HostFacts",
    "Image",
    "SandboxSpec",
    "Toolchain",
    "answer",
    "available",
    "choose",
    "command",
    "environment",
    "forget_ended",
    "give_scratch",
    "home",
    "inspect",
    "interpreter",
    "level",
    "look",
    "measure",
    "meets",
    "protect_memory",
    "python_prefixes",
    "python_trial",
    "toolchain",
    "with_bytecode",
]
