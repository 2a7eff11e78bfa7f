"""From a journal through a real archive to table, JSON, page and files."""

import csv
import dataclasses
import itertools
import json
import re
import shutil
from html.parser import HTMLParser

import pytest
from builders.queries import answered, reserved
from builders.results import correct, timed

from pike_hpc.analysis import (
    build_report,
    render_table,
    report_json,
    write_html,
    write_tables,
)
from pike_hpc.archive import elites, read, rebuild
from pike_hpc.journal import TaskJournal, task_slug
from pike_hpc.records import (
    Candidate,
    Declined,
    EvalResult,
    EvalStatus,
    Evaluated,
    Finished,
    LegacyVerdicts,
    PikeError,
    Proposal,
    Proposed,
    QueryLost,
    ResultKey,
    Task,
    TaskOpened,
    Tier,
    UsageError,
    Variant,
)
from pike_hpc.worker import SIMULATED

HOSTILE = "</pre><script>alert('x')</script>\x00\u202e\x1b[31m\"&<img src=//evil>"


def task(number="4", variant=Variant.ADMITTED, source="class Model:\n    pass\n"):
    return Task(suite="s", id=number, name=f"{number}_Net", source=source, variant=variant)


def result(
    of,
    source,
    *,
    speedup=None,
    tier=Tier.FP32,
    status=None,
    simulated=False,
    device="cpu",
    retime=0,
):
    status = status or EvalStatus.PASSED
    ok = status is EvalStatus.PASSED
    key = ResultKey(
        task_digest=of.digest,
        candidate_id=Candidate(task_digest=of.digest, source=source).id,
        device_kind=device,
        image_digest="i",
        retime=retime,
    )
    return EvalResult(
        key=key,
        status=status,
        tier=tier if ok else None,
        timing=timed(
            speedup,
            candidate_ms=2.0 / speedup,
            reference_ms=2.0,
            ci95=(speedup * 0.95, speedup * 1.05),
        )
        if ok
        else None,
        correctness=correct(legacy=LegacyVerdicts(pike=True, kernelbench=False)) if ok else None,
        message=HOSTILE if not ok else "",
        log_tail=HOSTILE if not ok else "",
        lane_s=3.0,
        simulated=simulated,
    )


def run(
    folder, tasks, candidates=(), more=(), *, device="cpu", start=1000.0, retimed=True, **kwargs
):
    """A run folder with an archive. `candidates` are (operator, source, result arguments).

    What passed is judged again with the same outcome unless told not to.
    """
    for of in tasks:
        clock = itertools.count(start).__next__
        slug = task_slug(of.key)
        with TaskJournal.open(folder, slug, writer="test", seed=0, clock=clock) as journal:
            journal.append(TaskOpened(task=of, device_kind=device))
            for number, (operator, source, arguments) in enumerate(candidates):
                made = Proposal(
                    candidate_id=Candidate(task_digest=of.digest, source=source).id,
                    operator=operator,
                    note=HOSTILE,
                )
                journal.append(Proposed(node=f"n{number}", proposal=made, source=source))
                verdict = result(of, source, device=device, **arguments, **kwargs)
                journal.append(Evaluated(result=verdict))
                if retimed and verdict.timing is not None:
                    again = dataclasses.replace(verdict.key, retime=1)
                    journal.append(Evaluated(result=dataclasses.replace(verdict, key=again)))
            for event in more:
                journal.append(event)
    rebuild(folder)
    return folder


SEARCH = (
    ("rule:identity", "class ModelNew: pass  # 0", {"speedup": 1.0}),
    ("rule:compile_default", "class ModelNew: pass  # 1", {"speedup": 1.5}),
    ("rule:fold_batch_norm", "class ModelNew: pass  # 2", {"speedup": 3.0}),
    ("optimise", f"class ModelNew: pass  # {HOSTILE[:40]}", {"speedup": 6.0, "tier": Tier.HALF}),
    ("fix", "broken", {"status": EvalStatus.BUILD_ERROR}),
)

SPENDING = (
    Declined(node="d", operator="rule:sdpa", reason=HOSTILE),
    reserved("1", "q1", usd=1.0),
    answered("1", usd=0.25),
    reserved("2", "q2", usd=1.0),
    QueryLost(query_id="2"),
    Finished(reason="budget spent"),
)


