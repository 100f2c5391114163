"""Another library on the runtime's dispatch key (other_fallback.cpp), compiled on first use.

As a plugin it is there before dtr_alloc is imported, or after the import, or after the first scope,
as OTHER_FALLBACK says:

    OTHER_FALLBACK=between pytest -p tests.support.other_fallback tests/live/test_exactness.py
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.cpp_extension import load

SOURCE = Path(__file__).with_name("other_fallback.cpp")
BUILD = Path(__file__).parents[2] / "build/other_fallback"


def other_library() -> Any:
    BUILD.mkdir(parents=True, exist_ok=True)
    return load(
        "other_fallback",
        [str(SOURCE)],
        extra_cflags=["-O0", "-g0", "-fvisibility=hidden"],
        build_directory=str(BUILD),
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    when = os.environ.get("OTHER_FALLBACK", "before")
    if when != "before":
        import dtr_alloc

        if when == "after":
            with dtr_alloc.rematerialize(None):
                torch.ones(1)
    other_library().register()
