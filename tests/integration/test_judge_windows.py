"""Windows of several calls, rung in the page, with a real runner: how short models are timed."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pike_hpc.evaluate.alone import START
from pike_hpc.evaluate.buffers import SharedBuffer
from pike_hpc.evaluate.judge_host import Ending
from pike_hpc.evaluate.judge_link import RunnerFailed, RunnerLink
from pike_hpc.evaluate.judge_memory import Place, views
from pike_hpc.evaluate.judge_shared import (
    MAX_PLACES,
    SMALL_BYTES,
    Frame,
    Shared,
    answers_in,
    places_for,
)
from pike_hpc.evaluate.layout import ALIGNMENT, lay_out
from pike_hpc.evaluate.runner import Op
from pike_hpc.evaluate.wire import RunnerRole

pytestmark = [pytest.mark.timed, pytest.mark.torch, pytest.mark.slow]

RUNNER = Path(sys.modules["pike_hpc.evaluate.runner"].__file__).parent
PLACES = 5
HEAD = """
import os, sys, threading, time
import torch
class Model(torch.nn.Module):
    calls = 0
    def forward(self, x):
        type(self).calls += 1
        return self.of(x)
    def of(self, x):
        return 2 * x
"""
TAIL = """
def get_init_inputs():
    return []
"""


class PlainHost:
    """Starts runners as plain processes: what the lane does, without a sandbox."""

    def __init__(self, folder):
        self._folder, self._runners, self.dead = folder, [], set()
        self._quiet = os.pipe()

    def fileno(self):
        for number, runner in enumerate(self._runners):
            if runner.poll() is not None:
                self.dead.add(number)
        return self._quiet[0]

    def pump(self):
        raise AssertionError("nothing is ever said here")

    def place(self):
        place = self._folder / f"r{len(self._runners)}"
        place.mkdir()
        return place

    def spawn(self, role, address):
        argv = [sys.executable, "-I", "-B", "-u", "-c", START]
        argv += [str(RUNNER), str(address), "cpu"]
        environ = os.environ | {"TMPDIR": str(self._folder)}
        self._runners.append(subprocess.Popen(argv, cwd=self._folder, env=environ))
        return len(self._runners) - 1

    def owns(self, number, pid):
        return self._runners[number].pid == pid

    def has_ended(self, number):
        return number in self.dead

    def kill(self, number, grace_s):
        self._runners[number].kill()
        return Ending(status=self._runners[number].wait(), tail="")

    def close(self):
        for end in self._quiet:
            os.close(end)


@pytest.fixture
def start(tmp_path):
    slots = lay_out([("x", "float32", (3,))])
    frame = Frame(
        input_tree=["tuple", [["tensor", 0]]],
        input_slots=slots,
        output_tree=["tensor", 0],
        output_slots=slots,
        weight_slots=(),
        parameters=(),
        layers=(),
        on_host=(),
    )
    host = PlainHost(tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(host.close)

        def start(body, meanwhile=lambda address: None):
            link = RunnerLink(host, RunnerRole.WIDE)
            stack.callback(link.end)
            meanwhile(str(tmp_path / "r0/s"))
            shared = Shared(
                frame=frame,
                device=torch.device("cpu"),
                place=Place.HOST,
                answers=Place.HOST,
                construct="cpu",
                sealed=True,
                places=PLACES,
                resets=False,
                threads=1,
                spin_cpus=tuple(os.sched_getaffinity(0)),
                task=HEAD + TAIL,
                weights=SharedBuffer("weights", ALIGNMENT),
                other_weights=SharedBuffer("other", ALIGNMENT),
            )
            link.attach(shared, HEAD + body)
            link.allow(60.0)
            link.do(Op.IMPORT)
            link.do(Op.LOAD)
            link.watch()
            return link

        yield start


def run(link, op=Op.CALL, count=PLACES, *, unchanged=True):
    slots = lay_out([("x", "float32", (3,))])
    size = link.sizes[0]
    inputs = [torch.zeros(size, dtype=torch.uint8) for _ in range(count)]
    for i, packed in enumerate(inputs):
        views(slots, packed)[0].fill_(i + 1.0)
    answers = link.spaces(count)
    latency_ms = link.windows(op, inputs, answers)
    assert not link.inputs_changed(inputs) or not unchanged
    return latency_ms, [views(slots, row)[0][0].item() for row in answers]


REMEMBERS = """
import weakref
before = []
class ModelNew(Model):
    def __init__(self):
        super().__init__()
        self.register_buffer("room", torch.zeros(COUNT, dtype=torch.uint8), persistent=False)
        self.beside = sum(old() is not None for old in before)
        before.append(weakref.ref(self))
    def of(self, x):
        return x + 100 * self.beside
