"""`make image BUILD=1` by a real podman, on a stand-in for NVIDIA's image, which can't be had here.

Its python3 and apt-get only note how they are called: what is tried is eval.Containerfile itself.
"""

import json
import sys

import pytest
from builders.devcluster import REPO

from pike_hpc.bootstrap.install import pinned

sys.path.insert(0, str(REPO / "containers"))
from recipes import RECIPES

CONTAINERS = REPO / "containers"
BASE = RECIPES["eval-cuda12"].base
NOTES = "#!/bin/sh\necho $0 $* >>/calls; ls /opt/wheels >>/calls 2>/dev/null || :\n"
LACKS_A_COMPILER = f"{NOTES}case $* in *try_image*) echo no compiler >&2; exit 1; esac\n"


@pytest.fixture
def build(demand, busybox):
    """`build(python3)`: how the build ended on a base with that, and the name of the image."""
    demand("podman")
    name = f"localhost/built-{busybox.folder.name}"
    label = f"built={busybox.folder.name}"  # of what lies between base and image, too
    wheels = busybox.folder / "wheels"
    busybox.run("mkdir", "-p", str(wheels), "base/bin")
    busybox.run("cp", "root/bin/busybox", "base/bin")
    for program in ("sh", "ls", "rm", "cat"):
        busybox.run("ln", "-sf", "busybox", f"base/bin/{program}")
    busybox.write("wheels/torch.whl", "")

    def ask(python3):
        for program, text in (("python3", python3), ("apt-get", NOTES)):
            busybox.write(f"base/bin/{program}", text)
        import_it = f"podman import --change 'LABEL {label}' - {BASE}"
        busybox.run("sh", "-c", f"rm -rf images; tar -C base -c . | {import_it}")
        options = ("--engine", "podman", "--build", "--wheels", str(wheels), "--tag", name)
        out = ("--out", str(busybox.folder / "images"))
        script = str(CONTAINERS / "build.py")
        return busybox.tried(busybox.python, script, "eval-cuda12", *options, *out), name

    yield ask
    busybox.run("podman", "rmi", "--force", "--ignore", name, BASE)
    busybox.run("podman", "image", "prune", "--force", f"--filter=label={label}")


def test_it_takes_wheels_and_test_and_says_what_was_asked_for(build, busybox):
    done, name = build(NOTES)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(busybox.run("podman", "image", "inspect", name))
    labels = {k: v for k, v in found["Labels"].items() if k.startswith("pike.")}
    torch = pinned("torch")
    assert labels == {"pike.image": "eval-cuda", "pike.torch": torch, "pike.cuda": "12.6.3"}
    called = busybox.run("podman", "run", "--rm", name, "cat", "/calls").splitlines()
    pip = next(n for n, line in enumerate(called) if "pip install" in line)
    assert f"torch=={torch} numpy ninja einops" in called[pip]
    assert called[pip + 1] == "torch.whl"
    assert called[-1] == "/bin/python3 -I /opt/try_image.py cuda"
    inside = busybox.run("podman", "run", "--rm", name, "cat", "/opt/try_image.py")
    assert inside == (CONTAINERS / "try_image.py").read_text("utf-8").strip()
    digest = (busybox.folder / "images/eval-cuda12.digest").read_text("utf-8")
    assert f'digest: "{found["Digest"]}"' in digest


def test_an_image_that_fails_its_test_is_none(build, busybox):
    done, name = build(LACKS_A_COMPILER)
    assert done.returncode == 1
    assert "no compiler" in done.stderr
    assert "podman build failed" in done.stderr
    assert busybox.tried("podman", "image", "exists", name).returncode == 1
    assert not (busybox.folder / "images/eval-cuda12.digest").exists()
