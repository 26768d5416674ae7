"""The text of exported scripts: plain torch and numpy, without fedloom."""

from __future__ import annotations

# our own blocks as an exported model needs them: by name, and under the names of their weights
BLOCKS: dict[str, str] = {
    "Residual": '''
class Residual(nn.Module):
    """relu(body(a) + shortcut(a)); without a shortcut relu(body(a) + a)."""

    def __init__(self, body, shortcut=None):
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, inputs):
        other = inputs if self.shortcut is None else self.shortcut(inputs)
        return torch.relu(self.body(inputs) + other)

''',
    "MultiExit": '''
class MultiExit(nn.Module):
    """Stages one after another; the last one, or the exit behind it, gives the outputs."""

    def __init__(self, stages, exits):
        super().__init__()
        self.names = list(stages)
        for name, stage in stages.items():
            self.add_module(name, stage)
        for name, behind in exits.items():
            self.add_module(f"exit_{name}", behind)

    def forward(self, inputs):
        for name in self.names:
            inputs = self.get_submodule(name)(inputs)
        behind = f"exit_{self.names[-1]}"
        return self.get_submodule(behind)(inputs) if hasattr(self, behind) else inputs

''',
    "Tokens": '''
class Tokens(nn.Module):
    """Tokens (B, T) -> embeddings plus those of places (B, T, W), and which are text (B, T)."""

    def __init__(self, vocabulary, length, width, padding):
        super().__init__()
        self.weights = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.padding = padding

    def forward(self, tokens):
        return self.weights(tokens) + self.places[: tokens.shape[1]], tokens != self.padding

''',
    "Encoder": '''
class Attention(nn.Module):
    """softmax(q k^T / sqrt(W / heads)) v per head, of every place to all that are text."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, a, text):
        each = self.enter(a).unflatten(-1, (3, self.heads, -1))
        q, k, v = each.transpose(1, 3).unbind(2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        lowest = torch.finfo(scores.dtype).min / 4
        shares = torch.where(text[:, None, None, :], scores, lowest).softmax(-1)
        return self.leave((shares @ v).transpose(1, 2).flatten(-2))


class Encoder(nn.Module):
    """Attention, then W -> 4 W GELU -> W, each behind a LayerNorm and beside a shortcut; the last
    layer ends with a LayerNorm and the mean over the text.
    """

    def __init__(self, width, heads, last):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.dense = nn.LayerNorm(width), nn.Sequential()
        self.dense.add_module("enter", nn.Linear(width, 4 * width))
        self.dense.add_module("activation", nn.GELU())
        self.dense.add_module("leave", nn.Linear(4 * width, width))
        self.norm = nn.LayerNorm(width) if last else None

    def forward(self, inputs):
        a, text = inputs
        a = a + self.attention(self.norm1(a), text)
        a = a + self.dense(self.norm2(a))
        if self.norm is None:
            return a, text
        share = text.to(a.dtype) / text.sum(1, keepdim=True).clamp_min(1)
        return (self.norm(a) * share.unsqueeze(-1)).sum(1)

''',
    "RecurrentNet": '''
class Recurrent(nn.Module):
    """An LSTM layer: sequences (B, T, F) -> its outputs (B, T, H); last: only the last, (B, H)."""

    def __init__(self, inputs, hidden, last):
        super().__init__()
        self.lstm, self.last = nn.LSTM(inputs, hidden, batch_first=True), last

    def forward(self, a):
        out = self.lstm(a)[0]
        return out[:, -1] if self.last else out


class RecurrentNet(nn.Module):
    """An embedding, LSTM layers, and a classifier, whose weights may be the embedding's."""

    def __init__(self, embedding, layers, head, tied):
        super().__init__()
        self.embedding, self.layers = embedding, len(layers)
        for i, layer in enumerate(layers, start=1):
            self.add_module(f"lstm{i}", Recurrent(*layer))
        self.head = head
        if tied:
            self.head.weight = self.embedding.weights.weight

    def forward(self, inputs):
        a = self.embedding(inputs)
        for i in range(self.layers):
            a = self.get_submodule(f"lstm{i + 1}")(a)
        return self.head(a)

''',
}

