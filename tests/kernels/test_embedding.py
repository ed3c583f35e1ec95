import pytest
import torch

from paceline_kernels.embedding import kernel, reference_embed_rms_norm
from paceline_testing.kernel_cases import DTYPES, assert_near, random_floats

EPS = 1e-5


@pytest.mark.parametrize("hidden", [1, 64, 577])
@pytest.mark.parametrize("scale", [1.0, 25.25])
@pytest.mark.parametrize("dtype", DTYPES)
def test_embed_rms_norm_agrees_with_float64(
    hidden: int, scale: float, dtype: torch.dtype, device: str
) -> None:
    """The first and the last of the vocabulary, and the same token twice."""
    embedding = random_floats(50, hidden, dtype=dtype, device=device)
    weight = random_floats(hidden, dtype=dtype, device=device, seed=1)
    token_ids = torch.tensor([49, 0, 7, 7], device=device)

    normed, residual = kernel.embed_rms_norm(token_ids, embedding, weight, EPS, scale)

    wanted_normed, wanted_residual = reference_embed_rms_norm(
        token_ids, embedding.double(), weight.double(), EPS, scale
    )
    assert_near(normed, wanted_normed)
    assert_near(residual, wanted_residual)


def test_a_weight_in_float32_is_not_rounded_before_the_product(device: str) -> None:
    """Gemma's norms: one rounding, of the product."""
    embedding = random_floats(9, 64, dtype=torch.float16, device=device)
    weight = 1 + 0.01 * random_floats(64, dtype=torch.float32, device=device, seed=1)

    normed, _ = kernel.embed_rms_norm(torch.tensor([3], device=device), embedding, weight, EPS)

    assert normed.dtype == torch.float16
    wanted = embedding[3:4].double() / (embedding[3].double().square().mean() + EPS).sqrt() * weight
    assert ((normed - wanted).abs() <= 0.5 * 2.0**-10 * wanted.abs() + 1e-6).all()


def test_the_embedding_is_left_as_it_was(device: str) -> None:
    """Its row is scaled where it is copied to, in both."""
    embedding = random_floats(9, 64, dtype=torch.float32, device=device)
    before, weight = embedding.clone(), torch.ones(64, device=device)
    token_ids = torch.tensor([3], device=device)

    for op in (kernel.embed_rms_norm, reference_embed_rms_norm):
        op(token_ids, embedding, weight, EPS, 2.0)
        assert torch.equal(embedding, before)


def test_token_ids_of_another_type_are_refused() -> None:
    with pytest.raises(ValueError, match=r"token_ids must be contiguous \[tokens\] int64"):
        kernel.embed_rms_norm(
            torch.zeros(2, dtype=torch.int32), torch.zeros(3, 4), torch.zeros(4), EPS
        )
