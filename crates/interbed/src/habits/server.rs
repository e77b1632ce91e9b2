//! Options of other programs about servers.

use super::Habit;
use super::Meaning::{Already, ByOption, ByValue, Instead, Ours, Words};
use super::Takes::{Nothing, Perhaps, Value};

const LOGS: &str = "logs go to stderr: --quiet for none, RUST_LOG=debug for more, --log-format json for collectors";

/// Options of other programs about servers, with their translations.
pub static HABITS: &[Habit] = &[
    Habit::of(&["-a", "--alias"], Value, Ours("--served-model-name")),
    Habit::of(&["--ssl-keyfile", "--ssl-key-file"], Value, Ours("--tls-key")),
    Habit::of(&["--ssl-certfile", "--ssl-cert-file"], Value, Ours("--tls-cert")),
    Habit::of(&["--allowed-origins"], Value, Instead("--allow-origin ORIGIN, once for each; * for any")),
    Habit::of(
        &["--root-path", "--api-prefix", "--path", "--middleware"],
        Value,
        Instead("paths begin at /v1: put a proxy in front to change them"),
    ),
    Habit::of(
        &["--no-webui"],
        Nothing,
        Already("the live page at / stays, and asks for a key where there are keys: --api-key-file FILE"),
    ),
    Habit::of(&["--metrics"], Nothing, Already("/metrics is always there")),
    Habit::of(&["--no-slots"], Nothing, Already("there is no /slots")),
    Habit::of(&["--slots", "--props"], Nothing, Instead("/metrics and the live page at / tell what runs")),
    Habit::of(
        &["-to", "--timeout"],
        Value,
        Instead(
            "a request ends when its client goes: give the client a \
        time-out",
        ),
    ),
    Habit::of(&["--otlp-traces-endpoint"], Value, Ours("--otlp-endpoint")),
    Habit::of(
        &["--uvicorn-log-level", "--log-file", "-lv", "--verbosity", "--log-verbosity", "--log-colors"],
        Value,
        Instead(LOGS),
    ),
    Habit::of(&["--log-disable"], Nothing, Words(&["--quiet"])),
    Habit::of(
        &[
            "--disable-log-requests",
            "--disable-log-stats",
            "--no-enable-log-requests",
            "--disable-uvicorn-access-log",
            "--no-log-requests",
        ],
        Nothing,
        Already(LOGS),
    ),
    Habit::of(&["--enable-server-load-tracking"], Nothing, Already("/metrics always counts what runs and waits")),
    Habit::of(
        &["--uds"],
        Value,
        Instead("it listens on TCP alone: --host 127.0.0.1 --port N, with a proxy such as socat for a socket"),
    ),
    Habit::of(
        &["--host", "--port"],
        Value,
        ByOption(&[("--url", Instead("--url http://HOST:PORT says which server"))]),
    ),
    Habit::of(
        &["--url", "--base-url", "--server"],
        Value,
        ByOption(&[
            (
                "--host",
                Instead("--host and --port say where it listens; /metrics and `interbed ps --url` ask a server"),
            ),
            (
                "*",
                Instead(
                    "it loads its model itself; a server is asked by any client of OpenAI's API, and by `interbed ps \
                     --url URL` for what it has loaded",
                ),
            ),
        ]),
    ),
    Habit::of(&["--completion-bash"], Nothing, Instead("`interbed completions bash` prints completions for bash")),
    Habit::of(
        &["--log-stats-interval"],
        Value,
        Instead("each request has a line at its end, and /metrics has the figures: leave it out"),
    ),
    Habit::of(&["--enable-log-requests"], Nothing, Already("each request has a line at its end")),
    Habit::of(
        &["-co", "--color"],
        Perhaps(&["on", "off", "auto"]),
        ByValue(&[
            ("off", Instead("set NO_COLOR=1")),
            ("*", Already("a chat on a terminal has colours, unless NO_COLOR is set")),
        ]),
    ),
    Habit::of(&["--list-devices"], Nothing, Instead("`interbed devices` lists them")),
    Habit::of(&["-cl", "--cache-list"], Nothing, Instead("`interbed list` lists them")),
    Habit::of(&["--insecure"], Nothing, Instead("the Hub is reached over https; HF_ENDPOINT names another")),
];
