"""Engines that really run here: what a program inside sees, what it cannot do, how it dies."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from builders.required import lacking

from pike_hpc.records import UsageError
from pike_hpc.sandbox import (
    Engine,
    SandboxSpec,
    choose,
    command,
    environment,
    give_scratch,
    home,
    look,
    measure,
    python_prefixes,
    python_trial,
)
from pike_hpc.sandbox.choose import refusal

REPO = Path(__file__).parents[2]
SPACES = (Engine.UNSHARE, Engine.BUBBLEWRAP)
FACTS = look()


def spec(code="pass", *arguments, folder=None, **more):
    """A program in Python that sees Python and the package."""
    given = {
        "argv": (sys.executable, "-c", code, *arguments),
        "read_only": (*python_prefixes(), REPO / "pike_hpc"),
        "env": environment(folder or Path("/tmp"), threads=1),
        "scratch_mb": 16,
    }
    return SandboxSpec(**{**given, **more})


@pytest.fixture(params=SPACES)
def engine(request):
    reason = refusal(request.param, FACTS, python_trial(spec(), Path(sys.executable)))
    if reason:
        lacking(request.param.value, f"{request.param}: {reason}")
    return request.param


@pytest.fixture
def folder():
    """A folder on this node that every user may enter, as a site's paths.tmp is."""
    with tempfile.TemporaryDirectory(prefix="pike-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def open_folder(folder, name):
    (folder / name).mkdir()
    (folder / name).chmod(0o1777)
    return folder / name


def run(engine, given, timeout_s=60):
    return subprocess.run(
        command(engine, given, FACTS),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        start_new_session=True,
        check=False,
    )


LOOK_AROUND = """
import json, os, socket, sys
status = dict(l.split(":", 1) for l in open("/proc/self/status"))
def refused(f):
    try:
        f()
    except OSError as error:
        return type(error).__name__
print(json.dumps({
    "ids": [os.getuid(), os.geteuid(), os.getgid()],
    "cwd": os.getcwd(),
    "env": dict(os.environ),
    "root": os.listdir("/"),
    "etc": os.listdir("/etc"),
    "processes": [p for p in os.listdir("/proc") if p.isdigit()],
    "interfaces": [l.split(":")[0].strip() for l in open("/proc/net/dev").readlines()[2:]],
    "host": socket.gethostname(),
    "capabilities": status["CapEff"].strip(),
    "no_new_privileges": status["NoNewPrivs"].strip(),
    "secret": refused(lambda: open(sys.argv[1])),
    "home": refused(lambda: open(sys.argv[2])),
    "package": refused(lambda: open(sys.argv[3], "a")),
    "root_folder": refused(lambda: open("/x", "w")),
    "device_folder": refused(lambda: open("/dev/x", "w")),
    "device": refused(lambda: open("/dev/null", "w")),
    "stdin": sys.stdin.read(),
}))
"""


def test_a_program_sees_what_is_shown_and_nothing_else(engine, folder):
    secret = folder / "secret"
    secret.touch(0o600)
    module = REPO / "pike_hpc" / "__init__.py"
    given = spec(LOOK_AROUND, str(secret), str(Path.home() / ".bashrc"), str(module))
    done = run(engine, given)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["ids"] == [65534] * 3
    assert seen["cwd"] == "/tmp"
    assert {k: v for k, v in seen["env"].items() if k != "PWD"} == given.env
    system = ("bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys")
    shown = {p.parts[1] for p in given.read_only}
    assert set(seen["root"]) <= {*system, "tmp", "usr", *shown}
    assert "shadow" not in seen["etc"]
    assert len(seen["processes"]) <= 3
    assert seen["interfaces"] == ["lo"]
    assert seen["host"] == "sandbox"
    assert int(seen["capabilities"], 16) == 0
    assert seen["no_new_privileges"] == "1"
    assert seen["secret"] == seen["home"] == "FileNotFoundError"
    assert seen["package"] in ("OSError", "PermissionError")
    assert seen["root_folder"]
    assert seen["device_folder"]
    assert seen["device"] is None
    assert seen["stdin"] == ""


@pytest.mark.parametrize(
    ("code", "status"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 128 + 9)],
)
def test_the_status_of_the_program_comes_out(engine, code, status):
    assert run(engine, spec(code)).returncode == status


