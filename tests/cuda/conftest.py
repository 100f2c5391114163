"""The fake driver with a clock, and torch's operators as work for its device."""

import pytest

from tests.fake_cuda import operator_work
from tests.fake_cuda.driver import FakeCuda


@pytest.fixture
def timed(cuda: FakeCuda) -> FakeCuda:
    cuda.timed()
    return cuda


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return operator_work.build(tmp_path_factory.mktemp("operator_work"))
