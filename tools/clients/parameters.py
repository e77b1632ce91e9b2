"""Sends each parameter of the official clients that a server without a memory of its own can serve, with a value that
asks for something: all are taken, or refused by name as docs/guide/api.md says. Parameters that a newer client adds
must be put into the tables below."""

import inspect

import anthropic
import openai
import pydantic

# What every method has, for the client itself.
OF_THE_CLIENT = {"self", "extra_headers", "extra_query", "extra_body", "timeout", "stream", "betas"}
# What needs a memory of earlier requests, which a server has that keeps conversations, prompts and files for its users.
OF_A_MEMORY = {"background", "background_options", "conversation", "previous_response_id", "prompt", "thread",
               "user_profile_id", "workspace_id", "billing_policy", "fallback_credit_token", "fallbacks",
               "access_programs", "image"}

FUNCTION = {"name": "time", "description": "The time.", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
SCHEMA = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": False}


class Shape(pydantic.BaseModel):
    """What an answer is to be."""

    model_config = pydantic.ConfigDict(extra="forbid")
    a: None


CHAT = {
    "audio": {"voice": "alloy", "format": "wav"},
    "frequency_penalty": 0.5,
    "function_call": "none",
    "functions": [FUNCTION],
    "logit_bias": {"5": -100},
    "logprobs": True,
    "max_completion_tokens": 3,
    "max_tokens": 3,
    "metadata": {"a": "b"},
    "modalities": ["text"],
    "moderation": {"model": "none"},
    "n": 2,
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "x"},
    "presence_penalty": 0.5,
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "low",
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    "safety_identifier": "s",
    "seed": 1,
    "service_tier": "auto",
    "stop": ["x"],
    "store": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "tool_choice": "auto",
    "tools": [TOOL],
    "top_logprobs": 2,
    "top_p": 0,
    "user": "u",
    "verbosity": "low",
    "web_search_options": {"search_context_size": "low"},
}
COMPLETION = {
    "best_of": 2,
    "echo": True,
    "frequency_penalty": 0.5,
    "logit_bias": {"5": -100},
    "logprobs": 1,
    "max_tokens": 3,
    "n": 2,
    "presence_penalty": 0.5,
    "seed": 1,
    "stop": ["x"],
    "stream_options": {"include_usage": True},
    "suffix": "the end",
    "temperature": 0.5,
    "top_p": 0.5,
    "user": "u",
}
RESPONSE = {
    "context_management": [{"type": "compaction"}],
    "include": ["reasoning.encrypted_content"],
    "instructions": "Be kind.",
    "max_output_tokens": 3,
    "max_tool_calls": 3,
    "metadata": {"a": "b"},
    "moderation": {"model": "none"},
    "parallel_tool_calls": False,
    "personality": "friendly",
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "reasoning": {"effort": "low", "summary": "detailed"},
    "safety_identifier": "s",
    "service_tier": "auto",
    "store": True,
    "stream_options": {"include_obfuscation": False},
    "temperature": 0.5,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}, "verbosity": "low"},
    "tool_choice": "auto",
    "tools": [{"type": "function", **FUNCTION}, {"type": "custom", "name": "c"}, {"type": "web_search"}],
    "top_logprobs": 2,
    "top_p": 0.5,
    "truncation": "auto",
    "user": "u",
}
EMBEDDING = {"dimensions": 8, "encoding_format": "base64", "user": "u"}
MESSAGE = {
    "cache_control": {"type": "ephemeral"},
    "compaction": {"type": "summarize"},
    "container": "c",
    "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    "diagnostics": {"previous_message_id": None},
    "inference_geo": "us",
    "mcp_servers": [{"type": "url", "name": "m", "url": "https://example.org"}],
    "metadata": {"user_id": "u"},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": SCHEMA}},
    "output_format": Shape,
    "service_tier": "auto",
    "speed": "standard",
    "stop_sequences": ["x"],
    "system": [{"type": "text", "text": "Be kind."}],
    "thinking": {"type": "adaptive"},
    "tool_choice": {"type": "auto"},
    "tools": [{"name": "time", "input_schema": {"type": "object"}}, {"type": "web_search_20250305", "name": "s"}],
}
# Refused by name, as docs/guide/api.md says.
REFUSED = {"audio", "functions", "suffix", "top_logprobs of a response", "truncation", "compaction"}
# What has no effect by itself.
BESIDE = {"top_logprobs": {"logprobs": True}, "stream_options": {"stream": True}}


def check(client_openai, client_anthropic, model):
    """Sends all, one parameter a request; returns how many were taken, and the names of those that were refused."""
    ask = [{"role": "user", "content": "Tell me a story."}]
    beta = client_anthropic.beta.messages
    methods = [
        ("chat", client_openai.chat.completions.create, CHAT, dict(messages=ask, max_completion_tokens=3)),
        ("completion", client_openai.completions.create, COMPLETION, dict(prompt="Once", max_tokens=3)),
        ("response", client_openai.responses.create, RESPONSE, dict(input="Hi", max_output_tokens=3)),
        ("count", client_openai.responses.input_tokens.count, RESPONSE, dict(input="Hi")),
        ("embedding", client_openai.embeddings.create, EMBEDDING, dict(input="a fox")),
        ("message", client_anthropic.messages.create, MESSAGE, dict(messages=ask, max_tokens=3)),
        ("message", beta.create, MESSAGE, dict(messages=ask, max_tokens=3)),
        ("tokens", client_anthropic.messages.count_tokens, MESSAGE, dict(messages=ask)),
        ("tokens", beta.count_tokens, MESSAGE, dict(messages=ask)),
    ]
    taken, refused = 0, set()
    for kind, method, table, least in methods:
        names = set(inspect.signature(method).parameters) - OF_THE_CLIENT - OF_A_MEMORY - {"model"}
        unknown = names - set(table) - set(least)
        assert not unknown, f"{kind}: the client has parameters that are not in the table: {sorted(unknown)}"
        for name in sorted(names & set(table)):
            asked = {**least, **BESIDE.get(name, {}), name: table[name]}
            if kind in ("response", "count") and name == "top_logprobs":
                asked.pop("logprobs", None)
            if name == "max_tokens":
                asked.pop("max_completion_tokens", None)
            try:
                answer = method(model=model, **asked)
                if asked.get("stream"):
                    list(answer)
                taken += 1
            except (openai.BadRequestError, anthropic.BadRequestError) as error:
                label = f"{name} of a response" if kind in ("response", "count") and name == "top_logprobs" else name
                assert label in REFUSED and name in str(error), f"{kind}, {name}: {error}"
                refused.add(label)
    assert refused == REFUSED, f"refused are {sorted(refused)}"
    return taken, refused