# ---------------------------------------------------------------------- from samples to a model's
# inputs, by the kind that fedloom.data.raw_inputs.recipe names
_NUMBERS = '''def prepare(inputs):
    """{about}"""{named}
    values = torch.as_tensor(np.asarray(inputs).copy()).to(torch.{dtype})
    if tuple(values.shape[1:]) != SHAPE:
        raise ValueError(f"a sample has the shape {{SHAPE}}, got {{tuple(values.shape[1:])}}")
    return values{cast}
'''
_TEXTS = '''def prepare(inputs):
    """{about}; arrays of such numbers stay."""
    inputs = [inputs] if isinstance(inputs, str) else inputs
    if len(inputs) and not isinstance(inputs[0], str):
        return torch.as_tensor(np.asarray(inputs).copy()).long()
    return torch.tensor([numbers(text) for text in inputs], dtype=torch.int64)
'''
PREPARE: dict[str, str] = {
    "pixels": '''def prepare(inputs):
    """Pictures {shape} of whole numbers from 0 to {scale}{grey} as the model takes them."""
    pixels = torch.as_tensor(np.asarray(inputs).copy())
    if SHAPE[0] == 1 and tuple(pixels.shape[1:]) == SHAPE[1:]:
        pixels = pixels.unsqueeze(1)
    if tuple(pixels.shape[1:]) != SHAPE:
        raise ValueError(f"a picture has the shape {{SHAPE}}, got {{tuple(pixels.shape[1:])}}")
    if pixels.is_floating_point() and bool((pixels != pixels.round()).any()):
        raise ValueError("pixels are whole numbers from 0 to {scale}, and here are fractions")
    mean = torch.tensor(MEAN, dtype=torch.{dtype}).view(-1, 1, 1)
    std = torch.tensor(STD, dtype=torch.{dtype}).view(-1, 1, 1)
    return pixels.to(torch.{dtype}).div({scale}).sub(mean).div(std){cast}
''',
    "numbers": _NUMBERS,
    "cells": '''def category(value, numeric):
    """A cell as a text; among numbers 1, "1.0" and " 01 " are "1"."""
    text = str(value).strip() if numeric else str(value)
    if numeric and text.lstrip("+-").isdecimal():
        return str(int(text))
    try:
        number = float(text) if numeric else value
    except ValueError:
        return str(value)
    whole = isinstance(number, float) and number.is_integer()
    return str(int(number)) if whole else str(number)


def numbers(value, name, rule):
    """A cell as the numbers that it becomes."""
    kind, fill, mean, std, values, numeric = rule
    if value is None or value != value or value in EMPTY:
        if fill is None:
            raise ValueError(f"column {{name!r}}: a cell is empty, and in training none was")
        value = fill
    if kind == "number":
        return [(float(value) - mean) / std]
    text = category(value, numeric)
    if kind == "one_hot":
        return [float(text == known) for known in values]
    if text not in values:
        raise ValueError(f"column {{name!r}}: {{text!r}} is none of {{', '.join(values)}}")
    return [float(values.index(text))]


def prepare(inputs):
    """Rows of a table as the model takes them: a data frame, mappings from COLUMNS, or cells in
    their order.
    """
    rows = inputs.to_dict("records") if hasattr(inputs, "to_dict") else inputs
    made = []
    for row in rows:
        cells = [row[name] for name in COLUMNS] if isinstance(row, dict) else row
        each = zip(cells, COLUMNS, RULES, strict=True)
        made.append([number for cell in each for number in numbers(*cell)])
    return torch.tensor(made, dtype=torch.float64).to(torch.{dtype}){cast}
''',
    "words": '''def numbers(text):
    """The numbers of a text's first {length} words and signs; of padding behind them."""
    words = re.findall(r"\\w+(?:'\\w+)?|[^\\w\\s]", text.lower())[:{length}]
    found = [WORDS.get(word, WORDS["<unk>"]) for word in words]
    return found + [WORDS["<pad>"]] * ({length} - len(found))


'''
    + _TEXTS,
    "characters": '''def numbers(text):
    """The places of a text's {length} characters; an unknown one counts as the last."""
    if len(text) != {length}:
        raise ValueError(f"a text has {length} characters, got {{len(text)}}")
    return [WORDS.get(sign, len(WORDS) - 1) for sign in text]


'''
    + _TEXTS,
    "running": '''def numbers(text):
    """The numbers of a text's words, which spaces set apart."""
    return [WORDS.get(word, WORDS["<unk>"]) for word in text.split()]


'''
    + _TEXTS,
    "subwords": '''def numbers(text):
    """The numbers of a text's first {length} tokens; of padding behind them."""
    how = {{"truncation": True, "max_length": {length}, "padding": "max_length"}}
    return TOKENISER(text, **how)["input_ids"]


'''
    + _TEXTS,
    "own": '''# {transform}, which made the run's inputs, is Python code of the run's own,
# which an export cannot hold: call it in prepare().
def prepare(inputs):
    """Inputs as the run's own transform made them."""
    return torch.as_tensor(np.asarray(inputs).copy())
''',
    "unknown": '''# The run does not say how its inputs were made, and its data are not at hand.
def prepare(inputs):
    """Inputs as the model takes them."""
    return torch.as_tensor(np.asarray(inputs).copy())
''',
}

