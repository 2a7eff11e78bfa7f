"""Measured figures under docs/ speak of the code that is here, and say where to get them anew.

`make bench` writes docs/bench-NAME-DEVICE.json on a machine with that device.
"""

import ast
import json
from pathlib import Path

import pytest

from pike_hpc.evaluate.measured import PACKAGE, code_digest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {path.stem: path for path in (ROOT / "tests/bench").glob("*.py")}
MEASURED = sorted((ROOT / "docs").glob("bench-*.json"))
ALSO = {
    "soak": ("memory", "MODULES"),
    "cluster_soak_judged": ("cluster_soak", "JUDGED_MODULES"),
}
"""Documents that another script writes, and what it calls the modules that they are of."""


def modules_of(bench: str) -> tuple[str, ...] | None:
    """The modules of a document as its script names them, read without running it."""
    name, variable = ALSO.get(bench, (bench, "MODULES"))
    script = SCRIPTS.get(name)
    if script is None:
        return None
    for node in ast.parse(script.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == variable:
            return tuple(ast.literal_eval(node.value))
    return None


def stale(document) -> str:
    """Why a document does not speak of what is here now; empty where it does."""
    again = f"run on a {document['machine']['device']} machine: make bench"
    modules = modules_of(document["bench"])
    if modules is None:
        return f"no script tests/bench/{document['bench']}.py with MODULES"
    if list(modules) != document["modules"]:
        return f"it is of other modules; {again}"
    if document["code_digest"] != code_digest(modules=modules):
        return f"the code that it measured has changed since; {again}"
    return ""


@pytest.mark.parametrize("path", MEASURED, ids=lambda p: p.name)
def test_a_measured_document_is_of_what_is_here_now(path):
    document = json.loads(path.read_text("utf-8"))
    assert not stale(document), stale(document)
    assert path.name == f"bench-{document['bench']}-{document['machine']['device']}.json"


def test_every_benchmark_names_code_that_exists():
    named = {name: modules for name in SCRIPTS if (modules := modules_of(name))}
    assert {"agreement", "intervals", "memory", "null_constant", "throughput"} <= set(named)
    gone = [m for modules in named.values() for m in modules if not (PACKAGE / m).is_file()]
    assert not gone


def test_what_is_stale_is_noticed():
    modules = modules_of("intervals")
    good = {
        "bench": "intervals",
        "machine": {"device": "cpu"},
        "modules": list(modules),
        "code_digest": code_digest(modules=modules),
    }
    assert stale(good) == ""
    assert "changed since" in stale(good | {"code_digest": "0" * 64})
    assert "other modules" in stale(good | {"modules": good["modules"][:1]})
    assert "no script" in stale(good | {"bench": "nothing"})
