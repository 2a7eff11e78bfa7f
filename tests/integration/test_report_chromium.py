"""The page in a real browser: it loads, shows its text, and the browser has nothing to object."""

import re
import shutil
import subprocess

import pytest
from builders.required import lacking
from builders.results import passed, timed

from pike_hpc.analysis.history import RunHistory, TaskHistory
from pike_hpc.analysis.page import page
from pike_hpc.analysis.report import build
from pike_hpc.archive import StampedResult
from pike_hpc.records import (
    Candidate,
    Proposal,
    ResultKey,
    Task,
)

PROBE = "<script>document.title='OWNED'</script><img src=x onerror=alert(1)>\u202e\x00$\\frac$"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=2000",
)


@pytest.fixture(scope="module")
def chromium():
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        lacking("chromium", "chromium is not installed: apt-get install chromium")
    return found


def report():
    task = Task(suite="s", id="4", name=f"4_{PROBE}", source="class Model:\n    pass\n")
    source = f"class ModelNew:\n    x = '''{PROBE}'''\n"
    key = ResultKey(
        task_digest=task.digest,
        candidate_id=Candidate(task_digest=task.digest, source=source).id,
        device_kind="cpu",
        image_digest="",
    )
    result = passed(key, 2.0, timing=timed(2.0, ci95=(1.9, 2.1)), lane_s=3.0)
    history = TaskHistory(
        run_ids=("r",),
        task=task,
        device_kind="cpu",
        proposals=(Proposal(candidate_id=key.candidate_id, operator="optimise", note=PROBE),),
        sources={key.candidate_id: source},
        verdicts=(StampedResult(time=1.0, result=result),),
    )
    return build([RunHistory(run_id="r", path="p", created="", tasks=(history,))])


def visit(chromium, url, profile):
    """What the browser made of a page, and the lines its console got."""
    seen = subprocess.run(
        [chromium, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", url],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=True,
    )
    console = [line for line in seen.stderr.splitlines() if "CONSOLE" in line]
    return seen.stdout, console


def test_the_page_loads_clean_and_shows_the_result(chromium, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page(report()), encoding="utf-8")
    dom, console = visit(chromium, path.as_uri(), tmp_path / "profile")
    assert console == []
    text = re.sub(r"<[^>]*>", " ", dom)
    for expected in ("Results on cpu", "2.00x", "1.90 - 2.10", "model: optimise", "What it cost"):
        assert expected in text
    assert "<title>pike-hpc: r</title>" in dom
    assert dom.count("<svg") == 3
    assert "<script" not in dom
    assert "<img" not in dom


def test_the_browser_would_have_said_so(chromium, tmp_path):
    """The check above sees what it claims to see: a page that does break its policy."""
    broken = page(report()).replace("<main>", "<main><script>1</script><img src='data:,'>")
    path = tmp_path / "broken.html"
    path.write_text(broken, encoding="utf-8")
    _, console = visit(chromium, path.as_uri(), tmp_path / "profile")
    assert any("Content Security Policy" in line for line in console)
