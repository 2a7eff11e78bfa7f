"""Who is told that a job has to go: the command, though Slurm tells submitit's process alone."""

import signal
import subprocess
import sys
import time

import cloudpickle

from pike_hpc.launch.relay import run_command

TASK = """
import pickle, signal, sys
signal.signal(signal.SIGTERM, lambda *heard: None)
run = pickle.load(sys.stdin.buffer)
print(run([sys.executable, "-c", *sys.argv[1:]], warned=True))
assert "pike_hpc" not in sys.modules
"""
COMMAND = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *heard: sys.exit(print("heard")))
pathlib.Path(sys.argv[1]).touch()
while True:
    signal.pause()
"""


def test_a_signal_to_submitits_process_reaches_the_command(tmp_path):
    """As unpickled by a process that knows nothing of pike_hpc."""
    ready, pipe = tmp_path / "ready", subprocess.PIPE
    argv = [sys.executable, "-c", TASK, COMMAND, str(ready)]
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as task:
        task.stdin.write(cloudpickle.dumps(run_command))
        task.stdin.close()
        while not ready.exists():
            assert task.poll() is None
            time.sleep(0.01)
        task.send_signal(signal.SIGTERM)
        assert task.stdout.read() == b"heard\n"
    assert task.returncode == 0
