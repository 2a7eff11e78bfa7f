"""A folder of published solutions: what the judge says, and what a plain process shows.

    python tests/bench/published.py SUITE[/RANGE] DIR [--seconds N] [--device D] [--out DIR]

Each is judged once, in all lanes of the device. Beside it, in an ordinary process of its own, it is
held against its reference as PIKE holds it, and with BatchNorms that have been trained
(published_plain.py). A solution that is refused though it is as near to its reference there as
half precision is a false rejection of ours, or in need of a reason; one that passes though it is
far off there was let through.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import stamp
from plain_process import last_words

from pike_hpc.cli.lanes import open_judges
from pike_hpc.cli.solutions import match_folder
from pike_hpc.evaluate.device import detect, image_digest
from pike_hpc.mailbox import MemoryMailbox
from pike_hpc.records import EvalRequest, EvalStatus, UsageError
from pike_hpc.tasks import choose, effective_source
from pike_hpc.worker import Stop, WorkerOptions, run_worker

MODULES = (
    "evaluate/correctness.py",
    "evaluate/judge_verdict.py",
    "evaluate/runner/drawn.py",
    "evaluate/runner/fit.py",
    "evaluate/runner/places.py",
    "evaluate/runner/weights.py",
)
FIGURES = {
    "": "suite statuses refused_though_near passed_though_far seconds rows",
    "rows.*": "task file status tier speedup ci95 message shipped trained",
    "rows.*.shipped|rows.*.trained": "close? error? half? tf32? raised?",
}
PLAIN = Path(__file__).with_name("published_plain.py")
PLAIN_TIMEOUT_S = 240.0
NEAR = 4.0
"""Within so many times the error of half precision, or of TF32, a solution computes the same."""
FAR = 0.1
"""An answer that is off by so much of what inputs move in it computes something else."""


def plain(solution, device, folder):
    """The rows of one solution in a plain process."""
    place = Path(tempfile.mkdtemp(dir=folder))
    task, out = place / "task.py", place / "out.json"
    task.write_text(effective_source(solution.task), "utf-8")
    argv = [sys.executable, str(PLAIN), str(task), str(solution.path.resolve())]
    said = last_words([*argv, device.torch_device, str(out)], place, PLAIN_TIMEOUT_S)
    if out.exists():
        return json.loads(out.read_text("utf-8"))
    return {"shipped": {"raised": said}, "trained": None}


def judged(device, solutions, seconds, timeout_s):
    """Verdicts by a solution's label, as far as the seconds go."""
    mailbox, stop = MemoryMailbox(), Stop()
    asked = {}
    for solution in solutions:
        request = EvalRequest(
            task=solution.task,
            candidate_source=solution.path.read_text("utf-8"),
            device_kind=device.kind,
            image_digest=image_digest(),
            timeout_s=timeout_s,
        )
        mailbox.put(request)
        asked[request.request_id] = solution.label
    options = WorkerOptions(worker_id="bench", max_idle_s=0.5, expected_s=0.0, drain_s=5.0)
    bell = threading.Timer(seconds, stop.request, ["the time is up"])
    with open_judges(device, "auto") as judges:
        bell.start()
        run_worker(mailbox, judges, options, preparer=judges[0], stop=stop)
    bell.cancel()
    found = mailbox.results(list(asked))
    return {asked[request_id]: result for request_id, result in found.items()}


def row(solution, result, rows):
    """One line of the table."""
    timing = result.timing
    return {
        "task": solution.task.key,
        "file": solution.label,
        "status": str(result.status),
        "tier": None if result.tier is None else str(result.tier),
        "speedup": None if timing is None else round(timing.speedup, 4),
        "ci95": None if timing is None else [round(x, 4) for x in timing.ci95],
        "message": result.message[:300],
        **rows,
    }


def is_near(found):
    """Whether a solution computes what its reference does, as far as half precision shows.

    Where that is far off itself it shows nothing.
    """
    shown = found["trained"] or found["shipped"]
    return "raised" not in shown and shown["error"] <= NEAR * coarse(shown) <= NEAR * FAR


def is_far(found):
    """Whether it computes something else."""
    shown = found["trained"] or found["shipped"]
    return "raised" not in shown and shown["error"] > max(FAR, NEAR * coarse(shown))


def coarse(shown):
    """The reference's own error in half precision or TF32."""
    return max(shown["half"], shown["tf32"])


def main():
    """Run it."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("suite", metavar="SUITE[/RANGE]")
    words.add_argument("folder", type=Path, metavar="DIR", help="of task_4.py, 4_LeNet5.py, ...")
    words.add_argument("--seconds", type=float, default=400.0, help="of judging (400)")
    words.add_argument("--timeout-s", type=float, default=180.0, help="of one evaluation (180)")
    words.add_argument("--at-a-time", type=int, default=4, help="plain processes (4)")
    words.add_argument("--device", default="auto")
    words.add_argument("--out", type=Path, help="folder for the JSON; stdout without it")
    asked = words.parse_args()
    try:
        solutions = match_folder(asked.folder, choose(asked.suite).tasks).solutions
    except UsageError as error:
        words.error(str(error))
    device = detect(asked.device, visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    began = time.monotonic()
    results = judged(device, solutions, asked.seconds, asked.timeout_s)
    done = [solution for solution in solutions if solution.label in results]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.at_a_time) as pool:
        shown = list(pool.map(lambda solution: plain(solution, device, folder), done))
    rows = [row(s, results[s.label], found) for s, found in zip(done, shown, strict=True)]
    wrong = {str(EvalStatus.WRONG_RESULT), str(EvalStatus.REJECTED)}
    document = {
        **stamp.stamp("published", MODULES, device.torch_device),
        "suite": asked.suite,
        "statuses": dict(sorted(Counter(r["status"] for r in rows).items())),
        "refused_though_near": [r["file"] for r in rows if r["status"] in wrong and is_near(r)],
        "passed_though_far": [r["file"] for r in rows if r["status"] == "PASSED" and is_far(r)],
        "seconds": round(time.monotonic() - began, 1),
        "rows": rows,
    }
    stamp.write(document, asked.out)
    stamp.check(document, FIGURES)


if __name__ == "__main__":
    main()
