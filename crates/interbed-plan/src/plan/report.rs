//! Writes a plan for people to read.

use std::fmt::{self, Write};

use interbed_device::Bytes;
use interbed_weights::window::Phase;

use super::Plan;
use super::bound::Bound;
use super::division::{Kv, Tier};
use super::figure::{Figure, Origin};
use super::machine::Machine;
use super::predict::Forecast;
use crate::words::{bytes, grouped, number, scaled, seconds, short};

impl Plan {
    /// Returns the tables of the plan as text.
    pub fn report(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "{}", self.verdict())?;
        self.write_model(out)?;
        write_machine(out, &self.machine)?;
        self.write_placement(out)?;
        writeln!(out, "\nBound of one token, whatever the policy: {}", seconds(self.bound.seconds()))?;
        write_bound(out, &self.bound)?;
        write_forecast(out, &self.forecast, self)?;
        match &self.other {
            Ok(other) => write_forecast(out, other, self)?,
            Err(why) => writeln!(out, "\nPolicy ring, not simulated: {why}")?,
        }
        self.write_settings(out)?;
        if !self.advice.is_empty() {
            writeln!(out, "\nWhat would help most")?;
        }
        for advice in &self.advice {
            writeln!(out, "  {:>7} x  {}", number(advice.factor), advice.text)?;
        }
        Ok(())
    }

    fn write_model(&self, out: &mut String) -> fmt::Result {
        let shape = &self.bands;
        writeln!(
            out,
            "{}: {} parameters, mostly {}; {} layers of {}, head {}, embedding {}; KV {} a token",
            self.subject.name,
            short(self.subject.config.blueprint.num_parameters()),
            self.subject.dtype,
            shape.num_layers,
            bytes(shape.layer_bytes()),
            bytes(shape.head_bytes() as f64),
            bytes(shape.embedding_bytes as f64),
            Bytes(self.kv_token)
        )?;
        if let Some(note) = &self.subject.note {
            writeln!(out, "({note})")?;
        }
        Ok(())
    }

    fn write_placement(&self, out: &mut String) -> fmt::Result {
        let (host, device) = (self.kept.host as f64, self.kept.device as f64);
        let swept = self.bands.swept_bytes() as f64;
        writeln!(out, "\nPlacement of the {} of weights that a pass needs", bytes(swept))?;
        let mut row = |name: &str, kept: f64, note: String| {
            let layers = number(kept / self.bands.layer_bytes().max(1.0));
            let share = 100.0 * kept / swept.max(1.0);
            writeln!(out, "  {name:<10}{:>10}{layers:>8} layers{share:>7.1} %  {note}", bytes(kept))
        };
        if self.division.device.is_some() {
            row("GPU", device, format!("{} bands stay", grouped(self.kept.units.1 as u64)))?;
        }
        row("host", host, format!("{} bands stay", grouped(self.kept.units.0 as u64)))?;
        row("disk only", (swept - host - device).max(0.0), "read in every pass".into())?;
        writeln!(out, "\nMemory")?;
        if let Some(tier) = &self.division.device {
            write_tier(out, "GPU", tier, self.kept.device, self.slot_bytes(self.settings.device.stream_slots))?;
        }
        let slots = self.slot_bytes(self.settings.host.stream_slots);
        write_tier(out, "host", &self.division.host, self.kept.host, slots)?;
        write_kv(out, &self.division.kv)
    }

    /// Returns the bytes that `slots` slots take; 0 if nothing is streamed.
    fn slot_bytes(&self, slots: usize) -> u64 {
        let streams = self.kept.host + self.kept.device < self.bands.swept_bytes();
        if streams || self.division.device.is_some() { slots as u64 * self.bands.largest() } else { 0 }
    }

    fn write_settings(&self, out: &mut String) -> fmt::Result {
        let settings = &self.settings;
        writeln!(out, "\nSettings, and why")?;
        let mut row = |name: &str, value: String, why: String| writeln!(out, "  {name:<26}{value:<12}{why}");
        let saved = match &self.other {
            Ok(other) => format!(
                "reads {} a pass, ring {}",
                bytes(self.forecast.decode.first().map_or(0.0, |decode| decode.disk_bytes)),
                bytes(other.decode.first().map_or(0.0, |decode| decode.disk_bytes))
            ),
            Err(_) => "reads as little as any policy can".into(),
        };
        row("policy", self.forecast.policy.name().into(), saved)?;
        let tried = if settings.reading.tried { "what this disk did best" } else { "enough for most disks" };
        row("band", Bytes(settings.band_bytes as u64).to_string(), self.why_band(tried))?;
        row("reads in flight", settings.reading.depth.to_string(), tried.into())?;
        let slots = settings.host.stream_slots;
        let slot_bytes = |slots: usize| bytes(slots as f64 * self.bands.largest() as f64);
        let why = format!("{}: twice the reads in flight, and bands being computed with", slot_bytes(slots));
        row("stream slots, host", slots.to_string(), why)?;
        if self.division.device.is_some() {
            let slots = settings.device.stream_slots;
            let why = format!("{}: copies in flight, and bands being computed with", slot_bytes(slots));
            row("stream slots, GPU", slots.to_string(), why)?;
            let credits = &settings.credits;
            let (prefill, decode) = (credits.of(Phase::Prefill), credits.of(Phase::Decode));
            let why = format!("copies in flight for prompts and decoding: {} hide latency", slot_bytes(decode));
            row("credits", format!("{prefill}, {decode}"), why)?;
        }
        let passes = match self.forecast.prompt.passes {
            1 => "one pass".to_owned(),
            passes => format!("{passes} passes"),
        };
        let why = format!("{}; the prompt takes {passes}", self.chunk_why);
        row("tokens of a pass", self.chunk_tokens.to_string(), why)?;
        let (offset, capacity) = settings.host_reach();
        let ring = &settings.host_ring;
        let of_ring = |text: &str, default: &str| format!("{text}; default {default}");
        row("ring: window", count(capacity), of_ring("what fits into the host's memory", "50"))?;
        let why = if self.division.device.is_some() {
            "as far as the GPU reaches ahead"
        } else {
            "the layer after the one in use"
        };
        row("ring: offset", count(offset), of_ring(why, "6"))?;
        row("ring: behind", count(ring.layers_behind), of_ring("what was used is needed last of all", "4"))?;
        let marks = format!("{}, {}", ring.high_water_layers, ring.low_water_layers);
        row("ring: water marks", marks, of_ring("two layers above the window; three below", "65, 47"))?;
        row("ring: reads in flight", ring.in_flight_max.to_string(), of_ring("what the disk takes at a time", "10"))?;
        if self.division.device.is_some() {
            let (depth, ahead) = settings.device_reach();
            let groups = settings.device_ring.units_max.to_string();
            row("ring: GPU groups", groups, of_ring("what fits, at half a layer each", "12"))?;
            row("ring: GPU groups ahead", ahead.to_string(), of_ring("half of them", "6"))?;
            row("ring: GPU layers ahead", depth.to_string(), of_ring("as many groups, attention and ffn", "4"))?;
        }
        row("pinned groups", "none".into(), "what stays is spread evenly, so the disk never rests".into())
    }

    fn why_band(&self, tried: &str) -> String {
        if self.settings.band_bytes < self.settings.reading.chunk_bytes {
            "smaller than a good read, as slots must fit".into()
        } else {
            format!("one read each, of whole rows; {tried}")
        }
    }
}

