"""CPUs are divided among lanes so that none times on another's core."""

from hypothesis import given
from hypothesis import strategies as st

from pike_hpc.machine import divide_cpus, physical_cores


def test_the_threads_of_a_core_stay_together():
    cores = {cpu: (0, cpu % 4) for cpu in range(8)}  # as Linux numbers hyper-threads
    assert divide_cpus(range(8), 2, cores) == ({0, 1, 4, 5}, {2, 3, 6, 7})
    assert divide_cpus(range(8), 4, cores) == ({0, 4}, {1, 5}, {2, 6}, {3, 7})
    assert divide_cpus(range(8), 1, cores) == (set(range(8)),)


def test_the_cores_of_a_part_are_of_one_socket_where_they_can_be():
    cores = {cpu: (cpu % 2, cpu // 2) for cpu in range(8)}
    assert divide_cpus(range(8), 2, cores) == ({0, 2, 4, 6}, {1, 3, 5, 7})


def test_threads_are_divided_before_cpus_are_shared():
    cores = {cpu: (0, cpu // 2) for cpu in range(4)}
    assert divide_cpus(range(4), 4, cores) == ({0}, {1}, {2}, {3})
    assert divide_cpus([7, 9], 4, {}) == ({7}, {9}, {7}, {9})


@given(st.sets(st.integers(0, 300), min_size=1), st.integers(1, 16), st.integers(1, 4))
def test_nothing_is_left_out_and_nothing_given_twice(cpus, parts, threads):
    shares = divide_cpus(cpus, parts, {cpu: (0, cpu // threads) for cpu in cpus})
    assert len(shares) == parts
    assert set().union(*shares) == cpus
    assert all(shares)
    if len(cpus) >= parts:
        assert sum(map(len, shares)) == len(cpus)
        assert max(map(len, shares)) - min(map(len, shares)) <= 2 * threads


def test_the_kernel_is_asked_for_cores(tmp_path):
    for cpu, (package, core) in {0: ("0", "3"), 5: ("1", "3"), 6: ("x", "3")}.items():
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{package}\n")
        (folder / "core_id").write_text(f"{core}\n")
    assert physical_cores([0, 5, 6, 7], tmp_path) == {0: (0, 3), 5: (1, 3)}
