"""The mailbox's benchmark fails where a figure is not as wanted, and names it."""

import copy
import json
from pathlib import Path

import pytest
from builders.benchmarks import imported

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def bench():
    with imported("mailbox") as module:
        yield module


@pytest.fixture
def measured():
    """The document under docs/."""
    path = TESTS.parent / "docs" / "bench-mailbox-cpu.json"
    return json.loads(path.read_text("utf-8"))


def test_a_document_in_which_all_is_as_wanted_passes(bench, measured, tmp_path, capsys):
    assert bench.tell(measured, tmp_path) == 0
    written = json.loads((tmp_path / "bench-mailbox-cpu.json").read_text("utf-8"))
    assert written["good_enough"] is True
    assert "wanted" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("where", "found", "named"),
    [
        (("single", "lost"), 1, "1 lost with 1 a file"),
        (("batched", "committed_twice"), 2, "2 committed twice with 16 a file"),
        (("single", "judged_over_disk"), 0.199, "judged_over_disk: 0.199, wanted at least 0.2"),
        (("batched", "judged_per_s"), 1999.0, "wanted at least 2000"),
        (("single", "counts_s", "max"), 1.1, "counts_s: 1.1, wanted at most 1"),
        (("batched", "status_s", "max"), 1.1, "status_s: 1.1, wanted at most 1"),
        (("request_to_judge", "max_ms"), 50.1, "request_to_judge_ms: 50.1, wanted at most 50"),
        (("metadata", "per_verdict"), 25.01, "operations_per_verdict: 25.01, wanted at most 25"),
        (("metadata", "idle_polls_per_s"), 0.21, "idle_polls_per_s: 0.21, wanted at most 0.2"),
        (("metadata",), None, "no strace here"),
    ],
)
def test_a_figure_that_is_not_as_wanted_is_named_below_the_document(
    bench, measured, tmp_path, capsys, where, found, named
):
    spoilt = copy.deepcopy(measured)
    part = spoilt
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = found
    assert bench.tell(spoilt, tmp_path) == 1
    written = json.loads((tmp_path / "bench-mailbox-cpu.json").read_text("utf-8"))
    assert written["good_enough"] is False
    path, *faults = capsys.readouterr().err.splitlines()
    assert path.endswith("bench-mailbox-cpu.json")
    assert len(faults) == 1
    assert named in faults[0]
