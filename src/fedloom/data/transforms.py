"""Transforms of stored samples to model inputs, batch by batch, on the model's device.

A transform is a frozen value, which is sent to worker processes and describes itself. Its
randomness comes from numbers that it receives, so that every engine augments a sample alike.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedloom.core.hyper import NonNegativeInt, Part, Positive, Share, hyper
from fedloom.errors import DataError

Fill = Literal["black", "mean"]


@runtime_checkable
class Transform(Protocol):
    """From stored samples (n, ...) to the model's inputs. A subclass without randomness needs `out`
    and `plain` only.
    """

    @property
    def draws(self) -> int:
        """How many numbers in [0, 1) the augmentation of a sample needs; 0: nothing is random."""
        return 0

    @property
    def out(self) -> torch.dtype:
        """The type of the model's inputs."""
        ...

    def plain(self, inputs: Tensor) -> Tensor:
        """The inputs in evaluation."""
        ...

    def augmented(self, inputs: Tensor, draws: Tensor) -> Tensor:
        """The inputs in training; draws (n, self.draws) float64."""
        return self.plain(inputs)

    def astype(self, dtype: torch.dtype) -> Transform:
        """The same with floating inputs of this type."""
        return self

    def about(self) -> dict[str, Any]:
        """A description, fit for JSON."""
        return {}


@dataclass(frozen=True)
class Tokens(Transform):
    """Token numbers that are stored in few bytes, converted to the int64 that embeddings take.

    >>> Tokens().plain(torch.tensor([[1, 79]], dtype=torch.uint8)).dtype
    torch.int64
    """

    @property
    def out(self) -> torch.dtype:
        """The type that a model is given: int64."""
        return torch.int64

    def plain(self, inputs: Tensor) -> Tensor:
        """The same numbers, int64."""
        return inputs.long()


