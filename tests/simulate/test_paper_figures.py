"""The paper's theorems and its picture of the linear network, small."""

import pytest
from adversary import DETERMINISTIC, play, slope
from linear_memory import BACKWARD, FORWARD, picture
from theorem_linear import SLOWER_CLOCK, count, exponent, log_factor

from dtr_alloc.runtime.heuristic import Heuristic


@pytest.mark.parametrize("heuristic", ["dtr", "dtr_full", SLOWER_CLOCK])
def test_a_linear_network_in_two_roots_runs_again_about_once(heuristic: str | Heuristic) -> None:
    for layers in (64, 256, 1024, 2048):
        found = count("2 sqrt N", heuristic, layers)
        assert found.again <= 1.1 * layers


def test_a_linear_network_of_65536_layers_runs_again_less_than_once() -> None:
    found = count("2 sqrt N", SLOWER_CLOCK, 65_536)
    assert (found.budget, found.again) == (512, 65_536 - 511)


def test_a_linear_network_in_log_n_runs_again_in_n_log_n() -> None:
    counts = [count("log2 N", "dtr", 1 << power) for power in range(6, 14)]
    factor, error = log_factor(counts)
    assert 0.45 < factor < 0.55
    assert error < 0.1
    assert 1.1 < exponent(counts) < 1.25


@pytest.mark.parametrize(("layers", "budget"), [(50, 8), (100, 20), (200, 30)])
def test_the_forward_pass_leaves_no_gap_above_the_lemma(layers: int, budget: int) -> None:
    drawn = picture(layers, budget, "e_star")
    assert drawn.largest_gap() <= 2 * (layers - 2) / (budget - 1)  # Lemma A.1.


def test_the_picture_has_a_column_for_each_operator_and_no_more_than_fits() -> None:
    drawn = picture(50, 8, "dtr")
    assert drawn.state.shape == (50, 100 + drawn.result.rematerializations)
    assert ((drawn.state != 0).sum(0) <= 8).all()
    forward = drawn.state[:, : drawn.forward_pass]
    assert (forward != BACKWARD).all()
    assert (forward.diagonal() == FORWARD).all()
    assert drawn.state[0, -1] == BACKWARD


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_an_adversary_makes_operations_grow_with_n_squared_over_the_room(name: str) -> None:
    games = [play(name, nodes, room) for room in (4, 8) for nodes in (64, 128, 256)]
    assert slope(games) > 0.9
    for game in games:
        assert game.operations >= game.nodes**2 / game.room / 2
        assert game.planned == game.nodes
