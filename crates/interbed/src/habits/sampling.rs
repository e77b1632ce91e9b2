//! Options of other programs about prompts, answers and sampling.

use super::Meaning::{self, Already, Besides, ByOption, ByValue, Instead, Ours, OursOr, Words};
use super::hints::{BY_REQUEST, TEMPLATE};
use super::{Habit, Habits, PerhapsValued};

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
pub static HABITS: Habits = Habits { valued: VALUED, bare: BARE, perhaps: PERHAPS };

/// Options that a value follows.
const VALUED: &[Habit] = &[
    (&["--file"], OursOr("--prompt-file", PROMPT)),
    (&["-bf", "--binary-file"], OursOr("--prompt-file", PROMPT)),
    (
        &["-p"],
        ByOption(&[
            ("--prompt", Ours("--prompt")),
            ("--prompt-tokens", Ours("--prompt-tokens")),
            ("--system", PROMPT_IN_CHAT),
            ("*", Instead(PROMPT)),
        ]),
    ),
    (
        &["--prompt"],
        ByOption(&[("--system", PROMPT_IN_CHAT), ("--prompt-tokens", Instead(PROMPT_LENGTH)), ("*", Instead(PROMPT))]),
    ),
    (&["-sys", "--system-prompt"], OursOr("--system", SYSTEM)),
    (&["--system"], ByOption(&[("--host", Instead(SYSTEM))])),
    (
        &["-o", "--output", "--output-file"],
        ByOption(&[
            ("--raw", Instead("the answer goes to stdout: interbed run MODEL --prompt TEXT > FILE")),
            ("--json", Instead("--json prints JSON on stdout: > FILE keeps it")),
        ]),
    ),
    (
        &["-sysf", "--system-prompt-file"],
        ByOption(&[("--system", Instead("--system \"$(cat FILE)\"")), ("*", Instead(SYSTEM))]),
    ),
    (
        &["-n", "--predict", "--n-predict", "--num-predict", "--max-tokens", "--max-new-tokens"],
        ByValue(&[
            ("-1", Already("without --max-tokens an answer ends by itself")),
            ("-2", Already("without --max-tokens an answer ends by itself, or where the context is full")),
            ("*", ByOption(&[("--repeat", Instead(DECODED)), ("*", OursOr("--max-tokens", BY_REQUEST))])),
        ]),
    ),
    (&["--temp", "--temperature"], OursOr("--temperature", BY_REQUEST)),
    (&["-s", "--seed"], OursOr("--seed", BY_REQUEST)),
    (&["--top-k"], OursOr("--top-k", BY_REQUEST)),
    (&["--top-p"], OursOr("--top-p", BY_REQUEST)),
    (&["--min-p"], OursOr("--min-p", BY_REQUEST)),
    (&["--repeat-penalty", "--repetition-penalty"], OursOr("--repetition-penalty", BY_REQUEST)),
    (&["--stop"], OursOr("--stop", BY_REQUEST)),
    (&["-r"], ByOption(&[("--repeat", Ours("--repeat")), ("*", OursOr("--stop", BY_REQUEST))])),
    (&["--reverse-prompt"], OursOr("--stop", BY_REQUEST)),
    (&["--repetitions"], Ours("--repeat")),
    (&["--n-prompt"], Ours("--prompt-tokens")),
    (&["-gp", "-pg", "--n-gen"], Instead(DECODED)),
    (
        &["--presence-penalty", "--frequency-penalty", "-l", "--logit-bias"],
        Instead(
            "requests to `interbed serve` take presence_penalty, frequency_penalty and logit_bias; here \
             there is --repetition-penalty",
        ),
    ),
    (&["--repeat-last-n"], Instead("--repetition-penalty counts all tokens: leave it out")),
    (
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
        Instead(NO_SAMPLER),
    ),
    (&["--generation-config", "--override-generation-config"], Instead(BY_REQUEST)),
    (&["--max-logprobs"], Instead("requests may ask for up to 20 log-probabilities a token")),
    (
        &["--grammar", "--grammar-file", "-j", "--json-schema", "-jf", "--json-schema-file", "--format"],
        Instead(SCHEMAS),
    ),
    (
        &["--guided-decoding-backend", "--structured-outputs-config"],
        Instead("one engine does all schemas and grammars: leave it out"),
    ),
    (&["--chat-template", "--chat-template-file"], Instead(TEMPLATE)),
    (&["--chat-template-kwargs"], Instead("requests to `interbed serve` say chat_template_kwargs")),
    (&["--keepalive"], Instead("`interbed serve` has --keep-alive; `interbed run` has its model as long as it runs")),
    (
        &["--reasoning-format"],
        ByValue(&[
            ("auto|deepseek", Already(THOUGHT)),
            ("*", Instead("answers have their thinking in a field of its own: leave it out")),
        ]),
    ),
    (
        &["--reasoning-budget"],
        ByValue(&[
            ("0", Instead(THOUGHTLESS)),
            ("-1", Already("a model thinks as long as it does")),
            ("*", Instead("a model thinks as long as it does, within max_tokens: leave it out")),
        ]),
    ),
    (&["--reasoning-parser"], Already("how a model thinks is seen from its template")),
    (
        &["--tool-call-parser"],
        ByValue(&[
            ("openai", Words(&["--tool-parser", "harmony"])),
            ("auto", Already("calls of tools are read as the model's chat template writes them")),
            ("*", Ours("--tool-parser")),
        ]),
    ),
    (
        &["--in-prefix", "--in-suffix"],
        Instead("the model's chat template says what stands around a message; --raw continues a text as it is"),
    ),
    (&["--n-probs"], Instead("requests say logprobs, or top_logprobs in a chat")),
    (&["--cfg-scale", "--cfg-negative-prompt"], Instead(NO_SAMPLER)),
    (&["--response-role"], Instead("answers have the role assistant: leave it out")),
    (&["--default-chat-template-kwargs"], Instead("requests to `interbed serve` say chat_template_kwargs")),
    (
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
        Instead(NO_DRAFT),
    ),
];

