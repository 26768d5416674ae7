"""Recurrent networks for text: next-character prediction, and language models; their LSTM layer."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.hyper import PositiveInt, ShareBelow1, checked
from fedloom.errors import ConfigError, DataError
from fedloom.models.layers import sequential

State = tuple[Tensor, Tensor]  # h and c, (layers, B, hidden) each

# whether a tensor is inside a transform of torch.func; torch has no public name for this test
_inside = torch._C._functorch.is_functorch_wrapped_tensor


class LSTM(nn.Module):
    """nn.LSTM with weights of the same names, shapes and order, in one direction.

    Two things differ. Dropout between the layers is nn.Dropout, which fedloom replaces by masks
    that are a function of the seed: all gradients of a step see the same masks, in every engine.
    And vmap works on it, which fails on the kernel of nn.LSTM in float32: inside a transform of
    torch.func the layers are plain tensor operations. Elsewhere a layer is one call of that kernel
    (1.8 to 3.7 times faster in float32 on a CPU, no slower in float64).

    inputs (T, B, input_size), or (B, T, input_size) with batch_first; state (layers, B,
    hidden_size) twice, zeros by default. Returns outputs (T, B, hidden_size) or (B, T,
    hidden_size), and the state after the last step. Raises ConfigError for sizes out of range,
    DataError for inputs of another shape.

    Source: Hochreiter and Schmidhuber, Neural Computation 1997, with the forget gate of Gers et
    al. 2000; each weight holds the gates i, f, g, o in this order. Dropout between layers only:
    Zaremba, Sutskever and Vinyals, 2014.

    >>> outputs, (h, c) = LSTM(3, 4, num_layers=2, batch_first=True)(torch.zeros(5, 7, 3))
    >>> outputs.shape, h.shape
    (torch.Size([5, 7, 4]), torch.Size([2, 5, 4]))
    """

    @checked
    def __init__(
        self,
        input_size: PositiveInt,
        hidden_size: PositiveInt,
        num_layers: PositiveInt = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: ShareBelow1 = 0.0,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first = bias, batch_first
        bound = 1 / math.sqrt(hidden_size)
        for i in range(num_layers):
            for name, shape in self._shapes(i).items():
                weight = torch.empty(shape).uniform_(-bound, bound)
                self.register_parameter(name, nn.Parameter(weight))
        # not named dropout: an attribute of that name marks modules that use torch's generator
        self.drops = nn.ModuleList(nn.Dropout(dropout) for _ in range(num_layers - 1))

    def _shapes(self, i: int) -> dict[str, tuple[int, ...]]:
        """The parameters of layer i."""
        rows, columns = 4 * self.hidden_size, self.hidden_size if i else self.input_size
        shapes: dict[str, tuple[int, ...]] = {
            f"weight_ih_l{i}": (rows, columns),
            f"weight_hh_l{i}": (rows, self.hidden_size),
        }
        if self.bias:
            shapes |= {f"bias_ih_l{i}": (rows,), f"bias_hh_l{i}": (rows,)}
        return shapes

    def forward(self, inputs: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run all layers -> outputs, state."""
        if inputs.ndim != 3 or inputs.shape[-1] != self.input_size:
            order = "(B, T" if self.batch_first else "(T, B"
            raise DataError(
                f"an LSTM of {self.input_size} inputs takes {order}, {self.input_size}), "
                f"got {list(inputs.shape)}"
            )
        # batch dimension first throughout: then padding a short batch does not change its masks
        a = inputs if self.batch_first else inputs.transpose(0, 1)
        if state is None:
            zero = a.new_zeros(self.num_layers, a.shape[0], self.hidden_size)
            state = zero, zero
        ends = []
        for i, (h, c) in enumerate(zip(state[0].unbind(), state[1].unbind(), strict=True)):
            if i:
                a = self.drops[i - 1](a)
            weights = [getattr(self, name) for name in self._shapes(i)]
            every = [a, h, c, *weights]
            a, h, c = (_plain if any(map(_inside, every)) else _fused)(a, h, c, weights)
            ends.append((h, c))
        hs, cs = zip(*ends, strict=True)
        return a if self.batch_first else a.transpose(0, 1), (torch.stack(hs), torch.stack(cs))

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"


def _plain(a: Tensor, h: Tensor, c: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """One layer, step by step: a (B, T, F), h and c (B, H) -> outputs (B, T, H), h, c."""
    w, u, *biases = weights
    out, turned = [], u.t()
    for z in F.linear(a, w, biases[0] + biases[1] if biases else None).unbind(1):
        i, f, g, o = torch.addmm(z, h, turned).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        out.append(h)
    return torch.stack(out, 1), h, c


def _fused(a: Tensor, h: Tensor, c: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The same by the kernel of nn.LSTM, in training mode: cuDNN has gradients in no other mode,
    and without dropout the numbers are the same.
    """
    state = [h.unsqueeze(0), c.unsqueeze(0)]
    if a.device.type != "cpu":  # cuDNN wants one piece of memory, with biases, and warns otherwise
        zeros = weights[0].new_zeros(len(weights[0]))
        weights = weights if len(weights) > 2 else [*weights, zeros, zeros]
        whole = torch.cat([w.reshape(-1) for w in weights])
        parts = torch.split(whole, [w.numel() for w in weights])
        weights = [part.view(w.shape) for part, w in zip(parts, weights, strict=True)]
    out, h, c = torch.lstm(a, state, weights, len(weights) > 2, 1, 0.0, True, False, True)
    return out, h.squeeze(0), c.squeeze(0)


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
    table = sequential(weights=nn.Embedding(characters, embedding))
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
    return RecurrentNet(sequential(weights=table, drop=nn.Dropout(dropout)), stack, head)
