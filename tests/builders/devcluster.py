"""The rig of `make devcluster` as tests use it: programs and jobs of its ordinary user."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
PACKAGES = Path(sysconfig.get_path("purelib"))
READY = Path("/var/lib/pike-devcluster/ready")
USER = "pike"


IDLE = "4 idle"
"""What sinfo says of the nodes where nothing runs."""

_JOBS = "%A %u %T %M %j %Z"
"""For squeue: whose jobs they are, and where they were submitted."""


class Rig:
    """Runs programs with the rights of the rig's user, in a folder of that user's own."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self.python = python
        self.packages = PACKAGES
        self.uid = pwd.getpwnam(USER).pw_uid
        self.home = Path(pwd.getpwnam(USER).pw_dir)

    def argv(self, *command: str, **env: str) -> list[str]:
        """`command` as the user, with a clean environment that finds the package."""
        given = {
            "HOME": str(self.home),
            "USER": USER,
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": f"{REPO}:{self.packages}",
            "PYTHONDONTWRITEBYTECODE": "1",
            **env,
        }
        return [*_AS_USER, "env", "-i", *(f"{k}={v}" for k, v in given.items()), *command]

    def tried(self, *command: str, timeout_s: float = 240, **env: str):
        """The program at its end, whatever its status."""
        return subprocess.run(
            self.argv(*command, **env),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def run(self, *command: str, timeout_s: float = 240, **env: str) -> str:
        """What the program printed; it must end well.

        Asked again where it says that later it may (EX_TEMPFAIL): an agent amid its own `sbatch`
        has `cancel` come back, for one.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            done = self.tried(*command, timeout_s=timeout_s, **env)
            if done.returncode != os.EX_TEMPFAIL or time.monotonic() > deadline:
                break
            time.sleep(1.0)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def write(self, name: str, text: str) -> str:
        """The path of a new file with that text, which the user may read and run."""
        path = self.folder / name
        path.write_text(text, "utf-8")
        path.chmod(0o755)
        return str(path)


class Slurm(Rig):
    """Jobs of the rig's user, and what only an administrator may do."""

    def submit(self, script: str, *options: str) -> str:
        """The id of a batch job of that text. What it prints lies in JOB-TASK.out."""
        name = self.write(f"job-{time.monotonic_ns()}", f"#!/bin/sh\n{script}\n")
        files = ("--output=%A-%a.out", "--error=%A-%a.err")  # Slurm's own words go to the second
        return self.run("sbatch", "--parsable", *files, *options, name)

    def printed(self, job: str) -> list[str]:
        """The lines that a job's tasks, or the runs of one, printed; in no order of tasks."""
        return [
            line
            for file in self.folder.glob(f"{job}-*.out")
            for line in file.read_text("utf-8").splitlines()
        ]

    def state(self, job: str) -> tuple[str, int]:
        """A job's state as the controller has it, and how often it was started again."""
        said = self.run("scontrol", "--oneliner", "show", "job", job)
        fields = dict(word.partition("=")[::2] for word in said.split())
        return fields["JobState"], int(fields["Restarts"])

    def node(self, job: str) -> str:
        """Where it runs."""
        return self.run("squeue", "-h", "-j", job, "-o", "%N")

    def reaches(self, job: str, state: str, *, restarts: int = 0, within_s: float = 120) -> None:
        """Wait until the job is in that state after so many restarts."""
        await_that(lambda: self.state(job), (state, restarts), within_s)

    def await_accounts(
        self, job: str, fields: str, wanted: list[list[str]], *options: str, within_s: float = 120
    ) -> None:
        """Wait until sacct has these rows of a job: one a task, or with --duplicates one a run.

        The accounts follow the controller by a second or more.
        """

        def rows() -> list[list[str]]:
            said = self.run("sacct", "-nPX", *options, "-j", job, "-o", fields)
            return sorted(line.split("|") for line in said.splitlines())

        await_that(rows, wanted, within_s)

    def cut_power(self, job: str) -> None:
        """End all processes of a running job at once, those by which Slurm looks after it, too.

        As when its node loses power: nobody is left who could say how the job ended.
        """
        number = self.run("squeue", "-h", "-j", job, "-o", "%A")
        found = _processes_of(number)
        assert found, f"job {job} has no processes"
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @contextmanager
    def down(self, node: str) -> Iterator[None]:
        """Without that node."""
        update = ("scontrol", "update", f"nodename={node}")
        try:
            self.administer(*update, "state=down", "reason=test")
            yield
        finally:
            self.administer(*update, "state=resume")

    @contextmanager
    def outage(self, *daemons: str) -> Iterator[None]:
        """Without slurmctld and slurmdbd, or the one that is named; they are there again after."""
        program = str(REPO / "tests/cluster/rig/outage.sh")
        try:
            self.administer(program, "stop", *daemons)
            yield
        finally:
            self.administer(program, "start", *daemons)

    @contextmanager
    def small_disk(self, name: str, megabytes: int) -> Iterator["SmallDisk"]:
        """A file system of its own at that name in the folder, the user's."""
        place = self.folder / name
        self.run("mkdir", name)
        options = f"size={megabytes}m,uid={self.uid},mode=700"
        self.administer("mount", "-t", "tmpfs", "-o", options, "pike-test", str(place))
        try:
            yield SmallDisk(place / "filler")
        finally:
            self.administer("umount", "--lazy", str(place))

    def all_idle(self) -> None:
        """Wait until nothing runs, and have every GPU free."""
        self._await_idle()
        if self.free_kept_gpus():
            self._await_idle()
            assert self._gpus_kept() == []

    def free_kept_gpus(self) -> bool:
        """Whether idle nodes had GPUs in use; they are free then.

        Slurm 22.05 keeps the GPUs of a job that ends in the moment its controller comes back;
        another start of the controller gives them back.
        """
        if not self._gpus_kept():
            return False
        with self.outage("slurmctld"):
            pass
        return True

    def _await_idle(self) -> None:
        def asked() -> str:
            said = self.administer("sinfo", "-h", "-o", "%D %t", "-p", "gpu,cpu")
            return said if said == IDLE else f"{said}\n{self.administer('squeue', '-o', _JOBS)}"

        await_that(asked, IDLE)

    def _gpus_kept(self) -> list[str]:
        """What idle nodes say of GPUs in use, where some are."""
        said = self.administer("scontrol", "--detail", "--oneliner", "show", "node").splitlines()
        assert "GresUsed=" in "".join(said), "scontrol tells no GPUs in use"
        idle = [word for node in said if " State=IDLE " in node for word in node.split()]
        used = [word for word in idle if word.startswith("GresUsed=")]
        return [word for word in used if not word.partition("(")[0].endswith(":0")]

    def impatient(self) -> str:
        """Settings (`SLURM_CONF`) with which programs give a silent daemon up after a second."""
        settings = self.run("cat", "/etc/slurm/slurm.conf")
        settings += "\nMessageTimeout=1\nSlurmctldTimeout=1\n"
        return self.write("impatient.conf", settings)

    def administer(self, *command: str) -> str:
        """What a command of root's printed."""
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class SmallDisk:
    """A file system that can be filled up."""

    def __init__(self, filler: Path) -> None:
        self._filler = filler

    def fill(self) -> None:
        """Take all that is free."""
        with suppress(OSError), self._filler.open("ab", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    def give(self, pages: int) -> None:
        """A little of it back."""
        os.truncate(self._filler, self._filler.stat().st_size - 4096 * pages)

    def free(self) -> None:
        """All of it back."""
        self._filler.unlink()


def _processes_of(number: str) -> list[int]:
    """Of a job, by Slurm's own number of it: every node is this machine. Slurm's come first."""
    slurms, own = [], []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, given = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if words.startswith(f"slurmstepd: [{number}.".encode()):
            slurms.append(int(folder.name))
        elif f"SLURM_JOB_ID={number}".encode() in given.split(b"\0"):
            own.append(int(folder.name))
    return slurms + own


def await_that(ask: Callable[[], Any], wanted: Any, within_s: float = 120) -> None:
    """Wait until `ask()` answers `wanted`; its last answer stands in the failure."""
    deadline = time.monotonic() + within_s
    while True:
        began = time.monotonic()
        if (answer := ask()) == wanted:
            return
        now = time.monotonic()
        assert now < deadline, f"{answer}, not {wanted} within {within_s} s"
        # Whoever is waited for needs the cores, too: a command of ours costs half a second of one.
        time.sleep(max(0.2, 2 * (now - began)))


@contextmanager
def own_folder() -> Iterator[Path]:
    """A fresh folder in the user's home: every node sees it at the same path.

    Its name may be an image's, too: of what mkdtemp gives, a registry's grammar refuses `-_`.
    """
    owner = pwd.getpwnam(USER)
    folder = Path(owner.pw_dir, f"test-{uuid.uuid4().hex[:12]}")
    folder.mkdir(mode=0o700)
    try:
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a job that ends at this moment may still write


def public_python() -> str | None:
    """An interpreter of this version that the rig's user may run."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    names = (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}")
    return next((name for name in names if _user_can(name, "-c", _CAN_MAKE_VENVS)), None)


def why_not() -> str | None:
    """What keeps the rig from being used; None where nothing does."""
    if os.getuid() != 0:
        return "these tests act as another user and as an administrator, which needs root"
    if not READY.exists():
        return "no rig is up: make devcluster"
    for path in (REPO, PACKAGES):
        if not _user_can("ls", str(path)):
            return f"the rig's user may not read {path}: clone to a folder that all may enter"
    if public_python() is None:
        return f"the rig's user finds no Python {sys.version_info[0]}.{sys.version_info[1]}"
    return None


_CAN_MAKE_VENVS = "import os, sys; sys.exit(not os.access(sys._base_executable, os.X_OK))"
"""A copied interpreter runs for everybody, while the one that it was copied from may not."""

_AS_USER = ("runuser", "-u", USER, "--")


def _user_can(*command: str) -> bool:
    done = subprocess.run([*_AS_USER, *command], cwd="/", capture_output=True, check=False)
    return done.returncode == 0
