//! Options of other programs about prompts, answers and sampling.

use super::Habit;
use super::Meaning::{self, Already, Besides, ByOption, ByValue, Instead, Ours, OursOr, Words};
use super::Takes::{Nothing, Perhaps, Value};
use super::hints::{BY_REQUEST, TEMPLATE};

const NO_SAMPLER: &str = "Interbed has no such sampler; --temperature, --top-k, --top-p, --min-p and \
                          --repetition-penalty are there";

const NO_DRAFT: &str = "no second model guesses at tokens: leave it out";

const THOUGHTLESS: &str = "requests to `interbed serve` say chat_template_kwargs {\"enable_thinking\": false}";

const SCHEMAS: &str = "answers keep to schemas and grammars in `interbed serve`: requests say response_format or \
                       structured_outputs";

const PROMPT: &str = "requests bring prompts; `interbed run MODEL --prompt TEXT` answers one";

const PROMPT_IN_CHAT: Meaning =
    Instead("`interbed run MODEL --prompt TEXT` answers one prompt; messages of a chat are typed, or piped in");

const DECODED: &str = "--repeat N says how many passes are measured, each of one token, and --context N from which \
                       length on";

const PROMPT_LENGTH: &str = "--prompt-tokens N says how long the prompt is that is measured";

const SYSTEM: &str = "requests bring it as their first message, with the role \"system\"";

const THOUGHT: &str = "answers have their thinking in a field of its own";

const THINKING: &str = "a model's thinking is printed as it comes; answers of `interbed serve` have it apart, in a \
                        field of its own";

