"""Kinds of network, each trained in the plainest way."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dtr_alloc.demo import models
from idioms.registry import STEPS, Step, mlp_of, program, supervised


@program
def mlp() -> tuple[Step, nn.Module]:
    model, x = mlp_of(128, 12), torch.randn(512, 128)
    return supervised(model, lambda: model(x).square().mean())


@program
def conv_net_with_batch_norm() -> tuple[Step, nn.Module]:
    layers: list[nn.Module] = []
    for i in range(6):
        layers += [nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    x, y = torch.randn(16, 3, 24, 24), torch.randint(10, (16,))
    sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return supervised(model, lambda: F.cross_entropy(model(x), y), sgd)


def of_job(job: models.Job) -> tuple[Step, nn.Module]:
    batches = iter([job.batch(torch.Generator().manual_seed(step)) for step in range(STEPS)])

    def loss() -> Tensor:
        return job.loss(job.model, next(batches))

    return supervised(job.model, loss)


@program
def resnet() -> tuple[Step, nn.Module]:
    return of_job(models.resnet(blocks=1, images=8))


@program
def unet() -> tuple[Step, nn.Module]:
    return of_job(models.unet(levels=3, width=8, images=2, side=32))


@program
def treelstm() -> tuple[Step, nn.Module]:
    return of_job(models.treelstm(hidden=64, leaves=24, samples=32))


@program
def lstm_language_model() -> tuple[Step, nn.Module]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.lstm = nn.Embedding(200, 64), nn.LSTM(64, 64, 2)
            self.out = nn.Linear(64, 200)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.lstm(self.embed(x))[0])

    model, x = Model(), torch.randint(200, (40, 16))
    return supervised(model, lambda: F.cross_entropy(model(x[:-1]).flatten(0, 1), x[1:].flatten()))


@program
def gru_cells() -> tuple[Step, nn.Module]:
    model = nn.ModuleDict({"cell": nn.GRUCell(64, 128), "out": nn.Linear(128, 1)})
    x = torch.randn(40, 32, 64)

    def loss() -> Tensor:
        h = x.new_zeros(32, 128)
        for t in x:
            h = model["cell"](t, h)
        return model["out"](h).square().mean()

    return supervised(model, loss)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, plain: bool = False) -> Tensor:
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.one(x)).chunk(3, -1)
        )
        if plain:
            scores = q @ k.transpose(-2, -1) / (c // self.heads) ** 0.5
            mask = torch.ones(t, t, dtype=torch.bool).tril()
            mixed = scores.masked_fill(~mask, -1e9).softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.two(x))


class LanguageModel(nn.Module):
    def __init__(self, plain: bool = False, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.plain = plain
        self.embed, self.place = nn.Embedding(256, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.out = nn.Linear(width, 256, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.place(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h, self.plain)
        return self.out(h)


def language(model: LanguageModel) -> tuple[Step, nn.Module]:
    x = torch.randint(256, (8, 65))
    adam = torch.optim.AdamW(model.parameters(), 1e-3)

    def loss() -> Tensor:
        return F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    return supervised(model, loss, adam)


@program
def transformer_with_tied_weights() -> tuple[Step, nn.Module]:
    return language(LanguageModel())


@program
def attention_by_hand() -> tuple[Step, nn.Module]:
    return language(LanguageModel(plain=True))


@program
def transformer_encoder_with_dropout() -> tuple[Step, nn.Module]:
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    x = torch.randn(8, 64, 64)
    return supervised(model, lambda: model(x).square().mean())


@program
def sparse_graph_layers() -> tuple[Step, nn.Module]:
    dense = torch.rand(400, 400)
    dense = dense * (dense > 0.95)
    coo, csr = dense.to_sparse(), dense.to_sparse_csr()
    model = nn.ModuleDict(
        {"embed": nn.Embedding(400, 64, sparse=True), "a": nn.Linear(64, 64), "b": mlp_of(64, 6)}
    )
    dense_params = [p for name, p in model.named_parameters() if "embed" not in name]
    optimizers = (
        torch.optim.SparseAdam(model["embed"].parameters(), 1e-2),
        torch.optim.Adam(dense_params, 1e-3),
    )
    nodes = torch.arange(400)

    def step() -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        h = torch.sparse.mm(coo, model["a"](model["embed"](nodes))).relu()
        loss = (csr @ model["b"](h)).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss.detach().clone()

    return step, model


@program
def autoencoder() -> tuple[Step, nn.Module]:
    sizes = (256, 128, 64, 32, 64, 128, 256)
    pairs = pairwise(sizes)
    model = nn.Sequential(*[m for a, b in pairs for m in (nn.Linear(a, b), nn.ReLU())])
    x = torch.rand(1024, 256)
    return supervised(model, lambda: F.mse_loss(model(x), x))


@program
def vae() -> tuple[Step, nn.Module]:
    enc, dec = nn.Sequential(mlp_of(128, 4), nn.Linear(128, 64)), nn.Linear(32, 128)
    model = nn.ModuleDict({"enc": enc, "dec": nn.Sequential(dec, mlp_of(128, 4))})
    x = torch.rand(512, 128)

    def loss() -> Tensor:
        mean, log_var = model["enc"](x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
        return F.mse_loss(model["dec"](z), x) + 1e-3 * kl

    return supervised(model, loss)


@program
def mixture_of_experts() -> tuple[Step, nn.Module]:
    experts = nn.ModuleList(mlp_of(128, 3) for _ in range(4))
    model = nn.ModuleDict({"gate": nn.Linear(128, 4), "experts": experts})
    x = torch.randn(1024, 128)

    def loss() -> Tensor:
        weight, chosen = model["gate"](x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(experts):
            rows = (chosen == i).nonzero().squeeze(1)
            out = out.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return out.square().mean()

    return supervised(model, loss)


@program
def nested_tensors() -> tuple[Step, nn.Module]:
    model, parts = mlp_of(64, 4), [torch.randn(n, 64) for n in range(20, 100, 8)]

    def loss() -> Tensor:
        nested = torch.nested.nested_tensor(parts, layout=torch.strided)
        return torch.stack([out.square().mean() for out in model(nested).unbind()]).mean()

    return supervised(model, loss)


@program
def dropout_net() -> tuple[Step, nn.Module]:
    model = nn.Sequential(*[
        m for _ in range(8) for m in (nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.3))
    ])  # fmt: skip
    x = torch.randn(512, 128)
    return supervised(model, lambda: model(x).square().mean())


@program
def group_norm_net() -> tuple[Step, nn.Module]:
    layers: list[nn.Module] = []
    for i in range(5):
        layers += [nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU()]
    model, x = nn.Sequential(*layers), torch.randn(8, 3, 32, 32)
    return supervised(model, lambda: model(x).square().mean())


@program
def embedding_bags() -> tuple[Step, nn.Module]:
    tables = nn.ModuleList(nn.EmbeddingBag(1000, 32, mode="sum") for _ in range(8))
    top = nn.Sequential(mlp_of(256, 4), nn.Linear(256, 1))
    model = nn.ModuleDict({"tables": tables, "top": top})
    ids, y = torch.randint(1000, (8, 512, 4)), torch.rand(512, 1).round()

    def loss() -> Tensor:
        found = [table(i) for table, i in zip(tables, ids, strict=True)]
        return F.binary_cross_entropy_with_logits(model["top"](torch.cat(found, 1)), y)

    return supervised(model, loss)


@program
def fourier_layers() -> tuple[Step, nn.Module]:
    model, x = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in range(5)), torch.randn(16, 16, 128)

    def loss() -> Tensor:
        h = x
        for layer in model:
            spectrum = torch.fft.rfft(h)
            low = torch.fft.irfft(F.pad(spectrum[..., :16], (0, spectrum.shape[-1] - 16)), n=128)
            h = F.gelu(layer(h) + low)
        return h.square().mean()

    return supervised(model, loss)
