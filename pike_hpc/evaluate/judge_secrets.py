"""Seeds of what no candidate may foresee."""

from __future__ import annotations

import hmac


class Secrets:
    """Seeds that nobody outside this process can know or repeat."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seed(self, *label: str | int) -> int:
        """63 bits for a label."""
        text = "/".join(str(part) for part in label).encode()
        return int.from_bytes(hmac.digest(self._key, text, "sha256")[:8], "big") >> 1
