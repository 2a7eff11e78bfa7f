"""Where judge and runner spin."""

import pytest

from pike_hpc.evaluate.judge_cores import for_builds, spin_cpus, split


def test_judge_and_runner_share_no_physical_core():
    cores = {cpu: (0, cpu // 2) for cpu in range(8)}
    assert split(range(8), cores) == ((0,), (2,))
    far = {cpu: (0, cpu % 4) for cpu in range(8)}
    assert split(range(8), far) == ((0,), (1,))


def test_where_cores_are_hidden_neighbours_are_left_out():
    assert split(range(16), {cpu: (0, cpu) for cpu in range(16)}) == ((0,), (2,))
    assert split({4, 5, 6, 7}, {}) == ((4,), (6,))
    assert split({5, 6, 7, 8}, {}) == ((5,), (6,))


def test_too_few_cores_are_left_to_the_model():
    assert split(range(4), {cpu: (0, cpu // 2) for cpu in range(4)}) == ((), ())
    assert split(range(2), {}) == ((), ())


def test_nobody_spins_where_the_model_runs_on_the_cpu():
    assert spin_cpus("cpu") == ((), ())


def test_builds_share_no_core_with_what_is_timed():
    pairs = {cpu: (0, cpu // 2) for cpu in range(8)}
    assert for_builds([range(8)], pairs) == {4, 5, 6, 7}


def test_nor_with_what_is_timed_on_another_gpu():
    pairs = {cpu: (0, cpu % 8) for cpu in range(16)}
    shares = [{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}]
    assert for_builds(shares, pairs) == {2, 3, 10, 11, 6, 7, 14, 15}


def test_cores_that_seem_single_may_be_halves_of_one():
    assert for_builds([range(16)], {}) == set(range(4, 16))
    assert for_builds([range(16)], {cpu: (0, cpu) for cpu in range(16)}) == set(range(4, 16))


def test_one_that_two_shares_divide_is_left_alone_by_both():
    """CPU 10 is half of the core that the third share's judge spins on."""
    shares = [{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10}, {11, 12, 13, 14, 15}]
    assert [split(share, {}) for share in shares] == [((0,), (2,)), ((6,), (8,)), ((11,), (12,))]
    assert for_builds(shares, {}) == {4, 5, 14, 15}


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_where_too_few_are_left_builds_run_anywhere(count):
    assert for_builds([range(count)], {}) == set(range(count))
    assert for_builds([range(6)], {}) == {4, 5}
