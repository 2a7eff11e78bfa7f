"""Module-level integers of a task file and their replacement."""

import pytest

from pike_hpc.records import UsageError
from pike_hpc.tasks.source import apply_overrides, defects, effective_source, module_integers
from pike_hpc.tasks.spec import find_task

SOURCE = '''"""Größe: 4"""
class Model: ...

batch_size = 10  # images
height: int = 224
rows, columns = 3, 4
N = 2 * 1024
half = N // 2
name = "x"
flag = True
rate = 0.5


def get_inputs():
    batch_size = 99
    return [batch_size]
'''


def test_module_integers_follow_simple_arithmetic_and_leave_the_rest():
    assert module_integers(SOURCE) == {
        "batch_size": 10,
        "height": 224,
        "rows": 3,
        "columns": 4,
        "N": 2048,
        "half": 1024,
    }


def test_huge_powers_and_division_by_zero_are_not_evaluated():
    assert module_integers("a = 9 ** 9 ** 9\nb = 1 << 1000000\nc = 1 // 0\nd = 2 ** 20") == {
        "d": 2**20
    }


def test_overrides_replace_values_and_keep_every_other_character():
    changed = apply_overrides(SOURCE, {"batch_size": 2, "columns": 7, "N": 64})
    assert changed == SOURCE.replace("= 10  #", "= 2  #").replace("3, 4", "3, 7").replace(
        "2 * 1024", "64"
    )
    assert module_integers(changed)["half"] == 32


def test_overrides_keep_windows_line_ends():
    assert apply_overrides("a = 1\r\nb = (1 +\r\n 2)\r\n", {"b": 5}) == "a = 1\r\nb = (5)\r\n"


def test_two_overrides_on_one_line_keep_their_places():
    assert apply_overrides("a, b = 3, 4\n", {"a": 1000, "b": 7}) == "a, b = 1000, 7\n"


def test_every_assignment_of_the_name_is_replaced():
    assert apply_overrides("a = 1\na = 2\n", {"a": 9}) == "a = 9\na = 9\n"


def test_unknown_override_names_the_valid_ones():
    with pytest.raises(UsageError, match=r"valid: batch_size \(now 10\), height \(now 224\)"):
        apply_overrides(SOURCE, {"batchsize": 2})


@pytest.mark.parametrize("value", [0, -1, True, 1.5])
def test_an_override_is_a_positive_integer(value):
    with pytest.raises(UsageError, match="positive integer"):
        apply_overrides(SOURCE, {"batch_size": value})


def test_effective_source_is_the_source_with_overrides():
    task = find_task("level3-pike/33", shape_overrides={"batch_size": 2})
    assert "batch_size = 8" in task.source
    assert "batch_size = 2" in effective_source(task)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("class Model:\n  def", "not parsable"),
        ("class Model: ...\x00", "not parsable"),
        ("def get_inputs(): ...", "defines no class Model"),
        ("class Model: ...", "defines no function get_inputs"),
        ("x = 1", "defines no class Model and no function get_inputs"),
    ],
)
def test_defects_are_named(source, reason):
    assert defects(source).startswith(reason)


def test_a_task_has_no_defects():
    assert defects(SOURCE) is None
