"""The judge as an ordinary user, on the image of containers/eval-cpu.def, in each container."""

import json
import re
import select
import socket
from pathlib import Path

import pytest
from builders.devcluster import Rig, own_folder, public_python
from builders.small_layer import HONEST, SOURCE

from pike_hpc.bootstrap.install import pinned

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(1500)]

COMPILED = """
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.fast = torch.compile(lambda x: torch.relu(self.layer(x)))

    def forward(self, x):
        return self.fast(x)
"""
CANDIDATES = {
    "honest": HONEST,
    "compiled": HONEST.partition("    def __init__")[0] + COMPILED,
    "wrong": HONEST.replace("torch.relu(self.layer(x))", "self.layer(x)"),
    "calls out": "import socket\nsocket.create_connection(('127.0.0.1', 9))\n" + HONEST,
}


def test_the_image_says_what_it_holds(judge, image):
    said = judge.run("apptainer", "inspect", "--labels", image)
    labels = dict(re.findall(r"^pike\.(\S+): (\S+)", said, re.M))
    assert labels["image"] == "eval-cpu"
    assert labels["torch"] == f"{pinned('torch')}+cpu"
    assert labels["numpy"] == pinned("numpy")
    assert set(labels) == {"image", "debian", "python", "torch", "numpy", "ninja", "g++"}


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("honest", "PASSED", 0),
        ("compiled", "PASSED", 0),
        ("wrong", "WRONG_RESULT", 3),
        ("calls out", "BUILD_ERROR", 3),
    ],
)
def test_a_candidate_in_the_image_is_judged(judge, image, name, status, code):
    task = judge.write("task.py", SOURCE)
    file = judge.write("candidate.py", CANDIDATES[name])
    options = ("--device=cpu", "--engine=apptainer", f"--image={image}", "--min-isolation=L3")
    command = ("-m", "pike_hpc", "evaluate", task, file, *options)
    done = judge.tried(judge.python, *command, "--json", timeout_s=400)
    assert done.returncode == code, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["status"] == status, verdict["log_tail"]
    assert verdict["isolation"]["level"] == "L3"
    assert verdict["isolation"]["engine"] == "apptainer"
    open_ones = {attack for attack, held in verdict["isolation"]["probes"].items() if not held}
    assert open_ones == {"processes", "scratch", "memory_together", "memory_in_files"}


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


@pytest.mark.parametrize("engine", ["apptainer", "podman"])
def test_a_candidate_reaches_nobody_on_its_own_machine(judge, listeners, engine, request):
    """It tries every address and socket it can think of, then answers honestly."""
    image = request.getfixturevalue({"apptainer": "image", "podman": "podman_image"}[engine])
    where, heard = listeners
    hidden = [str(judge.folder), str(judge.home / ".bashrc"), str(judge.home / "pike-hpc")]
    task = judge.write("task.py", SOURCE)
    calls = CALLS.format(**where, hidden=hidden, address=address())
    file = judge.write("candidate.py", calls + HONEST)
    options = ("--device=cpu", f"--engine={engine}", f"--image={image}", "--min-isolation=L3")
    command = ("-m", "pike_hpc", "evaluate", task, file, *options)
    done = judge.tried(judge.python, *command, "--json", timeout_s=400)
    verdict = json.loads(done.stdout)
    assert verdict["status"] == "PASSED", verdict["message"] + verdict["log_tail"]
    assert verdict["isolation"]["engine"] == engine
    assert not select.select(heard, [], [], 0)[0]


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
