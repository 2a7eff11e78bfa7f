"""The layers of docs and setup.cfg are the layers of the code."""

import ast
import fnmatch
import re
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from pike_hpc.evaluate.measured import MODULES

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pike_hpc"

TORCH_MODULES = ("pike_hpc.tasks.load", "pike_hpc.evaluate.judge*", "pike_hpc.evaluate.runner*")
"""Programs and modules that run where torch is; nobody else may reach it, even indirectly."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(
        "pike_hpc",
        include_external_packages=True,
        exclude_type_checking_imports=True,
        cache_dir=None,
    )


def test_the_contracts_of_setup_cfg_hold() -> None:
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def is_torch_module(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in TORCH_MODULES)


@pytest.mark.parametrize("library", ["torch", "triton"])
def test_torch_is_out_of_reach_but_for_those_who_run_models(
    graph: grimp.ImportGraph, library: str
) -> None:
    if library not in graph.modules:
        return
    reaching = graph.find_downstream_modules(library)
    chains = [
        " -> ".join(graph.find_shortest_chain(importer=name, imported=library) or ())
        for name in sorted(reaching)
        if not is_torch_module(name)
    ]
    assert not chains


def test_the_nouns_stand_on_the_standard_library_alone(graph: grimp.ImportGraph) -> None:
    foreign = set()
    for module in graph.modules:
        if module.startswith("pike_hpc.records"):
            foreign |= {
                name
                for name in graph.find_modules_directly_imported_by(module)
                if not name.startswith("pike_hpc.records")
                and name.partition(".")[0] not in sys.stdlib_module_names
            }
    assert not foreign


def test_a_measured_table_goes_stale_with_all_that_admits_tasks(graph: grimp.ImportGraph) -> None:
    reached = graph.find_upstream_modules("pike_hpc.evaluate.judge_admission")
    admits = {name for name in reached if name.startswith("pike_hpc.evaluate.judge_")}
    known = {"pike_hpc." + name.removesuffix(".py").replace("/", ".") for name in MODULES}
    names = ("judge_probe", "judge_room", "judge_shared")
    others = {f"pike_hpc.evaluate.{name}" for name in names}
    assert admits - known == others, "probes of programs, memory shared with them and given back"


def test_every_outside_library_is_declared(graph: grimp.ImportGraph) -> None:
    declared = set(re.findall(r"^ {4}([a-z0-9_-]+) [><=]", (ROOT / "setup.cfg").read_text(), re.M))
    names = {"yaml": "pyyaml"}
    used = {
        name
        for name in graph.modules
        if not name.startswith("pike_hpc") and name not in sys.stdlib_module_names
    }
    undeclared = {name for name in used if names.get(name, name) not in declared}
    assert undeclared <= {"triton"}, "add them to install_requires, or to an extra"


def test_only_config_env_reads_the_environment() -> None:
    readers = {"environ", "environb", "getenv", "putenv", "unsetenv"}
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        # What installs the package runs before config's reader of YAML is there.
        own = (PACKAGE / "config/env.py", PACKAGE / "bootstrap/install.py")
        if "suites" in file.parts or file in own:
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in ("os", "posix")
                and node.attr in readers
            ):
                found.append(f"{file.relative_to(ROOT)}:{node.lineno} os.{node.attr}")
            if isinstance(node, ast.ImportFrom) and node.module in ("os", "posix"):
                found += [
                    f"{file.relative_to(ROOT)}:{node.lineno} from os import {name.name}"
                    for name in node.names
                    if name.name in readers
                ]
    assert not found
