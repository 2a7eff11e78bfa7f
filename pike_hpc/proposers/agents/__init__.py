"""Agents: prompts for a model and what its answers hold. Asks nobody; the agent does."""

from pike_hpc.proposers.agents.answer import NoProgram, Program, extract_program, parse_ideas
from pike_hpc.proposers.agents.prompt import Prompt, render

__all__ = ["NoProgram", "Program", "Prompt", "extract_program", "parse_ideas", "render"]
