"""The fake driver of tests/fake_cuda for measurements, and scopes on it: they run by path and do
not see tests/."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

TESTS = Path(__file__).parents[2] / "tests"


def load(path: str) -> ModuleType:
    """A module of tests."""
    name = f"fake_device_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, TESTS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from tests.fake_cuda import driver as driver
    from tests.fake_cuda import operator_work as operator_work
    from tests.support.instruments import instrumented as instrumented
else:
    driver, operator_work = load("fake_cuda/driver.py"), load("fake_cuda/operator_work.py")
    instrumented = load("support/instruments.py").instrumented
