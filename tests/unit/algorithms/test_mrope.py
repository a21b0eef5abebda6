import torch
from transformers import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

from slurm_rl.algorithms.mrope import build_rope_positions


def test_image_positions_equal_transformers() -> None:
    """Test images at the start, adjacent images, and tall and wide ones; patches merge 2x2."""
    grids = [(1, 4), (3, 1), (2, 2)]
    kinds = [1] * 4 + [0] + [1] * 3 + [0, 0, 0] + [1] * 4 + [0]
    model = Qwen2_5_VLModel.__new__(Qwen2_5_VLModel)
    torch.nn.Module.__init__(model)
    model.config = Qwen2_5_VLConfig()
    expected, _ = model.get_rope_index(
        torch.zeros(1, len(kinds), dtype=torch.long),
        torch.tensor([kinds]),
        image_grid_thw=torch.tensor([[1, 2 * h, 2 * w] for h, w in grids]),
    )
    assert build_rope_positions(len(kinds), [0, 5, 11], grids).tolist() == expected[:, 0].tolist()
