"""The chunked head has the values and gradients of autograd over all logits."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from slurm_rl.algorithms.logprobs import Temperature, compute_token_hits, compute_token_logprobs
from slurm_rl.models.head import chunked_head

NUM, WIDTH, VOCABULARY, CAP = 13, 8, 29, 2.0
TARGETS = torch.randint(VOCABULARY, (NUM,), generator=torch.Generator().manual_seed(1))


class Model(torch.nn.Module):
    def __init__(self, *, bias: bool, cap: float | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=bias)
        text = SimpleNamespace(final_logit_softcapping=cap)
        self.config = SimpleNamespace(get_text_config=lambda: text)

    def get_output_embeddings(self) -> Any:
        return self.head


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def measure(model: Model, hidden: Tensor, heat: Temperature, chunk: int, **options: Any) -> list[Tensor]:
    """Return logprobs and entropy of the chunked head, and the gradients of hidden states and parameters."""
    hidden = hidden.clone().requires_grad_()
    options = {"entropy_gradient": True, **options}
    with chunked_head(model, TARGETS, heat, chunk, **options):
        found = model.head(hidden[None])[0]
    found.backward(draw(NUM, 2) * torch.tensor([1.0, float(options["entropy_gradient"])]))
    assert hidden.grad is not None
    gradients = [hidden.grad, *(parameter.grad for parameter in model.parameters())]
    return [found.detach(), *(one for one in gradients if one is not None)]


@pytest.mark.parametrize("chunk", [1, 5, 100])
@pytest.mark.parametrize("heat", [0.7, draw(NUM).abs() + 0.5])
@pytest.mark.parametrize(("bias", "cap"), [(False, None), (True, CAP)])
def test_chunked_head_equals_autograd(chunk: int, heat: Temperature, bias: bool, cap: float | None) -> None:
    found = measure(Model(bias=bias, cap=cap), draw(NUM, WIDTH), heat, chunk)

    model, hidden = Model(bias=bias), draw(NUM, WIDTH).requires_grad_()
    logits = model.head(hidden)
    logits = logits if cap is None else torch.tanh(logits / cap) * cap
    pair = torch.stack(compute_token_logprobs(logits, TARGETS, heat, entropy_gradient=True), -1)
    pair.backward(draw(NUM, 2))
    assert len(found) == (4 if bias else 3)
    for one, wanted in zip(found, [pair, hidden.grad, *(p.grad for p in model.parameters())], strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-5, atol=1e-6)


def test_logit_of_minus_infinity_has_no_gradient() -> None:
    model = Model(bias=True)
    with torch.no_grad():
        unused = next(token for token in range(VOCABULARY) if token not in TARGETS)
        model.head.bias[unused] = -torch.inf
    for one in measure(model, draw(NUM, WIDTH), 1.0, 4):
        assert one.isfinite().all()


def test_rank_without_rows_gets_gradient_of_zeros() -> None:
    model = Model(bias=True)
    with chunked_head(model, TARGETS[:0], 0.7, 4, entropy_gradient=False):
        model.head(draw(1, 0, WIDTH)).sum().backward()
    assert all(one.grad is not None and not one.grad.any() for one in model.parameters())


def test_frozen_head_gets_no_gradient_and_hits_do_not_add_to_it() -> None:
    model = Model(bias=False)
    model.head.weight.requires_grad_(False)
    hidden = draw(NUM, WIDTH)
    hits = measure(model, hidden, 1.0, 4, entropy_gradient=False, measure=compute_token_hits)
    logprobs = measure(model, hidden, 1.0, 4, entropy_gradient=False)
    assert len(hits) == len(logprobs) == 2
    assert torch.equal(hits[1], logprobs[1]) and set(hits[0][:, 1].tolist()) <= {0.0, 1.0}


def test_gradient_in_bfloat16_does_not_depend_on_number_of_chunks() -> None:
    """A sum of chunks in bfloat16 would lose digits with each chunk."""
    whole, chunks = (
        measure(Model(bias=False).bfloat16(), draw(NUM, WIDTH).bfloat16(), 0.7, chunk)[2] for chunk in (NUM, 1)
    )
    torch.testing.assert_close(chunks, whole, rtol=2**-7, atol=1e-6)
    assert (chunks == whole).float().mean() > 0.95
