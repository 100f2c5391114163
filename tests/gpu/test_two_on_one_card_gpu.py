"""Two processes on one GPU trade its bytes by `resize`: a trainer and an inference engine. On the
fake driver, where the card is full, the same is in tests/cuda/test_two_on_one_card.py."""

import pytest

from tests.gpu.programs import MIB
from tests.support.card_traders import Card, traded


@pytest.mark.gpu
def test_an_engine_answers_with_bytes_that_a_trainer_gives_and_takes_back() -> None:
    """A layer's result has 16 MiB, and cuBLAS keeps 32 for each of two threads."""
    traded(Card(None, much=384 * MIB, little=224 * MIB, rows=8192, width=512), turns=5)
