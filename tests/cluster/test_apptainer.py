"""A real Apptainer, used by an ordinary user: what its options cut off, and what they leave."""

import socket

import pytest

CUT = ("--containall", "--no-home", "--net", "--network", "none")
"""What `pike_hpc.sandbox` gives it, as far as the network goes."""


@pytest.fixture(scope="module")
def image(demand, request):
    """`image(*options, script)`: run a script in an image made from the folder `root`."""
    demand("apptainer")
    busybox = request.getfixturevalue("busybox")
    busybox.run("apptainer", "build", "image.sif", "root")

    def execute(*options_and_script):
        *options, script = options_and_script
        command = ("exec", "--cleanenv", *options, "image.sif", "/bin/sh", "-c", script)
        return busybox.tried("apptainer", "--silent", *command)

    return execute


@pytest.fixture
def listener():
    """Somebody on this machine's loopback who hangs up on whoever calls."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def reaches(listener, image, *options):
    """Whether a call from inside the image arrived."""
    call = f"busybox timeout 3 busybox nc 127.0.0.1 {listener.getsockname()[1]}"
    image(*options, call)
    listener.setblocking(False)
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def test_a_program_runs_in_the_image_as_the_user(image, busybox):
    done = image(*CUT, "busybox id -u")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(busybox.uid)]


def test_the_status_of_the_program_comes_out(image):
    assert image(*CUT, "exit 3").returncode == 3


def test_containall_alone_leaves_the_network_open(image, listener):
    assert reaches(listener, image, "--containall", "--no-home")


def test_network_none_cuts_it(image, listener):
    assert not reaches(listener, image, *CUT)


def test_network_none_leaves_no_interface_but_loopback(image):
    done = image(*CUT, "busybox sed -n 's/:.*//p' /proc/net/dev")
    assert done.stdout.split() == ["lo"]


def test_a_folder_bound_read_only_is_not_written(image, busybox):
    busybox.run("mkdir", "-p", "shown")
    bind = ("--bind", f"{busybox.folder}/shown:/mnt:ro")
    done = image(*CUT, *bind, "busybox touch /mnt/x")
    assert "Read-only file system" in done.stderr
    assert not list((busybox.folder / "shown").iterdir())


def test_it_runs_inside_a_job(image, busybox, slurm):
    """Started by a node's daemon rather than by a login, and sees the job's GPU if it is told."""
    exec_ = f"apptainer --silent exec --containall {busybox.folder}/image.sif /bin/sh -c"
    script = f"{exec_} 'busybox id -u; echo gpu=$CUDA_VISIBLE_DEVICES'"
    option = "--env CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"
    script += f"\n{exec_.replace(' exec ', f' exec {option} ')} 'echo gpu=$CUDA_VISIBLE_DEVICES'"
    job = slurm.submit(script, "-p", "gpu", "--gpus-per-node=1")
    slurm.reaches(job, "COMPLETED")
    assert slurm.printed(job) == [str(slurm.uid), "gpu=", "gpu=0"]
