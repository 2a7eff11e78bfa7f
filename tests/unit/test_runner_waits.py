"""When a runner waits for its device, in a call and in the constant that is taken off it."""

import tempfile

import pytest

torch = pytest.importorskip("torch")

from builders.one_runner import OneRunner  # noqa: E402
from builders.tiny_task import TASK, TASK_SOURCE  # noqa: E402

from pike_hpc.evaluate.runner import Code, Op  # noqa: E402
from pike_hpc.evaluate.runner.serve import Runner  # noqa: E402

pytestmark = pytest.mark.torch


class Watched(Runner):
    """Keeps in which order it did what."""

    def __init__(self, *given):
        self.seen = []
        super().__init__(*given)

    def _copy_in(self, place, key):
        self.seen.append("input")
        super()._copy_in(place, key)

    def _forward(self):
        self.seen.append("model")
        return super()._forward()

    def _copy_out(self, leaves, place):
        self.seen.append("output")
        super()._copy_out(leaves, place)

    def _settle(self):
        self.seen.append("wait")
        super()._settle()


def test_the_constant_waits_as_often_as_a_call_and_a_call_not_before_its_model(
    tmp_path, monkeypatch
):
    """docs/adr/0021: what hides in the model's time must not be taken off it as well."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = TASK_SOURCE + "\n\nclass ModelNew(Model):\n    pass\n"
    one = OneRunner(TASK, source, sealed=True, kind=Watched)
    assert one.load() is Code.OK
    orders = []
    for op in (Op.CALL, Op.NULL):
        one.runner.seen.clear()
        assert one.call(op) is Code.OK
        orders.append(one.runner.seen.copy())
    assert orders[0] == ["input", "model", "wait", "output", "wait"]
    assert orders[1] == ["input", "wait", "output", "wait"]
    assert one.error() < 1e-4
    one.close()
