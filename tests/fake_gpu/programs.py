"""Programs that run on a fake machine: `python -m tests.fake_gpu.programs <name>`."""

import os
import subprocess
import sys
from typing import Any

import torch


def used_mib() -> list[int]:
    """Return the memory in use of each device by nvidia-smi."""
    text = subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, check=True).stdout
    parts = text.split("FB Memory Usage")[1:]
    return [int(part.split("Used")[1].split()[1]) for part in parts]


def see_devices() -> None:
    x = torch.ones(64 * 2**20, dtype=torch.uint8, device="cuda")
    print(torch.cuda.device_count(), torch.cuda.get_device_capability(), torch.cuda.get_device_name(), used_mib())
    assert int(x.sum()) == 64 * 2**20


def run_out_of_memory() -> None:
    """Two processes share the memory of a device."""
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    took, done = context.Event(), context.Event()
    process = context.Process(target=_take_half, args=(took, done))
    process.start()
    assert took.wait(120)
    free, total = torch.cuda.mem_get_info()
    try:
        torch.empty(total * 6 // 10, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        print("out of memory", round(free / total, 1))
    done.set()
    process.join(60)
    print(torch.empty(total * 6 // 10, dtype=torch.uint8, device="cuda").numel() == total * 6 // 10)


def _take_half(took: Any, done: Any) -> None:
    held = torch.empty(torch.cuda.mem_get_info()[1] // 2, dtype=torch.uint8, device="cuda")
    took.set()
    done.wait(120)
    del held


def share_by_handle() -> None:
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    there, back = context.Queue(), context.Queue()
    process = context.Process(target=_double, args=(there, back))
    process.start()
    own = torch.arange(1000, device="cuda:1")
    there.put(own)
    assert back.get(timeout=120) == 499500
    print(torch.equal(own.cpu(), torch.arange(1000) * 2))
    there.put(None)
    process.join(60)


def _double(there: Any, back: Any) -> None:
    shared = there.get(timeout=120)
    total = int(shared.sum())
    shared.mul_(2)
    back.put(total)
    there.get(timeout=120)


def replay_graph() -> None:
    x, counter = torch.zeros(4, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2 + 1).relu().cumsum(0)
        counter += 1
    before = int(counter)
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert torch.equal(y.cpu(), (torch.full((4,), value) * 2 + 1).cumsum(0))
    print(int(counter) - before)


def sleep_and_wake() -> None:
    from vllm.device_allocator.cumem import CuMemAllocator

    allocator = CuMemAllocator.get_instance()
    with allocator.use_memory_pool(tag="weights"):
        kept = torch.arange(32 * 2**20, dtype=torch.int32, device="cuda")
    with allocator.use_memory_pool(tag="kv_cache"):
        lost = torch.ones(32 * 2**20, dtype=torch.int32, device="cuda")
    awake = used_mib()[0]
    allocator.sleep(offload_tags=("weights",))
    asleep = used_mib()[0]
    allocator.wake_up()
    print(awake - asleep, torch.equal(kept.cpu(), torch.arange(32 * 2**20, dtype=torch.int32)), int(lost.sum()))


def restore_draws() -> None:
    torch.cuda.manual_seed(3)
    torch.rand(2, device="cuda")
    state = torch.cuda.get_rng_state()
    first, second = torch.rand(8, device="cuda"), torch.rand(8, device="cuda")
    torch.cuda.set_rng_state(state)
    print(torch.equal(first, torch.rand(8, device="cuda")), torch.equal(first, second))


def launch_unknown_kernel() -> None:
    torch.cuda._sleep(1)


def read_late() -> None:
    """In late mode a copy to pinned memory is there after a synchronisation, and a side stream has to wait."""
    host, side = torch.zeros(4, pin_memory=True), torch.cuda.Stream()
    x = torch.arange(4.0, device="cuda") + 1
    host.copy_(x, non_blocking=True)
    before = host.tolist()
    torch.cuda.synchronize()
    y = x * 10
    with torch.cuda.stream(side):
        early = y + 0
        side.wait_stream(torch.cuda.default_stream())
        late = y + 0
    side.synchronize()
    print(
        before == [0.0] * 4, host.tolist() == [1.0, 2.0, 3.0, 4.0], early.tolist() == y.tolist(), torch.equal(late, y)
    )


def _leave_out(name: str) -> None:
    """Replace a synchronisation of our code, `Stream.wait_stream` or `Stream.synchronize`, by nothing."""
    if name:
        setattr(torch.cuda.Stream, name, lambda *_: None)


def offload_moments(left_out: str = "") -> None:
    """Compare AdamW whose moments move over two copy streams with plain AdamW."""
    from slurm_rl.models import offload

    torch.manual_seed(0)
    if left_out != "synchronize":  # with several buckets, events order all but the last copies
        offload._BUCKET = 2000
    start = [torch.randn(40, 50, device="cuda") for _ in range(6)]
    gradients = [[torch.randn(40, 50, device="cuda") for _ in start] for _ in range(4)]
    ends = []
    for is_parked in (False, True):
        parameters = [torch.nn.Parameter(one.clone()) for one in start]
        optimizer = torch.optim.AdamW(parameters, lr=0.1)
        moments = offload.HostMoments(optimizer, torch.device("cuda"))
        if is_parked:
            torch.cuda.synchronize()
            _leave_out(left_out)
        for step in gradients:
            for parameter, gradient in zip(parameters, step, strict=True):
                parameter.grad = gradient.clone()
            moments.step() if is_parked else optimizer.step()
        ends.append(torch.cat([one.detach().flatten() for one in parameters]).cpu())
    print("equal" if torch.equal(*ends) else f"differ by {float((ends[0] - ends[1]).abs().max()):.3g}")


def gather_on_streams(left_out: str = "") -> None:
    """Consume gathered tensors on two streams in turn, as vLLM's packed transfer does."""
    from slurm_rl.models.gather import Part, gather_state

    parts = {f"p{index}": torch.full((1000,), index + 1.0, device="cuda") for index in range(6)}
    streams, got = [torch.cuda.Stream() for _ in range(2)], []
    torch.cuda.synchronize()
    state = gather_state(
        ((name, Part(values, (10, 100), 1000)) for name, values in parts.items()), torch.float32, torch.device("cuda")
    )
    first = next(state)
    _leave_out(left_out)
    got.append(first[1].clone())
    for index in range(5):
        with torch.cuda.stream(streams[index % 2]):
            got.append(next(state)[1] + 0)
    torch.cuda.synchronize()
    print("equal" if [float(one.mean()) for one in got] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0] else "differ")


def pin_memory() -> None:
    """Print the MiB that torch takes from the host for 310 MiB of pinned memory."""
    torch.cuda.init()
    held = torch.empty(310 * 2**20, dtype=torch.uint8, pin_memory=True)
    print("pinned", torch.cuda.host_memory_stats()["allocated_bytes.current"] >> 20, held.numel() >> 20)


def hold_memory() -> None:
    """Print what nvidia-smi prints while this process holds memory."""
    held = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    print(subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, check=True).stdout, held.numel())


def _in_child(target: Any, *arguments: Any) -> int:
    import torch.multiprocessing as mp

    process = mp.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    process.join(120)
    assert process.exitcode is not None, "the child hangs"
    return process.exitcode


def _open(handle: Any) -> None:
    build, arguments = handle
    print(build(*arguments).sum())


def share_stale_handle() -> None:
    """Open a handle of memory that its process has freed."""
    from torch.multiprocessing.reductions import reduce_tensor

    held = torch.ones(2**22, device="cuda")
    handle = reduce_tensor(held)
    assert _in_child(_open, handle) == 0
    del held
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    print("refused" if _in_child(_open, handle) else "the stale handle was opened")


def wake_in_wrong_order() -> None:
    """Wake an engine's memory while the policy still holds its own, and write weights that are asleep."""
    from vllm.device_allocator.cumem import CuMemAllocator

    allocator = CuMemAllocator.get_instance()
    half = torch.cuda.mem_get_info()[1] // 2
    with allocator.use_memory_pool(tag="kv_cache"):
        cache = torch.empty(half, dtype=torch.uint8, device="cuda")
    allocator.sleep(offload_tags=())
    policy = torch.empty(half, dtype=torch.uint8, device="cuda")
    try:
        allocator.wake_up()
    except Exception as error:
        assert "memory" in str(error).lower(), error
    else:
        print("woke beside the policy")
        return
    del policy
    if _in_child(_write_asleep):
        print("refused", cache.numel() > 0)


def _write_asleep() -> None:
    from vllm.device_allocator.cumem import CuMemAllocator

    allocator = CuMemAllocator.get_instance()
    with allocator.use_memory_pool(tag="weights"):
        weights = torch.ones(2**22, device="cuda")
    allocator.sleep(offload_tags=())
    weights.fill_(2)


def open_on_wrong_device() -> None:
    """Receive vLLM's packed weights by handle, with the right mask and with that of another GPU."""
    from vllm.distributed.weight_transfer.packed_tensor import packed_ipc_producer

    weights, uuid = iter([("weight", torch.ones(1000, device="cuda"))]), str(torch.cuda.get_device_properties(0).uuid)
    chunks = packed_ipc_producer(weights, uuid, lambda item: item[1], 2**20)
    chunk = next(chunks)
    words = (chunk.ipc_handle, chunk.names, chunk.shapes, chunk.dtype_names, chunk.tensor_sizes)
    states = []
    for mask in "01":
        os.environ["CUDA_VISIBLE_DEVICES"] = mask
        states.append(_in_child(_consume, words))
    print("refused" if states == [0, 1] else f"exit states {states}")


def _consume(words: Any) -> None:
    from vllm.distributed.weight_transfer.packed_tensor import packed_ipc_consumer

    [(name, weight)] = packed_ipc_consumer(*words, device_index=0)
    assert (name, float(weight.sum())) == ("weight", 1000.0)


def communicate() -> None:
    """Under torchrun."""
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", device_id=device)
    large = torch.full((1_000_003,), float(rank + 1), device=device)
    dist.all_reduce(large)
    assert bool(large.eq(size * (size + 1) / 2).all())
    half = torch.full((5,), float(rank + 1), device=device, dtype=torch.bfloat16)
    dist.all_reduce(half, op=dist.ReduceOp.AVG)
    assert float(half[0]) == (size + 1) / 2
    gathered = torch.empty(size, 3, device=device)
    dist.all_gather_into_tensor(gathered, torch.full((1, 3), float(rank), device=device))
    assert gathered[:, 0].tolist() == list(range(size))
    sent = torch.arange(300_000, device=device) * (rank == 1)
    dist.broadcast(sent, 1)
    assert int(sent[-1]) == 299_999
    part = torch.empty(4, device=device)
    dist.reduce_scatter_tensor(part, torch.arange(4.0 * size, device=device))
    assert part.tolist() == [size * (4 * rank + index) for index in range(4)]
    swapped = torch.empty(size, device=device)
    dist.all_to_all_single(swapped, torch.arange(float(size), device=device) + 10 * rank)
    assert swapped.tolist() == [rank + 10 * index for index in range(size)]
    right, left = (rank + 1) % size, (rank - 1) % size
    received = torch.empty(900_000, device=device)
    calls = [dist.P2POp(dist.isend, torch.full((900_000,), float(rank), device=device), right)]
    for work in dist.batch_isend_irecv([*calls, dist.P2POp(dist.irecv, received, left)]):
        work.wait()
    assert bool(received.eq(left).all())
    pair = dist.new_group([0, 1])
    dist.all_reduce(half, group=pair)
    if rank == 0:
        print("all collectives agree")
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
