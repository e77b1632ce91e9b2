//! Lists what would help most, by pure arithmetic on the bound of one token.

use super::bound::{Bound, Pass, Rates};
use super::predict::{Decode, Forecast};
use super::shape::Shape;
use crate::words::{bytes, number, scaled};

/// Bits per number in the recommended 4-bit type, including its scales.
const Q4_BITS: f64 = 4.5;

/// Least speed-up that is reported; smaller ones are left out.
const FACTOR_LEAST: f64 = 1.05;

/// Largest number of tokens per pass that is recommended.
const TOKENS_MAX: f64 = 8192.0;

/// Recommends a change that makes the model faster.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Advice {
    /// Words for the change and its effect.
    pub text: String,
    /// Factor by which the model gets faster.
    pub factor: f64,
}

/// Tells how much room there is for keys and values.
#[derive(Debug, Clone, Copy)]
pub(super) struct KvAdvice {
    /// Number of tokens for which there is room.
    pub tokens: u64,
    /// Number of tokens in one sequence.
    pub tokens_each: u64,
}

/// Lists changes that would help a machine whose pass of one token is `one`, the most helpful first.
pub(super) fn advise(
    one: &Pass,
    rates: &Rates,
    forecast: &Forecast,
    shape: &Shape,
    chunk_tokens: usize,
    kv: KvAdvice,
) -> Vec<Advice> {
    let now = Bound::of(one, rates).seconds();
    let mut all = Vec::new();
    let mut add = |text: String, factor: f64| {
        if factor >= FACTOR_LEAST {
            all.push(Advice { text, factor });
        }
    };
    let streamed = one.streamed();
    if streamed > 0.0 {
        let more = Pass { host: one.host + streamed, ..*one };
        let text = format!("{} more host memory: every weight stays, nothing comes from disk", bytes(streamed));
        add(text, now / Bound::of(&more, rates).seconds());
        let twice = Rates { disk: 2.0 * rates.disk, ..*rates };
        let text = format!("a disk of {}, twice as fast", scaled(twice.disk, "B/s"));
        add(text, now / Bound::of(one, &twice).seconds());
    }
    let bits = 8.0 * one.weights / shape.parameters().max(1) as f64;
    if bits > Q4_BITS + 1.0 {
        let weights = one.weights * Q4_BITS / bits;
        let device = one.device.min(weights);
        let small = Pass { weights, device, host: one.host.min(weights - device), ..*one };
        let text = format!("4-bit weights (q4_k): {} instead of {}", bytes(weights), bytes(one.weights));
        add(text, now / Bound::of(&small, rates).seconds());
    }
    let single = forecast.decode.iter().find(|decode| decode.batch == 1).map_or(f64::INFINITY, |decode| decode.seconds);
    let rate = |decode: &Decode| decode.batch as f64 / decode.seconds;
    if let Some(best) = forecast.decode.iter().max_by(|a, b| rate(a).total_cmp(&rate(b))) {
        let tokens = best.batch as u64 * kv.tokens_each;
        let room = if tokens > kv.tokens { format!(" (plan with --kv-tokens {tokens})") } else { String::new() };
        let text = format!("{} sequences at a time{room}: {} tokens/s together", best.batch, number(rate(best)));
        add(text, rate(best) * single);
    }
    if let Some((tokens, factor)) = longer_chunks(one, rates, shape, chunk_tokens, forecast.prompt.passes) {
        let text =
            format!("for long prompts, --max-num-batched-tokens {tokens}: until then a longer pass costs the same");
        add(text, factor);
    }
    all.sort_by(|a, b| b.factor.total_cmp(&a.factor));
    all
}

/// Returns the number of tokens per pass at which arithmetic takes as long as moving weights, and the factor by which
/// prompts become faster with it. Returns `None` if prompts already take one pass.
fn longer_chunks(one: &Pass, rates: &Rates, shape: &Shape, chunk: usize, passes: usize) -> Option<(usize, f64)> {
    let moving = Bound::of(&Pass { operations: 0.0, ..*one }, rates).seconds();
    let even = (moving * rates.flops / (2.0 * shape.parameters().max(1) as f64)).min(TOKENS_MAX);
    let tokens = if even >= 1.0 { 1usize << (even.log2() as u32) } else { 1 };
    (passes > 1 && tokens > chunk).then(|| (tokens, (tokens as f64 / chunk as f64).min(passes as f64)))
}

#[cfg(test)]
mod tests {
    use interbed_kernels::DType;

    use super::super::predict::{PolicyKind, Prompt};
    use super::super::shape::Cut;
    use super::super::shape::tests::shape_of;
    use super::*;

    fn texts(host: f64, disk: f64) -> Vec<Advice> {
        let shape = shape_of("llama-3-8b", DType::BF16, Cut::Groups);
        let weights = shape.swept_bytes() as f64;
        let one = Pass { weights, host: weights.min(host), device: 0.0, kv: 0.0, operations: weights };
        let rates = Rates { disk, host: 20e9, flops: 1e12, host_flops: 1e12, device: None };
        let decode = |batch: usize| {
            let bound = Bound::of(&one, &rates);
            let seconds = bound.seconds();
            Decode { batch, seconds, bound, disk_bytes: 0.0, stall_seconds: 0.0, overlap: 1.0 }
        };
        let prompt = Prompt { passes: 4, seconds: 1.0, bound_seconds: 1.0, bound_by: "disk" };
        let forecast = Forecast {
            policy: PolicyKind::Resident,
            warm_up_seconds: 1.0,
            warm_up_bytes: 1,
            prompt,
            decode: vec![decode(1), decode(32)],
        };
        advise(&one, &rates, &forecast, &shape, 128, KvAdvice { tokens: 1000, tokens_each: 100 })
    }

    #[test]
    fn the_disk_is_blamed_only_where_it_binds() {
        let slow = texts(5e9, 1e9);
        let has = |all: &[Advice], part: &str| all.iter().any(|advice| advice.text.contains(part));
        assert!(has(&slow, "more host memory") && has(&slow, "twice as fast") && has(&slow, "4-bit"), "{slow:?}");
        assert!(has(&slow, "--max-num-batched-tokens 512"), "{slow:?}");
        assert!(slow.windows(2).all(|pair| pair[0].factor >= pair[1].factor), "{slow:?}");
        let twice = slow.iter().find(|advice| advice.text.contains("twice")).expect("found above");
        assert!((twice.factor - 2.0).abs() < 1e-9, "{twice:?}");
        let resident = texts(1e12, 1e9);
        assert!(!has(&resident, "memory") && !has(&resident, "disk") && has(&resident, "4-bit"), "{resident:?}");
        assert!(has(&resident, "--kv-tokens 3200"), "{resident:?}");
        let batch = resident.iter().find(|advice| advice.text.contains("32 sequences")).expect("a batch");
        assert!((batch.factor - 32.0).abs() < 1e-9, "{batch:?}");
    }
}
