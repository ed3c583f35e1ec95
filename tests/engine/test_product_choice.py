"""Which of two products serves a shape: the faster one, if it is faster by enough."""

import time
from typing import cast

import pytest
import torch
from torch import Tensor

from paceline_engine.model.layers.linear import NativeLinear, linear
from paceline_engine.model.layers.packed_linear import has_onednn
from paceline_engine.model.layers.product_choice import is_for_onednn, prefers_onednn
from paceline_kernels.cpu import Matmul, native_ops

LARGE = (1024, 512)

needs_both = pytest.mark.skipif(
    native_ops() is None or not has_onednn(torch.bfloat16),
    reason="needs a C compiler, and oneDNN's bfloat16",
)


@pytest.mark.parametrize(
    ("ours_s", "onednn_s", "is_chosen"),
    [
        ([1.0, 1.0], [1.0, 1.0], False),
        ([1.2, 1.2], [1.0, 1.0], False),
        ([1.3, 1.3], [1.0, 1.0], True),
        ([4.0, 1.0], [1.0, 2.0], True),
        ([2.0, 0.5], [1.0, 1.0], False),
        ([1000.0, 1.0], [500.0, 1.0], True),
    ],
)
def test_onednn_must_be_faster_by_a_quarter_over_all_rows(
    ours_s: list[float], onednn_s: list[float], is_chosen: bool
) -> None:
    """Rows count alike, however long they take: a decode is as important as a prompt."""
    assert prefers_onednn(ours_s, onednn_s) is is_chosen


class _SlowMatmul:
    """Multiplies nothing, and takes long for it."""

    def pack(self, weight: Tensor) -> Tensor:
        return weight

    def __call__(self, _x: Tensor, _weight: Tensor) -> None:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass


@needs_both
def test_a_slow_product_is_left_for_onednns() -> None:
    assert is_for_onednn(cast("Matmul", _SlowMatmul()), *LARGE)


@needs_both
def test_a_small_weight_is_not_measured() -> None:
    """A call takes as long as the product: layers in one call are what counts."""
    assert not is_for_onednn(cast("Matmul", _SlowMatmul()), 64, 64)


@needs_both
def test_the_choice_is_what_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever it is gives the same product."""
    weight, x = torch.randn(LARGE).bfloat16(), torch.randn(5, LARGE[1]).bfloat16()
    wanted = x.double() @ weight.double().t()
    ours = native_ops()
    assert ours is not None
    compiled = NativeLinear(ours.matmul, weight)
    chosen = linear(weight)

    monkeypatch.setattr(
        "paceline_engine.model.layers.linear.is_for_onednn", lambda *_arguments: True
    )
    other = linear(weight)

    assert not isinstance(other, NativeLinear)
    for product in (compiled, chosen, other):
        assert (product(x).double() - wanted).abs().max() <= 2.0**-8 * wanted.abs().max()
