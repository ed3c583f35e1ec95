"""The sampler's kernels against a sort in float64, in the interpreter or on a GPU."""

from dataclasses import dataclass, fields, replace

import pytest
import torch
from torch import Tensor

from paceline_kernels.sampling import NOT_A_TOKEN, kernel, reference_sample_tokens
from paceline_kernels.sampling.reference import gumbel, kept
from paceline_testing.interpreter import patch_once
from paceline_testing.kernel_cases import DTYPES, random_floats

FLOAT16 = torch.float16


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search has many small steps."""
    patch_once(monkeypatch)


@dataclass(frozen=True)
class Rows:
    """What the sampler is told of each row."""

    seeds: Tensor
    positions: Tensor
    temperatures: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def take(self, rows: Tensor) -> "Rows":
        return Rows(*(getattr(self, each.name)[rows] for each in fields(self)))


def some_rows(
    num_rows: int,
    device: str,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Rows:
    def all_of(value: float) -> Tensor:
        return torch.full((num_rows,), value, device=device)

    numbers = torch.arange(num_rows, device=device)
    return Rows(
        numbers - 3,
        numbers * 7,
        all_of(temperature),
        all_of(top_k).to(torch.int32),
        all_of(top_p),
        all_of(min_p),
    )


def mixed_rows(device: str) -> Rows:
    """Greedy, whole, and every way to be cut, alone and together."""
    asked = [
        (0.0, 0, 1.0, 0.0),
        (1.0, 0, 1.0, 0.0),
        (0.7, 1, 1.0, 0.0),
        (1.0, 7, 1.0, 0.0),
        (1.0, 5000, 1.0, 0.0),
        (0.8, 0, 0.9, 0.0),
        (1.5, 0, 0.999, 0.0),
        (1.0, 0, 1e-6, 0.0),
        (1.0, 0, 1.0, 0.1),
        (1.0, 0, 1.0, 1.0),
        (1.0, 30, 0.8, 0.0),
        (1.2, 200, 0.95, 0.02),
        (1.0, 0, 0.9, 0.05),
    ]
    columns = [torch.tensor(column, device=device) for column in zip(*asked, strict=True)]
    rows = some_rows(len(asked), device)
    return replace(
        rows, temperatures=columns[0], top_k=columns[1].int(), top_p=columns[2], min_p=columns[3]
    )


def sample(logits: Tensor, rows: Rows) -> Tensor:
    return kernel.sample_tokens(logits, **vars(rows))


def wanted(logits: Tensor, rows: Rows) -> Tensor:
    return reference_sample_tokens(logits, **vars(rows))


def cut(logits: Tensor, rows: Rows) -> Tensor:  # [rows, vocab] of bool
    """What the kernel keeps."""
    limits = (rows.temperatures, rows.top_k, rows.top_p, rows.min_p)
    stats = kernel.group_stats(logits, rows.temperatures)
    found = kernel.find_cuts(logits, *limits, *stats)
    values, places = found.values[:, None], found.places[:, None]
    columns = torch.arange(logits.shape[1], device=logits.device)
    return (logits > values) | ((logits == values) & (columns <= places))


@pytest.mark.parametrize("vocab", [5, 129, 4500])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_are_those_of_a_sort_in_float64(vocab: int, dtype: torch.dtype, device: str) -> None:
    """Fewer logits than a group, one more than one, and more than a tile of groups."""
    rows = mixed_rows(device)
    logits = 3 * random_floats(len(rows.seeds), vocab, dtype=dtype, device=device)

    seen = sample(logits, rows)

    assert seen.tolist() == wanted(logits, rows).tolist()


@pytest.mark.parametrize(
    "asked",
    [
        {"top_k": 1},
        {"top_k": 3},
        {"top_k": 6},
        {"top_k": 299},
        {"top_p": 0.4},
        {"top_p": 1 - 1e-6},
        {"top_k": 6, "top_p": 0.6},
        {"min_p": 0.3},
        {"min_p": 1.0},
        {"top_k": 6, "min_p": 0.3},
    ],
    ids=str,
)
def test_among_equal_logits_the_first_are_kept(asked: dict[str, float], device: str) -> None:
    """So many as were asked for, not all that are as large as the last."""
    logits = torch.full((1, 300), -2.0, dtype=FLOAT16, device=device)
    logits[0, [4, 130, 131, 200]] = 3.0  # 4 of 37 % together, 296 of the rest
    logits[0, 77] = 3.5
    rows = some_rows(1, device, **asked)  # type: ignore[arg-type] # top_k is whole

    limits = (rows.temperatures, rows.top_k, rows.top_p, rows.min_p)
    assert torch.equal(cut(logits, rows), kept(logits.double(), *limits))


def test_a_negative_zero_ties_with_zero(device: str) -> None:
    """As numbers they are equal, though their bits are not."""
    logits = torch.tensor([[-0.0, 0.0, -0.0, -1.0]], dtype=FLOAT16, device=device)

    seen = cut(logits, some_rows(1, device, top_k=2))

    assert seen.tolist() == [[True, True, False, False]]


def test_one_logit_alone_is_always_taken(device: str) -> None:
    """All others are forbidden: by a grammar, say."""
    rows = mixed_rows(device)
    logits = torch.full((len(rows.seeds), 260), -torch.inf, dtype=FLOAT16, device=device)
    logits[:, 201] = -50.0

    assert sample(logits, rows).tolist() == [201] * len(logits)


@pytest.mark.parametrize("asked", [{"temperature": 0.0}, {}, {"top_p": 0.9}], ids=str)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_a_row_that_is_no_distribution_gives_no_token(
    asked: dict[str, float], broken: float, device: str
) -> None:
    """And its neighbours get what they get without it."""
    rows = some_rows(3, device, **asked)  # type: ignore[arg-type] # top_k is not among them
    logits = random_floats(3, 300, dtype=FLOAT16, device=device)
    expected = wanted(logits, rows).tolist()
    logits[1, 250:] = broken
    if broken == -torch.inf:
        logits[1] = broken

    assert sample(logits, rows).tolist() == [expected[0], NOT_A_TOKEN, expected[2]]
    assert wanted(logits, rows).tolist() == [expected[0], NOT_A_TOKEN, expected[2]]


def test_greedy_takes_the_first_of_the_largest(device: str) -> None:
    """In whatever group; a temperature that is nearly nothing is greedy, too."""
    logits = torch.zeros(3, 600, dtype=FLOAT16, device=device)
    logits[1, [131, 140, 599]] = 2.0
    rows = replace(
        some_rows(3, device), temperatures=torch.tensor([0.0, 0.0, 1e-30], device=device)
    )

    assert sample(logits, rows).tolist() == [0, 131, 0]


def test_a_row_does_not_see_its_batch(device: str) -> None:
    """Its own logits, seed and position decide, whatever is beside it and wherever it lies."""
    rows = mixed_rows(device)
    logits = random_floats(len(rows.seeds), 500, dtype=FLOAT16, device=device)
    order = torch.tensor([12, 3, 5, 5, 0, 10], device=device)

    seen = sample(logits[order].contiguous(), rows.take(order))

    assert torch.equal(seen, sample(logits, rows)[order])


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    """Pearson's, over the tokens that can be drawn; none other may have been."""
    can_be = probabilities > 0
    assert not counts[~can_be].any()
    expected = probabilities[can_be] * counts.sum()
    return float(((counts[can_be] - expected) ** 2 / expected).sum())


