"""What doctor makes of what it finds, by quotas, clocks and programs that answer by hand."""

import dataclasses
import errno
import json
import re
import sys
from pathlib import Path

import pytest
from builders.slurm_run import SITE, scripted_cluster

from pike_hpc.cli import doctor_here, main
from pike_hpc.cli.check import Check, tried
from pike_hpc.cli.doctor import any_work
from pike_hpc.cli.doctor_files import read_lfs_quota, room_check, skew_check
from pike_hpc.cli.doctor_node import MIN_DRIVER, driver, driver_check
from pike_hpc.cli.doctor_slurm import account, on_nodes, scrontab, srun
from pike_hpc.cli.judging_torch import inside
from pike_hpc.config import resolve
from pike_hpc.config.site import shipped_sites_dir
from pike_hpc.evaluate.device import detect
from pike_hpc.proposers.rules.toolchain import COMPILERS
from pike_hpc.records import UsageError


@pytest.mark.parametrize(
    ("told", "state", "says"),
    [
        (100.5, "ok", "agrees"),
        (103.0, "ok", "2.0 s ahead"),
        (110.0, "warn", "9.0 s ahead"),
        (90.0, "warn", "10.0 s behind"),
    ],
)
def test_a_clock_is_compared_with_both_readings_of_ours(told, state, says) -> None:
    check = skew_check(told, 100.0, 101.0, "its clock")
    assert check.state == state
    assert says in check.detail


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("/pscratch 1000000 0 20000000 - 100 0 10000 -\n", (19.456, 9900)),
        ("/pscratch 30000000* 20000000 40000000 6d 100 5000 10000 -\n", (-10.24, 4900)),
        ("/pscratch 1000000 0 0 - 100 0 0 -\n", None),
        ("lfs: no such file\n", None),
        ("", None),
    ],
)
def test_a_quota_of_lustre_is_what_is_left_of_it(said, left) -> None:
    assert read_lfs_quota(said) == (pytest.approx(left) if left else None)


