"""`baselines` before a real judge on this CPU: settings, solutions good and bad, a stop."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]

TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        return torch.{function}(self.layer(x))


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return [256]
"""
HONEST = TASK.format(function="tanh").split("def get_inputs")[0].replace("Model", "ModelNew")


@pytest.fixture
def suite(tmp_path):
    folder = tmp_path / "level3"
    folder.mkdir()
    (folder / "1_Tanh.py").write_text(TASK.format(function="tanh"))
    (folder / "2_Sigmoid.py").write_text(TASK.format(function="sigmoid"))
    return folder


@pytest.fixture
def solutions(tmp_path):
    folder = tmp_path / "best" / "level_3"
    folder.mkdir(parents=True)
    (folder / "task_1.py").write_text(HONEST)
    (folder / "task_2.py").write_text(HONEST)  # the other task's function: wrong
    (folder / "task_7.py").write_text(HONEST)
    return folder.parent


def command(*arguments):
    words = map(str, arguments)
    return [sys.executable, "-P", "-m", "pike_hpc", "baselines", *words, "--device", "cpu"]


def own_cache(folder):
    return {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}


def without_a_compiler(folder):
    """A PATH with the tools of the sandbox alone: compiling would take most of the time here."""
    (folder / "bin").mkdir()
    for name in ("setpriv", "prlimit", "unshare", "bwrap", "apptainer"):
        if (found := shutil.which(name)) is not None:
            (folder / "bin" / name).symlink_to(found)
    return {**own_cache(folder), "PATH": str(folder / "bin")}


def test_settings_and_solutions_through_one_lane(suite, solutions, tmp_path):
    options = ("--modes", "eager,tensorrt", "--solutions", solutions, "--json")
    done = subprocess.run(
        command(suite, *options),
        cwd=ROOT,
        env=own_cache(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    assert document["complete"] is True
    rows = {(r["task"], r["file"] or r["setting"]): r for r in document["rows"]}
    assert list(rows) == [
        ("level3/1", "eager"),
        ("level3/1", "tensorrt"),
        ("level3/1", "level_3/task_1.py"),
        ("level3/2", "eager"),
        ("level3/2", "tensorrt"),
        ("level3/2", "level_3/task_2.py"),
    ]
    for key in (("level3/1", "eager"), ("level3/2", "eager"), ("level3/1", "level_3/task_1.py")):
        result = rows[key]["result"]
        assert result["status"] == "PASSED", result["message"]
        assert result["tier"] == "fp32"
        assert result["timing"]["speedup"] > 0
        assert result["correctness"]["legacy"]["pike"] is True
    timing = rows["level3/1", "level_3/task_1.py"]["result"]["timing"]
    assert timing["strict_fp32_ms"] == timing["reference_ms"], "a CPU has no TF32"
    assert timing["stock_best_ms"] is None, "only eager was judged"
    kept = list((tmp_path / "cache" / "pike-hpc" / "stock").glob("*.json"))
    assert len(kept) == 2, "a verdict on eager for each task"
    assert rows["level3/2", "level_3/task_2.py"]["result"]["status"] == "WRONG_RESULT"
    assert rows["level3/1", "tensorrt"]["declined"] == "TensorRT needs a GPU"
    means = {s["setting"]: s for s in document["settings"]}
    assert (means["eager"]["passed"], means["eager"]["tasks"]) == (2, 2)
    assert (means[str(solutions)]["passed"], means[str(solutions)]["tasks"]) == (1, 2)
    ((path, reason),) = [(Path(u["path"]).name, u["reason"]) for u in document["unmatched"]]
    assert path == "task_7.py"
    assert "task 7 of level3 is not among" in reason
    assert "task_7.py: task 7" in done.stderr
    assert "[6/6] level3/2 Sigmoid · level_3/task_2.py … WRONG_RESULT" in done.stderr


def test_evaluate_reads_what_was_kept_and_judges_what_is_missing(suite, tmp_path):
    """The second command finds what the first one judged, and judges no setting again."""
    file = tmp_path / "mine.py"
    file.write_text(HONEST)
    words = [sys.executable, "-P", "-m", "pike_hpc", "evaluate", suite / "1_Tanh.py", file]
    words += ["--device", "cpu", "--json"]
    documents, logs = [], []
    environment = without_a_compiler(tmp_path)
    for more in (["--stock"], []):
        done = subprocess.run(
            [*map(str, words), *more],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr
        documents.append(json.loads(done.stdout))
        logs.append(done.stderr)
    first, second = documents
    assert first["stock"]["missing"] == []
    assert first["stock"]["judged"].keys() >= {"eager"}
    assert "C++ compiler" in first["stock"]["absent"]["compile"]
    assert first["stock"]["absent"]["tensorrt"] == "TensorRT needs a GPU"
    assert "stock: eager … " in logs[0]
    assert "stock:" not in logs[1]
    assert second["stock"]["judged"] == first["stock"]["judged"]
    for document in documents:
        timing, best = document["timing"], document["stock"]["best"]
        assert timing["strict_fp32_ms"] == timing["reference_ms"]
        if best is not None:
            assert timing["stock_best_ms"] == pytest.approx(
                timing["reference_ms"] / best["speedup"]
            )


def test_stopped_half_way_it_says_what_was_judged(suite, tmp_path):
    slow = "import time; time.sleep(200)\n"
    (suite / "2_Sigmoid.py").write_text(slow + TASK.format(function="sigmoid"))
    with subprocess.Popen(
        command(suite, "--modes", "eager"),
        cwd=ROOT,
        env=own_cache(tmp_path),
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
    assert "PASSED" in out.splitlines()[1]
    assert out.splitlines()[-1] == "stopped after 1 of 2"
