"""Faults to plant (tests/planted) fit today's sources and name tests that exist.

Planting them takes minutes, so few people do. A fault that no longer fits shows here.
"""

import pytest

from tests.planted.__main__ import FAULTS, ROOT
from tests.planted.fault import Fault


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_fits_one_place_of_its_source_and_names_a_test(fault: Fault) -> None:
    for edit in fault.edits:
        assert edit.source.endswith(".cpp"), "nothing compiles a header anew"
        assert (ROOT / edit.source).read_text().count(edit.old) == 1, edit.source
    file, _, name = fault.test.partition("::")
    assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text()