def test_a_driver_that_hangs_is_told_from_a_machine_without_gpu(tmp_path, monkeypatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nexec sleep 60\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = detect("auto", patience_s=0.5)
    assert found.kind == "cpu"
    assert "the NVIDIA driver hangs: nvidia-smi gives no answer within 0.5 s" in found.why
    for check in (doctor_here.device_check(found), driver(any_work("local"), 0.5)):
        assert check.state == "fail"
        assert "driver hangs" in check.detail
        assert "restart" in check.fix
    reworded = dataclasses.replace(found, why="cpu: nobody answers")
    assert doctor_here.device_check(reworded).state == "fail"
    assert doctor_here.device_check(dataclasses.replace(found, hangs=False)).state == "ok"


def test_room_is_told_in_bytes_and_files(tmp_path) -> None:
    assert "GB free" in room_check(tmp_path).detail


@pytest.mark.parametrize(
    ("driver", "cuda", "state"),
    [
        ("580.82.07", "13.0.2", "ok"),
        ("580.65.06", "13.0", "ok"),
        ("575.57.08", "12.8.1", "ok"),
        ("580.82.07", "", "unknown"),
        ("", "13.0", "unknown"),
    ],
)
def test_a_driver_runs_programs_of_a_cuda(driver, cuda, state) -> None:
    check = driver_check(driver, cuda, in_image=True)
    assert (check.state, check.fix) == (state, "")


NODES = "or for nodes that have one (worker_job.constraint, worker_job.partition)"
OLDER = "; or make image SITE=… IMAGE=eval-cuda12, and name that as container.image"
NONE = "; no image for CUDA of containers/ runs with this one"


@pytest.mark.parametrize(
    ("driver", "cuda", "least", "otherwise"),
    [
        ("575.57.08", "13.0", "580.65", OLDER),
        ("525.60.13", "13.0", "580.65", OLDER),
        ("520.61.05", "13.0", "580.65", NONE),
        ("520.61.05", "12.1", "525.60", NONE),
    ],
)
def test_a_driver_that_is_too_old_for_an_image_is_told_with_what_helps(
    driver, cuda, least, otherwise
) -> None:
    check = driver_check(driver, cuda, in_image=True)
    assert check.state == "fail"
    assert check.detail == f"driver {driver}, CUDA {cuda} wants {least}"
    assert check.fix == f"ask the site for a driver from {least} on, {NODES}{otherwise}"


def test_without_an_image_another_torch_helps_where_one_is_old_enough() -> None:
    said = driver_check("575.57.08", "13.0", in_image=False).fix
    assert said.endswith(f"{NODES}; or install a torch that is built for CUDA 12")
    said = driver_check("520.61.05", "12.6", in_image=False).fix
    assert "torch" not in said


def test_each_image_that_is_advised_is_one_that_there_is() -> None:
    """Whichever driver a node has, whatever CUDA its image."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "containers"))
    from recipes import RECIPES  # noqa: PLC0415

    said = " ".join(
        driver_check(f"{release}.99", f"{major}.0", in_image=True).fix
        for major in MIN_DRIVER
        for release in range(400, 700, 5)
    )
    advised = set(re.findall(r"IMAGE=(\S+?),", said))
    assert advised
    assert advised <= set(RECIPES)


def test_a_node_is_asked_for_as_the_jobs_will_ask() -> None:
    parameters = {
        "job_name": "pike",
        "time": 720,
        "qos": "es2_normal",
        "gres": "gpu:H200:1",
        "cpus_per_task": 14,
        "setup": ["module load python"],
        "stderr_to_stdout": True,
        "additional_parameters": {"signal": "TERM@1", "requeue": True, "mem-per-cpu": "18400M"},
        "srun_args": ["--cpus-per-task=14"],
    }
    assert srun(parameters, 60) == [
        *("srun", "--quiet", "--ntasks=1", "--job-name=pike-doctor", "--immediate=60", "--time=5"),
        *("--qos=es2_normal", "--gres=gpu:H200:1", "--cpus-per-task=14", "--mem-per-cpu=18400M"),
    ]


def test_a_check_that_raises_has_failed_and_the_next_is_tried() -> None:
    def wrong() -> Check:
        raise UsageError("it is wrong", fix="mend it")

    def full() -> Check:
        raise OSError(errno.ENOSPC, "No space left on device", str(Path("/work")))

    checks = list(tried({"a": wrong, "b": full, "c": lambda: Check("x", "ok", "fine")}))
    assert [(c.name, c.state) for c in checks] == [("a", "fail"), ("b", "fail"), ("c", "ok")]
    assert checks[0].fix == "mend it"
    assert "/work" in checks[1].detail


@pytest.fixture
def site(tmp_path, monkeypatch):
    """`site(torch, compiler)`: its image holds those, as an `apptainer` says that runs it."""

    def make(torch: str | None, compiler: str | None = None):
        program = tmp_path / "apptainer"
        found = json.dumps({"torch": torch, "compiler": compiler, "headers": True})
        program.write_text(f"#!/bin/sh\necho '{found}'\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        resolved = any_work("local")
        container = dataclasses.replace(
            resolved.site.container, engine="apptainer", image="/images/x.sif"
        )
        site = dataclasses.replace(resolved.site, container=container)
        return dataclasses.replace(resolved, site=site)

    yield make
    inside.cache_clear()


@pytest.mark.parametrize(
    ("torch", "state", "says"),
    [
        ("2.13.0+cu126", "ok", "2.13.0+cu126 in image /images/x.sif"),
        ("2.4.0", "warn", "2.4.0 in image /images/x.sif"),
        (None, "fail", "not in image /images/x.sif"),
    ],
)
def test_the_torch_that_judges_is_the_images(site, torch, state, says) -> None:
    resolved = site(torch)
    check = doctor_here.torch(resolved)
    assert (check.state, says in check.detail) == (state, True)
    compiler = doctor_here.compiler(resolved)
    assert compiler.state == "warn"
    assert compiler.detail.startswith("in the image: lacks a C++ compiler (Debian package g++): ")
    assert "make image" in compiler.fix


def test_an_images_compiler_is_the_images(site) -> None:
    compiler = doctor_here.compiler(site("2.13.0", "/opt/bin/g++"))
    assert compiler.state == "ok"
    assert compiler.detail == "in the image: /opt/bin/g++, headers of Python"


@pytest.mark.parametrize("name", COMPILERS)
def test_any_compiler_that_rules_take_is_tried(tmp_path, monkeypatch, name) -> None:
    program = tmp_path / name
    program.write_text('#!/bin/sh\necho "$*" > "$0.asked"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    check = doctor_here.compiler(any_work("local"))
    assert check.state == "ok"
    assert check.detail.startswith(f"{program} compiles, headers in ")
    assert "-c " in (tmp_path / f"{name}.asked").read_text()
    program.write_text("#!/bin/sh\necho it is broken >&2\nexit 1\n")
    check = doctor_here.compiler(any_work("local"))
    assert (check.state, check.detail) == ("fail", f"{program}: it is broken")
    assert check.fix == f"repair {program}"
    program.unlink()
    check = doctor_here.compiler(any_work("local"))
    assert check.state == "warn"
    assert "lacks a C++ compiler (Debian package g++): rules with torch.compile" in check.detail


@pytest.mark.parametrize(
    ("where", "tested"), [("array", ["worker", "agent"]), ("shell", ["worker"])]
)
def test_slurm_is_asked_about_the_jobs_that_a_run_will_have(tmp_path, monkeypatch, where, tested):
    cluster = scripted_cluster(tmp_path, monkeypatch)
    (tmp_path / "here.yaml").write_text(SITE.replace("where: array", f"where: {where}"))
    cluster.put("default-account", "m0000\n")
    assert account(any_work("here.yaml")).state == "ok"
    assert cluster.lines("tested") == tested


@pytest.fixture
def crontab(tmp_path, monkeypatch):
    """`ask(script)`: what doctor says where scrontab answers so. And the cluster."""
    cluster = scripted_cluster(tmp_path, monkeypatch)
    cluster.put("default-account", "m0000\n")

    def ask(script: str):
        (tmp_path / "here.yaml").write_text(SITE.replace("where: array", "where: scrontab"))
        if script:
            cluster.program("scrontab", f"echo \"$*\" >> '{cluster.folder}/asked'\n{script}")
        return account(any_work("here.yaml")), scrontab(any_work("here.yaml"))

    return ask, cluster


@pytest.mark.parametrize("script", ["echo '*/5 * * * * date'", "echo no crontab for me; exit 1"])
def test_of_scrontabs_agent_it_is_tried_what_its_lines_will_ask_for(crontab, script) -> None:
    ask, cluster = crontab
    jobs, lines = ask(script)
    assert (jobs.state, lines.state) == ("ok", "ok")
    assert cluster.lines("tested") == ["worker", "agent"]
    assert "-l" in cluster.lines("asked"), "scrontab is asked and not changed"


@pytest.mark.parametrize(
    ("script", "state", "says"),
    [
        ("", "fail", "not on PATH"),
        ("echo scrontab: error: scrontab is disabled on this cluster >&2; exit 1", "fail", "disab"),
        ("echo scrontab: error: Connection refused >&2; exit 1", "unknown", "Connection refused"),
    ],
)
def test_a_scrontab_that_takes_no_lines_is_told(crontab, script, state, says) -> None:
    ask, cluster = crontab
    jobs, lines = ask(script)
    assert (jobs.state, lines.state) == ("ok", state)
    assert says in lines.detail
    assert "agent.where: array or shell" in lines.fix
    assert cluster.lines("tested") == ["worker"]


def test_an_agent_that_sbatch_refuses_may_be_for_scrontab_alone(crontab) -> None:
    ask, cluster = crontab
    refuse = "sbatch: error: Invalid qos specification"
    script = f"for f; do :; done; grep -q pike-agent $f || exit 0; echo '{refuse}' >&2; exit 1"
    cluster.program("sbatch", script)
    jobs, lines = ask("exit 0")
    assert (jobs.state, lines.state) == ("ok", "warn")
    assert "would not run the agent job: Invalid qos specification" in lines.detail
    assert "agent.qos is not set" in lines.fix


def test_scrontabs_agent_has_no_key_but_in_a_file(crontab, monkeypatch) -> None:
    ask, _ = crontab
    ask("exit 0")
    monkeypatch.setenv("GEMINI_API_KEY", "of this shell")
    workflow = Path(__file__).parents[2] / "workflows/level3.yaml"
    site = resolve(workflow, "here.yaml", environ={}, sites_dir=shipped_sites_dir())
    (check,) = tried({"scrontab": lambda: scrontab(site)})
    assert check.state == "fail"
    assert "gets no GEMINI_API_KEY from your environment" in check.detail
    assert "key_files" in check.fix


def test_scrontab_is_tried_where_agents_are_its_own(crontab, capsys) -> None:
    ask, _ = crontab
    ask("exit 0")
    for where, expected in (("scrontab", True), ("shell", False)):
        here = ("--site", "here.yaml", "--set", f"agent.where={where}", "--no-nodes", "--json")
        main(["doctor", *here])
        checks = [each["name"] for each in json.loads(capsys.readouterr().out)["checks"]]
        assert ("scrontab" in checks) is expected
        assert "account" in checks


@pytest.mark.parametrize(
    ("where", "job", "placed"),
    [
        ("array", "bash -c, with the way out", {"agent: node"}),
        ("scrontab", "bash -l -c, without", {"agent: node"}),
        ("shell", None, {"model"}),
    ],
)
def test_models_are_asked_from_where_the_agent_will_run(
    crontab, monkeypatch, capsys, where, job, placed
) -> None:
    """A job of scrontab's logs in, and has no proxy of this shell."""
    ask, cluster = crontab
    ask("exit 0")
    monkeypatch.setenv("https_proxy", "http://user:secret@there:1")
    out = "${https_proxy:+, with the way out}"
    script = f"""case "$*" in
    *"bash -l -c"*"--inside agent"*) echo "bash -l -c${{https_proxy:-, without}}" ;;
    *"bash -c"*"--inside agent"*) echo "bash -c{out}" ;;
    esac >> '{cluster.folder}/agent'"""
    cluster.program("srun", script)
    main(["doctor", "--site", "here.yaml", "--set", f"agent.where={where}", "--json"])
    checks = {each["name"] for each in json.loads(capsys.readouterr().out)["checks"]}
    assert "worker: node" in checks
    assert {"model", "agent: node"} & checks == placed
    assert cluster.lines("agent") == ([job] if job else [])


def test_without_nodes_models_are_asked_from_here(crontab, capsys) -> None:
    ask, _ = crontab
    ask("exit 0")
    main(["doctor", "--site", "here.yaml", "--set", "agent.where=scrontab", "--no-nodes", "--json"])
    checks = {each["name"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert (checks["scrontab"]["state"], checks["model"]["state"]) == ("ok", "ok")


def test_where_only_scrontab_is_let_in_models_are_asked_from_here(crontab, capsys) -> None:
    ask, cluster = crontab
    ask("exit 0")
    cluster.program("sbatch", "for f; do :; done; ! grep -q pike-agent $f")
    cluster.program("srun", f"echo \"$*\" >> '{cluster.folder}/asked-for'")
    main(["doctor", "--site", "here.yaml", "--set", "agent.where=scrontab", "--json"])
    checks = {each["name"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["scrontab"]["state"] == "warn"
    assert checks["model"]["state"] == "ok"
    assert not [line for line in cluster.lines("asked-for") if "--inside agent" in line]


def test_slurms_default_pays_for_what_doctor_asks_as_it_would_for_a_run(tmp_path, monkeypatch):
    cluster = scripted_cluster(tmp_path, monkeypatch)
    cluster.put("default-account", "m0000\n")
    cluster.program("srun", f"echo \"$*\" | grep -o 'account=[^ ]*' >> '{cluster.folder}/charged'")
    (tmp_path / "here.yaml").write_text(SITE + "account_gpu_suffix: _g\n")
    (tmp_path / "runs").mkdir()
    site = any_work("here.yaml")
    assert account(site).detail.startswith("account: m0000_g for workers, m0000 for agents (Slurm")
    asked = on_nodes(site, ("worker", "agent"), (), 1)
    assert [check.name for check in asked] == ["worker: node", "agent: node"]
    assert cluster.lines("charged") == ["account=m0000_g", "account=m0000"]
