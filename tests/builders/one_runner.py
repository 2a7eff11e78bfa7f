"""A runner in the process of the test, at no doorbell: quick, and only for our own programs."""

import json
import os
from collections.abc import Sequence

import torch

from pike_hpc.evaluate.buffers import SharedBuffer
from pike_hpc.evaluate.judge_memory import HostMemory, Place, views
from pike_hpc.evaluate.judge_secrets import Secrets
from pike_hpc.evaluate.judge_shared import Shared
from pike_hpc.evaluate.judge_truth import Truth, WeightsBy
from pike_hpc.evaluate.layout import buffer_bytes
from pike_hpc.evaluate.runner import CACHE_BYTES, SHEET_BYTES, Code, Op, Source, seal
from pike_hpc.evaluate.runner.serve import Runner, perform
from pike_hpc.records import Task
from pike_hpc.tasks.load import build

CPU = torch.device("cpu")
EXAM = 7
"""Seed of the input that is asked."""
KEY = 5
"""Of what covers it, where it is sealed."""


_TRUTHS: dict[str, Truth] = {}


def truth_of(task: Task) -> Truth:
    """Of its judging weights; made once."""
    if task.digest not in _TRUTHS:
        _TRUTHS[task.digest] = Truth(build(task), WeightsBy.STATE, CPU, Secrets(b"tests"))
    return _TRUTHS[task.digest]


class OneRunner:
    """A candidate's runner, and what the judge knows of its task."""

    def __init__(
        self,
        task: Task,
        source: str,
        *,
        resets: bool = False,
        sealed: bool = False,
        kind: type[Runner] = Runner,
    ) -> None:
        self.truth = truth_of(task)
        # Ahead: a program may change what torch makes by default.
        self._asked, self._right = self.truth.pack(EXAM), self.truth.answers(EXAM)
        frame = self.truth.frame
        self._inputs = HostMemory("inputs", buffer_bytes(frame.input_slots))
        self._outputs = HostMemory("outputs", buffer_bytes(frame.output_slots))
        self._sheet = os.memfd_create("sheet")
        os.ftruncate(self._sheet, SHEET_BYTES)
        shared = Shared(
            frame=frame,
            device=CPU,
            place=Place.HOST,
            answers=Place.HOST,
            construct="cpu",
            sealed=sealed,
            places=1,
            resets=resets,
            threads=torch.get_num_threads(),
            spin_cpus=(),
            task=task.source,
            weights=self.truth.weights.buffer,
            other_weights=self.truth.probe.weights.buffer,
        )
        setup = json.loads(shared.setup(source, [], cache=False))
        setup["buffer_bytes"] = [self._inputs.tensor.numel(), self._outputs.tensor.numel()]
        memory = self._inputs.fd, self._outputs.fd, shared.weights.fd, shared.other_weights.fd
        self._room = SharedBuffer("cache", CACHE_BYTES)
        self._sealed = sealed
        self.runner = kind(setup, [*memory, self._sheet, self._room.fd])

    def do(self, op: Op, source: Source = Source.STATE, number: int = 0) -> Code:
        return perform(self.runner, op, source, 0, number)

    def load(self) -> Code:
        """Import and construct with the judging weights."""
        seed = self.truth.weights.constructor_seed
        code = self.do(Op.IMPORT)
        return code if code is not Code.OK else self.do(Op.LOAD, Source.STATE, seed)

    def call(self, op: Op = Op.CALL) -> Code:
        self._inputs.tensor[:] = self._asked
        if self._sealed:
            seal.cover(self._inputs.tensor, KEY)
        self._outputs.tensor.fill_(0xFF)
        return self.do(op, number=KEY)

    def error(self) -> float:
        """The largest difference of its answer from the truth."""
        code = self.call()
        assert code is Code.OK, code.name
        return self._furthest(self._right)

    def follows(self, near: float = 1e-4) -> bool:
        """Whether its living model takes the probe's weights and answers as these say."""
        if self.do(Op.RELOAD, Source.OTHER) is not Code.OK:
            return False
        self._inputs.tensor[:] = self.truth.probe.packed
        self._outputs.tensor.fill_(0xFF)
        return self.do(Op.CALL) is Code.OK and self._furthest(self.truth.probe.truth) < near

    def _furthest(self, truth: Sequence[torch.Tensor]) -> float:
        found = views(self.truth.frame.output_slots, self._outputs.tensor)
        return max(float((a - b).abs().max()) for a, b in zip(found, truth, strict=True))

    def close(self) -> None:
        self._inputs.close()
        self._outputs.close()
        os.close(self._sheet)
        self._room.close()
