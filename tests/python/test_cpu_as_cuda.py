"""``run_as_te --device cpu``: the functions of torch.cuda and torch.distributed that scripts for
GPUs call.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from telens.run_as_te import distributed_functions
from telens.run_as_te.device import cuda_is_cpu

CLIENT = Path(__file__).parent / "clients/two_gpu_client.py"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Returns what the two processes of the client found, by rank."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    folder = tmp_path_factory.mktemp("two_gpus")
    done = subprocess.run(
        [sys.executable, *launch, "-m", "telens.run_as_te", "--device", "cpu", str(CLIENT)],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_replicas_with_device_ids_average_their_gradients(ranks):
    assert [each["rank"] for each in ranks] == [0, 1]
    assert all(each["difference"] < 1e-7 for each in ranks)


def test_collectives_of_nccl_run_over_gloo(ranks):
    for each in ranks:
        assert each["backend"] == "gloo"
        assert each["averages"] == [0.5] * 4


def test_meshes_and_shards_are_on_the_cpu(ranks):
    for each in ranks:
        assert each["mesh"] == "cpu"
        assert each["sharded loss"] < 1e-6


def test_one_device_with_the_properties_of_the_machine():
    with cuda_is_cpu():
        assert torch.cuda.device_count() == 1
        found = torch.cuda.get_device_properties(0)
        assert (found.major, found.minor) == torch.cuda.get_device_capability(0)
        free, total = torch.cuda.mem_get_info()
        assert 0 < free <= total == found.total_memory
        assert found.multi_processor_count > 0
        assert torch.cuda.is_bf16_supported()
        assert torch.cuda.memory_summary() == ""
        torch.cuda.init()
        torch.cuda.ipc_collect()
        torch.cuda.set_per_process_memory_fraction(0.5)
        torch.cuda.memory._record_memory_history(max_entries=10)
        assert torch.cuda.cudart().cudaProfilerStart() == 0
        torch.cuda.profiler.start()
        torch.cuda.profiler.stop()


@pytest.mark.parametrize("is_list", [True, False])
def test_random_states_are_restored(is_list):
    with cuda_is_cpu():
        if is_list:
            states = torch.cuda.get_rng_state_all()
            first = torch.rand(4, device="cuda")
            torch.cuda.set_rng_state_all(states)
        else:
            state = torch.cuda.get_rng_state("cuda:0")
            first = torch.rand(4, device="cuda")
            torch.cuda.set_rng_state(state, "cuda:0")
        assert torch.equal(torch.rand(4, device="cuda"), first)
        assert torch.cuda.initial_seed() == torch.initial_seed()


@pytest.mark.parametrize(
    "keywords", [{}, {"devices": [0]}, {"devices": [0], "device_type": "cuda"}]
)
def test_forked_random_state_is_restored(keywords):
    with cuda_is_cpu():
        with torch.random.fork_rng(**keywords):
            inside = torch.rand(4, device="cuda")
        assert torch.equal(torch.rand(4, device="cuda"), inside)


@pytest.mark.parametrize("kind", ["Float", "Half", "Long"])
def test_tensor_types_match_the_cpu(kind):
    with cuda_is_cpu():
        of_cuda = getattr(torch.cuda, f"{kind}Tensor")
        name = f"torch.cuda.{kind}Tensor"
        expected = getattr(torch, f"{kind}Tensor")
        assert isinstance(of_cuda(3), expected)
        for made in (torch.ones(2).type(name), torch.ones(2).type(of_cuda)):
            assert made.type() == f"torch.{kind}Tensor"
            assert made.device.type == "cpu"


def test_default_type_of_tensors_may_be_of_a_gpu():
    with cuda_is_cpu():
        torch.set_default_tensor_type("torch.cuda.DoubleTensor")
        try:
            assert torch.ones(2).dtype == torch.float64
        finally:
            torch.set_default_tensor_type("torch.FloatTensor")


def test_functions_of_torch_are_restored():
    names = ("device_count", "FloatTensor", "get_rng_state", "Stream")
    before = [getattr(torch.cuda, name) for name in names]
    init = torch.nn.parallel.DistributedDataParallel.__init__
    with cuda_is_cpu():
        assert torch.nn.parallel.DistributedDataParallel.__init__ is not init
    assert [getattr(torch.cuda, name) for name in names] == before
    assert torch.nn.parallel.DistributedDataParallel.__init__ is init


def add_ranks(tensor, op=None, group=None, async_op=False):
    """Sums over two ranks that have equal tensors."""
    tensor.mul_(2)
    return Work() if async_op else None


class Work:
    def wait(self, timeout=None):
        return timeout


def test_average_can_be_awaited_with_a_timeout_by_name(monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    tensor = torch.ones(3)
    work = distributed_functions._averaging(add_ranks)(tensor, op=dist.ReduceOp.AVG, async_op=True)
    assert work.wait(timeout=7) == 7
    assert tensor.tolist() == [1, 1, 1]


def test_average_on_a_rank_outside_of_the_group_changes_nothing(monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: -1)
    tensor = torch.ones(3)
    reduce = distributed_functions._averaging(lambda tensor, op=None, group=None: None)
    assert reduce(tensor, op=dist.ReduceOp.AVG) is None
    assert tensor.tolist() == [1, 1, 1]


def test_mesh_may_be_an_array():
    make = distributed_functions._with_cpu_mesh(lambda *args, **kwargs: args)
    kind, mesh = make("cuda", np.arange(2))
    assert kind == "cpu"
    assert mesh.tolist() == [0, 1]
