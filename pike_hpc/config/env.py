"""The environment of this process. The only module that reads it; everyone else is told."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pike_hpc.config.site import shipped_sites_dir
from pike_hpc.records import UsageError


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key that shows itself only when asked to: its repr is its name."""

    name: str
    _value: str = field(repr=False)

    def reveal(self) -> str:
        """The key itself, for the client that sends it and nothing else."""
        return self._value


def environ() -> dict[str, str]:
    """A copy of the environment."""
    return dict(os.environ)


@contextlib.contextmanager
def replaced(by: Mapping[str, str]) -> Iterator[None]:
    """This process's environment is `by` meanwhile, for libraries that pass it on by themselves."""
    before = environ()
    given = dict(by)  # it may be made of the very thing that is emptied now
    try:
        os.environ.clear()
        os.environ.update(given)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def api_key(
    key_env: str, env: Mapping[str, str], key_files: Mapping[str, str] | None = None
) -> ApiKey:
    """The key that the variable `key_env` holds, else the file named for it at the user's site.

    Raises UsageError where neither has it, or where others can read the file.
    """
    value = env.get(key_env, "").strip()
    file = (key_files or {}).get(key_env)
    if not value and file:
        value = _read_private(Path(file), key_env)
    if not value:
        raise UsageError(
            f"no API key: {key_env} is not set",
            where=f"environment {key_env}",
            fix=f"export {key_env}=…, or name a file of mode 0600 under key_files in your site "
            "file ($XDG_CONFIG_HOME/pike-hpc/sites/<site>.yaml)",
        )
    return ApiKey(key_env, value)


def no_color(env: Mapping[str, str]) -> bool:
    """Whether colour is refused: NO_COLOR set to anything, or a dumb terminal."""
    return bool(env.get("NO_COLOR")) or env.get("TERM") == "dumb"


def user_config_dir(env: Mapping[str, str]) -> Path:
    """$XDG_CONFIG_HOME/pike-hpc, by default ~/.config/pike-hpc; it need not exist."""
    base = env.get("XDG_CONFIG_HOME", "")
    home = Path(base) if base.startswith("/") else Path(env.get("HOME") or "/") / ".config"
    return home / "pike-hpc"


def user_cache_dir(env: Mapping[str, str]) -> Path:
    """$XDG_CACHE_HOME/pike-hpc, by default ~/.cache/pike-hpc; it need not exist."""
    base = env.get("XDG_CACHE_HOME", "")
    home = Path(base) if base.startswith("/") else Path(env.get("HOME") or "/") / ".cache"
    return home / "pike-hpc"


def sites_dir(env: Mapping[str, str]) -> Path:
    """Folder of the shipped sites: $PIKE_SITES_DIR, else the shipped site_configs/."""
    return Path(env["PIKE_SITES_DIR"]) if env.get("PIKE_SITES_DIR") else shipped_sites_dir()


def _read_private(path: Path, key_env: str) -> str:
    where = f"key_files.{key_env}: {path}"
    try:
        found = path.stat()
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise UsageError("others can read this key file", where=where, fix=f"chmod 600 {path}")
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the key file: {error}", where=where) from None
