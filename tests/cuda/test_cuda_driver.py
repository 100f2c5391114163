"""CUDA's driver as the pool sees it: one that is missing, old or without a device is named, and our
declarations agree with the toolkit's."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from dtr_alloc import _core
from dtr_alloc.pool import Pool
from tests.fake_cuda.driver import PAGE, ROOT, FakeCuda
from tests.native_stand_in.native import cuda_headers


def test_without_a_driver_the_error_says_so_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTR_ALLOC_LIBCUDA", "/nowhere/libcuda.so.1")
    with pytest.raises(RuntimeError) as error:
        Pool("1 GiB", "cuda")
    assert str(error.value) == (
        "no CUDA driver: /nowhere/libcuda.so.1 could not be opened: /nowhere/libcuda.so.1: cannot "
        "open shared object file: No such file or directory; on CPU use "
        'dtr_alloc.rematerialize(..., device="cpu")'
    )


def test_a_library_that_is_no_driver_is_told_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTR_ALLOC_LIBCUDA", _core.__file__)
    with pytest.raises(RuntimeError, match=r"^the CUDA driver .*_core.* has no cuInit: it is old"):
        Pool("1 GiB", "cuda")


def test_a_machine_without_a_device_is_told_in_the_driver_s_words(cuda: FakeCuda) -> None:
    cuda.fail("cuInit", code=100)
    with pytest.raises(RuntimeError, match=r"^cuInit failed: CUDA_ERROR_NO_DEVICE$"):
        Pool("1 GiB", "cuda")


@pytest.mark.parametrize("device", [-1, 2])
def test_a_device_that_is_not_there_is_named(cuda: FakeCuda, device: int) -> None:
    with pytest.raises(ValueError, match=f"no CUDA device {device}: this process sees 2"):
        Pool("1 GiB", "cuda", device=device)


def test_an_error_that_the_driver_has_no_name_for_is_a_number(cuda: FakeCuda) -> None:
    cuda.fail("cuMemAddressReserve", code=9999)
    with pytest.raises(RuntimeError, match=r"^cuMemAddressReserve failed: CUDA error 9999$"):
        Pool("1 GiB", "cuda")


@pytest.mark.parametrize("addresses", [0, -PAGE, (32 << 40) + PAGE])
def test_a_pool_s_addresses_are_between_none_and_32_tib(cuda: FakeCuda, addresses: int) -> None:
    with pytest.raises(ValueError, match="more than 0 and up to 32 TiB of addresses"):
        _core.Pool(PAGE, "cuda", addresses)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_thread_s_capture_mode_is_as_it_was_after_our_calls(cuda: FakeCuda, mode: int) -> None:
    """Global, of the thread, or relaxed, in which ours are made."""
    cuda.call("cuInit", 0)
    own = ctypes.c_int(mode)
    cuda.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(own))
    Pool(4 * PAGE, "cuda").allocate(PAGE)
    found = ctypes.c_int(0)
    cuda.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(found))
    assert found.value == mode


HEADER = ROOT / "dtr_alloc/pool/csrc/cuda/driver.h"


def compile_declarations(root: Path) -> "subprocess.CompletedProcess[str]":
    headers = cuda_headers()
    if headers is None or not (headers / "cuda.h").exists():
        pytest.skip("no cuda.h on this machine")
    source = ROOT / "tests/fake_cuda/declarations.cpp"
    return subprocess.run(
        ["g++", "-std=c++20", "-fsyntax-only", f"-I{root}", f"-isystem{headers}", str(source)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_our_declarations_agree_with_the_toolkit_s() -> None:
    done = compile_declarations(ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("CALL(cuEventDestroy_v2,", "CALL(cuEventDestroy,"),
        ("CALL(cuMemUnmap, Pointer,", "CALL(cuMemUnmap, int,"),
        ("unsigned short usage", "unsigned usage"),
        ("kNotReady = 600", "kNotReady = 601"),
    ],
)
def test_a_wrong_declaration_does_not_compile(tmp_path: Path, right: str, wrong: str) -> None:
    text = HEADER.read_text()
    assert right in text
    header = tmp_path / "dtr_alloc/pool/csrc/cuda/driver.h"
    header.parent.mkdir(parents=True)
    header.write_text(text.replace(right, wrong))
    assert compile_declarations(tmp_path).returncode != 0
