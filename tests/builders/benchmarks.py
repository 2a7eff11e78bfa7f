"""A benchmark's script: run as anybody would, with the document that it prints, or imported."""

import contextlib
import importlib
import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[1] / "bench"


def benchmark(script: str, *words: str, timeout_s: float = 280):
    """(exit status, document, stderr) of tests/bench/SCRIPT. Fails where it printed none."""
    done = subprocess.run(
        [sys.executable, str(BENCH / script), *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@contextlib.contextmanager
def imported(name: str):
    """The module tests/bench/NAME.py, which finds the others beside it meanwhile."""
    sys.path.insert(0, str(BENCH))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCH))
