"""submitit's door: how workers and agents are started, here or through Slurm.

Both ways run the same command line, `pike-hpc worker RUN` or `pike-hpc agent RUN --tasks RANGE`,
through submitit's CommandFunction. What submitit pickles knows nothing of the package: a job that
waits for days outlives its edits.
"""

from pike_hpc.launch.account import with_account
from pike_hpc.launch.code import pack_code
from pike_hpc.launch.exports import exports, key_names
from pike_hpc.launch.intents import read_intents
from pike_hpc.launch.jobs import Job, JobRecord, read_jobs
from pike_hpc.launch.launcher import Launcher, LocalLauncher, SlurmLauncher, dry_run, settle
from pike_hpc.launch.missing import Missing, missing
from pike_hpc.launch.plan import expected_lanes, plan_jobs, ranges, slurm_parameters
from pike_hpc.launch.preflight import preflight, sbatch_is_here
from pike_hpc.launch.standing import EVERY_MINUTES, scrontab_lines, shell_line, write_scripts
from pike_hpc.launch.wave import (
    Grant,
    TopUp,
    drop_grant,
    granted_hours,
    read_grant,
    share,
    top_up,
    used_hours,
    write_grant,
)

__all__ = [
    "EVERY_MINUTES",
    "Grant",
    "Job",
    "JobRecord",
    "Launcher",
    "LocalLauncher",
    "Missing",
    "SlurmLauncher",
    "TopUp",
    "drop_grant",
    "dry_run",
    "expected_lanes",
    "exports",
    "granted_hours",
    "key_names",
    "missing",
    "pack_code",
    "plan_jobs",
    "preflight",
    "ranges",
    "read_grant",
    "read_intents",
    "read_jobs",
    "sbatch_is_here",
    "scrontab_lines",
    "settle",
    "share",
    "shell_line",
    "slurm_parameters",
    "top_up",
    "used_hours",
    "with_account",
    "write_grant",
    "write_scripts",
]
