"""Judge and candidates in the image of containers/eval-cpu.def, by a user without torch."""

import json
import re
import select
import socket
from pathlib import Path

import pytest
from builders.devcluster import Rig, own_folder, public_python
from builders.small_layer import HONEST, SOURCE

from pike_hpc.bootstrap.install import pinned

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(2400)]

COMPILED = """
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.fast = torch.compile(lambda x: torch.relu(self.layer(x)))

    def forward(self, x):
        return self.fast(x)
"""
CANDIDATES = {
    "wrong": HONEST.replace("torch.relu(self.layer(x))", "self.layer(x)"),
    "compiled": HONEST.partition("    def __init__")[0] + COMPILED,
    "calls out": "import socket\nsocket.create_connection(('127.0.0.1', 9))\n" + HONEST,
}


def test_the_image_says_what_it_holds(judge, image):
    said = judge.run("apptainer", "inspect", "--labels", image)
    labels = dict(re.findall(r"^pike\.(\S+): (\S+)", said, re.M))
    assert labels["image"] == "eval-cpu"
    assert labels["torch"] == f"{pinned('torch')}+cpu"
    assert labels["numpy"] == pinned("numpy")
    assert set(labels) == {"image", "debian", "python", "torch", "numpy", "ninja", "einops", "g++"}


CALLS = """
import os, socket

HERE = socket.gethostname()
NAMES = ["127.0.0.1", "127.0.1.1", "::1", "localhost", HERE, "10.0.2.2", "169.254.1.2", {address!r}]
said = []
for name in NAMES:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        for family in (socket.AF_INET, socket.AF_INET6):
            try:
                with socket.socket(family, kind) as client:
                    client.settimeout(0.2)
                    client.connect((name, {port}))
                    client.send(b"hello")
                    said.append(name)
            except OSError:
                pass
for path in ("\\0" + {name!r}, {file!r}):
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            said.append(path)
    except OSError:
        pass
SEEN = [path for path in {hidden!r} if os.path.lexists(path)]
if said or SEEN:
    raise RuntimeError(f"reached {{said}}, saw {{SEEN}}")
"""


@pytest.fixture
def listeners(judge):
    """Everybody on this machine who would hear a call; and where."""
    file, name = f"{judge.folder}/listener", judge.folder.name
    with (
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.create_server(("", 0)) as stream,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram,
    ):
        port = stream.getsockname()[1]
        datagram.bind(("", port))
        for listener, at in ((named, file), (abstract, f"\0{name}")):
            listener.bind(at)
            listener.listen()
        try:
            yield (
                {"port": port, "file": file, "name": name},
                (named, abstract, stream, datagram),
            )
        finally:
            Path(file).unlink()


def address():
    """This machine's own, where it has one: nothing is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return probe.getsockname()[0]


@pytest.fixture(scope="session")
def podman_image(judge, image):
    """The same files as an image of podman's, less what an honest candidate has no need of."""
    name = f"localhost/{judge.folder.name}"
    left_out = (
        "*.a",
        "./proc",
        "./sys",
        "./dev",
        "./tmp",
        "./root",
        "./etc",
        "./var",
        "./usr/share",
    )
    left_out += ("./usr/lib/gcc", "./usr/include", "*/torch/include", "*/torch/test")
    exclude = " ".join(f"--exclude='{pattern}'" for pattern in left_out)
    inside = f"apptainer --silent exec --containall --no-home {image} tar -C / {exclude} -c ."
    judge.run("sh", "-c", f"{inside} | podman import --quiet - {name}", timeout_s=300)
    yield name
    judge.run("podman", "rmi", "--force", name)


@pytest.fixture
def contained(engine, request):
    """The image as that engine names it."""
    return request.getfixturevalue({"apptainer": "image", "podman": "podman_image"}[engine])


def test_here_is_no_torch(judge):
    said = judge.tried(judge.python, "-c", "import torch").stderr
    assert said.splitlines()[-1] == "ModuleNotFoundError: No module named 'torch'"


@pytest.mark.parametrize("engine", ["apptainer", "podman"])
def test_a_candidate_reaches_nobody_on_its_own_machine(judge, listeners, engine, contained):
    """It tries every address and socket it can think of, then answers honestly."""
    where, heard = listeners
    hidden = [str(judge.folder), str(judge.home / ".bashrc"), str(judge.home / "pike-hpc")]
    task = judge.write("task.py", SOURCE)
    calls = CALLS.format(**where, hidden=hidden, address=address())
    file = judge.write("candidate.py", calls + HONEST)
    options = ("--device=cpu", f"--engine={engine}", f"--image={contained}", "--min-isolation=L3")
    command = ("-m", "pike_hpc", "evaluate", task, file, *options)
    done = judge.tried(judge.python, *command, "--json", timeout_s=400)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["status"] == "PASSED", verdict["message"] + verdict["log_tail"]
    assert not select.select(heard, [], [], 0)[0]
    assert (verdict["isolation"]["engine"], verdict["isolation"]["level"]) == (engine, "L3")
    assert verdict["environment"]["torch"] == f"{pinned('torch')}+cpu"
    assert verdict["environment"]["host"] == socket.gethostname()
    open_ones = {attack for attack, held in verdict["isolation"]["probes"].items() if not held}
    assert open_ones == OPEN[engine]
    assert left(judge, engine, contained) == []


