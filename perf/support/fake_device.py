"""The fake driver of tests/fake_cuda for measurements: they run by path and do not see tests/."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

FOLDER = Path(__file__).parents[2] / "tests/fake_cuda"


def load(name: str) -> ModuleType:
    """A module of the folder."""
    spec = importlib.util.spec_from_file_location(f"fake_device_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from tests.fake_cuda import driver as driver
    from tests.fake_cuda import operator_work as operator_work
else:
    driver, operator_work = load("driver"), load("operator_work")
