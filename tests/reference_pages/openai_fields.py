"""What becomes of each field that OpenAI and vLLM know -> the table of docs/openai-api.md.

It is served, refused with a reason, or a label.
"""

import json
from typing import Final

from paceline_sidecar.openai.api_document import OPERATIONS
from paceline_sidecar.openai.api_request import ApiRequest

_BEAMS = "Sequences are sampled, not searched for."
_NOT_STORED = "Nothing is stored: a request says all that it needs."
_OF_CHATS = "It has another form in this API, or none: `/v1/chat/completions` serves it."
_NOT_HERE = "Only functions of the client are called, and by the client."
_FREE = "Which tokens may come is said by `logit_bias`, or by a structured output."
_RENDERED = "The model's own template is used as it is; its variables are `chat_template_kwargs`."
_TEXT_ONLY = "Text is all that is read and written."
_TOKENS_OUT = "Answers hold text; `logprobs` and `/tokenize` tell tokens."
_WHOLE = "A prompt is computed whole or refused; nothing is cut off."
_ELSEWHERE = "Keys and values stay in the engine that computed them."

REASONS: Final = {
    "add_generation_prompt": _RENDERED,
    "add_special_tokens": "Special tokens are those that the model expects around a prompt.",
    "allowed_token_ids": _FREE,
    "audio": _TEXT_ONLY,
    "background": _NOT_STORED,
    "bad_words": _FREE,
    "chat_template": _RENDERED,
    "container": _NOT_HERE,
    "context_management": _WHOLE,
    "continue_final_message": _RENDERED,
    "conversation": _NOT_STORED,
    "diagnostics": "None are made.",
    "dimensions": "A causal model's states cannot be cut.",
    "documents": _RENDERED,
    "ec_transfer_params": _ELSEWHERE,
    "echo": "A chat's answer is the new message alone.",
    "embed_dtype": "Embeddings are float32.",
    "endianness": "Embeddings are little-endian.",
    "frequency_penalty": _OF_CHATS,
    "function_call": "The older form of `tool_choice`.",
    "functions": "The older form of `tools`.",
    "guided_choice": _OF_CHATS,
    "guided_decoding_backend": "There is one.",
    "guided_grammar": _OF_CHATS,
    "guided_json": _OF_CHATS,
    "guided_regex": _OF_CHATS,
    "ignore_eos": _OF_CHATS,
    "include": "Nothing of it is made; encrypted reasoning may be asked for, and there is none.",
    "include_reasoning": "What a model thinks is part of its answer.",
    "include_stop_str_in_output": "The text ends before a stop string.",
    "kv_transfer_params": _ELSEWHERE,
    "length_penalty": _BEAMS,
    "logit_bias": _OF_CHATS,
    "logprob_token_ids": "`top_logprobs` and `logprobs` tell the likeliest tokens.",
    "logprobs": _OF_CHATS,
    "max_completion_tokens": _OF_CHATS,
    "max_tokens": _OF_CHATS,
    "max_tool_calls": "The client calls its functions itself.",
    "mcp_servers": _NOT_HERE,
    "media_io_kwargs": _TEXT_ONLY,
    "messages": "Embeddings are of texts and tokens; a response's messages are its `input`.",
    "min_p": _OF_CHATS,
    "min_tokens": _OF_CHATS,
    "mm_processor_kwargs": _TEXT_ONLY,
    "modalities": _TEXT_ONLY,
    "moderation": "Nothing is moderated here.",
    "n": _OF_CHATS,
    "normalize": "Embeddings have length 1.",
    "parallel_tool_calls": _OF_CHATS,
    "prediction": "Drafts come from the engine (`engine.speculative`), not from a request.",
    "presence_penalty": _OF_CHATS,
    "previous_response_id": _NOT_STORED,
    "prompt": _NOT_STORED,
    "prompt_embeds": "A prompt is text or tokens.",
    "prompt_logprobs": _OF_CHATS,
    "reasoning_effort": _OF_CHATS,
    "repetition_detection": "`max_tokens` and the penalties bound repetition.",
    "repetition_penalty": _OF_CHATS,
    "response_format": _OF_CHATS,
    "return_prompt_text": _TOKENS_OUT,
    "return_token_ids": _TOKENS_OUT,
    "return_token_offsets": _TOKENS_OUT,
    "return_tokens_as_token_ids": _TOKENS_OUT,
    "seed": _OF_CHATS,
    "skip_special_tokens": "Special tokens are not shown.",
    "spaces_between_special_tokens": "Special tokens are not shown.",
    "speed": "There is one.",
    "stop": _OF_CHATS,
    "stop_token_ids": _OF_CHATS,
    "store": "Nothing is stored.",
    "stream_options": _OF_CHATS,
    "structured_outputs": _OF_CHATS,
    "suffix": "Text is continued at its end alone.",
    "temperature": _OF_CHATS,
    "thinking_token_budget": "`max_tokens` bounds thinking and answer together.",
    "top_k": _OF_CHATS,
    "top_logprobs": _OF_CHATS,
    "top_p": _OF_CHATS,
    "truncate_prompt_tokens": _WHOLE,
    "truncation": _WHOLE,
    "truncation_side": _WHOLE,
    "use_beam_search": _BEAMS,
    "verbosity": "Ask for it in the prompt.",
    "vllm_xargs": "There are no extensions for them.",
    "watermarking": "Outputs bear no mark.",
    "web_search_options": "Nothing is fetched for a request.",
}

