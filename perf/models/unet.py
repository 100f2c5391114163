"""U-Net (Ronneberger et al. 2015): skip connections that live through the whole step."""

from dtr_alloc.demo.models import unet
from models.workload import Workload, batch_size, supervised


def build(scale: float = 1.0, seed: int = 0) -> Workload:
    return supervised(lambda: unet(images=batch_size(7, scale)), seed)
