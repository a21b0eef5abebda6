"""The policy workers, the rollout engines, the optimizer, the loop."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from slurm_rl.config.engine_args import check_not_ours
from slurm_rl.config.paths import check_url
from slurm_rl.config.rows import SetName
from slurm_rl.config.section import (
    Fraction,
    MinP,
    NonEmpty,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
    TopP,
    checked_by,
)
from slurm_rl.config.sources import EvalSetConfig


class PolicyConfig(Section):
    """The processes that hold and train the policy."""

    num_workers: PositiveInt | None = None
    """Data-parallel ranks, one GPU each; null: half of the GPUs (all, when colocated), or 1 on CPU."""
    backend: Literal["fsdp2", "deepspeed"] = "fsdp2"
    """How parameters, gradients and optimizer state are sharded."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 2
    """DeepSpeed ZeRO stage; fsdp2 always shards everything."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What waits in host memory between its uses: the optimizer's state, or parameters and gradients, too.
    Less GPU memory, slower steps."""
    micro_batch_tokens: PositiveInt | None = None
    """Token budget of one packed micro-batch on one worker; null: the most that fits the GPU, 8192 where unknown."""
    logprob_chunk_tokens: PositiveInt | Literal["auto"] | None = "auto"
    """Tokens whose logits exist at once, computed again in the backward pass; null: those of the whole
    micro-batch, which for large vocabularies is most of its memory. auto: as the plan needs it."""
    share_prompts: bool = False
    """Completions of one prompt read it once, in one row: the same numbers, and with long prompts a fraction of the
    work. Text alone; needs an attention that takes any mask, so not flash attention; model.attention=auto does."""
    num_threads: PositiveInt | None = None
    """CPU threads of each worker; null: its part of the node's cores, by GPUs where there are some."""
    node_feature: str | None = None
    """One of cluster.nodes, where these processes run; null: on any."""

    @property
    def chunk_tokens(self) -> int | None:
        """logprob_chunk_tokens, where somebody chose."""
        return None if self.logprob_chunk_tokens == "auto" else self.logprob_chunk_tokens

    def problems(self) -> Iterator[str]:
        least = {"none": 0, "optimizer": 1, "all": 3}[self.offload]
        if self.backend == "deepspeed" and self.zero_stage < least:
            yield (
                f"policy.offload={self.offload} needs policy.zero_stage >= {least} with deepspeed; "
                f"got zero_stage={self.zero_stage}. Next: policy.zero_stage={least}, or policy.backend=fsdp2"
            )


class ReferenceConfig(Section):
    """The frozen model that algorithm.kl measures against."""

    path: str | None = None
    """Folder, or name on the hub, of another model whose tokens are the policy's, a teacher; null: the policy as GRPO
    found it."""
    num_workers: PositiveInt | None = None
    """Processes of one GPU each that hold it, apart from the policy; null: every policy worker holds it as well."""
    node_feature: str | None = None
    """One of cluster.nodes, where these processes run; null: on any."""


