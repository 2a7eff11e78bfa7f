"""A second process that shares GPU memory: a program, and what starts it and speaks with it.

As a program it loads the runner package alone, by its path, as a lane does, and obeys one JSON
line at a time from the socket it inherits; descriptors come and go beside a line. Started as

    python -I device_memory_peer.py FOLDER_OF_THE_RUNNER cuda|simulated SOCKET_FD
"""

import importlib
import importlib.util
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch

RUNNER = Path(__file__).resolve().parents[2] / "pike_hpc/evaluate/runner"
UNSHARE = ("unshare", "-Urpfni", "--mount-proc", "--kill-child")
START_TIMEOUT_S = 120


class PeerLost(Exception):
    """The peer ended or fell silent; the message holds what it said."""


class Peer:
    """A started peer."""

    def __init__(self, kind, wrap=()):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link = ours
        self._link.settimeout(START_TIMEOUT_S)
        program = (sys.executable, "-I", "-B", str(Path(__file__).resolve()))
        self.process = subprocess.Popen(
            [*wrap, *program, str(RUNNER), kind, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        theirs.close()
        self.said = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def start(self, order, fds=(), **arguments):
        """Have something done without waiting for the answer."""
        message = json.dumps({"do": order, **arguments}).encode()
        try:
            socket.send_fds(self._link, [message], list(fds))
        except OSError as error:
            raise self._lost(f"took no order: {error}") from None

    def answer(self):
        """The answer's fields, and the descriptors that came along, under "fds"."""
        try:
            message, fds, _, _ = socket.recv_fds(self._link, 1 << 16, 8)
        except OSError as error:
            raise self._lost(f"gave no answer: {type(error).__name__} {error}") from None
        if not message:
            raise self._lost("ended")
        return {**json.loads(message), "fds": fds}

    def ask(self, order, fds=(), **arguments):
        """Have something done; RuntimeError holds the peer's own error."""
        self.start(order, fds, **arguments)
        answer = self.answer()
        if "error" in answer:
            raise RuntimeError(f"peer, {order}: {answer['error']}")
        return answer

    def kill(self):
        """kill -9, in a namespace too, and wait until the process is gone."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.said += self.process.communicate(timeout=60)[0] or ""
        self._link.close()
        return self.process.returncode

    def _lost(self, how):
        status = self.kill()
        return PeerLost(f"the peer {how} (exit status {status}); it said:\n{self.said}")


def load(folder, name):
    """A module of the runner package, that package being all there is of the project."""
    if "pike_runner" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "pike_runner", f"{folder}/__init__.py", submodule_search_locations=[folder]
        )
        sys.modules[spec.name] = package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)
    return importlib.import_module(f"pike_runner.{name}")


class Program:
    """What the peer can do. Each order is a method; its answer's "fds" are sent along."""

    def __init__(self, folder, kind):
        self.torch, self.kind, self.folder = torch, kind, folder
        self.memory = load(folder, "device_memory")
        self.calls = load(folder, "cuda_driver")
        simulated = load(folder, "simulated_driver")
        self.driver = (
            simulated.SimulatedDriver().driver()
            if kind == "simulated"
            else self.calls.Driver.open()
        )
        self.buffers = []
        self.held = None

    def hello(self):
        """Which process this is, and what of the project it has loaded."""
        loaded = sorted(name for name in sys.modules if name.startswith("pike_hpc"))
        return {"pid": os.getpid(), "loaded": loaded}

    def supported(self):
        return {"why_not": self.memory.supported(0, driver=self.driver)}

    def take(self, fds, size, writable=True):
        """Import the descriptor that came along; seconds it took."""
        start = time.perf_counter()
        buffer = self.memory.import_(fds[0], size, 0, writable=writable, driver=self.driver)
        self.buffers.append(buffer)
        return {"seconds": time.perf_counter() - start}

    def make(self, size):
        """Export memory and send its descriptor; nothing is held but by this process."""
        self.buffers.append(self.memory.export(size, 0, driver=self.driver))
        return {"fds": [self.buffers[-1].fd]}

    def write(self, dtype, shape, offset, value):
        self._tensor(dtype, shape, offset).fill_(value)
        self._wait()
        return {}

    def read(self, dtype, shape, offset):
        found = self._tensor(dtype, shape, offset)
        self._wait()
        raw = found.reshape(-1).view(self.torch.uint8).cpu()
        return {"hex": bytes(raw.tolist()).hex()}

    def allow_writing(self):
        """What a hostile importer does with a mapping that it was given read-only."""
        ctypes = importlib.import_module("ctypes")
        buffer = self.buffers[-1]
        address = buffer.bytes().data_ptr()
        device = self.driver.device(0)
        location = self.calls.Location(kind=self.calls.ON_DEVICE, device=device)
        rights = self.calls.Access(location=location, flags=self.calls.READ_WRITE)
        length = -(-buffer.size_bytes // (2 << 20)) * (2 << 20)
        context = self.driver.retain(device)
        self.driver.within(context, "cuMemSetAccess", address, length, ctypes.byref(rights), 1)
        return {}

    def hold(self, size):
        """Take ordinary memory of the GPU as well."""
        self.held = self.torch.ones(size, dtype=self.torch.uint8, device=self._device())
        self._wait()
        return {}

    def let_go(self):
        for buffer in self.buffers:
            buffer.close()
        self.buffers.clear()
        return {}

    def pipe_bell(self, fds):
        """Answer each byte of one pipe on another until it is closed."""
        bell, done = fds
        while os.read(bell, 1):
            os.write(done, b"!")
        os.close(bell)
        os.close(done)
        return {}

    def page_bell(self, fds, rounds):
        """Answer `rounds` bytes in a shared page by spinning on it."""
        page = mmap.mmap(fds[0], mmap.PAGESIZE)
        os.close(fds[0])
        for number in range(1, rounds + 1):
            while page[0] != number & 0xFF:
                pass
            page[64] = number & 0xFF
        page.close()
        return {}

    def null_model(self, fds, rounds):
        """At each ring of a shared page copy buffer 0 to buffer 1, and wait for the GPU."""
        page = mmap.mmap(fds[0], mmap.PAGESIZE)
        os.close(fds[0])
        given, answer = (buffer.bytes() for buffer in self.buffers)
        for number in range(1, rounds + 1):
            while page[0] != number & 0xFF:
                pass
            answer.copy_(given)
            self._wait()
            page[64] = number & 0xFF
        del given, answer
        page.close()
        return {}

    def _device(self):
        return "cuda" if self.kind == "cuda" else "cpu"

    def _wait(self):
        if self.kind == "cuda":
            self.torch.cuda.synchronize()

    def _tensor(self, dtype, shape, offset):
        return self.buffers[-1].tensor(getattr(self.torch, dtype), shape, offset)


def main(folder, kind, number):
    """Obey until the other side is gone."""
    link = socket.socket(fileno=int(number))
    program = Program(folder, kind)
    while True:
        message, fds, _, _ = socket.recv_fds(link, 1 << 16, 8)
        if not message:
            return
        order = json.loads(message)
        method = getattr(program, order.pop("do"))
        given = {"fds": fds} if fds else {}
        try:
            answer = method(**given, **order)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sent = answer.pop("fds", [])
        socket.send_fds(link, [json.dumps(answer).encode()], sent)


if __name__ == "__main__":
    main(*sys.argv[1:])
