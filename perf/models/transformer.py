"""Transformer (Vaswani et al. 2017), decoder only: attention, layer norm and dropout."""

from dtr_alloc.demo.models import gpt
from models.workload import Workload, batch_size, supervised


def build(scale: float = 1.0, seed: int = 0) -> Workload:
    return supervised(lambda: gpt(texts=batch_size(12, scale)), seed)
