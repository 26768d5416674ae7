"""A small transformer for text classification."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.core.hyper import NonNegativeInt, PositiveInt, ShareBelow1, checked
from fedloom.errors import ConfigError, DataError
from fedloom.models.layers import sequential


class Tokens(nn.Module):
    """Tokens (B, T) int64 -> token plus position embeddings (B, T, W), and the padding mask (B, T),
    true for text.
    """

    def __init__(self, vocabulary: int, length: int, width: int, dropout: float, padding: int):
        super().__init__()
        self.weights = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.empty(length, width))
        for value in (self.weights.weight, self.places):
            nn.init.normal_(value, std=0.02)
        self.drop = nn.Dropout(dropout)
        self.padding = padding

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        length = tokens.shape[1]
        if length > len(self.places):
            raise DataError(
                f"texts of {length} tokens are too long for a transformer of {len(self.places)} "
                f"positions; give model.length = {length}"
            )
        return self.drop(self.weights(tokens) + self.places[:length]), tokens != self.padding


class Attention(nn.Module):
    """Attention of every position to all text positions: (B, T, W), text (B, T) -> (B, T, W).

    softmax(q k^T / sqrt(W / heads)) v per head, with dropout on the softmax (Vaswani et al., 2017,
    section 3.2). It uses plain operations and nn.Dropout, so that all engines can run it.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.enter = nn.Linear(width, 3 * width)
        self.leave = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, a: Tensor, text: Tensor) -> Tensor:
        each = self.enter(a).unflatten(-1, (3, self.heads, -1))  # (B, T, 3, heads, W / heads)
        q, k, v = each.transpose(1, 3).unbind(2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, heads, T, T)
        # not minus infinity: a text that is only padding would give NaN
        lowest = torch.finfo(scores.dtype).min / 4
        shares = torch.where(text[:, None, None, :], scores, lowest).softmax(-1)
        out: Tensor = self.leave((self.drop(shares) @ v).transpose(1, 2).flatten(-2))
        return out


class Encoder(nn.Module):
    """An encoder layer: attention, then W -> 4 W GELU -> W, each after a LayerNorm and with a
    shortcut. last: end with a LayerNorm and the mean over the text, (B, W).
    """

    def __init__(self, width: int, heads: int, dropout: float, last: bool) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.dense = sequential(
            enter=nn.Linear(width, 4 * width),
            activation=nn.GELU(),
            leave=nn.Linear(4 * width, width),
        )
        self.drop1, self.drop2 = nn.Dropout(dropout), nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width) if last else None

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Any:
        a, text = inputs
        a = a + self.drop1(self.attention(self.norm1(a), text))
        a = a + self.drop2(self.dense(self.norm2(a)))
        if self.norm is None:
            return a, text
        weights = text.to(a.dtype) / text.sum(1, keepdim=True).clamp_min(1)
        return (self.norm(a) * weights.unsqueeze(-1)).sum(1)


@checked
def transformer_text(
    vocabulary: PositiveInt = 20000,
    classes: PositiveInt = 4,
    length: PositiveInt = 128,
    width: PositiveInt = 128,
    heads: PositiveInt = 4,
    layers: PositiveInt = 2,
    dropout: ShareBelow1 = 0.1,
    padding: NonNegativeInt = 0,
) -> nn.Sequential:
    """Build a transformer that classifies texts (n, T) int64 of T <= length tokens.

    Its blocks are embedding, layer1, layer2, ..., head; the head gets the mean over the text.
    padding: the padding token, which attention ignores. With V words, L positions, width W, n
    layers and C classes it has (V + L) W + n (12 W^2 + 13 W) + 2 W + (W + 1) C parameters:
    2,973,700 with the defaults. Raises ConfigError; DataError for texts that are too long.

    Source: Vaswani et al., NeurIPS 2017, the encoder, with the LayerNorm before each part (Xiong et
    al., ICML 2020), so that it trains without a warm-up; embeddings are normal of standard
    deviation 0.02.

    >>> net = transformer_text(vocabulary=9, length=5, width=8, heads=2)
    >>> net(torch.tensor([[1, 2, 3, 0, 0]])).shape
    torch.Size([1, 4])
    """
    if width % heads:
        raise ConfigError(f"width must be a multiple of heads, got {width} and {heads}")
    if padding >= vocabulary:
        raise ConfigError(f"padding must be a token from 0 to {vocabulary - 1}, got {padding!r}")
    stack = {
        f"layer{i}": Encoder(width, heads, dropout, last=i == layers) for i in range(1, layers + 1)
    }
    embedding = Tokens(vocabulary, length, width, dropout, padding)
    return sequential(embedding=embedding, **stack, head=nn.Linear(width, classes))
