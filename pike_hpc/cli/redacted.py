"""Texts for a report that is sent away: whose machine it was is taken out, what is wrong stays.

Names are replaced by what they name: `<user>`, `<host>`, `<account>`, `<home>`, `<paths.work>`.
"""

from __future__ import annotations

import os
import pwd
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from pike_hpc.config import Resolved

_EVERYWHERE = frozenset({"", "/", "/usr", "/usr/local", "/tmp", "localhost", "127.0.0.1"})  # noqa: S108
"""Names that tell nothing of anybody."""

_NODE = re.compile(r"(?<=error: )[\w.-]+(?=: (?:task|step))|(?<=[Nn]ode failure on )[\w.-]+")
"""Nodes as Slurm names them in a complaint."""


class Redaction:
    """Replaces names wherever they stand as whole words."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names`: each to what it is replaced by."""
        self._names = {name: to for name, to in names.items() if name not in _EVERYWHERE}
        # Of two that begin alike the longer is meant: a folder before the home that it lies in.
        found = "|".join(re.escape(name) for name in sorted(self._names, key=len, reverse=True))
        self._found = re.compile(rf"(?<![A-Za-z0-9])(?:{found})(?![A-Za-z0-9])") if found else None

    def of(self, text: str) -> str:
        """The text without them."""
        if self._found is not None:
            text = self._found.sub(lambda match: self._names[match[0]], text)
        return _NODE.sub("<host>", text)


def redaction(
    resolved: Resolved, environ: Mapping[str, str], *, hosts: Iterable[str], accounts: Iterable[str]
) -> Redaction:
    """What a report on this configuration must not tell.

    Args:
        resolved: its paths, its account, and the hosts of its models.
        environ: names the user, the home and the proxies.
        hosts: nodes that were asked.
        accounts: those that Slurm charges where the configuration names none.
    """
    names: dict[str, str] = {}
    for user in (pwd.getpwuid(os.getuid()).pw_name, environ.get("USER"), environ.get("LOGNAME")):
        names[user or ""] = "<user>"
    for host in (*hosts, *_hosts(resolved, environ)):
        names[host.partition(".")[0]] = names[host] = "<host>"
    for account in (*accounts, *accounts_of(resolved)):
        names[account] = "<account>"
    for prefix in (sys.base_prefix, sys.prefix):
        names[prefix] = "<python>"
    for home in (environ.get("HOME", ""), str(Path.home())):
        names[home.rstrip("/")] = "<home>"
    paths = resolved.site.paths
    for key, path in (("tmp", paths.tmp), ("keep", paths.keep), ("work", paths.work)):
        if path:
            for each in (path, str(Path(path).absolute()), str(Path(path).resolve())):
                names[each.rstrip("/")] = f"<paths.{key}>"
    return Redaction(names)


def accounts_of(resolved: Resolved) -> tuple[str, ...]:
    """Whom the jobs of a configuration are charged to, the name without a GPU's ending too."""
    site = resolved.site
    found = (site.account, site.account_for("worker"), site.account_for("agent"))
    return tuple(dict.fromkeys(name for name in found if name))


def _hosts(resolved: Resolved, environ: Mapping[str, str]) -> Iterator[str]:
    yield from (socket.gethostname(), socket.getfqdn())
    addresses = [model.base_url for model in resolved.workflow.models.values()]
    addresses += [value for name, value in environ.items() if name.lower().endswith("_proxy")]
    for address in addresses:
        host = urlsplit(address).hostname if address and "//" in address else None
        if host:
            yield host
