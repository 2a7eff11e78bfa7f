"""Judging candidates: a lane (host side, no torch), a judge and two runners (processes, torch).

Start reading at `lane`, then `judge`, `judge_verdict` and `judge_timing`; `runner` is what a
candidate runs in. docs/evaluator.md tells the whole story. Nothing is imported here: who judges
nothing, as an agent, asks `device` alone.
"""
