"""A model whose blocks are compiled, within a budget.

    python examples/compiled_blocks.py

Each block is compiled alone, as is usual for deep models: all blocks share one compiled graph, and
compiling takes seconds. With backend="dtr_alloc" Inductor compiles as ever, and what a block saves
for its backward pass can be evicted and computed again. Under the default backend it stays.
"""

import torch
from torch import Tensor, nn

import dtr_alloc


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.wide(self.norm(x)))
        return x + nn.functional.dropout(self.narrow(hidden), 0.1)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(64) for _ in range(12)])
    for block in model:
        block.compile(backend="dtr_alloc")
    return model


def train(model: nn.Module, steps: int = 3) -> list[float]:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(512, 64)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> dict[str, object]:
    plain, model = make_model(), make_model()
    with dtr_alloc.measure() as session:
        losses = train(plain)
    peak = session.stats().peak_bytes

    with dtr_alloc.rematerialize(int(0.6 * peak)) as session:
        found = train(model)

    print(session.summary())
    stats = session.stats()
    pairs = zip(plain.parameters(), model.parameters(), strict=True)
    return {
        "identical": found == losses and all(torch.equal(one, two) for one, two in pairs),
        "plain_peak_bytes": peak,
        "budget_bytes": stats.budget_bytes,
        "peak_bytes": stats.peak_bytes,
        "rematerializations": stats.rematerializations,
    }


if __name__ == "__main__":
    print(main())