def test_a_searched_task_fills_every_key_of_the_contract(tmp_path):
    report = build_report([run(tmp_path / "r", [task()], SEARCH, SPENDING)])
    data = json.loads(report_json(report))
    assert data["schema_version"] == 1
    assert [r["run"] for r in data["runs"]] == ["r"]
    (row,) = data["tasks"]
    assert (row["task"], row["variant"], row["device"]) == ("s/4", "admitted", "cpu")
    assert row["status_counts"] == {"PASSED": 4, "BUILD_ERROR": 1}
    assert row["best"]["fp32"]["speedup"] == row["best"]["tf32"]["speedup"] == 3.0
    assert row["best"]["fp32"]["operator"] == "rule:fold_batch_norm"
    assert row["best"]["fp32"]["ci95"] == pytest.approx([2.85, 3.15])
    assert row["best"]["half"]["speedup"] == 6.0
    assert len(row["best"]["half"]["candidate"]) == 64
    assert row["baselines"]["compile_default"]["speedup"] == 1.5
    assert (row["queries"], row["evaluations"]) == (2, 5)
    assert (row["cost_usd"], row["at_risk_usd"], row["gpu_s"]) == (0.25, 1.0, 0.0)
    assert row["state"] == "finished"
    assert data["geomean"]["fp32"]["unclamped"] == pytest.approx(3.0)
    assert data["geomean"]["fp32"]["clamped"] == pytest.approx(3.0)
    assert data["geomean"]["fp32"]["over_stock"] == pytest.approx(2.0)
    assert [s["evaluation"] for s in row["trajectory"]["half"]] == [1, 2, 3, 4]


def test_a_best_that_was_not_timed_again_is_marked_and_in_no_mean(tmp_path):
    folder = run(tmp_path / "r", [task()], SEARCH, SPENDING, retimed=False)
    report = build_report([folder])
    data = json.loads(report_json(report))
    (row,) = data["tasks"]
    assert (row["best"]["fp32"]["speedup"], row["best"]["fp32"]["retimed"]) == (3.0, False)
    fp32 = data["geomean"]["fp32"]
    assert (fp32["clamped"], fp32["unclamped"], fp32["over_stock"]) == (None, None, None)
    assert fp32["not_retimed"] == ["s/4"]
    assert data["selection_bias"] == {"median": None, "winners": 0, "lost": 0}
    table = render_table(report)
    assert "3.00x*" in table
    assert "*: 1 of 1 tasks hold a best that was not timed again" in " ".join(table.split())
    write_html(report, tmp_path / "r.html")
    assert "not timed again" in (tmp_path / "r.html").read_text("utf-8")


def test_the_table_says_who_won_and_by_how_much(tmp_path):
    table = render_table(build_report([run(tmp_path / "r", [task()], SEARCH, SPENDING)]))
    (line,) = [x for x in table.splitlines() if x.startswith("4 Net")]
    for part in ("fp32", "3.00x", "2.85 - 3.15", "2.00x", "rule: fold batch norm", "4/5"):
        assert part in line
    assert "6.00x" in table
    assert max(map(len, table.splitlines())) <= 100
    assert "\x1b" not in table


def test_a_run_without_a_verdict_is_a_report_all_the_same(tmp_path):
    report = build_report([run(tmp_path / "r", [task("1"), task("2")])])
    assert "nothing judged yet" in render_table(report)
    data = json.loads(report_json(report))
    assert [t["best"]["half"] for t in data["tasks"]] == [None, None]
    assert data["geomean"]["half"]["unclamped"] is None
    write_html(report, tmp_path / "r.html")
    assert write_tables(report, tmp_path / "out")


def test_only_failures_count_as_one_and_are_named(tmp_path):
    failing = [("fix", "broken", {"status": EvalStatus.TIMEOUT})]
    report = build_report([run(tmp_path / "r", [task("1"), task("2")], failing)])
    geomean = json.loads(report_json(report))["geomean"]["fp32"]
    assert geomean["clamped"] == 1.0
    assert geomean["unclamped"] is None
    assert geomean["without_correct"] == ["s/1", "s/2"]
    assert "nothing correct" in render_table(report)
    write_html(report, tmp_path / "r.html")


