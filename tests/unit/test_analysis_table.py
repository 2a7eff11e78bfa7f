"""The end table: marks, colour only when asked for, rows that tell tasks apart."""

from dataclasses import replace

from builders.results import passed, timed

from pike_hpc.analysis.history import RunHistory, TaskHistory
from pike_hpc.analysis.page import page
from pike_hpc.analysis.report import build
from pike_hpc.analysis.table import render_table
from pike_hpc.archive import StampedResult
from pike_hpc.records import (
    Candidate,
    Proposal,
    ResultKey,
    Task,
    Tier,
    Variant,
)


def report(*histories):
    return build([RunHistory(run_id="r", path="p", created="", tasks=histories)])


def history(
    speedup, ci95, *, number="4", name="4_LeNet5", simulated=False, variant=Variant.ADMITTED,
    tier=Tier.FP32, operator="rule:fold_batch_norm", retimed=True, **task_fields,
):  # fmt: skip
    """One task with one candidate, timed again with the same outcome unless told not to."""
    task = Task(suite="s", id=number, name=name, source="x", variant=variant, **task_fields)
    candidate = Candidate(task_digest=task.digest, source="y").id
    key = ResultKey(
        task_digest=task.digest, candidate_id=candidate, device_kind="cpu", image_digest=""
    )
    timing = timed(speedup, ci95=ci95)
    result = passed(key, speedup, tier=tier, simulated=simulated, timing=timing)
    again = replace(result, key=replace(key, retime=1))
    return TaskHistory(
        run_ids=("r",),
        task=task,
        device_kind="cpu",
        proposals=(Proposal(candidate_id=candidate, operator=operator),),
        verdicts=(StampedResult(time=1.0, result=result),),
        retimes=(StampedResult(time=2.0, result=again),) if retimed else (),
    )


def line_of(table, start):
    (line,) = [x for x in table.splitlines() if x.startswith(start)]
    return line


def test_colour_only_when_asked_for_and_only_for_proven_gains():
    proven, unproven = history(2.0, (1.9, 2.1)), history(1.02, (0.98, 1.06), number="8", name="8_N")
    plain = render_table(report(proven, unproven))
    assert "\x1b" not in plain
    coloured = render_table(report(proven, unproven), color=True).splitlines()
    assert next(x for x in coloured if "4 LeNet5" in x).startswith("\x1b[32m")
    assert not next(x for x in coloured if "8 N" in x).startswith("\x1b")


def test_a_gain_whose_interval_holds_one_is_marked():
    assert "~1.02x" in render_table(report(history(1.02, (0.98, 1.06))))
    assert "~" not in line_of(render_table(report(history(1.02, (1.01, 1.06)))), "4 LeNet5")


def test_simulated_and_legacy_rows_carry_their_mark_before_anything_that_is_cut():
    long = "4_" + "N" * 200
    table = render_table(report(history(2.0, (1.9, 2.1), name=long, simulated=True)), 80)
    assert table.startswith("*** SIMULATED")
    assert line_of(table, "SIMULATED 4").startswith("SIMULATED 4")
    table = render_table(report(history(2.0, (1.9, 2.1), variant=Variant.LEGACY)))
    assert table.startswith("*** LEGACY")
    assert "LEGACY 4 LeNet5" in table


def test_one_simulated_verdict_marks_its_whole_task():
    real, made_up = history(2.0, (1.9, 2.1)), history(2.0, (1.9, 2.1), simulated=True)
    mixed = replace(real, verdicts=(*real.verdicts, *made_up.verdicts))
    assert report(mixed).headline is None
    assert render_table(report(mixed)).startswith("*** SIMULATED")


def test_shapes_are_said_once_or_where_they_tell_two_rows_apart():
    small = history(2.0, (1.9, 2.1), shape_overrides={"batch_size": 2})
    assert "Results on cpu: s (batch_size=2)" in render_table(report(small))
    table = render_table(report(small, history(3.0, (2.9, 3.1))), 140)
    assert "s/4 (batch_size=2)" in table.split("Verdicts")[0].split("\n", 1)[1]


def test_untried_stock_settings_are_a_dash():
    assert line_of(render_table(report(history(2.0, (1.9, 2.1)))), "4 LeNet5").split()[7] == "-"


def test_nothing_at_all_is_said_in_one_line():
    table = render_table(report())
    assert table.startswith("No task has been opened")
    assert "vs eager:" not in table


def test_what_was_measured_on_a_busy_machine_says_so():
    calm = history(2.0, (1.9, 2.1))
    assert "noisy" not in render_table(report(calm))
    (again,) = calm.retimes
    busy = replace(again, result=replace(again.result, tags=("early_stop", "noisy")))
    found = report(replace(calm, retimes=(busy,)))
    table = render_table(found)
    assert "1.90 - 2.10 noisy" in line_of(table, "4 LeNet5")
    assert "noisy: the machine was busy, such an interval may be wrong" in table
    assert max(map(len, table.splitlines())) <= 100
    assert "1.90 - 2.10 noisy" in page(found)
