"""A data-parallel training for two GPUs, in the way that scripts for a cluster are written.

Written from the public documentation of torch.distributed. Rank 0 prints the results of all ranks
as JSON.
"""

import json
import os

import torch
import torch.distributed as dist
import transformer_engine.pytorch as te
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel


def make_model():
    torch.manual_seed(1)
    return torch.nn.Sequential(te.Linear(16, 32, device="cuda"), te.Linear(32, 16, device="cuda"))


def batch(of_rank):
    generator = torch.Generator(device="cuda").manual_seed(of_rank)
    return torch.randn(8, 16, generator=generator, device="cuda")


def gradients(model, x):
    model(x).square().mean().backward()
    return [p.grad.clone() for p in model.parameters()]


def main():
    rank = int(os.environ["RANK"]) % torch.cuda.device_count() + int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    assert dist.is_nccl_available()
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", device_id=device)
    ranks = dist.get_world_size()

    # The mean over ranks of the gradients of one process, without DistributedDataParallel.
    alone = [gradients(make_model(), batch(each)) for each in range(ranks)]
    expected = [torch.stack(each).mean(dim=0) for each in zip(*alone, strict=True)]

    model = make_model().to(device)
    replicas = DistributedDataParallel(model, device_ids=[rank], output_device=rank)
    found = gradients(replicas, batch(dist.get_rank()))
    difference = max((a - b).abs().max().item() for a, b in zip(found, expected, strict=True))

    group = dist.new_group(backend="nccl")
    average = torch.full((2,), float(dist.get_rank()), device=device)
    dist.all_reduce(average, op=dist.ReduceOp.AVG, group=group)
    later = torch.full((2,), float(dist.get_rank()), device=device)
    dist.all_reduce(later, op=dist.ReduceOp.AVG, async_op=True).wait()
    dist.barrier(device_ids=[rank])

    mesh = init_device_mesh("cuda", (ranks,), mesh_dim_names=("data",))
    sharded = FullyShardedDataParallel(make_model(), device_mesh=mesh, device_id=rank)
    loss = sharded(batch(0)).square().mean()
    loss.backward()
    same_loss = make_model()(batch(0)).square().mean()

    result = {
        "rank": dist.get_rank(),
        "backend": dist.get_backend(group),
        "difference": difference,
        "averages": [*average.tolist(), *later.tolist()],
        "mesh": mesh.device_type,
        "sharded loss": abs(loss.item() - same_loss.item()),
    }
    results = [None] * ranks
    dist.all_gather_object(results, result)
    if dist.get_rank() == 0:
        print(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
