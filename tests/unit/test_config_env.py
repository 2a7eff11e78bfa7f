"""Keys come from the environment or a private file, and never show themselves."""

from pathlib import Path

import pytest

from pike_hpc.config import env
from pike_hpc.records import UsageError

SECRET = "sk-very-secret"


def test_a_key_from_the_environment_hides_itself() -> None:
    key = env.api_key("MY_KEY", {"MY_KEY": f" {SECRET}\n"})
    assert key.reveal() == SECRET
    assert SECRET not in f"{key!r} {key} {[key]}"
    assert "MY_KEY" in repr(key)


@pytest.mark.parametrize("found", [{}, {"MY_KEY": ""}, {"MY_KEY": "  "}])
def test_an_unset_key_says_what_to_type(found: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        env.api_key("MY_KEY", found)
    assert caught.value.exit_code == 2
    assert "export MY_KEY" in (caught.value.fix or "")


def test_a_key_file_must_be_private(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    assert env.api_key("MY_KEY", {}, {"MY_KEY": str(file)}).reveal() == SECRET
    assert env.api_key("MY_KEY", {"MY_KEY": "other"}, {"MY_KEY": str(file)}).reveal() == "other"
    file.chmod(0o640)
    with pytest.raises(UsageError) as caught:
        env.api_key("MY_KEY", {}, {"MY_KEY": str(file)})
    assert f"chmod 600 {file}" in str(caught.value)
    assert SECRET not in str(caught.value)
    with pytest.raises(UsageError, match="cannot read"):
        env.api_key("MY_KEY", {}, {"MY_KEY": str(tmp_path / "none")})


def test_folders_follow_the_variables() -> None:
    assert env.user_config_dir({"XDG_CONFIG_HOME": "/x"}) == Path("/x/pike-hpc")
    assert env.user_config_dir({"HOME": "/h"}) == Path("/h/.config/pike-hpc")
    assert env.user_config_dir({"XDG_CONFIG_HOME": "rel", "HOME": "/h"}) == Path(
        "/h/.config/pike-hpc"
    )
    assert env.sites_dir({"PIKE_SITES_DIR": "/s"}) == Path("/s")
    assert (env.sites_dir({}) / "local.yaml").is_file()


def test_colour_is_refused_as_the_convention_says() -> None:
    assert env.no_color({"NO_COLOR": "1"})
    assert env.no_color({"TERM": "dumb"})
    assert not env.no_color({"NO_COLOR": "", "TERM": "xterm"})


def test_the_environment_is_a_copy() -> None:
    env.environ()["PIKE_TEST_ONLY"] = "1"
    assert "PIKE_TEST_ONLY" not in env.environ()
