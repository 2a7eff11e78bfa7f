"""The judge's own context on a GPU."""

import pytest

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.judge_context import STACK_BYTES, make_context  # noqa: E402 - torch
from pike_hpc.evaluate.runner.simulated_driver import SimulatedDriver  # noqa: E402 - torch

pytestmark = pytest.mark.torch


def test_the_context_that_torch_will_use_has_small_stacks_and_is_kept():
    machine = SimulatedDriver(devices=2)
    make_context(torch.device("cuda", 1), driver=machine.driver())
    assert machine.contexts == {1: 1}
    assert list(machine.stack_bytes.values()) == [STACK_BYTES]
    assert machine.driver().current() == 0, "torch makes it current where it wants it"


@pytest.mark.parametrize("call", ["cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetLimit"])
def test_a_driver_that_refuses_costs_nothing_but_memory(call):
    machine = SimulatedDriver(fails={call: 801})
    make_context(torch.device("cuda"), driver=machine.driver())
    assert machine.stack_bytes == {}


def test_a_cpu_has_none():
    machine = SimulatedDriver()
    make_context(torch.device("cpu"), driver=machine.driver())
    assert machine.contexts == {}
