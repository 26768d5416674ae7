"""Local training: amount of work, batches, learning rates, parts around the method."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import ClassVar, Literal

from ..algorithm import Algorithm
from ..core.arithmetic import plain_number
from ..core.hyper import (
    Decay,
    NonNegative,
    Part,
    Positive,
    PositiveInt,
    hyper,
)
from ..errors import ConfigError
from ..wrappers import (
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Momentum,
    NAdam,
    Nesterov,
    Optimiser,
    RAdam,
    RMSprop,
    build,
)
from .passes import PASSES, Passes
from .private_examples import ExamplePrivacy
from .schedules import Constant, Schedule

ADAPTIVE: dict[str, type[Optimiser]] = {  # local.optimiser: rates of single entries
    "adam": Adam,
    "adamw": Adam,
    "adagrad": Adagrad,
    "adadelta": Adadelta,
    "adamax": Adamax,
    "nadam": NAdam,
    "radam": RAdam,
    "rmsprop": RMSprop,
}


class Local(Part):
    """The local training of a client. Give `epochs` or `steps`, not both; neither means one epoch.
    steps may be a list, one number per client; lr a list, one rate per round, whose last one holds
    from then on.

    With `seconds` every client sends its update after the steps that its device can do by then, at
    least one; without `epochs` or `steps` there is no other bound. schedule(round, step) multiplies
    lr. order "text": batches are not drawn. The client's data, in their order, are cut into `batch`
    streams of equal length, and every batch has the next example of each stream; the remainder is
    not used. Order within a step: gradient (with sam: the perturbed one), the method's corrections,
    joint clip, weight decay, momentum, move (as torch.optim.SGD after clip_grad_norm_). Raises
    ConfigError for a value out of range.

    >>> Local(epochs=5, batch=50, lr=0.1).work
    (5.0, None)
    """

    title: ClassVar[str] = "local"
    epochs: Positive | None = hyper(
        None,
        "passes over the client's data, which may be a fraction; 1 if neither epochs nor steps nor "
        "seconds is given",
        source="E of FedAvg",
    )
    steps: PositiveInt | Sequence[PositiveInt] | None = hyper(
        None,
        "local steps K instead of epochs: of every client, or a list, one per client",
        one_per="client",
        source="K of SCAFFOLD",
    )
    seconds: Positive | None = hyper(
        None,
        "simulated seconds after which the server waits no longer (needs [devices]); epochs or "
        "steps are then an upper bound",
        source="CFedAvg, Remark 6",
    )
    batch: PositiveInt | None = hyper(
        50,
        "examples of a step; none: all the client has",
        source="50 in FedACG's and FedSMOO's main tables",
    )
    lr: Positive | Sequence[Positive] = hyper(
        0.1,
        "the local learning rate, or a list, one per round (the last one stays); local.schedule "
        "multiplies it",
        one_per="round",
        source="0.1 in FedACG and FedSMOO",
    )
    lr_by_client: Sequence[Positive] | Mapping[str | int, Positive] = hyper(
        (),
        "factors of local.lr: a list, one per client, or {client: factor}, and 1 for the others",
        source="none: one rate for all in the five papers",
        example="a list of one per client, or a table such as {lyon = 0.5}, of numbers above 0",
    )
    schedule: Callable[[int, int], float] = field(default_factory=Constant)
    optimiser: Literal[
        "sgd",
        "adam",
        "adamw",
        "adagrad",
        "adadelta",
        "adamax",
        "nadam",
        "nesterov",
        "radam",
        "rmsprop",
    ] = hyper(
        "sgd",
        "around the method's direction: fedloom list optimisers",
        source="AdamW in FIARSE",
    )
    momentum: Decay = hyper(0.0, "of sgd and nesterov", source="0 in FedACG and FedSMOO")
    beta1: Decay | None = hyper(
        None, "of the optimisers with 'adam' in their name; none: 0.9", source="Adam's paper"
    )
    beta2: Decay | None = hyper(
        None,
        "of the same; none: 0.999; of rmsprop, none: 0.99; of adadelta, none: 0.9",
        source="0.95 in FIARSE",
    )
    weight_decay: NonNegative = hyper(
        0.0,
        "added to the gradient; with adamw outside of it",
        source="0.001 in FedACG and FedSMOO",
    )
    clip: Positive | None = hyper(
        None,
        "largest norm of all gradients together, before weight decay",
        source="10 in FedACG's and FedSMOO's code",
    )
    clip_pull: bool = hyper(
        True,
        "clip a method's pull lambda (x - received x) too; false: lambda x joins weight decay, "
        "after the clip",
        source="true: papers; false: FL-Simulator, Acar",
    )
    sam: NonNegative | None = hyper(
        None,
        "rho: gradients are taken at x + rho g / ||g||",
        source="FedSMOO: 0.01, its code: 0.1",
    )
    probe_batch: PositiveInt | None = hyper(
        None,
        "examples of the one exchange before round 1, for methods that have it (FAFED, STEM); "
        "none: one batch",
        source="FAFED's first batch B = b q",
    )
    passes: Passes | str | None = hyper(
        None,
        "continue: a client's pass over its data goes on in its next round; or an order of your "
        "own; none: each round begins a new pass",
        "FLamby (du Terrail et al., 2022)",
        example="none, 'continue' or an object such as Continue()",
    )
    order: Literal["shuffled", "text"] = hyper(
        "shuffled",
        "shuffled: drawn again in every epoch; text: in the order of the text, for language models",
        source="text: FAFED's language model",
    )
    precision: Literal["full", "bf16", "tf32"] = hyper(
        "full",
        "arithmetic of local training: full is dtype's; bf16 and tf32 (CUDA) are for products; "
        "weights and updates stay in dtype",
        source="FedACG's code: fp16; FedSMOO's: TF32",
    )
    drop_last: bool = hyper(
        False,
        "leave out an epoch's last batch where it is smaller",
        source="False in all five papers' code",
    )
    dp: ExamplePrivacy | None = hyper(
        None,
        "hides single examples: fedloom show local.dp",
        source="DP-SGD",
        example="none, or a table; in Python ExamplePrivacy(...)",
    )

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise ConfigError(
                f"local.epochs = {self.epochs} and local.steps = {self.steps} are both given; "
                "keep one of them"
            )
        if isinstance(self.schedule, type) or not callable(self.schedule):
            name = getattr(self.schedule, "__name__", type(self.schedule).__name__)
            raise ConfigError(
                f"local.schedule must be a function of (round, step) that gives the factor of "
                f"local.lr, got {name}; give one of fedloom.federation.schedules, such as "
                "Exponential(decay=0.99), or a lambda (schedulers of torch move an optimiser)"
            )
        if isinstance(self.passes, str):
            object.__setattr__(self, "passes", PASSES.make(self.passes))
        if self.passes is not None and self.order != "shuffled":
            raise ConfigError(
                f"local.passes goes with order shuffled, not {self.order}: a text's batches go on "
                "from round to round by themselves; drop one of them"
            )
        if self.momentum and self.optimiser not in ("sgd", "nesterov"):
            raise ConfigError(
                f"local.momentum = {self.momentum} goes with optimiser sgd or nesterov, not "
                f"{self.optimiser}"
            )
        if self.optimiser == "nesterov" and not self.momentum:
            raise ConfigError("local.optimiser = nesterov needs local.momentum, such as 0.9")
        if not self.clip_pull and self.clip is None:
            raise ConfigError(
                f"local.clip_pull = {self.clip_pull} goes with local.clip, and there is none; give "
                "local.clip (10 in FL-Simulator), or drop local.clip_pull"
            )
        for name in ("beta1", "beta2"):
            value, used = getattr(self, name), [k for k, v in ADAPTIVE.items() if hasattr(v, name)]
            if value is not None and self.optimiser not in used:
                raise ConfigError(
                    f"local.{name} = {value} goes with optimiser {', '.join(used)}, not "
                    f"{self.optimiser}; drop it, or take local.optimiser = adamw"
                )
        setting = "local.order = text" if self.order == "text" else ""
        setting = "local.drop_last" if self.drop_last else setting
        setting = "local.passes" if self.passes is not None else setting
        if self.dp is not None and setting:
            raise ConfigError(
                f"{setting} and local.dp: every example is in a batch by itself, so that batches "
                "have neither an order nor a size; leave one of them out"
            )

    @property
    def work(self) -> tuple[float | None, int | Sequence[int] | None]:
        """(epochs, steps), one of which is None; both if only `seconds` is a bound."""
        if self.steps is None and self.epochs is None:
            return (1, None) if self.seconds is None else (None, None)
        return self.epochs, self.steps

    @property
    def by_epoch(self) -> bool:
        """True if rates depend on how many steps a client's pass over its data has."""
        return isinstance(self.schedule, Schedule) and self.schedule.by_epoch

    def rate(self, round: int, step: int, per_epoch: int = 0) -> float:
        """The local learning rate of a step; both count from 0. per_epoch: steps of the client's
        pass over its data, where rates depend on it.
        """
        lr = self.lr
        base = lr[min(round, len(lr) - 1)] if isinstance(lr, Sequence) else lr
        schedule: Callable[[int, int], float] = self.schedule
        if isinstance(schedule, Constant):
            return base
        if per_epoch and isinstance(schedule, Schedule):
            schedule = schedule.of(per_epoch)
        factor = plain_number(schedule(round, step))
        if not isinstance(factor, int | float) or not 0 <= factor < math.inf:
            raise ConfigError(
                f"local.schedule must give a number from 0, and gives {factor!r} in round {round}, "
                f"step {step} (both count from 0)"
            )
        return base * factor

    def around(self, method: Algorithm) -> Algorithm:
        """The method with clipping, weight decay, optimiser and SAM in the documented order. Raises
        CompositionError for parts that do not go with the method.
        """
        opt: Optimiser | None = None
        if self.optimiser in ADAPTIVE:
            betas = {"beta1": self.beta1, "beta2": self.beta2}
            options = {name: value for name, value in betas.items() if value is not None}
            opt = ADAPTIVE[self.optimiser](**options)
        elif self.momentum:
            kind = Nesterov if self.optimiser == "nesterov" else Momentum
            opt = kind(lr=1.0, beta=self.momentum)
        decoupled = self.optimiser == "adamw"
        return build(method, self.clip, self.weight_decay, opt, decoupled, self.sam, self.clip_pull)
