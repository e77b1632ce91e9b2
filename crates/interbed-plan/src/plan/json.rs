//! Writes a plan for scripts: what [`Plan::report`] says, in bytes, seconds and rates.

use interbed_weights::window::Phase;
use serde_json::{Value, json};

use super::Plan;
use super::bound::Bound;
use super::division::Tier;
use super::figure::{Figure, Origin};
use super::predict::Forecast;

impl Plan {
    /// Returns the plan as one JSON object.
    pub fn to_json(&self) -> Value {
        let (shape, settings, machine) = (&self.bands, &self.settings, &self.machine);
        let swept = shape.swept_bytes();
        let on_disk = swept.saturating_sub(self.kept.host).saturating_sub(self.kept.device);
        let layers = |bytes: u64| bytes as f64 / shape.layer_bytes().max(1.0);
        let (offset, capacity) = settings.host_reach();
        let (depth, ahead) = settings.device_reach();
        let device = self.division.device.as_ref();
        let two = device.is_some();
        json!({
            "verdict": self.verdict().to_json(),
            "model": {
                "name": self.subject.name,
                "note": self.subject.note,
                "parameters": self.subject.config.blueprint.num_parameters(),
                "dtype": self.subject.dtype.name(),
                "layers": shape.num_layers,
                "layer_bytes": shape.layer_bytes(),
                "head_bytes": shape.head_bytes(),
                "embedding_bytes": shape.embedding_bytes,
                "swept_bytes": swept,
                "kv_bytes_per_token": self.kv_token,
            },
            "machine": {
                "disk_bytes_per_s": figure(&machine.disk),
                "memory_bytes": figure(&machine.memory),
                "host_bytes_per_s": figure(&machine.bandwidth),
                "host_flops": figure(&machine.flops),
                "gpu": machine.gpu.as_ref().map(|gpu| json!({
                    "memory_bytes": figure(&gpu.memory),
                    "link_bytes_per_s": figure(&gpu.link),
                    "bytes_per_s": figure(&gpu.bandwidth),
                    "flops": gpu.flops.as_ref().map(figure),
                })),
            },
            "placement": {
                "gpu": device.map(|tier| placed(tier, self.kept.device, layers(self.kept.device))),
                "host": placed(&self.division.host, self.kept.host, layers(self.kept.host)),
                "disk": {"weight_bytes": on_disk, "layers": layers(on_disk)},
                "kv_tokens": self.division.kv.tokens,
                "kv_tokens_max": self.division.kv.tokens_max,
            },
            "bound": bound(&self.bound),
            "prompt_tokens": self.prompt_tokens,
            "policy": self.forecast.policy.name(),
            "resident": forecast(&self.forecast, self.prompt_tokens),
            "ring": self.other.as_ref().map_or_else(
                |why| json!({"refused": why}),
                |other| forecast(other, self.prompt_tokens),
            ),
            "settings": {
                "band_bytes": settings.band_bytes,
                "depth": settings.reading.depth,
                "stream_slots": settings.host.stream_slots,
                "gpu_stream_slots": two.then_some(settings.device.stream_slots),
                "credits_prefill": two.then(|| settings.credits.of(Phase::Prefill)),
                "credits_decode": two.then(|| settings.credits.of(Phase::Decode)),
                "max_num_batched_tokens": self.chunk_tokens,
                "ring": {
                    "capacity_layers": capacity,
                    "offset_layers": offset,
                    "layers_behind": settings.host_ring.layers_behind,
                    "high_water_layers": settings.host_ring.high_water_layers,
                    "low_water_layers": settings.host_ring.low_water_layers,
                    "in_flight_max": settings.host_ring.in_flight_max,
                    "gpu_groups_max": two.then_some(settings.device_ring.units_max),
                    "gpu_groups_ahead": two.then_some(ahead),
                    "gpu_layers_ahead": two.then_some(depth),
                },
            },
            "advice": self.advice.iter().map(|advice| json!({"factor": advice.factor, "text": advice.text}))
                .collect::<Vec<_>>(),
        })
    }
}

pub(super) fn figure(figure: &Figure) -> Value {
    let (source, detail) = match &figure.source {
        Origin::Given(flag) => ("given", *flag),
        Origin::Measured(how) => ("measured", how.as_str()),
        Origin::Assumed(why) => ("assumed", why.as_str()),
    };
    json!({"value": figure.value, "source": source, "detail": detail})
}

fn placed(tier: &Tier, weights: u64, layers: f64) -> Value {
    let others: serde_json::Map<String, Value> =
        tier.others.iter().map(|(name, bytes)| ((*name).to_owned(), (*bytes).into())).collect();
    json!({"total_bytes": tier.total, "weight_bytes": weights, "layers": layers, "others": others})
}

fn bound(bound: &Bound) -> Value {
    let terms: Vec<Value> = bound
        .terms
        .iter()
        .map(|term| {
            let (name, seconds) = (term.name, term.seconds);
            json!({"name": name, "formula": term.formula, "numbers": term.numbers, "seconds": seconds})
        })
        .collect();
    json!({"seconds": bound.seconds(), "limited_by": bound.binding().name, "terms": terms})
}

fn forecast(forecast: &Forecast, prompt_tokens: usize) -> Value {
    let decode: Vec<Value> = forecast
        .decode
        .iter()
        .map(|decode| {
            json!({
                "batch": decode.batch,
                "seconds_per_pass": decode.seconds,
                "tokens_per_s": decode.batch as f64 / decode.seconds,
                "bound_seconds": decode.bound.seconds(),
                "share_of_bound": decode.bound.seconds() / decode.seconds,
                "limited_by": decode.bound.binding().name,
                "disk_bytes_per_pass": decode.disk_bytes,
                "stall_seconds": decode.stall_seconds,
                "overlap": decode.overlap,
            })
        })
        .collect();
    let prompt = &forecast.prompt;
    json!({
        "warm_up_seconds": forecast.warm_up_seconds,
        "warm_up_bytes": forecast.warm_up_bytes,
        "prefill_tokens_per_s": prompt_tokens as f64 / prompt.seconds,
        "prefill_seconds": prompt.seconds,
        "prefill_bound_seconds": prompt.bound_seconds,
        "prefill_limited_by": prompt.bound_by,
        "prefill_passes": prompt.passes,
        "first_token_seconds": forecast.warm_up_seconds + prompt.seconds,
        "decode": decode,
    })
}