def test_what_cannot_be_shown_is_an_error_that_names_it(engine):
    done = run(engine, spec(read_only=(*python_prefixes(), Path("/absent/folder"))))
    assert done.returncode != 0
    assert "/absent/folder" in done.stderr


SAY_HELLO = """
import array, mmap, socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
_, fds, _, _ = socket.recv_fds(client, 1, 1)
with mmap.mmap(fds[0], 4) as memory:
    memory[:] = bytes(2 * b for b in memory[:])
client.send(b"d")
"""


def test_buffers_cross_through_a_socket_in_a_read_only_folder(engine, folder):
    meeting = open_folder(folder, "meeting")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(meeting / "s"))
        (meeting / "s").chmod(0o666)
        listener.listen()
        listener.settimeout(30)
        given = spec(SAY_HELLO, str(meeting / "s"))
        given = SandboxSpec(argv=given.argv, env=given.env, read_only=(*given.read_only, meeting))
        with subprocess.Popen(command(engine, given, FACTS), stdin=subprocess.DEVNULL) as process:
            connection = listener.accept()[0]
            buffer = os.memfd_create("buffer")
            os.write(buffer, b"\1\2\3\4")
            socket.send_fds(connection, [b"b"], [buffer])
            assert connection.recv(1) == b"d"
            connection.close()
            assert process.wait(30) == 0
    assert os.pread(buffer, 4, 0) == b"\2\4\6\10"
    os.close(buffer)


def test_a_shared_folder_is_written_by_nobody(engine, folder):
    shared = open_folder(folder, "shared")
    done = run(engine, spec(f"open({str(shared / 'x')!r}, 'w').write('y')", shared=(shared,)))
    assert done.returncode == 0, done.stderr
    assert (shared / "x").read_text() == "y"
    assert (shared / "x").stat().st_uid == FACTS.candidate_uid != 0


def test_what_is_shown_is_read_only_even_where_everybody_may_write(engine, folder):
    shown = open_folder(folder, "shown")
    (shown / "file").touch()
    (shown / "file").chmod(0o666)
    for name in ("file", "new"):
        code = f"open({str(shown / name)!r}, 'a')"
        done = run(engine, spec(code, read_only=(*python_prefixes(), shown)))
        assert "Read-only file system" in done.stderr


def test_paths_shown_keep_their_symbolic_links(engine, folder):
    (folder / "real").mkdir()
    (folder / "real" / "x").write_text("found")
    (folder / "link").symlink_to(folder / "real")
    shown = (*python_prefixes(), folder / "link")
    done = run(engine, spec(f"print(open({str(folder / 'link' / 'x')!r}).read())", read_only=shown))
    assert done.stdout == "found\n", done.stderr


HIDE = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", sys.argv[1]])
    os._exit(0)
