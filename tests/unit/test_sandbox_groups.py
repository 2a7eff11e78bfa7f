"""A control group for a sandbox: found only where it was handed over, made, entered, swept."""

import subprocess
import sys
from pathlib import Path

import pytest

from pike_hpc.sandbox import Engine, HostFacts, SandboxSpec, bound, command
from pike_hpc.sandbox.groups import handed_over

FACTS = HostFacts(uid=1000, gid=1000, kernel=(6, 1), python="python", control_group="/cg/given")


@pytest.fixture
def tree(tmp_path):
    """`(proc, folder)` as a process in the group /given/pike-worker sees them."""
    folder = tmp_path / "cg" / "given"
    (folder / "pike-worker").mkdir(parents=True)
    (folder / "cgroup.procs").touch()
    (folder / "cgroup.subtree_control").write_text("cpu memory pids\n")
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text("4:memory:/other\n0::/above/given/pike-worker\n")
    (proc / "mountinfo").write_text(
        "23 1 0:21 / /proc rw - proc proc rw\n"
        f"29 23 0:26 /above {tmp_path / 'cg'} rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
    )
    return proc, folder


def test_a_group_is_ours_where_we_were_put_into_its_leaf(tree):
    assert handed_over(tree[0]) == str(tree[1])


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("proc/cgroup", "0::/above/given/session.scope\n"),
        ("proc/cgroup", "0::/elsewhere/pike-worker\n"),
        ("proc/cgroup", "4:memory:/given/pike-worker\n"),
        ("proc/mountinfo", "23 1 0:21 / /proc rw - proc proc rw\n"),
        ("cg/given/cgroup.subtree_control", "memory\n"),
    ],
)
def test_no_other_group_is_taken(tree, tmp_path, file, text):
    (tmp_path / file).write_text(text)
    assert handed_over(tree[0]) == ""


def test_a_host_without_such_files_has_none(tmp_path):
    assert handed_over(tmp_path) == ""


def spec(**more):
    return SandboxSpec(argv=("program",), env={}, memory_mb=100, processes=32, **more)


@pytest.mark.parametrize(("engine", "own"), [(Engine.NONE, 0), (Engine.UNSHARE, 2)])
def test_the_group_is_entered_before_anything_else(engine, own):
    argv = command(engine, spec(), FACTS)
    assert argv[:3] == ["python", "-I", "-S"]
    assert Path(argv[3]).name == "bound.py"
    assert argv[4:7] == ["/cg/given", str((100 + 24) << 20), str(32 + own)]
    assert argv[7] in ("env", "python")


def test_no_group_without_a_limit_on_memory_or_under_apptainer():
    unlimited = SandboxSpec(argv=("program",), env={})
    assert command(Engine.NONE, unlimited, FACTS)[0] == "env"
    assert command(Engine.APPTAINER, spec(image="i.sif"), FACTS)[0] == "apptainer"


KERNEL = """
import os, sys
sys.path.insert(0, sys.argv[1])
import bound

def mkdir(path, real=os.mkdir):
    real(path)
    for name in ("memory.max", "pids.max", "memory.swap.max", "cgroup.procs"):
        open(f"{path}/{name}", "w").close()

os.mkdir = mkdir
sys.argv = ["bound.py", *sys.argv[2:]]
sys.exit(bound.main())
"""
"""A folder of the kernel's: whoever makes a group finds its files there."""


def start(folder, *program):
    script = [sys.executable, "-I", "-c", KERNEL, str(Path(bound.__file__).parent)]
    return subprocess.run(
        [*script, str(folder), "1000", "7", *program], capture_output=True, text=True, check=False
    )


def test_the_program_starts_in_a_group_with_the_limits(tmp_path):
    done = start(tmp_path, "echo", "hello")
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    (group,) = tmp_path.iterdir()
    texts = {p.name: p.read_text() for p in group.iterdir()}
    assert texts == {
        **{"memory.max": "1000", "pids.max": "7", "memory.swap.max": "0", "cgroup.procs": "0"}
    }


def test_groups_that_were_left_empty_are_swept_and_nothing_else(tmp_path):
    for name in ("pike-sandbox-1-1", "pike-sandbox-2-2", "pike-worker", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "pike-sandbox-2-2" / "busy").touch()  # rmdir refuses, as for a group in use
    bound.sweep(str(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "other",
        "pike-sandbox-2-2",
        "pike-worker",
    ]


def test_nothing_starts_where_the_group_cannot_be_made(tmp_path):
    script = [sys.executable, "-I", "-S", str(Path(bound.__file__))]
    for folder in (tmp_path, tmp_path / "absent"):  # no files in new folders; no folder
        argv = [*script, str(folder), "1000", "7", "echo", "hello"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (125, "")
        assert "no control group" in done.stderr
