"""Ranges of a cohort on one instance of the model: one client after another, or chunks at once."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import Tensor

from ..core.dropout import seeded
from ..core.net import Net
from ..core.rng import key, seed_others
from ..core.vector import Rec, rec, tree
from ..core.wire import nbytes
from ..errors import ClientError
from ..federation.federation import Federation
from ..plan import Plan
from ..stage import At, Download, LocalResult
from ..submodels.base import whole
from ..trace import data_requests
from .author_rules import with_note
from .base import one_thread
from .client_results import RangeResult, Request, TrainTask, cost
from .client_round import Client
from .evaluation_batches import batch_scores
from .extra_exchanges import ask_range, probe_range
from .private_gradient import AT_ONCE, loss_label
from .recorded import Recorded
from .stages import steps_before
from .summation import finite, push_rows
from .together import Together
from .vmap_refusals import MANY, refuse_changes

LARGEST = 100  # clients at once, unless the configuration says otherwise
BUDGET = 1 << 30  # bytes that they may take by default
VECTORS = 12  # vectors of length d per client: x, gradient, direction, message, states, sums


class TooManyError(ClientError):
    """Clients do not fit into the memory together."""


def passes_over_all(plan: Plan) -> bool:
    """True if a method asks for job.full, or cannot be tried on zeros."""
    try:
        requests = data_requests(plan.algorithm, plan.d or 2)
        return any(request.startswith("job.full") for request in requests)
    except Exception:  # an author's code may raise anything on zeros
        return True


class Clients:
    """The clients of a run on one instance of the model, `chunk` at once; None: one by one."""

    def __init__(
        self,
        plan: Plan,
        fed: Federation,
        net: Net,
        chunk: int | None = None,
        client: Client | None = None,
        recorded: Recorded | None = None,
        by_row: bool = False,
    ) -> None:
        """client: does what each of them does; recorded: computes a step of many; by_row: see
        Together.
        """
        self.plan, self.fed, self.net, self.chunk = plan, fed, net, chunk
        self.client = client or Client(plan, fed, net)
        self.recorded, self._by_row = recorded or Recorded(), by_row
        self.name = "streams" if by_row else "vectorised"
        self._whole = chunk is not None and fed.local.dp is None and self._depends()
        self._passes = chunk is not None and passes_over_all(plan)

    def map(self, request: Request, task: TrainTask) -> RangeResult:
        """See Engine.map. Raises ClientError."""
        if request.evaluates:
            return batch_scores(self.plan, self.fed, self.net, request, task)
        with one_thread(self.fed.local.precision):
            if request is Request.PROBE:
                return probe_range(self.client, task)
            if request is not Request.TRAIN:
                return ask_range(self.client, task, request is Request.LOSSES)
            return self._trained(task)

    def _depends(self) -> bool:
        """True if an example's loss depends on the rest of its batch, as with batch norm, or if
        there is no loss per example. Such a batch must not be padded.
        """
        index, x = self.fed.data.clients.indices[:8], self.net.init()
        with self.client.explained(0, 0), one_thread():
            memory = self.client.first_memory(x, 0, whole(self.net.layout))
        self.net.train()
        losses = []
        for some in (index, index[:1].expand(len(index))):
            with torch.no_grad(), seeded(0), self.client.explained(0, 0):
                batch = self.fed.trial(some)
                objective = self.plan.objective
                arguments = self.net, x, batch, x, memory.obj
                loss = with_note(loss_label(objective), objective.loss, *arguments)
                losses.append(self.plan.objective.checked(loss, batch))
            self.net.load_buffers(self.net.init_buffers())
        if losses[0].ndim == 0:
            return True
        return not torch.allclose(losses[0][0], losses[1][0], rtol=1e-4, atol=1e-6)

    def _trained(self, task: TrainTask) -> RangeResult:
        # a finite sum has finite terms: this saves a pass over each client update
        if self.plan.nonfinite == "stop" and not self.client.codes:
            out = self._all(task, unchecked=True)
            if all(finite(part) for _, _, part in out.nodes if part is not None):
                return out
        return self._all(task)

    def _all(self, task: TrainTask, unchecked: bool = False) -> RangeResult:
        """Train these clients. unchecked: whether updates are finite is not looked at."""
        client, out, downloads = self.client, RangeResult([], {}, []), self.client.downloads(task)
        for first in range(0, len(task.cohort), self.chunk or 1):
            part, start = task.range(first, first + (self.chunk or 1)), dict[int, Rec]()
            for i in part.cohort:
                with client.explained(i, part.round):
                    memory, view = task.memories.get(i), downloads[self.fed.capacity(i)].view
                    start[i] = memory or client.first_memory(task.msg.x, i, view)
            self._run(out, downloads, start, part, unchecked)
        client.forget_first()
        return out

    def _run(
        self,
        out: RangeResult,
        downloads: dict[float, Download],
        start: dict[int, Rec],
        part: TrainTask,
        unchecked: bool,
    ) -> None:
        """Train clients at once. start: {client: its state}; part: what these clients are asked."""
        client, at = self.client, At(self.fed.seed, part.round, -1, part.scale)
        groups, sent = self._groups(start), dict[int, LocalResult]()
        for group in groups:
            download, trained = downloads[self.fed.capacity(group[0])], None
            if self.chunk is not None and not (self._whole and self._passes):
                with client.explained(group[0], part.round):
                    trained = self._together(download, start, group, part.round)
                    if len(groups) == 1 and self._all_in(trained, part.scale, unchecked):
                        self._take_in(out, trained, part)
                        return
            for r, i in enumerate(group):
                with client.explained(i, part.round):
                    now = at._replace(client=i)
                    if trained is None:
                        sent[i] = client.client_half(download, start[i], now, unchecked)
                    else:
                        sent[i] = client.send(trained.result(r), download, now, unchecked)
        for place, i in enumerate(start, part.first):
            with client.explained(i, part.round):
                download = downloads[self.fed.capacity(i)]
                client.take_in(out, sent.pop(i), download, place, at._replace(client=i))

    def _too_many(self, clients: list[int], round: int) -> TooManyError:
        """The error about clients that do not fit into the memory together. Fewer at once would
        change the bits of a run that goes on, so that it ends.
        """
        device, count = self.net.device, len(clients)
        if count > 1:
            return TooManyError(
                f"round {round + 1}: {count} clients at once do not fit into the memory of {device}"
                f"; start anew with engine = {self.name}:{count // 2}, or serial (how many are "
                "computed at once belongs to the bits, so that a run never changes it)"
            )
        need = _bytes_of_client(self.client) / 2**30
        return TooManyError(
            f"client {clients[0]}, round {round + 1}: a client takes {need:.3g} GiB or more, "
            f"which {device} does not have free; lower local.batch, take a smaller model, or "
            "give device = cpu"
        )

    def _together(
        self, download: Download, start: dict[int, Rec], group: list[int], round: int
    ) -> Together:
        """Train clients that hold the same part."""
        client, memories = self.client, [start[i] for i in group]
        # what clients keep of the buffers is what the module came with: nobody changes it
        client.receive(download, memories[0])
        loaded = download.net.buffers()
        seed_others(key(self.fed.seed, "step", round, group[0]))
        received = [client.received(download, m).msg for m in memories if client.receiving]
        how = (self._whole, self._passes, self.recorded, self._by_row)
        try:
            trained = Together(client.steps, download, memories, group, round, received, *how)
            self.train(trained)
            refuse_changes(download.net, loaded, MANY[self.name])
            return trained
        except torch.OutOfMemoryError as error:
            error.__traceback__ = None  # it holds the memory of what failed
        if self.recorded.forget():
            return self._together(download, start, group, round)
        raise self._too_many([*start], round)

    def train(self, together: Together) -> None:
        """Do the local steps of clients; a replay looks at one of them meanwhile."""
        together.run()

    def _groups(self, start: dict[int, Rec]) -> list[list[int]]:
        """Clients of one view; with a loss of a whole batch, also of equal batch sizes."""
        alike: dict[Any, list[int]] = {}
        for i, memory in start.items():
            sizes = self.fed.sizes(i, steps_before(memory)) if self._whole else ()
            alike.setdefault((self.fed.capacity(i), sizes), []).append(i)
        return list(alike.values())

    # ---------------------------------------------------------------------- all updates of a chunk
    def _all_in(self, trained: Together, scale: float, unchecked: bool) -> bool:
        """True if these updates can be added as they are: whole, uncompressed and finite."""
        if not self.client.sends_as_trained or scale != 1:
            return False
        whole = all(v is None or math.isfinite(v) for v in trained.means)
        return whole and (unchecked or (finite(trained.up) and finite(self.net.buffers())))

    def _take_in(self, out: RangeResult, trained: Together, part: TrainTask) -> None:
        """Client.take_in for all of these clients at once."""
        up, download = trained.up, trained.download
        buffers = download.net.buffers()
        weight = up.weight.cpu().double()
        rows = rec(
            n=torch.ones_like(weight),
            mass=weight,
            weight=weight,
            delta=up.weight[:, None] * up.delta,
            # single numbers are added on the host, which reads them one by one
            unweighted=tree(lambda v: v.cpu() if v.ndim == 1 else v, trained.unweighted(up)),
            buffers=up.weight[:, None] * buffers,
        )
        push_rows(out.nodes, part.first, rows)
        sent = nbytes(tree(lambda v: 0.0 if v.ndim == 1 else v[0], up))
        if buffers.numel():
            sent["buffers"] = buffers.nbytes
        for r, i in enumerate(part.cohort):
            work = trained.work(r, trained.means[r])
            out.stats.append(cost(i, len(trained.rates[r]), work, download.down, sent))
            out.memories[i] = trained.memory(r)._replace(last=float(part.round))


def default_chunk(plan: Plan, fed: Federation, net: Net, most: int = LARGEST) -> int:
    """Number of clients that fit into a gigabyte, at most 100 (or `most`)."""
    return max(1, min(most, BUDGET // _bytes_of_client(Client(plan, fed, net))))


def _bytes_of_client(client: Client) -> int:
    """What a client takes: by the model's length, and by one gradient of the first client."""
    plan, fed, net, saved = client.plan, client.fed, client.net, 0

    def count(t: Tensor) -> Tensor:
        nonlocal saved
        saved += t.nbytes
        return t

    x, size = net.init(), fed.pass_of(0)[0]
    batch = fed.trial(fed.data.clients.of(0)[:size])
    net.train()
    hooks = torch.autograd.graph.saved_tensors_hooks(count, lambda t: t)
    short = contextlib.suppress(torch.OutOfMemoryError)  # then it takes more than was counted
    with client.explained(0, 0), short, one_thread(), hooks, torch.enable_grad():
        memory = client.first_memory(x, 0, whole(net.layout))
        plan.objective.mean(net, net.live(x), batch, x, memory.obj)
    # the batch of the next step is there too
    total: int = VECTORS * x.nbytes + 2 * saved + 2 * sum(t.nbytes for t in batch)
    if fed.local.dp is not None:  # gradients of single examples
        total += 3 * min(len(batch[1]) * x.nbytes, AT_ONCE * x.itemsize)
    return total
