"""The rows of the table of blocks. `make gpu PART=tune` measures others and writes them like these.

Rows for any GPU are from arithmetic, rows for a generation from the compiler: the largest tiles
without a spill. Within a GPU the first row whose shape a call has serves.
"""

from paceline_kernels.tuned.table import Row

ROWS: tuple[Row, ...] = (
    Row(
        kernel="prefill_attention",
        shape={"bits": 32},
        blocks={"rows": 16, "tokens": 16, "num_warps": 8, "num_stages": 1},
        because=(
            "compiled: without tensor cores and right, not fast; larger tiles spill at heads of 256"
        ),
    ),
    Row(
        kernel="prefill_attention",
        shape={"columns": 256, "kv": "fp8"},
        blocks={"rows": 64, "tokens": 16, "num_warps": 8, "num_stages": 2},
        because="compiled: what becomes of FP8 stays in registers too, 32 tokens spill",
    ),
    Row(
        kernel="prefill_attention",
        shape={"columns": 256},
        blocks={"rows": 64, "tokens": 32, "num_warps": 8, "num_stages": 2},
        because="compiled: sums stay in registers",
    ),
    Row(
        kernel="prefill_attention",
        shape={},
        blocks={"rows": 128, "tokens": 64, "num_warps": 8, "num_stages": 2},
        because="arithmetic: the tile that wgmma and tcgen05 take whole",
    ),
    Row(
        kernel="decode_attention",
        shape={"bits": 32},
        blocks={
            "tokens": 16,
            "num_warps": 4,
            "num_stages": 1,
            "part_tokens": 128,
            "programs": 1024,
        },
        because="compiled: as prefill",
    ),
    Row(
        kernel="decode_attention",
        shape={"columns": 256},
        blocks={
            "tokens": 32,
            "num_warps": 4,
            "num_stages": 3,
            "part_tokens": 128,
            "programs": 1024,
        },
        because="arithmetic: 16 KiB of K in flight",
    ),
    Row(
        kernel="decode_attention",
        shape={},
        blocks={
            "tokens": 64,
            "num_warps": 4,
            "num_stages": 3,
            "part_tokens": 128,
            "programs": 1024,
        },
        because="arithmetic: 16 KiB of K in flight",
    ),
    Row(
        kernel="quantized_linear",
        shape={"bits": 32},
        blocks={"rows": 16, "outputs": 32, "inputs": 32, "num_warps": 4, "num_stages": 3},
        because="compiled: float32 never spills",
    ),
    Row(
        kernel="quantized_linear",
        shape={"rows": 16},
        blocks={"rows": 16, "outputs": 64, "inputs": 128, "num_warps": 4, "num_stages": 3},
        because="arithmetic: the weight decides, 8 KiB of it at a time",
    ),
    Row(
        kernel="quantized_linear",
        shape={"rows": 64},
        blocks={"rows": 64, "outputs": 128, "inputs": 64, "num_warps": 4, "num_stages": 3},
        because="arithmetic: the weight decides, 8 KiB of it at a time",
    ),
    Row(
        kernel="quantized_linear",
        shape={},
        blocks={"rows": 128, "outputs": 128, "inputs": 64, "num_warps": 8, "num_stages": 3},
        because="arithmetic: the tile that wgmma and tcgen05 take whole",
    ),
    Row(
        kernel="int4_linear",
        shape={"bits": 32},
        blocks={
            "rows": 16,
            "outputs": 32,
            "inputs": 32,
            "num_warps": 4,
            "num_stages": 3,
            "programs": 512,
        },
        because="compiled: float32 never spills",
    ),
    Row(
        kernel="int4_linear",
        shape={"rows": 16},
        blocks={
            "rows": 16,
            "outputs": 128,
            "inputs": 32,
            "num_warps": 4,
            "num_stages": 4,
            "programs": 512,
        },
        because="arithmetic: the weight decides, 16 KiB of it in flight in each of 4 programs",
    ),
    Row(
        kernel="int4_linear",
        shape={},
        blocks={
            "rows": 64,
            "outputs": 128,
            "inputs": 32,
            "num_warps": 8,
            "num_stages": 4,
            "programs": 256,
        },
        because=(
            "compiled: two programs on a multiprocessor; 128 rows spill 8 bytes on 8.0, and with "
            "128 inputs at once each warp unpacks what others have"
        ),
    ),
    Row(
        kernel="fused_experts",
        shape={"bits": 32},
        blocks={"rows": 16, "outputs": 32, "inputs": 32, "num_warps": 4, "num_stages": 3},
        because="compiled: float32 never spills",
    ),
    Row(
        kernel="fused_experts",
        shape={"weight": "fp8", "rows": 16},
        blocks={"rows": 16, "outputs": 128, "inputs": 64, "num_warps": 4, "num_stages": 4},
        because="compiled: 128 inputs, widened in registers, spill where they end in a tile",
    ),
    Row(
        kernel="fused_experts",
        shape={"rows": 16},
        blocks={"rows": 16, "outputs": 64, "inputs": 128, "num_warps": 4, "num_stages": 4},
        because="arithmetic: the weight decides, 32 KiB of it in flight in each program",
    ),
    Row(
        kernel="fused_experts",
        shape={"rows": 64},
        blocks={"rows": 64, "outputs": 128, "inputs": 64, "num_warps": 4, "num_stages": 4},
        because="arithmetic: the weight decides, 32 KiB of it in flight in each program",
    ),
    Row(
        kernel="fused_experts",
        shape={},
        blocks={"rows": 128, "outputs": 128, "inputs": 64, "num_warps": 8, "num_stages": 4},
        because="arithmetic: the tile that wgmma and tcgen05 take whole",
    ),
    Row(
        kernel="rms_norm",
        shape={"columns": 1024},
        blocks={"num_warps": 2},
        because="arithmetic: 16 elements a thread, two loads of 16 bytes",
    ),
    Row(
        kernel="rms_norm",
        shape={"columns": 2048},
        blocks={"num_warps": 4},
        because="arithmetic: as above",
    ),
    Row(
        kernel="rms_norm",
        shape={"columns": 4096},
        blocks={"num_warps": 8},
        because="arithmetic: as above",
    ),
    Row(
        kernel="rms_norm",
        shape={"columns": 8192},
        blocks={"num_warps": 16},
        because="arithmetic: as above",
    ),
    Row(
        kernel="rms_norm",
        shape={"columns": 16384},
        blocks={"num_warps": 16},
        because="arithmetic: 32 elements a thread, as more warps would not share a multiprocessor",
    ),
    Row(
        kernel="rms_norm",
        shape={},
        blocks={"num_warps": 1},
        because="arithmetic: a short row is one warp's",
    ),
    Row(
        kernel="quantize_rows",
        shape={},
        blocks={"columns": 4096, "num_warps": 8},
        because="arithmetic: 16 elements a thread, two loads of 16 bytes",
    ),
    Row(
        kernel="gate_mul",
        shape={},
        blocks={"columns": 1024, "num_warps": 4},
        because="arithmetic: 8 elements a thread, a load of 16 bytes of each half",
    ),
    Row(
        kernel="gate_mul_fp8",
        shape={"columns": 1024},
        blocks={"columns": 1024, "num_warps": 4},
        because="arithmetic: 8 elements a thread, a load of 16 bytes of each half",
    ),
    Row(
        kernel="gate_mul_fp8",
        shape={"columns": 2048},
        blocks={"columns": 2048, "num_warps": 8},
        because="arithmetic: as above",
    ),
    Row(
        kernel="gate_mul_fp8",
        shape={"columns": 4096},
        blocks={"columns": 4096, "num_warps": 16},
        because="arithmetic: as above",
    ),
    Row(
        kernel="gate_mul_fp8",
        shape={"columns": 8192},
        blocks={"columns": 8192, "num_warps": 16},
        because="arithmetic: 16 elements a thread, as more warps would not share a multiprocessor",
    ),
    Row(
        kernel="gate_mul_fp8",
        shape={"columns": 16384},
        blocks={"columns": 16384, "num_warps": 16},
        because="compiled: a row stays in registers, and is read once",
    ),
    Row(
        kernel="gate_mul_fp8",
        shape={"columns": 32768},
        blocks={"columns": 8192, "num_warps": 16},
        because="compiled: a whole row does not fit into registers; a quarter at a time, twice",
    ),
    Row(
        kernel="gate_mul_fp8",
        shape={},
        blocks={"columns": 512, "num_warps": 2},
        because="arithmetic: 8 elements a thread, as above",
    ),
    Row(
        kernel="rope_and_store_kv",
        shape={},
        blocks={"heads": 16, "num_warps": 4},
        because="arithmetic: 16 heads of 64 pairs are 8 pairs a thread",
    ),
    Row(
        kernel="int4_linear",
        gpu="sm_90",
        shape={"rows": 64, "bits": 16},
        blocks={
            "rows": 64,
            "outputs": 128,
            "inputs": 128,
            "num_warps": 8,
            "num_stages": 4,
            "programs": 256,
        },
        because="compiled: wgmma waits once for 128 inputs instead of four times",
    ),
    Row(
        kernel="int4_linear",
        gpu="sm_90",
        shape={"rows": 128, "bits": 16},
        blocks={
            "rows": 128,
            "outputs": 128,
            "inputs": 128,
            "num_warps": 8,
            "num_stages": 3,
            "programs": 256,
        },
        because="arithmetic: the tile that wgmma takes whole",
    ),
    Row(
        kernel="int4_linear",
        gpu="sm_100",
        shape={"rows": 64, "bits": 16},
        blocks={
            "rows": 64,
            "outputs": 128,
            "inputs": 128,
            "num_warps": 8,
            "num_stages": 4,
            "programs": 256,
        },
        because=(
            "compiled: until Triton 3.8 each product has sums of its own in tensor memory: of 32 "
            "inputs they fill it; 128 rows spill 8 bytes"
        ),
    ),
    Row(
        kernel="int4_linear",
        gpu="sm_100",
        shape={"rows": 128, "bits": 16},
        blocks={
            "rows": 64,
            "outputs": 128,
            "inputs": 128,
            "num_warps": 8,
            "num_stages": 4,
            "programs": 256,
        },
        because="compiled: as above",
    ),
    Row(
        kernel="prefill_attention",
        gpu="sm_86",
        shape={"columns": 128, "bits": 16},
        blocks={"rows": 64, "tokens": 32, "num_warps": 4, "num_stages": 2},
        because=(
            "compiled: 128 rows spill 40 to 48 bytes a thread with FP8 or with a window "
            "and a soft cap; two of these share a multiprocessor"
        ),
    ),
    Row(
        kernel="prefill_attention",
        gpu="sm_100",
        shape={"columns": 256, "bits": 16, "kv": "fp8"},
        blocks={"rows": 64, "tokens": 16, "num_warps": 4, "num_stages": 2},
        because="compiled: with 8 warps a thread has 128 registers and spills 24 bytes",
    ),
    Row(
        kernel="rope_and_store_kv",
        gpu="sm_100",
        shape={"columns": 256},
        blocks={"heads": 8, "num_warps": 4},
        because="compiled: 16 heads spill 8 bytes with a norm in float32",
    ),
    Row(
        kernel="prefill_attention",
        gpu="sm_120",
        shape={"columns": 128, "bits": 16},
        blocks={"rows": 64, "tokens": 32, "num_warps": 4, "num_stages": 2},
        because=(
            "compiled: 128 rows spill 56 to 96 bytes a thread; two of these share a multiprocessor"
        ),
    ),
)
