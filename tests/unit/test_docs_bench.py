"""Measured figures under docs/ speak of the code that is here, and say where to get them anew.

`make bench` writes docs/bench-NAME-DEVICE.json on a machine with that device.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from builders.benchmarks import imported

from pike_hpc.evaluate.measured import PACKAGE, code_digest

with imported("stamp") as stamp:
    pass

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {path.stem: path for path in (ROOT / "tests/bench").glob("*.py")}
RUN = sorted(name for name, p in SCRIPTS.items() if "ArgumentParser" in p.read_text("utf-8"))
MEASURED = sorted((ROOT / "docs").glob("bench-*.json"))
ALSO = {
    "soak": ("memory", "MODULES"),
    "cluster_soak_judged": ("cluster_soak", "JUDGED_MODULES"),
    "identity": ("agreement", "MODULES"),
}
"""Documents of modules that another script names, and what it calls them."""


def modules_of(bench: str) -> tuple[str, ...] | None:
    """The modules of a document as its script names them."""
    return constant(*ALSO.get(bench, (bench, "MODULES")))


def figures_of(bench: str) -> dict[str, str] | None:
    """The figures of a document as its script names them: see `stamp.misnamed`."""
    return constant(bench if bench in SCRIPTS else ALSO[bench][0], "FIGURES")


def constant(name: str, variable: str):
    """A constant of tests/bench/NAME.py, read without running it; None where it has none."""
    script = SCRIPTS.get(name)
    if script is None:
        return None
    for node in ast.parse(script.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == variable:
            return ast.literal_eval(node.value)
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
    wrong = stamp.misnamed(document, figures_of(document["bench"]))
    return f"its script tells other figures now: {', '.join(wrong)}; {again}" if wrong else ""


@pytest.mark.parametrize("path", MEASURED, ids=lambda p: p.name)
def test_a_measured_document_is_of_what_is_here_now(path):
    document = json.loads(path.read_text("utf-8"))
    assert not stale(document), stale(document)
    assert path.name == f"bench-{document['bench']}-{document['machine']['device']}.json"


def test_every_benchmark_names_code_that_exists_and_its_figures():
    named = {name: modules for name in SCRIPTS if (modules := modules_of(name))}
    assert {"agreement", "intervals", "memory", "null_constant", "throughput"} <= set(named)
    gone = [m for modules in named.values() for m in modules if not (PACKAGE / m).is_file()]
    assert not gone
    assert [name for name in named if not figures_of(name)] == []


@pytest.mark.torch
@pytest.mark.parametrize("name", RUN)
def test_every_benchmark_finds_what_it_imports(name):
    pytest.importorskip("torch")
    argv = [sys.executable, str(SCRIPTS[name]), "--help"]
    said = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(f"usage: {name}.py")


def test_what_is_stale_is_noticed():
    figures = figures_of("intervals")
    good = {
        **stamp.stamp("intervals", modules_of("intervals")),
        **dict.fromkeys(figures[""].split(), 0.5),
        "rows": [dict.fromkeys(figures["rows.*"].split(), 0.5)] * 2,
    }
    assert stale(good) == ""
    assert "changed since" in stale(good | {"code_digest": "0" * 64})
    assert "other modules" in stale(good | {"modules": good["modules"][:1]})
    assert "no script" in stale(good | {"bench": "nothing"})
    assert "rows.* has median besides" in stale(good | {"rows": [good["rows"][0] | {"median": 1}]})
    del good["at_stop_lowest"]
    assert "it lacks at_stop_lowest" in stale(good)


def test_what_a_document_lacks_or_has_besides_is_named_by_its_place():
    figures = {"": "a b?", "a.*.c|a.*.d": "e", "b": "f?"}
    whole = {**dict.fromkeys(stamp.HEAD), "a": {"1": {"c": {"e": 0}, "d": {"e": 0}}}}
    assert stamp.misnamed(whole, figures) == []
    assert stamp.misnamed(whole | {"b": None}, figures) == []
    assert stamp.misnamed(whole | {"b": {"f": 0}, "c": 0}, figures) == ["it has c besides"]
    assert stamp.misnamed(whole | {"b": {"g": 0}}, figures) == ["b has g besides"]
    assert stamp.misnamed({"a": {"1": {"c": {}, "d": {"g": 0}}}}, figures) == [
        *(f"it lacks {key}" for key in sorted(stamp.HEAD)),
        "a.*.c lacks e",
        "a.*.d lacks e",
        "a.*.d has g besides",
    ]
    with pytest.raises(SystemExit, match="it has c besides"):
        stamp.check(whole | {"bench": "this", "c": 0}, figures)
