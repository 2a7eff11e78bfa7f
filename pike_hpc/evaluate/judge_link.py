"""The judge's end of one runner: shared buffers, two pipes, a clock around every call.

Everything that comes from the other side is hostile: the done pipe yields one bounded integer,
the output buffer yields bytes that are copied once and then judged. Pipes, not eventfds: the flag
O_NONBLOCK of an eventfd belongs to both sides, so a candidate could make the judge block. The
input becomes visible after the clock starts and the output is taken before it stops, so work done
early, late or elsewhere gains nothing (docs/evaluator.md).
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from dataclasses import dataclass
from typing import Any

import torch

from pike_hpc.evaluate.buffers import SharedBuffer, sealed_file
from pike_hpc.evaluate.judge_host import Ending, Host
from pike_hpc.evaluate.judge_memory import Memory, Place, make, poison
from pike_hpc.evaluate.layout import Slot, buffer_bytes
from pike_hpc.evaluate.runner import BELL, Code, Op, Source

START_TIMEOUT_S = 120.0
"""Importing torch from a cold parallel file system takes this long at worst."""


class RunnerFailed(Exception):
    """The runner did not do what it was asked."""

    def __init__(self, runner: int, kind: str, op: Op | None, code: Code | None = None) -> None:
        super().__init__(f"runner {runner}: {kind} {op!r} {code!r}")
        self.runner = runner
        self.kind = kind
        """code, gone, deadline or unasked."""
        self.op, self.code = op, code


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What judge and runner agree on: trees and slots."""

    input_tree: Any
    input_slots: tuple[Slot, ...]
    output_tree: Any
    output_slots: tuple[Slot, ...]
    weight_slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What a runner is given to start from, beside its own buffers."""

    frame: Frame
    device: torch.device
    place: Place
    """Where inputs and outputs lie."""
    construct: str
    """Where constructors make their tensors: the device for large models, else the CPU."""
    resets: bool
    """Whether a call is preceded by putting back what the last one left in the model."""
    threads: int
    task: str
    weights: SharedBuffer
    other_weights: SharedBuffer

    def setup(self, candidate: str | None) -> bytes:
        """The JSON a runner reads. `candidate` is the program's source, None for the task's."""
        text = json.dumps(
            {
                "device": self.device.type,
                "memory": self.place,
                "construct": self.construct,
                "resets": self.resets,
                "threads": self.threads,
                "task": self.task,
                "candidate": candidate,
                "input_tree": self.frame.input_tree,
                "output_tree": self.frame.output_tree,
                "input_slots": [s.as_json() for s in self.frame.input_slots],
                "output_slots": [s.as_json() for s in self.frame.output_slots],
                "weight_slots": [s.as_json() for s in self.frame.weight_slots],
            }
        )
        return text.encode("ascii")


class RunnerLink:
    """One runner process, from its start to its end."""

    def __init__(self, host: Host, role: str) -> None:
        """Start the process; it imports torch while the caller goes on."""
        self._host = host
        self._place = host.place()
        address = self._place / "s"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(address))
        address.chmod(0o666)
        self._listener.listen(1)
        self._buffers: list[Memory] = []
        self._pipes: list[int] = []
        self._waiting: select.poll | None = None
        self._ending: Ending | None = None
        self.number = host.spawn(role, address)

    def attach(self, shared: Shared, candidate: str | None) -> None:
        """Share the buffers. Raises RunnerFailed, which is never the candidate's fault here.

        Args:
            shared: what every runner of the task is given.
            candidate: source of the program; None for the task's own model.
        """
        frame = shared.frame
        self._input, self._output = (
            make(shared.place, name, buffer_bytes(slots), shared.device)
            for name, slots in (("inputs", frame.input_slots), ("outputs", frame.output_slots))
        )
        self._buffers = [self._input, self._output]
        self._slots, self._resets = frame.output_slots, shared.resets
        self._on_device = shared.place is Place.DEVICE
        self._left_s = START_TIMEOUT_S
        self._await(self._listener.fileno(), None)
        link, _ = self._listener.accept()
        bell_read, self._bell = os.pipe2(os.O_CLOEXEC)
        self._done, done_write = os.pipe2(os.O_CLOEXEC)
        self._pipes = [self._bell, self._done]
        os.set_blocking(self._bell, False)
        os.set_blocking(self._done, False)
        setup_file = sealed_file("setup", shared.setup(candidate))
        files = [*(b.fd for b in self._buffers), shared.weights.fd, shared.other_weights.fd]
        given = [bell_read, done_write, setup_file, *files]
        try:
            socket.send_fds(link, [b"!"], given)
        except OSError:
            raise RunnerFailed(self.number, "gone", None) from None
        finally:
            link.close()
            self._listener.close()
            for fd in (bell_read, done_write, setup_file):
                os.close(fd)
        self._waiting = select.poll()
        self._waiting.register(self._done, select.POLLIN)
        self._waiting.register(self._host, select.POLLIN)
        self._wait(None)

    def allow(self, seconds: float) -> None:
        """From now on the runner has this long, over all that it is asked.

        Only the time that the judge waits for it counts.
        """
        self._left_s = seconds

    def do(self, op: Op, *, source: Source = Source.STATE, seed: int = 0) -> float:
        """Have `op` done; the seconds it took. Raises RunnerFailed."""
        start = time.perf_counter_ns()
        self._ring(op, source, seed)
        self._wait(op)
        return (time.perf_counter_ns() - start) / 1e9

    def window(self, op: Op, inputs: torch.Tensor, answer: torch.Tensor) -> float:
        """One call on `inputs`, its output bytes copied to `answer`; milliseconds.

        Args:
            op: CALL, or NULL for the protocol alone, or AGAIN.
            inputs: bytes for the input buffer, best where that lies (see `staged`).
            answer: room for the bytes of the output buffer, likewise.

        Raises:
            RunnerFailed: it did not answer.
        """
        if self._resets and op is Op.CALL:
            self.do(Op.RESET)
        poison(self._slots, self._output.tensor)
        self._settle()
        start = time.perf_counter_ns()
        self._input.tensor.copy_(inputs)
        self._settle()
        self._ring(op, Source.STATE, 0)
        self._wait(op)
        answer.copy_(self._output.tensor)
        self._settle()
        return (time.perf_counter_ns() - start) / 1e6

    def staged(self, inputs: torch.Tensor) -> torch.Tensor:
        """Input bytes where the input buffer lies, so that no window pays for the way there."""
        return inputs.to(self._input.tensor.device)

    def space(self) -> torch.Tensor:
        """Room for the bytes of one answer, touched, so that no window pays for page faults."""
        return torch.full_like(self._output.tensor, 1)

    def inputs_changed(self, inputs: torch.Tensor) -> bool:
        """Whether the shared input is no longer what the last window put there."""
        return not torch.equal(self._input.tensor, self.staged(inputs))

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of the input and of the output buffer."""
        return self._input.tensor.numel(), self._output.tensor.numel()

    def _settle(self) -> None:
        if self._on_device:
            torch.cuda.synchronize()

    def cpu_s(self) -> float:
        """CPU seconds of the runner and everything below it."""
        return self._host.cpu_s(self.number)

    def stop(self) -> bool:
        """Stop the runner and everything below it; False where something would not rest."""
        return self._host.stop(self.number)

    def go(self) -> bool:
        """Let it go on after `stop`; False where it ran all the same."""
        return self._host.go(self.number)

    def end(self, grace_s: float = 0.0) -> Ending:
        """Kill it and all below, and let go of what was shared. Can be called again.

        Args:
            grace_s: how long it may take to end by itself, where its own status matters.
        """
        if self._ending is None:
            self._ending = self._host.kill(self.number, grace_s)
            self._listener.close()
            for fd in self._pipes:
                os.close(fd)
            for buffer in self._buffers:
                buffer.close()
        return self._ending

    def _ring(self, op: Op, source: Source, seed: int) -> None:
        try:
            early = os.read(self._done, 64)
        except BlockingIOError:
            early = None
        if early is not None:
            raise RunnerFailed(self.number, "unasked" if early else "gone", op)
        try:
            os.write(self._bell, BELL.pack(op, source, seed))
        except BlockingIOError:
            raise RunnerFailed(self.number, "unasked", op) from None
        except BrokenPipeError:
            raise RunnerFailed(self.number, "gone", op) from None

    def _wait(self, op: Op | None) -> None:
        self._await(self._done, op)
        answer = os.read(self._done, 64)
        if not answer:
            raise RunnerFailed(self.number, "gone", op)
        code = answer[-1]
        if code != Code.OK:
            known = Code(code) if code in set(Code) else Code.RAISED
            raise RunnerFailed(self.number, "code", op, known)

    def _await(self, fd: int, op: Op | None) -> None:
        """Until `fd` can be read. Raises RunnerFailed."""
        waiting = self._waiting
        if waiting is None:
            waiting = select.poll()
            waiting.register(fd, select.POLLIN)
            waiting.register(self._host, select.POLLIN)
        start = time.monotonic()
        while True:
            left = self._left_s - (time.monotonic() - start)
            if left <= 0:
                raise RunnerFailed(self.number, "deadline", op)
            ready = {number for number, _ in waiting.poll(min(left, 60.0) * 1e3)}
            if fd in ready:
                self._left_s -= time.monotonic() - start
                return
            if self._host.fileno() in ready:
                self._host.pump()
            if self._host.has_ended(self.number) and not select.select([fd], [], [], 0)[0]:
                raise RunnerFailed(self.number, "gone", op)
