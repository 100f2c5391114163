"""Batches of random lengths in Hugging Face's Trainer, and a budget as a net under the longest.

    python examples/random_lengths.py

A batch is as long as its longest text, so a few batches need far more memory than the others. The
budget here serves all but those: the longest would need half as much again. Their steps evict and
recompute, and the run goes on. `session.costliest_steps()` tells which they were. On CUDA the same
net is `dtr_alloc.allocator(None, memory="torch")`.
"""

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import dtr_alloc

ROWS, LONGEST = 8, 256
LENGTHS = [96, 64, 128, 80, 112, LONGEST, 72, 120, LONGEST, 88]  # Of each batch.


class Batches(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    """Texts of random words, `ROWS` of one length after the other."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        words = torch.Generator().manual_seed(0)
        for length in self.lengths:
            for _ in range(ROWS):
                text = torch.randint(96, (length,), generator=words)
                yield {"input_ids": text, "labels": text}


def train(
    lengths: list[int], scope: AbstractContextManager[dtr_alloc.Session]
) -> tuple[dtr_alloc.Session, list[torch.Tensor]]:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=4, n_embd=64, n_head=4, n_positions=LONGEST, vocab_size=96)
    config.bos_token_id = config.eos_token_id = None
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=ROWS,
            max_steps=len(lengths),
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(model, arguments, train_dataset=Batches(lengths))
        with scope as session:
            trainer.train()
    return session, list(model.parameters())


def main() -> dict[str, object]:
    unlimited, plain = train(LENGTHS, dtr_alloc.measure())
    longest = unlimited.stats().peak_bytes
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        capped, parameters = train(LENGTHS, dtr_alloc.rematerialize(int(longest / 1.5)))
    stats = capped.stats()
    return {
        "identical": all(map(torch.equal, parameters, plain)),
        "plain_peak_bytes": longest,
        "budget_bytes": stats.budget_bytes,
        "peak_bytes": stats.peak_bytes,
        "rematerializations": stats.rematerializations,
        "outlier_batches": sorted(step.number for step in capped.costliest_steps()),
        "told": [str(one.message) for one in told if "optimizer" in str(one.message)],
        "summary": capped.summary(),
    }


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name}: {value}")
