"""What torch.compile made for a program is there when another judge judges the same text."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from builders.build_programs import TASK, compiled

from pike_hpc import sandbox
from pike_hpc.evaluate.builder import Builder
from pike_hpc.evaluate.lane import Lane
from pike_hpc.records import EvalRequest, EvalStatus, Task

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not shutil.which("c++"), reason="no c++ here"),
]


def asked(source: str, **changes) -> EvalRequest:
    task = Task(suite="tests", id="1", name="linear", source=TASK)
    given = {"task": task, "candidate_source": source, "device_kind": "cpu"}
    return EvalRequest(**given, image_digest="tests", timeout_s=300.0, **changes)


@pytest.fixture(scope="module")
def lane():
    with tempfile.TemporaryDirectory(prefix="pc-", dir="/tmp") as name:
        scratch = Path(name)
        scratch.chmod(0o711)
        engine = sandbox.choose("auto", sandbox.look())
        tools = sandbox.toolchain(os.environ)
        with (
            Builder(engine, scratch=scratch, tools=tools) as builder,
            Lane("cpu", engine, scratch=scratch, threads=1, builder=builder) as lane,
        ):
            yield lane
        assert list(scratch.iterdir()) == []


def judged(lane, source: str, status=EvalStatus.PASSED, **changes):
    """(files that were there when it was imported, whether what it compiled was found)."""
    result = lane.evaluate(asked(source, **changes))
    assert result.status is status, (result.message, result.log_tail)
    words = result.log_tail.split()
    assert "first" in words, result.log_tail
    return int(words[words.index("first") + 1]), "hits 1" in result.log_tail


def test_a_new_judge_gives_the_same_text_what_it_compiled_and_nobody_else(lane):
    text = compiled("2.0")
    assert judged(lane, text) == (0, False)
    assert judged(lane, text) == (0, False), "a note of this judge's secrets, for this judge"
    there, found = judged(lane, text, retime=1)
    assert there > 0
    assert found
    assert judged(lane, text) == (0, False), "it was judged by this judge as well"
    assert judged(lane, text + "# another text\n", retime=1) == (0, False)


def test_who_is_wrong_leaves_nothing(lane):
    text = compiled("3.0")
    for retime in range(2):
        assert judged(lane, text, EvalStatus.WRONG_RESULT, retime=retime) == (0, False)


SPOILS = """
import os, sys
cache = sys.modules["pike_runner.compile_cache"]
FOLDER.mkdir(parents=True, exist_ok=True)
"""


@pytest.mark.parametrize(
    ("does", "times"),
    [
        ("(FOLDER / 'large').open('wb').truncate(1 << 30); os.mkfifo(FOLDER / 'pipe')", 1),
        ("cache.pack = lambda fd, scratch: os._exit(0)", 1),
        ("cache.pack = lambda fd, scratch: os.pwrite(fd, b'\\xff' * 8 + b'nonsense', 0)", 2),
    ],
)
def test_who_spoils_its_own_cache_spoils_nothing_else(lane, does, times):
    text = compiled("2.0", SPOILS + does)
    for retime in range(times):
        result = lane.evaluate(asked(text, retime=retime))
        assert result.status is EvalStatus.PASSED, (result.message, result.log_tail)
