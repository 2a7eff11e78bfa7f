"""The shim inside a runner: builds one program from source and serves calls at a doorbell.

The same code runs the reference and a candidate, inside the sandbox, as a package of its own that
imports nothing of this project (`lane` starts it by path). Reading order: protocol, doorbell,
seal, program, places, drawn, weights, fit, trees, state, compile_cache, serve.
"""

from .compile_cache import CACHE_BYTES
from .compile_cache import HEAD as CACHE_HEAD
from .doorbell import PAGE_BYTES, Page
from .places import STATISTICS, slots_of
from .profile import HEAD, MAGIC, ROW, SHEET_BYTES, TOP
from .protocol import (
    BELL,
    DONE,
    MIXTURE_BITS,
    NO_MEMORY,
    Code,
    Op,
    Source,
    code_of,
    is_other,
    kept_answers,
)
from .serve import main
from .state import STATE_BYTES, State
from .trees import unflatten
from .weights import Hands, layers_made, unwritten, watching

__all__ = [
    "BELL",
    "CACHE_BYTES",
    "CACHE_HEAD",
    "DONE",
    "HEAD",
    "MAGIC",
    "MIXTURE_BITS",
    "NO_MEMORY",
    "PAGE_BYTES",
    "ROW",
    "SHEET_BYTES",
    "STATE_BYTES",
    "STATISTICS",
    "TOP",
    "Code",
    "Hands",
    "Op",
    "Page",
    "Source",
    "State",
    "code_of",
    "is_other",
    "kept_answers",
    "layers_made",
    "main",
    "slots_of",
    "unflatten",
    "unwritten",
    "watching",
]
