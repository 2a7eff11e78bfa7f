"""Where judge and runner spin."""

import pytest
import torch

from pike_hpc.evaluate.judge_cores import spin_cpus, split

pytestmark = pytest.mark.torch


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
    assert spin_cpus(torch.device("cpu")) == ((), ())
