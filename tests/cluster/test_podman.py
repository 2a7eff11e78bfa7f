"""A real podman without root: an image made here, run by an ordinary user."""

import pytest


@pytest.fixture(scope="module")
def image(demand, request):
    """The name of an image that holds a static busybox."""
    demand("podman")
    busybox = request.getfixturevalue("busybox")
    name = f"localhost/{busybox.folder.name}"
    busybox.run("sh", "-c", f"tar -C root -c . | podman import - {name}")
    yield name
    busybox.run("podman", "rmi", "--force", name)


def test_a_program_runs_in_the_image(image, busybox):
    said = busybox.run("podman", "run", "--rm", image, "sh", "-c", "busybox id -u; echo inside")
    assert said.split() == ["0", "inside"]


def test_what_is_root_inside_is_the_user_outside(image, busybox):
    busybox.run("mkdir", "-p", "out")
    bind = ("--volume", f"{busybox.folder}/out:/mnt")
    busybox.run("podman", "run", "--rm", *bind, image, "busybox", "touch", "/mnt/x")
    assert (busybox.folder / "out/x").stat().st_uid == busybox.uid


def test_network_none_leaves_no_interface_but_loopback(image, busybox):
    list_them = "busybox sed -n 's/:.*//p' /proc/net/dev"
    said = busybox.run("podman", "run", "--rm", "--network=none", image, "sh", "-c", list_them)
    assert said.split() == ["lo"]
