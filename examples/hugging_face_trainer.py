"""Hugging Face's Trainer within a budget, by a callback.

    python examples/hugging_face_trainer.py

The callback opens the scope when training begins and leaves it when it ends. Its entries in the
Trainer's log tell what the budget costs. Where you call `trainer.train()` yourself, `with
dtr_alloc.rematerialize(...): trainer.train()` is the same, and leaves the scope also when training
raises.
"""

import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from dtr_alloc.integrations.transformers import BudgetCallback


def train(*callbacks: TrainerCallback) -> list[torch.Tensor]:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=4, n_embd=64, n_head=4, n_positions=64, vocab_size=96)
    config.bos_token_id = config.eos_token_id = None
    model = GPT2LMHeadModel(config)
    rows = torch.randint(config.vocab_size, (32, 64))
    data = [{"input_ids": row, "labels": row} for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=8,
            max_steps=3,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        Trainer(model, arguments, train_dataset=data, callbacks=list(callbacks)).train()
    return list(model.parameters())


def main() -> dict[str, object]:
    plain = train()
    free = BudgetCallback(None)
    train(free)
    assert free.session is not None
    peak = free.session.stats().peak_bytes

    tight = BudgetCallback(int(0.5 * peak))
    parameters = train(tight)
    assert tight.session is not None
    stats = tight.session.stats()
    return {
        "identical": all(map(torch.equal, parameters, plain)),
        "plain_peak_bytes": peak,
        "budget_bytes": stats.budget_bytes,
        "peak_bytes": stats.peak_bytes,
        "rematerializations": stats.rematerializations,
    }


if __name__ == "__main__":
    print(main())
