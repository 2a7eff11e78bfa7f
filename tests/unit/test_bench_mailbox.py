"""The mailbox's benchmark fails where a figure is not as wanted, and names it."""

import copy
import json

import pytest
from builders.benchmarks import imported


@pytest.fixture(scope="module")
def bench():
    with imported("mailbox") as module:
        yield module


@pytest.fixture
def measured(bench):
    """The parts of a document that are looked at, each just as wanted."""
    wanted = bench.WANTED
    through = {
        "lost": 0,
        "committed_twice": 0,
        "left_over": 0,
        "judged_per_s": wanted["judged_per_s_with_16_a_file"],
        "judged_over_disk": wanted["judged_over_disk"],
        "counts_s": {"max": wanted["counts_s"]},
        "status_s": {"max": wanted["status_s"]},
    }
    return {
        "bench": "mailbox",
        "machine": {"device": "cpu"},
        "single": {**through, "requests_per_file": 1},
        "batched": {**copy.deepcopy(through), "requests_per_file": 16},
        "request_to_judge": {"max_ms": wanted["request_to_judge_ms"]},
        "metadata": {
            "per_verdict": wanted["operations_per_verdict"],
            "idle_polls_per_s": wanted["idle_polls_per_s"],
        },
    }


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
