"""What an agent's process imports: a look at a run is taken every few minutes, on a login node."""

import subprocess
import sys

NOT_NEEDED = {
    "asyncio": "of launchers, which start jobs",
    "h5py": "of the archive, which the last agent builds",
    "openai": "of models that are asked",
    "pandas": "of reports",
    "pike_hpc.evaluate.lane": "of those who judge",
    "pike_hpc.sandbox": "of those who judge",
    "pike_hpc.worker": "of those who judge",
    "submitit": "of launchers, which start jobs",
    "torch": "of those who judge",
}

PROBE = """
import importlib, sys
importlib.import_module("pike_hpc.cli.agent")
print(*sys.modules)
"""


def test_an_agent_imports_no_more_than_a_look_needs():
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60, check=True
    )
    imported = set(done.stdout.split())
    assert "pike_hpc.agent.controller" in imported
    assert imported & NOT_NEEDED.keys() == set()
