//! Options of other programs about models and how they are stored.

use super::Meaning::{Already, ByValue, Instead, Model};
use super::hints::TEMPLATE;
use super::{Habit, Habits, PerhapsValued};

const NO_LORA: &str = "adapters are not loaded: merge them into the weights first, such as with peft's \
                       merge_and_unload()";

const ROPE: &str = "rope is scaled as the model's config.json or GGUF file says: set rope_scaling there";

const LOADING: &str = "how a model is stored is seen from its files: leave it out";

const IMAGES: &str = "models are computed for text alone: leave it out";

const STORED: &str = "weights are computed with as they are stored: take files of the type that you want, such as \
                      ORG/NAME-GGUF:Q4_K_M";

const FOLDERS: &str = "a folder of GGUF files is not listed: `interbed serve DIR/FILE.gguf` serves one of them. \
                       Without a MODEL the server has the models that `interbed pull` fetched, in the folder that \
                       HF_HUB_CACHE names";

/// Options of other programs about models and how they are stored, with their translations.
pub static HABITS: Habits = Habits { valued: VALUED, bare: BARE, perhaps: PERHAPS };

/// Options that a value follows.
const VALUED: &[Habit] = &[
    (&["-m", "--model", "--model-path"], Model),
    (&["-hf", "-hfr", "--hf-repo"], Model),
    (&["-hff", "--hf-file"], Instead("write the file behind the model's name: ORG/NAME:FILE.gguf")),
    (&["-hft", "--hf-token"], Instead("set HF_TOKEN, which the list of processes does not show")),
    (&["-mu", "--model-url"], Model),
    (&["--download-dir"], Instead("set HF_HUB_CACHE to the folder; huggingface_hub uses it too")),
    (&["--local-dir"], Instead("models are kept in the cache of huggingface_hub: set HF_HUB_CACHE to the folder")),
    (&["--models-dir", "--models-preset"], Instead(FOLDERS)),
    (&["--models-max"], Instead("one model is in memory at a time: leave it out")),
    (&["--override-kv"], Instead("what a model's files say of it is taken as it is: correct the file")),
    (&["--code-revision"], Already("code of models is never run")),
    (&["--tokenizer", "--tokenizer-revision"], Instead("the tokenizer is the one in the model's directory or file")),
    (&["--tokenizer-mode"], ByValue(&[("auto", Already("there is one way")), ("*", Instead(LOADING))])),
    (&["--load-format", "--config-format"], ByValue(&[("auto", Already(LOADING)), ("*", Instead(LOADING))])),
    (&["--quantization"], ByValue(&[("*", Instead(STORED))])),
    (
        &["--dtype"],
        ByValue(&[("auto", Already("weights are computed with as they are stored")), ("*", Instead(STORED))]),
    ),
    (&["-mm", "--mmproj"], Instead(IMAGES)),
    (&["--limit-mm-per-prompt", "--mm-processor-kwargs"], Instead(IMAGES)),
    (&["--image"], Instead("models are computed for text alone")),
    (
        &["--lora", "--lora-scaled", "--control-vector", "--lora-modules", "--max-lora-rank", "--max-loras"],
        Instead(NO_LORA),
    ),
    (
        &["--task", "--runner", "--convert"],
        ByValue(&[
            ("auto|generate", Already("each model is served for all that it can do")),
            ("embed", Already("/v1/embeddings is there for each model that makes embeddings")),
            ("*", Instead("/v1/completions, /v1/chat/completions and /v1/embeddings are served: leave it out")),
        ]),
    ),
    (&["--pooling"], Instead("hidden states are pooled as the model's own files say: leave it out")),
    (
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
        Instead(ROPE),
    ),
];

/// Options that no value follows.
const BARE: &[Habit] = &[
    (
        &["--modelfile", "--parameters", "--license"],
        Instead(
            "`interbed show MODEL` tells what there is to tell, with --json for scripts; `interbed serve` answers \
             /api/show with the chat template",
        ),
    ),
    (&["--template"], Instead(TEMPLATE)),
    (&["--force"], Already("nothing is asked before it is done")),
    (&["--check-tensors"], Instead("`interbed verify MODEL` checks all weights")),
    (&["--no-mmproj", "--language-model-only"], Already("models are computed for text alone")),
    (
        &["--fim-qwen-1.5b-default", "--fim-qwen-3b-default", "--fim-qwen-7b-default", "--fim-qwen-30b-default"],
        Instead("give the model by name: qwen2.5-coder:1.5b, :3b or :7b, or qwen3-coder:30b"),
    ),
    (&["--trust-remote-code"], Already("code of models is never run, and supported ones need none")),
    (&["--enable-lora"], Instead(NO_LORA)),
    (&["--embedding", "--embeddings"], Already("/v1/embeddings is there for each model that makes embeddings")),
    (&["--rerank", "--reranking"], Instead("there is no /rerank: compare what /v1/embeddings gives")),
];

/// Options that a value follows if the next word is one of these.
const PERHAPS: &[PerhapsValued] = &[(
    &["-q"],
    &["awq", "gptq", "fp8", "gguf", "bitsandbytes"],
    ByValue(&[("awq|gptq|fp8|gguf|bitsandbytes", Instead(STORED))]),
)];
