"""Variants that Triton compiles are counted and told of."""

from types import SimpleNamespace
from typing import Any

from triton import knobs

from paceline_kernels.compiled import Compilations, tell_of_variants


def compile_a_variant(kernel: str) -> None:
    """Do what Triton does once it has compiled one."""
    hook: Any = knobs.runtime.jit_post_compile_hook
    if hook is not None:
        hook(fn=SimpleNamespace(name=kernel), key="", repr="", already_compiled=False)


def test_each_variant_is_told_until_that_is_ended() -> None:
    told: list[str] = []

    ended = tell_of_variants(told.append)
    compile_a_variant("_rms_norm_kernel")
    ended()
    compile_a_variant("_draw_kernel")

    assert told == ["_rms_norm_kernel"]


def test_variants_are_counted_while_others_are_told_of_them() -> None:
    """Who counts does not keep from others what they asked for before."""
    told: list[str] = []
    compilations = Compilations()

    ended = tell_of_variants(told.append)
    with compilations.counted():
        compile_a_variant("_draw_kernel")
        compile_a_variant("_draw_kernel")
        compile_a_variant("_cuts_kernel")
    compile_a_variant("_groups_kernel")
    ended()

    assert compilations.variants == {"_draw_kernel": 2, "_cuts_kernel": 1}
    assert (compilations.num_variants, compilations.num_kernels) == (3, 2)
    assert told == ["_draw_kernel", "_draw_kernel", "_cuts_kernel", "_groups_kernel"]
