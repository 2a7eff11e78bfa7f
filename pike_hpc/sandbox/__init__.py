"""One door to everything that keeps an untrusted program apart: pure argv, chosen and measured."""

from pike_hpc.sandbox.choose import available, choose, python_trial
from pike_hpc.sandbox.command import command
from pike_hpc.sandbox.host import HostFacts, give_scratch, look, python_prefixes
from pike_hpc.sandbox.spec import SCRATCH, Engine, SandboxSpec, environment, home

__all__ = [
    "SCRATCH",
    "Engine",
    "HostFacts",
    "SandboxSpec",
    "available",
    "choose",
    "command",
    "environment",
    "give_scratch",
    "home",
    "look",
    "python_prefixes",
    "python_trial",
]
