#!/bin/bash
# Run by slurmd as root when a job leaves a node: kills what the job left there. At a site control
# groups do that; without them Slurm loses sight of a process whose parent is gone.
# SLURM_JOB_ID and SLURMD_NODENAME stand in the environment of everything that a job starts.
for process in /proc/[0-9]*; do
    found=$(tr '\0' '\n' 2>/dev/null <"$process/environ" |
        grep -cxE "SLURM_JOB_ID=$SLURM_JOB_ID|SLURMD_NODENAME=$SLURMD_NODENAME")
    pid=${process#/proc/}
    if [ "$found" = 2 ] && [ "$pid" != $$ ] && [ "$(stat -c %U "$process")" = "$SLURM_JOB_USER" ]; then
        kill -KILL "$pid"
    fi
done
exit 0
