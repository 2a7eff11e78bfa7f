"""Figures: the same bytes, no state left behind, names that are no formulas; inline SVG."""

import subprocess
import sys
import xml.etree.ElementTree as ET

import matplotlib
import pandas as pd
import pytest

from pike_hpc.analysis import figures
from pike_hpc.analysis.markup import Html, join, tag, trusted_svg
from pike_hpc.records import EvalStatus, Tier

EVIL = "s/$\\frac{$ <b>&\x00\u202e"


def steps(*rows):
    return pd.DataFrame(rows, columns=["task", "tier", "evaluation", "speedup"])


def counts(task):
    return pd.DataFrame([{"task": task, **{s.value: i for i, s in enumerate(EvalStatus)}}])


def best(task, **more):
    row = {"task": task, "tier": "fp32", "measured_tier": "fp32", "speedup": 2.0}
    row |= {"ci_low": 1.9, "ci_high": 2.1, "stock_speedup": float("nan")}
    return pd.DataFrame([{**row, **more}])


def draw_all(task):
    return [
        figures.trajectory(steps((task, "half", 2, 3.0)), {task: 4}),
        figures.speedups(best(task), {task: task}),
        figures.statuses(counts(task), {task: task}),
    ]


def test_hostile_names_give_valid_svg_and_the_same_bytes():
    first = draw_all(EVIL)
    assert first == draw_all(EVIL)
    for svg in first:
        ET.fromstring(svg)
        assert "<b>" not in svg


def test_drawing_leaves_no_matplotlib_state_behind():
    # Reading the "backend" setting would itself choose one and load pyplot.
    names = [name for name in matplotlib.rcParams if name != "backend"]
    before = {name: matplotlib.rcParams[name] for name in names}
    draw_all("s/1")
    assert {name: matplotlib.rcParams[name] for name in names} == before
    assert "matplotlib.pyplot" not in sys.modules


def test_importing_the_package_loads_neither_matplotlib_nor_torch(tmp_path):
    code = (
        "import sys, pike_hpc.analysis\n"
        "assert not {'matplotlib', 'torch'} & set(sys.modules), 'loaded too early'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("speedup", [0.01, 1.0, 1.01, 900.0])
def test_any_speedup_finds_its_place_on_the_axis(speedup):
    bounds = {"ci_low": speedup * 0.9, "ci_high": speedup * 1.1, "speedup": speedup}
    svg = figures.speedups(best("s/1", **bounds), {"s/1": "1 Net"})
    assert svg.count("1 Net") >= 1
    assert "1x" in svg


def test_stock_is_drawn_and_named_only_where_there_is_one():
    assert "best stock" not in figures.speedups(best("s/1"), {"s/1": "1"})
    assert "best stock" in figures.speedups(best("s/1", stock_speedup=1.5), {"s/1": "1"})


def test_every_status_and_tier_has_a_colour():
    assert set(figures.STATUS_COLOURS) == set(EvalStatus)
    assert set(figures.TIER_COLOURS) == {tier.value for tier in Tier}


def test_inline_svg_has_ids_of_its_own_and_brings_no_style_for_the_page():
    svg = figures.statuses(counts("s/1"), {"s/1": "1"})
    one, two = (trusted_svg(svg, prefix, 'a "title"') for prefix in ("a", "b"))
    ids = [
        {
            e.attrib["id"]
            for e in ET.fromstring(x.replace("xlink:href", "href")).iter()
            if "id" in e.attrib
        }
        for x in (one, two)
    ]
    assert ids[0]
    assert not ids[0] & ids[1]
    for gone in ("<?xml", "<!DOCTYPE", "<metadata", "<style"):
        assert gone not in one
    assert 'aria-label="a &quot;title&quot;"' in one
    opening = one[: one.index(">")]
    assert " width=" not in opening
    assert "viewBox=" in opening


def test_plain_strings_are_text_and_html_is_markup():
    assert tag("p", "<b>", class_="x") == '<p class="x">&lt;b&gt;</p>'
    assert tag("p", tag("b", "1 & 2")) == "<p><b>1 &amp; 2</b></p>"
    assert tag("a", title='"><script>') == '<a title="&quot;&gt;&lt;script&gt;"></a>'
    assert tag("p", data_x=None) == "<p></p>"
    assert isinstance(join("<", tag("i")), Html)