class RolloutConfig(Section):
    """The vLLM engines that sample completions."""

    num_engines: PositiveInt | None = None
    """vLLM engines of tensor_parallel_size GPUs each; null: as many as the policy leaves room for, or 1 on CPU."""
    tensor_parallel_size: PositiveInt | None = None
    """GPUs of one engine; null: the fewest that hold the model, 1 where its size or the GPU's is unknown."""
    colocate: bool = False
    """Engines share the policy workers' GPUs: they sleep while it trains, and wake up for new weights."""
    node_feature: str | None = None
    """One of cluster.nodes, where these processes run; null: on any."""
    max_staleness: NonNegativeInt = 0
    """Train on completions of weights up to so many steps old, and sample meanwhile; 0 samples and trains in turn."""
    continuous: bool = False
    """Engines begin the next batch before the last completion of this one has ended, the next prompts go to the engine
    with the fewest in flight, and completions in flight go on with new weights as soon as these come. Faster where
    lengths differ; not repeatable, since time decides which engine and which weights sample a token. Needs
    max_staleness >= 1; see algorithm.correction."""
    weight_transfer: Literal["auto", "ray", "gloo", "nccl", "ipc"] = "auto"
    """How new weights reach the engines: ray, through host memory and Ray's object store; or straight from the
    policy's memory: gloo on CPU, nccl to engines with GPUs of their own, ipc to colocated ones. auto on GPUs is nccl
    or ipc, and ray on CPU and with max_staleness above 0 where continuous is false. Adapters travel alone by ray, and
    each engine merges them into the base that it reads from its files; else the policy merges them on its GPU."""
    max_tokens: PositiveInt = 1024
    """Longest completion, in tokens."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature, at least 0.01; the policy's logprobs use the same."""
    top_p: TopP = 1.0
    """Sample from the likeliest tokens that together have this probability; 1: from all. This, top_k, min_p and
    repetition_penalty make the sampler another distribution than the policy; algorithm.correction makes up for it."""
    top_k: NonNegativeInt = 0
    """Sample from so many likeliest tokens; 0: from all."""
    min_p: MinP = 0.0
    """Sample from tokens with at least this share of the likeliest one's probability; 0: from all."""
    repetition_penalty: PositiveFloat = 1.0
    """Logits of tokens that prompt or completion have already are divided by it, negative ones multiplied."""
    stop: tuple[NonEmpty, ...] = ()
    """A completion ends where it contains one of these strings, also in evaluation. Its tokens, which are trained on,
    include the string; the text that is scored does not. It is not truncated."""
    stop_token_ids: tuple[NonNegativeInt, ...] = ()
    """A completion also ends with one of these tokens, as it does with the end-of-text token; the text that is scored
    comes without it."""
    max_num_seqs: PositiveInt = 256
    """Sequences decoded at once by one engine."""
    gpu_memory_utilization: Fraction = 0.85
    """Share of a GPU's memory that vLLM may take."""
    cpu_kv_cache_gb: PositiveFloat | None = None
    """Size of an engine's key-value cache on CPU, in GiB, all of which vLLM fills with zeros. None: what max_num_seqs
    of the longest sequences need, and 1 at most."""
    enforce_eager: bool | None = None
    """No CUDA graphs, no compilation: slower decoding, faster start. null: on CPU alone."""
    engine_args: Annotated[dict[str, Any], checked_by(check_not_ours)] = Field(default={})
    """Further arguments of vLLM's engine (fields of its EngineArgs), passed on as they are, such as
    max_num_batched_tokens; those that follow from other keys are refused. Logprobs may then differ from the policy's,
    as with quantization or kv_cache_dtype, so algorithm.correction.kind=auto corrects."""
    probe_tolerance: PositiveFloat | None = None
    """Largest mean difference between the engine's and the policy's logprobs of the probe's tokens after a sync, but
    for the eighth that differs most; a single one may differ by 30 times that. null: what rounding may make, 2e-4 with
    model.dtype=float32 and with bfloat16 0.023 times the root of the number of layers (0.14 for 36)."""
    start_timeout_s: PositiveFloat = 600.0
    """Deadline for an engine to be ready."""
    dump: bool = False
    """Write every prompt, completion, logprob and reward of training to <run>/rollouts."""
    replay: str | None = None
    """Train on the rollouts that another run dumped, in place of sampling; for debugging."""

    @property
    def bends_distribution(self) -> bool:
        """Engines sample from another distribution than that of their weights at this temperature."""
        return (self.top_p, self.top_k, self.min_p, self.repetition_penalty) != (1.0, 0, 0.0, 1.0)

    @property
    def transfers_directly(self) -> bool:
        return self.weight_transfer not in ("auto", "ray")

    def problems(self) -> Iterator[str]:
        wrong = {"nccl": self.colocate, "ipc": not self.colocate}.get(self.weight_transfer, False)
        if wrong:
            yield (
                "rollout.weight_transfer=nccl needs engines with GPUs of their own, and ipc needs colocated ones; "
                f"got {self.weight_transfer} with colocate={self.colocate}. Next: rollout.weight_transfer=auto"
            )
        if self.transfers_directly and self.max_staleness > 0 and not self.continuous:
            yield (
                f"rollout.weight_transfer={self.weight_transfer} with rollout.max_staleness above 0 needs "
                "rollout.continuous, or the policy would wait for engines until they have sampled a batch; got "
                f"max_staleness={self.max_staleness}. Next: rollout.weight_transfer=auto, or rollout.continuous=true"
            )
        if self.colocate and self.max_staleness > 0:
            yield (
                "rollout.max_staleness must be 0 with rollout.colocate, since engines sleep while the policy trains; "
                f"got {self.max_staleness}. Next: rollout.max_staleness=0, or rollout.colocate=false"
            )
        if self.continuous and self.max_staleness == 0:
            yield (
                "rollout.continuous needs rollout.max_staleness >= 1, since engines of a synchronous loop have nothing "
                "to go on with; got 0. Next: rollout.max_staleness=1, or rollout.continuous=false"
            )
        if self.replay is not None and not any(Path(self.replay).glob("step-*.jsonl")):
            yield (
                f"rollout.replay must name a folder with step-*.jsonl, as rollout.dump=true writes; got {self.replay!r}"
                ". Next: name <run>/rollouts of a run with rollout.dump=true, or rollout.replay=null"
            )
        if self.replay is not None and (self.dump or self.max_staleness > 0):
            yield (
                "rollout.replay goes without rollout.dump, whose folder would hold the same, and without sampling "
                f"ahead; got dump={self.dump}, max_staleness={self.max_staleness} and replay={self.replay!r}. "
                "Next: rollout.dump=false rollout.max_staleness=0"
            )


