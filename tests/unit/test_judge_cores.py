"""Where judge and runner spin."""

from pike_hpc.evaluate.judge_cores import beside, spin_cpus, split


def test_judge_and_runner_share_no_physical_core():
    cores = {cpu: (0, cpu // 2) for cpu in range(8)}
    assert split(range(8), cores) == ((0,), (4,))
    far = {cpu: (0, cpu % 4) for cpu in range(8)}
    assert split(range(8), far) == ((0,), (2,))


def test_where_cores_are_hidden_neighbours_are_left_out():
    assert split(range(16), {cpu: (0, cpu) for cpu in range(16)}) == ((0,), (2,))
    assert split({4, 5, 6, 7}, {}) == ((4,), (6,))


def test_too_few_cores_are_left_to_the_model():
    assert split(range(4), {cpu: (0, cpu // 2) for cpu in range(4)}) == ((), ())
    assert split(range(2), {}) == ((), ())


def test_nobody_spins_where_the_model_runs_on_the_cpu():
    assert spin_cpus("cpu") == ((), ())


def test_builds_share_no_core_with_what_is_timed():
    pairs = {cpu: (0, cpu // 2) for cpu in range(8)}
    assert beside(range(8), pairs) == {2, 3, 6, 7}


def test_cores_that_seem_single_may_be_halves_of_one():
    assert beside(range(16), {}) == set(range(4, 16))
    assert beside({4, 5, 6}, {}) == set()


def test_where_nobody_spins_builds_run_anywhere():
    assert beside(range(2), {}) == {0, 1}
