"""The authoring interface: ten pure methods over flat vectors. Read this file first.

House symbols; every tensor is one-dimensional and has the length d of the model unless said
otherwise:
    x model   g gradient   d direction   c control variate   m momentum   v second moment h dual
    s perturbation   srv, msg, mem, loc, up: records (every algorithm's docstring says what they
    hold)
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from .core.hyper import Part, Positive, hyper
from .core.vector import Num, Rec, Vec, rec
from .errors import AuthorError


class Grad(Protocol):
    """x -> gradient. All calls of a step, those of loss() too, see one batch and its randomness."""

    def __call__(self, x: Vec, /) -> Vec: ...

    def loss(self, x: Vec, /) -> Num:
        """The mean loss at x, 0-d, without a gradient; with Sam at x itself."""


class Oracle:
    """A Grad made of two functions."""

    __slots__ = ("_gradient", "loss")

    def __init__(self, gradient: Callable[[Vec], Vec], loss: Callable[[Vec], Num]) -> None:
        self._gradient, self.loss = gradient, loss

    def __call__(self, x: Vec, /) -> Vec:
        return self._gradient(x)

    @classmethod
    def instead(cls, gradient: Callable[[Vec], Vec], of: Grad) -> Oracle:
        """Another gradient with the same loss."""
        return cls(gradient, of.loss if hasattr(of, "loss") else _no_loss)


def _no_loss(x: Vec, /) -> Num:
    """What a plain function that stands for a Grad says, as in tests."""
    raise AuthorError("this gradient is a plain function, which has no loss()")


class Job(NamedTuple):
    """What the engine tells a client about its round. Numbers are floats."""

    weight: Num  # aggregation weight: the number of examples, or 1
    steps: Num  # K_i, number of local steps
    lr: Num  # rate of this step (in start: of the first one; in finish: of the last one)
    lr_sum: Num  # sum of the rates of the K_i steps
    round: Num  # 0, 1, ...
    step: Num  # 0, 1, ... within the round
    last: Num  # round of this client's last participation, -1 if there is none
    full: Any = None  # Grad of the client's whole objective: a pass over all its data
    size: Num = 1.0  # n_i N / sum of all n: the client's examples over the mean of all clients'
    kept: Any = None  # x -> x with zeros where a sub-model's mask drops it now; None: it drops none
    around: tuple[Any, ...] = ()  # what changes a direction before the move: see begin() and move()
    relative_weight: Num = 1.0  # w_i N / sum of all w, of the aggregation weights of all clients
    draws: Any = None  # the client's random numbers at this place: see draw()
    client: Num = -1.0  # its number among all clients: 0, 1, ...
    layers: Any = None  # ("head.*", ...) -> (m,): 1 in the layers of these names, 0 elsewhere

    def at(self, lr: Num, step: Num) -> Job:
        """The same at another step: _replace(lr=lr, step=step) in half the time."""
        weight, steps, _, lr_sum, round, _, *rest = self
        return Job(weight, steps, lr, lr_sum, round, step, *rest)

    def draw(self, n: int) -> Vec:
        """n random numbers, (n,), uniform in [0, 1), of the type and on the device of x.

        They follow from the run's seed, the round, the client and the step alone: the same in every
        engine and after a resume. Every call gives others. Raises AuthorError in unweighted(),
        which the server computes.
        """
        if self.draws is None:
            raise AuthorError(
                "job.draw(n) has no numbers here: draw in start(), direction(), finish() or ask(), "
                "and send what unweighted() needs in up"
            )
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise AuthorError(f"job.draw(n): n is how many numbers, 0 or more, got {n!r}")
        numbers: Vec = self.draws(n)
        return numbers

    def begin(self, x: Vec) -> Rec:
        """A second trajectory that begins at x: a record for loc, whose x is its point."""
        y = rec(x=x)
        for part in self.around:
            y = part.begin(y)
        return y

    def move(self, y: Rec, d: Vec) -> Rec:
        """One step of a second trajectory y along the direction d, as the engine moves x: with
        the run's clip, weight decay, local optimiser and rate.
        """
        if not hasattr(y, "x"):
            raise AuthorError("job.move(y, d) moves a record that job.begin(x) made, kept in loc")
        for part in self.around:
            d, y = part.along(d, y, self)
        if isinstance(self.lr, torch.Tensor):
            return y._replace(x=torch.addcmul(y.x, d, self.lr, value=-1))
        return y._replace(x=torch.sub(y.x, d, alpha=self.lr))


class Round(NamedTuple):
    """What the engine tells the server about a round."""

    round: int  # 0, 1, ...
    # client updates / N, so that rate * mean = sum over the cohort / N; with sub-models (d,),
    # of a coordinate's holders over the sum of the relative weights of all who hold it
    rate: Num
    lr: float  # local rate of the round's last step
    # mean of job.relative_weight over the client updates; with sub-models (d,), of the holders
    relative_weight: Num = 1.0


class Reaches(Enum):
    """How a field of an update reaches the server, and so what may replace its exact value."""

    MEAN = "as a mean over the cohort, and in no other way"
    ACCUMULATED = "as a mean; the client adds it to its own state as well"
    CHANGE = "as a mean of changes, of which the client and the server each keep the sum"


class Trait(Enum):
    """What the engine and compose.py must know of a method. Most have none of these."""

    WHOLE_MODEL = "every client must hold all coordinates"
    RECURSIVE = "the direction is a recursion over gradients: clip each gradient instead"
    READS_THE_MOVE = "delta / lr_sum is read as the mean of the directions"
    REPLAYS_THE_MOVE = "the server repeats a local move, with the rate as its only factor"
    DIVIDES_BY_RATES = "delta is divided by the weights of all gradients in it, summed up"
    PERTURBS = "gradients are taken at perturbed points already"
    STARTS_AHEAD = "clients start along the server's own last move"
    SEVERAL_MODELS = "the server moves other models beside x"
    WEIGHS_ITSELF = "how clients count is the method's own affair, whatever weighting says"
    SECOND_MOMENT = "the server takes the root of a plain mean, which is of squares"
    ONE_BROADCAST = "the server's step takes every update to be made from its newest broadcast"
    BUFFERED = "made for an asynchronous clock"
    KEEPS_OPTIMISER = "a client keeps the state of its local optimiser from round to round"
    INITIAL_MODEL = "client_init() gets the model before round 1, whenever the client joins"


MEAN, ACCUMULATED, CHANGE = Reaches


def _overrides(name: str) -> property:
    """True of a method that overrides this one of Algorithm's."""
    return property(lambda self: getattr(type(self), name) is not getattr(Algorithm, name))


