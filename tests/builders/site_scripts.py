"""The batch scripts that a run would submit at a site, as tests/golden/sites holds them.

After a change that is meant: `PYTHONPATH=tests:. python -m builders.site_scripts` writes them anew.
"""

from pathlib import Path

from pike_hpc.config import resolve, site_names, site_variants
from pike_hpc.config.site import load_site, shipped_sites_dir
from pike_hpc.launch import dry_run, plan_jobs, scrontab_lines, slurm_parameters

REPO = Path(__file__).resolve().parents[2]
SITES = shipped_sites_dir()
GOLDEN = REPO / "tests/golden/sites"
ENVIRON = {"SCRATCH": "/pscratch/sd/u/user", "USER": "user", "HOME": "/home/user"}


def names() -> tuple[str, ...]:
    """Every shipped site with Slurm, and each with every variant of it."""
    return tuple(
        whole
        for site in site_names(SITES, None)
        if load_site(site, sites_dir=SITES).scheduler == "slurm"
        for whole in (site, *(f"{site}:{v}" for v in site_variants(site, sites_dir=SITES)))
    )


def file_of(name: str) -> Path:
    """Where a site's scripts lie."""
    return GOLDEN / f"{name.replace(':', '-')}.sbatch"


def render(name: str) -> str:
    """A worker and an array of two agents of a run of five tasks, charged to m1234.

    For scrontab its lines, in place of the array.
    """
    resolved = resolve(
        REPO / "workflows/quickstart.yaml",
        name,
        environ=ENVIRON,
        sites_dir=SITES,
        account="m1234",
        sets=("agent.tasks_per_job=3",),
    )
    run = Path(resolved.site.paths.work) / "run"
    ids = [str(number) for number in range(1, 6)]
    python = f"{resolved.site.paths.work}/venv/bin/python"
    lib = run / "code/lib"
    workers, agents = plan_jobs(resolved, run, ids, python=python, lib=lib)
    worker = dry_run(run, workers, slurm_parameters(resolved, "worker", "pike-worker"))
    if resolved.site.agent.where == "scrontab":
        return f"{worker}\n# scrontab\n{scrontab_lines(run, resolved)}\n"
    agent = dry_run(run, agents, slurm_parameters(resolved, "agent", "pike-agent"))
    return f"{worker}\n{agent}"


if __name__ == "__main__":
    for each in names():
        file_of(each).write_text(render(each), "utf-8")
