"""Binary tree LSTM (Tai et al. 2015): a graph that depends on the data, another one each step."""

from dtr_alloc.demo.models import treelstm
from models.workload import Workload, batch_size, supervised


def build(scale: float = 1.0, seed: int = 0) -> Workload:
    return supervised(lambda: treelstm(samples=batch_size(96, scale)), seed)
