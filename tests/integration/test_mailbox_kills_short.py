"""The mailbox's soak for seconds: its users are killed before steps that chance chooses."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "bench" / "mailbox_kills.py"


def test_killed_all_the_time_nothing_is_lost_and_nothing_committed_twice():
    words = ["--kills", "40", "--messages", "120", "--seed", "3"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.stdout, done.stderr
    for way in json.loads(done.stdout)["ways"].values():
        assert (way["lost"], way["committed_twice"]) == (0, 0)
        assert way["journalled"] == 120
        assert sum(way["kills"].values()) >= 40
        verbs = {step.partition(":")[0] for step in way["kills_by_step"]}
        assert len(verbs) >= 4, way["kills_by_step"]
        assert "discard" in verbs, way["kills_by_step"]
    assert done.returncode == 0