"""


@pytest.mark.parametrize(("size", "beside"), [(1 << 10, 1), ((1 << 28) + 1, 0)])
def test_a_small_model_lives_until_the_next_one_is_built(start, size, beside):
    """What it remembers by where its weights lie must not be met by others."""
    link = start(REMEMBERS.replace("COUNT", str(size)))
    link.rest()
    for _ in range(3):
        link.do(Op.LOAD)
    link.watch()
    assert run(link, count=1)[1] == [1.0 + 100 * beside]


def test_every_call_has_its_own_input_and_place(start):
    link = start("")
    latency_ms, answers = run(link)
    assert answers == [2.0, 4.0, 6.0, 8.0, 10.0]
    assert 0 < latency_ms < 1000
    assert run(link, Op.NULL)[1] == [10.0] * PLACES, "the null call gives the last answer again"
    assert run(link, count=2)[1] == [2.0, 4.0]


@pytest.mark.parametrize("stays", [True, False])
def test_whoever_connects_in_a_runners_place_is_not_taken_for_it(start, stays):
    """Without a file system of its own a candidate reaches the sockets of others, and may die."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as impostor:

        def connect(address):
            impostor.connect(address)
            if not stays:
                impostor.close()

        assert run(start("", connect))[1] == [2.0, 4.0, 6.0, 8.0, 10.0]
        if stays:
            _, given, _, _ = socket.recv_fds(impostor, 1, 16)
            assert given == []


SPY = """
    def of(self, x):
        import gc
        if Model.calls == 1:
            rows = next(o for o in gc.get_objects() if type(o).__name__ == "Runner")._rows
            self.seen = [row[:12].view(torch.float32)[0].item() for row in rows[1:]]
        if Model.calls == 5:
            return torch.full_like(x, float(any(2.0 <= s <= 5.0 for s in self.seen)))
        return 2 * x
"""


def test_inputs_that_lie_there_can_not_be_read_before_their_turn(start):
    _, answers = run(start(SPY))
    assert answers == [2.0, 4.0, 6.0, 8.0, 0.0]


class Peeks(TorchDispatchMode):
    """Reads what a runner can read, after each operation of the judge's."""

    def __init__(self):
        super().__init__()
        self._files = [f for f in Path("/proc/self/fd").iterdir() if "memfd:inputs" in target(f)]
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        done = function(*args, **kwargs or {})
        self.seen.append(b"".join(file.read_bytes() for file in self._files))
        return done


def target(descriptor):
    """What a descriptor of ours is of; empty where it is gone."""
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:
        return ""


LEAVES_THE_PAD = """
    def of(self, x):
        sys.modules["pike_runner"].serve.Runner._copy_in = lambda *place_and_key: None
        return x
"""


def test_no_input_lies_there_plain_for_a_moment(start):
    """A runner that looks all the time would know it before the clock starts."""
    link = start(LEAVES_THE_PAD)
    run(link, unchanged=False)
    plain = [torch.full((link.sizes[0],), i + 1, dtype=torch.uint8) for i in range(PLACES)]
    with Peeks() as peeks:
        link.windows(Op.CALL, plain, link.spaces(PLACES))
    assert len(peeks.seen) > 2 * PLACES
    for packed in plain:
        assert not any(bytes(packed[:16]) in seen for seen in peeks.seen)


def test_the_page_gives_way_to_the_pipe_and_back(start):
    link = start("")
    link.rest()
    assert run(link)[1] == [2.0, 4.0, 6.0, 8.0, 10.0]
    link.watch()
    assert run(link)[1] == [2.0, 4.0, 6.0, 8.0, 10.0]


LATE = """
    def of(self, x):
        if Model.calls == 1:
            shim = sys.modules["pike_runner"].serve.Runner
            honest = shim._copy_out
            def copy_later(runner, leaves, place):
                if GUESS:
                    honest(runner, [torch.zeros_like(leaf) for leaf in leaves], place)
                kept = [leaf.clone() for leaf in leaves]
                later = lambda: (time.sleep(0.5), honest(runner, kept, place))
                threading.Thread(target=later).start()
            shim._copy_out = copy_later
        return 2 * x
"""
"""Later by what a judge that has to wait for a core never takes to look."""


