"""The processes of the engine `workers`: started, perhaps early, and ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..core.child_processes import begin_guarded
from .shared_memory import Board

FIRST = "first"  # what processes load when they begin: plan, data and model
EARLY: dict[int, tuple[Board, Any]] = {}  # processes that no engine has taken yet, by their number
_WORKER = f"{__package__}.worker_process"
_PATIENCE = 5.0  # seconds for processes to end on their own


def started(number: int, board: Board) -> Any:
    """Processes that load what is posted on the board as FIRST, and take tasks."""
    from loky import ProcessPoolExecutor

    parent = os.getpid()
    return ProcessPoolExecutor(
        max_workers=number,
        initializer=begin_guarded,  # which a process can load before torch
        initargs=(parent, _WORKER, "begin", str(board.folder / FIRST), parent),
        env={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )


def end(executor: Any) -> None:
    """End these processes, whatever they are doing."""
    processes = list((executor._processes or {}).values())
    results, manager = executor._result_queue, executor._executor_manager_thread
    executor.shutdown(wait=False, kill_workers=True)
    if manager is None:
        return
    manager.join(_PATIENCE)
    if manager.is_alive():  # it reads a result that a hanging worker wrote only in part
        for process in processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
        results._writer.close()
        manager.join()


@contextmanager
def started_early(workers: int) -> Iterator[None]:
    """Inside, so many processes import torch while this one loads the data. The next engine of as
    many workers takes them.
    """
    board = Board()
    executor = started(workers, board)
    executor.submit(int)  # which starts them
    EARLY[workers] = board, executor
    try:
        yield
    finally:
        if EARLY.pop(workers, None) is not None:
            end(executor)
            board.close()
