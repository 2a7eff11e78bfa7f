"""The benchmark of shared memory runs where there is no GPU, and says that it had none."""

import pytest
from builders.benchmarks import benchmark

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_its_table_has_every_part():
    code, table, said = benchmark("device_memory.py", "--simulated", "--rounds", "20")
    assert code == 0, said
    assert (table["memory"], table["why_not_cuda"]) == ("simulated", "asked for")
    for size in ("4096", "4194304"):
        assert set(table["making"][size]) == {"export", "import", "close", "ordinary"}
        assert table["copying"][size]["out_shared"]["gb_per_s"] > 0
        assert table["null_window"][size]["right"], "a window gave another answer than its input"
    assert table["pipe_bell"]["p50_us"] > 0
    assert table["page_bell"]["rounds"] == 20
