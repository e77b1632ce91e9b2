//! Writes the results of a replay for scripts, one figure a line.

use interbed_kv::EvictionKind;
use serde_json::{Value, json};

use super::Found;
use super::explain::{Case, Misses};
use super::hits::Hits;
use super::load::Load;

/// Returns a line of JSON with the outcome of one request, for a policy and a number of cache blocks.
pub(super) fn case_line(kind: EvictionKind, blocks: usize, case: &Case) -> String {
    let params = json!({
        "policy": kind.to_string(), "blocks": blocks, "default": is_default(kind), "request": case.request,
        "prompt_blocks": case.blocks, "lost_blocks": case.lost_blocks, "reason": case.cause.name(),
        "by": case.by.map(|by| by.0), "lookups_ago": case.lookups_ago,
    });
    let mut lines = Lines::default();
    lines.add("replay.matched_blocks", case.found_blocks as f64, "blocks", &params);
    lines.into_text()
}

impl Found {
    /// Returns one JSON object a line, `{"name": …, "value": …, "unit": …, "params": {…}}`. Rates and shares are
    /// fractions of 1.
    pub fn json_lines(&self) -> String {
        let mut lines = Lines::default();
        self.add_hits(&mut lines);
        self.add_load(&mut lines);
        for (kind, operations) in &self.operations {
            for operation in operations {
                let params = json!({
                    "policy": kind.to_string(), "default": is_default(*kind), "operation": operation.name,
                    "per": operation.per, "block_size": self.load.block_size,
                });
                lines.add("replay.ns", operation.nanoseconds, "ns", &params);
            }
        }
        lines.into_text()
    }

    fn add_hits(&self, lines: &mut Lines) {
        let Some(hits) = &self.hits else { return };
        let agree = json!({"lengths_agree": self.trace.lengths_agree()});
        lines.add("replay.block_tokens", self.trace.block_tokens() as f64, "tokens", &agree);
        let mut add_run = |run: &Hits, mut params: Value| {
            let figures = [
                ("replay.hit_rate", run.rate(&self.trace), "fraction"),
                ("replay.hit_rate_tokens", run.token_rate(&self.trace), "fraction"),
                ("replay.evictions", run.evictions as f64, "blocks"),
                ("replay.used_mean", run.used_mean, "blocks"),
                ("replay.used_peak", run.used_peak as f64, "blocks"),
                ("replay.fragmentation", run.fragmentation, "fraction"),
                ("replay.refused", run.refused as f64, "requests"),
            ];
            figures.into_iter().for_each(|(name, value, unit)| lines.add(name, value, unit, &params));
            // Unlike the other figures of a run, this figure depends on the number of tokens in the manager's blocks.
            params["block_size"] = 1.into();
            lines.add("replay.blocks_per_s", run.blocks_per_second(), "blocks/s", &params);
        };
        for policy in &hits.policies {
            for run in &policy.runs {
                let (name, default) = (policy.kind.to_string(), is_default(policy.kind));
                let params = json!({"policy": name, "blocks": run.blocks, "default": default});
                add_run(run, params);
            }
        }
        for policy in &hits.policies {
            for run in &policy.runs {
                for (cause, tally) in run.misses.iter().flat_map(Misses::tallies) {
                    let (name, default) = (policy.kind.to_string(), is_default(policy.kind));
                    let params =
                        json!({"policy": name, "blocks": run.blocks, "default": default, "reason": cause.name()});
                    lines.add("replay.missed_requests", tally.requests as f64, "requests", &params);
                    lines.add("replay.missed_blocks", tally.blocks as f64, "blocks", &params);
                    lines.add("replay.lost_blocks", tally.lost_blocks as f64, "blocks", &params);
                }
            }
        }
        let mut add_bound = |name: &str, blocks: usize, (by_block, by_token): (f64, f64)| {
            let params = json!({"policy": name, "blocks": blocks, "default": false});
            lines.add("replay.hit_rate", by_block, "fraction", &params);
            lines.add("replay.hit_rate_tokens", by_token, "fraction", &params);
        };
        let infinite = vec![hits.infinite; hits.sizes.len()];
        for (name, rates) in
            [("offline", &hits.offline), ("offline_leaves", &hits.offline_leaves), ("infinite", &infinite)]
        {
            hits.sizes.iter().zip(rates).for_each(|(&blocks, &rates)| add_bound(name, blocks, rates));
        }
    }

    fn add_load(&self, lines: &mut Lines) {
        let load = &self.load;
        let mut add_room = |room: &str, found: &Load, capacity: Option<usize>| {
            let params = json!({
                "room": room, "capacity_tokens": capacity, "block_size": load.block_size,
                "prefill_rate": load.pace.prefill_rate, "decode_rate": load.pace.decode_rate,
                "policy": EvictionKind::default().to_string(), "default": true,
            });
            let figures = [
                ("replay.load.taken_mean", found.taken_mean, "tokens"),
                ("replay.load.taken_peak", found.taken_peak as f64, "tokens"),
                ("replay.load.fragmentation", found.fragmentation, "fraction"),
                ("replay.load.sequences_mean", found.running_mean, "sequences"),
                ("replay.load.sequences_peak", found.running_peak as f64, "sequences"),
                ("replay.load.waited", found.waited() as f64, "requests"),
                ("replay.load.wait_mean", found.wait_mean(), "s"),
                ("replay.load.wait_max", found.wait_max(), "s"),
                ("replay.load.preemptions", found.preemptions as f64, "preemptions"),
                ("replay.load.preemptions_of_one", found.preemptions_peak as f64, "preemptions"),
                ("replay.load.refused", found.refused as f64, "requests"),
                ("replay.load.cached_tokens", found.cached_tokens as f64, "tokens"),
            ];
            figures.into_iter().for_each(|(name, value, unit)| lines.add(name, value, unit, &params));
        };
        add_room("ample", &load.ample, None);
        if let Some(limited) = &load.limited {
            add_room("blocks", limited, Some(load.capacity_tokens));
        }
        add_room("preallocated", &load.preallocated, Some(load.capacity_tokens));
        let params = json!({"longest": load.longest, "sequences": load.ample.running_peak});
        lines.add("replay.load.preallocated_tokens", load.preallocated_tokens(), "tokens", &params);
        let params = json!({"longest": load.longest, "capacity_tokens": load.capacity_tokens});
        lines.add("replay.load.preallocated_sequences", load.preallocated_sequences() as f64, "sequences", &params);
        lines.add("replay.load.paged_sequences", load.paged().running_peak as f64, "sequences", &params);
    }
}

/// Figures as lines of JSON.
#[derive(Default)]
pub(crate) struct Lines(String);

impl Lines {
    pub fn add(&mut self, name: &str, value: f64, unit: &str, params: &Value) {
        self.0.push_str(&format!("{}\n", json!({"name": name, "value": value, "unit": unit, "params": params})));
    }

    pub fn into_text(self) -> String {
        self.0
    }
}

fn is_default(kind: EvictionKind) -> bool {
    kind == EvictionKind::default()
}