def check_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return dtype if inputs may have it, else raise DataError."""
    if dtype not in (torch.float32, torch.float64):
        raise DataError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    return dtype


class Images(Part):
    """uint8 images (n, C, H, W) as (pixel / 255 - mean) / std; in training turned, shifted and
    mirrored at random.

    mean, std: one number per channel. rotate: up to so many degrees either way, uniformly, by the
    nearest pixel. crop: padding on every side, of which a window of the old size is cut, with
    probability crop_chance. flip: left and right swapped with probability 1/2. fill: what turning
    and padding bring in, "black" (pixel 0) or "mean" (0 after normalising). Order: rotation, crop,
    flip. Raises ConfigError for values out of range.

    Source: rotation 10, crop 4 and flip are FedACG's; crop 4 and flip FIARSE's; flip, and crop 4
    with crop_chance 0.5 and fill "mean" FedSMOO's.

    >>> Images(mean=(0.5,), std=(0.25,)).plain(torch.tensor([[[[255]]]], dtype=torch.uint8))
    tensor([[[[2.]]]])
    """

    mean: tuple[float, ...] = hyper()
    std: tuple[Positive, ...] = hyper()
    crop: NonNegativeInt = hyper(0)
    crop_chance: Share = hyper(1.0)
    flip: bool = hyper(False)
    rotate: float = hyper(0.0, low=0, high=180)
    fill: Fill = hyper("black")
    dtype: torch.dtype = torch.float32

    @classmethod
    def centred(
        cls, channels: int, mean: Sequence[float], std: Sequence[float], **moves: Any
    ) -> Images:
        """The same with a mean and a std of 0.5 in every channel, where none is given."""
        grey = (0.5,) * channels
        return cls(mean=tuple(mean) or grey, std=tuple(std) or grey, **moves)

    def __post_init__(self) -> None:
        check_dtype(self.dtype)
        if len(self.mean) != len(self.std) or not self.mean:
            raise DataError(
                f"mean has {len(self.mean)} and std {len(self.std)} numbers; give one per channel"
            )

    @property
    def draws(self) -> int:
        """Angle, whether to crop, its two offsets, whether to mirror; 0 if nothing is random."""
        return 5 if self.crop or self.flip or self.rotate else 0

    @property
    def out(self) -> torch.dtype:
        """The type that a model is given: float32 or float64."""
        return self.dtype

    def plain(self, inputs: Tensor) -> Tensor:
        """(pixel / 255 - mean) / std, (n, C, H, W)."""
        shape = (-1, *[1] * (inputs.ndim - 2))
        mean = _constant(tuple(self.mean), self.dtype, inputs.device).view(shape)
        std = _constant(tuple(self.std), self.dtype, inputs.device).view(shape)
        return inputs.to(self.dtype).div_(255).sub_(mean).div_(std)

    def augmented(self, inputs: Tensor, draws: Tensor) -> Tensor:
        """The images moved according to the draws, and normalised.

        All moves are one look-up of a source pixel for every output pixel. So the values stay
        exactly those of pixels, on every device.
        """
        if not self.draws:
            return self.plain(inputs)
        rows, columns = self._sources(draws.to(inputs.device), *inputs.shape[-2:])
        height, width = inputs.shape[-2:]
        outside = (rows < 0) | (rows >= height) | (columns < 0) | (columns >= width)
        source = (rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)).flatten(1)
        flat = inputs.flatten(2)
        images = flat.gather(2, source[:, None, :].expand(-1, flat.shape[1], -1)).view(inputs.shape)
        if self.fill == "black":
            return self.plain(images.masked_fill_(outside[:, None], 0))
        return self.plain(images).masked_fill_(outside[:, None], 0)

    def _sources(self, draws: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        """The source of every output pixel: rows and columns (n, H, W) int64, perhaps outside.

        The moves are undone in reverse: mirrored, then shifted, then turned about the centre.
        """
        angle, chance, down, right, mirror = draws.unbind(1)
        i = torch.arange(height, device=draws.device).view(1, -1, 1)
        j = torch.arange(width, device=draws.device).view(1, 1, -1)
        if self.flip:
            j = torch.where((mirror < 0.5).view(-1, 1, 1), width - 1 - j, j)
        if self.crop:
            cut = chance < self.crop_chance
            offsets = 2 * self.crop + 1  # equally likely, 0 to twice the padding
            i = i + _shift(down, offsets, self.crop, cut)
            j = j + _shift(right, offsets, self.crop, cut)
        i, j = (v.expand(len(draws), height, width) for v in (i, j))
        if not self.rotate:
            return i, j
        # positions outside the image are padding, whatever the rotation makes of them
        padding = (i < 0) | (i >= height) | (j < 0) | (j >= width)
        turn = ((2 * angle - 1) * (self.rotate * math.pi / 180)).view(-1, 1, 1)
        cosine, sine = turn.cos(), turn.sin()
        y, x = i - (height - 1) / 2, j - (width - 1) / 2
        rows = (y * cosine - x * sine + (height - 1) / 2).round().long()
        columns = (y * sine + x * cosine + (width - 1) / 2).round().long()
        return rows.masked_fill(padding, -1), columns.masked_fill(padding, -1)

    def astype(self, dtype: torch.dtype) -> Images:
        """The same with inputs of this type."""
        return replace(self, dtype=dtype)

    def about(self) -> dict[str, Any]:
        """Normalisation, and the augmentation in training."""
        out: dict[str, Any] = {"mean": list(self.mean), "std": list(self.std)}
        if self.crop:
            out |= {"crop": self.crop, "crop_chance": self.crop_chance}
        if self.rotate:
            out["rotate"] = self.rotate
        if self.flip:
            out["flip"] = True
        if self.crop or self.rotate:
            out["fill"] = self.fill
        return out


@functools.lru_cache(maxsize=64)
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers (n,) on a device, moved there once and not for every batch."""
    return torch.tensor(values, dtype=dtype, device=device)


def _shift(draw: Tensor, offsets: int, padding: int, cut: Tensor) -> Tensor:
    """The distance of a window from the image's corner, (n, 1, 1): 0 if it is not cut."""
    shift = (draw * offsets).long() - padding
    return torch.where(cut, shift, torch.zeros_like(shift)).view(-1, 1, 1)
