"""A file system that stops answering costs no verdict: what it says then tells nothing of files."""

import errno
import os

import pytest

from pike_hpc.mailbox import FileMailbox
from pike_hpc.mailbox.files import Files, Gone, explained, explained_move
from pike_hpc.records import EvalRequest, EvalResult, EvalStatus, PikeError, Task, TryAgainLater

CPU = frozenset({"cpu"})
TASK = Task(suite="s", id="1", name="one", source="x")
ONE = EvalRequest(task=TASK, candidate_source="", device_kind="cpu", image_digest="i")
VERDICT = EvalResult(key=ONE.key, status=EvalStatus.TIMEOUT)

EVICTED = [errno.ESHUTDOWN, errno.EPIPE, errno.EREMOTEIO, errno.ECONNRESET, errno.EPROTO]
EVICTED += [errno.EIO, errno.ENOTCONN, errno.EHOSTUNREACH, getattr(errno, "EKEYEXPIRED", 127)]


class Evicted(Files):
    """A client that its server has thrown out: every call but listings says so."""

    code = 0

    def _ask(self, path):
        if self.code:
            with explained(path):
                raise OSError(self.code, os.strerror(self.code))

    def read(self, path):
        self._ask(path)
        return super().read(path)

    def exists(self, path):
        self._ask(path)
        return super().exists(path)

    def rename(self, source, target):
        self._ask(source)
        super().rename(source, target)


@pytest.mark.parametrize("code", EVICTED)
def test_a_good_request_and_a_good_result_outlive_it(tmp_path, code):
    files = Evicted()
    mailbox = FileMailbox(tmp_path, files=files)
    mailbox.put(ONE)
    files.code = code
    with pytest.raises(TryAgainLater):
        mailbox.claim("w", CPU)
    files.code = 0
    (claim,) = mailbox.claim("w", CPU)
    files.code = code
    for call in (
        lambda: mailbox.judging(claim),
        lambda: mailbox.commit(claim, VERDICT),
        lambda: mailbox.release(claim),
    ):
        with pytest.raises(TryAgainLater, match="does not answer"):
            call()
    assert not mailbox.closed(), "nobody has said so"
    files.code = 0
    assert mailbox.judging(claim)
    assert mailbox.commit(claim, VERDICT)
    files.code = code
    with pytest.raises(TryAgainLater):
        mailbox.results([ONE.request_id])
    files.code = 0
    assert mailbox.results([ONE.request_id]) == {ONE.request_id: VERDICT}
    assert mailbox.counts().dead == 0


@pytest.mark.parametrize("move", [False, True])
def test_every_error_has_a_meaning_or_is_one_that_callers_decide_by(tmp_path, move):
    """Of all the numbers there are, not of those that somebody thought of."""
    passed = set()
    for code in sorted({*errno.errorcode, 524}):
        try:
            with explained_move(tmp_path / "x") if move else explained(tmp_path / "x"):
                raise OSError(code, os.strerror(code))
        except (PikeError, Gone):
            continue
        except OSError as error:
            passed.add(error.errno)
    names = {"EEXIST", "EISDIR", "ENOTDIR", "ENOTEMPTY", "ELOOP", "ENXIO", "ENAMETOOLONG"}
    names |= {"ENOSYS", "EINVAL", "EOPNOTSUPP", "EXDEV", "EMLINK"} if move else set()
    assert passed == {getattr(errno, name) for name in names} | ({524} if move else set())


def test_a_name_is_there_or_not_or_nobody_knows(tmp_path):
    files = Files()
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    assert files.exists(tmp_path / "file")
    assert files.exists(tmp_path / "dangling")
    assert not files.exists(tmp_path / "none")
    assert not files.exists(tmp_path / "file" / "inside")
    with pytest.raises(OSError, match="too long"):
        files.exists(tmp_path / ("x" * 300))
