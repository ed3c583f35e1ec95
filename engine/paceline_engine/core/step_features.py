"""Measures a batch in the features that its time is predicted from."""

from paceline_engine.core.batch import Batch
from paceline_wire import StepFeatures
from paceline_wire.step_cost import chunk_attention


def features_of(batch: Batch, context: int) -> StepFeatures:
    """Measure a batch whose decodes have `context` tokens of context in all.

    Draft tokens are computed as a prompt's are, and count as such.
    """
    num_decodes = batch.num_decodes + batch.num_drafted
    prompts = batch.chunks[num_decodes:]
    drafted = batch.chunks[batch.num_decodes : num_decodes]
    draft_tokens = sum(len(chunk.draft) for chunk in drafted)
    return StepFeatures(
        decode=num_decodes,
        prefill=sum(chunk.count for chunk in prompts) + draft_tokens,
        context=context,
        attention=int(sum(chunk_attention(chunk.count, chunk.start) for chunk in prompts))
        + sum(len(chunk.draft) * chunk.start for chunk in drafted),
    )
