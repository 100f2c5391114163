"""The engine's own launches on a real driver: the same victims as the host's. Run by `make gpu`."""

import json

import pytest

from dtr_alloc.kernels import ahead
from tests.gpu.test_gpu import tell
from tests.kernels.score_columns import EXTREMES, HEURISTICS, drawn, native_columns

pytestmark = pytest.mark.gpu
CLOCK = 1 << 41


@pytest.mark.parametrize("count", [1, 257, 10_000, 100_001])
def test_victims_are_those_of_the_host(count: int) -> None:
    columns = drawn(count, count, CLOCK)
    rows = native_columns(columns)
    request = int(columns.size.max()) * 2 + 1
    for heuristic in HEURISTICS:
        native = heuristic._native()
        expected = rows.victims(native, CLOCK, request)
        assert rows.victims(native, CLOCK, request, ahead.image()).tolist() == expected.tolist()


@pytest.mark.parametrize("name", EXTREMES)
def test_victims_are_those_of_the_host_at_extremes(name: str) -> None:
    columns = EXTREMES[name](700, CLOCK)
    rows = native_columns(columns)
    for heuristic in HEURISTICS[::4]:
        native = heuristic._native()
        request = int(columns.size.max()) * 2 + 1
        expected = rows.victims(native, CLOCK, request)
        assert rows.victims(native, CLOCK, request, ahead.image()).tolist() == expected.tolist()


TRAIN = """
allocator = swap("400MiB", scorer={scorer!r}, thrash_limit=0)
net, step = network()
losses = [step().hex() for _ in range(3)]
stats = allocator._core.session().stats()
figures = [stats.evictions, stats.device_choices, stats.device_scores_from]
print(json.dumps([losses, sums(net), figures]))
"""


def test_training_is_exact_with_victims_chosen_on_the_device() -> None:
    losses, gradients, (evictions, choices, scores_from) = tell(TRAIN.format(scorer="device"))
    by_host = tell(TRAIN.format(scorer="host"))
    assert [losses, gradients] == by_host[:2]
    assert evictions > 0
    assert choices > 0
    assert scores_from == 0
    assert by_host[2][1:] == [0, -1]


def test_auto_measures_where_the_device_pays() -> None:
    _, _, figures = tell(TRAIN.format(scorer="auto"))
    assert figures[0] > 0
    assert figures[2] == -1 or figures[2] > 0
    print(json.dumps(figures))
