"""TaskSetup: everything about one task that the configuration decides."""

from __future__ import annotations

from dataclasses import dataclass

from pike_hpc.proposers.rules import Toolchain
from pike_hpc.records import EvalRequest, Task, Tier
from pike_hpc.search import Limits, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSetup:
    """See the module."""

    task: Task
    device_kind: str
    image_digest: str
    tiers: tuple[Tier, ...]
    min_isolation: str
    timeout_s: float
    strategy: Strategy
    limits: Limits
    toolchain: Toolchain

    def request(self, source: str, retime: int = 0) -> EvalRequest:
        """The request to judge a program. Raises ValueError for one that is too large."""
        return EvalRequest(
            task=self.task,
            candidate_source=source,
            device_kind=self.device_kind,
            image_digest=self.image_digest,
            tiers=self.tiers,
            min_isolation=self.min_isolation,
            timeout_s=self.timeout_s,
            retime=retime,
        )
