"""Judging candidates: a lane (host side, no torch), a judge and two runners (processes, torch).

Start reading at `lane`, then `judge`, `judge_verdict` and `judge_timing`; `runner` is what a
candidate runs in. docs/evaluator.md tells the whole story.
"""

from pike_hpc.evaluate.admission import Admission
from pike_hpc.evaluate.crew import JudgeLost
from pike_hpc.evaluate.gate import Gate
from pike_hpc.evaluate.lane import Lane

__all__ = ["Admission", "Gate", "JudgeLost", "Lane"]