class Algorithm(Part, ABC):
    """What is sent, which direction a client moves in, what the server does with the mean update.

    Subclasses become frozen dataclasses whose fields are the hyper-parameters. All methods are
    pure: they see only their arguments, return new values, and never branch on tensor values,
    because an engine may run them for one client, for many at once, in another process, or on
    another machine. The engine owns the loop and the move x = x - job.lr * direction, K_i times. A
    server's srv always has x, and moves it by something that does not depend on x: wrappers run the
    inner server at the origin.
    """

    # compressible_up: how each compressible field of `up` reaches the server; a field that is not
    #   named travels exactly
    # compressible_down: vectors of broadcast() of which clients may hold an approximation: these
    #   may be compressed on the downlink
    # traits: what else the rules for combinations must know of the method
    compressible_up: ClassVar[Mapping[str, Reaches]] = {"delta": MEAN}
    compressible_down: ClassVar[tuple[str, ...]] = ("x",)
    traits: ClassVar[frozenset[Trait]] = frozenset()

    @property
    def plain(self) -> bool:
        """True if the direction is the gradient itself; an engine may then move layer by layer."""
        return type(self).direction is Algorithm.direction

    probes = _overrides("probe")  # every client sends it once, before round 1
    asks = _overrides("ask")  # a round then has two exchanges
    arrives = _overrides("arrived")  # clients decode what they have sent
    personalises = _overrides("personal")  # clients use models of their own
    reports = _overrides("report")

    @property
    def method(self) -> str:
        """The name of the method inside all wrappers."""
        return type(self).__name__

    # ------------------------------------------------------------------------------------- server
    def server_init(self, x: Vec, up: Rec) -> Rec:
        """-> srv, which always has x. up: the mean of the probes, weighted as delta, or None."""
        return rec(x=x)

    def broadcast(self, srv: Rec) -> Rec:
        """-> msg, sent to every client of the round; its bytes are counted. Always has x."""
        return srv

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        """-> srv. up: delta and the fields of unweighted(), each a mean over the client updates,
        and the means of the answers to ask().
        """
        return srv._replace(x=srv.x + up.delta)

    def model(self, srv: Rec) -> Vec:
        """The vector that is evaluated and exported."""
        return srv.x  # type: ignore[no-any-return]  # a record's fields are known at run time only

    # ------------------------------------------------------------------------------------- client
    def probe(self, x: Vec, grad: Grad) -> Rec:
        """What every client sends once, before round 1, if the method overrides this."""
        return None

    def client_init(self, x: Vec) -> Rec:
        """-> mem, the client state, made at the client's first participation.

        x: the model that it receives then, in whatever round that is; with Trait.INITIAL_MODEL the
        one that the run began with, for which no bytes are counted.
        """
        return rec()

    def start(self, msg: Rec, mem: Rec, job: Job) -> tuple[Vec, Rec]:
        """-> x where the local steps begin, and loc, the author's state within the round."""
        return msg.x, rec()

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        """-> d and loc. grad(y) and grad.loss(y) may be asked any number of times, anywhere."""
        return grad(x), loc

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        """-> up, which always has delta and weight, and the new mem."""
        return rec(delta=x - msg.x, weight=job.weight), mem

    # --------------------------------------------------------------- where the updates are summed
    def unweighted(self, up: Rec, job: Job) -> Rec:
        """The fields whose mean over the client updates is unweighted, computed at the server from
        what was sent; with sub-models, each coordinate's mean is over its holders.

        delta is averaged with `weight`; server_step gets both. A field that belongs to the same
        objective as delta is times job.relative_weight here. Then rnd.rate * mean is what the
        cohort adds to sum_i p_i field_i over all clients, p_i = w_i / sum of all w; and mean /
        rnd.relative_weight is the cohort's mean with the weights of delta.
        """
        return rec()

    # ------------------------------------------------------------- what few methods need: optional
    def ask(self, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        """-> what a client of the cohort answers before its local steps, and mem.

        The answers' mean, with the weights of delta, or what another aggregation makes of each of
        its fields (vectors and numbers), joins the message and server_step's up. The bytes of both
        ways count.
        """
        return rec(), mem

    def arrived(self, up: Rec, mem: Rec) -> Rec:
        """-> mem, once the client knows its update as the server reads it, behind the codecs; up
        has the fields of finish(). It holds if the server takes the update, as that of finish().
        """
        return mem

    def personal(self, msg: Rec, mem: Rec) -> Vec:
        """-> the model that a client would use itself, from the next message and its state; it is
        evaluated on the client's own test set.
        """
        return msg.x  # type: ignore[no-any-return]  # a record's fields are known at run time only

    def report(self, srv: Rec) -> Rec:
        """-> numbers of the server's for the columns of a round, such as rec(server_lr=srv.lr)."""
        return rec()

    def pull_strength(self, job: Job) -> Num:
        """-> lambda, if the direction has lambda (x - msg.x): local.clip_pull = false then leaves
        lambda x out of the clip. None: it has no such term.
        """
        return None


METHODS = (
    *("server_init", "broadcast", "server_step", "model", "probe", "client_init", "start"),
    *("direction", "finish", "unweighted", "ask", "arrived", "personal", "report", "pull_strength"),
)


class LocalSGD(Algorithm):
    """Plain local steps; the server goes to the mean. Every other algorithm is a change to it.

    server: x        client: -        up: delta
    Reference: https://arxiv.org/abs/1602.05629
    """


class FedAvg(LocalSGD):
    """Federated averaging (McMahan et al., AISTATS 2017, Algorithm 1), with a server rate.

    server: x        client: -        up: delta
    Differs from the paper: the server moves by server_lr times the mean move; 1 is the paper.
    Reference: https://arxiv.org/abs/1602.05629
    """

    server_lr: Positive = hyper(1.0, "factor of the mean move", "1 in McMahan et al. and FedACG")

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        return srv._replace(x=srv.x + self.server_lr * up.delta)
