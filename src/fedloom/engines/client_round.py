"""One client's round, from what it receives to the leaf of the sums: what every engine runs, and a
node of a real federation. Vectors of a sub-model have length m, those of client states d.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..aggregation.rows import row
from ..algorithm import Job, LocalSGD, Trait
from ..core.net import Net
from ..core.rng import key, seed_torch
from ..core.vector import Rec, Vec, is_rec, rec
from ..core.wire import nbytes
from ..errors import ClientError, CompositionError, NotFiniteError
from ..federation.federation import Federation
from ..objectives import Objective
from ..plan import Plan
from ..stage import At, Download, LocalResult, overriding
from ..submodels.base import Masked, SubModel, View, whole
from .alone import Alone
from .author_rules import Explained, with_note
from .client_results import ClientCost, RangeResult, TrainTask, cost
from .guard import call_checked
from .local_steps import LocalSteps
from .stages import Coding, Leaves, stages_of
from .summation import finite, numbers, push, spread, unweighted_of


class ClientViews:
    """The views of a run's clients. scheme: None: every client holds all of the model."""

    def __init__(self, scheme: SubModel | None, fed: Federation, net: Net) -> None:
        self.scheme, self._fed, self._net = scheme, fed, net
        self.whole = whole(net.layout)
        self._fixed: dict[float, View] = {}  # views that never change
        self._rows = None if scheme is None else scheme.rows(net)
        self._outputs = 0 if self._rows is None else int(self._rows.max()) + 1

    def of(self, x: Vec, capacity: float, round: int) -> View:
        """The view of the clients of a capacity in a round; x (d,) is the server's model."""
        view = self._fixed.get(capacity)
        if view is None:
            scheme, view = self.scheme, self.whole
            if scheme is not None:
                seed_torch(key(self._fed.seed, "view", round), x)
                view = scheme.view(x, self._net, capacity, round)
            if scheme is None or scheme.fixed:
                self._fixed[capacity] = view
        return view

    def told(self, view: View) -> Rec:
        """What a client must be told to make its view again."""
        return rec() if self.scheme is None else self.scheme.told(view)

    def again(self, description: Rec, capacity: float, round: int) -> View:
        """The view, at a client that was told() of it."""
        if self.scheme is None:
            return self.whole
        seed_torch(key(self._fed.seed, "view", round), self._net.params[0])
        return self.scheme.again(description, self._net, capacity, round)

    def masked(self, view: View) -> Masked | None:
        """What the scheme does in the steps of clients with this view; None: nothing."""
        if self.scheme is None or view.fit is None:
            return None
        return Masked(self.scheme, view.fit)

    def weights(self, weight: float, delta: Vec, view: View, i: int) -> Any:
        """How much a client's update counts: a number, with a scheme at each coordinate (m,)."""
        if self.scheme is None:
            return weight
        weights: Any = weight * self.scheme.covered(delta)
        return weights if self._rows is None else weights * self._owned(self._rows, view, i, delta)

    def _owned(self, rows: Tensor, view: View, i: int, like: Vec) -> Vec:
        """(m,): 1 where the client has samples of the coordinate's class, or there is none."""
        classes = rows if view.held is None else rows.index_select(0, view.held)
        has = (self._fed.data.label_counts_of(i) > 0).to(rows.device)
        beyond = has.new_zeros(max(0, self._outputs - len(has)))  # outputs that stand for no class
        everybody = has.new_ones(1)  # where an index of -1 leads
        return torch.cat([has, beyond, everybody])[classes].to(like.dtype)


__all__ = ["Client", "ClientCost", "Download", "LocalResult", "RangeResult"]


NO_STATE = rec()  # of a stage without a name


