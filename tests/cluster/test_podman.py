"""A real podman without root, and engine podman on it: images made here, run by an ordinary user.

It stands in for podman-hpc and docker, whose command lines tests/unit/test_sandbox_command.py has.
"""

import json
from pathlib import Path

import pytest
from builders.devcluster import Rig, await_that, own_folder, public_python


@pytest.fixture(scope="module")
def image(demand, request):
    """The name of an image that holds a static busybox."""
    demand("podman")
    busybox = request.getfixturevalue("busybox")
    name = f"localhost/{busybox.folder.name}"
    busybox.run("sh", "-c", f"tar -C root -c . | podman import - {name}")
    yield name
    busybox.run("podman", "rmi", "--force", name)


def test_a_program_runs_in_the_image(image, busybox):
    said = busybox.run("podman", "run", "--rm", image, "sh", "-c", "busybox id -u; echo inside")
    assert said.split() == ["0", "inside"]


def test_what_is_root_inside_is_the_user_outside(image, busybox):
    busybox.run("mkdir", "-p", "out")
    bind = ("--volume", f"{busybox.folder}/out:/mnt")
    busybox.run("podman", "run", "--rm", *bind, image, "busybox", "touch", "/mnt/x")
    assert (busybox.folder / "out/x").stat().st_uid == busybox.uid


def test_network_none_leaves_no_interface_but_loopback(image, busybox):
    list_them = "busybox sed -n 's/:.*//p' /proc/net/dev"
    said = busybox.run("podman", "run", "--rm", "--network=none", image, "sh", "-c", list_them)
    assert said.split() == ["lo"]


@pytest.fixture(scope="module")
def rig(demand):
    """The user, with an image in `rig.image` that holds Debian's Python."""
    demand("podman")
    with own_folder() as folder:
        rig = Rig(folder, public_python())
        rig.image = f"localhost/python-{folder.name}"
        code = "import builders.python_image as b; b.lay_out(b.Path('root'))"
        rig.run(rig.python, "-c", code, PYTHONPATH=str(Path(__file__).parents[1]))
        rig.run("sh", "-c", f"tar -C root -c . | podman import - {rig.image}")
        yield rig
        rig.run("podman", "rmi", "--force", rig.image)


START = """
import contextlib, dataclasses, json, os, signal, subprocess, sys, time
from pathlib import Path
from pike_hpc.sandbox import *
facts = look()
python, shown = interpreter("podman", sys.executable)
given = SandboxSpec(
    argv=("true",), env={}, read_only=shown, image=sys.argv[1], memory_mb=256
)
engine = choose("podman", facts, python_trial(given, python))
"""

MEASURE = """
found = measure(engine, facts, given, python=python, folder=Path.cwd())
print(json.dumps([found.level, sorted(name for name, held in found.probes.items() if not held)]))
"""


def use(rig, code, **env):
    """What a program of the user's printed that has chosen engine podman."""
    return rig.run(rig.python, "-c", START + code, rig.image, **env)


def test_it_is_measured_at_l3_as_an_ordinary_user(rig):
    level, open_ways = json.loads(use(rig, MEASURE))
    # Without a control group nothing counts what several processes take together.
    assert open_ways == ["memory_in_files", "memory_together", "processes"]
    assert level == "L3"


SHOW_CPUS = """
own = max(os.sched_getaffinity(0))
code = "import os; print(sorted(os.sched_getaffinity(0)))"
asked = dataclasses.replace(given, argv=(python, "-c", code), cpus=(own,))
done = subprocess.run(command(engine, asked, facts), stdout=subprocess.PIPE, text=True, check=True)
print(json.dumps([done.stdout.strip(), str([own])]))
"""


def test_a_program_starts_on_the_cpus_that_are_named(rig):
    found, named = json.loads(use(rig, SHOW_CPUS))
    assert found == named


def test_where_the_network_cannot_be_cut_the_level_says_so(rig):
    """As at a site whose wrapper gives every container the host's network."""
    rig.run("mkdir", "-p", "bin")
    rig.write(
        "bin/podman",
        """#!/bin/sh
for word; do
    shift
    [ "$before $word" = "--network none" ] && word=host
    before=$word
    set -- "$@" "$word"
done
exec /usr/bin/podman "$@"
""",
    )
    path = f"{rig.folder}/bin:/usr/local/bin:/usr/bin:/bin"
    level, open_ways = json.loads(use(rig, MEASURE, PATH=path))
    assert level == "L2"
    # A call to the listener fails all the same: the filter refuses sockets that lead out.
    assert {"network_interfaces", "abstract_socket"} <= set(open_ways)
    assert "network" not in open_ways


KILL = """
code = "import time; print('up', flush=True); time.sleep(600)"
argv = command(engine, dataclasses.replace(given, argv=(python, "-c", code)), facts)
with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as process:
    process.stdout.readline()
    listed = ("podman", "ps", "--all", "--filter", "label=pike-hpc=sandbox")
    ask = (*listed, "--filter", f"ancestor={sys.argv[1]}", "--format", "{{.ID}} {{.Pid}}")
    identity, first = subprocess.run(ask, capture_output=True, text=True).stdout.split()
    if "monitor" in sys.argv:  # as the judge's warden does, which kills all below it at once
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if b"conmon" in words and identity.encode() in words:
                os.kill(int(folder.name), signal.SIGKILL)
        os.kill(int(first), signal.SIGKILL)
    os.killpg(process.pid, signal.SIGKILL)
with contextlib.suppress(OSError):  # it is gone between two looks
    while Path(f"/proc/{first}/cmdline").read_bytes():
        time.sleep(0.01)
print(json.dumps(subprocess.run(ask, capture_output=True, text=True).stdout.split()[:1]))
"""


def left(rig):
    """Ids of containers of the rig's image that podman knows."""
    return rig.run("podman", "ps", "--all", "--quiet", "--filter", f"ancestor={rig.image}").split()


def test_killing_what_was_started_ends_the_container(rig):
    """Its monitor survives that, as a daemon would."""
    use(rig, KILL)
    await_that(lambda: left(rig), [])


def test_one_killed_with_its_monitor_is_forgotten_at_the_next_start(rig):
    kill = START + KILL
    (identity,) = json.loads(rig.run(rig.python, "-c", kill, rig.image, "monitor"))
    assert left(rig) == [identity]
    use(rig, "")
    assert left(rig) == []


IDLE = """
own = ("--label", "pike-hpc=sandbox", sys.argv[1], "sh", "-c", "exit 0")
code = "import time; print('up', flush=True); time.sleep(600)"
argv = command(engine, dataclasses.replace(given, argv=(python, "-c", code)), facts)
with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as process:
    process.stdout.readline()
    subprocess.run(("podman", "create", *own), stdout=subprocess.DEVNULL)
    subprocess.run(("podman", "run", *own))
    young = forget_ended(engine, facts)
    forgotten, until = 0, time.monotonic() + 60
    while forgotten < 2 and time.monotonic() < until:
        time.sleep(1.5)  # the client counts in whole seconds
        forgotten += forget_ended(engine, facts, made_within="1s")
    said = [young, forgotten, process.poll()]
    os.killpg(process.pid, signal.SIGKILL)
print(json.dumps(said))
"""


def test_what_never_started_or_has_ended_is_forgotten_after_a_while(rig):
    """Whoever should have removed them was killed. One that lives is left alone."""
    young, forgotten, living = json.loads(use(rig, IDLE))
    assert (young, living) == (0, None)
    assert forgotten >= 2, "these two, and whatever the client was about to remove itself"
    await_that(lambda: left(rig), [])
