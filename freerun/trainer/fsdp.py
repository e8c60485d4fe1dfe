"""Ranks by FSDP2: each process holds a share of every parameter, gradient and moment.

    rank 0   Meeting ─► its address ─► controller ─► Meeting     rank 1, 2, ...
    all      join ─► shard(model) ─► forward, backward: all-gather and reduce-scatter, block by block

Models are sharded while they are empty; then each rank reads its rows (`model/shares.py`). Embedding and head,
which belong to no block, stay gathered between forward and backward: logits are computed outside the forward.

Processes communicate by gloo, and by NCCL if the model is on GPUs. All sockets are bound to one host: loopback,
unless the launcher of the process sets FREERUN_HOST.
"""

import os
import socket
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from freerun.errors import WorkerError
from freerun.model.decoder import Decoder

HOST_VARIABLE = "FREERUN_HOST"
LOOPBACK = "127.0.0.1"
COLLECTIVES = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""Communication backends by the model's device; decisions and metrics are always gathered on the CPU."""
# Longer than the controller's timeouts, which end ranks that wait for each other forever.
TIMEOUT = timedelta(minutes=30)


def own_host() -> str:
    """The address at which other ranks reach this machine."""
    return os.environ.get(HOST_VARIABLE, LOOPBACK)


class Meeting:
    """The rendezvous of the ranks: a store that rank 0 provides.

    On one machine it is a file in memory that rank 0 holds open: no other user can open it, there is no name to
    clean up, and it disappears with the last rank. Ranks on several machines meet at a port, which has no
    authentication.
    """

    def __init__(self, *, rank: int, num_ranks: int, address: str = "") -> None:
        """Rank 0 creates the store; the other ranks are given its `address`."""
        self._rank = rank
        self._num_ranks = num_ranks
        if HOST_VARIABLE in os.environ:
            self.address, self._store = _meet_at_port(address, num_ranks, is_first=rank == 0)
        else:
            self.address = address or f"/proc/{os.getpid()}/fd/{os.memfd_create('freerun-ranks')}"
            self._store = FileStore(self.address, num_ranks)
            self._store.set_timeout(TIMEOUT)

    def join(self, device: torch.device) -> "FsdpRanks":
        """Return when all ranks have joined; the models to shard are on `device`."""
        if device.type == "cuda":
            torch.cuda.set_device(device)  # NCCL and FSDP use the current device, by default the first
        interface = _interface_of(own_host())
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, interface)
        dist.init_process_group(
            COLLECTIVES[device.type],
            store=self._store,
            rank=self._rank,
            world_size=self._num_ranks,
            timeout=TIMEOUT,
        )
        return FsdpRanks(init_device_mesh(device.type, (self._num_ranks,)))


class FsdpRanks:
    """Implements `freerun.trainer.ranks.Ranks` on torch.distributed's default process group."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.rank = mesh.get_rank()
        self.num_ranks = mesh.size()
        self._mesh = mesh

    def shard(self, model: Decoder) -> None:
        for block in model.blocks:
            fully_shard(block, mesh=self._mesh)
        fully_shard(model, mesh=self._mesh, reshard_after_forward=False)
        for module in (model, *model.blocks):
            # The loss is a sum with weights fixed for the step: gradients are summed, not averaged. gloo has no
            # reduction with a factor, so the plain sum is requested explicitly.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)

    def own(self, parameter: Tensor) -> tuple[Tensor, slice]:
        num_rows = parameter.shape[0]
        if not isinstance(parameter, DTensor):
            return parameter.detach(), slice(0, num_rows)
        # Rows are dealt as `torch.chunk` does; with few rows the last ranks have none.
        begin = min(self.rank * -(-num_rows // self.num_ranks), num_rows)
        own = parameter.to_local().detach()
        return own, slice(begin, begin + own.shape[0])

    def whole(self, tensor: Tensor) -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def share(self, full: Tensor, like: Tensor) -> Tensor:
        if not isinstance(like, DTensor):
            return full.clone()
        # Every rank has the full tensor, mapped from a file, so each takes its slice and nothing is sent.
        own, rows = self.own(like)
        share = full[rows].to(own.device, copy=True)
        return DTensor.from_local(
            share, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )

    def gather(self, values_1d: Tensor) -> list[Tensor]:
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.num_ranks)]
        dist.all_gather(counts, torch.tensor([values_1d.numel()]))
        longest = max(int(count) for count in counts)
        padded = values_1d.new_zeros(longest)
        padded[: values_1d.numel()] = values_1d
        parts = [torch.empty_like(padded) for _ in range(self.num_ranks)]
        dist.all_gather(parts, padded)
        return [part[: int(count)] for part, count in zip(parts, counts, strict=True)]

    def add(self, values: Tensor) -> None:
        dist.all_reduce(values)

    def barrier(self) -> None:
        dist.barrier()


def _meet_at_port(address: str, num_ranks: int, *, is_first: bool) -> tuple[str, Store]:
    """The first rank listens and has an address from then on; the others connect to it."""
    listener = None
    if is_first:
        # By default TCPStore would listen on every interface, and on a port chosen in advance.
        listener = socket.create_server((own_host(), 0))
        address = f"{own_host()}:{listener.getsockname()[1]}"
    host, _, port = address.rpartition(":")
    store = TCPStore(
        host,
        int(port),
        num_ranks,
        is_master=is_first,
        timeout=TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=listener.detach() if listener is not None else None,
    )
    return address, store


def _interface_of(host: str) -> str:
    """The name of the network interface that has this address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == host for address in addresses):
            return str(name)
    raise WorkerError(
        f"no network interface of this machine has the address {host}; set {HOST_VARIABLE} to one that has"
    )
