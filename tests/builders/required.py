"""What this machine lacks: a test is skipped and says so, or fails where PIKE_REQUIRE names it."""

import os
from typing import NoReturn

import pytest


def lacking(name: str, why: str) -> NoReturn:
    if name in os.environ.get("PIKE_REQUIRE", "").split(","):
        pytest.fail(f"PIKE_REQUIRE names {name}: {why}")
    pytest.skip(why)
