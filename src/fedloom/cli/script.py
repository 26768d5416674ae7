"""Python that makes an exported model, with torch alone where that can be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

__all__ = ["BLOCKS", "architecture", "call", "script"]

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
}


def script(built: str | None, file: str, kind: str, run: Path, round: int) -> str:
    """Python that makes the model, by the expression `built`, and loads the file."""
    ours = [name for name in BLOCKS if built and f"{name}(" in built]
    own = built is not None and built.startswith("MODELS")
    loads = kind == "safetensors"
    lines = [f'"""The model of {run.name} after round {round}."""', ""]
    lines += ["from collections import OrderedDict"] if built and "OrderedDict(" in built else []
    lines += ["from pathlib import Path", ""]
    lines += ["from safetensors.torch import load_model"] if loads else []
    lines += ["import torch"] if not loads or "Residual" in ours else []
    lines += ["from torch import nn"] if built and not own else []
    lines += ["from fedloom.models import MODELS"] if own else []
    lines += ["", *(BLOCKS[name] for name in ours)]
    if built is None:
        built = "...  # the nn.Module that the run was started with"
    lines += [f"model = {built}", f'file = Path(__file__).with_name("{file}")']
    if loads:
        lines.append("load_model(model, file)")
    else:
        lines.append("model.load_state_dict(torch.load(file, weights_only=True))")
    return "\n".join([*lines, "model.eval()", ""])


def call(run: Path) -> str:
    """Python that makes the model that a run's configuration names."""
    from fedloom.config import from_run
    from fedloom.config.tables import live

    table = from_run(run).values["model"]
    options = live({k: v for k, v in table.items() if k != "name"})
    return f'MODELS["{table["name"]}"]({", ".join(f"{k}={v!r}" for k, v in options.items())})'


def architecture(module: nn.Module, indent: str = "") -> str | None:
    """Python that makes a module of torch's own layers in Sequentials and in our blocks; None for
    any other.

    >>> from torch import nn
    >>> architecture(nn.Linear(2, 1))
    'nn.Linear(in_features=2, out_features=1, bias=True)'
    """
    from torch import nn

    from fedloom.models import MultiExit, Residual

    kind, inner = type(module), indent + "    "
    if kind is Residual or kind is MultiExit:
        return _block(module, indent)
    if kind is nn.Sequential:
        parts = [(name, architecture(child, inner)) for name, child in module.named_children()]
        if any(part is None for _, part in parts):
            return None
        body = "\n".join(f'{inner}("{name}", {part}),' for name, part in parts)
        return f"nn.Sequential(OrderedDict([\n{body}\n{indent}]))"
    own = kind.__module__.startswith("torch.nn.modules")
    if not own or getattr(nn, kind.__name__, None) is not kind or list(module.children()):
        return None
    text = f"nn.{module!r}"
    return text if _makes(text, module) else None


def _block(module: Any, indent: str) -> str | None:
    """Python that makes a residual block, or a model with exits."""
    from fedloom.models import Residual

    inner = indent + "    "
    if isinstance(module, Residual):
        body = architecture(module.body, inner)
        other = "None" if module.shortcut is None else architecture(module.shortcut, inner)
        if body is None or other is None:
            return None
        return f"Residual(\n{inner}{body},\n{inner}{other},\n{indent})"
    deeper, tables = inner + "    ", []
    for names, prefix in ((module.stages, ""), (module.exits, "exit_")):
        parts = {n: architecture(module.get_submodule(prefix + n), deeper) for n in names}
        if None in parts.values():
            return None
        rows = "\n".join(f'{deeper}"{n}": {part},' for n, part in parts.items())
        tables.append(f"{inner}{{\n{rows}\n{inner}}},")
    return "MultiExit(\n" + "\n".join(tables) + f"\n{indent})"


def _makes(text: str, module: nn.Module) -> bool:
    """Say whether this text makes such a module: a layer's repr need not be its constructor."""
    from torch import nn

    try:
        made = eval(text, {"nn": nn})
    except Exception:  # a repr may be any text: what cannot be made from it is exported otherwise
        return False
    shapes = {k: v.shape for k, v in module.state_dict().items()}
    return (
        repr(made) == repr(module) and {k: v.shape for k, v in made.state_dict().items()} == shapes
    )
