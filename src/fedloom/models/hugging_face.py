"""Text classifiers from Hugging Face, optionally with LoRA. Needs the extra fedloom[text]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedloom.core.extras import need
from fedloom.core.hyper import NonNegativeInt, Positive, PositiveInt, ShareBelow1, checked
from fedloom.errors import ConfigError, DataError

_ATTENTION = "fedloom"


def roberta_base(
    classes: PositiveInt = 4,
    source: str = "roberta-base",
    pretrained: bool = True,
    lora: NonNegativeInt = 0,
    lora_alpha: Positive = 16.0,
    lora_dropout: ShareBelow1 = 0.0,
) -> nn.Module:
    """Build RoBERTa-base for texts (n, T) int64, padded with token 1: 124,648,708 parameters.

    The count is for 4 classes; all parameters are trained, with a new head. Its blocks are
    embedding, layer1 to layer12 and head, so that objectives can run it in parts. Dropout masks are
    the same for all gradients of a step. For the options and errors see `huggingface_text`.

    Source: Liu et al., 2019; FIARSE (Wu et al., NeurIPS 2024) fine-tunes it on AG News.
    """
    return huggingface_text(source, classes, 1, pretrained, lora, lora_alpha, lora_dropout)


@checked
def huggingface_text(
    source: str,
    classes: PositiveInt = 2,
    padding: NonNegativeInt = 0,
    pretrained: bool = True,
    lora: NonNegativeInt = 0,
    lora_alpha: Positive = 16.0,
    lora_dropout: ShareBelow1 = 0.0,
) -> nn.Module:
    """Build a classifier of texts (n, T) int64 from a model of the Hugging Face hub or a folder.

    source: a folder, or a name on the hub; padding: the padding token. pretrained: use the weights
    of the source (except for a head with another number of classes); false: read only its
    configuration and initialise the weights at random. lora: the rank of low-rank adapters (Hu et
    al., ICLR 2022), scaled by lora_alpha / lora; then only the adapters and the classifier are
    trained and sent. With lora=0 all parameters are. Raises ConfigError for values out of range and
    for a package that is not installed, DataError for a source that cannot be read.
    """
    transformers = need("transformers", "this model", "text")
    kind = transformers.AutoModelForSequenceClassification
    try:
        config = transformers.AutoConfig.from_pretrained(source, num_labels=classes)
        inner: nn.Module = (
            kind.from_pretrained(source, config=config, ignore_mismatched_sizes=True)
            if pretrained
            else kind.from_config(config)
        )
    except (OSError, ValueError, RuntimeError) as error:
        why = next((line for line in str(error).splitlines() if line.strip()), "")
        raise DataError(
            f"model source '{source}' cannot be read: {why}; give a folder with config.json and "
            "weights, or the name of a model on the hub and a network"
        ) from None
    if lora:
        _adapt(inner, lora, lora_alpha, lora_dropout)
    model: nn.Module = (
        RobertaText(inner, padding)
        if type(inner).__name__ == "RobertaForSequenceClassification"
        else TextModel(inner, padding)
    )
    return model.train()  # from_pretrained leaves the inner model in evaluation mode


def _adapt(inner: nn.Module, rank: int, alpha: float, dropout: float) -> None:
    """Add low-rank adapters to a classifier, in place; only they and its head stay trainable."""
    peft = need("peft", "lora", "text")
    weights = dict(inner.named_parameters())
    task = peft.TaskType.SEQ_CLS
    config = peft.LoraConfig(task_type=task, r=rank, lora_alpha=alpha, lora_dropout=dropout)
    try:
        peft.inject_adapter_in_model(config, inner)
    except ValueError as error:
        raise ConfigError(
            f"lora: peft finds no layers to adapt in {type(inner).__name__}: "
            f"{str(error).splitlines()[0]}"
        ) from None
    base = getattr(inner, "base_model_prefix", "")
    for name, value in weights.items():  # parameters outside the head have the model's own prefix
        value.requires_grad_(not name.startswith(f"{base}."))


class TextModel(nn.Module):
    """Any Hugging Face text classifier: tokens (B, T) int64 -> logits (B, C)."""

    def __init__(self, inner: nn.Module, padding: int) -> None:
        super().__init__()
        self.inner, self.padding = inner, padding

    def forward(self, tokens: Tensor) -> Tensor:
        text = (tokens != self.padding).long()
        logits: Tensor = self.inner(input_ids=tokens, attention_mask=text).logits
        return logits


# ----------------------------------------------------------------------------------------- RoBERTa
class RobertaText(nn.Module):
    """A RobertaForSequenceClassification as blocks embedding, layer1, layer2, ..., head."""

    def __init__(self, inner: Any, padding: int) -> None:
        super().__init__()
        inner.config._attn_implementation = _ATTENTION
        layers = list(inner.roberta.encoder.layer)
        self.embedding = _Embedding(inner.roberta.embeddings, padding)
        for i, layer in enumerate(layers, start=1):
            self.add_module(f"layer{i}", _Layer(layer, last=i == len(layers)))
        self.head = inner.classifier
        self.blocks = ("embedding", *(f"layer{i + 1}" for i in range(len(layers))), "head")

    def forward(self, tokens: Tensor) -> Any:
        a: Any = tokens
        for name in self.blocks:
            a = self.get_submodule(name)(a)
        return a


class _Embedding(nn.Module):
    """Tokens (B, T) -> (B, T, W), and the attention mask that is added to scores (B, 1, 1, T)."""

    def __init__(self, inner: nn.Module, padding: int) -> None:
        super().__init__()
        self.inner, self.padding = inner, padding

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        a = self.inner(input_ids=tokens)
        lowest = torch.finfo(a.dtype).min / 4
        hidden = a.new_zeros(tokens.shape).masked_fill(tokens == self.padding, lowest)
        return a, hidden[:, None, None, :]


class _Layer(nn.Module):
    """One encoder layer. last: return only the first position, which the head reads, (B, 1, W)."""

    def __init__(self, inner: nn.Module, last: bool) -> None:
        super().__init__()
        self.inner, self.last = inner, last
        _register()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch has no types here
        _register()  # in a worker process, for the first time

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Any:
        a, hidden = inputs
        out = self.inner(a, attention_mask=hidden)
        a = out[0] if isinstance(out, tuple) else out  # depends on the version of transformers
        return a[:, :1] if self.last else (a, hidden)


def _register() -> None:
    """Register the attention below with transformers, under its name, in this process."""
    need("transformers", "this model", "text").AttentionInterface.register(_ATTENTION, _attention)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """softmax(q k^T scaling + mask) v, with the layer's own dropout module on the softmax.

    The library's functions take that dropout from torch's generator, which vmap does not allow.
    """
    scores = query @ key.transpose(-2, -1) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    shares = scores.softmax(-1)
    return (module.dropout(shares) @ value).transpose(1, 2), shares
