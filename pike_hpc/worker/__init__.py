"""The long-running program that claims requests, has them judged and commits the verdicts."""

from pike_hpc.machine import Stop
from pike_hpc.worker.backlog import Preparer
from pike_hpc.worker.cassette import CassetteJudge, RecordingJudge
from pike_hpc.worker.judge import Judge, JudgeUnwell
from pike_hpc.worker.loop import run_worker
from pike_hpc.worker.options import WorkerOptions
from pike_hpc.worker.simulated import SIMULATED, SimulatedJudge, simulated_result

__all__ = [
    "SIMULATED",
    "CassetteJudge",
    "Judge",
    "JudgeUnwell",
    "Preparer",
    "RecordingJudge",
    "SimulatedJudge",
    "Stop",
    "WorkerOptions",
    "run_worker",
    "simulated_result",
]
