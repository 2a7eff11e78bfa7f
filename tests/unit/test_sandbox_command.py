"""The argv of each engine: golden where a container's command line is the contract."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pike_hpc.records import UsageError
from pike_hpc.sandbox import (
    Engine,
    HostFacts,
    SandboxSpec,
    command,
    environment,
    home,
    interpreter,
)
from pike_hpc.sandbox.command import NARROW
from pike_hpc.sandbox.containers import CONTAIN, KEEP
from pike_hpc.sandbox.filter import seccomp
from pike_hpc.sandbox.host import gpu_nodes
from pike_hpc.sandbox.leftovers import ended, ids
from pike_hpc.sandbox.narrow import HAND_OVER_FD

ROOT = HostFacts(
    uid=0,
    gid=0,
    kernel=(6, 1),
    python="/opt/py/bin/python",
    programs=frozenset({"setpriv", "prlimit", "unshare", "bwrap", "apptainer"}),
    system=("/usr", "/etc/ld.so.cache"),
    links=(("/bin", "usr/bin"),),
    gpu_devices=("/dev/nvidia0", "/dev/nvidiactl"),
)
USER = HostFacts(
    uid=1000,
    gid=100,
    kernel=(6, 1),
    python="/opt/py/bin/python",
    programs=ROOT.programs,
    system=ROOT.system,
    links=ROOT.links,
    gpu_devices=ROOT.gpu_devices,
)
OLD_KERNEL = HostFacts(uid=1000, gid=100, kernel=(4, 18), python="python", programs=ROOT.programs)


def spec(**more):
    given = {
        "argv": ("python", "-m", "runner"),
        "read_only": (Path("/home/me/venv"),),
        "shared": (Path("/local/sock"),),
        "env": {"B": "2", "A": "one two"},
        "scratch_mb": 64,
        "processes": 32,
    }
    return SandboxSpec(**{**given, **more})


def plan(facts, **more):
    argv = command(Engine.UNSHARE, spec(**more), facts)
    assert argv[:3] == ["/opt/py/bin/python", "-I", "-S"] or facts is OLD_KERNEL
    assert Path(argv[3]).name == "enter.py"
    return json.loads(argv[4])


def test_bare_root_becomes_nobody_with_a_clean_environment_and_limits():
    assert command(Engine.NONE, spec(scratch=Path("/local/s1"), memory_mb=8), ROOT) == [
        *("env", "-i", "--chdir=/local/s1", "A=one two", "B=2"),
        *("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"),
        *("--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"),
        *("prlimit", "--core=0", "--fsize=67108864", "--sigpending=256"),
        *("--data=8388608", "--nproc=512"),  # of all sandboxes of this host together
        *("python", "-m", "runner"),
    ]


def test_bare_user_sets_no_process_limit_because_it_would_count_the_judge():
    argv = command(Engine.NONE, spec(), USER)
    assert argv == [
        *("env", "-i", "A=one two", "B=2", "setpriv", "--no-new-privs"),
        *("prlimit", "--core=0", "--fsize=67108864", "--sigpending=256"),
        *("python", "-m", "runner"),
    ]


def test_bare_leaves_out_what_the_host_does_not_have():
    bare_host = HostFacts(uid=1000, gid=100, kernel=(6, 1), python="python")
    assert command(Engine.NONE, spec(env={}), bare_host) == ["env", "-i", "python", "-m", "runner"]


def test_unshare_plan_says_everything():
    assert plan(ROOT, memory_mb=16) == {
        "argv": ["python", "-m", "runner"],
        "env": {"A": "one two", "B": "2"},
        "links": [["/bin", "usr/bin"]],
        "shown": [
            ["/etc/ld.so.cache", False],
            ["/home/me/venv", False],
            ["/local/sock", True],
            ["/usr", False],
        ],
        "devices": list(ROOT.devices),
        "scratch_bytes": 64 << 20,
        "memory_bytes": 16 << 20,
        "processes": 32,
        "timers": 256,
        "filter": "",
        "outer_uid": 0,
        "outer_gid": 0,
        "inner_id": 65534,
    }


def test_unshare_shows_gpus_only_when_asked():
    assert "/dev/nvidia0" not in plan(USER)["devices"]
    assert plan(USER, gpu=True)["devices"][-2:] == ["/dev/nvidia0", "/dev/nvidiactl"]


FOUR = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")
SIBLINGS = replace(
    USER,
    gpu_devices=FOUR,
    gpu_nodes=(("GPU-a", "/dev/nvidia1"),),
)


@pytest.mark.parametrize(
    ("uuid", "shown"),
    [
        ("GPU-a", [*FOUR[1:]]),
        ("GPU-b", [*FOUR]),  # whose own it is not known
        ("", [*FOUR]),
        ("MIG-c", [*FOUR]),  # the driver tells whole GPUs alone
    ],
)
def test_a_gpus_siblings_are_not_shown(uuid, shown):
    asked = {"gpu": True, "gpu_uuid": uuid}
    assert [d for d in plan(SIBLINGS, **asked)["devices"] if "nvidia" in d] == shown
    argv = command(Engine.BUBBLEWRAP, spec(**asked), SIBLINGS)
    assert pairs(argv, "--dev-bind") == [(device, device) for device in shown]
    assert not pairs(command(Engine.BUBBLEWRAP, spec(gpu_uuid=uuid), SIBLINGS), "--dev-bind")


def test_the_driver_tells_whose_node_is_which(tmp_path):
    told = {
        "0000:01:00.0": "GPU UUID: \t GPU-b\nDevice Minor: \t 0\n",
        "0000:02:00.0": "odd",
        "0000:03:00.0": "GPU UUID: \t GPU-????????-????\nDevice Minor: \t 1\n",  # nobody uses it
    }
    for place, text in told.items():
        (tmp_path / place).mkdir()
        (tmp_path / place / "information").write_text(f"Model: \t H100\n{text}")
    (tmp_path / "0000:04:00.0/information").mkdir(parents=True)  # what can't be read
    assert gpu_nodes(tmp_path) == (("GPU-b", "/dev/nvidia0"),)
    assert gpu_nodes(tmp_path / "absent") == ()


def test_an_old_kernel_counts_all_processes_of_a_user_so_none_are_limited():
    assert plan(OLD_KERNEL)["processes"] == 0
    assert not any("--nproc" in a for a in command(Engine.BUBBLEWRAP, spec(), OLD_KERNEL))
    assert plan(USER)["processes"] == 32


def pairs(argv, flag, width=2):
    return [tuple(argv[i + 1 : i + 1 + width]) for i, a in enumerate(argv) if a == flag]


@pytest.mark.parametrize("facts", [ROOT, USER])
def test_bubblewrap_cuts_everything_and_shows_what_is_named(facts):
    argv = command(Engine.BUBBLEWRAP, spec(), facts)
    options = argv[: argv.index("--")]
    assert argv[0] == "bwrap"
    for flag in ("ipc", "pid", "net", "uts"):
        assert f"--unshare-{flag}" in options
    assert {"--die-with-parent", "--new-session", "--clearenv"} <= set(options)
    assert pairs(options, "--setenv") == [("A", "one two"), ("B", "2")]
    assert pairs(options, "--ro-bind") == [
        ("/etc/ld.so.cache", "/etc/ld.so.cache"),
        ("/home/me/venv", "/home/me/venv"),
        ("/usr", "/usr"),
    ]
    assert pairs(options, "--bind") == [("/local/sock", "/local/sock")]
    assert pairs(options, "--dir", 1) == [("/etc",), ("/home",), ("/home/me",), ("/local",)]
    assert pairs(options, "--remount-ro", 1) == [("/dev",), ("/",)]
    assert pairs(options, "--size", 5) == [
        ("67108864", "--perms", "1777", "--tmpfs", "/dev/shm"),
        ("67108864", "--perms", "1777", "--tmpfs", "/tmp"),
    ]
    assert argv[-3:] == ["python", "-m", "runner"]


def test_an_outer_folder_never_covers_an_inner_one():
    nested = {"read_only": (Path("/a/b"), Path("/c")), "shared": (Path("/a"), Path("/c/d"))}
    shown = [("/a", True), ("/a/b", False), ("/c", False), ("/c/d", True)]
    system = [(path, False) for path in USER.system]
    assert [tuple(s) for s in plan(USER, **nested)["shown"]] == sorted([*shown, *system])
    argv = command(Engine.BUBBLEWRAP, spec(**nested), USER)
    binds = [
        (argv[i + 1], a == "--bind") for i, a in enumerate(argv) if a in ("--bind", "--ro-bind")
    ]
    assert binds == sorted([*shown, *system])


def test_bubblewrap_root_gives_the_uid_away_inside():
    argv = command(Engine.BUBBLEWRAP, spec(), ROOT)
    assert "--unshare-user" not in argv
    inside = argv[argv.index("--") + 1 :]
    assert inside[:6] == ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    assert "--bounding-set=-all" in inside
    assert "--nproc=512" in inside, "all sandboxes of this host together"


def test_bubblewrap_user_maps_to_nobody():
    argv = command(Engine.BUBBLEWRAP, spec(gpu=True), USER)
    assert pairs(argv, "--unshare-user", 4) == [("--uid", "65534", "--gid", "65534")]
    assert "--cap-add" not in argv
    assert pairs(argv, "--dev-bind") == [(d, d) for d in USER.gpu_devices]


def test_apptainer_user_golden():
    argv = command(Engine.APPTAINER, spec(image="/images/cuda.sif", gpu=True), USER)
    assert argv == [
        *("apptainer", "--silent", "exec", "--containall", "--no-home", "--cleanenv"),
        "--no-privs",
        *("--net", "--network", "none", "--no-mount", "hostfs,home,cwd", "--nv"),
        *("--bind", "/home/me/venv:/home/me/venv:ro", "--bind", "/local/sock:/local/sock:rw"),
        *("--env", "A=one two", "--env", "B=2", "--pwd", "/tmp", "/images/cuda.sif"),
        *("prlimit", "--core=0", "--fsize=67108864", "--sigpending=256"),
        *("python", "-m", "runner"),
    ]


def test_apptainer_is_told_of_the_home_folder_inside():
    env = {"HOME": "/tmp", "A": "1"}
    argv = command(Engine.APPTAINER, spec(image="i.sif", env=env), USER)
    assert argv[argv.index("i.sif") + 1 :][:3] == ["env", "HOME=/tmp", "prlimit"]
    assert not [word for word in argv[: argv.index("i.sif")] if word.startswith("HOME=")]


def test_apptainer_root_uses_a_user_namespace():
    argv = command(Engine.APPTAINER, spec(image="i.sif"), ROOT)
    assert "--userns" in argv[: argv.index("i.sif")]
    assert "--nv" not in argv


INSIDE = [
    *("prlimit", "--core=0", "--fsize=67108864", "--sigpending=256"),
    *("python", "-m", "runner"),
]
CLIENT = replace(USER, client_env=(("HOME", "/home/me"), ("PATH", "/usr/bin")))


def contained(name, own, user, gpu):
    """The command line of an engine that runs containers, as sites document its options."""
    keep = str(KEEP)
    return [
        *("env", "-i", "HOME=/home/me", "PATH=/usr/bin"),
        *("/opt/py/bin/python", "-I", "-S", str(CONTAIN), name, "run"),
        *("--rm", "--interactive", "--pull", "never"),
        *("--label", "pike-hpc=sandbox", "--log-driver", "none"),
        *("--network", "none", "--ipc", "private", "--hostname", "sandbox"),
        *("--cap-drop", "all", "--security-opt", "no-new-privileges", "--read-only"),
        *own,
        *("--user", user),
        *("--tmpfs", "/tmp:rw,exec,nosuid,nodev,mode=1777,size=64m", "--shm-size", "64m"),
        *gpu,
        *("--volume", "/home/me/venv:/home/me/venv:ro", "--volume", f"{keep}:{keep}:ro"),
        *("--volume", "/local/sock:/local/sock:rw"),
        *("--env", "A=one two", "--env", "B=2"),
        *("--workdir", "/tmp", "--entrypoint", "python3", "pike:cuda"),
        *("-I", "-S", keep, *INSIDE),
    ]


PODMAN = ("--http-proxy=false", "--read-only-tmpfs=false")
TOGETHER = ("--pids-limit", "33", "--memory", "88m", "--memory-swap", "88m")


@pytest.mark.parametrize(
    ("engine", "own", "user", "gpu"),
    [
        (Engine.PODMAN_HPC, PODMAN, "0:0", ("--gpu",)),
        (Engine.PODMAN, PODMAN, "0:0", ("--device", "nvidia.com/gpu=all")),
        (Engine.DOCKER, TOGETHER, "1000:100", ("--gpus", "all")),
    ],
)
def test_containers_golden(engine, own, user, gpu):
    argv = command(engine, spec(image="pike:cuda", gpu=True, memory_mb=64), CLIENT)
    limited = [*INSIDE[:4], "--data=67108864", *INSIDE[4:]]
    assert argv == contained(engine.value, own, user, gpu)[: -len(INSIDE)] + limited


@pytest.mark.parametrize("trusted", [False, True])
def test_the_first_program_in_a_container_is_told_its_cpus(trusted):
    """All other engines pass on those of the thread that starts them."""
    asked = spec(image="i", trusted=trusted)
    for engine in (e for e in Engine if e.runs_image):
        argv = command(engine, replace(asked, cpus=(2, 3, 7)), CLIENT)
        if engine.is_container:
            at = argv.index(str(KEEP)) + 1  # the program itself, not its binding
            assert argv.pop(at) == "--cpus=2,3,7"
        assert argv == command(engine, asked, CLIENT)


def test_a_program_of_ours_in_an_image_is_neither_narrowed_nor_limited():
    """What it is shown, and the network that it does not have, are as for any other."""
    ours = spec(image="pike:cuda", gpu=True, memory_mb=64, trusted=True)
    facts = replace(CLIENT, machine="x86_64")
    narrow = f"{NARROW}:{NARROW}:ro"
    for engine, own, user, gpu in (
        (Engine.PODMAN, PODMAN, "0:0", ("--device", "nvidia.com/gpu=all")),
        (Engine.DOCKER, (), "1000:100", ("--gpus", "all")),
    ):
        golden = contained(engine.value, own, user, gpu)[: -len(INSIDE)] + list(ours.argv)
        at = golden.index("--hostname")
        golden[at : at + 2] = ["--uts", "host"]
        assert command(engine, ours, facts) == golden
    argv = command(Engine.APPTAINER, ours, facts)
    assert argv[argv.index("pike:cuda") + 1 :] == list(ours.argv)
    assert narrow not in argv
    theirs = command(Engine.APPTAINER, replace(ours, trusted=False), facts)
    without = [word for word in theirs[: theirs.index("pike:cuda")] if word != narrow]
    without.pop(theirs.index(narrow) - 1)  # the option of the binding left out
    assert argv[: argv.index("pike:cuda")] == without


def test_an_images_python_is_looked_for_where_pytorchs_images_have_it():
    for engine in Engine:
        argv = " ".join(command(engine, spec(image="i", env={"PATH": "/usr/bin"}), USER))
        assert ("PATH=/opt/conda/bin:/usr/bin" in argv) == engine.runs_image


def test_a_program_of_ours_keeps_the_uid_that_owns_its_folder():
    ours = spec(image="i", trusted=True)
    argv = command(Engine.PODMAN, ours, ROOT)
    assert argv[argv.index("--user") + 1] == "0:0"


@pytest.mark.parametrize("engine", [e for e in Engine if not e.runs_image])
def test_an_engine_without_an_image_keeps_no_program_of_ours(engine):
    with pytest.raises(UsageError, match="no program of ours"):
        command(engine, spec(trusted=True), USER)


@pytest.mark.parametrize("engine", [Engine.PODMAN_HPC, Engine.PODMAN, Engine.DOCKER])
def test_nobody_is_root_outside_a_container(engine):
    """A client that root starts maps nobody: 0 inside would be 0 outside."""
    argv = command(engine, spec(image="i"), ROOT)
    assert argv[argv.index("--user") + 1] == "65534:65534"
    assert not {"--gpu", "--gpus", "--device"} & set(argv)


@pytest.mark.parametrize("engine", [Engine.PODMAN_HPC, Engine.PODMAN, Engine.DOCKER])
def test_a_container_refuses_system_calls_by_the_images_python(engine):
    argv = command(engine, spec(image="i"), replace(USER, machine="x86_64"))
    narrow = str(NARROW)
    assert (f"{narrow}:{narrow}:ro",) in pairs(argv, "--volume", 1)
    assert argv[-8:] == ["python3", "-I", "-S", narrow, CODE, "python", "-m", "runner"]


@pytest.mark.parametrize("engine", [Engine.PODMAN_HPC, Engine.PODMAN, Engine.DOCKER])
def test_a_container_needs_an_image_and_paths_that_it_does_not_split(engine):
    with pytest.raises(UsageError, match="runs an image and none is named"):
        command(engine, spec(), USER)
    with pytest.raises(UsageError, match="takes no ':'"):
        command(engine, spec(image="i", shared=(Path("/a:b"),)), USER)


def test_leftovers_are_containers_whose_first_process_is_gone():
    listed = "aaa 11\nbbb 12\nccc 0\nWARN[0000] something else\nddd 13\n"
    assert ended(listed, {12}.__contains__) == ["aaa", "ddd"]
    assert ids(listed) == ["aaa", "bbb", "ccc", "ddd"]


def test_the_image_has_a_python_of_its_own():
    for engine in Engine:
        inside = interpreter(engine.value, "/opt/py/bin/python")[0]
        assert inside == ("python3" if engine.runs_image else "/opt/py/bin/python")
    assert interpreter("auto", "/opt/py/bin/python")[0] == "/opt/py/bin/python"


MACHINE = replace(USER, machine="x86_64")
CODE = seccomp("x86_64").hex()


def test_every_engine_refuses_system_calls_where_the_machine_is_known():
    bare = command(Engine.NONE, spec(), MACHINE)
    assert bare[:3] == ["/opt/py/bin/python", "-I", "-S"]
    assert Path(bare[3]).name == "narrow.py"
    assert bare[4:] == [CODE, *command(Engine.NONE, spec(), USER)]
    assert json.loads(command(Engine.UNSHARE, spec(), MACHINE)[4])["filter"] == CODE


def test_bubblewrap_installs_the_filter_itself_once_its_namespaces_are_made():
    argv = command(Engine.BUBBLEWRAP, spec(), MACHINE)
    assert argv[4:9] == ["--hand-over", CODE, "bwrap", "--seccomp", str(HAND_OVER_FD)]
    assert argv[9:] == command(Engine.BUBBLEWRAP, spec(), USER)[1:]


def test_apptainer_installs_the_filter_inside_last_of_all():
    argv = command(Engine.APPTAINER, spec(image="i.sif"), MACHINE)
    script = argv[-5]
    assert argv[-8:] == [*("python3", "-I", "-S", script, CODE), *spec().argv]
    assert f"{script}:{script}:ro" in argv[: argv.index("i.sif")]


def test_apptainer_refuses_what_its_command_line_cannot_say():
    for bad in ({"env": {"A": "one,two"}}, {"shared": (Path("/a:b"),)}):
        with pytest.raises(UsageError, match="apptainer"):
            command(Engine.APPTAINER, spec(image="i.sif", **bad), USER)
    with pytest.raises(UsageError, match=r"container\.image"):
        command(Engine.APPTAINER, spec(), USER)


@pytest.mark.parametrize("engine", [Engine.NONE, Engine.BUBBLEWRAP])
def test_root_never_runs_a_program_without_giving_its_uid_away(engine):
    facts = HostFacts(uid=0, gid=0, kernel=(6, 1), python="python")
    with pytest.raises(UsageError, match="setpriv is absent"):
        command(engine, spec(), facts)


@pytest.mark.parametrize(
    "bad",
    [
        {"argv": ()},
        {"argv": ("a\0b",)},
        {"read_only": (Path("relative"),)},
        {"shared": (Path("relative"),)},
        {"env": {"A=B": "1"}},
        {"env": {"A": "\0"}},
        {"scratch_mb": 0},
        {"processes": 0},
        {"memory_mb": -1},
    ],
)
def test_a_spec_that_cannot_be_kept_is_refused(bad):
    with pytest.raises(UsageError):
        spec(**bad)


def test_home_is_the_sandbox_scratch_or_the_one_given():
    assert home(Engine.UNSHARE, spec()) == Path("/tmp")
    assert home(Engine.NONE, spec()) is None
    assert home(Engine.NONE, spec(scratch=Path("/local/s"))) == Path("/local/s")


def test_environment_is_an_allow_list_in_one_folder(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    env = environment(Path("/scr"), threads=3, extra={"CUDA_VISIBLE_DEVICES": "1"})
    assert "secret" not in env.values()
    assert env["HOME"] == env["TMPDIR"] == "/scr"
    assert env["OMP_NUM_THREADS"] == env["MKL_NUM_THREADS"] == "3"
    assert env["CUDA_VISIBLE_DEVICES"] == "1"
    assert all(env[k].startswith("/scr/") for k in env if k.endswith(("_CACHE_HOME", "_CACHE_DIR")))
