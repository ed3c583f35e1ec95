"""FlashInfer's wrapper in plain torch: the arguments of 0.7.2.post1, computed from its page lists.

Names, order and defaults are those of `flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper` in
the wheel flashinfer-python 0.7.2.post1, as are the checks; nothing else of it is here. Where its
kernels round, this does: scores and sums are float32, the weights are rounded to the type.
"""

# ruff: noqa: PLR0917 - the signatures are theirs

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class PagedPlan:
    """Which queries see which pages, and how."""

    qo_indptr: list[int]
    kv_indptr: list[int]
    kv_indices: Tensor
    last_page_len: list[int]
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    sm_scale: float
    window_left: int
    soft_cap: float
    q_dtype: torch.dtype
    kv_dtype: torch.dtype


class BatchPrefillWithPagedKVCacheWrapper:
    """Plan, then run for every layer."""

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None,
        paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None,
        paged_kv_last_page_len_buf: Tensor | None = None,
        custom_mask_buf: Tensor | None = None,
        mask_indptr_buf: Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
        jit_kwargs: dict[str, Any] | None = None,
        variant_owns_mask: bool = False,
    ) -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert float_workspace_buffer.data_ptr() % 16 == 0
        assert kv_layout == "NHD", "the only one that this double knows"
        assert not use_cuda_graph
        assert backend == "auto"
        unused: list[object] = [qo_indptr_buf, paged_kv_indptr_buf, paged_kv_indices_buf]
        unused += [paged_kv_last_page_len_buf, custom_mask_buf, mask_indptr_buf]
        assert all(one is None for one in (*unused, jit_args, jit_kwargs))
        assert not variant_owns_mask
        self.workspace = float_workspace_buffer
        self.num_plans = 0
        self._plan: PagedPlan | None = None

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
        o_data_type: str | torch.dtype | None = None,
        non_blocking: bool = True,
        prefix_len_ptr: Tensor | None = None,
        token_pos_in_items_ptr: Tensor | None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: Tensor | None = None,
        seq_lens: Tensor | None = None,
        seq_lens_q: Tensor | None = None,
        block_tables: Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        uniform_q_len: int | None = None,
    ) -> None:
        unused: list[object] = [
            custom_mask,
            packed_custom_mask,
            rope_scale,
            rope_theta,
            prefix_len_ptr,
        ]
        unused += [token_pos_in_items_ptr, max_item_len_ptr, seq_lens, seq_lens_q, block_tables]
        lengths = (max_token_per_sequence, max_sequence_kv, fixed_split_size, uniform_q_len)
        assert all(one is None for one in (*unused, *lengths))
        assert not any((use_fp16_qk_reduction, token_pos_in_items_len, disable_split_kv))
        assert causal
        assert non_blocking
        assert pos_encoding_mode == "NONE"
        assert head_dim_vo in {None, head_dim_qk}
        assert num_qo_heads % num_kv_heads == 0
        for indptr in (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len):
            assert indptr.dtype == torch.int32, "its kernels index by 32 bits"
        for on_host in (qo_indptr, paged_kv_indptr, paged_kv_last_page_len):
            assert on_host.device.type == "cpu", "a copy from the GPU would be waited for"
        assert isinstance(q_data_type, torch.dtype)
        kv_dtype = q_data_type if kv_data_type is None else kv_data_type
        assert isinstance(kv_dtype, torch.dtype)
        assert o_data_type in {None, q_data_type}
        last_page_lens = paged_kv_last_page_len.tolist()
        assert all(1 <= length <= page_size for length in last_page_lens)
        assert paged_kv_indices.shape == (int(paged_kv_indptr[-1]),)
        self.num_plans += 1
        self._plan = PagedPlan(
            qo_indptr.tolist(),
            paged_kv_indptr.tolist(),
            paged_kv_indices,
            last_page_lens,
            num_qo_heads,
            num_kv_heads,
            head_dim_qk,
            page_size,
            head_dim_qk**-0.5 if sm_scale is None else sm_scale,
            window_left,
            logits_soft_cap or 0.0,
            q_data_type,
            kv_dtype,
        )

    def run(
        self,
        q: Tensor,
        paged_kv_cache: Tensor | tuple[Tensor, Tensor],
        *args: Any,
        q_scale: float | Tensor | None = None,
        k_scale: float | Tensor | None = None,
        v_scale: float | Tensor | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        lse_base: str = "log2",
        lse_layout: str = "NH",
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: Tensor | None = None,
        kv_cache_sf: Any = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        use_fp16_softmax: bool | None = None,
        uses_spcompress: bool | None = None,
    ) -> Tensor:
        unused: list[object] = [
            q_scale,
            k_scale,
            v_scale,
            lse,
            enable_pdl,
            window_left,
            sinks,
            kv_cache_sf,
        ]
        unused += [skip_softmax_threshold_scale_factor, use_fp16_softmax, uses_spcompress]
        assert all(one is None for one in unused)
        assert not args
        assert not return_lse
        assert (lse_base, lse_layout) == ("log2", "NH")
        plan = self._plan
        assert plan is not None, "plan() must come first"
        if q.shape[0] != plan.qo_indptr[-1]:
            raise ValueError(
                f"q.shape[0] ({q.shape[0]}) does not match qo_indptr[-1] ({plan.qo_indptr[-1]})."
            )
        assert isinstance(paged_kv_cache, tuple)
        keys, values = paged_kv_cache
        assert keys.stride() == values.stride(), "other strides are another kernel"
        assert q.shape[1:] == (plan.num_qo_heads, plan.head_dim)
        assert keys.shape[1:] == (plan.page_size, plan.num_kv_heads, plan.head_dim)
        assert (q.dtype, keys.dtype, values.dtype) == (plan.q_dtype, plan.kv_dtype, plan.kv_dtype)
        out = torch.zeros_like(q) if out is None else out
        assert (out.shape, out.dtype) == (q.shape, q.dtype)
        attend_by_pages(q, keys, values, plan, out)
        return out


