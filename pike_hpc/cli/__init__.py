"""The command line: the composition root, and the only place that prints."""

from pike_hpc.cli.main import main

__all__ = ["main"]
