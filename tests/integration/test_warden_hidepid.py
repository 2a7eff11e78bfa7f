"""A program that hides from whom it should rest for, where /proc is mounted with hidepid.

As sites do. The warden runs as an ordinary user there, in a mount namespace that root makes.
"""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from pike_hpc.evaluate import warden
from pike_hpc.evaluate.alone import START

PYTHON = "/usr/bin/python3"
RUNNER = """
import ctypes, os, time
open("ready", "w")
while not os.path.exists("hide"):
    time.sleep(0.01)
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
open("hidden", "w")
time.sleep(60)
"""
DRIVER = """
import json, os, socket, subprocess, sys, time
order, when = json.loads(sys.argv[1]), sys.argv[2]
ours, theirs = socket.socketpair()
argv = [sys.executable, "-I", "-S", "-c", sys.argv[4], sys.argv[3], str(theirs.fileno())]
process = subprocess.Popen(argv, pass_fds=[theirs.fileno()])
said = ours.makefile("r")

def await_file(name):
    while not os.path.exists(os.path.join(order["cwd"], name)):
        time.sleep(0.01)

def hide():
    open(os.path.join(order["cwd"], "hide"), "w").close()
    await_file("hidden")

def tell(line):
    ours.sendall(line + b"\\n")
    return json.loads(said.readline())

ours.sendall(json.dumps(order).encode() + b"\\n")
await_file("ready")
if when == "before":
    hide()
tell(b"owns 1")
if when == "after":
    hide()
found = [tell(b"stop")["held"], tell(b"go")["held"]]
killed = tell(b"kill 0")
print(json.dumps([found, killed["left"]]))
"""


@pytest.fixture
def folder():
    """One that any user may use."""
    with tempfile.TemporaryDirectory(prefix="pike-hidepid-", dir="/var/tmp") as name:
        Path(name).chmod(0o777)
        shutil.copytree(Path(warden.__file__).parent, Path(name) / "warden")
        for path in [Path(name) / "warden", *(Path(name) / "warden").rglob("*")]:
            path.chmod(0o755)
        yield Path(name)


def hidden(when, folder):
    """Whether it was stopped and kept still, and how many of it would not die."""
    order = {"argv": [PYTHON, "-S", "-c", RUNNER], "env": {}, "cwd": str(folder), "remove": []}
    order["first_to_go"] = False
    mount = 'mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid 65534 "$@"'
    user = ("--regid", "65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all")
    driver = (PYTHON, "-S", "-c", DRIVER, json.dumps(order), when, str(folder / "warden"), START)
    argv = ["unshare", "--mount", "sh", "-c", mount, "sh", *user, *driver]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module", autouse=True)
def _may():
    if os.geteuid() != 0 or shutil.which("setpriv") is None or not Path(PYTHON).exists():
        pytest.skip(f"needs root, setpriv of util-linux and {PYTHON}")
    mount = ["unshare", "--mount", "mount", "-t", "proc", "-o", "hidepid=2", "proc", "/proc"]
    tried = subprocess.run(mount, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"/proc cannot be mounted anew here: {tried.stderr.strip()}")


def test_a_program_that_hides_never_rests(folder):
    (stopped, _), left = hidden("after", folder)
    assert not stopped
    assert left == 0


def test_an_engine_that_was_hidden_before_counts_for_nothing(folder):
    """What had privileges and gave them up is hidden, too: honest programs run below it."""
    assert hidden("before", folder) == [[True, True], 0]
