"""docs/tasks.md shows what was measured, with the code and the tasks that are here now.

Measured with `pike-hpc tasks check --json > docs/tasks-<device>.json` on a machine with that
device; `pike-hpc tasks table docs/tasks-<device>.json` is what the page holds.
"""

import copy
import json
from pathlib import Path

import pytest

from pike_hpc.cli.tasks_table import as_markdown
from pike_hpc.evaluate.measured import code_digest
from pike_hpc.tasks import choose

DOCS = Path(__file__).resolve().parents[2] / "docs"
MEASURED = sorted(DOCS.glob("tasks-*.json"))
NOTHING = pytest.param(
    DOCS,
    marks=pytest.mark.skip(reason="no docs/tasks-*.json: no GPU has met the code that is here"),
)
each_document = pytest.mark.parametrize("path", MEASURED or [NOTHING], ids=lambda p: p.name)


def stale(document, name: str) -> list[str]:
    """Why a measured document does not speak of what is here now; empty where it does."""
    again = f"run on that device again: pike-hpc tasks check --json > docs/{name}"
    here = {task.key: task.digest for task in choose(None).tasks}
    there = {row["task"]: row["task_digest"] for row in document["tasks"]}
    problems = []
    if document["code_digest"] != code_digest():
        problems.append(f"the code that admits tasks has changed since; {again}")
    # The page says of a check that was stopped that it does not speak of all tasks.
    told = here.keys() | there.keys() if document["complete"] else there.keys()
    changed = sorted(k for k in told if here.get(k) != there.get(k))
    if changed:
        problems.append(f"tasks have changed since ({', '.join(changed)}); {again}")
    return problems


@each_document
def test_the_measured_table_is_of_what_is_here_now(path):
    problems = stale(json.loads(path.read_text("utf-8")), path.name)
    assert not problems, "\n".join(problems)


@each_document
def test_the_page_holds_the_measured_table(path):
    table = as_markdown(json.loads(path.read_text("utf-8")))
    again = f"replace it by the output of: pike-hpc tasks table docs/{path.name}"
    assert table in (DOCS / "tasks.md").read_text("utf-8"), again


@each_document
def test_most_tasks_of_the_suites_are_admitted_on_a_gpu(path):
    document = json.loads(path.read_text("utf-8"))
    own = {row["task"] for row in document["tasks"] if row["admitted"]}
    for suite, least in (("level0", 5), ("level3-pike", 28), ("level5", 12)):
        assert sum(key.startswith(f"{suite}/") for key in own) >= least
    refused = [row for row in document["tasks"] if not row["admitted"]]
    assert all(row["reason"] for row in refused)


def test_what_is_stale_is_noticed():
    rows = [{"task": t.key, "task_digest": t.digest} for t in choose(None).tasks]
    good = {"complete": True, "code_digest": code_digest(), "tasks": rows}
    assert stale(good, "tasks-x.json") == []
    assert stale(good | {"complete": False, "tasks": rows[:-1]}, "tasks-x.json") == []
    for change in (
        {"code_digest": "0" * 64},
        {"tasks": rows[:-1]},
        {"tasks": [*rows, {"task": "level9/1", "task_digest": "0"}]},
        {"tasks": [{**rows[0], "task_digest": "0"}, *rows[1:]]},
    ):
        (problem,) = stale(copy.deepcopy(good) | change, "tasks-x.json")
        assert "pike-hpc tasks check --json > docs/tasks-x.json" in problem
