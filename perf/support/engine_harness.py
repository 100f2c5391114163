"""The harness of tests/engine_harness for measurements: they run by path and do not see tests/."""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.engine_harness.harness import EngineHarness as EngineHarness
    from tests.engine_harness.harness import ScoreColumns as ScoreColumns
else:
    path = Path(__file__).parents[2] / "tests/engine_harness/build.py"
    spec = importlib.util.spec_from_file_location("build_engine_harness", path)
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    sys.modules[__name__] = build.load()
