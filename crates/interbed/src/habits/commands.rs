//! Commands of other programs, with hints at what to use instead.

const SERVE: &str = "`interbed serve MODEL` is the server";

const RUN: &str = "`interbed run MODEL` chats, `interbed run MODEL --prompt TEXT` answers once";

const EMBED: &str = "`interbed serve MODEL` answers /v1/embeddings";

const OF_SERVERS: &str = "`interbed bench MODEL` measures prompts and decode without a server; a server that runs is \
                          measured by any client of OpenAI's API, such as `vllm bench serve --base-url \
                          http://127.0.0.1:8000`";

/// Words that follow `bench` in other programs, with hints at what to use instead.
pub const OF_BENCH: &[(&str, &str)] =
    &[("serve", OF_SERVERS), ("latency", OF_SERVERS), ("throughput", OF_SERVERS), ("sweep", OF_SERVERS)];

/// Commands of other programs that have no equivalent in Interbed, with hints at what to use instead.
pub const COMMANDS: &[(&str, &str)] = &[
    (
        "stop",
        "a server without a MODEL unloads one that is sent to /api/generate as {\"model\": \"NAME\", \
         \"keep_alive\": 0}; a server of one model keeps it: end that with Ctrl-C, or with `systemctl stop interbed`",
    ),
    (
        "create",
        "no Modelfile is read: give the model's path, `--system TEXT` for instructions, and sampling as options \
            or in requests",
    ),
    ("cp", "a model is called by its path or name: `interbed serve MODEL --served-model-name NAME` gives it another"),
    ("push", "models are uploaded by Hugging Face's own tool: hf upload ORG/NAME FOLDER"),
    ("signin", "HF_TOKEN, or `hf auth login`, lets gated models of the Hub be fetched"),
    ("login", "HF_TOKEN, or `hf auth login`, lets gated models of the Hub be fetched"),
    (
        "search",
        "look on huggingface.co/models, and give the name: `interbed info ORG/NAME` says whether it can run here",
    ),
    ("complete", "`interbed run MODEL --raw --prompt TEXT` continues a text"),
    ("run-batch", "start `interbed serve MODEL`, and send it requests; it computes them together"),
    ("collect-env", "`interbed devices` says what could compute here, `interbed --version` which version this is"),
    (
        "quantize",
        "take quantised files, such as ORG/NAME-GGUF:Q4_K_M; `interbed pack` makes bf16 smaller \
        without loss",
    ),
    ("convert", "Hugging Face directories are read as they are; `interbed pack` makes one file of one"),
    ("tokenize", "`interbed serve MODEL` answers /tokenize"),
    ("server", SERVE),
    ("llama-server", SERVE),
    ("api", SERVE),
    ("start", SERVE),
    (
        "launch",
        "start `interbed serve MODEL`, and then the agent with ANTHROPIC_BASE_URL=http://127.0.0.1:8000 (claude) or \
         OPENAI_BASE_URL=http://127.0.0.1:8000/v1 (others)",
    ),
    ("cli", RUN),
    ("generate", RUN),
    ("llama-cli", RUN),
    ("llama-run", RUN),
    ("batched-bench", "`interbed bench MODEL` measures"),
    ("llama-bench", "`interbed bench MODEL` measures"),
    ("llama-quantize", "take quantised files, such as ORG/NAME-GGUF:Q4_K_M"),
    ("vllm", "leave the word out: `interbed serve MODEL`, `interbed run MODEL`"),
    ("ollama", "leave the word out: `interbed run MODEL`, `interbed pull MODEL`, `interbed list`"),
    ("download", "`interbed pull MODEL` fetches a model"),
    ("embed", EMBED),
    ("embedding", EMBED),
    ("version", "`interbed --version` tells it"),
    ("status", "`interbed ps` tells what the server on this machine has loaded"),
    ("logs", "the server writes its log to stderr; under systemd, `journalctl -u interbed` shows it"),
    ("update", "install a newer package, or build the newer source"),
    ("perplexity", "`interbed logits MODEL` writes logits, to compare with another implementation"),
];