os.wait()
print("hidden", flush=True)
time.sleep(600)
"""


def alive(marker):
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", marker.encode()]:
            found.append(int(entry.parent.name))
    return found


@pytest.mark.parametrize("end", [os.kill, os.killpg])
def test_sigkill_outside_ends_everything_inside(engine, end):
    marker = f"{600 + os.getpid() / 1e8:.9f}{time.monotonic_ns() % 1000}"
    with subprocess.Popen(
        command(engine, spec(HIDE, marker), FACTS),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout.readline() == b"hidden\n"
        deadline = time.monotonic() + 20
        while not alive(marker) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert alive(marker)
        end(process.pid, signal.SIGKILL)
        while alive(marker) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert alive(marker) == []


def test_the_end_of_the_program_ends_what_it_left_behind(engine):
    marker = f"{700 + os.getpid() / 1e8:.9f}{time.monotonic_ns() % 1000}"
    assert run(engine, spec(HIDE.replace("time.sleep(600)", ""), marker)).stdout == "hidden\n"
    assert alive(marker) == []


def vanish(left):
    """Others measure at the same time, and take theirs away within seconds."""
    left = list(left)
    deadline = time.monotonic() + 60
    while any(path.exists() for path in left):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


PROBES = (Path.home(), ".pike-probe-*"), (Path("/dev/shm"), "pike-probe-*")


def test_measured_at_l3_and_limits_of_one_process_hold(engine, folder):
    killed = [place / names.replace("*", f"{os.getpid()}-{engine}") for place, names in PROBES]
    for path in killed:
        path.touch()
        os.utime(path, (0, 0))
    before = {path for place, names in PROBES for path in place.glob(names)}
    measured = measure(engine, FACTS, spec(memory_mb=256), python=sys.executable, folder=folder)
    failed = {attack for attack, stopped in measured.probes.items() if not stopped}
    assert (measured.level, measured.engine) == ("L3", engine.value)
    # No limit of a process counts what several take together, or in anonymous files.
    counted_together = {"processes"} if engine is Engine.BUBBLEWRAP and FACTS.is_root else set()
    assert failed == {"memory_together", "memory_in_files"} | counted_together
    assert list(folder.iterdir()) == []
    for place, names in PROBES:
        vanish(set(place.glob(names)) - before)
    assert not any(path.exists() for path in killed), "left by one that was killed long ago"


def test_measure_sees_a_hole_that_no_flag_tells_of(engine, folder):
    measured = measure(engine, FACTS, spec(shared=(folder,)), python=sys.executable, folder=folder)
    assert not measured.probes["write_public"]
    assert not measured.probes["memory_of_one"]
    assert measured.level in ("L1", "L2")


def test_measure_sees_that_nothing_refuses_system_calls(engine, folder):
    """As on a machine whose numbers of system calls we do not know."""
    bare = replace(FACTS, machine="")
    measured = measure(engine, bare, spec(), python=sys.executable, folder=folder)
    assert not measured.probes["work_while_stopped"]
    # Engine unshare has a second wall: its user namespace allows no other below it.
    assert measured.probes["namespaces"] == (engine is Engine.UNSHARE)
    assert measured.level == "L2"


def public_python():
    """An interpreter of a supported version that every user may run."""
    for name in (sys.executable, "/usr/bin/python3"):
        real = Path(name).resolve()
        open_way = all(p.stat().st_mode & 0o001 for p in (real, *real.parents))
        if open_way and shutil.which(name):
            version = [name, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
            if subprocess.run(version, check=False).returncode == 0:
                return name
    return None


MEASURE = """
import json, sys
from pathlib import Path
from pike_hpc.evaluate.lane import Lane
from pike_hpc.sandbox import *
spec = SandboxSpec(argv=("true",), env={}, read_only=python_prefixes())
facts = look()
trial = python_trial(spec, Path(sys.executable))
try:
    chosen = choose(sys.argv[1], facts, trial)
except Exception as error:
    sys.exit(str(error))
found = measure(chosen, facts, spec, python=sys.executable, folder=Path(sys.argv[2]))
with Lane("cpu", chosen, scratch=Path(sys.argv[2])) as lane:
    print(json.dumps([facts.uid, found.level, lane.isolation.level]))
