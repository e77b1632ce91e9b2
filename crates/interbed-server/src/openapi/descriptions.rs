//! Describes each field in one sentence. A field has the same meaning in every API.

/// All descriptions, in the order of the names.
const FIELDS: [(&str, &str); 92] = [
    (
        "add_generation_prompt",
        "Whether the template begins the assistant's answer; true unless a message is continued.",
    ),
    ("add_special_tokens", "Whether the tokenizer adds its special tokens, such as the one that begins a text."),
    ("allowed_token_ids", "The only tokens that may be generated."),
    ("background", "Only false: nothing is kept to be fetched later."),
    ("bad_words", "Words that are not generated, of any number of tokens."),
    (
        "best_of",
        "Answers to generate for each prompt, of which the n likeliest are returned; or the beams of a search.",
    ),
    ("cache_report", "Whether usage says why no more of the prompts was cached."),
    ("cache_salt", "Requests with different salts never share cached KV."),
    ("chat_template_kwargs", "More variables for the chat template."),
    ("compaction", "Not supported."),
    ("context", "Not supported: this server keeps no contexts."),
    ("continue_final_message", "Whether the last message is continued rather than answered."),
    ("conversation", "Not supported: no responses are kept."),
    ("dimensions", "Numbers of each vector: the first ones, normalised again. For models trained for it (Matryoshka)."),
    ("early_stopping", "Whether a beam search ends as soon as it has enough answers."),
    ("echo", "Whether the answer begins with the prompt."),
    ("encoding_format", "How vectors are written."),
    ("format", "What the answer has to be: \"json\", or a JSON schema."),
    ("frequency_penalty", "Subtracted from logits for each time that a token was generated; from -2 to 2."),
    ("grammar", "Another name of structured_outputs.grammar."),
    ("guided_choice", "Another name of structured_outputs.choice."),
    ("guided_grammar", "Another name of structured_outputs.grammar."),
    ("guided_json", "Another name of structured_outputs.json."),
    ("guided_regex", "Another name of structured_outputs.regex."),
    ("images", "Not supported: the model reads text alone."),
    ("ignore_eos", "Whether to go on past end-of-sequence tokens."),
    ("include", "Only reasoning.encrypted_content, which changes nothing: thinking is told as it is."),
    ("include_stop_str_in_output", "Whether a stop string stays at the end of the text."),
    ("input", "What is to be answered or embedded: a text, or a list."),
    ("insecure", "Not supported: models are fetched from servers with certificates alone."),
    ("instructions", "What comes first in the conversation, as the system's message."),
    ("json_schema", "Another name of structured_outputs.json."),
    (
        "keep_alive",
        "How long the model is to stay in memory: seconds, or a duration such as \"5m\"; less than 0 is for ever. A \
         server of one model keeps it.",
    ),
    ("length_penalty", "The power of its length by which a beam's log-probability is divided."),
    ("logit_bias", "Added to logits, by token ids; from -100 to 100."),
    ("logprobs", "Log-probabilities of the tokens: whether, in chats; with how many of the likeliest, in completions."),
    ("max_completion_tokens", "Most tokens of an answer; -1 for as many as the context has room for."),
    ("max_output_tokens", "Most tokens of an answer."),
    ("max_tokens", "Most tokens of an answer; in chats and completions -1 for as many as the context has room for."),
    ("messages", "The conversation."),
    ("metadata", "Whose request it is, or texts that the answer repeats."),
    ("min_p", "Drops tokens that are less likely than this share of the likeliest; from 0 to 1."),
    ("min_tokens", "Tokens before which nothing ends the answer."),
    ("model", "The model, by a name that the server has."),
    ("n", "Answers to each prompt."),
    ("n_predict", "Another name of max_tokens."),
    ("name", "An older name for `model`."),
    (
        "options",
        "How the answer is sampled: temperature, top_k, top_p, min_p, seed, num_predict, num_ctx, stop, \
         repeat_penalty, repeat_last_n, presence_penalty and frequency_penalty.",
    ),
    (
        "output_config",
        "`effort` reaches the template as `reasoning_effort`; `format` is a schema that the answer keeps to.",
    ),
    ("output_format", "An older name for `output_config.format`."),
    ("parallel_tool_calls", "Whether an answer may call several tools."),
    ("presence_penalty", "Subtracted from logits of tokens that were generated; from -2 to 2."),
    ("previous_response_id", "Not supported: no responses are kept."),
    ("priority", "Requests with lower numbers come first; from -100 to 100."),
    ("prompt", "A text, a list of texts, a list of token ids, or a list of such lists."),
    ("prompt_logprobs", "Log-probabilities of the prompt's tokens, with so many of the likeliest."),
    ("raw", "Whether the prompt is taken as it is, without the chat template."),
    ("reasoning", "How much the model thinks, if its template knows: effort."),
    ("reasoning_effort", "How much the model thinks, if its template knows."),
    ("repeat_last_n", "Only -1: a repetition penalty goes by all tokens."),
    ("repeat_penalty", "Another name of repetition_penalty."),
    ("repetition_penalty", "Divides logits of tokens that occurred in prompt or answer; above 0."),
    ("response_format", "The form of the answer."),
    ("return_token_strs", "Whether the tokens' spellings are returned too."),
    ("seed", "Makes an answer repeatable; -1 is a random one."),
    ("skip_special_tokens", "Whether special tokens have no text."),
    ("stop", "Texts that end an answer: one, or a list."),
    ("stop_sequences", "Texts that end an answer."),
    ("stop_token_ids", "Tokens that end an answer."),
    (
        "stream",
        "Whether the answer comes as it is generated: as server-sent events, or below /api as lines of JSON, and there \
         true if it is left out.",
    ),
    ("stream_options", "Options of a stream: include_usage; for responses include_obfuscation, which changes nothing."),
    ("structured_outputs", "What the answer has to be: json, regex, choice or grammar."),
    ("suffix", "Not supported: nothing is filled in between texts."),
    ("system", "What comes first in the conversation: a text, or a list of blocks of text."),
    ("temperature", "Divides logits before a token is drawn; 0 takes the likeliest."),
    ("template", "Not supported: the model has its own."),
    ("text", "The form of the answer: format, of type text, json_object or json_schema."),
    ("think", "Whether the model thinks, if its template knows: true, false, or how much: low, medium, high or max."),
    ("thinking", "Whether the model thinks, if its template knows: of type enabled, adaptive or disabled."),
    ("tokens", "Token ids."),
    ("thread", "Not supported."),
    ("tool_choice", "Whether tools may be called."),
    ("tools", "Functions that the model may call."),
    ("top_k", "Keeps the likeliest tokens, so many; 0 or -1 keeps all."),
    ("top_logprobs", "How many of the likeliest tokens are reported for each."),
    ("top_p", "Keeps the likeliest tokens that together have this probability; above 0, at most 1."),
    (
        "truncate_prompt_tokens",
        "Keeps the last tokens of a prompt, so many; -1 for as many as the context has room for.",
    ),
    ("truncate", "Whether a text that the context cannot hold loses its end; if not, it is refused."),
    ("truncation", "Only disabled."),
    ("use_beam_search", "Whether the best answers are searched for rather than drawn."),
    ("user", "Whose request it is; changes nothing."),
    ("verbose", "Whether more is told, of which there is nothing."),
];

/// Returns the description of a field.
pub(crate) fn described(field: &str) -> Option<&'static str> {
    FIELDS.iter().find(|(name, _)| *name == field).map(|(_, text)| *text)
}

/// Returns the names of all fields with a description.
#[cfg(test)]
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    FIELDS.iter().map(|(name, _)| *name)
}
