"""What doctor asks Slurm: programs, QOS and account, and to be let onto the nodes of both kinds."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pike_hpc.cli import slurm_submit
from pike_hpc.cli.check import Check, tried
from pike_hpc.cli.doctor_files import skew_check
from pike_hpc.cli.doctor_locks import note_for_nodes
from pike_hpc.cli.processes import Plan
from pike_hpc.cli.redacted import accounts_of
from pike_hpc.config import Resolved, env
from pike_hpc.launch import plan_jobs, preflight, slurm_parameters, with_account
from pike_hpc.launch.exports import handed_over
from pike_hpc.launch.preflight import sentence
from pike_hpc.machine import Answer, ask
from pike_hpc.records import PikeError, TryAgainLater
from pike_hpc.slurm import call

PROGRAMS = ("sbatch", "srun", "squeue", "sacct", "scontrol")
_PATIENCE_S = 60
"""As with sbatch, which gives up on a controller that is down after some 20 s."""

JOB_MINUTES = 5
"""Of a job that tries things; it is over in less than one."""


def slurm(resolved: Resolved) -> Check:
    """Whether its programs are here."""
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        fix = f"run this on a login node of {resolved.site.name}"
        return Check("slurm", "fail", f"not on PATH: {', '.join(missing)}", fix)
    said = ask(["squeue", "--version"], _PATIENCE_S)
    if said.status == 0:
        return Check("slurm", "ok", said.stdout.strip())
    fix = "run `squeue --version` by hand: it does not even reach the controller"
    return Check("slurm", "fail", f"squeue: {said.complaint}", fix)


def account(resolved: Resolved) -> Check:
    """Whether Slurm would take a run's jobs: account, QOS, partition, constraint, GPUs.

    Those are workers, and agents where `agent.where` is array.
    """
    resolved = with_account(resolved)
    run = Path(resolved.site.paths.work)
    jobs = slurm_submit.at_slurm(resolved, _plan(resolved, run))
    try:
        said = Check("account", "ok", "; ".join(preflight(resolved, run, jobs)))
    except TryAgainLater as error:
        said = Check("account", "unknown", error.what, error.fix or "")
    except PikeError as error:
        said = Check("account", "fail", f"{error.what} ({error.where})", error.fix or "")
    return dataclasses.replace(said, accounts=accounts_of(resolved))


def scrontab(resolved: Resolved) -> Check:
    """Whether it takes lines here, has the models' keys, and asks for what Slurm knows."""
    fix = "agent.where: array or shell, or ask the site for scrontab"
    if not shutil.which("scrontab"):
        return Check("scrontab", "fail", "not on PATH", fix)
    done = call("scrontab", "-l", timeout_s=_PATIENCE_S)
    said = sentence(done.stdout + done.stderr)
    if done.returncode and "no crontab" not in said.lower():
        state = "fail" if "disabled" in said.lower() else "unknown"
        return Check("scrontab", state, said or f"it ended with status {done.returncode}", fix)
    slurm_submit.check_key_files(resolved)
    resolved = with_account(resolved)
    run = Path(resolved.site.paths.work)
    refused = slurm_submit.said_of_scrontab(resolved, run, _plan(resolved, run))
    if refused:
        what, *more = (line.strip() for line in refused[1:])
        fix = "; ".join(["nothing, where the site gives this to scrontab alone", *more])
        return Check("scrontab", "warn", f"{refused[0]} {what}", fix)
    return Check("scrontab", "ok", "it takes lines, and sbatch what they will ask for")


def _plan(resolved: Resolved, run: Path) -> Plan:
    """Jobs as those of a run of one task."""
    return plan_jobs(resolved, run, ["1"], python=sys.executable, lib=run / "code/lib")


