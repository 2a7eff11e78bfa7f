"""The programs on both sides of a container: one holds it, one keeps what runs in it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pike_hpc.sandbox.containers import CONTAIN, KEEP

HOLD = KEEP.with_name("hold.py")
PYTHON = (sys.executable, "-I", "-S")


def kept(*program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*PYTHON, str(KEEP), *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize(
    ("script", "status"), [("exit 3", 3), ("kill -9 $$", 137), ("cat; sleep 1 & exit 0", 0)]
)
def test_the_status_of_the_program_comes_out(script: str, status: int) -> None:
    with kept("sh", "-c", script) as process:
        assert process.wait(20) == status


SHOWS_CPUS = (sys.executable, "-c", "import os; print(*sorted(os.sched_getaffinity(0)))")


def test_it_starts_on_the_cpus_that_are_named() -> None:
    own = max(os.sched_getaffinity(0))
    with kept(f"--cpus={own}", *SHOWS_CPUS) as process:
        assert process.stdout is not None
        assert process.stdout.read().split() == [str(own).encode()]


def test_cpus_that_its_container_does_not_have_are_no_mishap() -> None:
    with kept("--cpus=1023", *SHOWS_CPUS) as process:
        assert process.stdout is not None
        assert process.stdout.read().split() == [b"%d" % n for n in sorted(os.sched_getaffinity(0))]


def test_what_is_not_there_is_named() -> None:
    with kept("no-such-program") as process:
        assert process.wait(20) == 127
        assert process.stderr is not None
        assert b"no-such-program" in process.stderr.read()


def test_it_ends_when_nobody_holds_it_any_more() -> None:
    with kept("sleep", "5") as process:  # in a container its end is everybody's; not here
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 129


def test_the_holders_death_closes_the_clients_stdin(tmp_path: Path) -> None:
    client = f"echo up; cat; touch {tmp_path}/closed"
    argv = [*PYTHON, str(CONTAIN), "sh", "-c", client]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        assert not (tmp_path / "closed").exists()
        holder.send_signal(signal.SIGKILL)
        holder.wait(20)
    await_that((tmp_path / "closed").exists)


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -15 $$", 143)])
def test_the_clients_status_comes_out(script: str, status: int) -> None:
    done = subprocess.run([*PYTHON, str(CONTAIN), "sh", "-c", script], check=False, timeout=20)
    assert done.returncode == status


def test_a_client_that_is_not_installed_is_named() -> None:
    argv = [*PYTHON, str(CONTAIN), "no-such-client", "run"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (
        127,
        "sandbox: no-such-client: No such file or directory\n",
    )


BEAT = """
import os, sys, time
file = open(sys.argv[1], "xb", buffering=0)
while os.path.exists(sys.argv[1]):
    file.write(b".")
    time.sleep(0.01)
"""


def held(folder: Path, code: str) -> str:
    """What the prober is told of a program."""
    beats, said = folder / "beats", folder / "held"
    argv = [*PYTHON, str(HOLD), str(beats), str(said), sys.executable, "-c", code, str(beats)]
    subprocess.run(argv, check=False, timeout=60)
    return said.read_text() if said.exists() else "nothing"


def test_a_program_that_is_stopped_rests(tmp_path: Path) -> None:
    assert held(tmp_path, BEAT) == "rested"


def test_one_that_daemons_run_elsewhere_goes_on(tmp_path: Path) -> None:
    """As under docker: stopping what was started stops the client alone."""
    beats = tmp_path / "beats"
    with subprocess.Popen([sys.executable, "-c", BEAT, str(beats)]) as elsewhere:
        assert held(tmp_path, "import time; time.sleep(1)") == "ran"
        elsewhere.wait(20)


def test_one_that_never_works_leaves_no_word(tmp_path: Path) -> None:
    assert held(tmp_path, "pass") == "nothing"


def await_that(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        os.sched_yield()
