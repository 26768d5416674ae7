"""IFCA: a model for each cluster of clients, who choose by their loss."""

from __future__ import annotations

import torch
from torch import Tensor

from ...algorithm import Job, LocalSGD, Round, Trait
from ...core.hyper import Positive, PositiveInt, hyper
from ...core.vector import Rec, Vec, rec, zeros


class IFCA(LocalSGD):
    """IFCA (Ghosh et al., NeurIPS 2020, Algorithm 1, model averaging): one model per cluster.

    server: x (the first cluster's), x1, size0, size1 (shares of the last cohort)
    client: mine (the number of its cluster)        up: delta, mine
    Differs from the paper: the models begin at x and at points around it, `spread` in every
    coordinate (the paper: at random). The common test set measures x; a client's own, its model. A
    cluster's clients count alike, as in the paper, whatever weighting says.
    Reference: https://arxiv.org/abs/2006.04088
    """

    traits = frozenset({Trait.WHOLE_MODEL, Trait.WEIGHS_ITSELF, Trait.SEVERAL_MODELS})
    clusters: PositiveInt = hyper(2, "number of models", "k: 2 on CIFAR-10, 4 on MNIST in its code")
    spread: Positive = hyper(0.1, "distance of the first models", "ours")

    def server_init(self, x: Vec, up: Rec) -> Rec:
        k = range(1, self.clusters)
        more = {f"x{j}": x + self.spread * torch.randn(len(x)).to(x) for j in k}
        return rec(x=x, **more, **{f"size{j}": x.new_zeros(()) for j in range(self.clusters)})

    def broadcast(self, srv: Rec) -> Rec:
        return rec(**{k: v for k, v in srv._asdict().items() if k.startswith("x")})

    def client_init(self, x: Vec) -> Rec:
        return rec(mine=x.new_zeros(()))

    def start(self, msg: Rec, mem: Rec, job: Job) -> tuple[Vec, Rec]:
        losses = torch.stack([zeros(mem.mine) + job.full.loss(x) for x in msg])
        mine = losses.argmin().to(msg.x)  # line 7
        x = _of(msg, mine)
        return x, rec(x=x, mine=mine)

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        return rec(delta=x - loc.x, mine=loc.mine, weight=job.weight), rec(mine=loc.mine)

    def unweighted(self, up: Rec, job: Job) -> Rec:
        members = [(zeros(up.delta[0]) + up.mine == j).to(up.delta) for j in range(self.clusters)]
        moves = {f"d{j}": one * up.delta for j, one in enumerate(members)}
        return rec(**moves, **{f"size{j}": one for j, one in enumerate(members)})

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        out = {}
        for j, name in enumerate(self.broadcast(srv)._fields):  # line 18
            size = zeros(srv.size0) + getattr(up, f"size{j}")
            out[f"size{j}"] = size
            out[name] = getattr(srv, name) + getattr(up, f"d{j}") / size.clamp_min(1e-9)
        return rec(**{name: out[name] for name in srv._fields})

    def personal(self, msg: Rec, mem: Rec) -> Vec:
        return _of(msg, mem.mine)

    def report(self, srv: Rec) -> Rec:
        return rec(**{f"cluster{j}": getattr(srv, f"size{j}") for j in range(self.clusters)})


def _of(models: Rec, number: Tensor) -> Vec:
    """The model (d,) of the cluster of this number ()."""
    x: Vec = torch.stack(tuple(models)).index_select(0, number.long().view(1))[0]
    return x
