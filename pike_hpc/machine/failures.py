"""What a file system means by an error number: that it is full, or that it fails for now.

Knows no policy: what is said and done about it is for whoever asks.
"""

from __future__ import annotations

import errno

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The disk is full, or a quota is used up."""

OUTAGE = frozenset(
    {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EREMOTEIO}
    | {errno.ENOTCONN, errno.ESHUTDOWN}
)
"""Its server, or the way there, fails: nothing that another name or other rights would mend. Lustre
says ENOTCONN and ESHUTDOWN to a client that it evicted; of the latter Python makes a
BrokenPipeError."""
