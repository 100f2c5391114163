"""One thread for torch: on a busy machine its worker threads spin, and tests take minutes."""

import torch

torch.set_num_threads(1)
