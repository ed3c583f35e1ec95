"""A tiny model on a CPU as a GPU runs it: the kernels' references, with graphs or without."""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch

from paceline_engine.attention.kernel_attention import KernelAttention
from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.core.graph_sizes import decode_sizes
from paceline_engine.kv_cache.tensors import allocate
from paceline_engine.loading.weights import as_it_is, build_decoder
from paceline_engine.lora.slots import LoraAdapters
from paceline_engine.model.layers import gated_linear, linear, quantized_linear
from paceline_engine.model.layers.rotary import rotations
from paceline_engine.model.ops import KernelOps
from paceline_engine.model.row_stages import everything_fused
from paceline_engine.runner.gpu_tables import DeviceTables
from paceline_engine.runner.input_batch import InputBatch
from paceline_engine.runner.model_runner import ModelRunner
from paceline_engine.sampling.device_sampler import DeviceSampler
from paceline_engine.settings import Quantization
from paceline_testing.sampling_reference import AskingSampler
from paceline_testing.tape_capture import TapeCapture
from paceline_wire.limits import Capacity

CPU = torch.device("cpu")
_SALT = b"salt"


def kernel_runner(
    folder: Path,
    capacity: Capacity,
    *,
    graphs: bool,
    asks: bool = False,
    tokens_stay: bool = True,
    quantization: Quantization = "none",
    quantizes_head: bool = False,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    adapters: LoraAdapters | None = None,
    device: torch.device = CPU,
    fuses: bool = False,
) -> ModelRunner:
    """Put it together; with graphs, every size up to the capacity is captured.

    `asks`: the sampler draws by what each request says, and not by what lies at the rows.
    `tokens_stay`: see `InputBatch`; not those of a draft model. `kv_dtype`: where not `dtype`.
    `fuses`: graphs of decodes take products with norm, gate and residual inside.
    """
    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    # Neither compiled products nor weights packed by oneDNN are what a tape can see.
    no_native = mock.patch.object(linear, "native_ops", return_value=None)
    no_fused = mock.patch.object(gated_linear, "native_ops", return_value=None)
    no_packed = mock.patch.object(torch.backends.mkldnn, "is_available", return_value=False)
    no_bytes = mock.patch.object(quantized_linear, "serves", return_value=False)
    kernel = mock.patch.object(quantized_linear, "TiledLinear", quantized_linear.KernelLinear)
    laid_out = linear.PlainLinear if fuses else linear.TransposedLinear
    plain = mock.patch.object(linear, "TransposedLinear", laid_out)
    no_onednn = mock.patch.object(linear, "has_onednn", return_value=False)
    with no_onednn, torch.inference_mode(), no_native, no_fused, no_packed, no_bytes, kernel, plain:
        decoder = build_decoder(
            config,
            checkpoint.tensors,
            KernelOps(),
            device=device,
            dtype=dtype,
            progress=lambda _fraction: None,
            quantization=quantization,
            quantizes_head=quantizes_head,
            wrap=as_it_is if adapters is None else adapters.wrap,
        )
        if adapters is not None:
            adapters.place(torch.empty(0, dtype=dtype, device=device))
    if fuses:
        decoder = replace(decoder, few_rows=everything_fused(decoder))
    num_rows, size = capacity.max_batch_size, capacity.block_size
    kv = allocate(config, capacity.num_blocks, size, device=device, dtype=kv_dtype or dtype)
    num_columns = -(-capacity.max_model_len // size)
    eos = checkpoint.eos_token_ids
    runner = ModelRunner(
        decoder,
        KernelAttention(config, kv, rotations(config, capacity.max_model_len).to(device)),
        AskingSampler(eos, _SALT) if asks else DeviceSampler(eos),
        InputBatch(
            num_rows, num_columns, size, config.vocab_size, tokens_stay=tokens_stay, salt=_SALT
        ),
        DeviceTables(num_rows, num_columns, size, capacity.max_token_budget, device),
        adapters=adapters,
    )
    if graphs:
        runner.capture_decodes(TapeCapture(), decode_sizes(num_rows), lambda _fraction: None)
    return runner
