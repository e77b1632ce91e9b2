//! `interbed bench`: what it says, not how fast it is.

use serde_json::Value;

use crate::support::{refused, succeeded, tiny};

fn lines(args: &[&str]) -> Vec<Value> {
    succeeded(args).lines().map(|line| serde_json::from_str(line).expect("one JSON object a line")).collect()
}

fn number(line: &Value, field: &str) -> f64 {
    let value = line[field].as_f64().unwrap_or_else(|| panic!("{field} in {line}"));
    assert!(value.is_finite() && value > 0.0, "{field} in {line}");
    value
}

#[test]
fn every_shape_is_reported_beside_its_bound() {
    let lines = lines(&[
        "bench",
        tiny(),
        "--batch",
        "1,3",
        "--prompt-tokens",
        "5,40",
        "--repeat",
        "2",
        "--sweep",
        "32M",
        "--memory",
        "1G",
        "--json",
    ]);
    let find = |name: &str| lines.iter().filter(|line| line["name"] == name).collect::<Vec<_>>();
    let (decodes, prefills) = (find("decode.tokens_per_s"), find("prefill.tokens_per_s"));
    assert_eq!(decodes.iter().map(|line| &line["params"]["batch"]).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(prefills.iter().map(|line| &line["params"]["prompt_tokens"]).collect::<Vec<_>>(), [5, 40]);
    for line in decodes.iter().chain(&prefills) {
        let (value, bound, share) = (number(line, "value"), number(line, "bound"), number(line, "share_of_bound"));
        assert!((value / bound / share - 1.0).abs() < 1e-6, "{line}");
        assert!(["memory", "arithmetic"].contains(&line["limited_by"].as_str().unwrap()), "{line}");
    }
    let reads = find("machine.read_bytes_per_s")[0];
    number(reads, "value");
    assert_eq!(reads["params"]["sweep_bytes"], 32 << 20);
    // The unit that multiplies the weights comes first, then the others of this machine.
    let units = find("machine.flops");
    assert!(units.iter().any(|line| line["params"]["arithmetic_unit"] == "f32-fma"));
    assert_eq!(units[0]["params"]["arithmetic_unit"], decodes[0]["params"]["arithmetic_unit"]);
    for line in units {
        number(line, "value");
    }
}

#[test]
fn work_is_counted_from_the_model() {
    let info: Value = serde_json::from_str(&succeeded(&["info", tiny(), "--json"])).unwrap();
    let kv_token = info["memory"]["kv_bytes_per_token"].as_f64().unwrap();
    let parameters = info["parameters"].as_f64().unwrap();
    let lines = lines(&[
        "bench",
        tiny(),
        "--batch",
        "2",
        "--context",
        "8",
        "--repeat",
        "2",
        "--prompt-tokens",
        "4",
        "--sweep",
        "32M",
        "--memory",
        "1G",
        "--json",
    ]);
    let decode = lines.iter().find(|line| line["name"] == "decode.tokens_per_s").unwrap();
    let (bytes, flops) = (
        number(decode, "bytes_per_s") * number(decode, "seconds"),
        number(decode, "flops") * number(decode, "seconds"),
    );
    // All weights once, in f32 (the tiny model's head is its embedding), and the keys and values of 10 tokens of each
    // sequence.
    assert!((bytes / (4.0 * parameters + 2.0 * 10.0 * kv_token) - 1.0).abs() < 1e-6, "{bytes} for {parameters}");
    assert!((flops / (2.0 * 2.0 * parameters) - 1.0).abs() < 1e-6, "{flops} for {parameters}");
}

#[test]
fn people_get_a_table() {
    let text = succeeded(&[
        "bench",
        tiny(),
        "--batch",
        "1,2",
        "--prompt-tokens",
        "4",
        "--repeat",
        "1",
        "--memory",
        "1G",
        "--sweep",
        "32M",
    ]);
    for part in [
        "memory reads",
        "GB/s   over 32.0 MiB",
        "this model's products",
        "decode, 1 sequence",
        "decode, 2 sequences",
        "of bound",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    refused(&["bench", tiny(), "--batch", "0"], &["--batch"]);
    refused(&["bench", tiny(), "--repeat", "0"], &["--repeat"]);
    refused(&["bench", tiny(), "--batch", "65"], &["--max-num-seqs 65"]);
    refused(&["bench", tiny(), "--prompt-tokens", "100000", "--memory", "1G", "--sweep", "32M"], &["--prompt-tokens"]);
    refused(&["bench", tiny(), "--repeat", "18446744073709551615", "--memory", "1G", "--sweep", "32M"], &["--repeat"]);
}
