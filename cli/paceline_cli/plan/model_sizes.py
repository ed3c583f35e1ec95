"""How large the models of a manifest are: read from their files, or told on the command line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from paceline_api.inference_service import InferenceService
from paceline_cli.errors import LocalError
from paceline_cli.place import cache_dir
from paceline_cli.plan.assumed_form import assumed_form, of_parameters
from paceline_cli.plan.model_files import Named, model_size
from paceline_engine.hardware.devices import Device
from paceline_engine.hardware.model_size import ModelSize, Precision, RanksDoNotDivide

_FLAGS: Final = "say how large it is: --params 8B --kv-bytes 131072"
_WEIGHTS_IN: Final = {"None": "", "FP8Dynamic": "FP8"}
"""As `Precision` calls them: weights are the same, whatever they multiply."""
_DRAFT_FLAGS: Final = "say how large it is: --draft-params 1B --draft-kv-bytes 32768"


AutoOnCpu = Literal["float32", "bfloat16"]
"""What the engine measures to be faster when it starts."""


class PlanError(LocalError):
    """The plan cannot be made; the message names what is missing."""


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """What the command line asks for."""

    manifest: Path
    traffic: Path
    gpu: str | None = None
    gpu_memory_bytes: int | None = None
    params: int | None = None
    kv_bytes: int | None = None
    memory: Path | None = None
    embedding_params: int | None = None
    """How many of `params` are of embedding and head."""
    draft_params: int | None = None
    draft_kv_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Reads the sizes of one question. Raises LocalError where they are nowhere."""

    service: InferenceService
    device: Device
    question: PlanQuestion
    auto_on_cpu: AutoOnCpu = "float32"
    """What the planned machine is taken to choose."""

    @property
    def assumed_dtype(self) -> AutoOnCpu | None:
        """The type that is assumed; None where manifest or device say it."""
        is_open = self.service.spec.engine.dtype == "Auto" and self.device.is_cpu
        return self.auto_on_cpu if is_open else None

    def of_model(self, ranks: int) -> ModelSize:
        """The size of the model, or of the part that each of several ranks holds."""
        question, model = self.question, self.service.spec.model
        given = _given("--params", question.params, "--kv-bytes", question.kv_bytes)
        if given is not None:
            embedding = question.embedding_params
            return self._of_given(*given, self._precision(), embedding, ranks)
        if question.embedding_params is not None:
            raise PlanError("--embedding-params tells of --params: it says nothing without")
        named = Named("spec.model.uri", model.uri, model.revision, _FLAGS)
        try:
            return model_size(named, precision=self._precision(), cache=cache_dir(), ranks=ranks)
        except RanksDoNotDivide as problem:
            raise PlanError(f"spec.engine.tensorParallelSize: {problem}") from problem

    def of_draft(self) -> ModelSize | None:
        """The draft model of speculative decoding; None where the manifest names none."""
        question, draft = self.question, self.service.spec.engine.speculative
        given = _given(
            "--draft-params", question.draft_params, "--draft-kv-bytes", question.draft_kv_bytes
        )
        if draft.method != "Draft" or draft.draft_model_uri is None:
            if given is not None:
                raise PlanError(
                    "--draft-params: spec.engine.speculative.method must be Draft for a draft"
                    f" model, got {draft.method}"
                )
            return None
        precision = self._precision(draft.draft_quantization)
        if given is not None:
            return self._of_given(*given, precision, None, 1)
        named = Named(
            "spec.engine.speculative.draftModelUri",
            draft.draft_model_uri,
            draft.draft_model_revision,
            _DRAFT_FLAGS,
        )
        return model_size(named, precision=precision, cache=cache_dir())

    def _of_given(
        self, params: int, kv_bytes: int, precision: Precision, ends: int | None, ranks: int
    ) -> ModelSize:
        if ends is not None and ends >= params:
            raise PlanError(f"--embedding-params must be fewer than --params, {params}, got {ends}")
        if precision.is_as_stored:
            raise PlanError(
                "quantization AsStored keeps what a GGUF file holds, which --params does not say: "
                "the file must lie on this machine"
            )
        form = assumed_form(params, ends)
        return of_parameters(params, kv_bytes, precision, form, ranks=ranks)

    def _precision(self, own_quantization: str | None = None) -> Precision:
        """How the engine keeps the model, or a draft that has a quantisation of its own."""
        engine = self.service.spec.engine
        quantization = own_quantization or engine.quantization
        return Precision(
            self._bytes_per_value(),
            quantization=_WEIGHTS_IN.get(quantization, quantization),
            has_fp8_kv=engine.kv_cache_dtype == "FP8",
        )

    def _bytes_per_value(self) -> int:
        dtype = self.assumed_dtype or self.service.spec.engine.dtype
        return 4 if dtype.lower() == "float32" else 2


def _given(
    one: str, params: int | None, other: str, kv_bytes: int | None
) -> tuple[int, int] | None:
    """Return both numbers, or None where neither was given. Raises PlanError for one alone."""
    if params is not None and kv_bytes is not None:
        return params, kv_bytes
    if params is not None or kv_bytes is not None:
        raise PlanError(f"{one} and {other} go together: one says nothing without the other")
    return None
