"""The compiled module under the name of this one; harness.pyi says what is in it."""

import sys

from tests.engine_harness.build import load

sys.modules[__name__] = load()
