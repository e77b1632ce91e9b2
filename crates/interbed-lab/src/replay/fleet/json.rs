//! Writes what fleets did for scripts, one figure a line.

use serde_json::{Value, json};

use super::FleetFound;
use crate::replay::hits::share;
use crate::replay::json::Lines;

impl FleetFound {
    /// Returns one JSON object a line, `{"name": …, "value": …, "unit": …, "params": {…}}`. Rates and shares are
    /// fractions of 1.
    pub fn json_lines(&self) -> String {
        let mut lines = Lines::default();
        let setting = json!({
            "blocks": self.blocks, "policy": self.policy.to_string(), "prefill_rate": self.pace.prefill_rate,
            "decode_rate": self.pace.decode_rate, "event_lag": self.event_lag,
        });
        let params = |servers: usize, route: &str, remote: Option<u64>| {
            let mut params = setting.clone();
            params["servers"] = servers.into();
            params["route"] = route.into();
            params["remote_bytes"] = remote.map_or(Value::Null, Value::from);
            params
        };
        for outcome in &self.outcomes {
            let remote = self.remote.filter(|_| outcome.remote_blocks.is_some()).map(|(size, _)| size.0);
            let params = params(outcome.servers, outcome.route.name(), remote);
            let mut add = |name: &str, value: f64, unit: &str| {
                lines.add(&format!("replay.fleet.{name}"), value, unit, &params);
            };
            if self.trace.has_hashes() {
                add("hit_rate", outcome.hit_rate(&self.trace), "fraction");
                add("hit_rate_tokens", outcome.token_rate(&self.trace), "fraction");
                add("hit_rate_memory", outcome.memory_rate(&self.trace), "fraction");
                add("evictions", outcome.evictions as f64, "blocks");
                add("refused", outcome.refused as f64, "requests");
            }
            add("memory_tokens", outcome.memory_tokens as f64, "tokens");
            add("fetched_tokens", outcome.fetched_tokens as f64, "tokens");
            add("computed_tokens", outcome.computed_tokens as f64, "tokens");
            add("skew_computed", outcome.skew_computed, "ratio");
            add("skew_in_flight", outcome.skew_in_flight, "ratio");
            add("first_token_mean", outcome.first_token_mean(), "s");
            add("first_token_p99", outcome.first_token_p99(), "s");
            if let Some(without) = self.without_remote(outcome) {
                add("saved", 1.0 - share(outcome.computed_tokens, without.computed_tokens), "fraction");
                add("written_bytes", self.bytes(outcome.written_blocks).unwrap_or(0.0), "bytes");
                add("fetched_bytes", self.bytes(outcome.fetched_blocks).unwrap_or(0.0), "bytes");
            }
        }
        if self.trace.has_hashes() {
            for (servers, pooled) in &self.pooled {
                let params = params(*servers, "pooled", None);
                lines.add("replay.fleet.hit_rate", pooled.hit_rate(&self.trace), "fraction", &params);
                lines.add("replay.fleet.hit_rate_tokens", pooled.token_rate(&self.trace), "fraction", &params);
                lines.add("replay.fleet.computed_tokens", pooled.computed_tokens as f64, "tokens", &params);
            }
            lines.add("replay.fleet.infinite", self.infinite.0, "fraction", &setting);
            lines.add("replay.fleet.infinite_tokens", self.infinite.1, "fraction", &setting);
        }
        lines.into_text()
    }
}
