"""Two processes on one card trade its bytes by `resize`; here the card is the fake driver's."""

from tests.fake_cuda.driver import PAGE
from tests.support.card_traders import Card, traded, untraded


def card(driver: str) -> Card:
    """A layer's result is a page; a step of the trainer holds some twelve."""
    return Card(driver, much=20 * PAGE, little=8 * PAGE, rows=4096, width=128)


def test_an_engine_answers_with_bytes_that_a_trainer_gives_and_takes_back(fake_driver: str) -> None:
    traded(card(fake_driver), turns=2)


def test_a_card_has_no_room_for_an_engine_while_a_trainer_gives_nothing(fake_driver: str) -> None:
    assert untraded(card(fake_driver)) == 0.0
