#!/usr/bin/env bash
# Guess: module.compile() and torch.compile(module) compile the same.
# Truth: of torch's own module classes, and of subclasses that keep their forward, module.compile()
# compiles nothing on 2.13.0 and says nothing; torch.compile(module) does. On 2.14.1 both do.
# Seen: torch 2.13.0 (the counts below), torch 2.14.1 (1 in each place).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - >"$folder/seen" <<'PROGRAM'
import torch
from torch import nn


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


class Subclass(nn.Sequential):
    pass


def graphs(module, way):
    """How many graphs the backend gets."""
    torch.compiler.reset()
    got = []

    def backend(graph, inputs):
        got.append(graph)
        return graph.forward

    way(module, backend)(torch.ones(2, 4))
    return len(got)


def by_method(module, backend):
    module.compile(backend=backend)
    return module


def by_function(module, backend):
    return torch.compile(module, backend=backend)


modules = {
    "Linear": lambda: nn.Linear(4, 4),
    "Sequential": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
    "a subclass of Sequential": lambda: Subclass(nn.Linear(4, 4)),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(4, 2),
    "a module of one's own": Own,
}
for name, make in modules.items():
    print(f"{name}: method {graphs(make(), by_method)}, function {graphs(make(), by_function)}")
PROGRAM
diff - "$folder/seen" <<'SEEN'
Linear: method 0, function 1
Sequential: method 0, function 1
a subclass of Sequential: method 0, function 1
TransformerEncoderLayer: method 0, function 1
a module of one's own: method 1, function 1
SEEN
