"""What a worker process does: it is begun once, and then takes tasks from its parent."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch

from ..core.interrupts import leave_to_parent
from ..core.net import Net
from . import heartbeat as pulse
from .base import keep_memory
from .client_results import Request
from .ranges import Clients
from .shared_memory import Parcel, load, packed, unpacked

_LOOK = 0.5  # seconds between two looks for the parent
_HERE: dict[str, Any] = {}  # this process's clients, and what it loaded last


def begin(post: str, parent: int) -> None:
    """Make this process a worker of the run that is posted."""
    leave_to_parent()
    try:
        pulse.begin(Path(post).parent)
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()
        plan, fed, module, chunk, onednn = load(post)
    except FileNotFoundError:
        if os.getppid() == parent:
            raise
        os._exit(3)  # the parent was killed meanwhile, and its folder is gone
    torch.set_num_threads(1)
    keep_memory()
    net = Net(module)
    net.onednn = onednn
    clients = Clients(plan, fed, net, chunk)
    _HERE.update(clients=clients, message=("", None), settled=False, folder=Path(post).parent)
    pulse.beat()  # it is ready: see heartbeat.Heartbeats.ready


def _follow(parent: int) -> None:
    """End with the parent process, also if it is killed."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(3)


def _message(post: str) -> Any:
    """The message and the buffers under a path; the last ones are kept."""
    if _HERE["message"][0] != post:
        _HERE["message"] = post, load(post)
    return _HERE["message"][1]


def take(number: int, file: str, request: Request, post: str, part: Parcel) -> Parcel:
    """Do what an engine is asked, see Engine.map, and write which task it is. file: for the large
    tensors of the result; post: the message and the buffers; part: the rest of the task.
    """
    pulse.take(number)
    folder, clients = _HERE["folder"], _HERE["clients"]
    try:
        msg, buffers = _message(post)
        task = unpacked(part, folder)._replace(msg=msg, buffers=buffers)
        parcel = packed(clients.map(request, task), folder, file)
        if not _HERE["settled"]:
            # hide the objects that exist after the first task, above all torch's modules, from the
            # garbage collector: loky collects every second, which takes a tenth of that
            gc.freeze()
            _HERE["settled"] = True
        return parcel
    finally:
        pulse.take(0)
