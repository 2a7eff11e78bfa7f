"""A report that is sent away names nobody: no user, host, account or folder of theirs."""

import dataclasses
import getpass
import json
import socket
import sys
from pathlib import Path

import pytest
from builders.slurm_run import SITE, scripted_cluster
from hypothesis import given
from hypothesis import strategies as st

from pike_hpc.cli import main
from pike_hpc.cli.doctor import any_work
from pike_hpc.cli.redacted import Redaction, redaction

WORDS = st.text("ab/._-0 ", max_size=8)


def test_names_are_replaced_by_what_they_name(tmp_path):
    resolved = any_work("local")
    paths = dataclasses.replace(
        resolved.site.paths, work="/scratch/a/alice/w", keep="/cfs/m1234", tmp="/local/scratch"
    )
    site = dataclasses.replace(
        resolved.site, paths=paths, account="m1234_g", account_gpu_suffix="_g"
    )
    environ = {"USER": "alice", "HOME": "/home/a/alice", "https_proxy": "http://gate.lab:80"}
    of = redaction(
        dataclasses.replace(resolved, site=site), environ, hosts=["nid001.lab"], accounts=["m77"]
    ).of
    for said, told in (
        ("ext4 at /scratch/a/alice/w/doctor", "ext4 at <paths.work>/doctor"),
        ("/scratch/a/alice/venv", "/scratch/a/<user>/venv"),
        ("headers in /home/a/alice/py/include", "headers in <home>/py/include"),
        ("/home/a/alicente stays", "/home/a/alicente stays"),
        ("/local/scratch: 5 GB; kept in /cfs/m1234", "<paths.tmp>: 5 GB; kept in <paths.keep>"),
        ("account m1234_g for workers, m1234 for agents", "account <account> for workers, "
         "<account> for agents"),
        ("m77 and /cfs/m1234x", "<account> and /cfs/m1234x"),
        ("nid001.lab is nid001", "<host> is <host>"),
        ("gate.lab gives no answer", "<host> gives no answer"),
        ("srun: error: nid002: task 0: Exited", "srun: error: <host>: task 0: Exited"),
        (f"3.11.7 at {sys.prefix}/bin/python", "3.11.7 at <python>/bin/python"),
        ("/usr/bin/g++ compiles", "/usr/bin/g++ compiles"),
    ):  # fmt: skip
        assert of(said) == told


@given(st.dictionaries(WORDS, st.just("#"), max_size=4), WORDS, WORDS)
def test_a_name_between_spaces_never_stays(names, before, after):
    redacted = Redaction(names)
    for name in names:
        if " " not in name and name not in ("", "/"):
            assert f" {name} " not in redacted.of(f"{before} {name} {after}")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    cluster = scripted_cluster(tmp_path, monkeypatch)
    cluster.put("default-account", "m0000\n")
    answer = {"host": "node17.lab", "now": 0.0, "checks": []}
    answer["checks"] = [{"name": "lock", "state": "warn", "detail": "on node17", "fix": "m0000"}]
    (cluster.folder / "answer").write_text(json.dumps(answer) + "\n")
    cluster.program("srun", f"cat '{cluster.folder}/answer'")
    (tmp_path / "here.yaml").write_text(SITE)
    (tmp_path / "runs").mkdir(exist_ok=True)
    return cluster


def test_what_doctor_collects_names_nobody(cluster, tmp_path, capsys):
    report = tmp_path / "report.json"
    main(["doctor", "--site", "here.yaml", "--json", "--collect", str(report)])
    shown, sent = json.loads(capsys.readouterr().out), json.loads(report.read_text())
    names = ("m0000", "node17", socket.gethostname(), sys.prefix, str(tmp_path / "runs"))
    names += (getpass.getuser(), str(Path.home()))
    whole = json.dumps(sent["checks"])
    assert not [name for name in names if name in whole]
    said = json.dumps(shown)
    assert "node17.lab answered" in said
    assert "m0000" in said
    assert [c["name"] for c in sent["checks"]] == [c["name"] for c in shown["checks"]]
    assert set(sent["checks"][0]) == {"name", "state", "detail", "fix"}
