"""A checkout of another project as it lies on disk: 260 tasks, and whatever else is there."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from pike_hpc.cli import main
from pike_hpc.records import MAX_SOURCE_BYTES, UsageError, Variant
from pike_hpc.tasks import choose, find_task, load_suite, parse_range, select, suites

ROOT = Path(__file__).resolve().parents[2]

TASK = '''"""Task {number} of {level}: a written pattern such as \\d is nobody's mistake."""
import torch
import torch.nn as nn

batch_size = {number}
features = 2 * 8


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.layer = nn.Linear(features, {number})

    def forward(self, x):
        return torch.relu(self.layer(x))


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return [features]
'''

LEVELS = {"level1": 100, "level2": 100, "level3": 40, "level4": 5, "level5": 5, "level10": 10}


def text(level: str, number: int) -> str:
    return TASK.format(level=level, number=number)


def broken(folder: Path) -> dict[str, str]:
    """Files that are no task put among good ones: name to a word of the reason."""
    (folder / "101_Syntax.py").write_text("class Model:\n    def forward(self\n")
    (folder / "102_Empty.py").write_bytes(b"")
    (folder / "103_Blank.py").write_text("\n\n")
    (folder / "104_Binary.py").write_bytes(b"\x00\x01" + text("x", 1).encode())
    (folder / "105_Latin.py").write_bytes("# é\n".encode("latin-1"))
    (folder / "106_Big.py").write_bytes(b"# " + b"x" * 5_000_000)
    (folder / "107_NoInputs.py").write_text("class Model: ...\n")
    (folder / "108_NoModel.py").write_text("def get_inputs(): ...\n")
    (folder / "109_Folder.py").mkdir()
    (folder / "110_Gone.py").symlink_to(folder / "nowhere.py")
    (folder / "111_Loop.py").symlink_to("111_Loop.py")
    os.mkfifo(folder / "112_Pipe.py")
    (folder / "113_Unreadable.py").symlink_to("/proc/self/mem")  # for root too
    (folder / "114_Deep.py").write_text("x = " + "-" * 200_000 + "1\n")
    (folder / "0002_Two_again.py").write_text(text("x", 2))
    (folder / "115_Bell\a.py").write_text(text("x", 115))
    (folder / os.fsdecode(b"116_Bytes\xff.py")).write_text(text("x", 116))
    (folder / "tools.py").write_text("import re\nWORD = '\\d'\n")
    return {
        "101_Syntax.py": "not parsable",
        "102_Empty.py": "is empty",
        "103_Blank.py": "is empty",
        "104_Binary.py": "null bytes",
        "105_Latin.py": "not UTF-8 text (byte 2)",
        "106_Big.py": f"5000002 bytes; at most {MAX_SOURCE_BYTES}",
        "107_NoInputs.py": "no function get_inputs",
        "108_NoModel.py": "no class Model",
        "109_Folder.py": "a folder",
        "110_Gone.py": "unreadable: No such file",
        "111_Loop.py": "unreadable: Too many levels",
        "112_Pipe.py": "a pipe",
        "113_Unreadable.py": "unreadable: Input/output error",
        "114_Deep.py": "not parsable",
        "2_Number2.py": "id 2 is taken by Two_again",
        "115_Bell\a.py": "cannot be shown",
        os.fsdecode(b"116_Bytes\xff.py"): "cannot be shown",
        "tools.py": "no class Model and no function get_inputs",
    }


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """KernelBench's layout: numbered files by level, beside sources, caches and notebooks."""
    root = tmp_path_factory.mktemp("a checkout") / "bench"
    for level, count in LEVELS.items():
        folder = root / "KernelBench" / level
        folder.mkdir(parents=True)
        for number in range(1, count + 1):
            (folder / f"{number}_Number{number}.py").write_text(text(level, number))
        (folder / "__init__.py").write_text("")
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / "1_Number1.py").write_text(text(level, 1))
        (folder / "notes.ipynb").write_text("{}")
        (folder / ".hidden.py").write_text("")
    for name in ("src/eval.py", "src/prompts/model_ex_add.py", "scripts/run.py", "setup.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("import torch\n")
    (root / ".git" / "level9").mkdir(parents=True)
    (root / ".git" / "level9" / "1_X.py").write_text(text("x", 1))
    (root / "results" / "timing").mkdir(parents=True)
    return root


@pytest.fixture(scope="module")
def messy(tmp_path_factory):
    """One level of it with everything that can be wrong."""
    folder = tmp_path_factory.mktemp("messy") / "KernelBench" / "level1"
    folder.mkdir(parents=True)
    for number in range(1, 101):
        (folder / f"{number}_Number{number}.py").write_text(text("level1", number))
    return folder, broken(folder)


def pike(*arguments, env=None):
    return subprocess.run(
        [sys.executable, "-P", "-m", "pike_hpc", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_levels_are_suites_in_their_order(checkout):
    assert suites(checkout) == ("level1", "level2", "level3", "level4", "level5", "level10")
    for level, count in LEVELS.items():
        suite = load_suite(level, tasks_root=checkout)
        assert [task.id for task in suite.tasks] == [str(n) for n in range(1, count + 1)]
        assert suite.tasks[-1].name == f"Number{count}"
        assert suite.level == int(level.removeprefix("level"))
        assert suite.refused == ()


@pytest.mark.parametrize("where", [".", "KernelBench"])
def test_the_checkout_or_the_folder_in_it_is_the_root(checkout, where):
    task = find_task("level2/007", tasks_root=checkout / where)
    assert (task.key, task.name) == ("level2/7", "Number7")
    assert find_task(f"{checkout}/KernelBench/level2/7").key == "level2/7"
    assert find_task(f"{checkout}/KernelBench/level2/7_Number7.py").key == "level2/7"


def test_list_is_quick_and_needs_no_torch(checkout):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = pike("tasks", "list", "--tasks-root", checkout, "--json")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    listed = json.loads(done.stdout)
    assert (listed["schema_version"], listed["refused"]) == (1, [])
    assert len(listed["tasks"]) == sum(LEVELS.values()) == 260
    assert listed["tasks"][0] == {
        "task": "level1/1",
        "suite": "level1",
        "id": "1",
        "name": "Number1",
        "variants": ["admitted", "legacy"],
        "admitted": None,
    }
    assert after.ru_utime - before.ru_utime < 2  # of a core: others may have it meanwhile


@pytest.mark.parametrize("action", [["list"], ["show", "level3-pike/4"], ["list", "level5"]])
def test_list_and_show_import_no_torch(action):
    code = (
        "import sys; from pike_hpc.cli import main; "
        f"code = main(['tasks', *{action!r}, '--json']); "
        "assert code == 0; assert 'torch' not in sys.modules; assert 'numpy' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_broken_files_are_named_and_the_rest_is_there(messy, capsys):
    folder, reasons = messy
    suite = load_suite(folder)
    assert len(suite.tasks) == 100
    found = {path.name: reason for path, reason in suite.refused}
    assert set(found) == set(reasons)
    assert not {name: found[name] for name, word in reasons.items() if word not in found[name]}
    assert main(["tasks", "list", str(folder), "--json"]) == 3
    said = capsys.readouterr()
    listed = json.loads(said.out)
    assert len(listed["tasks"]) == 100
    assert len(listed["refused"]) == len(reasons)
    assert all(line.startswith("refused ") for line in said.err.splitlines())
    assert "\a" not in said.err


def test_a_list_for_a_person_survives_any_name(messy):
    done = pike("tasks", "list", messy[0])
    assert done.returncode == 3
    assert len(done.stdout.splitlines()) == 100
    assert len(done.stderr.splitlines()) == len(messy[1])


def test_a_range_names_the_broken_files_in_it(messy):
    folder, _ = messy
    chosen = choose(f"{folder}/99-103,7")
    assert [task.id for task in chosen.tasks] == ["7", "99", "100"]
    assert [path.name[:3] for path, _ in chosen.refused] == ["101", "102", "103"]
    assert not chosen.single
    with pytest.raises(UsageError, match="level1/101 is refused: not parsable"):
        choose(f"{folder}/99,101")
    assert choose(f"{folder}/99").single


def test_selection_is_by_number_not_by_text(checkout):
    suite = load_suite("level1", tasks_root=checkout)
    assert [t.id for t in select(suite, parse_range("98-200,2,010"))] == [
        *("2", "10", "98", "99", "100"),
    ]
    assert len(choose("level1/all", tasks_root=checkout).tasks) == 100
    with pytest.raises(UsageError, match="no task '101'"):
        choose("level1/101", tasks_root=checkout)
    with pytest.raises(UsageError, match="too long"):
        choose("level1/" + "9" * 5000, tasks_root=checkout)


def test_ids_come_before_names(tmp_path):
    for name in ("1_2.py", "2_Two.py", "003.py", "04_Four_.py", "5__.py", "a-b c,d.py", "9_Two.py"):
        (tmp_path / name).write_text(text("x", 1))
    suite = load_suite(tmp_path)
    assert [(t.id, t.name) for t in suite.tasks] == [
        *[("1", "2"), ("2", "Two"), ("3", "003"), ("4", "Four"), ("5", "_")],
        *[("9", "Two"), ("a-b c,d", "a-b c,d")],
    ]
    for word, task_id in {"2": "2", "3": "3", "04_Four": "4", "04_Four_": "4", "5": "5"}.items():
        assert find_task(f"{tmp_path}/{word}").id == task_id
    assert find_task(f"{tmp_path}/a-b c,d.py").id == "a-b c,d"
    with pytest.raises(UsageError, match="2 tasks called 'Two'") as error:
        find_task(f"{tmp_path}/Two")
    assert error.value.valid == "2, 9"


def test_line_ends_and_a_byte_order_mark_are_no_obstacle(tmp_path):
    plain = text("x", 3)
    (tmp_path / "1_Dos.py").write_bytes(b"\xef\xbb\xbf" + plain.replace("\n", "\r\n").encode())
    (tmp_path / "2_Unix.py").write_text(plain)
    task = find_task(f"{tmp_path}/1", shape_overrides={"batch_size": 2})
    assert task.source.startswith('"""Task 3')
    assert load_suite(tmp_path).refused == ()


def test_the_same_level_in_two_places_has_two_names(checkout, tmp_path):
    root = tmp_path / "two"
    (root / "old" / "level1").mkdir(parents=True)
    (root / "old" / "level1" / "1_Old.py").write_text(text("old", 1))
    (root / "new" / "level1").mkdir(parents=True)
    (root / "new" / "level1" / "1_New.py").write_text(text("new", 1))
    assert suites(root) == ("new/level1", "old/level1")
    chosen = choose(None, tasks_root=root)
    assert [task.key for task in chosen.tasks] == ["new/level1/1", "old/level1/1"]
    for task in chosen.tasks:
        assert find_task(task.key, tasks_root=root) == task
    assert load_suite("old/level1", tasks_root=root).level == 1


def test_links_are_followed_once(checkout, tmp_path):
    root = tmp_path / "linked"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "mine").symlink_to(checkout / "KernelBench" / "level4")
    (root / "deep" / "again").symlink_to(checkout / "KernelBench" / "level4")
    (root / "deep" / "up").symlink_to(root)
    (root / "gone").symlink_to(root / "nothing")
    (root / "loop").symlink_to("loop")
    (root / "own").mkdir()
    (root / "own" / "1_Own.py").symlink_to(checkout / "KernelBench" / "level1" / "2_Number2.py")
    (root / "alias").symlink_to("own")
    assert suites(root) == ("again", "own")
    assert len(load_suite("again", tasks_root=root).tasks) == 5
    assert find_task("own/1", tasks_root=root).source == text("level1", 2)


def test_a_folder_without_any_task_does_not_hide_the_others(tmp_path, capsys):
    (tmp_path / "migrations").mkdir()
    (tmp_path / "migrations" / "0001_initial.py").write_text("x = 1\n")
    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "1_One.py").write_text(text("x", 1))
    assert main(["tasks", "list", "--tasks-root", str(tmp_path)]) == 3
    said = capsys.readouterr()
    assert said.out.split() == ["level1/1", "One"]
    assert "0001_initial.py: defines no class Model" in said.err


def test_a_folder_that_cannot_be_read_does_not_hide_the_others(tmp_path):
    (tmp_path / "level1").mkdir()
    (tmp_path / "level1" / "1_One.py").write_text(text("x", 1))
    (tmp_path / "level2").mkdir()
    (tmp_path / "level2" / "1_Two.py").write_text(text("x", 1))
    (tmp_path / "level2").chmod(0)
    code = (
        "import sys, os\n"
        "b'x'.decode('utf-8-sig')\n"  # read while we may
        "if os.geteuid() == 0:\n"  # whom no mode stops
        "    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "from pathlib import Path\n"
        "found = choose(None, tasks_root=Path(sys.argv[1]))\n"
        "print([t.key for t in found.tasks], *[(p.name, r) for p, r in found.refused])\n"
    )
    private = [p for p in (tmp_path, *tmp_path.parents) if p.stat().st_mode & 0o077 == 0]
    try:
        for folder in private:
            folder.chmod(0o711)
        tmp_path.chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-c", "from pike_hpc.tasks import choose\n" + code, str(tmp_path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        for folder in (*private, tmp_path / "level2"):
            folder.chmod(0o700)
    assert done.stdout.strip() == ("['level1/1'] ('level2', 'unreadable: Permission denied')"), (
        done.stderr
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--tasks-root", "/nonexistent"], "no folder /nonexistent"),
        (["list", "level9", "--tasks-root", "CHECKOUT"], "level1, level2, level3"),
        (["list", "CHECKOUT"], "holds several suites"),
        (["show", "level1/101", "--tasks-root", "CHECKOUT"], "no task '101'"),
        (["list", "level1/5-1", "--tasks-root", "CHECKOUT"], "runs backwards"),
        (["list", "level1/", "--shape", "nope=3", "--tasks-root", "CHECKOUT"], "none of the tasks"),
        (["show", "CHECKOUT/src/eval.py"], "defines no class Model"),
        (["table"], "needs a FILE"),
    ],
)
def test_wrong_words_are_one_message(checkout, capsys, arguments, message):
    words = [word.replace("CHECKOUT", str(checkout)) for word in arguments]
    assert main(["tasks", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""


def test_show_prints_the_source_with_its_overrides(checkout, capsys):
    arguments = ["show", "level1/5", "--tasks-root", str(checkout), "--shape", "batch_size=77"]
    assert main(["tasks", *arguments]) == 0
    assert "\nbatch_size = 77\n" in capsys.readouterr().out
    assert main(["tasks", *arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["task"], shown["shape_overrides"]) == ("level1/5", {"batch_size": 77})


def test_an_override_reaches_every_task_that_has_the_integer(checkout):
    asked = {"shape_overrides": {"batch_size": 8}, "variant": Variant.LEGACY}
    for words in ("level1/1-3", "level1/2", "level1", None):
        chosen = choose(words, tasks_root=checkout, **asked)
        assert {task.shape_overrides["batch_size"] for task in chosen.tasks} == {8}
        assert {task.variant for task in chosen.tasks} == {Variant.LEGACY}
