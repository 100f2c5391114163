"""The allocator that stands in for torch's own on CUDA, for tests of guests there."""

import gc
from collections.abc import Iterator

import pytest

from dtr_alloc import _core
from tests.fake_cuda.driver import FakeCuda
from tests.native_stand_in.native import Native, build

MIB = 1 << 20
WHOLE = 1 << 32
"""The fake device's memory where no test says otherwise."""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    if not hasattr(_core, "GuestAllocator"):
        pytest.skip("torch or this build has no CUDA")
    return build(tmp_path_factory.mktemp("native"))


@pytest.fixture
def native(library: str, cuda: FakeCuda) -> Iterator[Native]:
    """On a device of 64 MiB. What a test leaves behind in it is an error."""
    made = Native(library, cuda.path)
    cuda.set_capacity(64 * MIB)
    made.reset()
    yield made
    made.drop_all()
    gc.collect()
    made.uninstall()
    made.takes_python(False)
    made.enable(True)
    assert (made.live, made.other_live, made.strays) == (0, 0, 0)
    made.reset()
    cuda.set_capacity(WHOLE)
