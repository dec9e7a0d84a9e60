"""Random numbers by counter: equal bits wherever they are made, and good enough to start from."""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmd.model.boundary import make_basis
from swarmd.model.counter_random import derive_key, gaussian, gaussian_rows

MASK = (1 << 64) - 1


def value_by_hand(key: int, position: int, std: float, n: int) -> float:
    """The definition in Python's own integers, apart from torch's."""
    total = 0
    for word in range(n // 4):
        z = (key + (position * (n // 4) + word + 1) * 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
        total += sum(z >> shift & 0xFFFF for shift in (0, 16, 32, 48))
    scale = torch.tensor(std / (n * (2**32 - 1) / 12) ** 0.5, dtype=torch.float32)
    return float(torch.tensor(total - n * 65_535 // 2, dtype=torch.float32) * scale)


@settings(max_examples=100, deadline=None)
@given(
    key=st.integers(0, MASK),
    row=st.integers(0, 300_000),
    std=st.sampled_from([0.02, 1.0]),
    n=st.sampled_from([4, 12]),
)
def test_every_value_is_the_definitions_to_the_bit(key: int, row: int, std: float, n: int) -> None:
    values = gaussian_rows(key, torch.tensor([row]), 5, std, n=n)[0]
    assert values.tolist() == [value_by_hand(key, row * 5 + i, std, n) for i in range(5)]


def test_the_mixer_is_splitmix64() -> None:
    # The first word of the stream with seed 1234567 is 6457827717110365317 (a public test vector).
    word = 6457827717110365317
    total = sum(word >> shift & 0xFFFF for shift in (0, 16, 32, 48))
    assert value_by_hand(1234567, 0, 1.0, 4) == pytest.approx(
        (total - 131_070) / 37_837.2, rel=1e-6
    )


def test_the_bits_never_change() -> None:
    """A change here gives every run other weights: old runs could not be joined any more."""
    table = gaussian(derive_key(7, "T_fixed"), (300, 24), 0.02)
    digest = hashlib.blake2b(table.numpy().tobytes(), digest_size=8).hexdigest()
    assert digest == "efe7664baa08ff31"


def test_chunks_and_rows_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gaussian(3, (60, 7), 1.0)
    monkeypatch.setattr("swarmd.model.counter_random._CHUNK_ELEMENTS_CPU", 16)
    assert torch.equal(gaussian(3, (60, 7), 1.0), whole)
    rows = torch.tensor([59, 0, 33, 33])
    assert torch.equal(gaussian_rows(3, rows, 7, 1.0), whole[rows])


@pytest.mark.parametrize("n", [4, 12])
def test_values_have_the_moments_asked_for(n: int) -> None:
    values = gaussian(derive_key(1, "moments"), (1000, 1000), 0.5, n=n).double()
    assert abs(float(values.mean())) < 2e-3
    assert float(values.std()) == pytest.approx(0.5, rel=2e-3)
    kurtosis = float((values / 0.5).pow(4).mean())
    assert kurtosis == pytest.approx(3 - 1.2 / n, abs=0.02)  # a sum of n uniform values
    neighbours = float((values[:, 1:] * values[:, :-1]).mean() / 0.25)
    assert abs(neighbours) < 4e-3


def test_keys_keep_purposes_apart() -> None:
    keys = {
        derive_key(seed, *labels)
        for seed in (0, 1, -1, 2**63)
        for labels in ((), ("",), ("a", "b"), ("ab",), ("ab", ""), ("U",), ("T_fixed",))
    }
    assert len(keys) == 4 * 7


@pytest.mark.parametrize(("width", "rank"), [(24, 1), (64, 6), (128, 32), (37, 36)])
def test_the_basis_is_orthonormal_to_float32(width: int, rank: int) -> None:
    u_DK = make_basis(11, width, rank)
    assert u_DK.shape == (width, rank)
    assert u_DK.dtype == torch.float32
    gram = u_DK.double().T @ u_DK.double()
    assert float((gram - torch.eye(rank)).abs().max()) < 3e-7


def test_the_basis_has_signs_that_do_not_depend_on_the_factorisation() -> None:
    u_DK = make_basis(11, 40, 8).double()
    gauss = gaussian(derive_key(11, "U"), (40, 8), 1.0, n=12).double()
    assert (torch.diagonal(u_DK.T @ gauss) > 0).all()
    # Gram and Schmidt by hand, another way to the same basis.
    columns: list[torch.Tensor] = []
    for column in gauss.T:
        for done in columns:
            column = column - (column @ done) * done
        columns.append(column / column.norm())
    assert torch.allclose(torch.stack(columns, 1), u_DK, atol=1e-6)


def test_another_seed_is_another_basis() -> None:
    assert not torch.equal(make_basis(1, 24, 6), make_basis(2, 24, 6))
