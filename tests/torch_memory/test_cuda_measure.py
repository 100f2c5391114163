"""`measure(device="cuda")` over the allocator that stands in for torch's own on CUDA. Without a GPU
no operator runs on a device, but memory comes and goes, and an optimizer steps."""

import re
from collections.abc import Iterator

import pytest
import torch

import dtr_alloc
from tests.fake_cuda.driver import FakeCuda
from tests.native_stand_in.native import Native
from tests.support.instruments import instrumented
from tests.torch_memory.conftest import MIB


@pytest.fixture(autouse=True)
def torchs(native: Native, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stand-in is what torch has. A session that has served stays, and keeps its context."""
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    native.install()
    with instrumented(native=native.address):
        yield
    while cuda.count("contexts"):
        cuda.call("cuDevicePrimaryCtxRelease_v2", 0)


def test_a_measure_counts_what_was_there_and_leaves_torch_its_allocator(native: Native) -> None:
    assert native.hold(3 * MIB)  # Parameters.
    assert native.hold(20 * MIB)  # An earlier peak.
    native.drop(1)
    optimizer = torch.optim.SGD([torch.ones(1)])
    with dtr_alloc.measure(device="cuda") as session:
        assert native.installed != native.address
        for number in (2, 3):
            assert native.hold(5 * MIB, native.installed)
            native.drop(number)
            optimizer.step()
        assert native.hold(2 * MIB, native.installed)
        session.check()
    assert native.installed == native.address
    stats = session.stats()
    assert (stats.peak_bytes, stats.live_bytes) == (8 * MIB, 5 * MIB)
    assert (session.steps, stats.recorded, stats.budget_bytes) == (2, 0, None)
    told = session.summary()
    assert native.hold(30 * MIB)
    assert (session.stats(), session.summary()) == (stats, told)
    assert re.search("^ +must stay +3 MiB ", told, re.MULTILINE)
    assert 'allocator("6MiB"): six tenths of the activations' in told  # Of 5 MiB, and 3.


def test_a_measure_comes_again_after_one_that_raised(native: Native) -> None:
    with pytest.raises(ArithmeticError), dtr_alloc.measure(device="cuda"):
        raise ArithmeticError
    assert native.installed == native.address
    with dtr_alloc.measure(device="cuda:0") as session:
        assert native.hold(MIB, native.installed)
    assert session.stats().peak_bytes == MIB


def test_a_measure_that_does_not_fit_the_device_raises_torchs_error(native: Native) -> None:
    with dtr_alloc.measure(device="cuda"):
        assert not native.hold(65 * MIB, native.installed)
        assert native.num_ooms(native.installed) == 1
    assert native.installed == native.address