/// Writes for how many tokens there is KV, and whether less memory would hold more.
pub(super) fn write_kv(out: &mut String, kv: &Kv) -> fmt::Result {
    writeln!(out, "  KV cache for {} tokens", grouped(kv.tokens))?;
    let Some((limit, more)) = kv.streams_below else { return Ok(()) };
    writeln!(
        out,
        "  All weights stay in memory; below --memory {}M they are streamed, which is slower, and leave room for KV of \
         up to {} tokens.",
        limit.div_ceil(1 << 20),
        grouped(more)
    )
}

/// Writes the machine's figures, and their sources.
pub(super) fn write_machine(out: &mut String, machine: &Machine) -> fmt::Result {
    writeln!(out, "\nMachine")?;
    let mut row = |name: &str, figure: &Figure, unit: &str| {
        let source = match &figure.source {
            Origin::Given(flag) => format!("given, {flag}"),
            Origin::Measured(how) => format!("measured, {how}"),
            Origin::Assumed(why) => format!("ASSUMED: {why}"),
        };
        writeln!(out, "  {name:<18}{:>14}  {source}", scaled(figure.value, unit))
    };
    row("disk", &machine.disk, "B/s")?;
    row("host memory", &machine.memory, "B")?;
    row("host bandwidth", &machine.bandwidth, "B/s")?;
    row("host arithmetic", &machine.flops, "FLOP/s")?;
    let Some(gpu) = &machine.gpu else { return Ok(()) };
    row("GPU memory", &gpu.memory, "B")?;
    row("link to the GPU", &gpu.link, "B/s")?;
    row("GPU bandwidth", &gpu.bandwidth, "B/s")?;
    match &gpu.flops {
        Some(flops) => row("GPU arithmetic", flops, "FLOP/s")?,
        None => writeln!(out, "  {:<18}{:>14}  left out of the account; --gpu-flops", "GPU arithmetic", "-")?,
    }
    writeln!(out, "  What a GPU would do is told from its figures.")
}

