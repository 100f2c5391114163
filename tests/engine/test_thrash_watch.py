"""A program that recomputes without end is stopped, but not for time that it did not have."""

import time
from collections.abc import Callable

import pytest

from tests.engine_harness.harness import thrashes

MS = 1_000_000


def compute() -> None:
    begin = time.process_time()
    while time.process_time() < begin + 2:
        pass


def rest() -> None:
    """As a process does that is suspended in the middle of a recomputation."""


@pytest.mark.parametrize(
    ("recomputed", "on_host", "meanwhile", "told"),
    [
        (2000, True, compute, True),
        (300_000, True, rest, False),
        (2000, False, rest, True),  # A device's times are not the processor's.
        (1900, False, rest, False),
    ],
    ids=["too long", "suspended", "on a device", "a short window"],
)
def test_recomputing_is_too_much_only_where_the_processor_did_it(
    recomputed: int, on_host: bool, meanwhile: Callable[[], None], told: bool
) -> None:
    assert thrashes(on_host, 10 * MS, recomputed * MS, meanwhile) == told


def test_a_program_that_computes_as_long_goes_on() -> None:
    assert not thrashes(False, 1000 * MS, 3000 * MS, rest)
