//! Commands of other programs.

/// Commands of other programs that have no like here.
pub const COMMANDS: &[(&str, &str)] = &[
    ("stop", "a model is in memory as long as its process: end that with Ctrl-C, or with `systemctl stop interbed`"),
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
    ("perplexity", "`interbed logits MODEL` writes logits, to compare with another implementation"),
];
