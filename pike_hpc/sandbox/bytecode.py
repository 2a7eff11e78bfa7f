"""Torch's bytecode for an interpreter that has none beside it, as where uv put it.

Runners and judges write no bytecode, so each of them would compile a thousand modules again.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path

from pike_hpc.machine import ask
from pike_hpc.sandbox.host import HostFacts
from pike_hpc.sandbox.spec import Engine, environment
from pike_hpc.sandbox.toolchain import Toolchain

_log = logging.getLogger(__name__)

PREFIX = "PYTHONPYCACHEPREFIX"
"""Isolated interpreters (-I) don't read it: what starts one sets sys.pycache_prefix by it. Bytecode
beside sources is not read then; some hundred small modules of others are compiled each time."""

_LACKS = """
import importlib.util, os, sys
spec = importlib.util.find_spec("torch")
if spec is not None:
    last = os.path.join(os.path.dirname(spec.origin), "_inductor", "compile_fx.py")
    cached = spec.cached, importlib.util.cache_from_source(last)
    sys.exit(0 if all(map(os.path.exists, cached)) else 9)
"""
_LACKING = 9
_IMPORTS = """
import contextlib, importlib
for name in ("torch", "torch.utils.cpp_extension", "torch._inductor.compile_fx", "triton"):
    with contextlib.suppress(Exception):
        importlib.import_module(name)
"""
_READABLE = 'umask 022 && exec "$0" "$@"'
"""Whoever runs candidates reads it, too. Python writes some before it runs a line of ours."""
_LOOK_S, _MAKE_S = 30.0, 180.0
"""On a cold parallel file system. On a local disk making it takes 8 to 19 s by how busy two cores
are, and 72 MB (torch 2.13, 2026-11-28)."""


def with_bytecode(
    tools: Toolchain,
    folder: Path,
    engine: Engine,
    facts: HostFacts,
    *,
    python: str = sys.executable,
) -> Toolchain:
    """The tools and, where `python` has no bytecode of torch beside it, some in `folder`.

    Nothing is added for an image, which has its own Python; nor where a candidate could write
    there, as one of our own uid without a sandbox could: judges read it. Nor where making it fails.

    Args:
        tools: what a sandbox is shown besides.
        folder: a new one, or to be.
        engine: what candidates are kept in.
        facts: of this host.
        python: the interpreter.
    """
    exposed = engine is Engine.NONE and not facts.is_root
    if engine.runs_image or exposed:
        return tools
    environ = environment(folder, threads=1, extra={"CUDA_VISIBLE_DEVICES": ""})
    if ask((python, "-I", "-B", "-c", _LACKS), _LOOK_S, environ=environ).status != _LACKING:
        return tools
    command = (python, "-I", "-X", f"pycache_prefix={folder}", "-c", _IMPORTS)
    made = ask(("/bin/sh", "-c", _READABLE, *command), _MAKE_S, environ=environ)
    if made.status != 0:
        _log.warning("not all of torch's bytecode could be made: %s", made.complaint)
    if not folder.is_dir():
        return tools
    return replace(
        tools,
        read_only=(*tools.read_only, folder),
        env={**tools.env, PREFIX: str(folder)},
    )
