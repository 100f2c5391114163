"""Figures that were measured anew find their places in the documents (requote.py)."""

from tests.documents.requote import replaced, replaced_row


def test_figures_take_the_places_of_older_ones_and_lines_stay() -> None:
    text = "So it\nadds 1.0 to\n1.4 us to an operator, 12\nus to dropout."
    done = replaced(text, "adds 2.5 us to an operator, 7 us to dropout", 0)
    assert done is not None
    assert done[0] == "So it\nadds 2.5 us to an operator, 7\nus to dropout."
    again = replaced(text, "adds 2.5 to 3.5 us to an operator, 7 us to dropout", 0)
    assert again is not None
    assert again[0] == "So it\nadds 2.5 to\n3.5 us to an operator, 7\nus to dropout."


def test_rows_that_look_alike_are_replaced_in_their_order() -> None:
    text = "| gpt | 0.5 |\n| gpt | 0.3 |\n"
    first = replaced(text, "| gpt | 0.6 |", 0)
    assert first is not None
    second = replaced(first[0], "| gpt | 0.4 |", first[1])
    assert second is not None
    assert second[0] == "| gpt | 0.6 |\n| gpt | 0.4 |\n"


def test_a_row_with_other_words_is_found_by_its_first_cells() -> None:
    text = "| gpt | refused | 1.2 |\n| unet | 1.0 | 1.1 |\n"
    row = replaced_row(text, "| gpt | 1.5 | 1.3 |")
    assert row == "| gpt | 1.5 | 1.3 |\n| unet | 1.0 | 1.1 |\n"


def test_words_that_are_nowhere_are_found_nowhere() -> None:
    assert replaced("It adds 1 us.", "it takes 1 us", 0) is None
    assert replaced_row("| gpt | 1 |\n", "| unet | 1 |") is None


def test_two_sentences_that_begin_with_a_figure_are_each_replaced() -> None:
    text = "at 30 % 1,234 a second, at 20 % 5,678 a second"
    first, end = replaced(text, "11 a second", 0) or ("", 0)
    both, _ = replaced(first, "2,222 a second", end) or ("", 0)
    assert both == "at 30 % 11 a second, at 20 % 2,222 a second"
