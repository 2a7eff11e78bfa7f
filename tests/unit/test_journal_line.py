import pytest

from pike_hpc.journal import Stamped
from pike_hpc.journal.line import BrokenLine, ForeignVersion, from_line, to_line
from pike_hpc.records import Brainstormed, Finished

STAMPED = Stamped(time=1.5, epoch=3, seq=7, event=Brainstormed(node="p0", ideas=("fuse", "é\x00")))


def test_a_line_reads_back_exactly():
    line = to_line(STAMPED)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert from_line(line[:-1], epoch=3, seq=7) == STAMPED


def test_lone_surrogates_survive_side_by_side():
    # Written as two escapes they would read back as one character, and change a candidate's id.
    stamped = Stamped(time=0.0, epoch=1, seq=0, event=Finished(reason="\ud83d\ude00\udcff"))
    assert from_line(to_line(stamped)[:-1], epoch=1, seq=0).event.reason == "\ud83d\ude00\udcff"


@pytest.mark.parametrize("position", range(0, 60, 3))
def test_any_flipped_byte_is_noticed(position):
    line = bytearray(to_line(STAMPED)[:-1])
    line[position] ^= 0x01
    with pytest.raises((BrokenLine, ForeignVersion)):
        from_line(bytes(line), epoch=3, seq=7)


def test_every_torn_prefix_is_noticed():
    line = to_line(STAMPED)[:-1]
    for length in range(len(line)):
        with pytest.raises(BrokenLine):
            from_line(line[:length], epoch=3, seq=7)


def test_a_line_in_the_wrong_place_is_noticed():
    with pytest.raises(BrokenLine, match="event 7 where event 6 belongs"):
        from_line(to_line(STAMPED)[:-1], epoch=3, seq=6)


def test_another_format_is_foreign_whatever_its_checksum():
    with pytest.raises(ForeignVersion, match="format 2"):
        from_line(b'{"v":2,"anything":true}', epoch=1, seq=0)
