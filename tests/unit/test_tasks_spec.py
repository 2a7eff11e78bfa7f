"""Suites, tasks and ranges as a user names them."""

import pytest

from pike_hpc.records import UsageError, Variant
from pike_hpc.tasks import find_task, load_suite, parse_range, select, suites

TASK = "class Model: ...\nbatch_size = 4\ndef get_inputs(): ...\n"


@pytest.fixture
def checkout(tmp_path):
    """A checkout in KernelBench's layout, with files that are no tasks."""
    for level in ("level1", "level3"):
        folder = tmp_path / "KernelBench" / level
        folder.mkdir(parents=True)
        for name in ("2_Two.py", "10_Ten.py", "1_Square_matrix_.py"):
            (folder / name).write_text(TASK)
    level3 = tmp_path / "KernelBench" / "level3"
    (level3 / "7_Broken.py").write_text("class Model:\n def")
    (level3 / "8_Empty.py").write_text("")
    (level3 / "9_Latin.py").write_bytes(b"# \xe9\n" + TASK.encode())
    (level3 / "02_Again.py").write_text(TASK)
    (level3 / "mine.py").write_text(TASK)
    (level3 / "__init__.py").write_text("")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "eval.py").write_text("")
    return tmp_path


SHIPPED = {
    "level0": "1-5",
    "level3-pike": "1 2 4 6 8-10 13-17 19-27 29-31 33 43 44 48-50",
    "level5": "1-14",
}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_suites_have_the_published_ids(name):
    spans = [span.split("-") for span in SHIPPED[name].split()]
    ids = [
        str(n) for first, *last in spans for n in range(int(first), int((last or [first])[0]) + 1)
    ]
    assert [task.id for task in load_suite(name).tasks] == ids


def test_a_shipped_suite_says_what_it_is():
    assert suites() == tuple(SHIPPED)
    suite = load_suite("level3-pike")
    lenet = next(task for task in suite.tasks if task.id == "4")
    assert lenet.key == "level3-pike/4"
    assert lenet.name == "LeNet5"
    assert suite.refused == ()
    assert suite.level == 3


def test_a_checkout_holds_suites_by_level(checkout):
    assert suites(checkout) == ("level1", "level3")
    suite = load_suite("level3", tasks_root=checkout)
    assert [task.id for task in suite.tasks] == ["1", "2", "10", "mine"]
    assert [task.name for task in suite.tasks] == ["Square_matrix", "Again", "Ten", "mine"]
    assert find_task("level1/10", tasks_root=checkout).key == "level1/10"


def test_broken_files_are_refused_by_name_and_the_rest_loads(checkout):
    suite = load_suite("level3", tasks_root=checkout)
    reasons = {path.name: reason for path, reason in suite.refused}
    assert reasons["7_Broken.py"].startswith("not parsable")
    assert reasons["8_Empty.py"] == "the file is empty"
    assert reasons["9_Latin.py"].startswith("not UTF-8")
    assert reasons["2_Two.py"].startswith("id 2 is taken by Again")
    assert set(reasons) == {"7_Broken.py", "8_Empty.py", "9_Latin.py", "2_Two.py"}


def test_a_refused_task_says_why(checkout):
    with pytest.raises(UsageError, match=r"level3/7 is refused: not parsable"):
        find_task("level3/7", tasks_root=checkout)


def test_a_folder_is_a_suite_by_its_path(checkout):
    suite = load_suite(str(checkout / "KernelBench" / "level1"))
    assert (suite.name, len(suite.tasks)) == ("level1", 3)
    assert load_suite(checkout / "KernelBench" / "level1", tasks_root=checkout).name == "level1"


def test_a_folder_of_several_suites_lists_them(checkout):
    with pytest.raises(UsageError, match="holds several suites") as error:
        load_suite(str(checkout))
    assert "KernelBench/level1" in error.value.valid


def test_a_root_that_is_itself_a_folder_of_files_is_a_suite(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "mine.py").write_text(TASK)
    assert suites(folder) == ("own",)
    assert find_task("own/mine", tasks_root=folder).id == "mine"


def test_same_names_in_one_root_are_told_apart_by_path(checkout):
    other = checkout / "old" / "level3"
    other.mkdir(parents=True)
    (other / "1_Other.py").write_text(TASK)
    assert set(suites(checkout)) == {"level1", "KernelBench/level3", "old/level3"}
    assert find_task("old/level3/1", tasks_root=checkout).name == "Other"


def test_a_task_is_found_by_the_path_of_its_file(checkout):
    path = checkout / "KernelBench" / "level3" / "10_Ten.py"
    task = find_task(str(path), variant=Variant.LEGACY)
    assert (task.key, task.name, task.variant) == ("level3/10", "Ten", Variant.LEGACY)
    assert find_task(str(path.with_name("mine.py"))).key == "level3/mine"


@pytest.mark.parametrize("text", ["4_LeNet5", "LeNet5", "04"])
def test_a_task_is_found_by_stem_name_or_padded_id(text):
    assert find_task(f"level3-pike/{text}").id == "4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("level3-pike/5", "valid: 1, 2, 4, 6, 8, 9, 10, 13, 14, 15"),
        ("level3-pike/LeNet", r"did you mean level3-pike/4 \(LeNet5\)"),
        ("level3-pik/4", "did you mean 'level3-pike'"),
        ("nothing", "neither SUITE/ID nor a file"),
        ("level3-pike/", "is a suite of 30 tasks, and one of them is wanted"),
        ("/nonexistent/4_LeNet5.py", "no task file"),
        ("/nonexistent/4", "no folder /nonexistent"),
    ],
)
def test_a_task_that_does_not_exist_is_one_clear_message(text, message):
    with pytest.raises(UsageError, match=message):
        find_task(text)


def test_a_file_that_is_no_task_says_why(checkout):
    with pytest.raises(UsageError, match=r"8_Empty\.py is no task: the file is empty"):
        find_task(str(checkout / "KernelBench" / "level3" / "8_Empty.py"))


def test_overrides_are_checked_and_change_the_digest():
    plain = find_task("level3-pike/8")
    small = find_task("level3-pike/8", shape_overrides={"batch_size": 2})
    assert plain.source == small.source
    assert plain.digest != small.digest
    with pytest.raises(UsageError, match="batch_size"):
        find_task("level3-pike/8", shape_overrides={"batch": 2})


def test_a_range_selects_in_the_suites_order_once():
    suite = load_suite("level3-pike")
    chosen = select(suite, parse_range("17, 1-10,8,20"))
    assert [task.id for task in chosen] == ["1", "2", "4", "6", "8", "9", "10", "17", "20"]
    assert [task.id for task in select(suite, parse_range("11-14"))] == ["13", "14"]
    assert select(suite, parse_range("1-50")) == suite.tasks == select(suite, parse_range("all"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5", "no task '5'"),
        ("1,5", "valid: 1, 2, 4, 6"),
        ("51-60", "has no task in 51-60"),
        ("10-1", "runs backwards"),
        ("1,,4", "empty item"),
        ("", "empty item"),
        ("a-b", "no task 'a-b'"),
    ],
)
def test_a_wrong_range_is_one_clear_message(text, message):
    with pytest.raises(UsageError, match=message):
        select(load_suite("level3-pike"), parse_range(text))


def test_an_empty_folder_and_a_missing_root_are_usage_errors(tmp_path):
    with pytest.raises(UsageError, match="no task in folder"):
        load_suite(str(tmp_path))
    with pytest.raises(UsageError, match="no folder"):
        suites(tmp_path / "gone")
