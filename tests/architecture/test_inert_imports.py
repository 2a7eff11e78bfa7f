"""Importing a module does nothing: no output, no file, no thread, no torch."""

import fnmatch
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

NEED_TORCH = ("pike_hpc.tasks.load", "pike_hpc.evaluate.judge*", "pike_hpc.evaluate.runner*")
PROGRAMS = ("pike_hpc.__main__",)
"""Run, never imported."""

PROBE = """
import importlib, json, os, sys, threading
sys.dont_write_bytecode = True
before = dict(os.environ)
for name in sys.argv[1:]:
    importlib.import_module(name)
facts = {
    "torch": sorted({"torch", "triton"} & set(sys.modules)),
    "threads": threading.active_count(),
    "environment": sorted(k for k in {*before, *os.environ} if before.get(k) != os.environ.get(k)),
}
os.write(3, json.dumps(facts).encode())
"""


def modules() -> list[str]:
    """Every module of the package that a login node may import."""
    found = []
    for file in sorted((ROOT / "pike_hpc").rglob("*.py")):
        if "suites" in file.parts:
            continue
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        torch = any(fnmatch.fnmatchcase(name, pattern) for pattern in NEED_TORCH)
        if not torch and name not in PROGRAMS:
            found.append(name)
    return found


def faults(names: list[str], home: Path, source: Path = ROOT) -> list[str]:
    """What importing these modules in one fresh process did beside defining things."""
    home.mkdir()
    facts_file = home.parent / f"{home.name}.json"
    command = f'exec "$0" -c "$1" "${{@:2}}" 3>{facts_file}'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, PROBE, *names],
        cwd=home,
        env={
            "HOME": str(home),
            "TMPDIR": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(source),
            "PYTHONWARNINGS": "error",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = []
    if done.returncode:
        return [f"does not import: {done.stderr.strip()[-800:]}"]
    facts = json.loads(facts_file.read_text())
    if done.stdout or done.stderr:
        found.append(f"prints {done.stdout + done.stderr!r}")
    files = [str(path.relative_to(home)) for path in home.rglob("*")]
    if files:
        found.append(f"writes {files}")
    if facts["torch"]:
        found.append(f"reaches {facts['torch']}")
    if facts["threads"] != 1:
        found.append(f"starts threads: {facts['threads']}")
    if facts["environment"]:
        found.append(f"changes the environment: {facts['environment']}")
    return found


def culprits(names: list[str], folder: Path) -> dict[str, list[str]]:
    """The modules at fault, found by halving."""
    found = faults(names, folder / f"{len(names)}-{names[0]}")
    if not found or len(names) == 1:
        return {names[0]: found} if found else {}
    half = len(names) // 2
    parts = culprits(names[:half], folder) | culprits(names[half:], folder)
    return parts or {"these together: " + ", ".join(names): found}


def test_importing_does_nothing(tmp_path: Path) -> None:
    assert not culprits(modules(), tmp_path)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("print('hello')", "prints 'hello"),
        ("import sys; sys.stderr.write('x')", "prints 'x'"),
        ("open('left', 'w').close()", "writes ['left']"),
        ("import sys; sys.modules['torch'] = sys", "reaches ['torch']"),
        ("import threading; threading.Timer(2, int).start()", "starts threads"),
        ("import os; os.environ['A'] = 'b'", "changes the environment: ['A']"),
        ("raise ValueError('x')", "does not import"),
        ("import warnings; warnings.warn('x')", "does not import"),
    ],
)
def test_each_fault_is_seen(tmp_path: Path, code: str, fault: str) -> None:
    source = tmp_path / "lib"
    source.mkdir()
    (source / "loud.py").write_text(code + "\n")
    (found,) = faults(["json", "loud"], tmp_path / "home", source)
    assert found.startswith(fault)


IN_AN_IMAGE = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"no {name} in an image")

sys.meta_path.insert(0, Absent())
import pike_hpc.evaluate.judge_process
"""


@pytest.mark.torch
def test_the_judge_needs_nothing_of_ours_that_images_lack() -> None:
    """An image holds torch and what torch brings along; the rest stays with the worker."""
    pytest.importorskip("torch")
    lines = (ROOT / "setup.cfg").read_text().partition("install_requires =")[2].partition("\n\n")[0]
    ours = {re.split(r"[ ><=;]", line.strip())[0] for line in lines.splitlines() if line.strip()}
    absent = {"pyyaml": "yaml"}
    names = {absent.get(name, name) for name in ours} - {"filelock", "numpy"}
    assert "yaml" in names
    command = [sys.executable, "-c", IN_AN_IMAGE, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
