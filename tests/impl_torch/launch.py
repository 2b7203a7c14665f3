"""Real processes over gloo on loopback, forked from a server that has imported torch once."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["launch"]

SECONDS = 120
Work = Callable[[int, int, Any], Any]


def launch(work: Work, world: int, argument: Any = None, *, torchrun: bool = False) -> list[Any]:
    """What ``work(rank, world, argument)`` returns on each rank.

    ``work`` must be importable, its argument picklable, and its result too, after the rank has
    gone: arrays rather than tensors. The default process group is there,
    or, with ``torchrun``, the environment alone from which torchrun's processes make it.

    Raises RuntimeError with a rank's traceback if it raises, dies or takes SECONDS.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "numpy"])
    with tempfile.TemporaryDirectory() as folder:
        where = _free_port() if torchrun else str(Path(folder) / "store")
        pipes = [context.Pipe(duplex=False) for _ in range(world)]
        processes = [
            context.Process(target=_rank, args=(work, rank, world, where, pipes[rank][1], argument))
            for rank in range(world)
        ]
        for process, (_, sender) in zip(processes, pipes, strict=True):
            process.start()
            sender.close()
        try:
            deadline = time.monotonic() + SECONDS
            return [_result(rank, pipe[0], deadline) for rank, pipe in enumerate(pipes)]
        finally:
            for process in processes:
                process.join(1)
                if process.is_alive():
                    process.kill()
                    process.join()


def _result(rank: int, receiver: Connection, deadline: float) -> Any:
    if not receiver.poll(max(0.0, deadline - time.monotonic())):
        raise RuntimeError(f"rank {rank} took more than {SECONDS} seconds")
    try:
        failed, value = receiver.recv()
    except EOFError:
        raise RuntimeError(f"rank {rank} died") from None
    if failed:
        raise RuntimeError(f"rank {rank} raised\n{value}")
    return value


def _rank(
    work: Work, rank: int, world: int, where: str | int, sender: Connection, argument: Any
) -> None:
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        if isinstance(where, str):
            store = dist.FileStore(where, world)
            wait = timedelta(seconds=SECONDS)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=wait)
        else:
            os.environ.update(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(world),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(where),
            )
        sender.send((False, work(rank, world, argument)))
    except BaseException:
        sender.send((True, traceback.format_exc()))
    # A rank that leaves early would take the others' connections along.
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port
