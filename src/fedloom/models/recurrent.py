"""Recurrent networks for text: next-character prediction, and language models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedloom.core.hyper import PositiveInt, ShareBelow1, checked
from fedloom.errors import ConfigError
from fedloom.models.layers import named
from fedloom.models.lstm_layer import LSTM, State


class Recurrent(nn.Module):
    """An LSTM layer as a block: sequences (B, T, F) -> outputs (B, T, H), with dropout.

    last: only the output at the last position, (B, H).
    """

    def __init__(self, inputs: int, hidden: int, dropout: float = 0.0, last: bool = False) -> None:
        super().__init__()
        self.lstm = LSTM(inputs, hidden, batch_first=True)
        self.drop = nn.Dropout(dropout)
        self.last = last

    def forward(self, a: Tensor) -> Tensor:
        return self.carry(a, None)[0]

    def carry(self, a: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Run the layer from a state -> the outputs, and the state after the last one."""
        out, state = self.lstm(a, state)
        return self.drop(out[:, -1] if self.last else out), state


class RecurrentNet(nn.Module):
    """A sequence of blocks embedding, lstm1, lstm2, ..., head on tokens (B, T) int64.

    The initial state is zero. Called with (tokens, state) the network starts from that state, h and
    c (layers, B, hidden) each, and returns (outputs, state after the last token).

    >>> net = lstm_language_model(vocabulary=9, embedding=4, hidden=4)
    >>> outputs, (h, c) = net((torch.zeros(2, 5, dtype=torch.int64), net.zeros(2)))
    >>> outputs.shape, h.shape
    (torch.Size([2, 5, 9]), torch.Size([2, 2, 4]))
    """

    def __init__(self, embedding: nn.Module, layers: list[Recurrent], head: nn.Linear) -> None:
        super().__init__()
        self.embedding = embedding
        for i, layer in enumerate(layers, start=1):
            self.add_module(f"lstm{i}", layer)
        self.head = head
        self.hidden = layers[0].lstm.hidden_size
        self.recurrent = tuple(f"lstm{i}" for i in range(1, len(layers) + 1))
        self.blocks = ("embedding", *self.recurrent, "head")

    def zeros(self, examples: int) -> State:
        """The state before the first token of `examples` texts."""
        one = self.head.weight.new_zeros(len(self.recurrent), examples, self.hidden)
        return one, one.clone()

    def forward(self, inputs: Any) -> Any:
        tokens, state = (inputs, None) if isinstance(inputs, Tensor) else inputs
        a, ends = self.embedding(tokens), []
        for i, name in enumerate(self.recurrent):
            layer: Any = self.get_submodule(name)
            a, end = layer.carry(
                a, None if state is None else (state[0][i : i + 1], state[1][i : i + 1])
            )
            ends.append(end)
        outputs = self.head(a)
        if state is None:
            return outputs
        return outputs, (torch.cat([h for h, _ in ends]), torch.cat([c for _, c in ends]))


@checked
def lstm_shakespeare(
    characters: PositiveInt = 80,
    embedding: PositiveInt = 8,
    hidden: PositiveInt = 256,
    layers: PositiveInt = 2,
) -> RecurrentNet:
    """Build LEAF's network for the next character of Shakespeare: 819,920 parameters.

    characters (n, T) int64 -> embedding of 8 -> two LSTM layers of 256 -> logits (n, characters) of
    the next character, from the last output. nn.LSTM has two biases per gate: 2,048
    parameters more than with TensorFlow's one bias. Raises ConfigError.

    Source: Caldas et al., LEAF, 2018, reference implementation of Shakespeare.
    """
    stack = [
        Recurrent(hidden if i else embedding, hidden, last=i == layers - 1) for i in range(layers)
    ]
    table = named(weights=nn.Embedding(characters, embedding))
    return RecurrentNet(table, stack, nn.Linear(hidden, characters))


@checked
def lstm_language_model(
    vocabulary: PositiveInt = 33278,
    embedding: PositiveInt = 650,
    hidden: PositiveInt = 650,
    layers: PositiveInt = 2,
    dropout: ShareBelow1 = 0.5,
    tied: bool = False,
) -> RecurrentNet:
    """Build FAFED's language model: 50,065,078 parameters with WikiText-2's 33,278 words.

    words (n, T) int64 -> embedding -> two LSTM layers -> logits (n, T, vocabulary) of the next
    word at every position; dropout after the embedding and every layer. tied: the classifier shares
    the embedding's weights (28,434,378 parameters); this needs embedding = hidden. The paper does
    not give the initial weights: here they are uniform in [-0.1, 0.1] for embedding and classifier,
    with bias 0. Train it with local.clip = 0.25. Raises ConfigError.

    Source: Wu et al., FAFED, AAAI 2023, section 6 (two layers of 650, dropout 0.5); the
    architecture is that of Zaremba, Sutskever and Vinyals, 2014.
    """
    if tied and embedding != hidden:
        raise ConfigError(
            f"tied needs embedding = hidden, got embedding = {embedding} and hidden = {hidden}"
        )
    table = nn.Embedding(vocabulary, embedding)
    head = nn.Linear(hidden, vocabulary)
    if tied:
        head.weight = table.weight
    with torch.no_grad():
        nn.init.uniform_(table.weight, -0.1, 0.1)
        nn.init.uniform_(head.weight, -0.1, 0.1)
        head.bias.zero_()
    stack = [Recurrent(hidden if i else embedding, hidden, dropout) for i in range(layers)]
    return RecurrentNet(named(weights=table, drop=nn.Dropout(dropout)), stack, head)