class First:
    """What Objective.init receives of a new client; labels are counted only if asked for."""

    def __init__(self, fed: Federation, client: int, x: Vec, net: Net, loss: str) -> None:
        self._fed, self._client, self._x, self._loss = fed, client, x, loss
        self.d, self.net = x.numel(), net
        self.examples, self.batches = fed.pass_of(client)

    @property
    def counts(self) -> Tensor:
        data = self._fed.data
        if self._fed.local.dp is not None:
            raise CompositionError(
                f"local.dp and {self._loss}: it counts a client's labels, and the accounts are of "
                "gradients alone; take another objective"
            )
        if data.classes is None:
            return self._x.new_zeros(0)
        return data.label_counts_of(self._client).to(self._x)


class Client:
    """Runs clients one after another on one instance of the model."""

    def __init__(
        self,
        plan: Plan,
        fed: Federation,
        net: Net,
        coding: Callable[..., Coding] | None = None,
    ) -> None:
        """coding: see stages_of()."""
        self.plan, self.fed, self.net = plan, fed, net
        net.bf16 = fed.local.precision == "bf16"
        self._first: tuple[Vec, View, Rec, dict[str, Rec]] | None = None
        self.views, self.aggregation = ClientViews(plan.submodel, fed, net), plan.aggregation
        self.stages = stages = stages_of(plan, fed, net, coding)
        self.link = self.stages[-1]
        self.leaves = next((s for s in self.stages if isinstance(s, Leaves)), None)
        self.receiving, self._sending = overriding(stages, "receive"), overriding(stages, "send")
        self._addressing, self._reading = overriding(stages, "address"), overriding(stages, "read")
        self.steps = LocalSteps(plan, fed, self.stages)
        loss, kind = type(plan.objective), type(plan.algorithm)
        # most losses have no client state, and need not be asked for each client
        self._remembers = loss.init is not Objective.init
        usual = kind.finish is LocalSGD.finish and kind.unweighted is LocalSGD.unweighted
        self.codes, parted = self.link.link.codes, self.views.scheme is not None
        self._arrives = arrives = plan.algorithm.arrives
        # x - msg.x, which no client state holds
        self._fresh = usual and not (plan.stages or parted or self.codes or arrives)
        coded = parted or self.codes or arrives
        changes = coded or self._sending or self._reading or self._addressing
        # whether updates may be added as they are
        self.sends_as_trained = self.aggregation.plain and not changes

    def forget_first(self) -> None:
        """Forget this round's x, and the state of clients that begin there."""
        self._first = None

    def downloads(self, task: TrainTask) -> dict[float, Download]:
        """{capacity: what these clients receive}. A view is made once per capacity and round."""
        msg, downloads = task.msg, {}
        for capacity in dict.fromkeys(map(self.fed.capacity, task.cohort)):
            view = self.views.of(msg.x, capacity, task.round)
            part, notes = view.take(msg), nbytes(self.views.told(view))
            download = self.download(view, part, task.buffers)
            down = nbytes(download.wire.take(part)) | {f"view.{k}": n for k, n in notes.items()}
            if size := download.travelling(download.buffers).nbytes:
                down["buffers"] = size
            downloads[capacity] = download._replace(down=down)
        return downloads

    def download(self, view: View, msg: Rec, buffers: Vec) -> Download:
        """What a client with this view receives, vectors (m,); its bytes are not counted."""
        net = view.net or self.net
        net.bf16, net.onednn = self.net.bf16, self.net.onednn
        download = Download(view, net, msg, {}, view, buffers, None, self.views.masked(view))
        for stage in self._addressing:
            download = stage.address(download)
        return download

    def take_in(
        self, out: RangeResult, result: LocalResult, download: Download, place: int, at: At
    ) -> None:
        """Add what a client sent, its state and its cost to a result. Raises ClientError."""
        part, why, sizes, squares = None, result.why, result.sizes, result.squares
        if not why:
            try:
                part = self.server_half(result.up, result.buffers, result.job, download, at)
                out.memories[at.client] = result.memory
            except NotFiniteError as error:  # the aggregation cannot add it
                why = str(error)
        if why and self.plan.nonfinite == "stop":
            where = f"{self.plan.algorithm.method}: client {at.client}, round {at.round + 1}"
            raise ClientError(
                f"{where}: {why}; lower local.lr, set local.clip, or skip such clients with "
                'nonfinite="skip"'
            )
        if why:  # a codec takes finite values only: this client has nothing to send
            sizes, squares = {} if self.codes else nbytes(numbers(result.up)), None
        client_cost = cost(at.client, int(result.job.steps), result, download.down, sizes, squares)
        out.stats.append(client_cost._replace(answered=False) if why else client_cost)
        push(out.nodes, 0, place, part)

    # -------------------------------------------------------------------- at the client, and after
    def receive(self, download: Download, memory: Rec) -> Download:
        """What a client's steps see, in the message and in the net."""
        download = self.received(download, memory)
        download.net.load_buffers(download.buffers)
        return download

    def received(self, download: Download, memory: Rec) -> Download:
        """What a client's steps see. memory: its state."""
        for stage in reversed(self.receiving):
            state = getattr(memory, stage.name, NO_STATE)
            note = f"{type(stage).__name__}.receive()"
            download = with_note(note, stage.receive, download, state)
        return download

    def client_half(
        self, download: Download, memory: Rec, at: At, unchecked: bool = False
    ) -> LocalResult:
        """All that a client does in a round. memory: its state (d,); unchecked: see send()."""
        result = self.train(self.receive(download, memory), memory, at.client, at.round)
        return self.send(result, download, at, unchecked)

    def send(
        self, result: LocalResult, download: Download, at: At, unchecked: bool = False
    ) -> LocalResult:
        """What leaves a client after its steps. unchecked: the sum shows what is not finite."""
        if self._sending or download.buffers.numel():
            result = result._replace(buffers=download.net.buffers())
        try:
            for stage in self._sending:
                state = getattr(result.memory, stage.name, NO_STATE)
                arguments = result, state, download, at
                result, state = with_note(f"{type(stage).__name__}.send()", stage.send, *arguments)
                if stage.name:
                    result = result._replace(memory=result.memory._replace(**{stage.name: state}))
        except NotFiniteError as error:
            return result._replace(why=str(error))
        up, buffers, why = numbers(result.up), result.buffers, "its update is not finite"
        if result.loss is not None and not math.isfinite(result.loss):
            why = f"its loss was {result.loss}"
        elif unchecked or (finite(up) and (not buffers.numel() or finite(buffers))):
            up = up if download.wire is download.view else download.wire.take(up)
            try:
                place = at.round, at.client
                read, sizes, link = self.link.coded(up, result.memory.link, download, *place)
                if (travelling := download.travelling(buffers)).numel():
                    sizes["buffers"] = travelling.nbytes
                memory = result.memory._replace(link=link, last=float(at.round))
                if self._arrives:
                    state = self._arrived(read, numbers(result.up), memory.alg, download, at)
                    memory = memory._replace(alg=state)
                squares = self.link.link.squares(up, link)  # a vector more, so before the sum
                return result._replace(up=read, memory=memory, sizes=sizes, squares=squares)
            except NotFiniteError as error:  # what is sent is more than the update: a residual is
                why = str(error)  # added, and the sum may overflow
        return result._replace(why=why)

    def _arrived(self, sent: Any, up: Rec, mem: Rec, download: Download, at: At) -> Rec:
        """The method's state (d,) after the client has read its own update as the server will.
        sent: the update behind the codecs, or its bytes; up: as it was before them.
        """
        layout, whole = download.wire.layout, download.wire is download.view
        if not is_rec(sent):
            sent = self.link.link.receive(sent, layout, up if whole else download.wire.take(up))
        read = self._read(sent, download, at)
        if not whole:  # what does not travel is the client's
            read = download.wire.put(read, up)
        new = self.steps.guard.call("arrived", read, download.view.take(mem))
        return download.view.put(new, mem)

    def _read(self, up: Rec, download: Download, at: At) -> Rec:
        """An update as it arrived -> without what stages have put on it."""
        for stage in reversed(self._reading):
            up = with_note(f"{type(stage).__name__}.read()", stage.read, up, download, at)
        return up

    def server_half(self, up: Rec, buffers: Vec, job: Job, download: Download, at: At) -> Rec:
        """A client update as the server reads it, and the client's buffers -> the leaf of the
        sums. job: of the last step. The move counts at.scale times, as an older one may count less;
        other fields are what they are. Raises NotFiniteError.
        """
        up = self._read(up, download, at)
        if self.leaves is not None:
            return spread(self.leaves.part(up, buffers), download.wire)
        if at.scale != 1:
            up = up._replace(delta=at.scale * up.delta)
        weight, aggregation = float(up.weight), self.aggregation
        weights = self.views.weights(weight, up.delta, download.view, at.client)
        unweighted = numbers(unweighted_of(self.plan.algorithm, up, job))
        # new memory, which the sums may write into; the delta of a plain update is new already
        mul = torch.Tensor.mul_ if self._fresh and up.delta._base is None else torch.mul
        rows = self.fed.forges  # each update goes up as it is
        # what else an aggregation makes of a part, it makes at the end
        plain = aggregation.plain and not rows
        part = rec(
            n=1.0,
            mass=weight,
            weight=weights,
            delta=mul(up.delta, weights) if plain else up.delta,
            unweighted=unweighted,
            buffers=weight * buffers if plain and buffers.numel() else buffers,
        )
        if self.fed.parted:
            ones = torch.ones_like(up.delta)
            vectors = {
                k: ones * v for k, v in unweighted._asdict().items() if not isinstance(v, Tensor)
            }
            part = rec(**part._asdict(), holders=ones, shares=rec(**vectors))
            if self.fed.unequal:
                part = rec(**part._asdict(), relative=job.relative_weight * ones)
        part = spread(part, download.wire)
        if rows:
            return row(part, at.client)
        return part if plain else aggregation.leaf(part, download.msg, *at[:3])

    def answer_bytes(self, answer: Rec) -> dict[str, int]:
        """{field: bytes} of an answer to ask(), which travels exactly."""
        return nbytes(answer)

    def first_memory(self, x: Vec, i: int, view: View | None = None) -> Rec:
        """The state of a client that takes part for the first time: vectors of length d."""
        alg, states = self._common_memory(x, view or self.views.whole)
        obj = rec()
        if self._remembers:
            seed_torch(key(self.fed.seed, "init", i), x)
            loss = self.plan.objective
            obj = loss.init(First(self.fed, i, x, self.net, loss.name))
        return rec(**{"alg": alg, "obj": obj, "link": states["link"], "last": -1.0} | states)

    def _common_memory(self, x: Vec, view: View) -> tuple[Rec, dict[str, Rec]]:
        """The state of all clients that first take part at x with this view; it is read-only."""
        if self._first is None or self._first[0] is not x or self._first[1] is not view:
            seed_torch(key(self.fed.seed, "init"), x)
            download = self.download(view, rec(x=x), x[:0])
            stages = overriding(self.stages, "client_init")
            states = {s.name: s.client_init(x, download) for s in stages}
            initial = Trait.INITIAL_MODEL in self.plan.algorithm.traits
            model = self.net.init() if initial else x
            memory = call_checked("client_init", self.plan.algorithm.client_init, model)
            self._first = (x, view, memory, states)
        return self._first[2:]

    # --------------------------------------------------------------------------------- one client
    def train(self, download: Download, memory: Rec, i: int, round: int) -> LocalResult:
        """One client's local training. The client state has length d, before and after."""
        return self.local_round(download, memory, i, round).run().result(0)

    def local_round(
        self, download: Download, memory: Rec, i: int, round: int, purpose: str = "step"
    ) -> Alone:
        """The local steps of one client. purpose: of its random numbers."""
        return Alone(self.steps, download, memory, i, round, purpose)

    def explained(self, i: int, round: int) -> Explained:
        """Name algorithm, client and round in an error that is raised inside."""
        return Explained(self.plan.algorithm.method, i, round)
