"""Config of the policy workers, rollout engines, optimizer, training loop and checkpoints."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from slurm_rl.config.engine_args import check_not_ours
from slurm_rl.config.paths import check_url
from slurm_rl.config.section import (
    Fraction,
    MinP,
    NonEmpty,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    Section,
    checked_by,
)


class PolicyConfig(Section):
    """Workers that hold and train the policy."""

    num_workers: PositiveInt | None = None
    """Ranks of one GPU each; null: every GPU if engines share them, else the split with the shortest
    estimated step; 1 on CPU."""
    backend: Literal["fsdp2", "deepspeed"] = "fsdp2"
    """Library that shards parameters, gradients and optimizer state."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 2
    """DeepSpeed ZeRO stage; fsdp2 always shards everything."""
    num_replicas: PositiveInt = 1
    """Replicas of the sharded parameters (hybrid sharding): gathering stays within num_workers / num_replicas ranks,
    which hold more memory each; gradients are summed over replicas once per step. fsdp2 only."""
    context_parallel: PositiveInt | Literal["auto"] = "auto"
    """Ranks that share the tokens of each packed row (Ulysses): they exchange tokens for attention heads, so a sequence
    may be as many times longer. Text models with packed rows; fsdp2 only. auto: 1, or the fewest that fit if no
    other layout does."""
    offload: Literal["auto", "none", "optimizer", "all"] = "auto"
    """State kept in host memory between uses: the optimizer's, or also parameters and gradients; saves GPU memory and
    slows steps down. auto: none, or the optimizer's if the plan estimates shorter steps or nothing else fits."""
    micro_batch_tokens: PositiveInt | None = None
    """Tokens of one packed micro-batch at most, per worker or group of context_parallel workers; null: as many as fit
    the GPU, or 8192 if unknown."""
    logprob_chunk_tokens: PositiveInt | Literal["auto"] | None = "auto"
    """Tokens whose logits are materialized at once and recomputed in the backward pass; null: the whole micro-batch,
    most of the memory for a large vocabulary; auto: as the plan needs."""
    prefix_sharing: bool = False
    """Compute a prompt once for all of its completions, packed in one row; results are unchanged. Text only; needs an
    attention with arbitrary masks (not flash attention), which model.attention=auto selects."""
    num_threads: PositiveInt | None = None
    """CPU threads per worker; null: an equal share of the node's cores, per GPU if it has any."""
    node_group: str | None = None
    """Node group (a name in cluster.nodes) that policy workers run on; null: any."""

    @property
    def chunk_tokens(self) -> int | None:
        """logprob_chunk_tokens, with None for auto."""
        return None if self.logprob_chunk_tokens == "auto" else self.logprob_chunk_tokens

    @property
    def offloaded(self) -> str:
        """offload, with none for auto."""
        return "none" if self.offload == "auto" else self.offload

    @property
    def context(self) -> int:
        """context_parallel, with 1 for auto."""
        return 1 if self.context_parallel == "auto" else self.context_parallel

    def problems(self) -> Iterator[str]:
        if self.backend == "deepspeed" and self.num_replicas > 1:
            yield (
                f"policy.num_replicas needs policy.backend=fsdp2; got num_replicas={self.num_replicas} with deepspeed. "
                "Next: policy.num_replicas=1 with policy.zero_stage=1 or 2, or policy.backend=fsdp2"
            )
        if self.context > 1 and (self.backend == "deepspeed" or self.prefix_sharing):
            other = "policy.prefix_sharing" if self.prefix_sharing else "policy.backend=deepspeed"
            yield (
                f"policy.context_parallel excludes {other}; got context_parallel={self.context_parallel}. "
                "Next: policy.context_parallel=1, or policy.backend=fsdp2 policy.prefix_sharing=false"
            )
        least = {"none": 0, "optimizer": 1, "all": 3}[self.offloaded]
        if self.backend == "deepspeed" and self.zero_stage < least:
            yield (
                f"policy.offload={self.offload} needs policy.zero_stage >= {least} with deepspeed; "
                f"got zero_stage={self.zero_stage}. Next: policy.zero_stage={least}, or policy.backend=fsdp2"
            )


class ReferenceConfig(Section):
    """Frozen model of the KL term."""

    path: str | None = None
    """Folder or hub name of a teacher with the policy's tokenizer; null: the initial policy."""
    num_workers: PositiveInt | None = None
    """Reference processes of one GPU each; null: every policy worker also holds the reference."""
    node_group: str | None = None
    """Node group (a name in cluster.nodes) that reference processes run on; null: any."""


