"""Which file is for which task, which settings are judged, and what is said of them."""

import datetime
import json
from pathlib import Path, PurePath

import pytest
from builders.results import correct, passed, timed

from pike_hpc.cli.baselines_plan import MODES, Entry, parse_modes, plan
from pike_hpc.cli.baselines_table import (
    HEADINGS,
    as_text,
    document,
    exit_code,
    geomean,
    row,
    said,
    summaries,
)
from pike_hpc.cli.solutions import match_folder, task_of
from pike_hpc.evaluate.device import Device
from pike_hpc.proposers.rules import Toolchain
from pike_hpc.records import (
    EvalRequest,
    EvalResult,
    EvalStatus,
    LegacyVerdicts,
    Task,
    Tier,
    UsageError,
)
from pike_hpc.tasks import load_suite

SUITE = load_suite("level3-pike").tasks
BY_ID = {task.id: task for task in SUITE}
FULL = Toolchain(compiler="g++", python_headers=True, cpu_bfloat16=True)
DEVICE = Device(kind="nvidia-h200", torch_device="cuda", why="cuda, 1 x NVIDIA H200")


@pytest.mark.parametrize(
    ("path", "task_id"),
    [
        ("task_4.py", "4"),
        ("task4.py", "4"),
        ("task_04.py", "4"),
        ("4.py", "4"),
        ("04.py", "4"),
        ("4_LeNet5.py", "4"),
        ("4_anything.py", "4"),
        ("LeNet5.py", "4"),
        ("lenet5.py", "4"),
        ("task_4_attempt_2.py", "4"),
        ("problem_4.py", "4"),
        ("level3_4.py", "4"),
        ("level_3_task_4.py", "4"),
        ("level3-pike_task_4.py", "4"),
        ("level3_4_LeNet5.py", "4"),
        ("level3/4.py", "4"),
        ("best_agent_solutions/level_3/task_43.py", "43"),
        ("h100/level3-metr/prev_agents_300/best_solutions/task_4.py", "4"),
        ("h100_level_3-pike/task_4.py", "4"),
        ("tasks/task4/output/best/best_program.py", "4"),
        ("run/tasks/task43/output/iter_output/iter_1/attempts/attempt_4/code.py", "43"),
        ("levels/level_3-pike/task_4/phases/phase_1/agents/agent_9/step_8/kernel.py", "4"),
        ("level1/level3/4.py", "4"),
    ],
)
def test_a_published_file_finds_its_task(path, task_id):
    assert task_of(PurePath(path), SUITE) is BY_ID[task_id]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("level1/4.py", "for level 1, and these tasks are of level3-pike"),
        ("level_3/level_1_task_4.py", "for level 1"),
        ("task_5.py", "task 5 of level3-pike is not among"),
        ("5_Five.py", "task 5 of level3-pike is not among"),
        ("kernel.py", "its name says no task; valid: task_4.py"),
        ("step_4/kernel.py", "its name says no task"),
        ("3_4.py", "may mean task 3 or task 4"),
        ("4_ResNet18.py", "task 4 is LeNet5, and ResNet18 is task 9"),
        ("tasks/task5/output/best/best_program.py", "task 5 of level3-pike is not among"),
    ],
)
def test_a_file_for_no_task_says_why(path, reason):
    found = task_of(PurePath(path), SUITE)
    assert isinstance(found, str)
    assert reason in found


def test_a_folder_of_ones_own_has_no_level():
    mine = (Task(suite="mine", id="spotter", name="spotter", source=""),)
    assert task_of(PurePath("level3/Spotter.py"), mine) is mine[0]


