"""One thread for torch: on a busy machine its worker threads spin, and tests take minutes. The same
examples of Hypothesis in each run, unless others are asked for. Triton's interpreter, where there
is no GPU. And, for those that ask for it, the fake CUDA driver, or a file for a trace."""

import gc
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dtr_alloc import _core
from dtr_alloc.runtime.scope import swapping
from tests.fake_cuda.driver import FakeCuda, build

torch.set_num_threads(1)

if importlib.util.find_spec("hypothesis"):  # A machine with a GPU may lack it.
    from hypothesis import settings

    settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
    settings.register_profile("random", deadline=None)  # --hypothesis-profile random
    settings.load_profile("repeatable")

if not torch.cuda.is_available():  # Before anything imports Triton.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory.mktemp("fake_cuda"))


@pytest.fixture
def cuda(fake_driver: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """A fake driver that knows nothing yet; pools use it. A fault of a stream that the test did not
    ask for is an error, and so is what it leaves behind, once its pools are gone."""
    fake = FakeCuda(fake_driver)
    monkeypatch.setenv("DTR_ALLOC_LIBCUDA", fake_driver)
    yield fake
    gc.collect()
    gc.freeze()  # The next collection need not walk torch's modules again: 0.1 s a test.
    fake.finish()
    assert fake.faults() == []
    assert fake.held() == {}


@pytest.fixture
def two_streams(cuda: FakeCuda) -> Iterator[tuple[int, int]]:
    """For programs that switch between them."""
    streams = cuda.stream(), cuda.stream()
    yield streams
    _core.set_in_optimizer(False)
    _core.set_host_stream(0)
    for stream in streams:
        cuda.destroy_stream(stream)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "step.log"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For a swap. Temporary files may lie in memory where the tests run."""
    monkeypatch.setattr(swapping, "_IN_MEMORY", set())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path
