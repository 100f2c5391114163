"""Random programs that train while switches, threads, addresses and layouts change.

Each layer runs under switches of its own, some in another thread; between the forward and the
backward pass they change again. No operator is used that eager does not repeat.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import dtr_alloc
from dtr_alloc.runtime.scope import current

WIDTH = 64
ROWS = 128


def unaligned(values: Tensor, remainder: int) -> Tensor:
    """The values in memory of NumPy's that begins so many bytes after a multiple of 64."""
    room = np.zeros(values.nbytes + 128, dtype=np.uint8)
    begin = -room.ctypes.data % 64 + remainder
    made = torch.from_numpy(room[begin : begin + values.nbytes].view(np.float32)).view(values.shape)
    return made.copy_(values)


@contextlib.contextmanager
def switched(**wanted: object) -> Iterator[None]:
    """The process and this thread in these states."""
    put: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
        "onednn": (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
        "threads": (torch.get_num_threads, torch.set_num_threads),
        "type": (torch.get_default_dtype, torch.set_default_dtype),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled,
            torch.use_deterministic_algorithms,
        ),
        "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        "flush": (lambda: False, torch.set_flush_denormal),
    }
    before = {name: put[name][0]() for name in wanted}
    try:
        for name, value in wanted.items():
            put[name][1](value)
        yield
    finally:
        for name, value in before.items():
            put[name][1](value)


class SwitchProgram:
    """Two steps of a network that the seed decides."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed

    def switches(self) -> contextlib.AbstractContextManager[None]:
        choices: dict[str, list[object]] = {
            "onednn": [True, False],
            "threads": [1, 2],
            "type": [torch.float32, torch.float64],
            "deterministic": [True, False],
            "precision": ["highest", "high", "medium"],
            "flush": [True, False],
        }
        names = self.random.sample(sorted(choices), self.random.randrange(4))
        return switched(**{name: self.random.choice(choices[name]) for name in names})

    def parameter(self, *shape: int) -> Tensor:
        values = torch.randn(*shape, dtype=torch.float32) / shape[-1] ** 0.5
        if self.random.random() < 0.5:
            values = unaligned(values, self.random.choice([0, 4, 8, 20, 36]))
        return nn.Parameter(values)

    def layers(self) -> list[Callable[[Tensor], Tensor]]:
        """Each takes and gives a matrix of ROWS times WIDTH."""
        weight, other = self.parameter(WIDTH, WIDTH), self.parameter(1, WIDTH)
        kernel, cube = self.parameter(8, 8, 3, 3), self.parameter(4, 4, 3, 3, 3)
        rnn = nn.LSTM(WIDTH, WIDTH, dtype=torch.float32)
        index = torch.randint(0, ROWS, (ROWS,))
        picture, volume = (ROWS // 8, 8, 8, 8), (ROWS // 32, 4, 8, 8, 8)
        self.parameters += [weight, other, kernel, cube, *rnn.parameters()]
        last = torch.channels_last

        def conv_last(x: Tensor) -> Tensor:
            x = x.reshape(picture).contiguous(memory_format=last)
            return F.conv2d(x, kernel, padding=1).reshape(ROWS, WIDTH)

        def counted(x: Tensor) -> Tensor:
            return x * (torch.arange(WIDTH) / 7).sin().float() + torch.linspace(0, 1, WIDTH).float()

        def recurrent(x: Tensor) -> Tensor:
            made: Tensor = rnn(x.reshape(8, ROWS // 8, WIDTH))[0]
            return made.reshape(ROWS, WIDTH)

        return [
            lambda x: F.linear(x, weight),
            lambda x: x.t().contiguous().t() @ weight,
            lambda x: F.conv2d(x.reshape(picture), kernel, padding=1).reshape(ROWS, WIDTH),
            conv_last,
            lambda x: F.conv3d(x.reshape(volume), cube, padding=1).reshape(ROWS, WIDTH),
            lambda x: torch.bmm(x.bfloat16()[None], weight.bfloat16()[None])[0].float(),
            lambda x: x * F.linear(other, weight) + (x @ weight[0])[:, None],
            counted,
            recurrent,
            F.gelu,
            F.mish,
            torch.tanh,
            lambda x: F.dropout(x, 0.1),
            lambda x: F.layer_norm(x, (WIDTH,)),
            lambda x: (x * 1e-22) * 1e-20 * 1e20 + x,
            lambda x: x.index_select(0, index),
            lambda x: x - x.sum(0, keepdim=True) / ROWS,
            lambda x: (x.repeat(40, 1).sum(0) / 40 / ROWS) + x,
        ]

    def apply(self, layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if self.random.random() < 0.8 or torch.is_inference_mode_enabled():
            with self.switches():
                return layer(x)
        switches = self.switches()

        def job() -> Tensor:
            opened = current.scope() is not None
            with dtr_alloc.join_scope() if opened else contextlib.nullcontext(), switches:
                return layer(x)

        with ThreadPoolExecutor(1) as threads:
            return threads.submit(job).result()

    def run(self) -> Iterator[Tensor]:
        torch.manual_seed(self.seed)
        self.parameters: list[Tensor] = []
        layers = self.layers()
        chosen = layers[:1] + self.random.choices(layers, k=self.random.randrange(4, 10))
        optimizer = torch.optim.SGD(self.parameters, lr=0.05, momentum=0.9)
        for _ in range(2):
            x = torch.randn(ROWS, WIDTH)
            if self.random.random() < 0.5:
                x = unaligned(x, self.random.choice([4, 12, 40]))
            kept = []
            for layer in chosen:
                x = self.apply(layer, x)
                if self.random.random() < 0.2:
                    kept.append(x)
                if self.random.random() < 0.2:
                    dtr_alloc.evict(x)
            loss = x.square().mean()
            with self.switches():
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=self.random.random() < 0.5)
            yield loss
            with self.switches():
                yield from kept
        yield from self.parameters


MODES = ("pool", "torch", "evict_always", "swap_always", "verify")
