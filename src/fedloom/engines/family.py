"""Which family of bits `engine = auto` takes, and how many clients at once `vectorised` without a
number: by a rule from the configuration, never by a clock.

A family is a way to compute a client's round that gives the same bits in one process and in many:
"serial", "serial+onednn" or "vectorised:N". The rule looks at the device's kind, the model's layers
and length, the data type and the size of a round. It looks at no time, no free memory and no number
of processors, so that a configuration means the same bits on every machine of one kind.

Evidence: docs/performance.md (FAFED's network; oneDNN without AVX-512), and processor time of one
thread, rounds in turn on a busy AMD EPYC with AVX-512, torch 2.13. The ratio is that of a round to
one in `serial`; clients at once: 16; 25; 50; 100.

| model, batch | engine | ratio |
|:--|:--|:--|
| logistic regression, 7,850 parameters, 10 | vectorised | 1.07; 0.75; 0.44; 0.33 |
| the same, 50 | vectorised | 1.02; 0.75; 0.57; 0.46 |
| network of 2,410 parameters, 10 | vectorised | 0.64; 0.45; 0.22; 0.17 |
| network of 25,450 parameters, 20 | vectorised | 0.89; 0.66; 0.49; 0.39 |
| network of 101,770 parameters, 10 | vectorised | 1.09; 0.91; 0.75; 0.65 |
| network of 199,210 parameters, 10; 50; 100 | vectorised, 32 at once | 1.14; 1.03; 0.96 |
| networks of 407,050 and 814,090 parameters, 10 | vectorised, 32 at once | 1.39; 1.33 |
| FAFED's convolutional network, 5; 10; 20; 50 | vectorised, 20 at once | 0.59; 0.81; 0.99; 1.17 |
| ResNet-8 with group norm, 78,042 parameters, 5; 10; 20 | the same | 0.67; 0.88; 1.16 |
| LEAF's network, 10; 20; 50 | serial+onednn | 0.72; 0.72; 0.72 |
| LEAF's network, 20, without AVX-512 | serial+onednn | 1.01 to 1.08 |

Not measured: GPUs, and recurrent networks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ..core.net import Net
from ..core.onednn import gains
from ..errors import FedloomError
from ..federation.federation import Federation
from ..plan import Plan
from .one_step import try_step
from .ranges import default_chunk
from .vectorised import Vectorised
from .vmap_refusals import refuse_model

PARAMETERS = 1 << 17  # of a longer model one client keeps a processor busy
FEWEST = 20  # clients at once, below which the batched functions cost more than they save
CHUNK = 50  # clients at once, at least, where a cohort is cut for worker processes to share it
# with convolutions it saves less than a second processor: so enough parts for four processes
BATCH, CHUNK_OF_CONVOLUTIONS, PARTS = 10, 25, 4


@dataclass(frozen=True)
class Choice:
    """A family of bits, and why."""

    family: str
    why: str
    setting: str = "auto"

    @property
    def engine(self) -> str:
        """The engine that was given, with what was chosen.

        >>> Choice("vectorised:50", "").engine
        'auto+vectorised:50'
        >>> Choice("vectorised:50", "", "workers:2+vectorised").engine
        'workers:2+vectorised:50'
        """
        plus = "+" if self.setting.endswith("auto") else ""
        return self.setting.removesuffix("vectorised") + plus + self.family

    def __str__(self) -> str:
        return f"engine = {self.setting} takes {self.family}: {self.why}"


def family_of(plan: Plan, fed: Federation, net: Net, clients: int, shares: int = 1) -> Choice:
    """The family of a run whose rounds have this many clients. shares: ranks that share them.

    Whether the model and the method can be computed for many clients at once is tried on one step
    of two clients.
    """
    batch = fed.local.batch or len(fed.data.clients.of(0))
    chunk = chunk_of(clients, shares, CHUNK_OF_CONVOLUTIONS if convolves(net) else CHUNK)
    why_not = one_by_one(net, clients, batch, shares)
    if not why_not:
        try:
            refuse_model(plan, fed, net)
            try_step(plan, fed, net, Vectorised(2), [0, 1])
            return Choice(f"vectorised:{chunk}", f"a small model, and cohorts of {clients}")
        except FedloomError as error:
            why_not = f"many clients at once are refused: {error}"
    full = net.dtype == torch.float32 and fed.local.precision == "full"
    if net.device.type == "cpu" and full and gains(net.module, batch):
        return Choice("serial+onednn", f"{why_not}; it has large linear layers")
    return Choice("serial", why_not)


def choose_chunk(plan: Plan, fed: Federation, net: Net, clients: int, shares: int = 1) -> Choice:
    """What `vectorised` without a number takes: the clients at once of family_of(), on a CPU at
    most as many as fit into a gigabyte. Raises CompositionError for a model that cannot be vmapped.
    """
    refuse_model(plan, fed, net)
    chunk, why = max(1, chunk_of(clients, shares)), f"cohorts of {clients}"
    if net.device.type == "cpu" and (fits := default_chunk(plan, fed, net, chunk)) < chunk:
        chunk, why = fits, "as many as fit into a gigabyte"
    return Choice(f"vectorised:{chunk}", why)


def one_by_one(net: Net, clients: int, batch: int, shares: int = 1) -> str:
    """Why clients are computed one after another, by layers, parameters, clients and the examples
    of a step; "" if they are not.

    >>> one_by_one(Net(nn.Linear(784, 10)), 20, 50), one_by_one(Net(nn.Linear(784, 10)), 19, 50)
    ('', '19 of a cohort are too few for 20 at once')
    >>> one_by_one(Net(nn.Linear(784, 200)), 100, 50)
    'a model of 157,000 parameters is work enough alone'
    >>> one_by_one(Net(nn.Conv2d(1, 1, 3)), 100, 50)
    'a model with convolutions gains from many at once only with batches of at most 10'
    """
    if net.layout.d > PARAMETERS:
        return f"a model of {net.layout.d:,} parameters is work enough alone"
    if clients // shares < FEWEST:
        return f"{clients // shares} of a cohort are too few for {FEWEST} at once"
    if convolves(net):
        only = "a model with convolutions gains from many at once only"
        if net.device.type != "cpu":
            return f"{only} on a CPU"
        if batch > BATCH:
            return f"{only} with batches of at most {BATCH}"
        if clients < (least := PARTS * CHUNK_OF_CONVOLUTIONS):
            return f"{only} in cohorts of {least}"
    return ""


def convolves(net: Net) -> bool:
    """Whether the model has convolutions."""
    return any(isinstance(part, nn.modules.conv._ConvNd) for part in net.module.modules())


def chunk_of(clients: int, shares: int = 1, least: int = CHUNK) -> int:
    """How many clients of a cohort are computed at once: equal parts of 50 to 99 (`least` to twice
    that), whose number every machine shares; fewer if there are fewer, or the ranks need them.

    >>> chunk_of(20), chunk_of(99), chunk_of(100), chunk_of(1000), chunk_of(100, shares=3)
    (20, 99, 50, 50, 33)
    """
    return min(-(-clients // max(1, clients // least)), clients // shares)