fn write_bound(out: &mut String, bound: &Bound) -> fmt::Result {
    let binding = bound.binding().name;
    for term in &bound.terms {
        let mark = if term.name == binding { "  <- binds" } else { "" };
        writeln!(out, "    {:<15}{} = {} = {}{mark}", term.name, term.formula, term.numbers, seconds(term.seconds))?;
    }
    Ok(())
}

fn write_forecast(out: &mut String, forecast: &Forecast, plan: &Plan) -> fmt::Result {
    writeln!(out, "\nPolicy {}, simulated", forecast.policy.name())?;
    writeln!(
        out,
        "  {:<20}{:>10}{:>11}{:>11}{:>10}{:>13}{:>10}  limited by",
        "", "a pass", "tokens/s", "bound", "of bound", "from disk", "overlap"
    )?;
    let mut short_of_kv = false;
    for decode in &forecast.decode {
        let tokens = decode.batch as u64 * (plan.prompt_tokens as u64 + 1);
        let short = tokens > plan.division.kv.tokens;
        short_of_kv |= short;
        let name = if decode.batch == 1 { "1 sequence".into() } else { format!("{} sequences", decode.batch) };
        writeln!(
            out,
            "  {:<20}{:>10}{:>11}{:>11}{:>8.0} %{:>13}{:>8.0} %  {}",
            format!("{name}{}", if short { " *" } else { "" }),
            seconds(decode.seconds),
            number(decode.batch as f64 / decode.seconds),
            seconds(decode.bound.seconds()),
            100.0 * decode.bound.seconds() / decode.seconds,
            bytes(decode.disk_bytes),
            100.0 * decode.overlap,
            decode.bound.binding().name
        )?;
    }
    let prompt = &forecast.prompt;
    writeln!(
        out,
        "  {:<20}{:>10}{:>11}{:>11}{:>8.0} %{:>13}{:>10}  {}",
        format!("prompt of {}", plan.prompt_tokens),
        seconds(prompt.seconds),
        number(plan.prompt_tokens as f64 / prompt.seconds),
        seconds(prompt.bound_seconds),
        100.0 * prompt.bound_seconds / prompt.seconds,
        "",
        "",
        prompt.bound_by
    )?;
    writeln!(
        out,
        "  warm-up {}, for {}; first token {} after it, {} after the start",
        seconds(forecast.warm_up_seconds),
        bytes(forecast.warm_up_bytes as f64),
        seconds(prompt.seconds),
        seconds(forecast.warm_up_seconds + prompt.seconds)
    )?;
    if short_of_kv {
        let (tokens, most) = (plan.division.kv.tokens, plan.division.kv.tokens_max);
        let grows = if most > tokens { "; it grows, at the price of weights" } else { "" };
        writeln!(
            out,
            "  * more tokens than the KV cache has room for ({}){grows}: plan with --kv-tokens",
            grouped(tokens)
        )?;
    }
    Ok(())
}

/// Writes the table of what takes how many bytes of a memory.
fn write_tier(out: &mut String, name: &str, tier: &Tier, kept: u64, slots: u64) -> fmt::Result {
    let slots = slots.min(tier.units.saturating_sub(kept));
    let others: u64 = tier.others.iter().map(|(_, bytes)| bytes).sum();
    let unused = tier.total.saturating_sub(kept + slots).saturating_sub(others);
    let weights = [("weights that stay", kept), ("slots", slots)];
    let parts = weights.into_iter().chain(tier.others.iter().copied()).chain([("unused", unused)]);
    let parts: Vec<String> =
        parts.filter(|(_, size)| *size > 0).map(|(name, size)| format!("{name} {}", bytes(size as f64))).collect();
    let (first, second) = parts.split_at(parts.len().min(4));
    writeln!(out, "  {name:<10}{:>10}  {}", bytes(tier.total as f64), first.join(", "))?;
    if second.is_empty() { Ok(()) } else { writeln!(out, "  {:<20}  {}", "", second.join(", ")) }
}

fn count(layers: usize) -> String {
    if layers == 1 { "1 layer".into() } else { format!("{layers} layers") }
}
