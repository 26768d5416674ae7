"""Models with something that an engine may get wrong: layers used twice, dropout, buffers that
change, weights that are tied or frozen.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedloom.models import LSTM
from fedloom.models.layers import norm_of

WORDS = 9  # of the texts that these models read, five in a row


def convolutions(norm: str) -> nn.Module:
    """Of images (3, 8, 8) in three classes."""
    make = norm_of(norm, 2, [4])
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3), make(4), nn.ReLU(), nn.Conv2d(4, 4, 3, 2), make(4)),
        nn.Sequential(nn.Flatten(), nn.Linear(16, 3)),
    )


def used_twice() -> nn.Module:
    """Modules that stand at two places."""
    same, norm, drop = nn.Linear(6, 6), nn.LayerNorm(6), nn.Dropout(0.3)
    body = nn.Sequential(same, norm, nn.Tanh(), drop, same, norm, drop)
    embedded = nn.Embedding(WORDS, 6), nn.Flatten(), nn.Linear(30, 6)
    return nn.Sequential(*embedded, body, nn.Linear(6, 3))


class Classifier(nn.Module):
    """Embedding, a recurrent network, and the classifier on its last output."""

    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 4)
        self.recurrent, self.head = recurrent, nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.recurrent(self.embedding(tokens))[0][:, -1])


def our_lstm() -> nn.Module:
    return Classifier(LSTM(4, 5, num_layers=2, batch_first=True, dropout=0.5))


def torchs_lstm() -> nn.Module:
    return Classifier(nn.LSTM(4, 5, num_layers=2, batch_first=True, dropout=0.5))


class Attention(nn.Module):
    """torch's own, with dropout that no engine of many clients can draw."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 4)
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        a = self.embedding(tokens)
        return self.head(self.attention(a, a, a, need_weights=False)[0].mean(1))


class Named(nn.Module):
    """A module of a user's own that calls its dropout layer dropout, as most do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(WORDS, 4), nn.Dropout(0.5)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.dropout(self.embedding(tokens)).mean(1))


# ------------------------------------------------------------------ of five numbers, three classes
class Frozen(nn.Module):
    """Half of it is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)
        self.first.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


class Tied(nn.Module):
    """Two layers have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.middle, self.leave = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.middle.weight = self.enter.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(torch.tanh(self.middle(torch.tanh(self.enter(x)))))


class Masks(nn.Module):
    """Dropout, one time after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 20), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.3))
        self.head = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Noise(nn.Module):
    """Draws from torch's own generator, as a layer of a user's may."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x + torch.randn_like(x) * torch.nn.functional.dropout(torch.ones_like(x))
        return self.head(x)


class Drawing(nn.Module):
    """Blurs its inputs whenever it is called, as a randomised network does."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inside(inputs + 0.5 * torch.randn_like(inputs))


# ---------------------------------------------------------------------------------------- buffers
class Statistics(nn.Module):
    """Batch norms with a running mean, and with a cumulative one that counts its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(6)
        self.count = nn.BatchNorm1d(6, momentum=None)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.count(torch.tanh(self.norm(self.first(x)))))


class Scaled(nn.Module):
    """Inputs less a constant, times a parameter; both constants are no sums of powers of two."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))
        self.register_buffer("shift", torch.full((5,), shift))
        self.register_buffer("root", torch.tensor(0.7), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls = self.calls + 1  # a client's own, from 0 on
        return (inputs - self.shift) * self.scale * self.root / (1 + self.calls)


def constants(norm: bool = False) -> nn.Module:
    """Of texts, with buffers that no client changes."""
    layers = [nn.Embedding(WORDS, 1), nn.Flatten(), Scaled(0.1), nn.Linear(5, 5), Scaled(0.3)]
    if norm:
        layers += [nn.BatchNorm1d(5, track_running_stats=False)]
    return nn.Sequential(*layers, nn.Linear(5, 3))


class Moving(nn.Module):
    """A moving mean of its inputs that forgets faster at first; written in place, or assigned."""

    def __init__(self, assigns: bool) -> None:
        super().__init__()
        self.assigns = assigns
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            seen = self.seen + 1
            mean = self.mean + (inputs.detach().mean(0) - self.mean) / (3 + seen)
            if self.assigns:
                self.mean, self.seen = mean, seen
            else:
                self.mean.copy_(mean)
                self.seen.copy_(seen)
        return inputs - self.mean


def moving(assigns: bool) -> nn.Module:
    """Of texts, with two such means."""
    layers = nn.Embedding(WORDS, 1), nn.Flatten(), Moving(assigns), nn.Linear(5, 3), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(3, 5), Moving(assigns), nn.Linear(5, 3))


def normed() -> nn.Module:
    """Two batch norms with running statistics."""
    layers = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 4), nn.BatchNorm1d(4)
    return nn.Sequential(*layers)
