"""Torch's bytecode for an interpreter that has none beside it, as where uv put it.

Runners and judges write no bytecode, so each of them would compile a thousand modules again.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from pike_hpc.sandbox.toolchain import Toolchain

_log = logging.getLogger(__name__)

PREFIX = "PYTHONPYCACHEPREFIX"
"""Isolated interpreters (-I) don't read it: what starts one sets sys.pycache_prefix by it."""

_LACKS = (
    "import importlib.util, os, sys; spec = importlib.util.find_spec('torch'); "
    "sys.exit(int(spec is not None and not os.path.exists(spec.cached)))"
)
_IMPORTS = """
import contextlib, importlib
for name in ("torch", "torch.utils.cpp_extension", "torch._inductor.compile_fx", "triton"):
    with contextlib.suppress(Exception):
        importlib.import_module(name)
"""
_TIMEOUT_S = 180.0
"""On a cold parallel file system; on a local disk it takes 8 s (two cores, torch 2.13)."""


def with_bytecode(tools: Toolchain, folder: Path, *, python: str = sys.executable) -> Toolchain:
    """The tools and, where `python` has no bytecode of torch beside it, some in `folder`.

    `folder` need not exist. Nothing is added where making it fails: all works without it.
    """
    try:
        if _run(python, "-B", "-c", _LACKS) == 0:
            return tools
        _run(python, "-X", f"pycache_prefix={folder}", "-c", _IMPORTS)
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("torch's bytecode could not be made: %s", error)
        return tools
    if not folder.is_dir():
        return tools
    return replace(
        tools,
        read_only=(*tools.read_only, folder),
        env={**tools.env, PREFIX: str(folder)},
    )


def _run(python: str, *arguments: str) -> int:
    """The exit status. Raises OSError, SubprocessError."""
    return subprocess.run(
        [python, "-I", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin"},
        umask=0o022,  # whoever runs candidates reads it, too
        timeout=_TIMEOUT_S,
        check=False,
    ).returncode
