"""GPU memory shared by two processes: across namespaces, through death, read-only.

Each test runs on memory that is simulated (anywhere) and, where there is a GPU, on a real one.
What a failure means is in the assertion's message; a peer that dies says why in `PeerLost`.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from builders.cuda import torch_sees_it
from peers import device_memory_peer as peers

torch = pytest.importorskip("torch")

from pike_hpc.evaluate.correctness import compare  # noqa: E402
from pike_hpc.evaluate.judge_memory import poison, unwritten, views  # noqa: E402
from pike_hpc.evaluate.layout import ITEM_BYTES, buffer_bytes, lay_out  # noqa: E402
from pike_hpc.evaluate.pieces import PIECE  # noqa: E402
from pike_hpc.evaluate.runner import device_memory  # noqa: E402
from pike_hpc.evaluate.runner.cuda_driver import DeviceMemoryError, Driver  # noqa: E402
from pike_hpc.evaluate.runner.simulated_driver import SimulatedDriver  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

MB = 1 << 20
LARGE = 1 << 30
NOISE = 96 * MB
"""What a driver may keep or return on its own account while a context comes and goes."""
PATIENCE_S = 30
"""How long the kernel may take to give back what a killed process held."""


class Machine:
    """A driver here, and what a peer must be told to use the same."""

    def __init__(self, kind):
        self.kind = kind
        self.simulated = SimulatedDriver() if kind == "simulated" else None
        self.driver = self.simulated.driver() if self.simulated else Driver.open()

    def export(self, size):
        return device_memory.export(size, 0, driver=self.driver)

    def take(self, fd, size, *, writable=True):
        return device_memory.import_(fd, size, 0, writable=writable, driver=self.driver)

    def wait(self):
        if self.kind == "cuda":
            torch.cuda.synchronize()

    def free(self):
        """Bytes of the GPU that nobody holds."""
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(0)[0]

    def comes_back_to(self, wanted, why):
        """Wait until that much is free again, give or take NOISE."""
        end = time.monotonic() + PATIENCE_S
        while (free := self.free()) < wanted - NOISE:
            if time.monotonic() > end:
                pytest.fail(
                    f"{why}: {(wanted - free) / MB:.0f} MB of GPU memory are still held after "
                    f"{PATIENCE_S} s (another process on this GPU would look the same)"
                )
            time.sleep(0.05)


@pytest.fixture(scope="module", params=["simulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def machine(request):
    if request.param == "cuda":
        torch_sees_it()
        torch.zeros(1, device="cuda")
    return Machine(request.param)


@pytest.fixture(scope="module")
def cuda():
    torch_sees_it()
    torch.zeros(1, device="cuda")
    return Machine("cuda")


def namespaces():
    """The words before a command that put it into namespaces of its own, or a skip."""
    if shutil.which(peers.UNSHARE[0]) is None:
        pytest.skip("unshare is not installed")
    tried = subprocess.run(
        [*peers.UNSHARE, "true"], capture_output=True, text=True, timeout=30, check=False
    )
    if tried.returncode:
        pytest.skip(f"{' '.join(peers.UNSHARE)} does not work here: {tried.stderr.strip()}")
    return peers.UNSHARE


@pytest.fixture(params=["plain", "namespaces"])
def wrap(request):
    return () if request.param == "plain" else namespaces()


def hex_of(tensor):
    return bytes(tensor.reshape(-1).view(torch.uint8).cpu().tolist()).hex()


def send(peer, buffer, **how):
    return peer.ask("take", [buffer.fd], size=buffer.size_bytes, **how)


def test_this_gpu_can_share(machine):
    assert device_memory.supported(0, driver=machine.driver) == ""


def test_each_side_reads_what_the_other_wrote_in_every_dtype(machine, wrap):
    slots = lay_out([(name, name, (3, 7)) for name in ITEM_BYTES])
    size = buffer_bytes(slots)
    with machine.export(size) as buffer, peers.Peer(machine.kind, wrap) as peer:
        hello = peer.ask("hello")
        assert not hello["loaded"], "the runner's package must stand alone"
        assert (hello["pid"] == 1) == bool(wrap), f"not in a PID namespace of its own: {hello}"
        assert peer.ask("supported")["why_not"] == ""
        send(peer, buffer)
        for slot in slots:
            dtype = getattr(torch, slot.dtype)
            where = {"dtype": slot.dtype, "shape": slot.shape, "offset": slot.offset}
            here = buffer.tensor(dtype, slot.shape, slot.offset)
            here.fill_(1)
            machine.wait()
            expected = torch.ones(slot.shape, dtype=dtype)
            assert peer.ask("read", **where)["hex"] == hex_of(expected), (
                f"the peer does not read the {slot.dtype} that was written here"
            )
            peer.ask("write", value=0, **where)
            assert hex_of(here) == hex_of(torch.zeros_like(expected)), (
                f"the {slot.dtype} that the peer wrote does not arrive here"
            )
        peer.ask("let_go")


def test_a_buffer_of_many_pieces_is_whole_at_both_ends(machine):
    size = 70 * MB + 13
    with machine.export(size) as buffer, peers.Peer(machine.kind) as peer:
        send(peer, buffer)
        for offset in (0, 35 * MB + 1, size - 1):
            peer.ask("write", dtype="uint8", shape=[1], offset=offset, value=offset % 251 + 1)
            assert buffer.bytes()[offset].item() == offset % 251 + 1
        assert int(torch.count_nonzero(buffer.bytes())) == 3


def test_a_killed_importer_leaves_the_exporter_whole(machine, wrap):
    with machine.export(64 * MB) as buffer:
        buffer.bytes().fill_(5)
        machine.wait()
        with peers.Peer(machine.kind, wrap) as peer:
            send(peer, buffer)
            peer.ask("write", dtype="uint8", shape=[8], offset=0, value=9)
            peer.kill()
        assert buffer.bytes()[:8].tolist() == [9] * 8
        assert bool((buffer.bytes()[8:] == 5).all()), "the importer's death changed the memory"
        with peers.Peer(machine.kind, wrap) as peer:
            send(peer, buffer)
            assert peer.ask("read", dtype="uint8", shape=[9], offset=0)["hex"] == "09" * 8 + "05"


def test_a_killed_exporter_leaves_memory_to_its_importer(machine, wrap):
    with peers.Peer(machine.kind, wrap) as peer:
        (fd,) = peer.ask("make", size=64 * MB)["fds"]
        with machine.take(fd, 64 * MB) as buffer:
            peer.ask("write", dtype="uint8", shape=[64 * MB], offset=0, value=3)
            peer.kill()
            assert bool((buffer.bytes() == 3).all()), "the memory died with who made it"
            buffer.bytes().fill_(4)
            machine.wait()
            assert buffer.bytes()[-1].item() == 4


def test_the_descriptor_of_a_dead_exporter_still_opens(machine):
    """A descriptor alone keeps memory: whoever holds one must be ended for it to be freed."""
    with peers.Peer(machine.kind) as peer:
        (fd,) = peer.ask("make", size=8 * MB)["fds"]
        peer.ask("write", dtype="uint8", shape=[16], offset=32, value=8)
        peer.kill()
    with machine.take(fd, 8 * MB) as buffer:
        assert int(buffer.bytes().sum()) == 16 * 8


def test_writing_through_a_read_only_mapping_hurts_only_who_did_it(machine, wrap):
    with machine.export(8 * MB) as buffer:
        buffer.bytes().fill_(6)
        machine.wait()
        with peers.Peer(machine.kind, wrap) as peer:
            send(peer, buffer, writable=False)
            assert peer.ask("read", dtype="uint8", shape=[2], offset=0)["hex"] == "0606"
            with pytest.raises((RuntimeError, peers.PeerLost)) as failed:
                peer.ask("write", dtype="uint8", shape=[MB], offset=0, value=7)
            expected = (
                "illegal|invalid|fault" if machine.kind == "cuda" else r"exit status (-11|139)"
            )
            failed.match(f"(?i){expected}")
        assert bool((buffer.bytes() == 6).all()), (
            "a write through a read-only mapping arrived: READ access is not enforced here"
        )
        buffer.bytes().fill_(1)
        machine.wait()
        with peers.Peer(machine.kind) as peer:
            send(peer, buffer)
            assert peer.ask("read", dtype="uint8", shape=[1], offset=0)["hex"] == "01", (
                "the fault of one importer must not reach the next"
            )


def test_read_only_is_the_importers_own_promise(machine):
    """It gives itself the right to write: `writable=False` keeps no hostile program out."""
    with machine.export(8 * MB) as buffer, peers.Peer(machine.kind) as peer:
        send(peer, buffer, writable=False)
        peer.ask("allow_writing")
        peer.ask("write", dtype="uint8", shape=[4], offset=0, value=7)
        assert buffer.bytes()[:5].tolist() == [7, 7, 7, 7, 0]


def test_a_size_that_was_not_exported_is_an_error_and_no_access(machine):
    with machine.export(2 * MB) as buffer:
        with pytest.raises(DeviceMemoryError, match="cuMemMap"):
            machine.take(os.dup(buffer.fd), 64 * MB)
        buffer.bytes().fill_(1)
        machine.wait()


def test_what_is_no_gpu_memory_is_refused(machine):
    with pytest.raises(DeviceMemoryError, match="cuMemImportFromShareableHandle: CUDA_ERROR"):
        machine.take(os.open(os.devnull, os.O_RDWR), 2 * MB)


def test_a_tensor_outlives_its_buffer(machine):
    buffer = machine.export(2 * MB)
    part = buffer.tensor(torch.float32, (8,), 64)
    buffer.close()
    part.fill_(2)
    machine.wait()
    assert part.sum().item() == 16


def test_a_hundred_buffers_leave_no_descriptor(machine):
    with machine.export(1):
        pass
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(100):
        with machine.export(1) as ours, machine.take(os.dup(ours.fd), 1) as theirs:
            theirs.bytes().fill_(1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("name", ["float32", "bfloat16", "complex64", "int64"])
def test_a_poisoned_answer_is_taken_and_looked_at_where_it_lies(machine, name):
    dtype, count = getattr(torch, name), 70_000
    slots = lay_out([("x", "uint8", (3,)), ("y", name, (count,))])
    with machine.export(buffer_bytes(slots)) as buffer:
        poison(slots, buffer.bytes())
        truth = torch.ones(count, dtype=dtype, device=buffer.bytes().device)
        shared = buffer.tensor(dtype, slots[1].shape, slots[1].offset)
        shared[7:].copy_(truth[7:])
        own = buffer.bytes().clone()
        shared.zero_()
        answer = views(slots, own)[1]
        assert answer.device == shared.device
        assert unwritten(slots[1:], own) == pytest.approx(7 / count)
        answer[:7] = truth[:7]
        assert unwritten(slots[1:], own) == 0
        assert torch.equal(answer, truth)
        del shared


@pytest.mark.gpu
def test_it_is_the_context_that_torch_uses(cuda):
    context = cuda.driver.retain(cuda.driver.device(0))
    try:
        assert cuda.driver.current() == context
        with cuda.export(8) as buffer:
            assert buffer.bytes().is_cuda
            assert cuda.driver.current() == context
    finally:
        cuda.driver.release(cuda.driver.device(0))


@pytest.mark.gpu
def test_exported_memory_shows_nothing_of_this_process_past(cuda):
    old = torch.full((LARGE,), 0xAB, dtype=torch.uint8, device="cuda")
    cuda.wait()
    del old
    torch.cuda.empty_cache()
    with cuda.export(LARGE) as buffer:
        assert not bool(buffer.bytes().any())


@pytest.mark.gpu
def test_what_a_killed_importer_held_comes_back(cuda, wrap):
    before = cuda.free()
    with cuda.export(LARGE) as buffer:
        shared = cuda.free()
        assert before - shared > LARGE - NOISE, "a gigabyte was exported and is not counted"
        with peers.Peer("cuda", wrap) as peer:
            send(peer, buffer)
            peer.ask("hold", size=LARGE)
            assert shared - cuda.free() > LARGE - NOISE
            peer.kill()
        cuda.comes_back_to(shared, "a killed importer")
        assert before - cuda.free() > LARGE - NOISE, "the exporter's memory went with the importer"
    cuda.comes_back_to(before, "an exporter that closed after its importer was killed")


@pytest.mark.gpu
def test_what_a_killed_exporter_made_comes_back_with_the_last_importer(cuda, wrap):
    before = cuda.free()
    with peers.Peer("cuda", wrap) as peer:
        (fd,) = peer.ask("make", size=LARGE)["fds"]
        peer.ask("hold", size=LARGE)
        with cuda.take(fd, LARGE) as buffer:
            peer.kill()
            cuda.comes_back_to(before - LARGE, "a killed exporter, but for what it shared")
            assert before - cuda.free() > LARGE - NOISE, "shared memory went with its exporter"
            assert not bool(buffer.bytes().any())
    cuda.comes_back_to(before, "the importer of a killed exporter closed")


@pytest.mark.gpu
def test_a_descriptor_that_waits_in_a_socket_holds_memory(cuda):
    before = cuda.free()
    one, other = socket.socketpair()
    with contextlib.closing(one), contextlib.closing(other):
        with cuda.export(LARGE) as buffer:
            socket.send_fds(one, [b"!"], [buffer.fd])
        assert before - cuda.free() > LARGE - NOISE, "sent and not received, it was freed"
    cuda.comes_back_to(before, "the socket was closed")


@pytest.mark.gpu
def test_a_full_gpu_is_told_by_name_and_serves_again(cuda):
    total = torch.cuda.mem_get_info(0)[1]
    with pytest.raises(DeviceMemoryError) as said:
        cuda.export(2 * total)
    assert said.value.result == "CUDA_ERROR_OUT_OF_MEMORY", said.value
    cuda.export(8).close()


@pytest.mark.gpu
def test_many_buffers_leave_the_gpu_as_it_was(cuda):
    cuda.export(LARGE).close()
    before = cuda.free()
    for _ in range(50):
        with cuda.export(LARGE) as ours, cuda.take(os.dup(ours.fd), LARGE) as theirs:
            theirs.bytes()[-1:].fill_(1)
    cuda.comes_back_to(before, "50 buffers were made and closed")


@pytest.mark.gpu
def test_comparing_a_gigabyte_takes_little_beside_it(cuda):
    truth = torch.randn(LARGE // 4, device="cuda")
    answer = truth.clone()
    answer[-1] += 2
    compare(answer, truth, 1.0)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = compare(answer, truth, 1.0)
    peak = torch.cuda.max_memory_allocated() - before
    assert peak < 400 * MB, f"temporaries of {peak / MB:.0f} MB for pieces of {PIECE['cuda']}"
    assert found.spike == pytest.approx(2, rel=1e-5)
    assert found.error == pytest.approx(2 / len(truth) ** 0.5, rel=1e-5)
