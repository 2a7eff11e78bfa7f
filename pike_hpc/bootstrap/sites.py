"""What is read of site files before anything is installed: whose login node this is, and `work`.

There is no YAML reader yet, so a few patterns read the forms that such files are written in. What
they miss is seen by `pike-hpc` itself, which reads the same files strictly.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

_NO_CLUSTER = {"local", "template"}
"""Files that name no place to send jobs to."""

_PAIR = re.compile(
    r"""["']?([A-Za-z_]\w*)["']?:[ \t]+(?:"([^"\n]*)"|'([^'\n]*)'|([^\s,{}"'][^,{}\n]*))"""
)


def recognise(environ: Mapping[str, str], sites: Path) -> str:
    """Name of the site whose login node this is, or empty: what `recognise_site` will say.

    Like that one it goes by the shipped files alone.
    """
    for file in sorted(sites.glob("*.yaml")):
        wanted = {} if file.stem == "template" else _identity(_text(file))
        if wanted and all(environ.get(name) == value for name, value in wanted.items()):
            return file.stem
    return ""


def clusters(sites: Path, fill_in: Callable[[str], str]) -> list[str]:
    """Sites that jobs can be sent to, shipped or the user's own."""
    files = [file for folder in (sites, _own(fill_in)) for file in folder.glob("*.yaml")]
    return sorted({file.stem for file in files} - _NO_CLUSTER)


def folder_at(site: str, sites: Path, fill_in: Callable[[str], str]) -> Path | None:
    """Where this clone's environment lies at a site with Slurm; None for beside the code.

    Args:
        site: its name, a variant behind a colon; or empty.
        sites: folder of the shipped site files. The user's own may name another `work`.
        fill_in: replaces $VARIABLES. A path with one that is not set is left to `pike-hpc`,
            which says so.
    """
    name = f"{site.partition(':')[0]}.yaml"
    texts = [
        _text(file) for file in (sites / name, _own(fill_in) / name) if site and file.is_file()
    ]
    whole = "\n".join(texts)
    works = re.findall(r"^  work: *[\"']?([^\"'#\n]+?)[\"']? *(?:#.*)?$", whole, re.MULTILINE)
    if not works or not re.search(r"^scheduler: *slurm\b", whole, re.MULTILINE):
        return None
    work = fill_in(works[-1])
    if "$" in work or not work.startswith("/"):
        return None
    clone = hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]
    return Path(work, f"venv-{clone}")


def _text(file: Path) -> str:
    return file.read_text("utf-8", errors="replace")


def _own(fill_in: Callable[[str], str]) -> Path:
    """Folder of the user's own site files; it need not exist."""
    config = fill_in("$XDG_CONFIG_HOME")
    return Path(config if config.startswith("/") else fill_in("$HOME/.config"), "pike-hpc/sites")


def _identity(text: str) -> dict[str, str]:
    """`identify.env` of a site file, written on one line or on several."""
    text = re.sub(r"(?m)(^|[ \t])#.*$", "", text)
    section = re.search(r"(?m)^identify:(.*(?:\n(?:[ \t].*)?)*)", text)
    env = section[1].partition("env:")[2] if section else ""
    return {name: (a or b or c).strip() for name, a, b, c in _PAIR.findall(env)}