"""


@pytest.mark.parametrize(
    ("name", "expected"), [("bubblewrap", "L3"), ("unshare", "L3"), ("none", "L1")]
)
def test_an_ordinary_user_gets_the_same_levels(name, expected, folder):
    python = public_python()
    if os.getuid() != 0 or not shutil.which("setpriv") or python is None:
        pytest.skip("another user needs root, setpriv and a Python that everybody may run")
    if name not in ("none",) and refusal(Engine(name), FACTS):
        lacking(name, f"{name} does not work here")
    for place in ("home", "tmp"):
        (folder / place).mkdir()
        os.chown(folder / place, 1000, 1000)
    done = subprocess.run(
        [
            *("setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups"),
            *(python, "-c", MEASURE, name, str(folder / "tmp")),
        ],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "home"),
            "PYTHONPATH": str(REPO),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        cwd=folder / "home",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 1 and "does not work here" in done.stderr and name != "none":
        lacking(name, done.stderr.strip().splitlines()[0])
    assert done.returncode == 0, done.stderr
    # A lane's own files belong to that user too: its candidates must not be shown them.
    assert json.loads(done.stdout) == [1000, expected, expected]


def test_bare_root_gives_its_uid_away_and_is_measured_at_l2(folder):
    python = public_python()
    if os.getuid() != 0 or python is None:
        pytest.skip("needs root and a Python that everybody may run")
    (folder / "scratch").mkdir()
    give_scratch(folder / "scratch", FACTS)
    code = "import os; open('x', 'w'); print(os.getuid(), os.getcwd(), len(os.environ))"
    env = {"HOME": "/nowhere"}
    given = SandboxSpec(argv=(python, "-I", "-c", code), env=env, scratch=folder / "scratch")
    done = run(Engine.NONE, given)
    assert home(Engine.NONE, given) == folder / "scratch"
    assert done.stdout.split()[:2] == ["65534", str(folder / "scratch")], done.stderr
    assert (folder / "scratch" / "x").stat().st_uid == 65534
    measured = measure(Engine.NONE, FACTS, given, python=python, folder=folder)
    assert measured.level == "L2"
    assert not measured.probes["abstract_socket"]
    assert measured.probes["namespaces"]
    assert measured.probes["work_while_stopped"]


def test_auto_takes_one_that_runs_python():
    trial = python_trial(spec(), Path(sys.executable))
    assert refusal(choose("auto", FACTS, trial), FACTS, trial) is None


MANY = """
import subprocess, sys
children = [subprocess.Popen(["sleep", "60"]) for _ in range(20)]
print(len(children), flush=True)
sys.stdin.read()
"""


def test_the_processes_of_one_are_not_missing_to_another(folder):
    """Five of a machine's lanes, each far from its own limit."""
    trial = python_trial(spec(), Path(sys.executable))
    given = spec(MANY, processes=32, scratch=open_folder(folder, "scratch"))
    argv = command(choose("auto", FACTS, trial), given, FACTS)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
    programs = [subprocess.Popen(argv, text=True, **pipes) for _ in range(5)]
    said = [program.stdout.readline() for program in programs]
    for program in programs:
        program.communicate(timeout=60)
    assert said == ["20\n"] * 5


@pytest.mark.skipif(not FACTS.is_root, reason="only root's sandboxes are ever counted together")
def test_root_takes_the_engine_that_counts_each_sandbox_alone():
    wanted = Engine.UNSHARE
    if refusal(wanted, FACTS, python_trial(spec(), Path(sys.executable))):
        lacking(wanted.value, "engine unshare does not work here")
    assert choose("auto", FACTS) is wanted


def test_a_trial_that_fails_everywhere_is_one_message():
    with pytest.raises(UsageError, match="no sandbox works here"):
        choose("auto", FACTS, SandboxSpec(argv=("false",), env={"PATH": "/usr/bin:/bin"}))


COMPILE = """
import getpass, torch
twice = torch.compile(lambda x: torch.relu(x * 2 + 1).sum())
x = torch.randn(1000)
assert torch.allclose(twice(x), torch.relu(x * 2 + 1).sum(), rtol=1e-4)
assert torch._inductor.config.cpp.vec_isa_ok, "what the CPU can do is compiled for again"
print(getpass.getuser())
"""


@pytest.mark.torch
@pytest.mark.slow
def test_torch_compiles_inside():
    """With g++, its headers and Python's, all caches in the scratch folder."""
    pytest.importorskip("torch")
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    given = spec(COMPILE, scratch_mb=512)
    chosen = choose("auto", FACTS, python_trial(given, Path(sys.executable)))
    if chosen is Engine.NONE:
        pytest.skip("no engine with a file system of its own works here")
    done = run(chosen, given, timeout_s=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "candidate\n"
