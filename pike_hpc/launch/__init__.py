"""submitit's door: how workers and agents are started, here or through Slurm.

Both ways run the same command line, `pike-hpc worker RUN` or `pike-hpc agent RUN --tasks RANGE`,
wrapped as submitit's CommandFunction, so that no pickled object of ours outlives an edit.
"""

from pike_hpc.launch.code import pack_code
from pike_hpc.launch.jobs import Job, JobRecord, read_jobs
from pike_hpc.launch.launcher import Launcher, LocalLauncher, SlurmLauncher, dry_run
from pike_hpc.launch.missing import Missing, missing
from pike_hpc.launch.plan import expected_lanes, plan_jobs, slurm_parameters
from pike_hpc.launch.preflight import default_account, preflight, sbatch_is_here

__all__ = [
    "Job",
    "JobRecord",
    "Launcher",
    "LocalLauncher",
    "Missing",
    "SlurmLauncher",
    "default_account",
    "dry_run",
    "expected_lanes",
    "missing",
    "pack_code",
    "plan_jobs",
    "preflight",
    "read_jobs",
    "sbatch_is_here",
    "slurm_parameters",
]