@pytest.mark.parametrize("guess", [False, True])
def test_an_answer_that_comes_after_it_was_said_to_be_there_is_not_taken(start, guess):
    """In the next call's time, or when the clock has stopped."""
    _, answers = run(start(LATE.replace("GUESS", str(guess))))
    assert not set(answers) & {2.0, 4.0, 6.0, 8.0, 10.0}


BATCH = """
    keys, rows, answers = [], [], []
    def of(self, x):
        if Model.calls == 1:
            shim = sys.modules["pike_runner"].serve.Runner
            uncover = shim._copy_in
            def copy_in(runner, place, key):
                uncover(runner, place, key)
                Model.rows.append(runner._rows[place][:12].view(torch.float32))
            def copy_out(runner, leaves, place):
                Model.answers.append(runner._outputs[place][0])
                if place == 4:
                    for answer, row in zip(Model.answers, 2 * torch.stack(Model.rows)):
                        answer.copy_(row)
            Model.rows.append(x)
            shim._copy_in, shim._copy_out = copy_in, copy_out
        return x
"""


def test_all_calls_of_a_window_done_in_the_last_one_leaves_all_others_without_an_answer(start):
    """Done is said at once to be told all keys; one batch in the end answers everything."""
    _, answers = run(start(BATCH))
    assert answers[4] == 10.0, "the program works, and only its last answer is in time"
    assert not set(answers[:4]) & {2.0, 4.0, 6.0, 8.0}


AHEAD = """
    def of(self, x):
        if Model.calls == 1:
            import gc
            page = next(o for o in gc.get_objects() if type(o).__name__ == "Page")
            honest = page.answer
            def answer_all(code):
                for rung in range(page._rung, page._rung + 9):
                    page._words[32] = rung << 8 | code
                    time.sleep(0.02)
            page.answer = answer_all
        return 2 * x
"""


def test_answering_rings_that_did_not_come_gives_no_answer(start):
    link = start(AHEAD)
    link.allow(5.0)
    with contextlib.suppress(RunnerFailed):  # it may have answered past the ring that counts
        assert run(link, unchanged=False)[1] != [2.0, 4.0, 6.0, 8.0, 10.0]


def test_a_runner_that_dies_while_the_judge_spins_is_gone(start):
    link = start("    def of(self, x):\n        os._exit(3)\n")
    with pytest.raises(RunnerFailed) as failed:
        run(link)
    assert (failed.value.kind, failed.value.op) == ("gone", Op.CALL)


def test_a_runner_that_never_answers_meets_its_deadline(start):
    link = start("    def of(self, x):\n        time.sleep(600)\n")
    link.allow(0.5)
    begun = time.monotonic()
    with pytest.raises(RunnerFailed) as failed:
        run(link)
    assert failed.value.kind == "deadline"
    assert time.monotonic() - begun < 30


def test_a_program_that_raises_is_told_by_its_code(start):
    link = start("    def of(self, x):\n        raise ValueError\n")
    with pytest.raises(RunnerFailed) as failed:
        run(link)
    assert failed.value.kind == "code"


def test_calls_share_a_window_where_taking_an_answer_is_no_turn_of_the_gpu():
    def places(count, inputs, *, resets=False):
        slots = lay_out([("x", "float32", (count,))])
        frame = Frame(
            input_tree=None,
            input_slots=slots,
            output_tree=None,
            output_slots=slots,
            weight_slots=(),
            parameters=(),
            layers=(),
            on_host=(),
        )
        answers = answers_in(frame, inputs)
        return answers, places_for(frame, answers=answers, resets=resets)

    small, large = SMALL_BYTES // 4, SMALL_BYTES // 4 + 1
    for inputs in Place:
        assert places(small, inputs) == (Place.HOST, MAX_PLACES)
        assert places(small, inputs, resets=True) == (Place.HOST, 1)
    assert places(large, Place.DEVICE) == (Place.DEVICE, 1)
    assert places(large, Place.HOST) == (Place.HOST, MAX_PLACES)
    assert places(1 << 26, Place.HOST) == (Place.HOST, 1)
