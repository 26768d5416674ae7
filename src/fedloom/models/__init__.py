"""Networks by name; every one is an nn.Sequential of named blocks, the last of them `head`."""

from __future__ import annotations

from fedloom.models.lstm import LSTM
from fedloom.models.small import (
    MODELS,
    cnn_cfedavg,
    cnn_fafed_cifar,
    cnn_fafed_fashion,
    cnn_fafed_mnist,
    cnn_femnist,
    logistic,
    mlp,
)

__all__ = [
    "LSTM",
    "MODELS",
    "cnn_cfedavg",
    "cnn_fafed_cifar",
    "cnn_fafed_fashion",
    "cnn_fafed_mnist",
    "cnn_femnist",
    "logistic",
    "mlp",
]
