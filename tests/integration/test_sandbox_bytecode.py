"""Bytecode for an interpreter that has none of torch's: made once, found by all that is started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import importlib.util

from pike_hpc.evaluate.alone import START
from pike_hpc.sandbox import Toolchain, with_bytecode

pytestmark = pytest.mark.torch

TOOLS = Toolchain(read_only=(Path("/opt/cuda"),), env={"PATH": "/bin"})


def interpreter(folder: Path, prefix: Path) -> str:
    """One whose modules have their bytecode below `prefix` unless told otherwise."""
    python = folder / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *pycache_prefix*) exec {sys.executable} "$@";; esac\n'
        f'exec {sys.executable} -X pycache_prefix={prefix} "$@"\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    return str(python)


def cached(prefix: Path, module: str) -> Path:
    """Where a module's bytecode lies below `prefix`."""
    origin = importlib.util.find_spec(module).origin
    name = Path(importlib.util.cache_from_source(origin)).name
    return prefix / Path(origin).parent.relative_to("/") / name


def test_one_that_has_its_own_is_left_alone(tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    bytecode = cached(theirs, "torch")
    bytecode.parent.mkdir(parents=True)
    bytecode.touch()
    assert with_bytecode(TOOLS, ours, python=interpreter(tmp_path, theirs)) is TOOLS
    assert not ours.exists()


def test_one_that_has_none_is_given_some_that_everybody_may_read(tmp_path):
    ours = tmp_path / "ours"
    os.umask(0o077)
    try:
        tools = with_bytecode(TOOLS, ours, python=interpreter(tmp_path, tmp_path / "none"))
    finally:
        os.umask(0o022)
    assert tools.read_only == (*TOOLS.read_only, ours)
    assert tools.env == {"PATH": "/bin", "PYTHONPYCACHEPREFIX": str(ours)}
    for module in ("torch", "torch._dynamo", "torch.utils.cpp_extension"):
        assert cached(ours, module).is_file()
    assert all(folder.stat().st_mode & 0o055 == 0o055 for folder in ours.rglob("*/"))


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/false"])
def test_where_it_cannot_be_made_nothing_changes(tmp_path, python):
    assert with_bytecode(TOOLS, tmp_path / "ours", python=python) is TOOLS


@pytest.mark.parametrize("prefix", ["/some/where", None])
def test_whatever_is_started_alone_looks_there(tmp_path, prefix):
    (tmp_path / "__init__.py").write_text("import sys\ndef main(): print(sys.pycache_prefix)\n")
    env = {"PYTHONPYCACHEPREFIX": prefix} if prefix else {}
    said = subprocess.run(
        [sys.executable, "-I", "-B", "-c", START, str(tmp_path)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == str(prefix)