class RolloutConfig(Section):
    """vLLM engines that sample completions."""

    num_engines: PositiveInt | None = None
    """vLLM engines of tensor_parallel_size GPUs each; null: as many as the policy leaves room for, or 1 on CPU."""
    tensor_parallel_size: PositiveInt | None = None
    """GPUs per engine; null: those with the shortest estimated step, or 1 if model or GPU memory is unknown."""
    colocate: bool | None = None
    """Share the policy workers' GPUs: engines sleep during training and wake up for new weights; null: on GPUs with
    max_off_policy_steps=0, if both fit."""
    node_group: str | None = None
    """Node group (a name in cluster.nodes) that engines run on; null: any."""
    max_off_policy_steps: NonNegativeInt = 0
    """Steps by which the weights of a completion may lag behind the policy; above 0 sampling overlaps with training,
    and 0 is synchronous."""
    inflight_weight_updates: bool = False
    """Continuous batching across steps with in-flight weight updates (PipelineRL); faster with uneven lengths, not
    reproducible. Needs max_off_policy_steps >= 1; see algorithm.correction."""
    weight_transfer: Literal["auto", "adapters", "ray", "gloo", "nccl", "ipc"] = "auto"
    """Transport of new weights to engines. ray: host memory and Ray's object store; gloo: CPU to CPU; nccl: to engines
    on other GPUs; ipc: to colocated engines. auto: nccl or ipc on GPUs; ray on CPU. adapters: vLLM swaps LoRA adapters
    in its memory; auto chooses it where vLLM supports it, and `plan` names the reason otherwise. The other values send
    merged weights."""
    max_tokens: PositiveInt = 1024
    """Longest completion, in tokens."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature, at least 0.01; the policy's logprobs use it too."""
    top_p: PositiveFraction = 1.0
    """Nucleus sampling: smallest set of tokens with this total probability; 1: all. top_p, top_k, min_p and
    repetition_penalty change the sampling distribution, which algorithm.correction compensates."""
    top_k: NonNegativeInt = 0
    """Most likely tokens to sample from; 0: all."""
    min_p: MinP = 0.0
    """Smallest probability of a sampled token, relative to the most likely one; 0: no limit."""
    repetition_penalty: PositiveFloat = 1.0
    """Factor that reduces the logits of tokens already in prompt or completion; 1: none."""
    stop: tuple[NonEmpty, ...] = ()
    """Strings that end a completion, also in evaluation; they are part of the trained tokens but not of the scored
    text."""
    stop_token_ids: tuple[NonNegativeInt, ...] = ()
    """Tokens that end a completion in addition to the end-of-text token; the scored text excludes them."""
    max_num_seqs: PositiveInt = 256
    """Sequences that an engine decodes concurrently at most."""
    gpu_memory_utilization: Fraction | None = None
    """Share of a GPU's memory that vLLM may use; null: 0.85, or with colocate the most that leaves room for the policy,
    and 0.6 if memory is not estimated."""
    cpu_kv_cache_gb: PositiveFloat | None = None
    """KV cache of an engine on CPU, in GiB; null: enough for max_num_seqs longest sequences, at most 1."""
    enforce_eager: bool | None = None
    """Disable CUDA graphs and compilation: slower decoding, faster start; null: only on CPU."""
    engine_args: Annotated[dict[str, Any], checked_by(check_not_ours)] = Field(default={})
    """Additional fields of vLLM's EngineArgs, such as max_num_batched_tokens; fields that other keys set are refused.
    Logprobs may then differ from the policy's (quantization, kv_cache_dtype), so algorithm.correction.kind=auto
    corrects."""
    weight_check_tolerance: PositiveFloat | None = None
    """Largest mean |logprob difference| between engine and policy on the probe after a weight sync, excluding the
    eighth with the largest difference; a single token may differ by 30 times as much. null: 2e-4 in float32, and in
    bfloat16 0.023 * sqrt(number of layers)."""
    start_timeout_s: PositiveFloat = 600.0
    """Timeout for an engine to start."""
    dump: bool = False
    """Write all training prompts, completions, logprobs and rewards to <run>/rollouts."""
    replay: str | None = None
    """Folder of dumped rollouts to train on instead of sampling, for debugging."""

    @property
    def truncates_distribution(self) -> bool:
        """Whether engines sample from another distribution than that of their weights at this temperature."""
        return (self.top_p, self.top_k, self.min_p, self.repetition_penalty) != (1.0, 0, 0.0, 1.0)

    @property
    def transfers_directly(self) -> bool:
        """Whether weights go from the policy's memory to the engine's, without Ray's object store."""
        return self.weight_transfer in ("gloo", "nccl", "ipc")

    def problems(self) -> Iterator[str]:
        refused = {"nccl": True, "ipc": False}.get(self.weight_transfer)
        wrong = refused is not None and self.colocate is refused
        if wrong:
            yield (
                "rollout.weight_transfer=nccl needs engines with their own GPUs, and ipc needs colocated ones; "
                f"got {self.weight_transfer} with colocate={bool(self.colocate)}. Next: rollout.weight_transfer=auto"
            )
        if self.colocate and self.max_off_policy_steps > 0:
            yield (
                "rollout.max_off_policy_steps must be 0 with rollout.colocate, since engines sleep while the policy "
                "trains; "
                f"got {self.max_off_policy_steps}. Next: rollout.max_off_policy_steps=0, or rollout.colocate=false"
            )
        if self.inflight_weight_updates and self.max_off_policy_steps == 0:
            yield (
                "rollout.inflight_weight_updates needs rollout.max_off_policy_steps >= 1, since a synchronous loop "
                "has no next batch to "
                "sample; got 0. Next: rollout.max_off_policy_steps=1, or rollout.inflight_weight_updates=false"
            )
        if self.replay is not None and not any(Path(self.replay).glob("step-*.jsonl")):
            yield (
                f"rollout.replay must name a folder with step-*.jsonl, as rollout.dump=true writes; got {self.replay!r}"
                ". Next: name <run>/rollouts of a run with rollout.dump=true, or rollout.replay=null"
            )
        if self.replay is not None and (self.dump or self.max_off_policy_steps > 0):
            yield (
                "rollout.replay excludes rollout.dump, which would write the same rollouts, and sampling ahead;"
                f" got dump={self.dump}, max_off_policy_steps={self.max_off_policy_steps} and "
                f"replay={self.replay!r}. "
                "Next: rollout.dump=false rollout.max_off_policy_steps=0"
            )