class OptimConfig(Section):
    """AdamW and its schedule."""

    lr: PositiveFloat = 1e-6
    """Peak learning rate."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """Decay of the first and second moment."""
    eps: PositiveFloat = 1e-8
    """Added to the denominator of the update."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients are scaled down to this global norm."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the warm-up; linear and cosine end at 0 with the last step."""


class WarmupConfig(Section):
    """Supervised steps on the reference answers before reinforcement learning starts."""

    num_steps: NonNegativeInt = 0
    """Number of supervised steps; 0 for a model that can already do the task a little."""
    batch_size: PositiveInt = 256
    """Rows of one supervised step, over all workers."""
    optim: OptimConfig = OptimConfig(lr=1e-3)
    """Optimizer of this stage alone."""


class TrainerConfig(Section):
    """The loop."""

    num_steps: PositiveInt = 100
    """Steps of task=grpo: sample, score, train, send the weights."""
    prompts_per_step: PositiveInt = 32
    """Prompts of one step; times algorithm.group_size completions."""
    num_minibatches: PositiveInt = 1
    """Optimizer steps made of one step's completions: whole groups in random order, each step a mean of its own;
    prompts_per_step must be a multiple."""
    num_epochs: PositiveInt = 1
    """Passes over one step's completions, each in an order of its own; the ratio's denominator stays that of the
    first."""
    step_timeout_s: PositiveFloat = 3600.0
    """Deadline of one phase (sampling, training, ...); then the run ends and names the silent actor."""

    @property
    def num_updates(self) -> int:
        """Optimizer steps made of one step's completions."""
        return self.num_minibatches * self.num_epochs

    def problems(self) -> Iterator[str]:
        if self.prompts_per_step % self.num_minibatches:
            yield (
                f"trainer.prompts_per_step must be a multiple of trainer.num_minibatches; "
                f"got {self.prompts_per_step} and {self.num_minibatches}"
            )


class EvalConfig(Section):
    """Accuracy on the held-out rows."""

    every: NonNegativeInt = 0
    """Evaluate every so many steps; 0 only before the first and after the last."""
    greedy: bool = True
    """Measure greedy decoding in addition to sampling."""
    num_samples: PositiveInt = 1
    """Completions of each held-out prompt; accuracy/sampled is their mean (mean@k), and above 1 pass@k is logged."""
    only: bool = False
    """Evaluate `sets` once with the model as it is, on engines alone, and train nothing: what the verb `eval` sets."""
    sets: dict[SetName, EvalSetConfig] = Field(default={})
    """Further rows to evaluate on, by names of your own: +eval.sets.aime.data=aime.jsonl. Of the columns that one does
    not name it has those of data."""


class CheckpointConfig(Section):
    """What survives a crash."""

    every: PositiveInt | Literal["auto"] = 10
    """Save every so many steps, and always at the end and on a stop signal; auto: as often as costs least, by what a
    save stalls the loop and how often attempts are lost (Young and Daly), from 10 on."""
    background: bool = True
    """Copy the state to host memory, then write, hash and rename it while training goes on; false waits.
    DeepSpeed writes in the foreground; hashing is in the background with it, too."""
    keep: PositiveInt = 2
    """Verified checkpoints kept; older ones go only after a newer one verifies."""
    keep_best: bool = True
    """With eval.every, also keep the checkpoint of the best sampled accuracy so far."""
    url: Annotated[str, checked_by(partial(check_url, "checkpoint.url"))] | None = None
    """Where each checkpoint is copied to, in the background, as `<url>/<name of the run directory>`: gs://, s3:// or
    any URL of fsspec's. A run whose directory is lost or older goes on from there; null: no copies."""
    verify: bool = True
    """Take a copy back only when it is signed with this run's key, which is secrets/checkpoint-key of the run
    directory, made of SLURM_RL_TOKEN where that is set. false: whoever may write there may change the policy."""
