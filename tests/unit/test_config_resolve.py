"""Which layer wins, what a run is called, and what its run.yaml keeps."""

from pathlib import Path
from typing import Any

import pytest

from pike_hpc.config import Resolved, difference, from_run_yaml, resolve, to_run_yaml
from pike_hpc.config.site import shipped_sites_dir, site_names
from pike_hpc.records import UsageError

WORKFLOW = """\
schema_version: 1
name: try
tasks: {suite: level3-pike, ids: "1-5"}
models: {optimise: {provider: openai, model: m, base_url: "http://localhost:1/v1"}}
workers: {count: 2}
"""
SITE = """\
schema_version: 1
name: here
scheduler: slurm
paths: {work: "$SCRATCH/pike", keep: "${SCRATCH}/kept", tmp: ~/tmp}
container: {engine: apptainer, image: "$SCRATCH/image.sif"}
worker_job: {cpus: 8}
"""
ENV = {"SCRATCH": "/scratch/u", "HOME": "/home/u"}


def make(tmp_path: Path, *, workflow: str = WORKFLOW, site: str = SITE, **more: Any) -> Resolved:
    (tmp_path / "sites").mkdir(exist_ok=True)
    (tmp_path / "sites/here.yaml").write_text(site)
    (tmp_path / "w.yaml").write_text(workflow)
    return resolve(
        tmp_path / "w.yaml",
        "here",
        environ=more.pop("environ", ENV),
        sites_dir=tmp_path / "sites",
        **more,
    )


