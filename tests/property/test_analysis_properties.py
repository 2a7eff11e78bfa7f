"""What holds for any text and any verdicts."""

import math
from dataclasses import replace
from html.parser import HTMLParser

from builders.results import correct, timed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pike_hpc.analysis.history import RunHistory, TaskHistory
from pike_hpc.analysis.markup import join, tag
from pike_hpc.analysis.metrics import best_per_tier, trajectory
from pike_hpc.analysis.report import build
from pike_hpc.analysis.report_json import report_json
from pike_hpc.analysis.summary import summarise
from pike_hpc.analysis.table import NARROWEST, render_table
from pike_hpc.analysis.text import cell_width, elide, log_text, one_line, visible
from pike_hpc.archive import StampedResult
from pike_hpc.records import (
    EvalResult,
    EvalStatus,
    Proposal,
    ResultKey,
    Task,
    Tier,
)

TEXT = st.text(st.characters(), max_size=60) | st.sampled_from(
    ["<script>", "\x1b[31m", "\u202e", "\x00", "&quot;", "'\"", "]]>", "<!--", "\ud800", "漢" * 40]
)
SPEEDUPS = st.floats(0.01, 500.0)


class Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


@given(TEXT, TEXT)
def test_no_text_breaks_out_of_its_element(content, attribute):
    reader = Reader()
    reader.feed(join(tag("p", content, title=attribute), tag("hr")))
    reader.close()
    assert reader.tags == ["p", "hr"]
    assert reader.text == visible(content)
    assert reader.attributes == [("title", visible(attribute))]


@given(TEXT)
def test_visible_text_controls_no_terminal(text):
    for shown in (visible(text), log_text(text), one_line(text)):
        assert not any(ord(c) < 32 and c not in "\n\t" for c in shown)
        assert not any(c in shown for c in "\x7f\x9b\u202a\u202e\u2066\u2069\u200f")
        shown.encode("utf-8")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50), st.integers(0, 60))
def test_elided_text_fits(text, room):
    assert cell_width(elide(text, room)) <= max(room, 0)


@st.composite
def histories(draw):
    task = Task(suite="s", id=draw(TEXT) or "x", name=draw(TEXT), source=draw(TEXT))
    device = draw(st.sampled_from(["cpu", "gpu"]))
    verdicts, proposals, retimes = [], [], []
    for number in range(draw(st.integers(0, 5))):
        status = draw(st.sampled_from([EvalStatus.PASSED, *EvalStatus]))
        speedup = draw(SPEEDUPS)
        timing = timed(speedup, ci95=(speedup * 0.9, speedup * 1.2))
        ok = status is EvalStatus.PASSED
        key = ResultKey(
            task_digest=task.digest,
            candidate_id=f"{number:064}",
            device_kind=device,
            image_digest="",
        )
        result = EvalResult(
            key=key,
            status=status,
            tier=draw(st.sampled_from(list(Tier))) if ok else None,
            timing=timing if ok else None,
            correctness=correct() if ok else None,
            message=draw(TEXT),
            simulated=draw(st.booleans()),
        )
        verdicts.append(StampedResult(time=float(number), result=result))
        if ok and draw(st.booleans()):
            value = draw(SPEEDUPS)
            timing = replace(timing, speedup=value, ci95=(value, value))
            again = EvalResult(key=key, status=EvalStatus.WRONG_RESULT)
            if draw(st.booleans()):
                again = replace(result, timing=timing, tier=draw(st.sampled_from(list(Tier))))
            again = replace(again, key=replace(key, retime=1))
            retimes.append(StampedResult(time=10.0 + number, result=again))
        operator = draw(TEXT | st.sampled_from(["rule:identity", "rule:compile_default"]))
        proposals.append(Proposal(candidate_id=key.candidate_id, operator=operator))
    return TaskHistory(
        run_ids=("r",),
        task=task,
        device_kind=device,
        proposals=tuple(proposals),
        verdicts=tuple(verdicts),
        retimes=tuple(retimes),
    )


@given(histories())
def test_looser_tiers_are_never_slower_and_what_was_timed_again_goes_first(history):
    best = best_per_tier(history)
    ranked = [(b.retimed, b.speedup) if (b := best[t]) else (False, 0.0) for t in Tier]
    assert ranked == sorted(ranked)
    again = {r.result.candidate_id: r.result for r in history.retimes}
    for found in filter(None, best.values()):
        assert found.retimed == (found.candidate in again)
        if found.retimed:
            assert again[found.candidate].timing.speedup == found.speedup


@given(histories())
def test_the_path_ends_at_the_best_of_the_search(history):
    best = best_per_tier(replace(history, retimes=()))
    for tier in Tier:
        steps = trajectory(history, tier)
        path = [s.speedup for s in steps]
        assert path == sorted(set(path))
        assert (path[-1] if path else None) == (best[tier].speedup if best[tier] else None)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=40)
@given(st.lists(histories(), max_size=4), st.integers(20, 140))
def test_any_report_renders_within_its_width_and_as_json(tasks, width):
    report = build([RunHistory(run_id="r", path="p", created="", tasks=tuple(tasks))])
    lines = render_table(report, width).splitlines()
    assert all(cell_width(line) <= max(width, NARROWEST) for line in lines)
    assert "\x1b" not in "".join(lines)
    assert report_json(report).isascii()
    assert all(not (g.headline and g.simulated) for g in report.groups)


@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=3), SPEEDUPS | st.none(), min_size=1, max_size=8))
def test_clamping_never_lowers_and_the_interval_holds_the_mean(speedups):
    summary = summarise(speedups, dict.fromkeys(speedups))
    assert summary.clamped.value >= 1.0
    for mean in (summary.clamped, summary.unclamped):
        if mean and mean.ci95:
            low, high = mean.ci95
            assert low <= mean.value * (1 + 1e-9)
            assert mean.value <= high * (1 + 1e-9)
            assert all(map(math.isfinite, (low, high)))
