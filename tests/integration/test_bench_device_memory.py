"""The benchmark of shared memory runs where there is no GPU, and says that it had none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

PROGRAM = Path(__file__).resolve().parents[1] / "bench/device_memory.py"


def test_its_table_has_every_part():
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--simulated", "--rounds", "20"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout)
    assert (table["memory"], table["why_not_cuda"]) == ("simulated", "asked for")
    for size in ("4096", "4194304"):
        assert set(table["making"][size]) == {"export", "import", "close", "ordinary"}
        assert table["copying"][size]["out_shared"]["gb_per_s"] > 0
        assert table["null_window"][size]["right"], "a window gave another answer than its input"
    assert table["pipe_bell"]["p50_us"] > 0
    assert table["page_bell"]["rounds"] == 20
