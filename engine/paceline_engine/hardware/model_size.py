"""How much memory a decoder takes: weights, keys and values, and a step at its widest."""

from dataclasses import dataclass, replace

from paceline_engine.core.model_config import ModelConfig


class RanksDoNotDivide(Exception):  # noqa: N818 - the name is the sentence
    """So many ranks cannot share the model."""

    def __init__(self, count: int, name: str, ranks: int) -> None:
        super().__init__(f"must divide the model's {count} {name}, got {ranks}")
        self.count = count
        self.name = name


@dataclass(frozen=True, slots=True)
class Precision:
    """How the engine keeps a model's numbers."""

    bytes_per_value: int
    """Bytes of a number in its arithmetic; by default weights, keys and values have the same."""
    quantization: str = ""
    """INT8 or FP8: a byte for each weight of the layers' products, a float32 for each output.

    AsStored: see below.
    """
    has_fp8_kv: bool = False
    """Keys and values take a byte each, and one for each head of a token."""

    @property
    def is_as_stored(self) -> bool:
        """Whether weights stay in a file's own kinds, of which only the file tells the bytes."""
        return self.quantization == "AsStored"

    @property
    def kv_value_bytes(self) -> int:
        """Bytes of one key or value."""
        return 1 if self.has_fp8_kv else self.bytes_per_value


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A model in memory."""

    num_parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    """Keys and values of one token in all layers."""
    precision: Precision
    step_bytes_per_token: int | None = None
    """What one token of a step takes at its widest moment, in the MLP; None where unknown."""
    max_len: int | None = None
    """Longest sequence, in tokens; None where unknown."""
    kv_arithmetic: str = ""
    """How the KV bytes come about, for a person."""
    weight_arithmetic: str = ""
    """How the weights' bytes come about, for a person."""
    hidden_size: int | None = None
    num_layers: int | None = None


def size_of(config: ModelConfig, precision: Precision) -> ModelSize:
    """Measure a decoder, or one rank's part of it."""
    per_value, kv_heads = precision.bytes_per_value, config.num_kv_heads
    head = f"{config.head_size} x {per_value} B"
    if precision.has_fp8_kv:
        head = f"({config.head_size} + 1) B"
    num_bytes, arithmetic = weight_bytes(
        config.num_parameters, config.num_linear_parameters, config.num_linear_outputs, precision
    )
    return ModelSize(
        num_parameters=config.num_parameters,
        weight_bytes=num_bytes,
        # FP8 keeps an exponent for each head of a token beside its values.
        kv_bytes_per_token=config.kv_bytes_per_token(
            precision.kv_value_bytes, int(precision.has_fp8_kv)
        ),
        precision=precision,
        step_bytes_per_token=step_bytes_per_token(config, per_value),
        max_len=config.max_len,
        kv_arithmetic=f"2 (K, V) x {config.num_layers} layers x {kv_heads} KV heads x {head}",
        weight_arithmetic=arithmetic,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
    )


def rank_part(config: ModelConfig, ranks: int) -> ModelConfig:
    """Cut out the sizes of one rank's part: some heads, and some of the MLP's features.

    Embedding, norms and head are whole in each. Raises RanksDoNotDivide.
    """
    counts = {
        "attention heads": config.num_q_heads,
        "key and value heads": config.num_kv_heads,
        "features of the MLP": config.intermediate_size,
    }
    for name, count in counts.items():
        if count % ranks:
            raise RanksDoNotDivide(count, name, ranks)
    return replace(
        config,
        num_q_heads=config.num_q_heads // ranks,
        num_kv_heads=config.num_kv_heads // ranks,
        intermediate_size=config.intermediate_size // ranks,
    )


def weight_bytes(
    parameters: int, products: int, outputs: int, precision: Precision
) -> tuple[int, str]:
    """Return the bytes of the weights, and how they come about.

    Only the `products` of the layers are quantised, with a scale for each of their `outputs`;
    embedding, head, norms and biases keep their type.
    """
    per_value = precision.bytes_per_value
    if not precision.quantization:
        return parameters * per_value, f"{parameters:,} parameters x {per_value} B"
    rest = parameters - products
    scales = f"{products:,} in {precision.quantization} + {outputs:,} scales x 4 B"
    words = f"{scales} + {rest:,} x {per_value} B"
    return products + 4 * outputs + rest * per_value, words


def step_bytes_per_token(config: ModelConfig, bytes_per_value: int) -> int:
    """Estimate what one token takes at the widest moment of a step, beside weights and cache.

    The MLP holds the residual, the normed input, gate and up, and their product.
    """
    return 3 * (config.hidden_size + config.intermediate_size) * bytes_per_value