def test_a_task_that_the_judge_does_not_admit_is_in_no_mean(tmp_path):
    """Nobody was ever judged on it: it is neither a win nor a 1.00."""
    gone = {"status": EvalStatus.JUDGE_ERROR}
    refused = run(tmp_path / "b", [task("2")], [("rule:identity", "a", gone), ("fix", "b", gone)])
    won = run(tmp_path / "a", [task("1")], [("fix", "x", {"speedup": 4.0})])
    report = build_report([won, refused])
    geomean = json.loads(report_json(report))["geomean"]["half"]
    assert geomean["clamped"] == pytest.approx(4.0)
    assert (geomean["tasks"], geomean["without_correct"]) == (1, [])
    assert [t["headline"] for t in json.loads(report_json(report))["tasks"]] == [True, False]
    table = render_table(report)
    assert "half, 1 task " in table
    assert "not judged: s/2" in table
    write_html(report, tmp_path / "r.html")
    alone = build_report([refused])
    assert alone.headline is None
    assert json.loads(report_json(alone))["geomean"]["half"]["clamped"] is None
    write_html(alone, tmp_path / "r.html")


def test_simulated_and_legacy_numbers_stay_out_of_the_headline_and_are_marked(tmp_path):
    runs = [
        run(tmp_path / "real", [task()], SEARCH[:3]),
        run(tmp_path / "made_up", [task()], SEARCH, simulated=True),
        run(tmp_path / "legacy", [task(variant=Variant.LEGACY)], SEARCH),
    ]
    report = build_report(runs)
    data = json.loads(report_json(report))
    assert data["geomean"]["half"]["clamped"] == pytest.approx(3.0)
    assert [t["headline"] for t in data["tasks"]] == [True, False, False]
    table = render_table(report)
    assert "*** SIMULATED" in table
    assert "*** LEGACY" in table
    write_html(report, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert page.count('<span class="mark">SIMULATED</span>') >= 3
    assert page.count('<span class="mark">LEGACY</span>') >= 3
    only = build_report(runs[1:])
    assert json.loads(report_json(only))["geomean"]["fp32"]["clamped"] is None
    assert json.loads(report_json(only))["geomean_device"] is None


def test_runs_merge_per_task_and_device_and_a_copy_counts_once(tmp_path):
    first = run(tmp_path / "one", [task()], SEARCH[:2], SPENDING)
    second = run(tmp_path / "two", [task()], SEARCH[2:], start=2000.0)
    other = run(tmp_path / "gpu", [task()], SEARCH[:1], device="nvidia-h200")
    shutil.copytree(first, tmp_path / "copy" / "one")
    paths = [second, first, other, tmp_path / "copy" / "one"]
    data = json.loads(report_json(build_report(paths)))
    assert [(t["device"], t["evaluations"]) for t in data["tasks"]] == [
        ("cpu", 5),
        ("nvidia-h200", 1),
    ]
    assert data["tasks"][0]["runs"] == ["one", "two"]
    assert data["tasks"][0]["queries"] == 2
    assert data["tasks"][1]["gpu_s"] == 6.0, "timing again is paid for as well"
    assert data["tasks"][1]["retimes"] == 1
    assert len(data["runs"]) == 3
    assert report_json(build_report(paths)) == report_json(build_report(paths[:3][::-1]))


def test_another_source_under_the_same_id_is_another_row_and_said(tmp_path):
    one = run(tmp_path / "one", [task()], SEARCH)
    two = run(tmp_path / "two", [task(source="class Model:\n    x = 1\n")], SEARCH)
    report = build_report([one, two])
    assert len({t.label for t in report.tasks}) == 2
    assert any("source differs" in note for note in report.notes)


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def test_hostile_text_reaches_the_page_as_text_only(tmp_path):
    report = build_report([run(tmp_path / "r", [task()], SEARCH, SPENDING)])
    write_html(report, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    parsed = _Tags()
    parsed.feed(page)
    assert not {"script", "img", "iframe", "object", "link", "base", "form", "a"} & set(parsed.tags)
    assert not [a for a in parsed.attributes if a[0].startswith("on") or a[0] in ("src", "action")]
    links = [value for name, value in parsed.attributes if name.endswith("href")]
    assert all(value.startswith("#") for value in links)
    assert "default-src 'none'" in page
    assert "&lt;script&gt;alert" in page
    assert not {"\x00", "\u202e", "\x1b"} & set(page)
    ids = [value for name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_the_page_is_the_same_bytes_each_time(tmp_path):
    report = build_report([run(tmp_path / "r", [task()], SEARCH, SPENDING)])
    write_html(report, tmp_path / "1.html")
    write_html(report, tmp_path / "2.html")
    assert (tmp_path / "1.html").read_bytes() == (tmp_path / "2.html").read_bytes()
    assert not list(tmp_path.glob(".*"))


WON = {"s-4-Net-cpu-fp32.py": SEARCH[2][1], "s-4-Net-cpu-half.py": SEARCH[3][1]}


def test_what_won_is_written_as_it_was_judged(tmp_path):
    odd = ("optimise", "class ModelNew: pass  # \ud800 \r\n", {"speedup": 7.0, "tier": Tier.HALF})
    for number, search in enumerate((SEARCH, (*SEARCH, odd))):
        report = build_report([run(tmp_path / f"{number}", [task()], search)])
        write_tables(report, tmp_path / "out")
        won = {path.name: path.read_bytes() for path in (tmp_path / "out/winners").iterdir()}
        sources = {**WON, "s-4-Net-cpu-half.py": search[3 if number == 0 else -1][1]}
        rows = list(csv.DictReader(won.pop("winners.csv").decode().splitlines()))
        assert won == {n: s.encode("utf-8", "surrogatepass") for n, s in sources.items()}
        assert [row["file"] for row in rows] == list(sources)
        assert [float(row["speedup"]) for row in rows] == [3.0, 6.0 if number == 0 else 7.0]


def test_winners_of_two_tasks_that_read_alike_have_a_file_each(tmp_path):
    tasks = [task(), task(variant=Variant.LEGACY)]
    report = build_report(
        [run(tmp_path / f"{n}", [of], SEARCH[:1], start=n) for n, of in enumerate(tasks)]
    )
    written = [path for path in write_tables(report, tmp_path / "out") if path.suffix == ".py"]
    assert {path.read_text() for path in written} == {SEARCH[0][1]}
    short, long = sorted((path.stem for path in written), key=len)
    assert re.fullmatch(f"{short}-[0-9a-f]{{8}}", long)


@pytest.mark.parametrize("name", ["../../x", "N" * 300, "\xe9", "a\x00/b"])
def test_a_task_of_any_name_has_its_winner_in_the_folder(tmp_path, name):
    named = dataclasses.replace(task(), name=name)
    report = build_report([run(tmp_path / "r", [named], SEARCH[:1])])
    (file,) = (p for p in write_tables(report, tmp_path / "out") if p.suffix == ".py")
    assert file.parent == tmp_path / "out" / "winners"
    assert file.read_text() == SEARCH[0][1]


def test_tables_and_figures_are_written_and_run_no_formula(tmp_path):
    odd = Declined(node="d", operator="=cmd|' /C calc'!A0", reason="-1+1")
    report = build_report([run(tmp_path / "r", [task()], SEARCH, (odd,))])
    written = write_tables(report, tmp_path / "out")
    assert {p.name for p in written} == {
        "candidates.csv",
        "declined.csv",
        "elites.csv",
        "evaluations.csv",
        "queries.csv",
        "speedups.svg",
        "statuses.csv",
        "statuses.svg",
        "summary.csv",
        "trajectory.csv",
        "trajectory.svg",
        "winners.csv",
        *WON,
    }
    assert len((tmp_path / "out" / "evaluations.csv").read_text().splitlines()) == 1 + 5
    declined = (tmp_path / "out" / "declined.csv").read_text()
    assert ",'=cmd" in declined
    assert ",'-1+1" in declined
    assert (tmp_path / "out" / "speedups.svg").read_text().startswith("<?xml")


def test_a_path_without_an_archive_is_one_clear_message(tmp_path):
    with pytest.raises(UsageError, match="no archive here") as folder:
        build_report([tmp_path])
    assert "archive rebuild" in (folder.value.fix or "")
    with pytest.raises(UsageError, match="no archive here"):
        build_report([tmp_path / "missing.h5"])
    (tmp_path / "archive.h5").write_bytes(b"not HDF5")
    with pytest.raises(UsageError):
        build_report([tmp_path])
    with pytest.raises(UsageError, match="no run"):
        build_report([])


def test_an_unwritable_place_is_one_clear_message(tmp_path):
    report = build_report([run(tmp_path / "r", [task()])])
    (tmp_path / "file").write_text("")
    with pytest.raises(PikeError, match="cannot write"):
        write_html(report, tmp_path / "file" / "r.html")


def test_the_time_again_that_counts_is_the_last_by_number_not_by_clock(tmp_path):
    """The search went on at a host whose clock was five minutes behind."""
    of, now = task(), [1000.0]
    journal = TaskJournal.open(
        tmp_path, task_slug(of.key), writer="w", seed=0, clock=lambda: now[0]
    )
    journal.append(TaskOpened(task=of, device_kind="cpu"))
    for at_s, number, speedup in ((1100, 0, 3.0), (1200, 1, 2.9), (900, 2, 2.0)):
        now[0] = at_s
        journal.append(Evaluated(result=result(of, "a", speedup=speedup, retime=number)))
    journal.append(Finished(reason="the end"))
    journal.close()
    rebuild(tmp_path)
    report = build_report([tmp_path])
    best = report.tasks[0].best[Tier.FP32]
    assert (best.speedup, best.retimed, best.search_speedup) == (2.0, True, 3.0)
    record = read(tmp_path / "archive.h5").tasks[0]
    assert elites(record)[0].retimed.timing.speedup == 2.0


def test_what_the_search_measured_is_named_so_wherever_it_is_listed(tmp_path):
    folder = tmp_path / "r"
    of = task()
    run(folder, [of], SEARCH[:3], retimed=False)
    slug = task_slug(of.key)
    with TaskJournal.open(folder, slug, writer="w", seed=0, clock=lambda: 2000.0) as journal:
        for index, speedup in ((1, 1.4), (2, 2.8)):
            source = SEARCH[index][1]
            journal.append(Evaluated(result=result(of, source, speedup=speedup, retime=1)))
        lost = result(of, SEARCH[0][1], status=EvalStatus.WRONG_RESULT, retime=1)
        journal.append(Evaluated(result=lost))
    rebuild(folder)
    report = build_report([folder])
    write_tables(report, tmp_path / "t")
    lines = (tmp_path / "t" / "candidates.csv").read_text("utf-8").splitlines()
    rows = list(csv.DictReader(lines))
    assert [(r["speedup"], r["retimed_speedup"], r["retimed_status"]) for r in rows] == [
        ("1.0", "", "WRONG_RESULT"),
        ("1.5", "1.4", "PASSED"),
        ("3.0", "2.8", "PASSED"),
    ]
    write_html(report, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text("utf-8")
    assert "in the search" in page
    assert '<td class="number">1.50x</td><td class="number">1.40x</td>' in page


def test_stock_settings_that_were_not_timed_again_are_marked_on_the_page(tmp_path):
    stock = SEARCH[1:2]
    marks = []
    for retimed in (True, False):
        folder = run(tmp_path / f"{retimed}", [task()], stock, retimed=retimed)
        write_html(build_report([folder]), tmp_path / "r.html")
        table = (tmp_path / "r.html").read_text("utf-8").split("Stock settings, judged")[1]
        marks.append("not timed again" in table.split("</table>")[0])
    assert marks == [False, True]


def test_a_simulated_task_without_a_verdict_yet_makes_no_headline(tmp_path):
    report = build_report([run(tmp_path / "r", [task()], device=SIMULATED)])
    data = json.loads(report_json(report))
    assert (data["geomean_device"], data["geomean"]["fp32"]["clamped"]) == (None, None)
    assert [group["headline"] for group in data["groups"]] == [False]
    assert "SIMULATED" in data["notes"][0]
