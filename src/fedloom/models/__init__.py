"""Models by name. Each is a sequence of named blocks; the last block is the classifier `head`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from fedloom.core.registry import Registry
from fedloom.errors import ConfigError, FedloomError
from fedloom.models.hugging_face import huggingface_text, roberta_base
from fedloom.models.images import (
    cnn_celeba,
    cnn_cfedavg,
    cnn_fafed_cifar,
    cnn_fafed_fashion,
    cnn_fafed_mnist,
    cnn_femnist,
    logistic,
    mlp,
    resnet8,
    resnet18,
    resnet18_fedsmoo,
    resnet18_fiarse,
    unet,
)
from fedloom.models.layers import (
    MultiExit,
    Residual,
    SeveralInputs,
    joined,
    with_exits,
    with_statistics,
)
from fedloom.models.recurrent import LSTM, lstm_language_model, lstm_shakespeare
from fedloom.models.transformer import transformer_text

_ALL: tuple[Callable[..., nn.Module], ...] = (
    *(logistic, mlp, cnn_fafed_mnist, cnn_fafed_fashion, cnn_fafed_cifar, cnn_cfedavg),
    *(cnn_femnist, cnn_celeba, resnet8, resnet18, resnet18_fedsmoo, resnet18_fiarse),
    *(lstm_shakespeare, lstm_language_model, transformer_text, unet),
    *(roberta_base, huggingface_text),
)
MODELS: Registry[Callable[..., nn.Module]] = Registry(
    "model", {make.__name__: make for make in _ALL}, own=nn.Module
)

__all__ = [
    "LSTM",
    "MODELS",
    "MultiExit",
    "Residual",
    "SeveralInputs",
    "cnn_celeba",
    "cnn_cfedavg",
    "cnn_fafed_cifar",
    "cnn_fafed_fashion",
    "cnn_fafed_mnist",
    "cnn_femnist",
    "huggingface_text",
    "joined",
    "logistic",
    "lstm_language_model",
    "lstm_shakespeare",
    "make_model",
    "mlp",
    "resnet8",
    "resnet18",
    "resnet18_fedsmoo",
    "resnet18_fiarse",
    "roberta_base",
    "transformer_text",
    "unet",
    "with_exits",
    "with_statistics",
]


def make_model(name: str, **options: Any) -> nn.Module:
    """A model by its name. Raises ConfigError, also for sizes that no memory holds."""
    try:
        model: nn.Module = MODELS.make(name, **options)
        return model
    except (TypeError, RuntimeError, MemoryError) as error:
        if isinstance(error, FedloomError):
            raise
        why = str(error).partition("\n")[0]
        raise ConfigError(f"{name} cannot be made with {options}: {why}") from error
