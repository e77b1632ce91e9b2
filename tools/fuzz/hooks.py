"""Brings the requests that schemathesis makes past the server's door: where all are random, the first field refuses."""

import json
import random

import schemathesis

# What an endpoint needs before it looks at anything else.
SAY = [{"role": "user", "content": "Tell me a story."}]
GOOD = {
    "/v1/completions": {"prompt": "Once upon a time"},
    "/v1/chat/completions": {"messages": SAY},
    "/v1/messages": {"messages": SAY, "max_tokens": 8},
    "/v1/messages/count_tokens": {"messages": SAY},
    "/v1/responses": {"input": "Tell me a story."},
    "/v1/embeddings": {"input": ["a fox", "the sea"]},
    "/tokenize": {"prompt": "a fox"},
    "/detokenize": {"tokens": [1, 2, 3]},
}
# Values that are nearly right or just outside, which random ones seldom are.
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, "x"]}}, "required": ["a"], "additionalProperties": False}
NEAR = {
    "model": ["storyteller", "no-such"],
    "messages": [SAY, [], [{"role": "user"}], [{"role": "tool", "content": "x"}], SAY + [{"role": "assistant"}],
                 [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}],
                 SAY + [{"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {
                     "name": "f", "arguments": "{"}}]}]],
    "prompt": ["a", "", ["a", "b"], [[1, 2], [3]], [1, 2, 3], [-1], [10**9], [], [[]]],
    "input": ["a", "", ["a", ""], [[1]], [1, 2], [{"role": "user", "content": "a"}], [{"type": "function_call"}],
              [{"type": "function_call_output", "call_id": "x", "output": "y"}]],
    "max_tokens": [0, 1, 7, -1, 10**18],
    "n": [0, 1, 2, 3, 10**6],
    "best_of": [0, 1, 3],
    "temperature": [0, 0.7, 2, -1, 1e308],
    "top_p": [0, 0.5, 1, 1.1],
    "top_k": [-2, -1, 0, 1, 5],
    "min_p": [0, 0.1, 1, 2],
    "logprobs": [0, 1, 5, True, False, 10**6],
    "top_logprobs": [0, 1, 20, 21],
    "prompt_logprobs": [0, 2, -1],
    "logit_bias": [{"1": 5}, {"1": 101}, {"x": 1}, {"99999999": 1}],
    "stop": [".", "", [], ["a", "b"], ["a"] * 5],
    "stop_token_ids": [[1], [-1], [10**9]],
    "seed": [0, -1, 2**63 - 1, 2**63],
    "stream_options": [{"include_usage": True}, {"include_usage": 1}, {}],
    "allowed_token_ids": [[1, 2], [], [10**9]],
    "bad_words": [["a"], [""], []],
    "truncate_prompt_tokens": [0, 1, 3, -1, -2],
    "use_beam_search": [True, False],
    "response_format": [{"type": "text"}, {"type": "json_object"}, {"type": "json_schema"}, {"type": "x"},
                        {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}],
    "structured_outputs": [{"regex": "[ab]+"}, {"regex": "("}, {"choice": ["a", "b"]}, {"choice": []}, {"json": SCHEMA},
                           {"grammar": "start: \"a\""}, {"grammar": "start: b"}, {"json": {"not": {}}}, {}],
    "tools": [[], [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}], [{"type": "function"}],
              [{"name": "f", "input_schema": SCHEMA}], [{"type": "function", "name": "f", "parameters": SCHEMA}]],
    "tool_choice": ["auto", "none", "required", "x", {"type": "function", "function": {"name": "f"}}, {"type": "any"},
                    {"type": "tool", "name": "f"}, {"type": "tool", "name": "g"}],
    "text": [{"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}, {"format": {"type": "x"}}],
    "system": ["Be kind.", [{"type": "text", "text": "Be kind."}], [{}], 1],
    "thinking": [{"type": "disabled"}, {"type": "enabled", "budget_tokens": 5}, {"type": "x"}],
    "dimensions": [0, 1, 8, 10**9],
    "encoding_format": ["float", "base64", "x"],
    "tokens": [[], [1], [10**9], [-1]],
    "chat_template_kwargs": [{"enable_thinking": False}, {"messages": 1}, {}],
}
LONGEST = 12


@schemathesis.hook
def before_call(context, case, kwargs):
    good = GOOD.get(case.operation.path)
    if case.operation.path == "/v1/models/{model}" and case.path_parameters:
        if random.Random(repr(case.path_parameters)).random() < 0.5:
            case.path_parameters["model"] = "storyteller"
        return
    if good is None or not isinstance(case.body, dict):
        return
    chance = random.Random(json.dumps(case.body, sort_keys=True, default=str))
    if chance.random() < 0.2:
        return
    # What it made, but little of it, beside what is needed and what is nearly right.
    body = {field: case.body[field] for field in sorted(case.body) if chance.random() < 0.2}
    fields = list(case.operation.body[0].raw_schema["properties"]) if case.operation.body else []
    near = [field for field in fields if field in NEAR]
    for field in chance.sample(near, k=min(len(near), chance.randint(0, 3))):
        body[field] = chance.choice(NEAR[field])
    for field, value in good.items():
        body.setdefault(field, value)
    if chance.random() < 0.9:
        body["model"] = "storyteller"
    # So that a run takes minutes.
    for field in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if field in fields and (field in body or field == "max_tokens"):
            asked = body.get(field)
            if not isinstance(asked, (int, float)) or LONGEST < asked < 10**6:
                body[field] = LONGEST
    if case.operation.path == "/v1/responses":
        body.setdefault("max_output_tokens", LONGEST)
    case.body = body
