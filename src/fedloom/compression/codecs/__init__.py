"""Codecs: they encode the fields of a client update as bytes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ...core.own_parts import is_own, short
from ...core.registry import Registry
from ...errors import ConfigError, SettingError, did_you_mean, unknown
from .base import Codec, Dense
from .buckets import QSGD, FedPAQ, Int8
from .chain import Chain
from .low_precision import BF16, FP16, Natural, Sign
from .powersgd import PowerSGD
from .sparse import RandomDropping, Threshold, TopK

__all__ = [
    "BF16",
    "CODECS",
    "FP16",
    "MAKERS",
    "QSGD",
    "Chain",
    "Codec",
    "Dense",
    "FedPAQ",
    "Int8",
    "Natural",
    "PowerSGD",
    "RandomDropping",
    "Sign",
    "Threshold",
    "TopK",
    "make_codec",
    "named_codec",
    "usual_feedback",
]


def make_codec(text: str) -> Codec:
    """A codec by its name, or a chain of them: stages with "|" between, each name:value,... .

    Values go to the options in their order, or by name.
    Raises ConfigError for unknown names and options, CompositionError for a chain without meaning.

    >>> make_codec("topk:0.01,layer|int8")
    Chain(first=TopK(ratio=0.01, scope='layer'), then=Int8(bucket=512))
    >>> make_codec("qsgd:levels=7")
    QSGD(levels=7, bucket=512, scope='global', shrink=False)
    """
    stages = [stage.strip() for stage in text.split("|")]
    codec = _make_stage(stages[-1])
    for stage in reversed(stages[:-1]):
        codec = Chain(first=_make_stage(stage), then=codec)
    return codec


def named_codec(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of a codec that is written name:value,... or of a chain.

    Raises ConfigError for an unknown name or option.

    >>> named_codec("topk:0.01"), named_codec("topk:0.01|int8")
    (('topk', {'ratio': 0.01}), ('chain', {'of': 'topk:0.01|int8'}))
    """
    if "|" in text:
        return "chain", {"of": text}
    if is_own(text):
        return text, {}
    if is_own(text.rpartition(":")[0]):
        raise ConfigError(
            f"codec '{short(text)}': options of your own codec are keys, compress.ratio=0.1; in a "
            "chain it has its defaults"
        )
    name, _, rest = text.partition(":")
    if name not in MAKERS:
        raise ConfigError(unknown(MAKERS.kind, name, MAKERS))
    names, words = list(inspect.signature(MAKERS[name]).parameters), rest.split(",") if rest else []
    values: dict[str, Any] = {}
    for index, part in enumerate(words):
        key, equals, value = (s.strip() for s in part.partition("="))
        if not equals:
            if index >= len(names):
                has = f"the options {', '.join(names)}" if names else "no options"
                raise ConfigError(f"codec '{text}': {name} has {has}")
            key, value = names[index], key
        if key not in names or key in values:
            wrong = f"is no option of {name}; {did_you_mean(key, names)}"
            problem = "is given twice" if key in values else wrong
            raise ConfigError(f"codec '{text}': '{key}' {problem}")
        values[key] = _value(value)
    return name, values


def usual_feedback(codec: Mapping[str, Any]) -> str:
    """The default error feedback of a codec, which is given as its name and options.

    >>> usual_feedback({"name": "fedpaq"}), usual_feedback({"name": "topk"})
    ('forget', 'residual')
    """
    name = str(codec.get("name"))
    maker = None if "|" in name else MAKERS.get(name if is_own(name) else name.partition(":")[0])
    return str(getattr(maker, "feedback", "residual"))


def _make_stage(text: str) -> Codec:
    """The codec of a stage. An error names the stage as it is written, not its class."""
    name, options = named_codec(text)
    try:
        codec: Codec = MAKERS.make(name, **options)
        return codec
    except ConfigError as error:
        reason = error.at("", error.key) if isinstance(error, SettingError) else error
        raise ConfigError(f"codec '{short(text)}': {reason}") from None


def _value(text: str) -> Any:
    """The number or truth value that a text stands for, else the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text, text)


def chain(of: str = "topk:0.01|int8") -> Codec:
    """One codec for the values that another one chooses, written "topk:0.01|int8".

    Begin with topk, threshold or dropping; go on with qsgd, int8, fp16, bf16, natural or sign.
    Options follow a colon, in their order or by name: "topk:0.01,layer|qsgd:levels=7".
    Qsparse-local-SGD (Basu et al., NeurIPS 2019) is "topk:0.01|qsgd:7,shrink=true" or "topk|sign".

    >>> chain("dropping:0.1|fp16")
    Chain(first=RandomDropping(ratio=0.1, scaled=False), then=FP16())
    """
    return make_codec(of)


CODECS: dict[str, type[Codec]] = {
    "dense": Dense,
    "topk": TopK,
    "threshold": Threshold,
    "dropping": RandomDropping,
    "sign": Sign,
    "qsgd": QSGD,
    "fedpaq": FedPAQ,
    "natural": Natural,
    "fp16": FP16,
    "bf16": BF16,
    "int8": Int8,
    "powersgd": PowerSGD,
}
# names in a configuration: the codecs, and combinations of them
MAKERS: Registry[Callable[..., Codec]] = Registry("codec", {**CODECS, "chain": chain}, own=Codec)
