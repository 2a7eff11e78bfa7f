"""What may still be taken: the machine's word, or the cgroup's where that is less."""

from pike_hpc.machine import available_memory_bytes


def meminfo(tmp_path, kib):
    path = tmp_path / "meminfo"
    path.write_text(f"MemTotal:  99999 kB\nMemFree: 1 kB\nMemAvailable:  {kib} kB\n")
    return path


def test_the_machine_says_what_is_available(tmp_path):
    assert available_memory_bytes(meminfo(tmp_path, 100), tmp_path / "none") == 102_400


def test_a_cgroup_leaves_less(tmp_path):
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert available_memory_bytes(meminfo(tmp_path, 100), tmp_path) == 3000


def test_a_cgroup_without_a_limit_says_nothing(tmp_path):
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert available_memory_bytes(meminfo(tmp_path, 1), tmp_path) == 1024


def test_cgroup_version_1(tmp_path):
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("700")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("900")
    assert available_memory_bytes(meminfo(tmp_path, 1), tmp_path) == 0


def test_nobody_says(tmp_path):
    assert available_memory_bytes(tmp_path / "none", tmp_path) is None
