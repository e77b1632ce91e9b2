//! Options of other programs about models and how they are stored.

use super::Habit;
use super::Meaning::{self, Already, ByValue, Instead, Model};
use super::Takes::{Nothing, Perhaps, Value};
use super::hints::TEMPLATE;

const NO_LORA: &str = "adapters are not loaded: merge them into the weights first, such as with peft's \
                       merge_and_unload()";

const ROPE: &str = "rope is scaled as the model's config.json or GGUF file says: set rope_scaling there";

const LOADING: &str = "how a model is stored is seen from its files: leave it out";

const IMAGES: &str = "models are computed for text alone: leave it out";

const STORED: &str = "weights are computed with as they are stored: take files of the type that you want, such as \
                      ORG/NAME-GGUF:Q4_K_M";

const QUANTISED: &[(&str, Meaning)] = &[
    ("awq", Instead(STORED)),
    ("gptq", Instead(STORED)),
    ("fp8", Instead(STORED)),
    ("gguf", Instead(STORED)),
    ("bitsandbytes", Instead(STORED)),
];

const FOLDERS: &str = "a folder of GGUF files is not listed: `interbed serve DIR/FILE.gguf` serves one of them. \
                       Without a MODEL the server has the models that `interbed pull` fetched, in the folder that \
                       HF_HUB_CACHE names";

/// Options of other programs about models and how they are stored, with their translations.
pub static HABITS: &[Habit] = &[
    Habit::of(&["-m", "--model", "--model-path"], Value, Model),
    Habit::of(&["-hf", "-hfr", "--hf-repo"], Value, Model),
    Habit::of(&["-hff", "--hf-file"], Value, Instead("write the file behind the model's name: ORG/NAME:FILE.gguf")),
    Habit::of(&["-hft", "--hf-token"], Value, Instead("set HF_TOKEN, which the list of processes does not show")),
    Habit::of(&["-mu", "--model-url"], Value, Model),
    Habit::of(&["--download-dir"], Value, Instead("set HF_HUB_CACHE to the folder; huggingface_hub uses it too")),
    Habit::of(
        &["--local-dir"],
        Value,
        Instead("models are kept in the cache of huggingface_hub: set HF_HUB_CACHE to the folder"),
    ),
    Habit::of(&["--models-dir", "--models-preset"], Value, Instead(FOLDERS)),
    Habit::of(&["--models-max"], Value, Instead("one model is in memory at a time: leave it out")),
    Habit::of(
        &["--modelfile", "--parameters", "--license"],
        Nothing,
        Instead(
            "`interbed show MODEL` tells what there is to tell, with --json for scripts; `interbed serve` answers \
             /api/show with the chat template",
        ),
    ),
    Habit::of(&["--template"], Nothing, Instead(TEMPLATE)),
    Habit::of(&["--override-kv"], Value, Instead("what a model's files say of it is taken as it is: correct the file")),
    Habit::of(&["--force"], Nothing, Already("nothing is asked before it is done")),
    Habit::of(&["--check-tensors"], Nothing, Instead("`interbed verify MODEL` checks all weights")),
    Habit::of(&["--code-revision"], Value, Already("code of models is never run")),
    Habit::of(&["--no-mmproj", "--language-model-only"], Nothing, Already("models are computed for text alone")),
    Habit::of(
        &["--fim-qwen-1.5b-default", "--fim-qwen-3b-default", "--fim-qwen-7b-default", "--fim-qwen-30b-default"],
        Nothing,
        Instead("give the model by name: qwen2.5-coder:1.5b, :3b or :7b, or qwen3-coder:30b"),
    ),
    Habit::of(
        &["--tokenizer", "--tokenizer-revision"],
        Value,
        Instead("the tokenizer is the one in the model's directory or file"),
    ),
    Habit::of(&["--tokenizer-mode"], Value, ByValue(&[("auto", Already("there is one way")), ("*", Instead(LOADING))])),
    Habit::of(
        &["--load-format", "--config-format"],
        Value,
        ByValue(&[("auto", Already(LOADING)), ("*", Instead(LOADING))]),
    ),
    Habit::of(&["--trust-remote-code"], Nothing, Already("code of models is never run, and supported ones need none")),
    Habit::of(&["-q"], Perhaps(&["awq", "gptq", "fp8", "gguf", "bitsandbytes"]), ByValue(QUANTISED)),
    Habit::of(&["--quantization"], Value, ByValue(&[("*", Instead(STORED))])),
    Habit::of(
        &["--dtype"],
        Value,
        ByValue(&[("auto", Already("weights are computed with as they are stored")), ("*", Instead(STORED))]),
    ),
    Habit::of(&["-mm", "--mmproj"], Value, Instead(IMAGES)),
    Habit::of(&["--limit-mm-per-prompt", "--mm-processor-kwargs"], Value, Instead(IMAGES)),
    Habit::of(&["--image"], Value, Instead("models are computed for text alone")),
    Habit::of(
        &["--lora", "--lora-scaled", "--control-vector", "--lora-modules", "--max-lora-rank", "--max-loras"],
        Value,
        Instead(NO_LORA),
    ),
    Habit::of(&["--enable-lora"], Nothing, Instead(NO_LORA)),
    Habit::of(
        &["--task", "--runner", "--convert"],
        Value,
        ByValue(&[
            ("auto", Already("each model is served for all that it can do")),
            ("generate", Already("each model is served for all that it can do")),
            ("embed", Already("/v1/embeddings is there for each model that makes embeddings")),
            ("*", Instead("/v1/completions, /v1/chat/completions and /v1/embeddings are served: leave it out")),
        ]),
    ),
    Habit::of(
        &["--embedding", "--embeddings"],
        Nothing,
        Already("/v1/embeddings is there for each model that makes embeddings"),
    ),
    Habit::of(&["--pooling"], Value, Instead("hidden states are pooled as the model's own files say: leave it out")),
    Habit::of(&["--rerank", "--reranking"], Nothing, Instead("there is no /rerank: compare what /v1/embeddings gives")),
    Habit::of(
        &[
            "--rope-scaling",
            "--rope-scale",
            "--rope-freq-base",
            "--rope-freq-scale",
            "--rope-theta",
            "--yarn-orig-ctx",
            "--yarn-ext-factor",
            "--yarn-attn-factor",
            "--yarn-beta-slow",
            "--yarn-beta-fast",
            "--hf-overrides",
        ],
        Value,
        Instead(ROPE),
    ),
];
