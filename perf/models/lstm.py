"""LSTM (Hochreiter and Schmidhuber 1997): a long chain of small operators, unrolled in time."""

from dtr_alloc.demo.models import lstm
from models.workload import Workload, batch_size, supervised


def build(scale: float = 1.0, seed: int = 0) -> Workload:
    return supervised(lambda: lstm(texts=batch_size(32, scale)), seed)
