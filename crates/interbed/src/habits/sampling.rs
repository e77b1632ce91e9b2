//! Options of prompts, answers, and how tokens are chosen.

use super::BY_REQUEST;
use super::Habit;
use super::Meaning::{Already, ByValue, Instead, Ours, OursOr};
use super::Takes::{Nothing, Perhaps, Value};

const NO_SAMPLER: &str = "Interbed has no such sampler; --temperature, --top-k, --top-p, --min-p and \
                          --repetition-penalty are there";

const NO_DRAFT: &str = "no second model guesses at tokens: leave it out";

const TEMPLATE: &str = "the template is the model's own: put it into its directory as chat_template.jinja";

const SCHEMAS: &str = "answers keep to schemas and grammars in `interbed serve`: requests say response_format or \
                       structured_outputs";

/// What becomes of each.
pub static HABITS: &[Habit] = &[
    Habit::of(&["--file"], Value, OursOr("--prompt-file", BY_REQUEST)),
    Habit::of(
        &["-p", "--prompt"],
        Value,
        OursOr(
            "--prompt",
            "requests bring prompts; `interbed run MODEL --prompt TEXT` answers one, `interbed bench` measures",
        ),
    ),
    Habit::of(
        &["-sys", "--system-prompt"],
        Value,
        OursOr("--system", "requests bring it as their first message, with the role \"system\""),
    ),
    Habit::of(&["-sysf", "--system-prompt-file"], Value, Instead("--system \"$(cat FILE)\"")),
    Habit::of(
        &["-cnv", "--conversation", "-i", "--interactive", "-if", "--interactive-first"],
        Nothing,
        Already("`interbed run MODEL` on a terminal, without a prompt, is a conversation"),
    ),
    Habit::of(&["-no-cnv", "--no-conversation"], Nothing, Ours("--raw")),
    Habit::of(&["-st", "--single-turn"], Nothing, Already("a --prompt has one answer")),
    Habit::of(
        &["-n", "--predict", "--n-predict", "--num-predict", "--max-tokens"],
        Value,
        ByValue(&[
            ("-1", Already("without --max-tokens an answer ends by itself")),
            ("-2", Already("without --max-tokens an answer ends by itself, or where the context is full")),
            ("*", OursOr("--max-tokens", BY_REQUEST)),
        ]),
    ),
    Habit::of(&["--temp", "--temperature"], Value, OursOr("--temperature", BY_REQUEST)),
    Habit::of(
        &["-s", "--seed"],
        Value,
        ByValue(&[
            ("-1", Instead("--seed N chooses the draws; `interbed chat` takes a new one without it")),
            ("*", OursOr("--seed", BY_REQUEST)),
        ]),
    ),
    Habit::of(&["--top-k"], Value, OursOr("--top-k", BY_REQUEST)),
    Habit::of(&["--top-p"], Value, OursOr("--top-p", BY_REQUEST)),
    Habit::of(&["--min-p"], Value, OursOr("--min-p", BY_REQUEST)),
    Habit::of(&["--repeat-penalty", "--repetition-penalty"], Value, OursOr("--repetition-penalty", BY_REQUEST)),
    Habit::of(&["--stop"], Value, OursOr("--stop", BY_REQUEST)),
    Habit::of(&["-r", "--reverse-prompt"], Value, OursOr("--stop", BY_REQUEST)),
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
    Habit::of(&["--no-jinja"], Nothing, OursOr("--raw", "/v1/completions takes texts as they stand")),
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
    Habit::of(
        &["--hidethinking", "--nowordwrap"],
        Nothing,
        Instead("a pipe gets the text as it is: interbed run MODEL --prompt TEXT | cat"),
    ),
    Habit::of(
        &["--keepalive"],
        Value,
        Instead("`interbed serve` has --keep-alive; `interbed run` has its model as long as it runs"),
    ),
    Habit::of(
        &["--reasoning-format", "--reasoning-budget"],
        Value,
        Instead("thinking comes apart from the text, as the model's template writes it"),
    ),
    Habit::of(&["--reasoning-parser"], Value, Already("how a model thinks is seen from its template")),
    Habit::of(&["--enable-reasoning"], Nothing, Already("how a model thinks is seen from its template")),
    Habit::of(&["--enable-auto-tool-choice"], Nothing, Already("requests with tools may always call them")),
    Habit::of(&["--tool-call-parser"], Value, Ours("--tool-parser")),
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
        ],
        Value,
        Instead(NO_DRAFT),
    ),
];
