"""Bytecode for an interpreter that has none of torch's: made once, found by all that is started."""

import dataclasses
import importlib.util
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import pike_hpc.evaluate as evaluate
from pike_hpc.evaluate.alone import START
from pike_hpc.evaluate.bailiff import JudgeProcess
from pike_hpc.evaluate.builder import _START_BUILD
from pike_hpc.sandbox import Engine, Toolchain, look, with_bytecode

pytestmark = pytest.mark.torch

TOOLS = Toolchain(read_only=(Path("/opt/cuda"),), env={"PATH": "/bin"})
HOST = look()


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


def cached(prefix: Path, source: str | Path) -> Path:
    """Where a source's bytecode lies below `prefix`."""
    name = Path(importlib.util.cache_from_source(str(source))).name
    return prefix / Path(source).parent.relative_to("/") / name


def sources(*modules: str) -> list[str]:
    return [importlib.util.find_spec(module).origin for module in modules]


def planted(prefix: Path, source: Path, text: str) -> None:
    """Bytecode of `text` in the place of a source's, which nobody holds against it."""
    written = prefix / "text.py"
    prefix.mkdir(exist_ok=True)
    written.write_text(text, encoding="utf-8")
    py_compile.compile(
        str(written),
        cfile=str(cached(prefix, source)),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        doraise=True,
    )


def test_one_that_has_its_own_is_left_alone(tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for source in sources("torch", "torch._inductor.compile_fx"):
        cached(theirs, source).parent.mkdir(parents=True)
        cached(theirs, source).touch()
    python = interpreter(tmp_path, theirs)
    assert with_bytecode(TOOLS, ours, Engine.BUBBLEWRAP, HOST, python=python) is TOOLS
    assert not ours.exists()


def test_one_that_has_none_is_given_some_that_everybody_may_read(tmp_path):
    ours = tmp_path / "ours"
    python = interpreter(tmp_path, tmp_path / "none")
    before = os.umask(0o077)
    try:
        tools = with_bytecode(TOOLS, ours, Engine.BUBBLEWRAP, HOST, python=python)
    finally:
        os.umask(before)
    assert tools.read_only == (*TOOLS.read_only, ours)
    assert tools.env == {"PATH": "/bin", "PYTHONPYCACHEPREFIX": str(ours)}
    wanted = sources("torch", "torch._inductor.compile_fx", "torch.utils.cpp_extension")
    assert all(cached(ours, source).is_file() for source in wanted)
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in (ours, *ours.rglob("*")))


@pytest.mark.parametrize(
    ("engine", "uid"), [(Engine.APPTAINER, 0), (Engine.PODMAN_HPC, 1000), (Engine.NONE, 1000)]
)
def test_none_is_made_for_an_image_or_where_a_candidate_could_write_it(tmp_path, engine, uid):
    ours, host = tmp_path / "ours", dataclasses.replace(HOST, uid=uid)
    python = interpreter(tmp_path, tmp_path / "none")
    assert with_bytecode(TOOLS, ours, engine, host, python=python) is TOOLS
    assert not ours.exists()


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/false"])
def test_where_nobody_can_be_asked_nothing_changes(tmp_path, python):
    ours = tmp_path / "ours"
    assert with_bytecode(TOOLS, ours, Engine.UNSHARE, HOST, python=python) is TOOLS


@pytest.mark.parametrize("prefix", ["/some/where", None])
def test_a_runner_looks_there(tmp_path, prefix):
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


def test_a_build_looks_there(tmp_path):
    runner = Path(evaluate.__file__).with_name("runner")
    planted(tmp_path / "ours", runner / "__init__.py", "")
    text = "def main(address): print('from there,', address)\n"
    planted(tmp_path / "ours", runner / "build.py", text)
    said = subprocess.run(
        [sys.executable, "-I", "-B", "-c", _START_BUILD, str(runner), "an address"],
        env={"PYTHONPYCACHEPREFIX": str(tmp_path / "ours")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "from there, an address\n"


def test_a_judge_looks_there(tmp_path):
    source = Path(evaluate.__file__).with_name("judge_process.py")
    planted(tmp_path / "ours", source, "def main(fd, folder): print('from there,', folder)\n")
    env = {"PYTHONPYCACHEPREFIX": str(tmp_path / "ours")}
    judge = JudgeProcess(sys.executable, tmp_path, env)
    try:
        assert f"from there, {tmp_path}" in judge.last_words()
    finally:
        judge.end()
