"""What is held at the peak: by module, line of the script and class, the layers of a kind together.

Layers are of a kind where their names differ in numbers alone and the same line makes the tensors:
``GPT.blocks.0-11.mlp`` is one line. At most 20 lines, which add up to the peak.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from typing import NamedTuple

from dtr_alloc.pool.size import format_size
from dtr_alloc.runtime.scope.memory_history import Block, History
from dtr_alloc.runtime.scope.sites import Site

_MOST = 18  # Beside the first line, and one for all that is small.


class Holding(NamedTuple):
    """Tensors at the peak: their bytes, each rounded up to 512, and how many; their modules, such
    as ``Sequential.0-3``; the script's line, and their class (docs/pictures.md#classes)."""

    size_bytes: int
    tensors: int
    module: str
    line: str
    kind: str


class Held(tuple[Holding, ...]):
    """What `Session.held` returns: the largest first; the last may be the sum of all smaller ones.
    Its text is a table."""

    gap = ""  # What it says of dropped events.

    @property
    def size_bytes(self) -> int:
        """In use at the peak."""
        return sum(holding.size_bytes for holding in self)

    def __str__(self) -> str:
        told = f"{format_size(self.size_bytes):>12} at the peak, by module, line and class"
        rows = [f"{told}; {self.gap}" if self.gap else told]
        for size, tensors, module, line, kind in self:
            where = f"{module or '-':<32}  {line or '-':<24}"
            rows.append(f"{format_size(size):>12} {tensors:>7,} x  {where}  {kind}")
        return "\n".join(rows)


def held_at_peak(history: History) -> Held:
    """Of the blocks that are live at the highest."""
    peak = int(history.levels().sum(axis=1).argmax()) if history.events else 0
    alike: dict[tuple[str, str, str], list[Block]] = defaultdict(list)
    for block in history.live_at(peak):
        kind = re.sub(r"\.\d+(?=\.|$)", ".#", block.site.module)
        alike[kind, _line(block.site), block.class_at(peak)].append(block)
    lines = [
        Holding(sum(b.made.size for b in blocks), len(blocks), _folded(blocks), line, name)
        for (_, line, name), blocks in alike.items()
    ]
    lines.sort(key=lambda line: -line.size_bytes)
    if rest := lines[_MOST:]:
        size, tensors = sum(r.size_bytes for r in rest), sum(r.tensors for r in rest)
        lines[_MOST:] = [Holding(size, tensors, f"{len(rest):,} more", "", "")]
    held = Held(lines)
    held.gap = history.gap
    return held


def _line(site: Site) -> str:
    return f"{os.path.basename(site.frames[0][0])}:{site.frames[0][1]}" if site.frames else ""


def _folded(blocks: list[Block]) -> str:
    """One name for modules whose names differ in numbers alone: ``a.0-3.b``, ``a.0,2.b``."""
    parts = []
    for column in zip(*{tuple(block.site.module.split(".")) for block in blocks}, strict=True):
        found = sorted(set(column), key=lambda part: (len(part), part))
        gapless = len(found) > 1 and int(found[-1]) - int(found[0]) == len(found) - 1
        parts.append(f"{found[0]}-{found[-1]}" if gapless else ",".join(found))
    return ".".join(parts)
