"""What a run needs is gone for a while: Slurm's daemons, its folder, or room for its files."""

import pytest
from builders.devcluster import await_that

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


HELD = ("worker_job.extra={hold: true}", "agent.extra={hold: true}")
"""Jobs that don't begin by themselves."""


def test_a_run_goes_on_without_slurms_daemons(slurm, rehearsal, undisturbed):
    rehearsal.submit("workers.count=1")  # it lasts longer
    impatient = slurm.impatient()
    rehearsal.judged_more(than=1)
    with slurm.outage():
        rehearsal.judged_more(than=rehearsal.judged())
        found = rehearsal.status(SLURM_CONF=impatient)
        assert found["state"] == "running"
        assert {(job["state"], job["alive"]) for job in found["jobs"]} == {("UNKNOWN", None)}
        assert [worker["state"] for worker in found["workers"]].count("lost") == 0
    rehearsal.ends_like(undisturbed)
    await_that(lambda: set(rehearsal.workers().values()), {"COMPLETED"})


def test_status_asks_the_daemon_that_is_there(slurm, rehearsal):
    """Jobs that nothing happens to: what either knows of them, and who says why they wait."""
    rehearsal.submit(*HELD)
    impatient = slurm.impatient()
    arrays = {job["job_id"].partition("_")[0] for job in rehearsal.status()["jobs"]}

    def known():
        jobs = rehearsal.status(SLURM_CONF=impatient)["jobs"]
        return {(job["state"], job["alive"], job["reason"]) for job in jobs}

    with slurm.outage("slurmdbd"):
        await_that(known, {("PENDING", True, "JobHeldUser")})
    slurm.await_accounts(",".join(arrays), "State", [["PENDING"]] * len(arrays))
    with slurm.outage("slurmctld"):
        await_that(known, {("PENDING", True, "")})
    rehearsal.pike("cancel", "run")


def test_a_run_whose_disk_is_full_goes_on_once_there_is_room(slurm, rehearsal, undisturbed):
    with slurm.small_disk("run", megabytes=16) as disk:
        rehearsal.submit("workers.count=1")
        rehearsal.judged_more(than=1)
        said = "no space left for the run: workers and agents go on once there is some"
        disk.fill()
        agent = list(rehearsal.agents())
        await_that(lambda: said in rehearsal.status()["notes"], True)

        def agent_waits():
            disk.give(pages=1)  # a verdict gets through, and its agent has no room to journal it
            assert rehearsal.status()["state"] == "running"
            disk.fill()
            return (slurm.folder / "run/slurm/no-room").exists()

        await_that(agent_waits, True, within_s=300)  # signs of life take most of the pages
        assert said in rehearsal.status()["notes"]
        before = rehearsal.judged()
        disk.free()
        rehearsal.judged_more(than=before)
        rehearsal.ends_like(undisturbed)
        assert said not in rehearsal.status()["notes"]
        assert list(rehearsal.agents()) == agent, "it waited"


def test_status_says_that_the_node_of_a_job_may_not_see_the_run_folder(slurm, rehearsal):
    """Every node of the rig sees what we see: the folder has another name while the jobs start."""
    rehearsal.submit(*HELD, "workers.count=1")
    jobs = {job["kind"]: job["job_id"] for job in rehearsal.status()["jobs"]}
    slurm.run("mv", "run", "elsewhere")
    slurm.run("scontrol", "release", *jobs.values())
    for job in jobs.values():
        slurm.reaches(job, "FAILED")
    slurm.run("mv", "elsewhere", "run")
    hint = (
        f"its node may not see {slurm.folder}/run; to find out: pike-hpc doctor --site devcluster"
    )
    assert rehearsal.status()["notes"] == [
        f"{kind} job {jobs[kind]} failed and left no log: {hint}" for kind in ("agent", "worker")
    ]
