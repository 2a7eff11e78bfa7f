"""The judge's end of one runner: shared buffers, two pipes and a page, a clock around every call.

Everything that comes from the other side is hostile: the done pipe and the page yield one bounded
integer, the output buffer yields bytes that are copied once and then judged. Pipes, not eventfds:
the flag O_NONBLOCK of an eventfd belongs to both sides, so a candidate could make the judge block.
The input becomes readable after the clock starts and the output is taken before it stops: work
done early, late or elsewhere gains nothing (docs/evaluator.md).
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Sequence

import torch

from pike_hpc.evaluate.buffers import SharedBuffer, sealed_file
from pike_hpc.evaluate.built import NOTHING, Built, open_built
from pike_hpc.evaluate.judge_host import Ending, Host
from pike_hpc.evaluate.judge_memory import Memory, Place, Poison, cold_cache, make
from pike_hpc.evaluate.judge_shared import Shared
from pike_hpc.evaluate.runner import (
    BELL,
    CACHE_BYTES,
    CACHE_HEAD,
    DONE,
    NO_MEMORY,
    PAGE_BYTES,
    SHEET_BYTES,
    Code,
    Op,
    Page,
    Source,
    seal,
)

START_TIMEOUT_S = 120.0
"""Importing torch from a cold parallel file system takes this long at worst."""

_PEER = struct.Struct("3i")
"""struct ucred of unix(7): pid, uid, gid."""

SPINS, LOOK_S = 200, 0.002
"""Looks at the page between two at the clock (about 10 us); time between two at the lane."""

WAIT_S, SLACK_S = 0.5, 0.25
"""How long one wait for an answer lasts, and how much later than that it may be over. What is
beyond is time in which this process was stopped, and its runner too: nobody's."""