/// Options of other programs about prompts, answers and sampling, with their translations.
pub static HABITS: &[Habit] = &[
    Habit::of(&["--file"], Value, OursOr("--prompt-file", PROMPT)),
    Habit::of(&["-bf", "--binary-file"], Value, OursOr("--prompt-file", PROMPT)),
    Habit::of(
        &["-p"],
        Value,
        ByOption(&[
            ("--prompt", Ours("--prompt")),
            ("--prompt-tokens", Ours("--prompt-tokens")),
            ("--system", PROMPT_IN_CHAT),
            ("*", Instead(PROMPT)),
        ]),
    ),
    Habit::of(
        &["--prompt"],
        Value,
        ByOption(&[("--system", PROMPT_IN_CHAT), ("--prompt-tokens", Instead(PROMPT_LENGTH)), ("*", Instead(PROMPT))]),
    ),
    Habit::of(&["-sys", "--system-prompt"], Value, OursOr("--system", SYSTEM)),
    Habit::of(&["--system"], Value, ByOption(&[("--host", Instead(SYSTEM))])),
    Habit::of(
        &["-o", "--output", "--output-file"],
        Value,
        ByOption(&[
            ("--raw", Instead("the answer goes to stdout: interbed run MODEL --prompt TEXT > FILE")),
            ("--json", Instead("--json prints JSON on stdout: > FILE keeps it")),
        ]),
    ),
    Habit::of(
        &["-sysf", "--system-prompt-file"],
        Value,
        ByOption(&[("--system", Instead("--system \"$(cat FILE)\"")), ("*", Instead(SYSTEM))]),
    ),
    Habit::of(
        &["-cnv", "--conversation", "-i", "--interactive", "-if", "--interactive-first"],
        Nothing,
        Already("`interbed run MODEL` on a terminal, without a prompt, is a conversation"),
    ),
    Habit::of(&["-no-cnv", "--no-conversation"], Nothing, Ours("--raw")),
    Habit::of(&["-st", "--single-turn"], Nothing, Already("a --prompt has one answer")),
    Habit::of(
        &["-n", "--predict", "--n-predict", "--num-predict", "--max-tokens", "--max-new-tokens"],
        Value,
        ByValue(&[
            ("-1", Already("without --max-tokens an answer ends by itself")),
            ("-2", Already("without --max-tokens an answer ends by itself, or where the context is full")),
            ("*", ByOption(&[("--repeat", Instead(DECODED)), ("*", OursOr("--max-tokens", BY_REQUEST))])),
        ]),
    ),
    Habit::of(&["--temp", "--temperature"], Value, OursOr("--temperature", BY_REQUEST)),
    Habit::of(&["-s", "--seed"], Value, OursOr("--seed", BY_REQUEST)),
    Habit::of(&["--top-k"], Value, OursOr("--top-k", BY_REQUEST)),
    Habit::of(&["--top-p"], Value, OursOr("--top-p", BY_REQUEST)),
    Habit::of(&["--min-p"], Value, OursOr("--min-p", BY_REQUEST)),
    Habit::of(&["--repeat-penalty", "--repetition-penalty"], Value, OursOr("--repetition-penalty", BY_REQUEST)),
    Habit::of(&["--stop"], Value, OursOr("--stop", BY_REQUEST)),
    Habit::of(&["-r"], Value, ByOption(&[("--repeat", Ours("--repeat")), ("*", OursOr("--stop", BY_REQUEST))])),
    Habit::of(&["--reverse-prompt"], Value, OursOr("--stop", BY_REQUEST)),
    Habit::of(&["--repetitions"], Value, Ours("--repeat")),
    Habit::of(&["--n-prompt"], Value, Ours("--prompt-tokens")),
    Habit::of(&["-gp", "-pg", "--n-gen"], Value, Instead(DECODED)),
    Habit::of(&["--ignore-eos"], Nothing, OursOr("--ignore-eos", BY_REQUEST)),
    Habit::of(
        &["--presence-penalty", "--frequency-penalty", "-l", "--logit-bias"],
        Value,
        Instead(
            "requests to `interbed serve` take presence_penalty, frequency_penalty and logit_bias; here \
             there is --repetition-penalty",
        ),
    ),
    Habit::of(&["--repeat-last-n"], Value, Instead("--repetition-penalty counts all tokens: leave it out")),
    Habit::of(
        &[
            "--samplers",
            "--sampler-seq",
            "--mirostat",
            "--mirostat-lr",
            "--mirostat-ent",
            "--typical",
            "--tfs",
            "--top-nsigma",
            "--xtc-probability",
            "--xtc-threshold",
            "--dynatemp-range",
            "--dynatemp-exp",
            "--dry-multiplier",
            "--dry-base",
            "--dry-allowed-length",
            "--dry-penalty-last-n",
        ],
        Value,
        Instead(NO_SAMPLER),
    ),
    Habit::of(&["--generation-config", "--override-generation-config"], Value, Instead(BY_REQUEST)),
    Habit::of(&["--max-logprobs"], Value, Instead("requests may ask for up to 20 log-probabilities a token")),
    Habit::of(
        &["--grammar", "--grammar-file", "-j", "--json-schema", "-jf", "--json-schema-file", "--format"],
        Value,
        Instead(SCHEMAS),
    ),
    Habit::of(
        &["--guided-decoding-backend", "--structured-outputs-config"],
        Value,
        Instead("one engine does all schemas and grammars: leave it out"),
    ),
    Habit::of(&["-e", "--escape"], Nothing, Instead("your shell does that: --prompt $'one\\ntwo'")),
    Habit::of(&["--no-display-prompt"], Nothing, Ours("--no-echo")),
    Habit::of(&["--jinja"], Nothing, Already("chat templates are always rendered")),
    Habit::of(&["--no-jinja"], Nothing, Already("chat templates are always rendered as the model's files have them")),
    Habit::of(&["--chat-template", "--chat-template-file"], Value, Instead(TEMPLATE)),
    Habit::of(&["--chat-template-kwargs"], Value, Instead("requests to `interbed serve` say chat_template_kwargs")),
    Habit::of(
        &["--think"],
        Perhaps(&["true", "false", "low", "medium", "high"]),
        Instead(
            "requests to `interbed serve` say it: chat_template_kwargs {\"enable_thinking\": false}, \
             or reasoning_effort",
        ),
    ),
    Habit::of(&["--hidethinking"], Nothing, Instead(THINKING)),
    Habit::of(
        &["--nowordwrap"],
        Nothing,
        Instead("a pipe gets the text without new line ends: interbed run MODEL --prompt TEXT | cat"),
    ),
    Habit::of(
        &["--keepalive"],
        Value,
        Instead("`interbed serve` has --keep-alive; `interbed run` has its model as long as it runs"),
    ),
    Habit::of(
        &["--reasoning-format"],
        Value,
        ByValue(&[
            ("auto", Already(THOUGHT)),
            ("deepseek", Already(THOUGHT)),
            ("*", Instead("answers have their thinking in a field of its own: leave it out")),
        ]),
    ),
    Habit::of(
        &["--reasoning-budget"],
        Value,
        ByValue(&[
            ("0", Instead(THOUGHTLESS)),
            ("-1", Already("a model thinks as long as it does")),
            ("*", Instead("a model thinks as long as it does, within max_tokens: leave it out")),
        ]),
    ),
    Habit::of(&["--reasoning-parser"], Value, Already("how a model thinks is seen from its template")),
    Habit::of(&["--enable-reasoning"], Nothing, Already("how a model thinks is seen from its template")),
    Habit::of(&["--enable-auto-tool-choice"], Nothing, Already("requests with tools may always call them")),
    Habit::of(
        &["--tool-call-parser"],
        Value,
        ByValue(&[
            ("openai", Words(&["--tool-parser", "harmony"])),
            ("auto", Already("calls of tools are read as the model's chat template writes them")),
            ("*", Ours("--tool-parser")),
        ]),
    ),
    Habit::of(
        &["--verbose"],
        Nothing,
        ByOption(&[("--stats", Besides("--verbose logs more here; --stats tells how fast an answer was"))]),
    ),
    Habit::of(&["--show-timings", "--perf"], Nothing, OursOr("--stats", "each request has a line in the log")),
    Habit::of(&["--no-perf", "--no-show-timings"], Nothing, Already("without --stats no timings are told")),
    Habit::of(
        &["--stream"],
        Nothing,
        ByOption(&[
            ("--host", Instead("requests say it in their JSON: {\"stream\": true}")),
            ("*", Already("answers are printed as they are made")),
        ]),
    ),
    Habit::of(
        &["-sp", "--special"],
        Nothing,
        Instead("special tokens are not printed; requests say skip_special_tokens"),
    ),
    Habit::of(&["--verbose-prompt"], Nothing, Instead("`interbed serve` answers /tokenize with a prompt's tokens")),
    Habit::of(
        &["--in-prefix", "--in-suffix"],
        Value,
        Instead("the model's chat template says what stands around a message; --raw continues a text as it is"),
    ),
    Habit::of(&["--in-prefix-bos"], Nothing, Instead("the model's chat template says where a text begins")),
    Habit::of(
        &["-mli", "--multiline-input"],
        Nothing,
        Instead("in a chat, lines between two of \"\"\" are one message"),
    ),
    Habit::of(&["--n-probs"], Value, Instead("requests say logprobs, or top_logprobs in a chat")),
    Habit::of(&["--cfg-scale", "--cfg-negative-prompt"], Value, Instead(NO_SAMPLER)),
    Habit::of(
        &["--return-tokens-as-token-ids"],
        Nothing,
        Instead("requests to /tokenize and /detokenize go between texts and token ids: leave it out"),
    ),
    Habit::of(&["--response-role"], Value, Instead("answers have the role assistant: leave it out")),
    Habit::of(
        &["--default-chat-template-kwargs"],
        Value,
        Instead("requests to `interbed serve` say chat_template_kwargs"),
    ),
    Habit::of(
        &["-rea", "--reasoning"],
        Perhaps(&["on", "off", "auto"]),
        ByValue(&[("off", Instead(THOUGHTLESS)), ("*", Already("a model thinks as its chat template says"))]),
    ),
    Habit::of(
        &[
            "-md",
            "--model-draft",
            "--draft-max",
            "--draft-min",
            "--draft",
            "--speculative-config",
            "--speculative-model",
            "--num-speculative-tokens",
            "--spec-type",
            "-hfd",
            "-hfrd",
            "--hf-repo-draft",
        ],
        Value,
        Instead(NO_DRAFT),
    ),
];
