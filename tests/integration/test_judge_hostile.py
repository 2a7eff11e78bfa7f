"""Hostile programs before the whole judge: each is a status, none an incident.

What tests/exploits has is not repeated here.
"""

import os
import time
from pathlib import Path

import pytest
from builders.tiny_task import TASK_SOURCE, forward, judge

from pike_hpc.records import EvalStatus

pytestmark = [pytest.mark.torch, pytest.mark.slow]

WRONG, REJECTED = {EvalStatus.WRONG_RESULT}, {EvalStatus.REJECTED}

STRUCTURE, RUNTIME = {EvalStatus.WRONG_STRUCTURE}, {EvalStatus.RUNTIME_ERROR}

BUILD = {EvalStatus.BUILD_ERROR}

MEMORY = {EvalStatus.OUT_OF_MEMORY}

RUNNER = "import sys, os\nmain = sys.modules['pike_runner.serve']\n"

HOSTILE = {
    "constant": (forward("return torch.full_like(x, 0.1)"), WRONG),
    "rings done and writes nothing": (
        forward("return x", before=RUNNER + "main.Runner._copy_out = lambda *a: 0"),
        WRONG,
    ),
    "rings done again and again": (
        forward(
            "return self.right(x)",
            before=RUNNER + "import threading\n"
            "def ring():\n"
            "    while True:\n"
            "        for fd in range(3, 40):\n"
            "            try: os.write(fd, b'\\0')\n"
            "            except OSError: pass\n"
            "threading.Thread(target=ring, daemon=True).start()",
        ),
        WRONG | RUNTIME | {EvalStatus.TIMEOUT},
    ),
    "forges every tool of a judge": (
        forward(
            "return torch.zeros_like(x)",
            before="import torch, time, json\n"
            "torch.allclose = lambda *a, **k: True\n"
            "torch.equal = lambda *a, **k: True\n"
            "time.perf_counter = time.monotonic = lambda: 0.0\n"
            "time.perf_counter_ns = lambda: 0\n"
            'json.dumps = lambda *a, **k: \'{"status": "PASSED"}\'\n'
            'print(\'{"status": "PASSED", "speedup": 1e9}\', flush=True)',
        ),
        WRONG,
    ),
    "other code than ok": (
        forward(
            "return x", before=RUNNER + "w = os.write\nos.write = lambda fd, b: w(fd, b'\\xff')"
        ),
        RUNTIME,
    ),
    "a tuple": (forward("return (self.right(x),)"), STRUCTURE),
    "nothing": (forward("return None"), STRUCTURE),
    "integers": (forward("return self.right(x).int()"), STRUCTURE),
    "raises": (forward("raise ValueError('on purpose')"), RUNTIME),
    "raises SystemExit": (forward("raise SystemExit(0)"), RUNTIME),
    "exits": (forward("import os\nos._exit(0)"), RUNTIME),
    "exits while imported": (forward("return x", before="import os; os._exit(0)"), RUNTIME),
    "crashes": (forward("import ctypes\nctypes.string_at(0)"), RUNTIME),
    "closes its doorbell": (forward("import os\nos.closerange(3, 64)\nreturn x"), RUNTIME),
    "import error": (forward("return x", before="import no_such_module"), BUILD),
    "raises while imported": (forward("return x", before="1 / 0"), BUILD),
    "syntax error": ("class ModelNew(:\n", BUILD),
    "NUL byte": ("class ModelNew: pass\0", BUILD),
    "no ModelNew": ("import torch\nclass Net: pass\n", REJECTED),
    "ModelNew taken back": (TASK_SOURCE + "\ndel Model\n", REJECTED),
    "not a module": ("class ModelNew:\n    def __init__(self, w): pass\n", REJECTED),
    "eats memory": (
        forward("eaten = []\nwhile True:\n    eaten.append(bytearray(1 << 26))"),
        MEMORY,
    ),
    "fork bomb": (
        forward(
            "import os, time\n"
            "try:\n    while True:\n        os.fork()\n"
            "except OSError:\n    pass\n"
            "time.sleep(0.5)\n"
            "raise ValueError('could not fork any more')"
        ),
        RUNTIME | WRONG,
    ),
    "shrinks the shared buffers": (
        forward(
            "import os\n"
            "for fd in range(3, 40):\n"
            "    try: os.ftruncate(fd, 0)\n"
            "    except OSError: pass\n"
            "return torch.zeros_like(x)"
        ),
        WRONG,
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_is_a_status(lane, name):
    source, statuses = HOSTILE[name]
    result = judge(lane, source)
    assert result.status in statuses, (result.status, result.message, result.log_tail[-2000:])
    assert result.timing is None
    assert result.tier is None


def test_a_hang_ends_at_its_deadline(lane):
    start = time.monotonic()
    result = judge(lane, forward("while True: pass"), timeout_s=3.0)
    assert result.status is EvalStatus.TIMEOUT
    assert "3 s" in result.message
    assert time.monotonic() - start < 200


def test_a_flood_of_output_is_kept_short(lane):
    flood = "import sys\nline = '\\x1b[31mred\\x1b[0m' * 1000 + '\\n'\n"
    flood += "for _ in range(20_000):\n    sys.stdout.write(line)\n"
    result = judge(lane, forward("return self.right(x)", before=flood))
    assert result.status is EvalStatus.PASSED, result.message
    assert 0 < len(result.log_tail) <= 64 * 1024
    assert "\x1b" not in result.log_tail


@pytest.mark.timed
def test_work_between_calls_is_seen(lane):
    # Two: one alone may get too little of a busy machine to be told from a program that rests.
    spin = "import os\nfor _ in range(2):\n    if os.fork() == 0:\n        while True: pass\n"
    result = judge(lane, forward("return self.right(x)", before=spin))
    assert result.status is EvalStatus.REJECTED, result.message
    assert "idle" in result.message


def test_daemons_do_not_survive(lane):
    seconds = str(900_000 + os.getpid())
    daemon = (
        "import subprocess, os\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        f"    subprocess.Popen(['sleep', '{seconds}'], start_new_session=True)\n"
        "    os._exit(0)\n"
    )
    result = judge(lane, forward("return torch.zeros_like(x)", before=daemon))
    assert result.status is EvalStatus.WRONG_RESULT
    assert seconds not in commands()


def test_the_judge_keeps_its_secrets(lane):
    peek = (
        "import os\n"
        "for name in os.listdir('/proc'):\n"
        "    if name.isdigit():\n"
        "        for what in ('environ', 'cmdline', 'mem'):\n"
        "            try:\n"
        "                with open(f'/proc/{name}/{what}', 'rb') as f:\n"
        "                    print(name, what, f.read(4096))\n"
        "            except OSError as e: pass\n"
    )
    os.environ["PIKE_TEST_SECRET"] = "hunter-two"
    try:
        result = judge(lane, forward("return torch.zeros_like(x)", before=peek))
    finally:
        del os.environ["PIKE_TEST_SECRET"]
    assert "environ" in result.log_tail
    assert "hunter-two" not in result.log_tail


def commands() -> str:
    """The command lines of all processes."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                found.append((place / "cmdline").read_bytes().decode("utf-8", "replace"))
            except OSError:
                continue
    return "\n".join(found)
