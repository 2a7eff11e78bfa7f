"""Where judge and runner spin."""

import pytest
import torch

from pike_hpc.evaluate.judge_cores import spin_cpus, split

pytestmark = pytest.mark.torch


def test_the_judge_has_a_physical_core_to_itself():
    cores = {cpu: (0, cpu // 2) for cpu in range(8)}
    assert split(range(8), cores) == ((0, 1), (2, 3, 4, 5, 6, 7))
    far = {cpu: (0, cpu % 4) for cpu in range(8)}
    assert split(range(8), far) == ((0, 4), (1, 2, 3, 5, 6, 7))


def test_too_few_cores_are_left_to_the_model():
    assert split(range(4), {cpu: (0, cpu // 2) for cpu in range(4)}) == ((), ())
    assert split(range(2), {}) == ((), ())
    assert split(range(3), {}) == ((0,), (1, 2))


def test_nobody_spins_where_the_model_runs_on_the_cpu():
    assert spin_cpus(torch.device("cpu")) == ((), ())