LABELS: Final = {
    "cache_control": "The prefix cache finds shared prefixes by itself.",
    "inference_geo": "A pod serves where it runs.",
    "metadata": "For stored completions, and none are stored.",
    "prompt_cache_key": "The prefix cache finds shared prefixes by itself.",
    "prompt_cache_options": "The prefix cache keeps what is used, as long as there is room.",
    "prompt_cache_retention": "The prefix cache keeps what is used, as long as there is room.",
    "request_id": "The header `x-request-id` names a request.",
    "safety_identifier": "Names the client's own user.",
    "session_id": "Names the client's own session.",
    "user": "Names the client's own user.",
    "user_profile_id": "Names the client's own user.",
    "workspace_id": "Names the client's own workspace.",
}
"""Fields that clients send for their own ends; no answer depends on them anywhere."""


def tables() -> dict[str, str]:
    """Return the table by the name in its markers."""
    return {"fields": _table()}


def _table() -> str:
    """Write one row for each field and one column for each kind of request."""
    kinds = {op.path: op.body for op in OPERATIONS if op.body and issubclass(op.body, ApiRequest)}
    names = {name for kind in kinds.values() for name in _names(kind)} | LABELS.keys()
    heads = [f"`{path.removeprefix('/v1/')}`" for path in kinds]
    rows = [
        f"| Field | {' | '.join(heads)} | |",
        f"|---|{'---|' * len(kinds)}---|",
    ]
    for name in sorted(names):
        cells = [_cell(kind, name) for kind in kinds.values()]
        rows.append(f"| `{name}` | {' | '.join(cells)} | {_note(name, [*kinds.values()])} |")
    return "\n".join(rows)


def _names(kind: type[ApiRequest]) -> set[str]:
    return kind.model_fields.keys() | kind.unsupported.keys()


def _cell(kind: type[ApiRequest], name: str) -> str:
    if name in LABELS:
        return "label"
    if name in kind.unsupported:
        harmless = " or ".join(f"`{json.dumps(each)}`" for each in kind.unsupported[name])
        return f"only {harmless}" if harmless else "refused"
    return "served" if name in kind.model_fields else ""


def _note(name: str, kinds: list[type[ApiRequest]]) -> str:
    if name in LABELS:
        return LABELS[name]
    reason = REASONS.get(name, "") if any(name in kind.unsupported for kind in kinds) else ""
    served = (kind.model_fields.get(name) for kind in kinds)
    meaning = next((field.description for field in served if field and field.description), "")
    return " ".join(f"{meaning} {reason}".split()).replace("|", "\\|")
