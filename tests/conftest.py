"""One thread for torch's kernels: its worker threads spin, which on a busy machine takes minutes."""

import torch

torch.set_num_threads(1)