def test_a_folder_is_read_in_the_order_of_tasks(tmp_path):
    for name in ("b/task_10.py", "task_4.py", "a/task_10.py", "notes.py", ".git/task_4.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("class ModelNew: ...")
    for name in ("task_4.txt", "__init__.py", "_task_4.py"):
        (tmp_path / name).write_text("")
    matched = match_folder(tmp_path, SUITE)
    assert [(s.task.id, s.label) for s in matched.solutions] == [
        ("4", "task_4.py"),
        ("10", "a/task_10.py"),
        ("10", "b/task_10.py"),
    ]
    ((path, reason),) = matched.unmatched
    assert path.name == "notes.py"
    assert "says no task" in reason


def test_the_named_folder_itself_may_say_the_level(tmp_path):
    (tmp_path / "level_1").mkdir()
    (tmp_path / "level_1" / "task_4.py").write_text("")
    with pytest.raises(UsageError, match=r"task_4\.py: it is for level 1"):
        match_folder(tmp_path / "level_1", SUITE)


def test_a_folder_that_is_none_or_has_nothing_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no folder"):
        match_folder(tmp_path / "nothing", SUITE)
    with pytest.raises(UsageError, match="no solution for these tasks"):
        match_folder(tmp_path, SUITE)


def test_modes_are_named_or_all_or_none():
    assert parse_modes("all", folders=False) == tuple(MODES)
    assert parse_modes("compile, eager", folders=False) == ("eager", "compile")
    assert parse_modes("none", folders=True) == ()
    with pytest.raises(UsageError, match="nothing to judge"):
        parse_modes("none", folders=False)
    with pytest.raises(UsageError, match="did you mean"):
        parse_modes("compil", folders=False)


def planned(task_id, device="nvidia-h200", toolchain=FULL):
    found = plan([BY_ID[task_id]], tuple(MODES), [], toolchain=toolchain, device_kind=device)
    return {entry.setting: entry for entry in found}


def test_every_mode_is_made_by_rules_or_says_why_not():
    entries = planned("4")
    assert list(entries) == list(MODES)
    assert "class ModelNew(Model)" in entries["eager"].source
    assert 'mode="reduce-overhead"' in entries["reduce-overhead"].source
    graphs = entries["half-graphs"]
    assert graphs.rules == ("channels_last", "half_body", "compile_reduce_overhead")
    assert "torch.channels_last" in graphs.source
    assert "float16" in graphs.source
    assert entries["tensorrt"].source is None
    assert entries["tensorrt"].declined == "torch_tensorrt is not installed"


def test_graphs_without_images_do_without_channels_last():
    graphs = planned("1")["half-graphs"]
    assert graphs.rules == ("half_body", "compile_reduce_overhead")
    assert graphs.source is not None
    assert "channels" not in graphs.source


def test_on_a_cpu_what_needs_a_gpu_is_declined():
    declined = {name: e.declined for name, e in planned("4", device="cpu").items() if e.declined}
    assert set(declined) == {"strict-fp32", "reduce-overhead", "half-graphs", "tensorrt"}
    assert declined["strict-fp32"] == "a CPU has no TF32: eager is strict already"


def test_solutions_come_with_their_task_and_unreadable_ones_are_named(tmp_path):
    (tmp_path / "task_4.py").write_text("class ModelNew: ...")
    (tmp_path / "task_10.py").write_bytes(b"\xff")
    folder = match_folder(tmp_path, SUITE)
    tasks = [BY_ID["4"], BY_ID["10"]]
    entries = plan(tasks, ("eager",), [folder], toolchain=FULL, device_kind="cpu")
    assert [(e.task.id, e.label) for e in entries] == [
        ("4", "eager"),
        ("4", "task_4.py"),
        ("10", "eager"),
        ("10", "task_10.py"),
    ]
    assert entries[1].source == "class ModelNew: ..."
    assert entries[3].source is None
    assert "not UTF-8" in entries[3].declined


def entry(number: int, setting: str = "compile", file: str | None = None, **more) -> Entry:
    task = Task(suite="s", id=str(number), name=f"Task{number}", source="x")
    return Entry(task=task, setting=setting, file=file, **more)


def judged(of: Entry, speedup: float | None, status: EvalStatus = EvalStatus.WRONG_RESULT):
    request = EvalRequest(
        task=of.task, candidate_source="x", device_kind="nvidia-h200", image_digest="i"
    )
    if speedup is None:
        return row(of, EvalResult(key=request.key, status=status, message="off\nby 3"))
    return row(
        of,
        passed(
            request.key,
            speedup,
            tier=Tier.TF32,
            correctness=correct(
                relative_error=1e-4, limit=1e-3, legacy=LegacyVerdicts(pike=True, kernelbench=False)
            ),
            timing=timed(speedup, ci95=(speedup - 0.01, speedup + 0.02)),
        ),
    )


def test_the_geometric_mean():
    assert geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert geomean([]) is None


def test_failures_and_what_does_not_apply_count_as_one_and_no_verdict_not_at_all():
    rows = [
        judged(entry(1), 4.0),
        judged(entry(2), None),
        row(entry(3, declined="does not apply")),
        judged(entry(4), 0.25),
        judged(entry(5), None, EvalStatus.JUDGE_ERROR),
        row(entry(1, "tensorrt", declined="not installed")),
        judged(entry(1, "best", "a.py"), 2.0),
        judged(entry(1, "best", "b.py"), 3.0),
        judged(entry(1, "best", "c.py"), None),
    ]
    compiled, tensorrt, best = summaries(rows)
    assert (compiled["passed"], compiled["tasks"], compiled["no_verdict"]) == (2, 5, 1)
    assert compiled["declined"] == 1
    assert compiled["geomean"]["unclamped"] == pytest.approx(1.0)
    assert compiled["geomean"]["clamped"] == pytest.approx(4 ** (1 / 4))
    assert compiled["geomean"]["passed_only"] == pytest.approx(1.0)
    assert compiled["tiers"] == {"tf32": 2}
    assert tensorrt["geomean"] == {"unclamped": None, "clamped": None, "passed_only": None}
    assert best["kind"] == "solution"
    assert best["passed"] == 1
    assert best["geomean"]["unclamped"] == pytest.approx(3.0)


def test_the_table_has_a_line_a_program_and_the_means():
    rows = [
        judged(entry(1), 4.0),
        judged(entry(20, "best", "level_3/task_20.py"), None),
        row(entry(1, "tensorrt", declined="torch_tensorrt is not installed")),
    ]
    head, first, second, third, _, means, *rest = as_text(rows, 9).splitlines()
    starts = [head.index(heading.upper()) for heading in HEADINGS]
    cells = ["s/1", "compile", "PASSED", "tf32", "4.00x", "3.99 to 4.02", "yes", "no"]
    assert all(first[at:].startswith(cell) for at, cell in zip(starts, cells, strict=True)), first
    assert "level_3/task_20.py" in second
    assert second.endswith("off by 3")
    assert third.endswith("torch_tensorrt is not installed")
    assert means.split()[:3] == ["SETTING", "PASSED", "GEOMEAN"]
    assert rest[0].split()[:5] == ["compile", "1", "of", "1", "4.00x"]
    assert rest[-1] == "stopped after 3 of 9"
    assert said(rows[0]) == "PASSED 4.00x tf32"
    assert said(rows[1]) == "WRONG_RESULT off by 3"
    assert said(rows[2]) == "not judged torch_tensorrt is not installed"


def test_tags_end_a_line_and_a_busy_machine_is_explained():
    quiet, busy = judged(entry(1), 4.0), judged(entry(2), 2.0)
    busy["result"]["tags"] = ["caches_weights", "noisy"]
    assert "noisy" not in as_text([quiet])
    lines = as_text([quiet, busy]).splitlines()
    assert lines[1].rstrip().endswith("no")
    assert lines[2].endswith("  caches_weights, noisy")
    assert lines[-1].startswith("noisy: the machine was busy")


def test_hostile_words_stay_on_their_line():
    found = as_text([judged(entry(1, "best", "\x1b[2Jtask_1.py\n"), 2.0)])
    assert "\x1b" not in found
    assert len(found.splitlines()) == 7


def test_the_document_is_json_with_whole_results():
    now = datetime.datetime(2026, 3, 4, 5, 6, 7, tzinfo=datetime.UTC)
    rows = [judged(entry(1), 4.0)]
    whole = json.loads(json.dumps(document(rows, 2, DEVICE, ["baselines", "a b"], now, "2.13.0")))
    assert whole["schema_version"] == 1
    assert whole["command"] == "pike-hpc baselines 'a b'"
    assert whole["date"] == "2026-03-04T05:06:07+00:00"
    assert whole["device"]["kind"] == "nvidia-h200"
    assert whole["complete"] is False
    (one,) = whole["rows"]
    assert one["result"]["timing"]["speedup"] == 4.0
    assert one["result"]["correctness"]["legacy"] == {"pike": True, "kernelbench": False}
    assert one["result"]["schema_version"] == 1


def test_exit_codes():
    passed, failed = judged(entry(1), 2.0), judged(entry(1), None)
    lost = judged(entry(1), None, EvalStatus.JUDGE_ERROR)
    declined = row(entry(1, "tensorrt", declined="not installed"))
    unreadable = row(entry(1, "best", "a.py", declined="not UTF-8"))
    assert exit_code([passed, declined]) == 0
    assert exit_code([passed, failed]) == 3
    assert exit_code([passed, lost]) == 3
    assert exit_code([lost, lost]) == 1
    assert exit_code([passed, unreadable]) == 3


def test_paths_of_two_folders_are_two_settings(tmp_path):
    folders = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        Path(tmp_path, name, "task_4.py").write_text("")
        folders.append(match_folder(tmp_path / name, SUITE))
    entries = plan([BY_ID["4"]], (), folders, toolchain=FULL, device_kind="cpu")
    assert [e.setting for e in entries] == [str(tmp_path / "one"), str(tmp_path / "two")]
