//! Options of other programs about servers.

use super::Meaning::{Already, ByOption, ByValue, Instead, Ours, Words};
use super::{Habit, Habits, PerhapsValued};

const LOGS: &str = "logs go to stderr: --quiet for none, RUST_LOG=debug for more, --log-format json for collectors";

/// Options of other programs about servers, with their translations.
pub static HABITS: Habits = Habits { valued: VALUED, bare: BARE, perhaps: PERHAPS };

/// Options that a value follows.
const VALUED: &[Habit] = &[
    (&["-a", "--alias"], Ours("--served-model-name")),
    (&["--ssl-keyfile", "--ssl-key-file"], Ours("--tls-key")),
    (&["--ssl-certfile", "--ssl-cert-file"], Ours("--tls-cert")),
    (&["--allowed-origins"], Instead("--allow-origin ORIGIN, once for each; * for any")),
    (
        &["--root-path", "--api-prefix", "--path", "--middleware"],
        Instead("paths begin at /v1: put a proxy in front to change them"),
    ),
    (&["-to", "--timeout"], Instead("a request ends when its client goes: give the client a time-out")),
    (&["--otlp-traces-endpoint"], Ours("--otlp-endpoint")),
    (&["--uvicorn-log-level", "--log-file", "-lv", "--verbosity", "--log-verbosity", "--log-colors"], Instead(LOGS)),
    (
        &["--uds"],
        Instead("it listens on TCP alone: --host 127.0.0.1 --port N, with a proxy such as socat for a socket"),
    ),
    (&["--host", "--port"], ByOption(&[("--url", Instead("--url http://HOST:PORT says which server"))])),
    (
        &["--url", "--base-url", "--server"],
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
    (
        &["--log-stats-interval"],
        Instead("each request has a line at its end, and /metrics has the figures: leave it out"),
    ),
];

/// Options that no value follows.
const BARE: &[Habit] = &[
    (
        &["--no-webui"],
        Already("the live page at / stays, and asks for a key where there are keys: --api-key-file FILE"),
    ),
    (&["--metrics"], Already("/metrics is always there")),
    (&["--no-slots"], Already("there is no /slots")),
    (&["--slots", "--props"], Instead("/metrics and the live page at / tell what runs")),
    (&["--log-disable"], Words(&["--quiet"])),
    (
        &[
            "--disable-log-requests",
            "--disable-log-stats",
            "--no-enable-log-requests",
            "--disable-uvicorn-access-log",
            "--no-log-requests",
        ],
        Already(LOGS),
    ),
    (&["--enable-server-load-tracking"], Already("/metrics always counts what runs and waits")),
    (&["--completion-bash"], Instead("`interbed completions bash` prints completions for bash")),
    (&["--enable-log-requests"], Already("each request has a line at its end")),
    (&["--list-devices"], Instead("`interbed devices` lists them")),
    (&["-cl", "--cache-list"], Instead("`interbed list` lists them")),
    (&["--insecure"], Instead("the Hub is reached over https; HF_ENDPOINT names another")),
];

/// Options that a value follows if the next word is one of these.
const PERHAPS: &[PerhapsValued] = &[(
    &["-co", "--color"],
    &["on", "off", "auto"],
    ByValue(&[
        ("off", Instead("set NO_COLOR=1")),
        ("*", Already("a chat on a terminal has colours, unless NO_COLOR is set")),
    ]),
)];
