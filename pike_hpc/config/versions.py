"""Versions of the configuration's schemas. Knows which are read here and what to say otherwise."""

from __future__ import annotations

from pike_hpc.config.schema import INT
from pike_hpc.config.yaml_source import MapNode, ScalarNode
from pike_hpc.records import UsageError

SCHEMA_VERSION = 1
"""Version of the workflow and site schemas; this one and the one before are read."""


def check_version(node: MapNode, what: str, *, required: bool = True) -> None:
    """Refuse a file of a version that is not read here, before anything else in it is judged."""
    found = node.items.get("schema_version")
    if found is None:
        if required:
            raise UsageError(
                f"missing key 'schema_version' in this {what} file",
                where=node.where,
                fix=f"add `schema_version: {SCHEMA_VERSION}` as its first line",
            )
        return
    if not isinstance(found, ScalarNode) or not found.plain or not INT.fullmatch(found.text):
        raise UsageError(
            "schema_version: expected a whole number", where=found.where, valid=str(SCHEMA_VERSION)
        )
    version = int(found.text)
    oldest = max(1, SCHEMA_VERSION - 1)
    if oldest <= version <= SCHEMA_VERSION:
        return
    fix = "install a newer pike-hpc" if version > SCHEMA_VERSION else "write the file anew"
    needs = "needs a newer pike-hpc" if version > SCHEMA_VERSION else "is not read any more"
    raise UsageError(
        f"schema_version {version} of this {what} file {needs}",
        where=found.where,
        valid=f"{SCHEMA_VERSION} (a version N reads its own files and those of N-1)",
        fix=fix,
    )
