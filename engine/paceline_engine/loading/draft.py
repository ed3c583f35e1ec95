"""The draft model's checkpoint: found like the model's, refused where its tokens are others."""

import json
from dataclasses import dataclass, replace

from paceline_engine.checkpoint.checkpoint import Checkpoint
from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.checkpoint.tokenizer import TokenizerFiles
from paceline_engine.checkpoint.uri import Located, Places, locate
from paceline_engine.errors import BadSettings
from paceline_engine.settings import Settings

_SAME = 0.9
"""Share of tokens that agree: models of one family differ in the names of a few special ones."""


@dataclass(frozen=True, slots=True)
class OpenedDraft:
    """A draft model that was found and opened, and is not yet loaded."""

    located: Located
    checkpoint: Checkpoint


def open_draft(settings: Settings, places: Places, model: Checkpoint) -> OpenedDraft | None:
    """Open the draft model that the settings name; None where they name none.

    Raises `BadSettings` where its tokens are not the model's, and what any model's URI raises.
    """
    if settings.draft_model_uri is None:
        return None
    places = replace(places, model_mount=settings.draft_model_mount)
    located = locate(settings.draft_model_uri, settings.draft_model_revision, places)
    checkpoint = open_checkpoint(located.path)
    _require_same_tokens(settings.draft_model_uri, checkpoint, model)
    return OpenedDraft(located, checkpoint)


def _require_same_tokens(uri: str, draft: Checkpoint, model: Checkpoint) -> None:
    wanted, size = model.config.vocab_size, draft.config.vocab_size
    if size != wanted:
        raise BadSettings(
            f"PACELINE_ENGINE_DRAFT_MODEL_URI: {uri} has a vocabulary of {size:,} tokens and the "
            f"model one of {wanted:,}; a draft model must have the model's own."
        )
    ids, model_ids = _ids(draft.tokenizer), _ids(model.tokenizer)
    same = sum(model_ids.get(token) == id_ for token, id_ in ids.items())
    if same < _SAME * max(len(ids), len(model_ids)):
        raise BadSettings(
            f"PACELINE_ENGINE_DRAFT_MODEL_URI: of the {len(ids):,} tokens of {uri} only {same:,} "
            f"are among the {len(model_ids):,} of the model by the same number; a draft model "
            "must have the model's own vocabulary."
        )


def _ids(tokenizer: TokenizerFiles) -> dict[str, int]:
    """Return each token's number, for any kind of tokenizer."""
    vocab = json.loads(tokenizer.tokenizer_json).get("model", {}).get("vocab", {})
    if isinstance(vocab, dict):
        return vocab
    return {entry[0]: number for number, entry in enumerate(vocab)}
