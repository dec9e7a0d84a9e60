"""The hand-written backwards against autograd's, and the head's loss against the plain one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from swarmd.model import loss as loss_module
from swarmd.model.block import RotaryTables, rotate
from swarmd.model.fused import gated, normalised_sum, plain_normalised_sum
from swarmd.model.loss import head_loss
from swarmd.run_config import ModelConfig


def leaf(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(shape, generator=generator, dtype=torch.float64)
    return value.to(dtype).requires_grad_()


def test_the_gated_units_backward_is_right() -> None:
    gate, up = leaf(2, 3, 5, seed=1), leaf(2, 3, 5, seed=2)
    assert torch.equal(gated(gate, up), F.silu(gate) * up)
    assert torch.autograd.gradcheck(gated, (gate, up))


@pytest.mark.parametrize("base_wants_grad", [True, False])
def test_the_normalised_sums_backward_is_right(base_wants_grad: bool) -> None:
    base, c, gain = leaf(2, 3, 8, seed=1), leaf(2, 3, 2, seed=2), leaf(8, seed=3)
    base = base.detach().requires_grad_(base_wants_grad)
    ut = leaf(2, 8, seed=4).detach()
    inputs = [x for x in (base, c, gain) if x.requires_grad]
    out = normalised_sum(base, c, ut, gain, 1e-5)
    plain = plain_normalised_sum(base, c, ut, gain, 1e-5)
    assert torch.allclose(out, plain, rtol=1e-13, atol=1e-13)
    weight = leaf(2, 3, 8, seed=5).detach()
    for ours, theirs in zip(
        torch.autograd.grad((out * weight).sum(), inputs),
        torch.autograd.grad((plain * weight).sum(), inputs),
        strict=True,
    ):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-13)
    assert torch.autograd.gradcheck(
        lambda *given: normalised_sum(*given, 1e-5), (base, c, ut, gain)
    )


def test_the_norm_alone_is_the_librarys() -> None:
    x, gain = leaf(2, 3, 8, seed=1), leaf(8, seed=2)
    assert torch.allclose(
        normalised_sum(x, None, None, gain, 1e-3), F.rms_norm(x, (8,), gain, 1e-3), atol=1e-14
    )
    assert torch.autograd.gradcheck(
        lambda x, gain: normalised_sum(x, None, None, gain, 1e-3), (x, gain)
    )


def test_a_row_of_zeros_has_a_finite_norm_and_gradient() -> None:
    x = torch.zeros(1, 1, 8, requires_grad=True)
    gain = torch.ones(8, requires_grad=True)
    normalised_sum(x, None, None, gain, 1e-5).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("chunk_logits", [1, 97 * 4, 1 << 20])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_the_heads_loss_is_the_plain_cross_entropy(
    dtype: torch.dtype, tolerance: float, chunk_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "CHUNK_LOGITS_CPU", chunk_logits)
    hidden, weight = leaf(30, 8, seed=1, dtype=dtype), leaf(97, 8, seed=2, dtype=dtype)
    targets = torch.randint(0, 97, (30,), generator=torch.Generator().manual_seed(3))
    ours = head_loss(hidden, weight, targets)
    plain = F.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    assert float(ours.detach()) == pytest.approx(float(plain.detach()), rel=tolerance)
    for mine, theirs in zip(
        torch.autograd.grad(ours / 7, (hidden, weight)),
        torch.autograd.grad(plain / 7, (hidden, weight)),
        strict=True,
    ):
        assert float((mine - theirs).norm() / theirs.norm()) <= tolerance


def test_the_heads_loss_keeps_no_gradients_where_none_is_wanted() -> None:
    hidden, weight = leaf(5, 8, seed=1), leaf(97, 8, seed=2)
    targets = torch.arange(5)
    with torch.no_grad():
        assert not head_loss(hidden, weight, targets).requires_grad
    (only,) = torch.autograd.grad(head_loss(hidden, weight.detach(), targets), hidden)
    plain = F.cross_entropy(hidden @ weight.detach().T, targets, reduction="sum")
    assert torch.allclose(only, torch.autograd.grad(plain, hidden)[0], atol=1e-13)


def test_large_logits_do_not_overflow() -> None:
    hidden = torch.tensor([[1e4]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0], [0.0]], requires_grad=True)
    loss = head_loss(hidden, weight, torch.tensor([1]))
    assert float(loss.detach()) == pytest.approx(2e4)
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, (hidden, weight)))


def test_scores_of_rotated_heads_depend_on_distance_alone() -> None:
    model = ModelConfig(vocab_size=2, width=8, layers=1, heads=1, kv_heads=1, ff_width=2)
    tables = RotaryTables(model, device=torch.device("cpu"), dtype=torch.float64)
    rope = tables(40)
    q, k = leaf(8, seed=1).detach(), leaf(8, seed=2).detach()
    turned_q = rotate(q.expand(1, 40, 1, 8), rope)[0, :, 0]
    turned_k = rotate(k.expand(1, 40, 1, 8), rope)[0, :, 0]
    scores = turned_q @ turned_k.T
    assert torch.allclose(scores[10, 3], scores[39, 32], atol=1e-12)
    assert not torch.allclose(scores[10, 3], scores[10, 4], atol=1e-3)
    assert float(scores[0, 0]) == pytest.approx(float(q @ k))
    assert tables(40) is rope