def on_nodes(
    resolved: Resolved, kinds: Sequence[str], arguments: Sequence[str], wait_s: int
) -> Iterator[Check]:
    """The checks of a job of each kind, by names such as `worker: lock`.

    Args:
        resolved: what asks for the nodes.
        kinds: worker, agent or both.
        arguments: of this command, for the one inside.
        wait_s: how long a job may wait for a node.
    """
    resolved = with_account(resolved)
    for kind in kinds:
        yield from _on_node(resolved, kind, arguments, wait_s)


def srun(parameters: Mapping[str, Any], wait_s: int) -> list[str]:
    """The command that starts a program on a node as a job with those parameters would get."""
    options = [f"--{name}={value}" for name, value in allocation(parameters).items()]
    return [
        *("srun", "--quiet", "--ntasks=1", "--job-name=pike-doctor", f"--immediate={wait_s}"),
        *(f"--time={JOB_MINUTES}", *options),
    ]


def allocation(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Of a job's parameters, in submitit's names, those that say what is asked for, in Slurm's."""
    given = {**parameters, **parameters.get("additional_parameters", {})}
    own = ("job_name", "time", "setup", "additional_parameters", "srun_args", "signal")
    return {
        name.replace("_", "-"): value
        for name, value in given.items()
        if name not in (*own, "stderr_to_stdout", "array_parallelism", "requeue", "no-requeue")
    }


def _on_node(
    resolved: Resolved, kind: str, arguments: Sequence[str], wait_s: int
) -> Iterator[Check]:
    work = Path(resolved.site.paths.work)
    run = work / "doctor"
    workers, agents = plan_jobs(resolved, run, ["1"], python=sys.executable, lib=run)
    job = (workers if kind == "worker" else agents)[0]
    with note_for_nodes(work) as note:
        program = [sys.executable, "-P", "-m", "pike_hpc", "doctor", *arguments]
        program += ["--inside", kind, "--note", str(note)]
        lines = [*resolved.site.setup, f"exec {shlex.join(program)}"]
        parameters = slurm_parameters(resolved, kind, "pike-doctor")
        shell, exports = ["bash"], job.exports
        if kind == "agent" and resolved.site.agent.where == "scrontab":
            # Its jobs log in, and have neither keys nor proxies of the shell that we are in.
            shell, exports = ["bash", "-l"], workers[0].exports
        argv = [*srun(parameters, wait_s), *shell, "-c", "\n".join(lines)]
        before = time.time()
        environ = handed_over(env.environ(), exports, job.unset)
        done = ask(argv, wait_s + 60 * JOB_MINUTES + 60, environ=environ)
    yield from _told(kind, done, before, time.time())


def _told(kind: str, done: Answer, before: float, after: float) -> Iterator[Check]:
    try:
        document = json.loads(done.stdout.strip().splitlines()[-1])
        checks = [Check(**each) for each in document["checks"]]
    except (ValueError, KeyError, TypeError, IndexError):
        said = f"srun: {done.complaint}"
        waited = "immediate" in said.lower() or "unable to allocate" in said.lower()
        fix = "see that a job of yours can run this Python: the site's setup lines, paths.work"
        if waited:
            fix = "--wait-s 600 waits longer; a debug queue, where the site has one, starts sooner"
        yield Check(f"{kind}: node", "unknown" if waited else "fail", said, fix)
        return
    host = document["host"]
    said = f"{host} answered in {after - before:.0f} s"
    yield Check(f"{kind}: node", "ok", said, hosts=(host,))
    for check in checks:
        yield Check(f"{kind}: {check.name}", check.state, check.detail, check.fix)
    skew = skew_check(document["now"], before, after, f"the clock of {host}")
    if skew.state != "ok":
        yield Check(f"{kind}: skew", skew.state, skew.detail, skew.fix)


def at_slurm(resolved: Resolved) -> Iterator[Check]:
    """What can be asked from a login node."""
    checks = {"slurm": lambda: slurm(resolved), "account": lambda: account(resolved)}
    yield from tried(checks)
