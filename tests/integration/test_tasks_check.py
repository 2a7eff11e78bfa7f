"""`tasks check` before a real judge: every bad task is a named refusal, and the rest goes on."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.tasks import find_task  # noqa: E402
from pike_hpc.tasks.load import build  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]

GOOD = """
import torch
from torch import nn

batch_size = 8


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        return torch.tanh(self.layer(x))


def get_inputs():
    return [torch.randn(batch_size, 32)]


def get_init_inputs():
    return [32]
"""


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def answering(expression: str) -> str:
    return changed("return torch.tanh(self.layer(x))", expression)


def constructing(statement: str) -> str:
    return changed("super().__init__()", f"super().__init__(); {statement}")


UNREADABLE = {
    "no_get_inputs": (changed("get_inputs", "make_inputs"), "defines no function get_inputs"),
    "syntax": ("class Model:\n def", "not parsable"),
    "empty": ("", "empty"),
}

REFUSED = {
    "missing_import": ("import no_such_module_here\n" + GOOD, "module that is not here.*no_such"),
    "nan": (answering("return self.layer(x) / 0 * 0"), "not finite"),
    "random": (answering("return torch.randn_like(x)"), "two answers to one input"),
    "no_tensors": (answering("return 'seven'"), "no tensor"),
    "nothing": (answering("return None"), "no tensor"),
    "an_object": (answering("return object()"), "object"),
    "needs_a_gpu": (constructing("self.it = torch.zeros(1, device='cuda:99')"), "(?i)cuda"),
    "exit_at_import": ("import sys\nsys.exit(3)\n" + GOOD, "importing the task raised SystemExit"),
    "exit_in_forward": (answering("import sys; sys.exit(3)"), ""),
    "no_list": (changed("return [torch.randn(batch_size, 32)]", "return 3"), "returns a int"),
    "inputs_raise": (changed("return [torch.randn", "1 / 0; return [torch.randn"), "ZeroDivision"),
    "raises": (answering("raise KeyError('lost')"), "lost"),
    "asserts": (answering("assert x is None, 'want None'"), "want None"),
    "wrong_init": (changed("return [32]", "return [32, 1]"), "TypeError"),
    "blind": (answering("return 0 * self.layer(x)"), "does not depend on the input"),
    "same_inputs": (changed("torch.randn(", "torch.ones("), "get_inputs gives the same at every"),
    "shrinks": (answering("return x[x > 0]"), "shape of the output depends on the input"),
    "a_dict": (changed("return [32]", "return {'n': 32}"), "a dict; return a list"),
    "no_module": (changed("class Model(nn.Module)", "class Model"), "no torch.nn.Module"),
    "misfit": (
        GOOD + "def get_state_dict():\n    return {'layer.weight': torch.zeros(3)}\n",
        r"get_state_dict\(\) does not fit.*missing layer.bias.*weight is \(3,\), not \(32, 32\)",
    ),
    "segfault": (answering("import ctypes; ctypes.string_at(0)"), "died"),
    "exits_hard": ("import os\nos._exit(0)\n" + GOOD, "died"),
}

ADMITTED = {
    "good": GOOD,
    "named_weights": GOOD
    + "def get_state_dict():\n"
    + "    return {'layer.weight': torch.eye(32), 'layer.bias': torch.ones(32)}\n",
    "changes_globals": constructing("torch.set_default_dtype(torch.float32); print('hello')"),
    "keeps_a_list": answering("self.seen.append(x); return self.layer(x) * len(self.seen)").replace(
        "super().__init__()", "super().__init__(); self.seen = []"
    ),
    "last": GOOD + "# the last of the folder\n",
}


def pike(*arguments):
    return subprocess.run(
        [sys.executable, "-P", "-m", "pike_hpc", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """One check of a folder with all of them; (process, document, name to row)."""
    folder = tmp_path_factory.mktemp("outside") / "level1"
    folder.mkdir()
    sources = [
        *((name, source) for name, (source, _) in {**UNREADABLE, **REFUSED}.items()),
        *ADMITTED.items(),
    ]
    for number, (name, source) in enumerate(sources, 1):
        (folder / f"{number}_{name}.py").write_text(source)
    done = pike("tasks", "check", folder, "--device", "cpu", "--json")
    document = json.loads(done.stdout)
    return done, document, {row["name"]: row for row in document["tasks"]}


def test_the_folder_is_checked_to_its_end(checked):
    done, document, rows = checked
    assert done.returncode == 3, done.stderr
    assert set(rows) == {*REFUSED, *ADMITTED}
    assert document["complete"] is True
    assert document["device"]["kind"] == "cpu"
    assert document["torch"]
    assert re.fullmatch(r"[0-9a-f]{64}", document["code_digest"])
    assert document["command"].startswith("pike-hpc tasks check ")
    assert "Traceback" not in done.stderr
    total = len(rows)
    assert f"[{total}/{total}] level1/" in done.stderr


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_is_no_task_is_named(checked, name):
    done, document, _ = checked
    reasons = {Path(r["path"]).stem.partition("_")[2]: r["reason"] for r in document["refused"]}
    assert set(reasons) == set(UNREADABLE)
    assert UNREADABLE[name][1] in reasons[name]
    assert f"_{name}.py: {reasons[name]}" in done.stderr


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_task_is_refused_with_its_reason(checked, name):
    row = checked[2][name]
    assert row["admitted"] is False
    assert row["reason"]
    assert re.search(REFUSED[name][1], row["reason"]), row["reason"]
    assert "\n" not in row["reason"]


@pytest.mark.parametrize("name", ADMITTED)
def test_good_tasks_among_them_are_admitted(checked, name):
    row = checked[2][name]
    assert row["admitted"] is True, row["reason"]
    assert row["signal"] > 0.01
    assert set(row["limits"]) == {"fp32", "tf32", "half"}
    assert len(row["task_digest"]) == 64
    assert row["variant"] == "admitted"
    assert min(row["mutants"].values()) > max(row["limits"].values())


def test_a_range_for_a_person(tmp_path):
    (tmp_path / "1_One.py").write_text(GOOD)
    (tmp_path / "2_Two.py").write_text("raise OSError('no licence')\n" + GOOD)
    (tmp_path / "3_Three.py").write_text(GOOD)
    arguments = ("--device", "cpu", "--variant", "legacy", "--shape", "batch_size=4")
    done = pike("tasks", "check", f"{tmp_path}/1-2", *arguments)
    assert done.returncode == 3, done.stderr
    head, first, second, _, last = done.stdout.splitlines()
    assert head.startswith("TASK ")
    assert "yes (legacy)" in first
    assert "batch_size=4" in first
    assert "refused (legacy)" in second
    assert "no licence" in second
    assert last.startswith("1 of 2 admitted; refused: ")


def test_what_is_too_large_for_a_cpu_is_not_tried_and_no_failure(tmp_path):
    (tmp_path / "1_One.py").write_text(GOOD)
    large = changed("[32]", "[9000]").replace("batch_size, 32", "batch_size, 9000")
    (tmp_path / "2_Large.py").write_text(large.replace("batch_size = 8", "batch_size = 900"))
    done = pike("tasks", "check", tmp_path, "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"2 +Large +not tried +.*146 GFLOP", done.stdout), done.stdout
    assert "1 of 2 admitted; not tried here: " in done.stdout


def test_the_example_of_a_model_of_ones_own_is_admitted():
    done = pike("tasks", "check", "workflows/your_model", "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 admitted" in done.stdout


def test_the_page_makes_a_task_of_a_model_in_ten_lines(tmp_path):
    page = (ROOT / "docs" / "your-model.md").read_text("utf-8")
    task, weights = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert len([line for line in task.splitlines() if line.strip()]) == 10
    torch.manual_seed(5)
    layer = torch.nn.TransformerEncoderLayer(128, 4)
    torch.save(layer.state_dict(), tmp_path / "encoder.pt")
    weights = weights.replace("/data/encoder.pt", str(tmp_path / "encoder.pt"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "1_Encoder.py").write_text(task)
    (tmp_path / "mine" / "2_Trained.py").write_text(f"{task}\n\n{weights}")
    done = pike("tasks", "check", tmp_path / "mine", "--device", "cpu", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    state = build(find_task(f"{tmp_path}/mine/2")).state_dict()
    assert state is not None
    assert torch.equal(state["linear1.weight"], layer.linear1.weight)


def test_the_workflow_of_ones_own_model_walks_to_its_report(tmp_path):
    arguments = ("--workflow", "workflows/your_model.yaml", "--simulate", "--run", tmp_path / "run")
    done = pike("submit", *arguments)
    assert done.returncode == 0, done.stderr
    assert "KeywordSpot" in done.stdout
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_checkpoint_named_in_the_example_is_used(tmp_path):
    example = ROOT / "workflows/your_model/1_KeywordSpotter.py"
    plain = build(find_task(str(example)))
    assert plain.state_dict() is None
    state = plain.make_model(seed=9).state_dict()
    torch.save(state, tmp_path / "spotter.pt")
    named = example.read_text().replace(
        "CHECKPOINT = None", f"CHECKPOINT = '{tmp_path}/spotter.pt'"
    )
    (tmp_path / "1_Named.py").write_text(named)
    found = build(find_task(str(tmp_path / "1_Named.py"))).state_dict()
    assert found is not None
    assert all(torch.equal(found[name], state[name]) for name in state)


def test_stopped_half_way_it_says_what_was_found(tmp_path):
    (tmp_path / "1_One.py").write_text(GOOD)
    (tmp_path / "2_Slow.py").write_text("import time; time.sleep(200)\n" + GOOD)
    command = [sys.executable, "-P", "-m", "pike_hpc", "tasks", "check", str(tmp_path), "--json"]
    with subprocess.Popen(
        [*command, "--device", "cpu"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stderr:
            if line.startswith("[1/2]"):
                break
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    document = json.loads(out)
    assert document["complete"] is False
    assert [row["admitted"] for row in document["tasks"]] == [True]
