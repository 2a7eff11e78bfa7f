"""PIKE's own evaluator beside the judge, in one run on one GPU: the same programs, both verdicts.

    python tests/bench/beside_pike.py PIKE [--solutions DIR] [--out DIR]

PIKE is a folder of its repository: `scripts/eval.py` is run from there as its worker runs it, with
its tolerances and task files made of ours. The programs are those of lenet5.py, and published
solutions for the suite where a folder of them is named. All run in PIKE's evaluator first, alone on
the GPU and **without any sandbox**, then in a lane of ours. What PIKE calls a speedup is the time
of an unchanged program in the same run over the program's.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import lenet5
import stamp
from mixture import PLAIN
from plain_process import last_words

from pike_hpc.cli.lanes import open_lane
from pike_hpc.cli.solutions import match_folder
from pike_hpc.evaluate.device import detect, image_digest
from pike_hpc.records import EvalRequest, EvalStatus, UsageError
from pike_hpc.tasks import choose, effective_source, find_task

MODULES = (
    "evaluate/correctness.py",
    "evaluate/judge_timing.py",
    "evaluate/judge_verdict.py",
    "evaluate/runner/doorbell.py",
    "evaluate/runner/serve.py",
    "evaluate/runner/weights.py",
)
FIGURES = {
    "": "hostile honest seconds rows",
    "hostile": "programs pike judge",
    "hostile.pike|hostile.judge": "faster best",
    "honest": "programs pike_refused judge_refused",
    "rows.*": "task program honest pike judge",
    "rows.*.pike": "correct speedup? said?",
    "rows.*.judge": "status tier? speedup? ci95? said?",
}
TOLERANCE = "1e-2"
"""Absolute and relative: what its evaluator takes where none is named."""
GAIN = 1.1
"""A hostile program that is told to be so much faster than an unchanged one has fooled somebody."""


class Pike:
    """Its evaluator, with our tasks where it looks for its own.

    Its options were first written with a `_` between words, then with a `-`.
    """

    def __init__(self, folder, root):
        script = folder / "scripts/eval.py"
        if not script.is_file():
            raise UsageError(
                f"no scripts/eval.py in {folder}", valid="a folder of PIKE's repository"
            )
        self.root, self.script = root, root / "scripts/eval.py"
        self.script.parent.mkdir()
        shutil.copy(script, self.script)
        self.join = "-" if "--code-path" in script.read_text("utf-8") else "_"

    def latency_ms(self, task, source, timeout_s):
        """What it says of a program: milliseconds, or the reason why there are none."""
        place = Path(tempfile.mkdtemp(dir=self.root))
        level = task.suite.removeprefix("level")
        tasks = self.root / "KernelBench" / f"level{level}"
        tasks.mkdir(parents=True, exist_ok=True)
        (tasks / f"{task.id}_{task.name}.py").write_text(effective_source(task), "utf-8")
        code, out = place / "code.py", place / "out.json"
        code.write_text(source, "utf-8")
        argv = [sys.executable, str(self.script), "--level", level, "--task", task.id]
        options = {"code_path": str(code), "output_path": str(out), "gpu_locks_dir": str(place)}
        for name, value in {**options, "op_atol": TOLERANCE, "op_rtol": TOLERANCE}.items():
            argv += [f"--{name.replace('_', self.join)}", value]
        said = last_words(argv, place, timeout_s)
        if not out.exists():
            return said
        found = json.loads(out.read_text("utf-8")).get("llm", {})
        if not found.get("correct"):
            return f"incorrect: {found.get('max_diff')}"[:200]
        return found.get("runtime", "no runtime")


def of_pike(pike, programs, timeout_s):
    """Its rows: of each task an unchanged program first, by which speedups are told."""
    stock, rows = {}, []
    for task, _, source, _ in programs:
        if task.key not in stock:
            stock[task.key] = pike.latency_ms(task, effective_source(task) + PLAIN, timeout_s)
        found, unchanged = pike.latency_ms(task, source, timeout_s), stock[task.key]
        if isinstance(found, str):
            rows.append({"correct": False, "said": found})
        elif isinstance(unchanged, str):
            rows.append({"correct": True, "said": f"of an unchanged program: {unchanged}"})
        else:
            rows.append({"correct": True, "speedup": round(unchanged / found, 3)})
        print(f"pike: {rows[-1]}", file=sys.stderr, flush=True)
    return rows


def of_judge(device, programs, timeout_s):
    """Ours."""
    rows = []
    with open_lane(device, "auto") as lane:
        for task, _, source, _ in programs:
            result = lane.evaluate(
                EvalRequest(
                    task=task,
                    candidate_source=source,
                    device_kind=device.kind,
                    image_digest=image_digest(),
                    timeout_s=timeout_s,
                )
            )
            row = {"status": str(result.status)}
            if result.status is EvalStatus.PASSED:
                row["tier"] = str(result.tier)
                row["speedup"] = round(result.timing.speedup, 3)
                row["ci95"] = [round(x, 3) for x in result.timing.ci95]
            else:
                row["said"] = result.message[:200]
            rows.append(row)
            print(f"judge: {row}", file=sys.stderr, flush=True)
    return rows


def main():
    """Run it."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("pike", type=Path, metavar="PIKE", help="a folder of PIKE's repository")
    words.add_argument("--solutions", type=Path, metavar="DIR", help="of task_4.py, ...")
    words.add_argument("--suite", default="level3-pike", help="of the solutions (level3-pike)")
    words.add_argument("--timeout-s", type=float, default=180.0, help="of one evaluation (180)")
    words.add_argument("--out", type=Path, help="folder for the JSON; stdout without it")
    asked = words.parse_args()
    began, programs = time.monotonic(), []
    task = find_task(lenet5.TASK)
    for entry in lenet5.PROGRAMS:
        programs.append((task, entry.name, entry.source, entry.honest))
    device = detect("cuda", visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    with tempfile.TemporaryDirectory() as folder:
        try:
            if asked.solutions:
                for found in match_folder(asked.solutions, choose(asked.suite).tasks).solutions:
                    text = found.path.read_text("utf-8")
                    programs.append((found.task, found.label, text, None))
            pike = Pike(asked.pike, Path(folder))
        except UsageError as error:
            words.error(str(error))
        theirs = of_pike(pike, programs, asked.timeout_s)
    ours = of_judge(device, programs, asked.timeout_s)
    rows = [
        {"task": task.key, "program": name, "honest": honest, "pike": one, "judge": other}
        for (task, name, _, honest), one, other in zip(programs, theirs, ours, strict=True)
    ]
    document = {
        **stamp.stamp("beside_pike", MODULES, device.torch_device),
        "hostile": {
            "programs": sum(row["honest"] is False for row in rows),
            "pike": told_faster(rows, "pike"),
            "judge": told_faster(rows, "judge"),
        },
        "honest": {
            "programs": sum(row["honest"] is True for row in rows),
            "pike_refused": refused(rows, "pike"),
            "judge_refused": refused(rows, "judge"),
        },
        "seconds": round(time.monotonic() - began, 1),
        "rows": rows,
    }
    stamp.write(document, asked.out)
    stamp.check(document, FIGURES)


def told_faster(rows, by):
    """The hostile programs that it calls faster, and the largest speedup of them.

    Faster than it calls an unchanged one, where that is more than 1: its own noise fools nobody.
    """
    told = {row["program"]: row[by].get("speedup", 0.0) for row in rows}
    least = GAIN * max(1.0, told[lenet5.UNCHANGED.name])
    faster = sorted(
        row["program"] for row in rows if row["honest"] is False and told[row["program"]] >= least
    )
    return {"faster": faster, "best": max((told[name] for name in faster), default=None)}


def refused(rows, by):
    """The honest programs that it does not let pass."""
    return [r["program"] for r in rows if r["honest"] and "speedup" not in r[by]]


if __name__ == "__main__":
    main()
