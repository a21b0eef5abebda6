import pytest

from slurm_rl.config.load import load_config
from slurm_rl.plan.build_plan import SubmitFacts, build_plan

# verl, slurm_script.sh, "Cluster Network Setting". NCCL_DEBUG is job.debug; NCCL_IB_HCA=mlx5 selects the cards.
VERL_AMD = {
    "GPU_MAX_HW_QUEUES": "2",
    "TORCH_NCCL_HIGH_PRIORITY": "1",
    "NCCL_CHECKS_DISABLE": "1",
    "NCCL_IB_HCA": "mlx5",
    "NCCL_IB_GID_INDEX": "3",
    "NCCL_CROSS_NIC": "0",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "NCCL_PROTO": "Simple",
    "RCCL_MSCCL_ENABLE": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "HSA_NO_SCRATCH_RECLAIM": "1",
}
# OpenRLHF-M on RunPod. NCCL reads NCCL_SOCKET_FAMILY; nothing in OpenRLHF reads FORCE_MODEL_INIT_TO_CUDA.
RUNPOD = {
    "NCCL_SOCKET_FAMILY": "AF_INET",
    "NCCL_LAUNCH_MODE": "GROUP",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "podnet1",
    "NCCL_SOCKET_NTHREADS": "1",
    "NCCL_NSOCKS_PERTHREAD": "1",
}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["+cluster=amd_mi300", "+network=roce_amd", "+exp=verl_ppo_qwen2_7b_amd"], VERL_AMD),
        (["+cluster=amd_mi250", "+network=roce_amd", "+exp=demo"], VERL_AMD),
        (["+cluster=runpod", "+exp=openrlhf_grpo_mathv60k"], RUNPOD),
        (["+cluster=gcp_a2_ultragpu", "+exp=grpo_mathv60k"], {"NCCL_SOCKET_IFNAME": "eth0"}),
    ],
)
def test_preset_sets_variables_of_document(words: list[str], wanted: dict[str, str]) -> None:
    plan = build_plan(load_config(words), "/runs/a", SubmitFacts("python", 8, "1"))
    assert {name: plan.env.get(name) for name in wanted} == wanted


def test_network_cards_can_be_overridden() -> None:
    words = ["+cluster=amd_mi300", "+network=roce_amd", 'cluster.env.NCCL_IB_HCA="mlx5_0,mlx5_1"']
    assert load_config([*words, "+exp=demo"]).cluster.env["NCCL_IB_HCA"] == "mlx5_0,mlx5_1"
