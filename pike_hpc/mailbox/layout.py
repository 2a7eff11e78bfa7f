"""File names of a mailbox: all that a scan needs to know is in the name, so scans open nothing.

    new/   SEQUENCE.DEVICE.REQUEST.aATTEMPT
    cur/   SEQUENCE.DEVICE.REQUEST.aATTEMPT.HOLDER.NUMBER.c  (claimed)  or .j  (being judged)
    done/  REQUEST.json and REQUEST.request            (result, and its request until discarded)
    known/ REQUEST                                     (put and not yet discarded)

Knows nothing of the disk.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from dataclasses import dataclass

FORMAT_FILE = "FORMAT"
CLOSED_FILE = "closed"
JOBS_FILE = "jobs.json"
FOLDERS = ("tmp", "new", "cur", "done", "known", "dead", "workers", "locks")

_TICKET = re.compile(r"(\d{20})\.([A-Za-z0-9_-]{1,80})\.([0-9a-f]{32})\.a(\d{1,4})")
_HOLD = re.compile(_TICKET.pattern + r"\.([A-Za-z0-9_~-]{1,100})\.(\d{1,12})\.([cj])")
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,60}")


def slug(text: str) -> str:
    """`text` as part of a file name; two texts never share one."""
    if _PLAIN.fullmatch(text) and not text.startswith("-"):
        return text
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", text)[:50].strip("-")
    mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{readable}--{mark}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A request's name in new/. Sorted as text, tickets are in order of arrival."""

    sequence: int
    device: str
    """Slug of the device kind."""
    request_id: str
    attempt: int

    @property
    def name(self) -> str:
        """The file name."""
        return f"{self.sequence:020d}.{self.device}.{self.request_id}.a{self.attempt}"

    @staticmethod
    def parse(name: str) -> Ticket | None:
        """The ticket with this file name; None for a foreign file."""
        match = _TICKET.fullmatch(name)
        return _ticket(match) if match else None

    def next_attempt(self) -> Ticket:
        """The same request after an attempt that came to nothing."""
        return dataclasses.replace(self, attempt=self.attempt + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A claimed request's name in cur/."""

    ticket: Ticket
    holder: str
    number: int
    """Of the holder's claims, so that a request claimed again is another hold."""
    judging: bool = False

    @property
    def name(self) -> str:
        """The file name."""
        return f"{self.token}.{'j' if self.judging else 'c'}"

    @property
    def token(self) -> str:
        """The name without its state: what a Claim carries."""
        return f"{self.ticket.name}.{self.holder}.{self.number}"

    @staticmethod
    def parse(name: str) -> Hold | None:
        """The hold with this file name; None for a foreign file."""
        match = _HOLD.fullmatch(name)
        if match is None:
            return None
        return Hold(
            ticket=_ticket(match),
            holder=match[5],
            number=int(match[6]),
            judging=match[7] == "j",
        )

    def as_judging(self, judging: bool) -> Hold:
        """The same hold in the other state."""
        return Hold(ticket=self.ticket, holder=self.holder, number=self.number, judging=judging)


def result_name(request_id: str) -> str:
    """Name of a result in done/."""
    return f"{request_id}.json"


def request_name(request_id: str) -> str:
    """Name of a judged request in done/."""
    return f"{request_id}.request"


def _ticket(match: re.Match[str]) -> Ticket:
    return Ticket(
        sequence=int(match[1]), device=match[2], request_id=match[3], attempt=int(match[4])
    )
