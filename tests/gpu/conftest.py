"""The GPU of this folder's tests; without one they are skipped and say why."""

import pytest
from builders.cuda import the_gpu


@pytest.fixture(scope="module")
def device():
    return the_gpu()
