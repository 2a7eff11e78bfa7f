"""The shim inside a runner: builds one program from source and serves calls at a doorbell.

The same code runs the reference and a candidate, inside the sandbox, as a package of its own that
imports nothing of this project (`lane` starts it by path). Reading order: protocol, program, trees,
state, serve.
"""

from .program import ENTRIES, seed_everything
from .protocol import BELL, FILES, Code, Op, Refused, Source
from .serve import Runner, main
from .state import STATE_BYTES, State
from .trees import flatten, record, unflatten, views

__all__ = [
    "BELL",
    "ENTRIES",
    "FILES",
    "STATE_BYTES",
    "Code",
    "Op",
    "Refused",
    "Runner",
    "Source",
    "State",
    "flatten",
    "main",
    "record",
    "seed_everything",
    "unflatten",
    "views",
]