PRIES = """
import glob, os

MARK, HIDDEN, TOP = {mark!r}, {hidden!r}, {top!r}


def told(path):
    try:
        if os.path.islink(path):
            return os.readlink(path)
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def pry():
    yield from (path for path in HIDDEN if os.path.lexists(path))
    for name in ("environ", "cmdline", "mountinfo", "maps", "cwd", "root", "exe", "fd/*"):
        for path in glob.glob("/proc/[0-9]*/" + name):
            if MARK in told(path):
                yield path
    for folder, folders, files in os.walk(TOP):
        if folder == "/":
            folders[:] = {{*folders}} - {{"proc", "sys"}}
        if MARK in folder or {{"FORMAT", "cur"}} <= {{*folders, *files}}:
            yield folder


SEEN = list(pry())
if SEEN:
    raise RuntimeError(f"saw {{SEEN}}")
"""
WORKFLOW = """
schema_version: 1
name: pried
tasks: {path: tasks}
search: {strategy: rules}
evaluate: {devices: [cpu], min_isolation: L3}
workers: {count: 1, max_idle_s: 1}
"""
ONE_REQUEST = """
import os, subprocess, sys
from pathlib import Path
from pike_hpc.cli.run import Run, tasks_of
from pike_hpc.config import env, resolve
from pike_hpc.records import EvalRequest, to_json

folder, workflow, candidate, *sets = sys.argv[1:]
given = {"environ": dict(os.environ), "sites_dir": env.sites_dir({}), "sets": sets}
resolved = resolve(Path(workflow), "local", **given)
tasks, _ = tasks_of(resolved)
run = Run.create(Path(folder), resolved, tasks)
request = EvalRequest(
    task=tasks[0],
    candidate_source=Path(candidate).read_text(),
    device_kind=run.device_kind,
    image_digest="i",
    min_isolation="L3",
)
assert run.mailbox.put(request)
subprocess.run([sys.executable, "-m", "pike_hpc", "worker", folder], check=True)
print(to_json(run.mailbox.results([request.request_id])[request.request_id]))
"""


@pytest.mark.parametrize("engine", ["apptainer", "podman"])
def test_a_candidate_finds_no_mailbox_while_a_worker_judges_it(judge, engine, contained):
    """The run is the same user's, and its request lies there: nothing inside leads to it."""
    mark = f"pried-run-{engine}"
    run = judge.folder / mark
    hidden = [str(run), f"{run}/run.yaml", f"{run}/mailbox", f"{run}/mailbox/cur"]
    judge.run("mkdir", "-p", "tasks")
    judge.write("tasks/1_Layer.py", SOURCE)
    inside = judge.write("pries.py", PRIES.format(mark=mark, hidden=hidden, top="/") + HONEST)
    engine_and_image = (f"container.engine={engine}", f"container.image={contained}")
    argv = (str(run), judge.write("workflow.yaml", WORKFLOW), inside, *engine_and_image)
    said = judge.run(judge.python, judge.write("one.py", ONE_REQUEST), *argv, timeout_s=400)
    verdict = json.loads(said)
    assert verdict["status"] == "PASSED", verdict["message"] + verdict["log_tail"]
    assert (verdict["isolation"]["engine"], verdict["isolation"]["level"]) == (engine, "L3")
    # The same out here finds each of these, so that it would have in there.
    top = str(judge.folder)
    outside = judge.write("pries_here.py", PRIES.format(mark=mark, hidden=hidden, top=top))
    found = judge.tried(
        "env", f"PRIED={run}", "sh", "-c", f"cd {run} && exec {judge.python} {outside} 3< run.yaml"
    ).stderr
    for place in (*hidden, "/environ", "/cwd", "/fd/3"):
        assert f"{place}'" in found, found


OPEN = {
    "apptainer": {"processes", "scratch", "memory_together", "memory_in_files"},
    "podman": {"processes", "memory_together", "memory_in_files"},
}


