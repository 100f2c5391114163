"""Nine architectures of the transformers library, as it has them, small and with random weights.

A claim that models need not be edited is worth what other people's models say to it. These bring
what ours have not: keys and values shared by several heads, tied embeddings, relative positions,
shifted windows, routed experts, dropped paths, key-value caches that grow by concatenation. No
weights are loaded and nothing is downloaded.

Shapes: a step takes tenths of a second on one core, activations are many times what parameters
need, and there are enough layers that with a checkpoint at each what is kept between layers is more
than the working set of one. Dropout is on wherever the architecture has it.
"""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dtr_alloc.demo import Job

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import transformers as hf

hf.logging.set_verbosity_error()

VOCABULARY = 128
CLASSES = 10
MEL_BINS = 40

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Architecture:
    """One of the nine: `build(layers)` makes the model, and `batch(samples, generator)` its inputs
    with labels.

    `layers` is the depth that is trained; for encoder-decoders that of each half, for others
    without a single depth that of the stage that has the largest activations. `samples` is the
    batch size. `checkpoints` tells whether the library can checkpoint it.
    """

    build: Callable[[int], Any]
    batch: Callable[[int, torch.Generator], Batch]
    layers: int
    samples: int
    generates: bool = False
    checkpoints: bool = True

    def prompt(self, samples: int, generator: torch.Generator) -> Batch:
        """What `generate` continues, translates, or writes down."""
        return {k: v for k, v in self.batch(samples, generator).items() if k != "labels"}

    def job(self, name: str, *, checkpoint: bool = False) -> Job:
        """A training by AdamW. With `checkpoint`, each layer keeps its input only, and the backward
        pass computes the rest again.
        """
        model = self.build(self.layers).train()
        if checkpoint:
            with warnings.catch_warnings():  # It will have another name.
                warnings.simplefilter("ignore", FutureWarning)
                model.gradient_checkpointing_enable()
        return Job(
            name,
            model,
            lambda generator: self.batch(self.samples, generator),
            lambda model, batch: model(**batch).loss,
            lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        )


def _tokens(samples: int, length: int, generator: torch.Generator) -> Tensor:
    return torch.randint(3, VOCABULARY, (samples, length), generator=generator)


def _text(length: int) -> Callable[[int, torch.Generator], Batch]:
    def batch(samples: int, generator: torch.Generator) -> Batch:
        ids = _tokens(samples, length, generator)
        return {"input_ids": ids, "labels": ids}

    return batch


def _translation(samples: int, generator: torch.Generator) -> Batch:
    ids, labels = _tokens(samples, 64, generator), _tokens(samples, 48, generator)
    return {"input_ids": ids, "labels": labels}


def _speech(samples: int, generator: torch.Generator) -> Batch:
    sound = torch.randn(samples, MEL_BINS, 192, generator=generator)
    return {"input_features": sound, "labels": _tokens(samples, 48, generator)}


def _pictures(side: int) -> Callable[[int, torch.Generator], Batch]:
    def batch(samples: int, generator: torch.Generator) -> Batch:
        pixels = torch.randn(samples, 3, side, side, generator=generator)
        labels = torch.randint(CLASSES, (samples,), generator=generator)
        return {"pixel_values": pixels, "labels": labels}

    return batch


# No end of text, so that generation is as long as asked for.
_SPECIAL = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}


def _gpt2(layers: int) -> Any:
    config = hf.GPT2Config(
        vocab_size=VOCABULARY, n_positions=128, n_embd=64, n_inner=128, n_head=2, n_layer=layers,
        **_SPECIAL,
    )  # fmt: skip
    return hf.GPT2LMHeadModel(config)


def _bert(layers: int) -> Any:
    config = hf.BertConfig(
        vocab_size=VOCABULARY, max_position_embeddings=64, hidden_size=64, intermediate_size=128,
        num_attention_heads=2, num_hidden_layers=layers,
    )  # fmt: skip
    return hf.BertForMaskedLM(config)


def _llama(layers: int) -> Any:
    config = hf.LlamaConfig(
        vocab_size=VOCABULARY, max_position_embeddings=128, hidden_size=64, intermediate_size=160,
        num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=layers,
        attention_dropout=0.1, **_SPECIAL,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config)


def _t5(layers: int) -> Any:
    config = hf.T5Config(
        vocab_size=VOCABULARY, d_model=96, d_kv=48, d_ff=256, num_heads=2, num_layers=layers,
        decoder_start_token_id=0, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return hf.T5ForConditionalGeneration(config)


def _vit(layers: int) -> Any:
    config = hf.ViTConfig(
        image_size=32, patch_size=4, hidden_size=64, intermediate_size=128, num_attention_heads=2,
        num_hidden_layers=layers, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
        num_labels=CLASSES,
    )  # fmt: skip
    return hf.ViTForImageClassification(config)


def _resnet(layers: int) -> Any:
    config = hf.ResNetConfig(
        embedding_size=16, hidden_sizes=[32, 64, 96, 128], depths=[layers, 2, 2, 2],
        layer_type="basic", num_labels=CLASSES,
    )  # fmt: skip
    return hf.ResNetForImageClassification(config)


def _swin(layers: int) -> Any:
    config = hf.SwinConfig(
        image_size=64, patch_size=4, embed_dim=32, depths=[layers, 2, 2], num_heads=[2, 4, 8],
        window_size=4, mlp_ratio=2.0, num_labels=CLASSES,
    )  # fmt: skip
    return hf.SwinForImageClassification(config)


def _whisper(layers: int) -> Any:
    config = hf.WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=MEL_BINS, d_model=96, max_source_positions=96,
        max_target_positions=64, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=192,
        decoder_ffn_dim=192, dropout=0.1, attention_dropout=0.1, activation_dropout=0.1,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None, **_SPECIAL,
    )  # fmt: skip
    return hf.WhisperForConditionalGeneration(config)


def _mixtral(layers: int) -> Any:
    config = hf.MixtralConfig(
        vocab_size=VOCABULARY, max_position_embeddings=128, hidden_size=64, intermediate_size=64,
        num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=layers,
        num_local_experts=4, num_experts_per_tok=2, output_router_logits=True,
        attention_dropout=0.1, **_SPECIAL,
    )  # fmt: skip
    return hf.MixtralForCausalLM(config)


HUGGING_FACE: dict[str, Architecture] = {
    "gpt2": Architecture(_gpt2, _text(32), layers=32, samples=32, generates=True),
    "bert": Architecture(_bert, _text(32), layers=20, samples=32),
    "llama": Architecture(_llama, _text(32), layers=24, samples=32, generates=True),
    "t5": Architecture(_t5, _translation, layers=6, samples=16, generates=True),
    "vit": Architecture(_vit, _pictures(32), layers=20, samples=16),
    "resnet": Architecture(_resnet, _pictures(96), layers=2, samples=16, checkpoints=False),
    "swin": Architecture(_swin, _pictures(64), layers=14, samples=16),
    "whisper": Architecture(_whisper, _speech, layers=5, samples=8, generates=True),
    "mixtral": Architecture(_mixtral, _text(32), layers=12, samples=32, generates=True),
}
