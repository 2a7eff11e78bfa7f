"""What containers/build.py wants to know of a site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pike_hpc.cli.doctor import any_work
from pike_hpc.cli.doctor_slurm import allocation
from pike_hpc.launch import slurm_parameters, with_account

JOB_MINUTES = 120
"""Of a job that makes an image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSite:
    """Where an image is made, and for whom."""

    engine: str
    image: str
    """Its name, for engines whose images have names."""
    work: Path
    tmp: Path
    has_gpus: bool
    as_job: bool
    options: Mapping[str, object]
    """Of sbatch, for a job without GPU."""


def image_site(name: str, account: str | None = None) -> ImageSite:
    """Read the site; a job is charged to `account`, or as its runs are. Raises UsageError."""
    resolved = any_work(name, account)
    if resolved.site.container.build_in == "job":
        resolved = with_account(resolved)
    site = resolved.site
    engine = site.container.engine
    has_image = site.container.image is not None
    given = slurm_parameters(resolved, "agent", "pike-image") if site.scheduler == "slurm" else {}
    return ImageSite(
        engine=engine if has_image else "apptainer",
        image=site.container.image or "",
        work=Path(site.paths.work),
        tmp=Path(site.paths.tmp),
        has_gpus=site.worker_job.gpu_model is not None,
        as_job=site.container.build_in == "job",
        options={"job-name": "pike-image", "time": JOB_MINUTES, **allocation(given)},
    )
