"""Agents that are no jobs of ours: a command to keep running, or lines for scrontab. Text only.

Both start RUN/slurm/agent.sh, which has the site's setup lines and the very command of an agent
job, in a login shell, which knows `module`. It holds no key: in a shell the variable is there, and
scrontab's jobs, which get nothing of a person's environment, read the key files of the user's own
site file.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from pike_hpc.config import Resolved
from pike_hpc.launch.jobs import Job
from pike_hpc.launch.plan import SIGNAL

EVERY_MINUTES = 5
"""Between two ticks. Slurm begins none while the one before still runs."""

_LEAVE_S = 30
"""What a tick gets to leave in order before the next is due or its walltime ends."""


def agent_script(run_dir: Path) -> Path:
    """Where the agent's script of a run lies."""
    return run_dir / "slurm" / "agent.sh"


def setup_script(run_dir: Path) -> Path:
    """Where the site's setup lines lie, for jobs that are submitted by hand."""
    return run_dir / "slurm" / "setup.sh"


def write_scripts(run_dir: Path, resolved: Resolved, agent: Job) -> None:
    """Put both into the run folder. Options given to the agent's are added to its command."""
    setup = "".join(f"{line}\n" for line in resolved.site.setup)
    command = f'exec {shlex.join(agent.command)} "$@"\n'
    by_hand = (
        f"# For jobs/*.sbatch: setup lines of site {resolved.site.name}, then what its jobs have\n"
        f"{setup}export PYTHONPATH={shlex.quote(agent.env['PYTHONPATH'])}\n"
        f"PYTHON=${{PYTHON:-{shlex.quote(agent.argv[0])}}}\n"
    )
    for path, text in (
        (setup_script(run_dir), by_hand),
        (agent_script(run_dir), f"#!/bin/bash -l\n{setup}{command}"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".new")
        beside.write_text(text, "utf-8")
        beside.chmod(0o755)
        beside.replace(path)


def shell_line(run_dir: Path) -> str:
    """What a person keeps running, in a terminal that stays."""
    return shlex.quote(str(agent_script(run_dir)))


def scrontab_lines(run_dir: Path, resolved: Resolved) -> str:
    """What a person adds with `scrontab -e`."""
    shape = resolved.site.agent
    options = {
        "job-name": f"pike-{run_dir.name}",
        "account": resolved.site.account_for("agent"),
        "qos": shape.qos,
        "constraint": shape.constraint,
        "partition": shape.partition,
        "cpus-per-task": shape.cpus,
        "time": shape.walltime_minutes,
        "signal": f"B:{SIGNAL}",
        "open-mode": "append",
        "output": run_dir / "logs" / "scrontab.log",
        **shape.extra,
    }
    lines = [
        f"#SCRON --{name}" if value is True else f"#SCRON --{name}={shlex.quote(str(value))}"
        for name, value in options.items()
        if value is not None
    ]
    seconds = min(EVERY_MINUTES, shape.walltime_minutes) * 60 - _LEAVE_S
    tick = [str(agent_script(run_dir)), "--once", "--max-seconds", str(seconds)]
    return "\n".join([*lines, f"*/{EVERY_MINUTES} * * * * {shlex.join(tick)}"])