class OptimConfig(Section):
    """AdamW and its learning rate schedule."""

    lr: PositiveFloat = 1e-6
    """Peak learning rate."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """Decay rates of the first and second moment."""
    eps: PositiveFloat = 1e-8
    """Term added to the denominator of the update."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""
    max_grad_norm: PositiveFloat = 1.0
    """Global norm that gradients are clipped to."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warmup from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule after the warmup; linear and cosine decay to 0 at the last step."""


class WarmupConfig(Section):
    """Supervised steps on reference answers before RL."""

    num_steps: NonNegativeInt = 0
    """Supervised steps; 0: none."""
    batch_size: PositiveInt = 256
    """Rows per supervised step, over all workers."""
    optim: OptimConfig = OptimConfig(lr=1e-3)
    """Optimizer of the supervised steps."""


class TrainerConfig(Section):
    """RL training loop."""

    num_steps: PositiveInt = 100
    """Steps of task=grpo: sample, score, train, sync weights."""
    prompts_per_step: PositiveInt = 32
    """Prompts per step, with algorithm.group_size completions each."""
    num_minibatches: PositiveInt = 1
    """Optimizer updates per pass over a step's completions: groups are shuffled and split, and each part has its own
    mean; prompts_per_step must be a multiple."""
    num_epochs: PositiveInt = 1
    """Passes over a step's completions, each shuffled; the ratio's denominator stays that of the first."""
    step_timeout_s: PositiveFloat = 3600.0
    """Timeout of one phase of a step (sampling, training, ...), after which the attempt fails and names the silent
    actor."""

    @property
    def num_updates(self) -> int:
        """Optimizer updates per step."""
        return self.num_minibatches * self.num_epochs

    def problems(self) -> Iterator[str]:
        if self.prompts_per_step % self.num_minibatches:
            yield (
                f"trainer.prompts_per_step must be a multiple of trainer.num_minibatches; "
                f"got {self.prompts_per_step} and {self.num_minibatches}"
            )


class CheckpointConfig(Section):
    """Checkpoints and their copies."""

    interval: PositiveInt | Literal["auto"] = 10
    """Steps between checkpoints, in addition to one at the end and on a stop signal; auto: minimize the cost of saves
    and lost steps (Young and Daly), starting with 10."""
    background: bool = True
    """Copy the state to host memory, then write, hash and rename it during training; false: block until written.
    DeepSpeed writes in the foreground and hashes in the background."""
    keep_last: PositiveInt = 2
    """Verified checkpoints to keep; an older one is deleted after a newer one verifies."""
    keep_best: bool = True
    """Also keep the checkpoint with the best sampled accuracy, with eval.interval."""
    upload_url: Annotated[str, checked_by(partial(check_url, "checkpoint.upload_url"))] | None = None
    """URL (gs://, s3:// or any of fsspec's) that checkpoints are copied to in the background, as `<url>/<run
    directory's name>`; a run whose directory is lost or older resumes from it; null: no copies."""
    verify: bool = True
    """Accept a copy from checkpoint.upload_url only if it is signed with the run's key (secrets/checkpoint-key, derived
    from SLURM_RL_TOKEN if set); false: anyone who can write there can change the policy."""
