"""CFedAvg: FedAvg over a compressed link, with any number of local steps at each client."""

from __future__ import annotations

from ..algorithm import FedAvg, Job
from ..core.hyper import Positive, hyper
from ..core.vector import Rec, Vec, rec


class CFedAvg(FedAvg):
    """CFedAvg (Yang et al., Algorithm 1): clients send C(g_i + e_i) and keep what that leaves out.

    server: x        client: - (e_i is the link's)        up: delta (g_i, the move per step)
    Compression is the link's, compress=topk:0.01 with feedback residual: without it this is
    the uncompressed baseline. g_i = (x_i - x) / K_i with per_step, else x_i - x; the server moves
    by eta, server_lr, times the mean. per_step makes that move a mean number of steps smaller.
    Differs from the paper: partial cohorts, whose absent clients keep their e_i; a client that runs
    out of time has done one step at least; weighting = uniform is the paper's mean.
    Reference: https://arxiv.org/abs/2106.07155
    """

    server_lr: Positive = hyper(1.0, "factor of the mean move", "1; theory: sqrt(K m)")
    per_step: bool = hyper(False, "send the mean move per step", "line 10: False; line 11: True")

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        delta = x - msg.x
        return rec(delta=delta / job.steps if self.per_step else delta, weight=job.weight), mem
