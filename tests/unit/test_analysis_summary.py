"""Means over tasks, against values worked out by hand."""

import math

import pytest

from pike_hpc.analysis.summary import SelectionBias, geometric_mean, selection_bias, summarise

NO_STOCK = {"a": None, "b": None, "c": None}


def test_unclamped_leaves_failures_out_and_keeps_slow_downs():
    summary = summarise({"a": 4.0, "b": 0.5, "c": None}, NO_STOCK)
    assert summary.unclamped.value == pytest.approx(math.sqrt(4.0 * 0.5))
    assert summary.unclamped.tasks == 2


def test_clamped_counts_failures_and_slow_downs_as_one():
    summary = summarise({"a": 8.0, "b": 0.5, "c": None}, NO_STOCK)
    assert summary.clamped.value == pytest.approx(2.0)
    assert summary.clamped.tasks == 3


def test_failures_and_slow_downs_are_named():
    summary = summarise({"a": 8.0, "b": 0.5, "c": None}, NO_STOCK)
    assert (summary.without_correct, summary.slower) == (("c",), ("b",))


def test_over_stock_is_taken_over_the_tasks_that_have_one():
    summary = summarise({"a": 8.0, "b": 2.0, "c": 3.0}, {"a": 2.0, "b": 8.0, "c": None})
    assert summary.over_stock.value == pytest.approx(4.0)
    assert summary.over_stock.tasks == 2


def test_fast_p_is_a_share_of_all_tasks():
    summary = summarise({"a": 2.0, "b": 1.0, "c": None}, NO_STOCK)
    assert summary.fast_p[1.0] == pytest.approx(2 / 3)
    assert summary.fast_p[2.0] == pytest.approx(1 / 3)
    assert summary.fast_p[3.0] == 0.0


def test_one_task_has_no_interval_and_none_has_no_mean():
    assert geometric_mean([2.0]).ci95 is None
    assert geometric_mean([]) is None
    nothing = summarise({"a": None}, {"a": None})
    assert nothing.unclamped is None
    assert nothing.clamped.value == 1.0
    assert summarise({}, {}).clamped is None


def test_the_bootstrap_covers_what_two_tasks_can_give():
    # Resampling two tasks gives 1, 2 or 4 with weights 1:2:1, so 2.5 % and 97.5 % are the ends.
    low, high = geometric_mean([1.0, 4.0]).ci95
    assert (low, high) == (pytest.approx(1.0), pytest.approx(4.0))


def test_the_interval_is_the_same_each_time_and_narrows_with_tasks():
    few, many = [1.0, 2.0, 4.0], [1.0, 2.0, 4.0] * 20
    assert geometric_mean(few) == geometric_mean(few)
    spread = [math.log(b[1] / b[0]) for b in (geometric_mean(few).ci95, geometric_mean(many).ci95)]
    assert spread[1] < spread[0] / 2


def test_a_task_whose_best_was_not_timed_again_is_in_no_mean():
    summary = summarise(
        {"a": 2.0, "b": 8.0, "c": None}, {"a": 1.5, "b": 4.0, "c": None}, not_retimed={"b"}
    )
    assert summary.tasks == 3
    assert (summary.unclamped.value, summary.unclamped.tasks) == (pytest.approx(2.0), 1)
    assert (summary.clamped.value, summary.clamped.tasks) == (pytest.approx(2.0**0.5), 2)
    assert (summary.over_stock.value, summary.over_stock.tasks) == (pytest.approx(1.5), 1)
    assert summary.not_retimed == ("b",)
    assert summary.fast_p[1.5] == 0.5


def test_the_selection_bias_is_a_median():
    assert selection_bias([1.0, 1.3, 1.1], lost=2) == SelectionBias(median=1.1, winners=3, lost=2)
    assert selection_bias([], lost=1).median is None
