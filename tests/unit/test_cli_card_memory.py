"""Which tasks a site's cards are too small for."""

import json
from pathlib import Path

import pytest

from pike_hpc.cli.card_memory import ADMISSION_GIB, card_gb, too_large
from pike_hpc.config import load_site
from pike_hpc.config.env import sites_dir
from pike_hpc.tasks import find_task

DOCS = Path(__file__).resolve().parents[2] / "docs"
MEASURED = sorted(DOCS.glob("tasks-nvidia-*.json"))


@pytest.mark.skipif(not MEASURED, reason="no docs/tasks-nvidia-*.json: no GPU has met this code")
def test_it_says_what_was_measured():
    tasks = [task for path in MEASURED for task in json.loads(path.read_text("utf-8"))["tasks"]]
    large = {t["task"]: t["memory_gib"] for t in tasks if t["memory_gib"] >= 19}
    assert large.keys() == ADMISSION_GIB.keys() & {t["task"] for t in tasks}
    assert all(0 <= ADMISSION_GIB[key] - gib <= 1 for key, gib in large.items())


@pytest.mark.parametrize(
    ("model", "gb"),
    [
        ("nvidia-a100-sxm4-40gb", 40),
        ("nvidia-h100-80gb-hbm3", 80),
        ("nvidia-h200", 141),
        ("nvidia-a40", 48),
        ("nvidia-a4000", None),
        ("", None),
    ],
)
def test_a_card_s_name_says_how_much_it_has(model, gb):
    assert card_gb(model) == gb


@pytest.mark.parametrize(
    ("site", "keys"),
    [
        ("perlmutter", ["level3-pike/31", "level5/12", "level5/14"]),
        ("perlmutter:hbm80g", []),
        ("lawrencium", ["level5/14"]),
        ("lawrencium:h200", []),
        ("local", []),
    ],
)
def test_a_site_s_cards_and_the_tasks_they_are_too_small_for(site, keys):
    tasks = [find_task(k) for k in ("level3-pike/4", "level3-pike/31", "level5/12", "level5/14")]
    model = load_site(site, sites_dir=sites_dir({})).worker_job.gpu_model
    said = " ".join(too_large(tasks, model))
    assert [task.key for task in tasks if f"{task.key} (" in said] == keys
    assert ("SITE=perlmutter:hbm80g" in said) is bool(keys)