def refused(tmp_path: Path, **more: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        make(tmp_path, **more)
    return caught.value


def test_each_layer_wins_over_the_one_below(tmp_path: Path) -> None:
    key = "workers.count"
    found = make(tmp_path)
    assert (found.workflow.workers.count, found.sources[key]) == (2, f"{tmp_path}/w.yaml:5")
    env = ENV | {"PIKE_WORKERS__COUNT": "3"}
    found = make(tmp_path, environ=env)
    assert found.workflow.workers.count == 3
    assert found.sources[key] == "environment PIKE_WORKERS__COUNT"
    found = make(tmp_path, environ=env, sets=["workers.count=4", "workers.count=5"])
    assert (found.workflow.workers.count, found.sources[key]) == (5, "--set workers.count=5")
    assert found.sources["workers.max_idle_s"] == "default"
    assert found.sources["name"] == f"{tmp_path}/w.yaml:2"
    assert found.sources["site.name"] == f"{tmp_path}/sites/here.yaml:2"


def test_the_site_can_be_overridden_likewise(tmp_path: Path) -> None:
    own = tmp_path / "user/sites"
    own.mkdir(parents=True)
    (own / "here.yaml").write_text("account: mine\nworker_job: {qos: low, cpus: 9}\n")
    found = make(tmp_path, user_config_dir=tmp_path / "user")
    assert (found.site.account, found.site.worker_job.cpus) == ("mine", 9)
    env = ENV | {"PIKE_ACCOUNT": "env", "PIKE_WORKER_JOB__QOS": "high"}
    found = make(tmp_path, user_config_dir=tmp_path / "user", environ=env)
    assert (found.site.account, found.site.worker_job.qos) == ("env", "high")
    found = make(tmp_path, environ=env, sets=["account=set"])
    assert found.site.account == "set"
    found = make(tmp_path, environ=env, sets=["account=set"], account="1234")
    assert (found.site.account, found.sources["account"]) == ("1234", "--account")


def test_what_nobody_wrote_below_can_be_set(tmp_path: Path) -> None:
    found = make(
        tmp_path,
        sets=["tasks.shape_overrides.8.batch_size=2", "evaluate.devices=[cpu]", "tasks.ids=null"],
        environ=ENV | {"PIKE_MODELS__FIX__PROVIDER": "scripted", "PIKE_MODELS__FIX__MODEL": "s"},
    )
    assert found.workflow.tasks.shape_overrides == {"8": {"batch_size": 2}}
    assert found.workflow.evaluate.devices == ("cpu",)
    assert found.workflow.tasks.ids is None
    assert found.workflow.models["fix"].provider == "scripted"


@pytest.mark.parametrize(
    ("text", "says", "helps"),
    [
        ("workers.cuont=1", "unknown key 'workers.cuont'", "'count'"),
        ("wokers.count=1", "unknown key 'wokers'", "'workers'"),
        ("name=x", "unknown key 'name'", ""),
        ("workers.count", "KEY=VALUE", ""),
        ("=3", "KEY=VALUE", ""),
        ("workers..count=3", "unknown key 'workers.'", ""),
        ("workers.count.x=3", "expected a whole number, found a mapping", ""),
        ("budget.wall_minutes=12:30:00", "base 60", "write minutes"),
        ("tasks.ids=4", "expected text", "--set 'tasks.ids=\"4\"'"),
        ("workers.count=[1", "not YAML", ""),
    ],
)
def test_a_wrong_set_names_itself(tmp_path: Path, text: str, says: str, helps: str) -> None:
    error = refused(tmp_path, sets=[text])
    assert says in error.what
    assert error.where == f"--set {text}"
    assert helps in (error.fix or "")


def test_a_wrong_variable_names_itself_and_foreign_ones_are_passed_over(tmp_path: Path) -> None:
    error = refused(tmp_path, environ=ENV | {"PIKE_WORKERS__CONT": "1"})
    assert error.where == "environment PIKE_WORKERS__CONT"
    error = refused(tmp_path, environ=ENV | {"PIKE_WORKERS__COUNT": "no"})
    assert error.where == "environment PIKE_WORKERS__COUNT"
    make(tmp_path, environ=ENV | {"PIKE_REQUIRE": "slurm", "PIKE_SITES_DIR": "/x", "PIKEX__Y": ""})


def test_paths_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make(tmp_path).site
    assert (site.paths.work, site.paths.keep) == ("/scratch/u/pike", "/scratch/u/kept")
    assert site.paths.tmp == "/home/u/tmp"
    assert site.container.image == "/scratch/u/image.sif"
    monkeypatch.chdir(tmp_path)
    relative = make(tmp_path, sets=["paths.work=runs"]).site
    assert relative.paths.work == f"{tmp_path}/runs"
    named = make(tmp_path, sets=["container.image=pike-hpc:cuda"]).site
    assert named.container.image == "pike-hpc:cuda"


def test_an_unset_variable_is_named_with_its_place(tmp_path: Path) -> None:
    error = refused(tmp_path, environ={"HOME": "/home/u"})
    assert "$SCRATCH is not set" in error.what
    assert error.where == f"{tmp_path}/sites/here.yaml:4"


def test_a_folder_of_tasks_is_found_from_where_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = WORKFLOW.replace('suite: level3-pike, ids: "1-5"', "path: mine")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    assert make(tmp_path, workflow=workflow).workflow.tasks.path == f"{tmp_path}/mine"
    found = make(tmp_path, sets=["tasks.suite=null", "tasks.path=mine"])
    assert found.workflow.tasks.path == f"{tmp_path}/cwd/mine"


def test_the_run_is_named_by_the_work(tmp_path: Path) -> None:
    base = make(tmp_path)
    assert base.run_dir == Path(f"/scratch/u/pike/try-{base.digest[:8]}")
    same = make(tmp_path, sets=["workers.count=9", "models.optimise.key_env=K", "account=x"])
    assert same.digest == base.digest
    assert difference(base.workflow, same.workflow) == ()
    for changed in (
        "tasks.ids=1-6",
        "search.seed=1",
        "budget.wall_minutes=1",
        "models.optimise.temperature=0.1",
        "evaluate.min_isolation=L2",
    ):
        other = make(tmp_path, sets=[changed])
        assert other.digest != base.digest
        (line,) = difference(base.workflow, other.workflow)
        assert line.startswith(changed.partition("=")[0] + ": ")


def test_a_difference_reads_as_one_line_a_key(tmp_path: Path) -> None:
    sets = ["budget.queries_per_task=200", "evaluate.tiers=[fp32]", "search.options.branches=3"]
    lines = difference(make(tmp_path).workflow, make(tmp_path, sets=sets).workflow)
    assert lines == (
        "budget.queries_per_task: 300 -> 200",
        'evaluate.tiers: ["fp32", "tf32", "half"] -> ["fp32"]',
        "search.options.branches: absent -> 3",
    )


def test_run_yaml_gives_back_what_was_resolved(tmp_path: Path) -> None:
    odd = [
        "search.options.a='12:30:00'",
        "search.options.b='no'",
        "search.options.c='1e3'",
        "search.options.d=1.5",
        "search.options.e=true",
        'search.options.f="\\u2028 # \\x85 \\U0001F600: {"',
        "worker_job.extra.mem-per-cpu=18400M",
        'setup=["a: b", "- c", ""]',
    ]
    found = make(tmp_path, sets=odd)
    assert from_run_yaml(to_run_yaml(found), "run.yaml") == found
    assert from_run_yaml(to_run_yaml(found), "run.yaml").digest == found.digest


def test_a_run_that_an_older_version_made_opens_whatever_a_new_one_may_ask_for(
    tmp_path: Path,
) -> None:
    found = make(tmp_path, sets=["evaluate.timeout_s=604800"])
    text = to_run_yaml(found).replace("timeout_s: 604800.0", "timeout_s: 9000000.0")
    assert from_run_yaml(text, "run.yaml").workflow.evaluate.timeout_s == 9e6
    error = refused(tmp_path, sets=["evaluate.timeout_s=604801"])
    assert "more than 604800, a week" in str(error)
    assert error.where == "--set evaluate.timeout_s=604801"


def test_run_yaml_of_another_version_says_what_to_do(tmp_path: Path) -> None:
    text = to_run_yaml(make(tmp_path))
    with pytest.raises(UsageError) as caught:
        from_run_yaml(text.replace("run_version: 1", "run_version: 7"), "RUN/run.yaml")
    assert "version 7" in caught.value.what
    assert caught.value.where == "RUN/run.yaml:2"
    assert "newer" in (caught.value.fix or "")
    with pytest.raises(UsageError, match="no run_version"):
        from_run_yaml("schema_version: 1\n", "x.yaml")
    with pytest.raises(UsageError, match="unknown key"):
        from_run_yaml(text + "more: 1\n", "RUN/run.yaml")


ROOT = shipped_sites_dir().parent


@pytest.mark.parametrize("workflow", sorted(p.stem for p in (ROOT / "workflows").glob("*.yaml")))
@pytest.mark.parametrize("site", site_names(ROOT / "site_configs", None))
def test_every_shipped_workflow_resolves_at_every_shipped_site(workflow: str, site: str) -> None:
    found = resolve(
        ROOT / f"workflows/{workflow}.yaml",
        site,
        environ={"SCRATCH": "/s", "USER": "u", "HOME": "/home/u"},
        sites_dir=ROOT / "site_configs",
    )
    assert found.workflow.name == workflow
    assert from_run_yaml(to_run_yaml(found), "run.yaml") == found


def test_quickstart_needs_no_key_and_little_time() -> None:
    found = resolve(
        ROOT / "workflows/quickstart.yaml", "local", environ={}, sites_dir=ROOT / "site_configs"
    )
    workflow = found.workflow
    assert not workflow.asks_models
    assert workflow.budget.wall_minutes <= 10
    assert workflow.evaluate.min_isolation == "L1"
