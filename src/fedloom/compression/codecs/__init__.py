"""Codecs: they encode the fields of a client update as bytes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ...core.own_parts import is_own, short
from ...core.registry import Registry
from ...errors import ConfigError, SettingError, did_you_mean, unknown
from .base import Codec, Dense
from .chain import Chain, Zstd
from .low_precision import BF16, FP16, Int8
from .natural import Natural
from .powersgd import PowerSGD
from .proportion import Proportion
from .qsgd import QSGD, FedPAQ
from .random_dropping import RandomDropping
from .sign import Sign
from .threshold import Strom, Threshold
from .topk import TopK

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
    "Proportion",
    "RandomDropping",
    "Sign",
    "Strom",
    "Threshold",
    "TopK",
    "Zstd",
    "make_codec",
    "named_codec",
    "usual_feedback",
]

ZSTD = "zstd"


def make_codec(text: str) -> Codec:
    """A codec by its name, or a chain of them: stages with "|" between, each name:value,... .

    Values go to the options in their order, or by name. A last stage "zstd" compresses the bytes.
    Raises ConfigError for unknown names and options, CompositionError for a chain without meaning.

    >>> make_codec("topk:0.01,layer|int8")
    Chain(first=TopK(ratio=0.01, scope='layer'), then=Int8(bucket=512))
    >>> make_codec("qsgd:levels=7")
    QSGD(levels=7, bucket=512, scope='global', shrink=False)
    """
    stages = [stage.strip() for stage in text.split("|")]
    last = stages[-1].partition(":")
    if last[0] == ZSTD:
        level = {"level": _value(last[2].removeprefix("level="))} if last[2] else {}
        inner = make_codec("|".join(stages[:-1]) or "dense")
        return _checked(stages[-1], lambda: Zstd(inner=inner, **level))
    codec = _made(stages[-1])
    for stage in reversed(stages[:-1]):
        codec = Chain(first=_made(stage), then=codec)
    return codec


def named_codec(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of a codec that is written name:value,... or of a chain.

    Raises ConfigError for an unknown name or option.

    >>> named_codec("topk:0.01"), named_codec("topk:0.01|int8")
    (('topk', {'ratio': 0.01}), ('chain', {'of': 'topk:0.01|int8'}))
    """
    if "|" in text or text.partition(":")[0] == ZSTD:
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
        raise ConfigError(unknown(MAKERS.kind, name, [*MAKERS, ZSTD]))
    known, given = list(inspect.signature(MAKERS[name]).parameters), rest.split(",") if rest else []
    values: dict[str, Any] = {}
    for place, part in enumerate(given):
        key, equals, value = (s.strip() for s in part.partition("="))
        if not equals:
            if place >= len(known):
                has = f"the options {', '.join(known)}" if known else "no options"
                raise ConfigError(f"codec '{text}': {name} has {has}")
            key, value = known[place], key
        if key not in known or key in values:
            wrong = f"is no option of {name}; {did_you_mean(key, known)}"
            said = "is given twice" if key in values else wrong
            raise ConfigError(f"codec '{text}': '{key}' {said}")
        values[key] = _value(value)
    return name, values


def usual_feedback(codec: Mapping[str, Any]) -> str:
    """The default error feedback of a codec, which is given as its name and options.

    >>> usual_feedback({"name": "chain", "of": "fedpaq|zstd"}), usual_feedback({"name": "topk"})
    ('forget', 'residual')
    """
    stages = [stage.strip() for stage in str(codec.get("of", codec.get("name"))).split("|")]
    if stages[-1] == ZSTD:
        stages.pop()
    first = stages[0] if len(stages) == 1 else ""
    name = first if is_own(first) else first.partition(":")[0]
    return str(getattr(MAKERS.get(name), "feedback", "residual"))


def _made(text: str) -> Codec:
    if text.partition(":")[0] == ZSTD:
        raise ConfigError(f"codec '{text}': zstd compresses bytes, and stands last in a chain")
    name, options = named_codec(text)
    return _checked(text, lambda: MAKERS.make(name, **options))


def _checked(text: str, make: Callable[[], Codec]) -> Codec:
    """The codec of a stage. An error names the stage as it is written, not its class."""
    try:
        return make()
    except ConfigError as error:
        said = error.at("", error.key) if isinstance(error, SettingError) else error
        raise ConfigError(f"codec '{short(text)}': {said}") from None


def _value(text: str) -> Any:
    """The number or truth value that a text stands for, else the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text, text)


def qsparse(
    ratio: float = 0.01, levels: int = 7, bucket: int = 512, shrink: bool = True, sign: bool = False
) -> Codec:
    """Qsparse: the largest coordinates, then their values in a few levels, or only their signs.

    topk:RATIO|qsgd:LEVELS, shrunk by 1 / (1 + b) with b the paper's bound on its excess, or
    topk:RATIO|sign. Made for error feedback: with one server and local steps it is
    Qsparse-local-SGD.
    Differs from the paper: a norm belongs to a bucket of values (0: to all of them).
    Source: Basu et al., NeurIPS 2019.

    >>> qsparse(sign=True)
    Chain(first=TopK(ratio=0.01, scope='global'), then=Sign(scope='global'))
    """
    all_alike = QSGD(levels=levels, bucket=bucket, scope="global", shrink=shrink)
    values = Sign(scope="global") if sign else all_alike
    return Chain(first=TopK(ratio=ratio, scope="global"), then=values)


def chain(of: str = "topk:0.01|int8") -> Codec:
    """One codec for the values that another one chooses, written "topk:0.01|int8".

    Begin with topk, threshold, proportion or dropping; go on with qsgd, int8, fp16, bf16, natural,
    sign or strom. Options follow a colon, in their order or by name:
    "topk:0.01,layer|qsgd:levels=7". A last stage "zstd" compresses the bytes of the others.

    >>> chain("dropping:0.1|fp16")
    Chain(first=RandomDropping(ratio=0.1, scaled=False), then=FP16())
    """
    return make_codec(of)


CODECS: dict[str, type[Codec]] = {
    "dense": Dense,
    "topk": TopK,
    "threshold": Threshold,
    "strom": Strom,
    "proportion": Proportion,
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
MAKERS: Registry[Callable[..., Codec]] = Registry(
    "codec", {**CODECS, "qsparse": qsparse, "chain": chain}, own=Codec
)
