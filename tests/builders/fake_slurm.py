"""Slurm's programs as small scripts on PATH, with a folder of text files for a cluster.

`queue` is what squeue prints and `accounts` what sacct does, `used` what it says of times; sbatch
adds to the queue and to `names`, and scancel changes the queue.
`default-account` is what sacctmgr prints, and without that file it fails. `enforce` is what Slurm's
configuration wants of accounts. `tested` has the kind of each `sbatch --test-only`, `charged` the
account of each job.
A file `squeue-down` or `sacct-down` makes that program fail as with its daemon down.
"""

from pathlib import Path

SCRIPTS = {
    "srun": "exit 1",
    "sinfo": "exit 1",
    "sacctmgr": "cat default-account",
    "sbatch": """
for script; do :; done
case "$*" in
*--test-only*) sed -n 's/^#SBATCH --job-name=pike-//p' "$script" >> tested; exit 0;;
esac
if [ -e full ]; then echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1; fi
job=$(($(wc -l < submitted) + 1))
tasks=$(sed -n 's/^#SBATCH --array=//p' "$script")
name=$(sed -n 's/^#SBATCH --job-name=//p' "$script")
echo "${name%-*} $tasks" >> submitted
echo "${name%-*} $(sed -n 's/^#SBATCH --account=//p' "$script")" >> charged
echo "$name $job" >> names
echo "$job${tasks:+_[$tasks]}|PENDING|Priority" >> queue
echo "Submitted batch job $job"
""",
    "squeue": """
echo "$*" >> asked
if [ -e squeue-down ]; then
    echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1
fi
case "$*" in *--name=*) sed -n "s/^${*##*--name=} //p" names;; *) cat queue;; esac
""",
    "sacct": """
echo "$*" >> asked
if [ -e sacct-down ]; then
    echo "sacct: error: Problem talking to the database: Connection refused" >&2; exit 1
fi
case "$*" in *--name=*) ;; *ElapsedRaw*) cat used;; *) cat accounts;; esac
""",
    "scancel": """
if [ -e squeue-down ]; then
    echo "scancel: error: Unable to contact slurm controller (connect failure)" >&2; exit 1
fi
for job; do sed -i "s/^\\($job[^0-9|]*[^|]*\\)|[A-Z]*|.*/\\1|CANCELLED|None/" queue; done
""",
    "scontrol": """
echo "AccountingStorageEnforce = $(cat enforce)"
echo "MaxArraySize            = $(cat array-size)"
""",
}

WRITTEN = ("submitted", "asked", "names", "tested", "charged")
"""Files that the programs add lines to."""


class FakeSlurm:
    """A folder of its own; `put` and `text` write and read its files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.programs = folder / "cluster", folder / "programs"
        self.folder.mkdir()
        self.programs.mkdir()
        for name, script in SCRIPTS.items():
            self.program(name, f"cd '{self.folder}' || exit 1\n{script}")
        for name in ("queue", "accounts", "used", *WRITTEN):
            self.put(name, "")
        self.put("array-size", "1001\n")
        self.put("enforce", "none\n")

    def program(self, name: str, script: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        path.chmod(0o755)

    def put(self, name: str, text: str = "") -> None:
        (self.folder / name).write_text(text, "utf-8")

    def drop(self, name: str) -> None:
        (self.folder / name).unlink()

    def text(self, name: str) -> str:
        return (self.folder / name).read_text("utf-8")

    def lines(self, name: str) -> list[str]:
        return self.text(name).splitlines()
