"""Extension of vLLM's worker: loads weights and computes their checksums.

vLLM mixes the class into its worker (`worker_extension_cls`), so `self` is the worker. Its methods are called through
`collective_rpc` on every tensor-parallel rank.
"""

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from slurm_rl.node.heartbeat import enable_stack_dump
from slurm_rl.node.processes import LIFE
from slurm_rl.rollout.vllm import base_weights, gloo_transfer, random_weights
from slurm_rl.rollout.vllm.adapters import swap_adapter
from slurm_rl.rollout.vllm.reload_fixes import copies_loaded, leave_out_missing_head, prepare_reload
from slurm_rl.rollout.weights.checksum import WeightChecksum
from slurm_rl.rollout.weights.weight_record import WeightRecord

# Every worker imports this module before vLLM looks up its loader and its transfer engine.
gloo_transfer.register()
base_weights.register()
random_weights.register()
# The worker dumps its stacks when the engine hangs; the actor only waits for it.
_stack_dump = enable_stack_dump(f"{os.environ.get(LIFE, 'engine').partition(' ')[0]}.worker-{os.getpid()}")


class RolloutWorkerExtension:
    """Mixed into vLLM's worker."""

    reload_weights: Callable[..., None]
    """Method of vLLM's worker; the model runner's does not set the config that some kernels need."""
    get_model: Callable[[], torch.nn.Module]
    weight_transfer_engine: Any
    device: torch.device
    model_runner: Any

    _arriving: WeightChecksum

    def watch_transfer(self) -> None:
        """Compute the checksum of the tensors that the next transfer loads, with any of vLLM's transfer engines."""
        self._arriving = arriving = WeightChecksum()
        model = self.weight_transfer_engine.model
        prepare_reload(model, self.device)

        def load_watched(weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
            with copies_loaded(model):
                return type(model).load_weights(model, leave_out_missing_head(model, arriving.passing(weights)))

        model.load_weights = load_watched

    def transfer_checksum(self) -> str:
        """Return the checksum of the last transfer."""
        return self._arriving.hexdigest()

    def load_adapters(self, records: Sequence[WeightRecord] | bytes) -> str:
        """Replace the adapters in the engine's memory, and return their checksum."""
        checksum = WeightChecksum()
        # vLLM keeps them in host memory and copies them into its buffers.
        swap_adapter(self.model_runner.lora_manager, dict(checksum.passing(_unpack(records, torch.device("cpu")))))
        return checksum.hexdigest()

    def load_named_weights(self, records: Sequence[WeightRecord] | bytes) -> str:
        """Load all weights of a model, and return their checksum."""
        checksum = WeightChecksum()
        self._reload(checksum.passing(_unpack(records, self.device)))
        return checksum.hexdigest()

    def _reload(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        model = self.get_model()
        prepare_reload(model, self.device)
        with copies_loaded(model):
            self.reload_weights(weights_iterator=leave_out_missing_head(model, weights))


def _unpack(records: Sequence[WeightRecord] | bytes, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors one by one on the device, where the checksum is computed.

    Args:
        records: pickled for AsyncLLM, which cannot serialize them itself.
    """
    unpacked: Sequence[WeightRecord] = pickle.loads(records) if isinstance(records, bytes) else records
    return ((record.name, record.to_tensor().to(device)) for record in unpacked)