def small_logits(device: str) -> Tensor:
    """Six tokens with something to them, in two groups."""
    logits = torch.full((1, 140), -30.0, dtype=FLOAT16, device=device)
    logits[0, [3, 4, 90, 128, 129, 139]] = torch.tensor(
        [0.0, 1.0, 0.5, 1.5, -0.5, 0.7], dtype=FLOAT16, device=device
    )
    return logits


# 5 degrees of freedom at most: a true sampler exceeds 25.7 once in ten thousand.
LIMIT = 25.7


@pytest.mark.parametrize(
    ("num_rows", "asked"), [(250, {}), (60, {"top_p": 0.8, "temperature": 0.7})], ids=str
)
def test_draws_follow_the_distribution(num_rows: int, asked: dict[str, float], device: str) -> None:
    """Each token as often as its probability says, and none that was cut off."""
    rows = some_rows(num_rows, device, **asked)  # type: ignore[arg-type] # no top_k among them
    logits = small_logits(device).expand(num_rows, -1).contiguous()
    limits = (rows.temperatures, rows.top_k, rows.top_p, rows.min_p)
    scaled = logits[:1].double() / rows.temperatures[0]
    likely = scaled.masked_fill(~kept(logits.double(), *limits)[:1], -torch.inf).softmax(-1)[0]
    likely[likely < 1e-9] = 0

    counts = sample(logits, rows).bincount(minlength=140)

    assert chi_square(counts, likely) < LIMIT


def test_the_reference_draws_by_the_distribution(device: str) -> None:
    """The same with very many draws: neighbouring seeds and positions have nothing in common."""
    num_rows = 20_000
    rows = some_rows(num_rows, device)
    logits = small_logits(device)
    likely = logits.double().softmax(-1)[0]
    likely[likely < 1e-9] = 0

    for numbers in (rows.seeds, torch.zeros_like(rows.seeds)):
        same = replace(rows, seeds=numbers, positions=rows.positions)
        counts = wanted(logits.expand(num_rows, -1), same).bincount(minlength=140)
        assert chi_square(counts, likely) < LIMIT


def test_noise_is_gumbels(device: str) -> None:
    """Mean and variance of the distribution, within five standard errors."""
    keys = torch.arange(2000, device=device) * 0x9E3779B9
    noise = gumbel(keys, torch.arange(100, device=device))

    assert abs(float(noise.mean()) - 0.5772157) < 5 * 1.2825 / 200_000**0.5
    assert abs(float(noise.var()) - torch.pi**2 / 6) < 0.06
    assert noise.isfinite().all()


@pytest.mark.parametrize(
    ("name", "broken", "message"),
    [
        ("top_k", torch.zeros(2), "top_k must be contiguous [2] int32"),
        ("seeds", torch.zeros(2, dtype=torch.int32), "seeds must be contiguous [2] int64"),
        ("min_p", torch.zeros(3), "min_p must be contiguous [2] float32"),
    ],
)
def test_what_does_not_fit_is_named(name: str, broken: Tensor, message: str, device: str) -> None:
    """A kernel that is handed a wrong tensor would read wild memory."""
    rows = replace(some_rows(2, device), **{name: broken.to(device)})

    with pytest.raises(ValueError, match=message.replace("[", r"\[").replace("]", r"\]")):
        sample(torch.zeros(2, 9, device=device), rows)


def test_a_vocabulary_beyond_a_tile_of_groups_is_refused(device: str) -> None:
    """No model has it; its registers would spill."""
    with pytest.raises(ValueError, match="vocab must be 1 to 524288, got 524289"):
        sample(torch.zeros(1, 524_289, device=device), some_rows(1, device))
