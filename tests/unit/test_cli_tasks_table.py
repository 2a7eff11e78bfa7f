"""What `tasks check` shows of its rows, and what makes a measured table stale."""

import datetime
import json
import re

import pytest

from pike_hpc.cli import main
from pike_hpc.cli.tasks_check import document, exit_code, row, small_only
from pike_hpc.cli.tasks_table import HEADINGS, as_markdown, as_text
from pike_hpc.evaluate.admission import Admission
from pike_hpc.evaluate.device import Device
from pike_hpc.evaluate.measured import MODULES, PACKAGE, code_digest
from pike_hpc.records import Task, Variant
from pike_hpc.tasks import Chosen, choose

DEVICE = Device(kind="nvidia-h200", torch_device="cuda", why="cuda, 1 x NVIDIA H200")
NOW = datetime.datetime(2026, 3, 4, 5, 6, 7, tzinfo=datetime.UTC)


def task(number: int, variant: Variant = Variant.ADMITTED) -> Task:
    return Task(suite="s", id=str(number), name=f"Task{number}", source="", variant=variant)


def fine(number: int, variant: Variant = Variant.ADMITTED):
    return row(
        task(number, variant),
        Admission(
            task_digest="d",
            admitted=True,
            signal=0.5,
            noise=1.23e-7,
            limits={"fp32": 1e-5, "half": 0.01},
            mutants={"zeros": 3.0, "skipped_layer": 0.071},
            inadmissible={"tf32": "zeros pass | at it"},
            not_applicable=("sparse_weights",),
            native_precision="bfloat16",
            calibrated=2,
            resets_state=True,
            seconds=12.34,
        ),
    )


def not_fine(number: int, admitted: bool | None, reason: str):
    return row(task(number), Admission(task_digest="d", admitted=admitted, reason=reason))


ROWS = [
    fine(1),
    not_fine(20, False, "the output does <not>\nmove __init__"),
    not_fine(3, None, "too large for a CPU"),
]


def test_columns_are_aligned_and_a_refusal_is_one_line():
    head, first, second, third, blank, last = as_text(ROWS).splitlines()
    starts = [head.index(heading.upper()) for heading in HEADINGS]
    cells = ["s/1", "Task1", "yes", "fp32 1e-05, half 0.01", "0.5", "1.2e-07"]
    cells += ["0.071 skipped_layer", "float64", "12.3", "bfloat16; 2 BatchNorm calibrated"]
    assert [first[at:].startswith(cell) for at, cell in zip(starts, cells, strict=True)] == [
        True
    ] * len(starts)
    assert "state reset between calls; no tf32: zeros pass | at it" in first
    assert first.endswith("not applicable: sparse_weights")
    assert re.fullmatch(r"s/20 +Task20 +refused +the output does <not> move __init__", second)
    assert re.fullmatch(r"s/3 +Task3 +not tried +too large for a CPU", third)
    assert blank == ""
    assert last == "1 of 3 admitted; refused: s/20; not tried here: s/3"


def test_legacy_is_marked_in_every_row_and_at_the_end():
    rows = [fine(1, Variant.LEGACY), fine(2, Variant.LEGACY)]
    lines = as_text(rows).splitlines()
    assert all("yes (legacy)" in line for line in lines[1:3])
    assert "never in a headline" in lines[-1]
    assert "legacy" not in as_text(ROWS)


def test_a_check_that_was_stopped_says_so():
    assert as_text(ROWS, total=3).splitlines()[-1].endswith("not tried here: s/3")
    assert as_text(ROWS, total=5).splitlines()[-1].endswith("; stopped after 3 of 5")


def test_hostile_names_and_reasons_stay_on_their_line():
    text = as_text([not_fine(1, False, "a\x1b[2Jb\nc\u202ed")], [{"path": "x\ny", "reason": "z"}])
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "refused x y: z" in text


def test_what_was_not_tried_is_no_failure():
    assert exit_code([fine(1)], []) == 0
    assert exit_code([fine(1), not_fine(2, None, "large")], []) == 0
    assert exit_code([fine(1), not_fine(2, False, "bad")], []) == 3
    assert exit_code([fine(1)], [("x.py", "bad")]) == 3


@pytest.mark.parametrize(
    ("text", "single"),
    [
        *[("level0/1", True), ("level0/1_Conv2D", True), ("level0/1-1", False)],
        *[("level0/1,2", False), ("level0", False), ("level0/all", False), (None, False)],
        (str(PACKAGE / "tasks/suites/level0/1_Conv2D.py"), True),
    ],
)
def test_only_a_task_named_alone_is_tried_on_a_cpu_whatever_its_size(text, single):
    cpu = Device(kind="cpu", torch_device="cpu", why="")
    assert small_only(choose(text), cpu) is not single
    assert not small_only(choose(text), DEVICE)


def measured():
    chosen = Chosen(tasks=(task(1), task(20), task(3)))
    return document(ROWS, chosen, DEVICE, ["tasks", "check", "a b", "--json"], NOW, "2.13.0")


def test_the_document_says_what_it_was_measured_with():
    whole = json.loads(json.dumps(measured(), allow_nan=False))
    assert whole["schema_version"] == 1
    assert whole["command"] == "pike-hpc tasks check 'a b' --json"
    assert whole["date"] == "2026-03-04T05:06:07+00:00"
    assert whole["device"]["kind"] == "nvidia-h200"
    assert whole["code_digest"] == code_digest()
    assert whole["complete"] is True
    first = whole["tasks"][0]
    assert {"task", "suite", "id", "name", "variants", "admitted"} <= set(first)
    assert first["task_digest"] == "d"
    assert first["mutants"] == {"zeros": 3.0, "skipped_layer": 0.071}
    assert (
        document(ROWS[:1], Chosen(tasks=(task(1), task(2))), DEVICE, [], NOW, None)["complete"]
        is False
    )


def test_markdown_shows_every_character_as_it_is():
    lines = as_markdown(measured()).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(ROWS)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {len(HEADINGS) + 1}
    assert "zeros pass \\| at it" in table[2]
    assert "\\<not> move \\__init_\\_" in table[3]
    assert "    pike-hpc tasks check 'a b' --json" in lines
    assert f"`{code_digest()}`" in "\n".join(lines)


def test_markdown_says_that_a_check_was_stopped():
    stopped = "Stopped before its end"
    assert stopped in as_markdown({**measured(), "complete": False})
    assert stopped not in as_markdown(measured())


def test_the_table_is_printed_from_the_json(tmp_path, capsys):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(measured()))
    assert main(["tasks", "table", str(path)]) == 0
    assert capsys.readouterr().out == as_markdown(measured())


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"tasks": [{}]}', '{"tasks": 3}'])
def test_what_is_no_table_is_one_message(tmp_path, capsys, content):
    path = tmp_path / "t.json"
    path.write_text(content)
    assert main(["tasks", "table", str(path)]) == 2
    said = capsys.readouterr()
    assert "no table of tasks" in said.err
    assert said.out == ""


def test_the_digest_follows_every_module_and_no_other(tmp_path):
    for name in MODULES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    seen = {code_digest(tmp_path)}
    for name in MODULES:
        (tmp_path / name).write_text("x = 2\n")
        seen.add(code_digest(tmp_path))
    (tmp_path / "evaluate" / "other.py").write_text("")
    assert code_digest(tmp_path) in seen
    assert len(seen) == len(MODULES) + 1
    assert code_digest() == code_digest(PACKAGE)
    (tmp_path / MODULES[0]).unlink()
    with pytest.raises(FileNotFoundError):
        code_digest(tmp_path)