def left(judge, engine, image):
    """Containers of that image that podman takes for running, or whose process lives.

    Others are forgotten minutes later: of one whose client was killed before it started anything,
    or after it had ended and before it was removed, or amid that.
    """
    if engine != "podman":
        return []
    form = ("--filter", f"ancestor={image}", "--format", "{{.ID}} {{.Pid}} {{.State}}")
    found = [line.split() for line in judge.run("podman", "ps", "--all", *form).splitlines()]
    runs = ("Up", "Paused")  # "Up 5 seconds ago" is what podman says of one that runs
    return [words for words in found if words[2] in runs or Path(f"/proc/{words[1]}").exists()]


LANE = """
import json, os, signal, sys, tempfile, time
from pathlib import Path
from pike_hpc import sandbox
from pike_hpc.evaluate.gate import Gate
from pike_hpc.evaluate.lane import Lane
from pike_hpc.evaluate.warden import descendants, stat_of
from pike_hpc.records import EvalRequest, Task

engine, image, source, *candidates = sys.argv[1:]
engine = sandbox.Engine(engine)
task = Task(suite="s", id="1", name="n", source=Path(source).read_text())
said = {"verdicts": []}


class Other:
    def freeze(self): ...
    def thaw(self):
        return True
    def evict(self): ...
    def give_way(self): ...


def request(file):
    return EvalRequest(
        task=task,
        candidate_source=Path(file).read_text(),
        device_kind="cpu",
        image_digest="i",
        min_isolation="L3",
    )


def words(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""  # it ended since it was listed


def is_judge(line):
    its_own = b"judge_process import main" in line and b"keep.py" not in line
    return its_own and line.startswith(b"python3")


def states():
    found = {pid: stat_of(pid) for pid in descendants() if b"evaluate/warden" not in words(pid)}
    return {pid: fields[0] for pid, fields in found.items() if fields}


def disturb(phase):
    if phase == "correctness":
        gate.hold(other)
        said["frozen"] = sorted(set(states().values()))
        said["count"] = len(states())
        gate.give_back(other)
        (inside,) = [pid for pid in descendants() if is_judge(words(pid))]
        said["judge"] = os.readlink(f"/proc/{inside}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
        os.kill(inside, signal.SIGKILL)


gate, other = Gate(), Other()
gate.join(other)
with tempfile.TemporaryDirectory(dir="/tmp") as folder:
    os.chmod(folder, 0o711)
    with Lane("cpu", engine, scratch=Path(folder), image=image, gate=gate) as lane:
        for file in candidates:
            result = lane.evaluate(request(file))
            said["verdicts"].append([result.status, result.message, result.log_tail])
        result = lane.evaluate(request(candidates[0]), disturb)
        said["killed"] = [result.status, result.message]
        result = lane.evaluate(request(candidates[0]))
        said["again"] = result.status
    said["left"] = [list(states().values()), os.listdir(folder)]
sandbox.forget_ended(engine, sandbox.look())
print(json.dumps(said | {"torch": "torch" in sys.modules}))
"""


@pytest.mark.parametrize(
    ("engine", "names", "statuses"),
    [
        ("apptainer", CANDIDATES, ["WRONG_RESULT", "PASSED", "BUILD_ERROR"]),
        ("podman", ["wrong"], ["WRONG_RESULT"]),
    ],
    ids=["apptainer", "podman"],
)
def test_the_judge_in_an_image_is_stopped_and_killed_like_one_beside_us(
    judge, engine, contained, names, statuses
):
    task = judge.write("task.py", SOURCE)
    files = [judge.write(f"{name}.py", CANDIDATES[name]) for name in names]
    said = judge.run(
        judge.python, judge.write("lane.py", LANE), engine, contained, task, *files, timeout_s=400
    )
    said = json.loads(said)
    assert [status for status, _, _ in said["verdicts"]] == statuses, said["verdicts"]
    # Every process of the engine's, the judge's and the runners'. One that was amid a system call
    # stops at its end, and rests until then.
    assert {"T"} <= set(said["frozen"]) <= {"T", "D"}
    assert said["count"] > 3
    assert said["judge"], "it lives in a file system of its own"
    assert said["killed"] == ["JUDGE_ERROR", "the judge died: SIGKILL; it said nothing"]
    assert said["again"] == "WRONG_RESULT"
    assert said["left"] == [[], []]
    assert not said["torch"]
    assert left(judge, engine, contained) == []


MEASURE = """
import sys
from pathlib import Path
from pike_hpc.cli.lanes import measure_isolation
print(measure_isolation(sys.argv[1], Path("/tmp")).level)
"""


@pytest.mark.parametrize(("engine", "level"), [("bubblewrap", "L3"), ("unshare", "L3")])
def test_an_ordinary_users_lane_is_measured_as_its_runners_are_kept(demand, engine, level):
    """Without root the probe's own secrets belong to whoever attacks: none may be shown."""
    demand("apptainer")
    with own_folder() as folder:
        rig = Rig(folder, public_python())
        assert rig.run(rig.python, "-c", MEASURE, engine) == level
