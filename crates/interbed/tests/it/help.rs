//! The help of the command line, and `--quiet`.

use crate::support::{ended, refused, succeeded, tiny};

#[test]
fn short_help_has_what_many_need_and_long_help_has_all() {
    for command in ["run", "chat", "serve", "bench", "info", "logits"] {
        let (short, long) = (succeeded(&[command, "-h"]), succeeded(&[command, "--help"]));
        let place =
            |text: &str, part: &str| text.find(part).unwrap_or_else(|| panic!("no {part:?} in {command}: {text}"));
        assert!(place(&short, "--memory") < place(&short, "--threads"), "{command}");
        assert!(place(&long, "\nMemory and threads:\n") < place(&long, "\nEngine:\n"), "{command}");
        assert!(place(&long, "--memory") < place(&long, "--block-size"), "{command}");
        for rare in ["--block-size", "--max-num-batched-tokens", "--stream-policy", "--overcommit", "--swap-dir"] {
            assert!(!short.contains(rare), "{command} -h has {rare}");
            assert!(long.contains(rare) || rare == "--swap-dir", "{command} --help lacks {rare}");
        }
        assert!(short.len() < long.len(), "{command}");
    }
}

#[test]
fn quiet_leaves_data_and_errors() {
    let args = ["run", tiny(), "--prompt", "Once", "-n", "4", "--ignore-eos", "--memory", "256M"];
    let usual = ended(&args);
    assert!(usual.stderr.contains("KV blocks"), "{}", usual.stderr);
    let quiet = ended(&[&args[..], &["--quiet"]].concat());
    assert_eq!((quiet.code, &quiet.stdout, quiet.stderr.as_str()), (Some(0), &usual.stdout, ""));
    // If weights are streamed there is more to report.
    let info: serde_json::Value = serde_json::from_str(&succeeded(&["info", tiny(), "--json"])).unwrap();
    let least = info["memory"]["least_bytes"].to_string();
    let quiet = ended(&["-q", "run", tiny(), "--prompt", "Once", "-n", "4", "--ignore-eos", "--memory", &least]);
    assert_eq!((quiet.code, &quiet.stdout, quiet.stderr.as_str()), (Some(0), &usual.stdout, ""));
    // Requested figures are data, and errors stay errors.
    let stats = ended(&[&args[..], &["--quiet", "--stats"]].concat());
    assert!(stats.stderr.starts_with("prompt  ") && !stats.stderr.contains("KV blocks"), "{}", stats.stderr);
    refused(&["run", tiny(), "--prompt", "x", "--memory", "10M", "-q"], &["cannot work"]);
    refused(&["info", tiny(), "-q", "-v"], &["cannot be used with"]);
}
