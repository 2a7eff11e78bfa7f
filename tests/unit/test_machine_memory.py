"""What may still be taken: the machine's word, or a cgroup's where that is less."""

import pytest

from pike_hpc.machine import available_memory_bytes


class Machine:
    """Files like those of a kernel."""

    def __init__(self, folder):
        self.meminfo, self.cgroup, self.own = folder / "meminfo", folder / "group", folder / "own"
        self.cgroup.mkdir()

    def has(self, kib):
        self.meminfo.write_text(
            f"MemTotal:  99999 kB\nMemFree: 1 kB\nMemAvailable:  {kib} kB\nHugePages: 0\n"
        )

    def belongs_to(self, *lines):
        self.own.write_text("".join(f"{line}\n" for line in lines))

    def limits(self, path, most, used, cache=None):
        """A cgroup of version 2."""
        folder = self.cgroup / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        if cache is not None:
            (folder / "memory.stat").write_text(f"anon 7\ninactive_file {cache}\nfile 9\n")

    def limits_v1(self, path, most, used, cache):
        folder = self.cgroup / "memory" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.limit_in_bytes").write_text(f"{most}\n")
        (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {cache}\n")

    def available(self):
        return available_memory_bytes(self.meminfo, self.cgroup, self.own)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_the_machine_says_what_is_available(machine):
    machine.has(100)
    assert machine.available() == 102_400


def test_a_cgroup_leaves_less(machine):
    machine.has(100)
    machine.limits("", 5000, 2000)
    assert machine.available() == 3000


def test_a_cgroup_without_a_limit_says_nothing(machine):
    machine.has(1)
    machine.limits("", "max", 2000)
    assert machine.available() == 1024


def test_a_job_s_limit_lies_above_the_step_that_we_are(machine):
    machine.has(100)
    machine.belongs_to("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0")
    machine.limits("system.slice/slurmstepd.scope/job_7", 9000, 5000)
    machine.limits("system.slice/slurmstepd.scope/job_7/step_0/user/task_0", "max", 100)
    machine.limits("system.slice/slurmstepd.scope/job_8", 10, 10)
    assert machine.available() == 4000


def test_files_kept_in_memory_are_not_in_the_way(machine):
    machine.has(100)
    machine.limits("", 5000, 4900, cache=4000)
    assert machine.available() == 4100


def test_cgroup_version_1(machine):
    machine.has(1)
    machine.belongs_to("5:devices:/slurm/uid_1/job_7", "4:memory:/slurm/uid_1/job_7", "0::/")
    machine.limits_v1("slurm/uid_1/job_7", 700, 900, 300)
    assert machine.available() == 100
    machine.limits_v1("slurm/uid_1", 700, 1100, 300)
    assert machine.available() == 0


def test_a_group_that_can_t_be_seen_from_here_says_nothing(machine):
    machine.has(1)
    machine.belongs_to("0::/../../elsewhere")
    machine.limits("", 500, 100)
    assert machine.available() == 400


def test_nobody_says(machine):
    assert machine.available() is None


def test_this_machine_says_something():
    assert available_memory_bytes() > 0
