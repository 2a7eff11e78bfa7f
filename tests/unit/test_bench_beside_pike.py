"""How another evaluator is asked, and what is counted of two evaluators' verdicts."""

import pytest

pytest.importorskip("torch")

from builders.benchmarks import imported

from pike_hpc.records import UsageError
from pike_hpc.tasks import effective_source, find_task

with imported("beside_pike") as beside:
    pass

TASK = find_task("level3-pike/4")

OPTIONS = "--level --code_path --output_path --gpu_locks_dir --op_atol --op_rtol"
STAND_IN = """
import argparse, json, os, pathlib, runpy
words = argparse.ArgumentParser()
for name in "OPTIONS".split():
    words.add_argument(name, required=True)
words.add_argument("--task", type=int)
asked = words.parse_args()
(task,) = pathlib.Path(__file__).parents[1].glob(f"KernelBench/level{asked.level}/{asked.task}_*")
assert asked.op_atol == asked.op_rtol == "1e-2"
row = runpy.run_path(asked.code_path)["row"](task.read_text(), os.environ["TRITON_CACHE_DIR"])
pathlib.Path(asked.output_path).write_text(json.dumps({"llm": row}))
"""


@pytest.fixture(params=["_", "-"])
def pike(request, tmp_path):
    """An evaluator that takes the options of PIKE's and does as the candidate says."""
    script = tmp_path / "checkout/scripts/eval.py"
    script.parent.mkdir(parents=True)
    script.write_text(STAND_IN.replace("OPTIONS", OPTIONS.replace("_", request.param)), "utf-8")
    root = tmp_path / "run"
    root.mkdir()
    return beside.Pike(tmp_path / "checkout", root)


def test_it_is_asked_by_either_spelling_and_finds_our_task(pike):
    right = f"""
def row(task, cache):
    assert task == {effective_source(TASK)!r}
    return {{"correct": True, "runtime": 0.5, "max_diff": [0.0]}}
"""
    assert pike.latency_ms(TASK, right, 60) == 0.5


def test_no_time_comes_with_a_reason(pike):
    wrong = "row = lambda task, cache: {'correct': False, 'max_diff': [2.0]}"
    assert pike.latency_ms(TASK, wrong, 60) == "incorrect: [2.0]"
    assert pike.latency_ms(TASK, "raise ValueError('no such thing')", 60).endswith("no such thing")
    assert pike.latency_ms(TASK, "import time\ntime.sleep(60)", 2) == "no end within 2 s"


def test_each_program_has_caches_of_its_own(pike):
    place = "row = lambda task, cache: {'correct': False, 'max_diff': cache}"
    assert pike.latency_ms(TASK, place, 60) != pike.latency_ms(TASK, place, 60)


def test_a_folder_without_it_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"no scripts/eval\.py in"):
        beside.Pike(tmp_path, tmp_path)


def rows(**by_program):
    """(honest, what PIKE says) by program: a speedup, or None where it is refused."""
    return [
        {
            "program": name.replace("_", " "),
            "honest": honest,
            "pike": {"correct": False}
            if speedup is None
            else {"correct": True, "speedup": speedup},
        }
        for name, (honest, speedup) in by_program.items()
    ]


def test_who_is_told_to_be_faster_than_an_unchanged_program_is_counted():
    found = rows(unchanged=(True, 1.8), a_graph=(True, 7.0), kept=(False, 90.0), slow=(False, 1.9))
    assert beside.told_faster(found, "pike") == {"faster": ["kept"], "best": 90.0}
    found[0]["pike"]["speedup"] = 0.9
    assert beside.told_faster(found, "pike") == {"faster": ["kept", "slow"], "best": 90.0}
    assert beside.told_faster(found[:2], "pike") == {"faster": [], "best": None}


def test_only_honest_programs_are_refused_wrongly():
    found = rows(unchanged=(True, 1.0), another_order=(True, None), zeros=(False, None))
    assert beside.refused(found, "pike") == ["another order"]


def test_a_speedup_needs_the_time_of_an_unchanged_program(pike):
    """Which the stand-in refuses: it has no `row`."""
    right = "row = lambda task, cache: {'correct': True, 'runtime': 0.5}"
    (found,) = beside.of_pike(pike, [(TASK, "right", right, True)], 60)
    assert found["correct"]
    assert found["said"].startswith("of an unchanged program: ")
