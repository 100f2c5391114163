"""The paper's eight workloads, small: what traces are recorded from.

A step of each takes a fraction of a second on one core, and its activations some tens of MB. Five
are the demo's models at other sizes.
"""

from models import (
    densenet,
    inception,
    lstm,
    resnet32,
    transformer,
    treelstm,
    unet,
    unrolled_gan,
)
from models.workload import Builder, Workload

__all__ = ["MODELS", "Builder", "Workload"]

MODELS: dict[str, Builder] = {
    "densenet": densenet.build,
    "inception": inception.build,
    "lstm": lstm.build,
    "resnet32": resnet32.build,
    "transformer": transformer.build,
    "treelstm": treelstm.build,
    "unet": unet.build,
    "unrolled_gan": unrolled_gan.build,
}
