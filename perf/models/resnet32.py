"""ResNet-32 for CIFAR (He et al. 2016): batch statistics, and residual sums in place."""

from dtr_alloc.demo.models import resnet
from models.workload import Workload, batch_size, supervised


def build(scale: float = 1.0, seed: int = 0) -> Workload:
    return supervised(lambda: resnet(blocks=5, images=batch_size(16, scale)), seed)