def attend_by_pages(q: Tensor, keys: Tensor, values: Tensor, plan: PagedPlan, out: Tensor) -> None:
    """Compute what is planned into `out`, from nothing but the page lists."""
    for row in range(len(plan.last_page_len)):
        tokens = slice(plan.qo_indptr[row], plan.qo_indptr[row + 1])
        pages = plan.kv_indices[plan.kv_indptr[row] : plan.kv_indptr[row + 1]]
        length = (len(pages) - 1) * plan.page_size + plan.last_page_len[row]
        k, v = (cache[pages].flatten(0, 1)[:length].float() for cache in (keys, values))
        out[tokens] = _attend(q[tokens].float(), k, v, plan)


def _attend(q: Tensor, k: Tensor, v: Tensor, plan: PagedPlan) -> Tensor:
    """Queries [t, Hq, D] at the end of keys and values [n, Hkv, D], aligned bottom right."""
    group = plan.num_qo_heads // plan.num_kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("thd,nhd->htn", q, k) * plan.sm_scale
    if plan.soft_cap > 0:
        scores = plan.soft_cap * torch.tanh(scores / plan.soft_cap)
    place = torch.arange(len(k) - len(q), len(k))[:, None]
    key = torch.arange(len(k))[None, :]
    visible = key <= place
    if plan.window_left >= 0:
        visible &= key >= place - plan.window_left
    scores = scores.masked_fill(~visible, float("-inf"))
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    sums = weights.sum(-1)  # [heads, t]: in float32, before they are rounded
    rounded = weights.to(plan.q_dtype).float()
    attended = torch.einsum("htn,nhd->thd", rounded, v) / sums.T[:, :, None]
    return attended.to(plan.q_dtype)