USE = '''

@torch.no_grad()
def outputs(inputs):
    """The model's outputs for raw inputs, {batch} of them at a time."""
    model.eval()
    parts = [model(prepare(inputs[i : i + {batch}])) for i in range(0, len(inputs), {batch})]
    return torch.cat([getattr(part, "logits", part) for part in parts])


def predict(inputs):
    """{about}"""
    {body}
'''

# ------------------------------------------------------------------------------------- the check
TOKENS = """if out.shape[:-1] == wanted.shape:
            out = out.movedim(-1, 1)
        """
EACH: dict[str, str] = {
    "accuracy": "each = out.argmax(1) == wanted",
    "squared error": "each = (out.reshape(wanted.shape) - wanted).square()",
    "token accuracy": TOKENS + "each = (out.argmax(1) == wanted){told}",
    "perplexity": TOKENS
    + 'each = torch.nn.functional.cross_entropy(out, wanted, reduction="none"){told}',
}
CHECK = '''

def score(inputs, targets):
    """The {metric} on raw inputs, as the run measured it."""
    total = count = 0
    for i in range(0, len(targets), {batch}):
        out = outputs(inputs[i : i + {batch}])
        wanted = torch.as_tensor(np.asarray(targets[i : i + {batch}]).copy())
        {each}
        total, count = total + float(each.double().sum()), count + each.numel()
    return {final}


def check(file):
    """Score an npz file's raw inputs and targets -> whether that is what the run said."""
    with np.load(file, allow_pickle=False) as arrays:
        inputs, targets = arrays["inputs"], arrays["targets"]
    found = score(inputs, targets)
    line = f"{metric} {{found:.6g}} on {{len(targets)}} samples"
    if SAID is None:
        print(f"{{line}}; the run measured nothing here")
        return True
    same = abs(found - SAID) <= 0.001 * max(1.0, abs(SAID)){tie}
    verdict = "the same" if same else "NOT THE SAME: are they the run's test samples, as published?"
    print(f"{{line}}; the run said {{SAID:.6g}} on {{SAMPLES or 'its'}} test samples: {{verdict}}")
    return same


model = load()
if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--check":
        sys.exit(f"usage: python {{sys.argv[0]}} --check FILE.npz (arrays inputs and targets)")
    try:
        sys.exit(0 if check(sys.argv[2]) else 1)
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"error: {{sys.argv[2]}} cannot be checked: {{error}}")
'''
