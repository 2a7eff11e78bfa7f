"""What every benchmark says of itself: machine, date, torch, and the code that was measured.

A document under docs/ is only as good as the code that it was measured with: it carries a digest
of that code, and tests/unit/test_docs_bench.py fails once the code has changed. A script may come
to tell more than it did: it names its figures in `FIGURES`, and that test fails where a document
has others.
"""

import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from pike_hpc.evaluate.device import visible_among
from pike_hpc.evaluate.measured import code_digest

SCHEMA_VERSION = 1
HEAD = ("schema_version", "bench", "date", "machine", "modules", "code_digest")
"""What `stamp` says of every document."""
ROOT = Path(__file__).resolve().parents[2]


def stamp(name, modules, device=None):
    """The head of a document.

    Args:
        name: of the benchmark; the script is tests/bench/NAME.py.
        modules: files of the package, as `code_digest` takes them.
        device: cpu or cuda; None where the figures do not depend on one.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "bench": name,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "machine": machine(device),
        "modules": list(modules),
        "code_digest": code_digest(modules=tuple(modules)),
    }


def machine(device):
    """What it ran on: never a host's name."""
    found = {
        "device": device or "cpu",
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
    if importlib.util.find_spec("torch") is not None:
        found["torch"] = importlib.metadata.version("torch")
    if device == "cuda":
        found["gpus"] = _gpus()
    return found


def write(document, out):
    """One document: below the folder `out` as bench-NAME-DEVICE.json, or on stdout."""
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    if out is None:
        sys.stdout.write(text)
        return
    out.mkdir(parents=True, exist_ok=True)
    path = place(document, out)
    path.write_text(text, "utf-8")
    sys.stderr.write(f"{path}\n")


def place(document, out):
    """Where below the folder `out` a document lies."""
    return out / f"bench-{document['bench']}-{document['machine']['device']}.json"


def check(document, figures):
    """Leave with what is wrong where a document that was written tells other figures than these."""
    wrong = misnamed(document, figures)
    if wrong:
        raise SystemExit(f"{document['bench']}: FIGURES is not what it tells: {'; '.join(wrong)}")


def misnamed(document, figures):
    """Keys that a document lacks, and those that it has besides, in words.

    Args:
        document: head and all.
        figures: by place the keys that are there, with blanks between. "" is the document,
            whose head needs no naming; "a.b" what it has as b in its a; "a.*" whatever is in a;
            "a|b" both. A key that ends with ? may be absent.
    """
    found = []
    for places, keys in figures.items():
        may = set(keys.replace("?", "").split())
        must = may.intersection(keys.split())
        for place in places.split("|"):
            head = () if place else HEAD
            for part in _parts(document, place):
                lacking, besides = must.union(head) - part.keys(), part.keys() - may.union(head)
                found += [f"{place or 'it'} lacks {key}" for key in sorted(lacking)]
                found += [f"{place or 'it'} has {key} besides" for key in sorted(besides)]
    return list(dict.fromkeys(found))


def _parts(document, place):
    """The tables at a place; none where what they would be in is absent or null."""
    parts = [document]
    for word in filter(None, place.split(".")):
        inner = [part if isinstance(part, dict) else dict(enumerate(part)) for part in parts]
        parts = [deeper for part in inner for key, deeper in part.items() if word in ("*", key)]
        parts = [part for part in parts if part is not None]
    return parts


def _cpu():
    for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _gpus():
    """Name and driver of each that may be used."""
    asked = ["nvidia-smi", "--query-gpu=uuid,name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
    found = dict(line.split(", ", 1) for line in done.stdout.splitlines())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    uuids = found if visible is None else visible_among(list(found), visible)
    return [found[uuid] for uuid in uuids]
