"""The policy engine: logprobs and training steps on packed rows, for any loss.

    micro-batches of TrainSequence -> packed rows -> logprobs [N], entropy [N] -> loss_fn -> backward -> step

Every method is called on all ranks together, each rank with its own micro-batches but as many of them.
On CPU the same calls from the same state give the same bits.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from slurm_rl.algorithms.logprobs import compute_token_hits, compute_token_logprobs
from slurm_rl.algorithms.sequences import FloatArray, PackedBatch, TrainSequence
from slurm_rl.algorithms.totals import add_totals
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.errors import CheckpointError
from slurm_rl.models import distributed, lora
from slurm_rl.models.backend import build_backend, require_finite, splits_parameters
from slurm_rl.models.checkpoint.background import reserve_reason, write_or_report, write_whole
from slurm_rl.models.forward import DUMMY, RowReader
from slurm_rl.models.load_model import load_model, load_tokenizer, open_model
from slurm_rl.models.meshes import open_meshes
from slurm_rl.models.policy_weights import PolicyWeights
from slurm_rl.models.row_check import check_rows
from slurm_rl.models.row_layout import require_maskable
from slurm_rl.models.saved_weights import build_layout, require_layout
from slurm_rl.models.shards import load_rng, rank_file, save_rng
from slurm_rl.models.stopwatch import Stopwatch, Yardstick
from slurm_rl.models.vision import load_image_reader
from slurm_rl.node.heartbeat import beat, note_speed, process_name
from slurm_rl.run_dir.io_errors import annotate_path, describe_disk, next_action
from slurm_rl.run_dir.run_dir import write_json

MicroBatches = Sequence[Sequence[TrainSequence]]
LossFn = Callable[[PackedBatch, Tensor, Tensor], tuple[Tensor, dict[str, float]]]
"""(batch, logprobs [N], entropy [N]) -> (loss, a sum over tokens; sums of metrics over tokens)."""


class PolicyEngine(PolicyWeights):
    """The trained model of this rank.

    Args:
        model_folder: a Hugging Face folder; its tokenizer is exported.
        temperature: sampling temperature; divides the logits of sequences without their own.
        score_seed: train a reward model with a head drawn from this seed; losses get scores [N] for logprobs, and zeros
            for entropies.
        noise_alpha: NEFTune's, only in training.
        seed: seed of fresh adapters.
    """

    def __init__(
        self,
        model_folder: str | Path,
        model: ModelConfig,
        policy: PolicyConfig,
        optim: OptimConfig,
        *,
        temperature: float,
        score_seed: int | None = None,
        noise_alpha: float = 0.0,
        seed: int = 0,
    ) -> None:
        distributed.set_num_threads(policy)
        self.device = distributed.get_device()
        if self.device.type == "cpu":
            torch.use_deterministic_algorithms(True)
            # Or every fresh buffer is filled with NaN; of ZeRO's buckets that is 2 GB and seconds a step.
            torch.utils.deterministic.fill_uninitialized_memory = False
        self.temperature = temperature
        self.meshes = open_meshes(policy)
        model = self.meshes.choose_attention(model)
        self.tokenizer = load_tokenizer(model_folder, trust_remote_code=model.trust_remote_code)
        self.model_config, self.model_folder = model, str(model_folder)
        self.scores, self.noise_alpha = score_seed is not None, noise_alpha
        images = load_image_reader(model_folder, model)
        if splits_parameters(policy, getattr(torch, model.dtype)):
            module, files = open_model(model_folder, model, score_seed=score_seed, any_mask=policy.prefix_sharing)
        else:
            module = load_model(model_folder, model, score_seed=score_seed, any_mask=policy.prefix_sharing)
            files = None
        if self.scores and module.config.pad_token_id is None:
            module.config.pad_token_id = self.tokenizer.pad_token_id  # for a classifier's pooling
        self._shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
        self.adapted = None if model.lora is None else lora.add_adapters(module, model.lora, seed)
        self.backend = build_backend(module, policy, optim, files)
        if policy.prefix_sharing:
            require_maskable(self.module.config)
        reader = RowReader(self.backend.model, self.device, images, policy.chunk_tokens, policy.prefix_sharing)
        reader = replace(reader, context=self.meshes.open_context(self.module.config, has_images=images is not None))
        self.rows = check_rows(reader, self.backend.dtype, scores=self.scores)
        self.reader = replace(reader, packed=self.rows.packed)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._yardstick = Yardstick(self.device) if self.meshes.num_parts > 1 and process_name() else None
        self.layout = build_layout(self.module, model, policy)

    def compute_logprobs(self, micro_batches: MicroBatches, *, adapters: bool = True) -> list[list[FloatArray]]:
        """Return the logprobs of each sequence of each micro-batch; `adapters=False` disables the adapters."""
        distributed.require_equal_counts(len(micro_batches))
        self.module.eval()
        with nullcontext() if adapters else lora.adapters_off(self.module):
            return [self.reader.compute_logprobs(sequences, self.temperature) for sequences in micro_batches]

    def compute_scores(self, micro_batches: MicroBatches) -> list[list[FloatArray]]:
        """The same of a reward model or a critic: scores after each trained token."""
        distributed.require_equal_counts(len(micro_batches))
        self.module.eval()
        return [self.reader.compute_scores(sequences) for sequences in micro_batches]

    def train(
        self,
        micro_batches: MicroBatches,
        loss_fn: LossFn,
        lr: float,
        *,
        entropy_gradient: bool = False,
        temperature: float | None = None,
    ) -> dict[str, float]:
        """Do one optimizer step over the micro-batches of all ranks.

        Args:
            entropy_gradient: `loss_fn` differentiates the entropy; costs the memory of a softmax.
            temperature: None: the engine's.

        Returns:
            `loss` and the sums of `loss_fn`, over all ranks, and `grad_norm` before clipping.

        Raises:
            TrainingError: loss or gradient norm is not finite. The weights are unchanged and can be saved, but
                gradients may be
                left over: do not train on with this engine.
        """
        distributed.require_equal_counts(len(micro_batches))
        self.module.train()
        sums = {"loss": 0.0}
        watch = Stopwatch(self.device)
        if self._yardstick is not None:
            self._yardstick.lay()
        for number, sequences in enumerate(micro_batches, 1):
            with watch:
                loss, metrics = self._compute_loss(
                    sequences, loss_fn, temperature or self.temperature, entropy_gradient
                )
            self.backend.backward(loss, is_last=number == len(micro_batches))
            beat()
            add_totals(sums, {"loss": float(loss.detach()), **metrics})
        # Before the ranks wait for each other; the last loss was read, so the GPU is through.
        if self._yardstick is not None:
            note_speed(self._yardstick.read() or 0.0, 1)
        else:
            note_speed(watch.seconds(), sum(len(one.token_ids) for sequences in micro_batches for one in sequences))
        totals = distributed.sum_over_ranks(sums if self.meshes.is_counted else {})
        require_finite("loss", totals["loss"])
        return {**totals, "grad_norm": self.backend.step(lr)}

    @torch.no_grad()
    def evaluate(self, micro_batches: MicroBatches, loss_fn: LossFn) -> dict[str, float]:
        """Return `loss` and the sums of `loss_fn` over all ranks, without training.

        In place of the entropy `loss_fn` gets 1.0 for each token that is the likeliest one, else 0.0.
        """
        distributed.require_equal_counts(len(micro_batches))
        self.module.eval()
        sums = {"loss": 0.0}
        for sequences in micro_batches:
            loss, metrics = self._compute_loss(sequences, loss_fn, self.temperature)
            add_totals(sums, {"loss": float(loss), **metrics})
            beat()
        return distributed.sum_over_ranks(sums if self.meshes.is_counted else {})

    def _compute_loss(
        self, sequences: Sequence[TrainSequence], loss_fn: LossFn, temperature: float, entropy_gradient: bool = False
    ) -> tuple[Tensor, dict[str, float]]:
        trains, reader = any(s.num_trained for s in sequences), self.reader
        batch = reader.build_batch(sequences if trains else [DUMMY])
        if self.scores:
            logprobs = reader.forward_scores(batch)
            entropy = torch.zeros_like(logprobs)
        else:
            logprobs, entropy = reader.forward(
                batch,
                temperature,
                entropy_gradient=entropy_gradient,
                measure=compute_token_logprobs if self.module.training else compute_token_hits,
                noise_alpha=self.noise_alpha if self.module.training else 0.0,
            )
        # A worker without work still goes backward, for the sake of its collectives.
        return loss_fn(batch, logprobs, entropy) if trains else (logprobs.sum() * 0.0, {})

    def save(self, folder: Path, *, background: bool = False) -> list[Path]:
        """Write this rank's part of a checkpoint into an existing folder that all ranks share.

        Args:
            background: return once the state is copied to host memory, where the library supports it.

        Returns:
            The files still to come; see `background.wait_for_files`.
        """
        try:
            with annotate_path(folder):
                if distributed.get_rank() == 0:
                    write_json(folder / "layout.json", self.layout)
                save_rng(folder)
                state = self.backend.save(folder, copy=background)
                if state is None:
                    return []
                path, write = rank_file(folder, distributed.get_rank()), partial(torch.save, state)
                if not background:
                    write_whole(path, write, with_sum=True)
                    return []
                reserve_reason(path)
                self._writer.submit(write_or_report, path, write)
                return [path]
        except (OSError, RuntimeError) as error:  # a library may have errors of its own
            raise CheckpointError(
                f"policy rank {distributed.get_rank()} must be able to write its checkpoint ({error})",
                seen=f"{folder}, where {describe_disk(folder)}",
                action=f"{next_action(error)}; the previous checkpoint is untouched",
            ) from error

    def load(self, folder: Path) -> None:
        """Restore the state of `save`, with fsdp2 also of another number of workers; hyperparameters are the config's.

        Raises:
            CheckpointError: another model or backend, or with deepspeed another number of workers.
        """
        free = {"num_workers"} if self.backend.can_reshard else set()
        saved = require_layout(folder, {key: value for key, value in self.layout.items() if key not in free})
        self.backend.load(folder, saved["num_workers"])
        load_rng(folder)  # last, since loading may draw numbers