/// Options that no value follows.
const BARE: &[Habit] = &[
    (
        &["-cnv", "--conversation", "-i", "--interactive", "-if", "--interactive-first"],
        Already("`interbed run MODEL` on a terminal, without a prompt, is a conversation"),
    ),
    (&["-no-cnv", "--no-conversation"], Ours("--raw")),
    (&["-st", "--single-turn"], Already("a --prompt has one answer")),
    (&["--ignore-eos"], OursOr("--ignore-eos", BY_REQUEST)),
    (&["-e", "--escape"], Instead("your shell does that: --prompt $'one\\ntwo'")),
    (&["--no-display-prompt"], Ours("--no-echo")),
    (&["--jinja"], Already("chat templates are always rendered")),
    (&["--no-jinja"], Already("chat templates are always rendered as the model's files have them")),
    (&["--hidethinking"], Instead(THINKING)),
    (&["--nowordwrap"], Instead("a pipe gets the text without new line ends: interbed run MODEL --prompt TEXT | cat")),
    (&["--enable-reasoning"], Already("how a model thinks is seen from its template")),
    (&["--enable-auto-tool-choice"], Already("requests with tools may always call them")),
    (
        &["--verbose"],
        ByOption(&[("--stats", Besides("--verbose logs more here; --stats tells how fast an answer was"))]),
    ),
    (&["--show-timings", "--perf"], OursOr("--stats", "each request has a line in the log")),
    (&["--no-perf", "--no-show-timings"], Already("without --stats no timings are told")),
    (
        &["--stream"],
        ByOption(&[
            ("--host", Instead("requests say it in their JSON: {\"stream\": true}")),
            ("*", Already("answers are printed as they are made")),
        ]),
    ),
    (&["-sp", "--special"], Instead("special tokens are not printed; requests say skip_special_tokens")),
    (&["--verbose-prompt"], Instead("`interbed serve` answers /tokenize with a prompt's tokens")),
    (&["--in-prefix-bos"], Instead("the model's chat template says where a text begins")),
    (&["-mli", "--multiline-input"], Instead("in a chat, lines between two of \"\"\" are one message")),
    (
        &["--return-tokens-as-token-ids"],
        Instead("requests to /tokenize and /detokenize go between texts and token ids: leave it out"),
    ),
];

/// Options that a value follows if the next word is one of these.
const PERHAPS: &[PerhapsValued] = &[
    (
        &["--think"],
        &["true", "false", "low", "medium", "high"],
        Instead(
            "requests to `interbed serve` say it: chat_template_kwargs {\"enable_thinking\": false}, \
             or reasoning_effort",
        ),
    ),
    (
        &["-rea", "--reasoning"],
        &["on", "off", "auto"],
        ByValue(&[("off", Instead(THOUGHTLESS)), ("*", Already("a model thinks as its chat template says"))]),
    ),
];