class RunnerFailed(Exception):
    """The runner did not do what it was asked."""

    def __init__(self, runner: int, kind: str, op: Op | None, code: Code | None = None) -> None:
        super().__init__(f"runner {runner}: {kind} {op!r} {code!r}")
        self.runner = runner
        self.kind = kind
        """code, gone, deadline or unasked."""
        self.op, self.code = op, code

    def lacked_memory(self, ending: Ending | None) -> bool:
        """Whether it said that memory was out, or ended with such words in its log."""
        if self.kind != "gone" or ending is None:
            return self.code is Code.OUT_OF_MEMORY
        return NO_MEMORY.search(ending.last_words) is not None


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
        self._page: Page | None = None
        self._room: SharedBuffer | None = None
        """For its compile cache. Read, not mapped: what was never written takes no memory so."""
        self.had_cache = False
        """Whether it was given what its compilers left in an earlier run."""
        self._ending: Ending | None = None
        self.number = host.spawn(role, address)

    def attach(self, shared: Shared, candidate: str | None, built: Built = NOTHING) -> None:
        """Share the buffers. Raises RunnerFailed, which is never the candidate's fault here.

        Args:
            shared: what every runner of the task is given.
            candidate: source of the program; None for the task's own model.
            built: what was compiled for it ahead, and in an earlier run.
        """
        self._input, self._output = (
            make(place, name, size, shared.device)
            for place, name, size in zip(
                (shared.place, shared.answers),
                ("inputs", "outputs"),
                shared.buffer_bytes,
                strict=True,
            )
        )
        self._buffers = [self._input, self._output]
        self._inputs = self._input.tensor.view(shared.places, -1)
        self._rows = self._output.tensor.view(shared.places, -1)
        self._sealed = shared.sealed
        self._poison = Poison(shared.frame.output_slots, self._rows)
        self._cool = cold_cache(shared.device)
        self._resets, self._spins = shared.resets, bool(shared.spin_cpus)
        self._device = shared.device
        self._inputs_on_device = shared.place is Place.DEVICE
        self._answers_on_device = shared.answers is Place.DEVICE
        self._left_s = START_TIMEOUT_S
        link = self._accept()
        bell_read, self._bell = os.pipe2(os.O_CLOEXEC)
        self._done, done_write = os.pipe2(os.O_CLOEXEC)
        self._pipes = [self._bell, self._done]
        os.set_blocking(self._bell, False)
        os.set_blocking(self._done, False)
        listed, made, self.had_cache = open_built(built)
        setup_file = sealed_file("setup", shared.setup(candidate, listed, cache=self.had_cache))
        self._sheet = SharedBuffer("profile", SHEET_BYTES)
        self._room = SharedBuffer("cache", CACHE_BYTES)
        page = SharedBuffer("page", PAGE_BYTES)
        self._bells = Page(page.fd)
        files = [*(b.fd for b in self._buffers), shared.weights.fd, shared.other_weights.fd]
        files += [self._sheet.fd, self._room.fd, *made]
        given = [bell_read, done_write, page.fd, setup_file, *files]
        try:
            socket.send_fds(link, [b"!"], given)
        except OSError:
            raise RunnerFailed(self.number, "gone", None) from None
        finally:
            link.close()
            self._listener.close()
            page.close()
            for fd in (bell_read, done_write, setup_file, *made):
                os.close(fd)
        self._waiting = select.poll()
        self._waiting.register(self._done, select.POLLIN)
        self._waiting.register(self._host, select.POLLIN)
        self._wait(None)

    def _accept(self) -> socket.socket:
        """The runner's connection. Raises RunnerFailed.

        Without a file system of its own a candidate reaches other runners' sockets, and could
        pass for a reference. The kernel says who connected; 0 is somebody in a container, who was
        shown no socket but one.
        """
        while True:
            self._await(self._listener.fileno(), None)
            link, _ = self._listener.accept()
            said = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            pid, _, _ = _PEER.unpack(said)
            # Asked in any case: whoever hides from the warden now is no candidate yet.
            if self._host.owns(self.number, pid) or pid == 0:
                return link
            link.close()

    def allow(self, seconds: float) -> None:
        """From now on the runner has this long, over all that it is asked.

        Only the time that the judge waits for it counts.
        """
        self._left_s = seconds

    def do(self, op: Op, *, source: Source = Source.STATE, seed: int = 0) -> float:
        """Have `op` done; the seconds it took. Raises RunnerFailed."""
        start = time.perf_counter_ns()
        self._ask(op, source, number=seed)
        return (time.perf_counter_ns() - start) / 1e9

    def watch(self) -> None:
        """From now on ring in the page, where there are cores to spare: both sides spin at it.

        Raises RunnerFailed.
        """
        if self._spins:
            self._ask(Op.WATCH)
            self._page = self._bells

    def rest(self) -> None:
        """Back to the pipes. Raises RunnerFailed."""
        if self._page is not None:
            self._ask(Op.REST)
            self._page = None

    def window(
        self, op: Op, inputs: torch.Tensor, answer: torch.Tensor, *, goes_on: bool = False
    ) -> float:
        """One call on `inputs`, its output bytes copied to `answer`; milliseconds.

        Args:
            op: CALL, or NULL for the protocol alone, or AGAIN.
            inputs: bytes for the input buffer, best where that lies (see `staged`).
            answer: room for the bytes of one call's outputs (see `space`).
            goes_on: whether what the call before left in the model stays.

        Raises:
            RunnerFailed: it did not answer.
        """
        return self.windows(op, (inputs,), answer.view(1, -1), goes_on=goes_on)

    def windows(
        self,
        op: Op,
        inputs: Sequence[torch.Tensor],
        answers: torch.Tensor,
        *,
        goes_on: bool = False,
    ) -> float:
        """Calls one after the other under one clock; milliseconds for each.

        Every input becomes readable when the answer to the one before has been taken. Sealed, all
        lie there from the start, under keys that are told one by one.

        Args:
            op: CALL, NULL or AGAIN.
            inputs: one for each call, at most `places`.
            answers: (calls, bytes): room for what is taken (see `spaces`).
            goes_on: whether what the calls before left in the model stays.

        Raises:
            RunnerFailed: it did not answer.
        """
        if self._resets and op is Op.CALL and not goes_on:
            self.do(Op.RESET)
        self._poison(len(inputs))
        self._cool()
        keys = self._lay_covered(inputs) if self._sealed else [0] * len(inputs)
        self._settle()
        if self._sealed:
            self._ask(Op.TOUCH)  # the GPU's turn to the runner happens here, not in the window
        start = time.perf_counter_ns()
        for place, key in enumerate(keys):
            if not self._sealed:
                self._lay(place, inputs[place])
                self._settle()
            self._ask(op, place=place, number=key)
            # Within the clock, and before the next key: what is not there yet will be missed.
            answers[place].copy_(self._rows[place])
            if self._answers_on_device:
                torch.cuda.synchronize()
        return (time.perf_counter_ns() - start) / 1e6 / len(inputs)

    def _lay_covered(self, inputs: Sequence[torch.Tensor]) -> list[int]:
        """Covered where nobody else can read: the runner sees its places all the time."""
        keys = [secrets.randbits(seal.KEY_BITS) for _ in inputs]
        for place, (packed, key) in enumerate(zip(inputs, keys, strict=True)):
            covered = torch.zeros_like(self._inputs[place])
            covered[: packed.numel()].copy_(packed)
            seal.cover(covered, key)
            self._inputs[place].copy_(covered)
        return keys

    def _lay(self, place: int, packed: torch.Tensor) -> None:
        self._inputs[place][: packed.numel()].copy_(packed)

    def profile(self, limit_s: float) -> bytes:
        """What the runner says of a few calls of its own: a sheet of hostile bytes, copied once.

        Afterwards it has at most what is left of `limit_s`.

        Raises:
            RunnerFailed: it did not say so in time.
        """
        self._left_s = min(self._left_s, limit_s)
        self.do(Op.PROFILE)
        return bytes(self._sheet.map)

    def compile_cache(self, limit_s: float) -> bytes:
        """What compilers left in its caches: hostile bytes, copied once; empty for nothing.

        The last thing to ask it, when its verdict is known.

        Raises:
            RunnerFailed: it did not say so within `limit_s`.
        """
        self._left_s = limit_s
        self.do(Op.KEEP)
        assert self._room is not None
        (size,) = CACHE_HEAD.unpack(os.pread(self._room.fd, CACHE_HEAD.size, 0))
        return os.pread(self._room.fd, min(size, CACHE_BYTES), CACHE_HEAD.size)

    def staged(self, inputs: torch.Tensor) -> torch.Tensor:
        """Input bytes where the input buffer lies, so that no window pays for the way there."""
        return inputs.to(self._input.tensor.device)

    def space(self) -> torch.Tensor:
        """Room for the bytes of one answer, where the judge computes."""
        return torch.full_like(self._rows[0], 1, device=self._device)

    def spaces(self, count: int) -> torch.Tensor:
        """Room for `count` answers where they lie, touched, so that no window pays for page faults.

        Returns: (count, bytes).
        """
        return torch.full_like(self._rows[:count], 1)

    def inputs_changed(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether the shared inputs are no longer what the last window put there."""
        staged = [self.staged(packed) for packed in inputs]
        return not all(
            torch.equal(self._inputs[place][: there.numel()], there)
            for place, there in enumerate(staged)
        )

    @property
    def has_ended(self) -> bool:
        """Whether its process is known to be no more."""
        return self._host.has_ended(self.number)

    @property
    def attached(self) -> bool:
        """Whether it may have run anything of its program."""
        return self._waiting is not None

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of one call's inputs and of its outputs."""
        return self._inputs.shape[1], self._rows.shape[1]

    @property
    def places(self) -> int:
        """Calls that one window may hold."""
        return self._rows.shape[0]

    def _settle(self) -> None:
        if self._inputs_on_device:
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
            if self._room is not None:
                self._room.map.close()
                self._room.close()
        return self._ending

    def _ask(self, op: Op, source: Source = Source.STATE, place: int = 0, number: int = 0) -> None:
        """Ring and wait for the answer. Raises RunnerFailed."""
        if self._page is not None:
            self._page.ring(op, place, number)
            code = self._spin(self._page, op)
        else:
            self._ring(BELL.pack(op, source, place, number), op)
            code = self._wait(op)
        if code != Code.OK:
            known = Code(code) if code in set(Code) else Code.RAISED
            raise RunnerFailed(self.number, "code", op, known)

    def _ring(self, message: bytes, op: Op) -> None:
        try:
            early = os.read(self._done, 64)
        except BlockingIOError:
            early = None
        if early is not None:
            raise RunnerFailed(self.number, "unasked" if early else "gone", op)
        try:
            os.write(self._bell, message)
        except BlockingIOError:
            raise RunnerFailed(self.number, "unasked", op) from None
        except BrokenPipeError:
            raise RunnerFailed(self.number, "gone", op) from None

    def _wait(self, op: Op | None) -> int:
        self._await(self._done, op)
        answer = os.read(self._done, 64)
        if not answer:
            raise RunnerFailed(self.number, "gone", op)
        if len(answer) != DONE.size:
            raise RunnerFailed(self.number, "unasked", op)
        return answer[0]

    def _spin(self, page: Page, op: Op) -> int:
        """What answers a ring in the page. Raises RunnerFailed."""
        start = looked = time.monotonic()
        while True:
            for _ in range(SPINS):
                answer = page.answered()
                if answer is not None:
                    self._left_s -= time.monotonic() - start
                    return answer
            now = time.monotonic()
            if now - start > self._left_s:
                raise RunnerFailed(self.number, "deadline", op)
            if now - looked > LOOK_S:
                looked = now
                if select.select([self._host], [], [], 0)[0]:
                    self._host.pump()
                if self._host.has_ended(self.number) and page.answered() is None:
                    raise RunnerFailed(self.number, "gone", op)

    def _await(self, fd: int, op: Op | None) -> None:
        """Until `fd` can be read. Raises RunnerFailed."""
        waiting = self._waiting
        if waiting is None:
            waiting = select.poll()
            waiting.register(fd, select.POLLIN)
            waiting.register(self._host, select.POLLIN)
        while True:
            if self._left_s <= 0:
                raise RunnerFailed(self.number, "deadline", op)
            wait_s = min(self._left_s, WAIT_S)
            start = time.monotonic()
            ready = {number for number, _ in waiting.poll(wait_s * 1e3)}
            self._left_s -= min(time.monotonic() - start, wait_s + SLACK_S)
            if fd in ready:
                return
            if self._host.fileno() in ready:
                self._host.pump()
            if self._host.has_ended(self.number) and not select.select([fd], [], [], 0)[0]:
                raise RunnerFailed(self.number, "gone", op)
