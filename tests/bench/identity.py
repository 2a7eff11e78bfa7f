"""What the judge says of a program that is the reference itself: its speedup is 1.

    python tests/bench/identity.py [--repeats N] [--seconds N] [--tasks TASK,TASK]
                                   [--device D] [--out DIR]

The one program whose speedup is known beforehand, whatever the machine does, for models of 0.1 ms
as for those of 30. Each task's is judged N times in all lanes of a device. `holds_one` of the
`repeats` have an interval with 1 in it: 19 of 20 are what a 95 % interval promises. Where fewer do,
`latencies_ms` tell which side was slower than usual, verdict by verdict. `left_out` is what the
intervals of all tasks lack: the standard deviation, of a logarithm, that makes them most likely.
"""

import argparse
import collections
import json
import math
import os
import sys
import time
from pathlib import Path

import stamp
from agreement import MODULES, asking, judged, repeats_of
from mixture import PLAIN

from pike_hpc.cli.lanes import open_judges
from pike_hpc.evaluate.device import detect
from pike_hpc.tasks import effective_source, find_task

FIGURES = {
    "": "left_out rows",
    "rows.*": (
        "task wrong lanes repeats? reference_ms? candidate_ms? pooled_speedup? spread_of_repeats? "
        "half_width? inside? holds_one? tags? speedups? "
        "latencies_ms?"
    ),
}
TASKS = {
    "cuda": "4,33,48,17,9,20,31,1",
    "cpu": "4,33,1",
}
"""Of level3-pike, from a tenth of a millisecond up; on a CPU what takes it less than a second."""


def measured(judges, device, key, repeats, seconds):
    """The row of one task."""
    task = find_task(key)
    request = asking(device, task, effective_source(task) + PLAIN)
    results, wrong = judged(judges, request, repeats, time.monotonic() + seconds)
    found = {"task": key, "wrong": wrong, "lanes": len(judges)}
    if not results:
        return found
    timings = [result.timing for result in results]
    tags = collections.Counter(str(tag) for result in results for tag in result.tags)
    return {
        **found,
        **repeats_of(timings),
        "holds_one": sum(low <= 1 <= high for low, high in (t.ci95 for t in timings)),
        "tags": dict(sorted(tags.items())),
        "latencies_ms": [[round(t.reference_ms, 4), round(t.candidate_ms, 4)] for t in timings],
    }


def left_out(rows):
    """The standard deviation about 1 that intervals do not tell, by likelihood; 0.099 at the most.

    A judge that favours one side has it as well.
    """
    seen = []
    for middle, low, high in (each for row in rows for each in row.get("speedups", ())):
        far = math.log(middle)
        half = far - math.log(low) if far > 0 else math.log(high) - far
        seen.append((far, half / 1.96))

    def unlikely(more):
        variances = [(far, told**2 + more**2) for far, told in seen]
        return sum(math.log(v) + far**2 / v for far, v in variances)

    return min((step / 1000 for step in range(100)), key=unlikely)


def main():
    """Run it."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--repeats", type=int, default=20)
    words.add_argument("--seconds", type=float, default=60.0, help="of judging a task (60)")
    words.add_argument("--tasks", help="ids of level3-pike; default: eight, on a CPU three")
    words.add_argument("--device", default="auto")
    words.add_argument("--out", type=Path, help="folder for the JSON; stdout without it")
    asked = words.parse_args()
    device = detect(asked.device, visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    ids = (asked.tasks or TASKS[device.torch_device]).split(",")
    document = {
        **stamp.stamp("identity", MODULES, device.torch_device),
        "left_out": 0.0,
        "rows": [],
    }
    with open_judges(device, "auto") as judges:
        for key in (f"level3-pike/{number}" for number in ids):
            found = measured(judges, device, key, asked.repeats, asked.seconds)
            sys.stderr.write(json.dumps(found) + "\n")
            document["rows"].append(found)
            document["left_out"] = left_out(document["rows"])
            if asked.out:  # a time limit may end this before the last task
                stamp.write(document, asked.out)
    if asked.out is None:
        stamp.write(document, None)
    stamp.check(document, FIGURES)


if __name__ == "__main__":
    main()
