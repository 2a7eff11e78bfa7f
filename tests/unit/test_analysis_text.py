"""Hostile text made visible, technical names made readable."""

import pytest

from pike_hpc.analysis.text import (
    cell_width,
    dollars,
    elide,
    interval,
    log_text,
    milliseconds,
    one_line,
    operator_words,
    seconds,
    status_word,
    status_words,
    times,
    visible,
)
from pike_hpc.records import EvalStatus


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("a\x00b", "a⟨U+0000⟩b"),
        ("x\u202egnp", "x⟨U+202E⟩gnp"),
        ("\x1b[2J", "⟨U+001B⟩[2J"),
        ("zero\u200bwidth", "zero⟨U+200B⟩width"),
        ("\ud800", "⟨U+D800⟩"),
        ("line\u2028sep", "line⟨U+2028⟩sep"),
        ("tab\tand\nline stay, naïve 漢字 too", "tab\tand\nline stay, naïve 漢字 too"),
    ],
)
def test_characters_without_a_shape_are_spelled_out(hostile, shown):
    assert visible(hostile) == shown


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("\x9b31mred", "red"),
        ("\x1b]never ends", ""),
        ("10%\r20%\r\ndone", "10%\n20%\ndone"),
        ("\x1bcreset", "reset"),
    ],
)
def test_terminal_escapes_are_taken_out_of_logs(printed, shown):
    assert log_text(printed) == shown


def test_one_line_is_one_line_and_bounded():
    assert one_line("a\n\n b\tc") == "a b c"
    assert one_line("x" * 500, 10) == "xxxxxxxxx…"


def test_width_counts_cells_not_characters():
    assert cell_width("漢字") == 4
    assert cell_width("e\u0301") == 1
    assert cell_width(elide("漢字漢字", 5)) <= 5
    assert elide("short", 5) == "short"
    assert elide("anything", 0) == ""


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        ("rule:identity", "stock: eager, unchanged"),
        ("rule:compile_default", "stock: compile default"),
        ("rule:fold_batch_norm", "rule: fold batch norm"),
        ("rule:fold_batch_norm+channels_last", "rules: fold batch norm + channels last"),
        ("fix", "model: repair"),
        ("unheard\x1b[31m of", "unheard of"),
    ],
)
def test_operators_in_words(operator, words):
    assert operator_words(operator) == words


def test_every_status_has_a_word_of_its_own():
    words = [status_word(status) for status in EvalStatus]
    assert len(set(words)) == len(EvalStatus)
    assert status_words({EvalStatus.PASSED: 9, EvalStatus.TIMEOUT: 1}) == "9 ok, 1 timeout"
    assert status_words({}) == "none"


def test_numbers():
    assert [times(x) for x in (None, 2.306, 0.5, 128.4)] == ["-", "2.31x", "0.50x", "128x"]
    assert interval((2.216, 2.41)) == "2.22 - 2.41"
    assert interval(None) == "-"
    assert [seconds(x) for x in (8.24, 720.0, 12240.0)] == ["8.2 s", "12 min", "3.4 h"]
    assert [milliseconds(x) for x in (0.0314, 1.5)] == ["31.4 µs", "1.5 ms"]
    assert [dollars(x) for x in (0.0, 0.004, 2.5)] == ["$0.00", "under $0.01", "$2.50"]
