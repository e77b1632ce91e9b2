//! Writes the metrics at `/metrics`, in Prometheus' text format. A metric has vLLM's name if vLLM has one with the same
//! meaning. All other names begin with `interbed:`.
//!
//! The engine counts most figures, and this file counts only those that the server alone sees. The text is written by
//! hand, because the `prometheus-client` crate keeps figures in a registry of its own, whereas these figures are read
//! when `/metrics` is requested.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::http::StatusCode;
use interbed_engine::{
    DeviceStats, EngineStatus, Health, Histogram as EngineHistogram, Keeps, Limits, StreamStats, StripsStatus,
    TailStats, TierStatus, TokenHistogram,
};

use crate::traces::TraceCounts;

/// The content type of Prometheus' text format.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The histogram buckets in seconds, as in vLLM.
const FIRST_TOKEN_BUCKETS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
const TOKEN_BUCKETS: &[f64] =
    &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
const REQUEST_BUCKETS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
const LENGTH_BUCKETS: &[f64] =
    &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6];
/// The histogram buckets for `n`, as in vLLM.
const N_BUCKETS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
/// The reasons for which a sequence ends.
const REASONS: [&str; 4] = ["stop", "length", "abort", "error"];
/// The number of classes of HTTP statuses: one for each first digit from 0 to 5.
const STATUS_CLASSES: usize = 6;

/// The server's own counters.
pub(crate) struct Metrics {
    pub(crate) time_to_first_token: Histogram,
    pub(crate) inter_token_latency: Histogram,
    pub(crate) request_queue: Histogram,
    pub(crate) params_n: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    time_per_token: Histogram,
    e2e_latency: Histogram,
    prompt_tokens: Histogram,
    generation_tokens: Histogram,
    params_max_tokens: Histogram,
    finished: [AtomicU64; REASONS.len()],
    /// The counts of the whole server. The value is `None` for one of several models, because then the server counts
    /// them elsewhere.
    server: Option<ServerCounts>,
}

/// The counts of the whole server, for all its models together.
struct ServerCounts {
    responses: [AtomicU64; STATUS_CLASSES],
    traces: Option<Arc<TraceCounts>>,
}

/// A sequence that has ended.
pub(crate) struct Finished {
    /// The reason for the end, which is one of [`REASONS`].
    pub(crate) reason: &'static str,
    pub(crate) prompt_tokens: usize,
    pub(crate) generation_tokens: usize,
    pub(crate) max_tokens: usize,
    /// The time since the sequence was submitted.
    pub(crate) elapsed: Duration,
    /// The time that the sequence waited in the queue. Only the first sequence of a prompt has this time.
    pub(crate) queued: Option<Duration>,
    pub(crate) to_first_token: Option<Duration>,
    /// The time from the sequence's first token to its last.
    pub(crate) decoding: Option<Duration>,
}

impl Metrics {
    /// Creates the counters of a server at zero. `traces` counts the spans that are sent to the collector, if traces
    /// are on.
    pub(crate) fn new(traces: Option<Arc<TraceCounts>>) -> Self {
        Self { server: Some(ServerCounts { responses: Default::default(), traces }), ..Self::of_model() }
    }

    /// Creates the counters of one of several models at zero. The server counts HTTP responses elsewhere.
    pub(crate) fn of_model() -> Self {
        let of_requests = || Histogram::new(REQUEST_BUCKETS);
        Self {
            time_to_first_token: Histogram::new(FIRST_TOKEN_BUCKETS),
            inter_token_latency: Histogram::new(TOKEN_BUCKETS),
            request_queue: of_requests(),
            params_n: Histogram::new(N_BUCKETS),
            prefill: of_requests(),
            decode: of_requests(),
            inference: of_requests(),
            time_per_token: Histogram::new(TOKEN_BUCKETS),
            e2e_latency: of_requests(),
            prompt_tokens: Histogram::new(LENGTH_BUCKETS),
            generation_tokens: Histogram::new(LENGTH_BUCKETS),
            params_max_tokens: Histogram::new(LENGTH_BUCKETS),
            finished: Default::default(),
            server: None,
        }
    }

    /// Counts a sequence that has ended.
    pub(crate) fn finished(&self, ended: Finished) {
        if let Some(index) = REASONS.iter().position(|&known| known == ended.reason) {
            self.finished[index].fetch_add(1, Relaxed);
        }
        self.e2e_latency.observe(ended.elapsed.as_secs_f64());
        self.prompt_tokens.observe(ended.prompt_tokens as f64);
        self.generation_tokens.observe(ended.generation_tokens as f64);
        self.params_max_tokens.observe(ended.max_tokens as f64);
        if let Some((queued, first)) = ended.queued.zip(ended.to_first_token) {
            let prefill = first.saturating_sub(queued);
            self.prefill.observe(prefill.as_secs_f64());
            self.inference.observe((prefill + ended.decoding.unwrap_or_default()).as_secs_f64());
        }
        if let Some(decoding) = ended.decoding {
            self.decode.observe(decoding.as_secs_f64());
            if ended.generation_tokens > 1 {
                self.time_per_token.observe(decoding.as_secs_f64() / (ended.generation_tokens - 1) as f64);
            }
        }
    }

    /// Counts a response by the first digit of its status.
    pub(crate) fn count_response(&self, status: StatusCode) {
        let of_server = self.server.as_ref();
        let counter = of_server.and_then(|server| server.responses.get(usize::from(status.as_u16() / 100)));
        counter.iter().for_each(|counter| _ = counter.fetch_add(1, Relaxed));
    }

    /// Renders all metrics in Prometheus' text format.
    pub(crate) fn render(&self, model: &str, engine: &EngineStatus, limits: &Limits, is_draining: bool) -> String {
        let mut page = Page::new(model);
        self.render_requests(&mut page, engine, limits);
        Self::render_engine(&mut page, engine, is_draining);
        Self::render_kv(&mut page, engine);
        page.counter(
            "interbed:requests_failed_total",
            "Sequences that failed: a failed pass, numbers that are not finite, or never to fit.",
            engine.finished.failed,
        );
        self.render_responses(&mut page);
        page.text
    }

    /// Renders figures about requests, under vLLM's names.
    fn render_requests(&self, page: &mut Page, engine: &EngineStatus, limits: &Limits) {
        let kv = &engine.kv;
        page.gauge("vllm:num_requests_running", "Sequences in the running set.", engine.running as f64);
        page.gauge("vllm:num_requests_waiting", "Sequences in the waiting queue.", engine.waiting as f64);
        page.gauge("vllm:kv_cache_usage_perc", "Share of KV memory held by sequences, 1 for all.", engine.kv_share());
        page.counter(
            "vllm:prefix_cache_queries_total",
            "Prompt tokens of admitted requests, each counted once however often it was preempted.",
            engine.prompt_tokens,
        );
        page.counter(
            "vllm:prefix_cache_hits_total",
            "Those of them that the prefix cache held when the request was first admitted.",
            engine.cached_tokens,
        );
        page.gauge("vllm:num_requests_swapped", "Sequences whose KV is swapped out.", engine.swapped as f64);
        page.counter(
            "vllm:num_preemptions_total",
            "Times that sequences had to make room for others.",
            engine.preemptions,
        );
        page.head("interbed:preemptions_total", "The same, by what became of their KV.", "counter");
        for (kind, count) in [
            ("recompute", engine.preemptions.saturating_sub(engine.preemptions_swap)),
            ("swap", engine.preemptions_swap),
        ] {
            page.sample("interbed:preemptions_total", &format!("kind=\"{kind}\""), count as f64);
        }
        page.counter("vllm:prompt_tokens_total", "Prompt tokens of admitted requests.", engine.prompt_tokens);
        page.counter("vllm:generation_tokens_total", "Tokens generated.", engine.generation_tokens);
        page.head("vllm:request_success_total", "Sequences that ended, by reason.", "counter");
        for (reason, count) in REASONS.iter().zip(&self.finished) {
            let labels = format!("finished_reason=\"{reason}\"");
            page.sample("vllm:request_success_total", &labels, count.load(Relaxed) as f64);
        }
        for (name, help, histogram) in [
            ("vllm:time_to_first_token_seconds", "From submission to the first token.", &self.time_to_first_token),
            ("vllm:inter_token_latency_seconds", "From one token to the next.", &self.inter_token_latency),
            ("vllm:e2e_request_latency_seconds", "From submission to the end.", &self.e2e_latency),
            ("vllm:request_queue_time_seconds", "From submission to admission, of each prompt.", &self.request_queue),
            ("vllm:request_prefill_time_seconds", "From admission to the first token, of each prompt.", &self.prefill),
            ("vllm:request_decode_time_seconds", "From the first token to the last.", &self.decode),
            (
                "vllm:request_inference_time_seconds",
                "From admission to the last token, of each prompt.",
                &self.inference,
            ),
            (
                "vllm:request_time_per_output_token_seconds",
                "Mean time from one token to the next, of each sequence.",
                &self.time_per_token,
            ),
            ("vllm:request_params_n", "Answers that requests asked for.", &self.params_n),
            ("vllm:request_params_max_tokens", "Tokens that sequences were allowed.", &self.params_max_tokens),
            ("vllm:request_prompt_tokens", "Prompt tokens of each sequence.", &self.prompt_tokens),
            ("vllm:request_generation_tokens", "Generated tokens of each sequence.", &self.generation_tokens),
        ] {
            page.histogram(name, help, histogram);
        }
        let pass_tokens = &engine.pass_tokens;
        page.buckets(
            "vllm:iteration_tokens_total",
            "Tokens of each pass, of prompts and decodes together.",
            pass_tokens.sum as f64,
            &TokenHistogram::BOUNDS.map(|bound| bound as f64),
            pass_tokens.counts.iter().copied(),
        );
        page.head("vllm:cache_config_info", "How KV is divided, as labels.", "gauge");
        let labels = format!("block_size=\"{}\",num_gpu_blocks=\"{}\"", limits.kv_block_tokens, kv.blocks_total);
        page.sample("vllm:cache_config_info", &labels, 1.0);
    }

    /// Renders figures about the engine's state, and about weights and devices.
    fn render_engine(page: &mut Page, engine: &EngineStatus, is_draining: bool) {
        let healthy = f64::from(u8::from(engine.health == Health::Ok));
        page.gauge("interbed:healthy", "1 while the engine makes progress or is idle.", healthy);
        page.gauge("interbed:loading", "1 while the model is being loaded.", 0.0);
        page.gauge("interbed:draining", "1 once the server takes nothing new.", f64::from(u8::from(is_draining)));
        page.gauge(
            "interbed:seconds_since_last_step",
            "Time since the engine's last step ended.",
            engine.since_last_step.as_secs_f64(),
        );
        page.counter("interbed:steps_total", "Forward passes.", engine.steps);
        if let Some(strips) = &engine.strips {
            render_strips(page, strips, engine.steps);
        }
        if let Some(stream) = &engine.stream {
            render_stream(page, stream, engine.generation_tokens);
        }
        if let Some(device) = &engine.memory.device {
            render_device(page, device);
        }
    }

    /// Renders figures about KV, wherever it is.
    fn render_kv(page: &mut Page, engine: &EngineStatus) {
        let kv = &engine.kv;
        page.head("interbed:kv_blocks", "KV blocks, by state.", "gauge");
        for (state, blocks) in [
            ("used", kv.blocks_used),
            ("cached", kv.blocks_cached),
            ("free", kv.blocks_free),
            ("withdrawn", kv.blocks_withdrawn),
        ] {
            page.sample("interbed:kv_blocks", &format!("state=\"{state}\""), blocks as f64);
        }
        page.gauge(
            "interbed:weights_resident_bytes",
            "Memory that weights take; streamed ones take less as KV needs more.",
            engine.memory.weights.0 as f64,
        );
        page.gauge("interbed:kv_bytes", "Memory of KV and states, but for withdrawn blocks.", engine.kv_bytes() as f64);
        render_tails(page, &engine.tails);
        page.gauge("interbed:kv_slots_allocated", "Token slots of used blocks.", kv.slots_allocated as f64);
        page.gauge("interbed:kv_slots_empty", "Those of them that hold no token yet.", kv.slots_empty as f64);
        page.counter("interbed:kv_evictions_total", "Cached blocks given up for new content.", kv.evictions);
        page.counter(
            "interbed:kv_allocation_failures_total",
            "Allocations refused for want of blocks.",
            kv.allocation_failures,
        );
        page.counter("interbed:kv_blocks_merged_total", "Blocks computed twice, and merged.", kv.blocks_merged);
        page.counter("interbed:kv_forks_total", "Sequences that forked off another.", kv.forks);
        page.counter("interbed:kv_copy_on_writes_total", "Shared blocks copied to be written to.", kv.copy_on_writes);
        if kv.swap_slots_total > 0 {
            let bytes = |blocks: u64| engine.memory.kv_block.0.saturating_mul(blocks);
            let usage = kv.swap_slots_used as f64 / kv.swap_slots_total as f64;
            page.gauge("vllm:cpu_cache_usage_perc", "Share of swap space in use, 1 for all.", usage);
            page.counter("interbed:swap_out_bytes_total", "KV written to swap space.", bytes(kv.swapped_out_blocks));
            page.counter("interbed:swap_in_bytes_total", "KV read from swap space.", bytes(kv.swapped_in_blocks));
            page.counter(
                "interbed:swaps_failed_total",
                "Swaps that failed; their KV was computed again.",
                kv.swaps_failed,
            );
        }
        if let Some(disk) = engine.tier("disk") {
            render_kv_disk(page, disk, engine.longer_than_memory);
        }
        if let Some(remote) = engine.tier("remote") {
            render_kv_remote(page, remote);
        }
        let allocation = &engine.allocation_seconds;
        page.buckets(
            "interbed:kv_allocation_seconds",
            "How long giving out the blocks of a step took, with the planning around it.",
            allocation.sum,
            &EngineHistogram::BOUNDS,
            allocation.counts.iter().copied(),
        );
        page.counter(
            "interbed:kv_leaks_found_total",
            "Idle checks that found lost blocks; always 0.",
            engine.leaks_found,
        );
    }

    /// Renders the metrics that exist before the engine does. `bytes` are the loaded bytes of weights, and the total.
    pub(crate) fn render_loading(&self, model: &str, bytes: (u64, u64)) -> String {
        let mut page = Page::new(model);
        page.gauge("interbed:healthy", "1 while the engine makes progress or is idle.", 0.0);
        page.gauge("interbed:loading", "1 while the model is being loaded.", 1.0);
        page.loaded(bytes);
        self.render_responses(&mut page);
        page.text
    }

    /// Renders the metrics of a server with several models: its own counts, after `model`, the metrics of the model in
    /// memory. Without a model in memory, `coming` names the model that is being loaded, with the numbers of loaded
    /// bytes and of all bytes.
    pub(crate) fn render_several(&self, model: Option<String>, coming: Option<(&str, (u64, u64))>) -> String {
        let mut text = model.unwrap_or_else(|| {
            let mut page = Page::new(coming.map_or("", |(name, _)| name));
            page.gauge("interbed:healthy", "1 while the engine makes progress or is idle.", 1.0);
            let loading = f64::from(u8::from(coming.is_some()));
            page.gauge("interbed:loading", "1 while the model is being loaded.", loading);
            if let Some((_, bytes)) = coming {
                page.loaded(bytes);
            }
            page.text
        });
        // The metrics of the whole server have no model's name as label.
        let mut page = Page::new("");
        self.render_responses(&mut page);
        text.push_str(&page.text);
        text
    }

    fn render_responses(&self, page: &mut Page) {
        let Some(ServerCounts { responses, traces }) = &self.server else { return };
        if let Some(traces) = traces {
            page.counter(
                "interbed:trace_spans_sent_total",
                "Spans that the collector took.",
                traces.sent.load(Relaxed),
            );
            let dropped = traces.dropped.load(Relaxed);
            page.counter("interbed:trace_spans_dropped_total", "Spans that it did not take in time.", dropped);
        }
        page.head("interbed:http_responses_total", "HTTP answers, by class of status.", "counter");
        for (class, count) in responses.iter().enumerate().skip(1) {
            let labels = format!("status=\"{class}xx\"");
            page.sample("interbed:http_responses_total", &labels, count.load(Relaxed) as f64);
        }
    }
}

/// A Prometheus histogram: counts of observations up to each bound.
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// The number of values up to each bound and above the bound before it, and at the end the number of larger
    /// values.
    counts: Vec<AtomicU64>,
    /// The sum of the observations in millionths, as there are no atomic floats.
    sum_micro: AtomicU64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum_micro: AtomicU64::new(0) }
    }

    pub(crate) fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum_micro.fetch_add((value * 1e6) as u64, Relaxed);
    }
}

/// Renders figures about windows and states, which layers keep beside the KV of all tokens.
fn render_tails(page: &mut Page, tails: &TailStats) {
    if tails.groups.is_empty() {
        return;
    }
    page.head("interbed:kv_tail_bytes", "Memory of windows and states, by what layers keep, and by state.", "gauge");
    for (number, group) in tails.groups.iter().enumerate() {
        let keeps = match group.keeps {
            Keeps::Window { tokens } => format!("window of {tokens}"),
            Keeps::State => "state".to_owned(),
        };
        for (state, blocks) in
            [("used", group.blocks_held), ("cached", group.blocks_cached), ("free", group.blocks_free)]
        {
            let labels = format!("group=\"{number}\",keeps=\"{keeps}\",state=\"{state}\"");
            page.sample("interbed:kv_tail_bytes", &labels, (blocks * group.block_bytes) as f64);
        }
    }
    page.gauge(
        "interbed:kv_resume_points",
        "Places of cached KV behind which requests can go on.",
        tails.points as f64,
    );
    page.counter(
        "interbed:kv_resume_points_given_up_total",
        "Such places that were given up for memory; those that ended as their cached KV was evicted do not count.",
        tails.points_given_up,
    );
}

/// Renders figures about KV that is mapped contiguously.
fn render_strips(page: &mut Page, strips: &StripsStatus, steps: u64) {
    let StripsStatus { mappings, mappings_max, mapped_blocks, listed, time, work } = strips;
    for (name, help, value) in [
        ("interbed:kv_mappings", "Mappings of KV, of which the system allows a number.", *mappings),
        ("interbed:kv_mappings_max", "Mappings of KV that are made at most.", *mappings_max),
        ("interbed:kv_mapped_blocks", "Blocks mapped for sequences; shared ones count several times.", *mapped_blocks),
    ] {
        page.gauge(name, help, value as f64);
    }
    for (name, help, value) in [
        ("interbed:kv_maps_waited_total", "Changes of mappings that a pass waited for.", work.changes),
        ("interbed:kv_maps_beside_total", "Changes of mappings made beside passes.", work.changes_beside),
        ("interbed:kv_maps_refused_total", "Changes of mappings that the system refused at once.", work.refused),
        ("interbed:kv_unmapped_sequences_total", "Times that a sequence in a pass had no mapping.", *listed),
    ] {
        page.counter(name, help, value);
    }
    let each = time.as_secs_f64() / steps.max(1) as f64;
    page.gauge("interbed:kv_map_seconds_per_step", "Time that a step takes for mappings before its pass.", each);
    page.gauge(
        "interbed:kv_map_beside_seconds",
        "Time that mapping took beside passes.",
        work.time_beside.as_secs_f64(),
    );
}

/// Renders figures about a device with its own memory.
fn render_device(page: &mut Page, device: &DeviceStats) {
    let DeviceStats { name, memory_used, memory_budget, bytes_to_device, bytes_to_host, waits_for_room } = device;
    let label = format!("device=\"{}\"", escaped(name));
    for (name, help, kind, value) in [
        ("interbed:device_memory_used_bytes", "Memory of the device in use.", "gauge", memory_used.0),
        ("interbed:device_memory_budget_bytes", "Memory of the device that may be used.", "gauge", memory_budget.0),
        (
            "interbed:device_written_bytes_total",
            "Bytes that went over the link to the device.",
            "counter",
            *bytes_to_device,
        ),
        ("interbed:device_read_bytes_total", "Bytes that came over the link to the host.", "counter", *bytes_to_host),
        (
            "interbed:device_waits_for_room_total",
            "Times that the host waited for room for what it hands to the device.",
            "counter",
            *waits_for_room,
        ),
    ] {
        page.head(name, help, kind);
        page.sample(name, &label, value as f64);
    }
}

/// Renders figures about streamed weights.
fn render_stream(page: &mut Page, stream: &StreamStats, generation_tokens: u64) {
    page.counter("interbed:stream_passes_total", "Passes over streamed weights.", stream.passes);
    page.counter("interbed:stream_read_bytes_total", "Bytes of weights read from disk.", stream.bytes_read);
    page.counter("interbed:stream_copied_bytes_total", "Bytes of weights copied to a device.", stream.bytes_copied);
    page.counter(
        "interbed:stream_waits_for_copies_total",
        "Times that a pass waited for copies to a device, which read all host memory for streaming.",
        stream.waits_for_copies,
    );
    page.counter("interbed:stream_reads_failed_total", "Reads that failed, tried again or not.", stream.reads_failed);
    for (name, help, count) in [
        (
            "interbed:stream_experts_wanted_total",
            "Experts that passes needed, each once a pass and layer; 0 without experts.",
            stream.experts_wanted,
        ),
        ("interbed:stream_experts_read_total", "Those of them that were not in memory.", stream.experts_read),
        ("interbed:stream_experts_ahead_total", "Experts read before a pass needed them.", stream.experts_ahead),
        ("interbed:stream_expert_read_bytes_total", "Bytes of experts read from disk.", stream.expert_bytes_read),
    ] {
        page.counter(name, help, count);
    }
    let each = |count: u64| stream.bytes_read as f64 / count.max(1) as f64;
    page.gauge("interbed:stream_bytes_per_pass", "Bytes of weights read from disk for a pass.", each(stream.passes));
    page.gauge("interbed:stream_bytes_per_token", "The same for a generated token.", each(generation_tokens));
    for (name, help, value) in [
        ("interbed:stream_stall_share", "Part of their time that passes waited for weights.", stream.stall_share()),
        (
            "interbed:stream_share_of_bound",
            "Time that the disk needs for the bytes read, as it was at the start, over the time of the passes.",
            stream.share_of_disk_bound(),
        ),
        ("interbed:stream_overlap_efficiency", "1 - stall / I/O time.", stream.overlap_efficiency()),
    ] {
        if let Some(value) = value {
            page.gauge(name, help, value);
        }
    }
}

fn render_kv_disk(page: &mut Page, disk: &TierStatus, longer_than_memory: usize) {
    let TierStatus { store, fetched_tokens, fetches, fetch_seconds, fetches_cut, recomputed, shared, .. } = disk;
    for (name, help, value) in [
        ("interbed:kv_disk_bytes", "Disk space that KV has taken.", store.bytes_used as f64),
        ("interbed:kv_disk_capacity_bytes", "Disk space that KV may take.", store.bytes_total as f64),
        ("interbed:kv_disk_blocks", "Blocks on disk.", store.blocks as f64),
        ("interbed:kv_disk_queued_blocks", "Blocks that wait to be written.", store.queued_blocks as f64),
        ("interbed:kv_disk_queued_reads", "Records that wait to be read.", store.queued_reads as f64),
        ("interbed:kv_disk_long_sequences", "Sequences with more KV than memory.", longer_than_memory as f64),
        (
            "interbed:kv_disk_paused",
            "1 while nothing is written because writes have failed.",
            f64::from(store.is_paused()),
        ),
        ("interbed:kv_disk_read_rate", "Bytes a second at which KV was read lately.", store.read_rate),
    ] {
        page.gauge(name, help, value);
    }
    let counts = &store.counts;
    for (name, help, count) in [
        ("interbed:kv_disk_written_bytes_total", "KV written to disk.", store.written_bytes),
        ("interbed:kv_disk_read_bytes_total", "KV read from disk.", store.read_bytes),
        ("interbed:kv_disk_durable_blocks_total", "Blocks that are on disk for sure.", store.durable_blocks),
        ("interbed:kv_disk_hits_total", "Blocks that look-ups found on disk.", counts.hits),
        ("interbed:kv_disk_stored_blocks_total", "Blocks written for the first time.", counts.stored),
        ("interbed:kv_disk_carried_blocks_total", "Blocks written again, to keep them.", counts.carried),
        ("interbed:kv_disk_evictions_total", "Blocks on disk given up for new ones.", counts.evicted),
        ("interbed:kv_disk_skipped_blocks_total", "Blocks that were not worth a write.", counts.skipped),
        ("interbed:kv_disk_refused_blocks_total", "Blocks without buffer, room or budget.", store.refused_blocks),
        ("interbed:kv_disk_write_errors_total", "Writes that failed.", store.write_errors),
        ("interbed:kv_disk_read_errors_total", "Reads that failed or found other data.", store.read_errors),
        ("interbed:kv_disk_swap_spared_bytes_total", "Bytes that swaps need not write.", store.swap_spared_bytes),
        ("interbed:kv_disk_frames_total", "Pieces of KV beyond memory that passes read.", store.frames),
        ("interbed:kv_disk_fetches_total", "Sequences that waited for a prefix on disk.", *fetches),
        ("interbed:kv_disk_fetched_tokens_total", "Tokens that came from disk.", *fetched_tokens),
        ("interbed:kv_disk_fetches_cut_total", "Fetches that brought less than was found.", *fetches_cut),
        ("interbed:kv_disk_recomputed_total", "Prefixes on disk that were computed instead.", *recomputed),
        ("interbed:kv_disk_shared_total", "Prefixes computed in part while the rest was read.", *shared),
        ("interbed:kv_disk_expired_blocks_total", "Blocks forgotten since they were too old.", store.expired_blocks),
    ] {
        page.counter(name, help, count);
    }
    page.gauge("interbed:kv_disk_frame_seconds", "Time that passes waited for KV beyond memory.", store.frame_seconds);
    page.gauge("interbed:kv_disk_fetch_seconds", "Time that sequences waited for KV on disk.", *fetch_seconds);
}

fn render_kv_remote(page: &mut Page, remote: &TierStatus) {
    let TierStatus { store, fresh_blocks, asked_tokens, fetched_tokens, fetches, fetch_seconds, .. } = remote;
    let (counts, queued_blocks) = (&store.counts, store.queued_blocks + fresh_blocks);
    for (name, help, value) in [
        ("interbed:kv_remote_queued_blocks", "Blocks that wait to be written.", queued_blocks as f64),
        (
            "interbed:kv_remote_paused",
            "1 while the store is left alone since it has failed.",
            f64::from(store.is_paused()),
        ),
        ("interbed:kv_remote_read_rate", "Bytes a second at which KV was read lately.", store.read_rate),
        ("interbed:kv_remote_answer_seconds", "Time until the store answered lately.", store.answer_seconds),
        ("interbed:kv_remote_fetch_seconds", "Time that sequences waited for the store.", *fetch_seconds),
    ] {
        page.gauge(name, help, value);
    }
    for (name, help, count) in [
        (
            "vllm:external_prefix_cache_queries_total",
            "Prompt tokens that the shared store was asked for.",
            *asked_tokens,
        ),
        ("vllm:external_prefix_cache_hits_total", "Prompt tokens that came from the shared store.", *fetched_tokens),
        ("interbed:kv_remote_fetches_total", "Sequences that waited for the store.", *fetches),
        ("interbed:kv_remote_slow_fetches_total", "Fetches given up since the store was slow.", store.slow_fetches),
        ("interbed:kv_remote_asked_blocks_total", "Blocks that were looked for.", store.asked_blocks),
        ("interbed:kv_remote_hit_blocks_total", "Blocks that came.", counts.hits),
        ("interbed:kv_remote_stored_blocks_total", "Blocks that were written.", counts.stored),
        ("interbed:kv_remote_skipped_blocks_total", "Blocks that were not worth a write.", counts.skipped),
        ("interbed:kv_remote_refused_blocks_total", "Blocks without a buffer.", store.refused_blocks),
        ("interbed:kv_remote_read_bytes_total", "Bytes read from the store.", store.read_bytes),
        ("interbed:kv_remote_written_bytes_total", "Bytes written to the store.", store.written_bytes),
        ("interbed:kv_remote_read_errors_total", "Reads that failed.", store.read_errors),
        (
            "interbed:kv_remote_wrong_objects_total",
            "Objects that were damaged, foreign or too old.",
            store.wrong_objects,
        ),
        ("interbed:kv_remote_write_errors_total", "Writes that failed.", store.write_errors),
    ] {
        page.counter(name, help, count);
    }
}

/// Escapes a label's text, and replaces control characters, which could command a terminal.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    text.replace(char::is_control, "_")
}

/// The text of the metrics while it is being written.
struct Page {
    text: String,
    common_labels: String,
}

impl Page {
    fn new(model: &str) -> Self {
        // The server has one engine, which gets the number 0, as in vLLM.
        Self { text: String::new(), common_labels: format!("model_name=\"{}\",engine=\"0\"", escaped(model)) }
    }

    // Writing to a String cannot fail, so the results below are ignored.

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let separator = if labels.is_empty() { "" } else { "," };
        let _ = writeln!(self.text, "{name}{{{}{separator}{labels}}} {value}", self.common_labels);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help, "gauge");
        self.sample(name, "", value);
    }

    /// Writes how many bytes of a model are loaded, and how many there are.
    fn loaded(&mut self, bytes: (u64, u64)) {
        self.gauge("interbed:load_done_bytes", "Bytes of weights that are loaded.", bytes.0 as f64);
        self.gauge("interbed:load_all_bytes", "Bytes of weights that will be.", bytes.1 as f64);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, help, "counter");
        self.sample(name, "", value as f64);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        let counts = histogram.counts.iter().map(|count| count.load(Relaxed));
        self.buckets(name, help, histogram.sum_micro.load(Relaxed) as f64 / 1e6, histogram.bounds, counts);
    }

    /// Writes a histogram of non-cumulative `counts`: one for each of `bounds` and one for larger values.
    fn buckets(&mut self, name: &str, help: &str, sum: f64, bounds: &[f64], counts: impl Iterator<Item = u64>) {
        self.head(name, help, "histogram");
        let bounds = bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        let mut total = 0;
        for (bound, count) in bounds.zip(counts) {
            total += count;
            self.sample(&format!("{name}_bucket"), &format!("le=\"{bound}\""), total as f64);
        }
        self.sample(&format!("{name}_sum"), "", sum);
        self.sample(&format!("{name}_count"), "", total as f64);
    }
}

#[cfg(test)]
mod tests {
    use interbed_engine::TailGroupStats;
    use interbed_engine::testing::ScriptedEngine;

    use super::*;

    fn render(status: &EngineStatus) -> String {
        Metrics::new(None).render("m", status, &ScriptedEngine::limits(), false)
    }

    #[test]
    fn experts_of_streamed_weights_are_counted() {
        let mut status = EngineStatus::default();
        assert!(!render(&status).contains("interbed:stream_"), "nothing is streamed");
        let stream = StreamStats {
            experts_wanted: 24,
            experts_read: 5,
            experts_ahead: 2,
            expert_bytes_read: 5 << 20,
            ..StreamStats::default()
        };
        status.stream = Some(stream);
        let page = render(&status);
        for line in [
            "# TYPE interbed:stream_experts_wanted_total counter",
            r#"interbed:stream_experts_wanted_total{model_name="m",engine="0"} 24"#,
            r#"interbed:stream_experts_read_total{model_name="m",engine="0"} 5"#,
            r#"interbed:stream_experts_ahead_total{model_name="m",engine="0"} 2"#,
            r#"interbed:stream_expert_read_bytes_total{model_name="m",engine="0"} 5242880"#,
        ] {
            assert!(page.lines().any(|candidate| candidate == line), "{line}\n{page}");
        }
    }

    #[test]
    fn windows_and_states_are_told_by_group_and_count_as_kv() {
        let window = TailGroupStats {
            keeps: Keeps::Window { tokens: 128 },
            block_bytes: 50,
            blocks_held: 4,
            blocks_cached: 2,
            blocks_free: 1,
        };
        let state = TailGroupStats { keeps: Keeps::State, block_bytes: 1000, blocks_held: 1, ..window };
        let mut status = EngineStatus::default();
        status.memory.kv_block.0 = 100;
        (status.kv.blocks_total, status.kv.blocks_withdrawn, status.kv.blocks_used) = (80, 50, 20);
        status.tails = TailStats { groups: vec![window, state], points: 3, points_given_up: 5 };
        let page = render(&status);
        for line in [
            r#"interbed:kv_tail_bytes{model_name="m",engine="0",group="0",keeps="window of 128",state="used"} 200"#,
            r#"interbed:kv_tail_bytes{model_name="m",engine="0",group="0",keeps="window of 128",state="free"} 50"#,
            r#"interbed:kv_tail_bytes{model_name="m",engine="0",group="1",keeps="state",state="cached"} 2000"#,
            r#"interbed:kv_resume_points{model_name="m",engine="0"} 3"#,
            r#"interbed:kv_resume_points_given_up_total{model_name="m",engine="0"} 5"#,
            r#"interbed:kv_bytes{model_name="m",engine="0"} 7350"#,
            r#"vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.4"#,
        ] {
            assert!(page.lines().any(|candidate| candidate == line), "{line}\n{page}");
        }
        assert!(!render(&EngineStatus::default()).contains("tail"));
    }

    #[test]
    fn histograms_are_cumulative_and_labels_escaped() {
        let metrics = Metrics::new(None);
        metrics.time_to_first_token.observe(0.001);
        metrics.time_to_first_token.observe(0.3);
        metrics.time_to_first_token.observe(1e9);
        let mut status = EngineStatus::default();
        status.allocation_seconds.record(Duration::from_micros(3));
        status.kv.slots_empty = 7;
        (status.kv.blocks_total, status.kv.blocks_withdrawn) = (45, 5);
        (status.memory.kv_block.0, status.memory.weights.0) = (100, 8192);
        (status.preemptions, status.preemptions_swap, status.swapped) = (5, 2, 1);
        (status.kv.swap_slots_total, status.kv.swap_slots_used, status.kv.swapped_out_blocks) = (8, 2, 3);
        let page = metrics.render("a\"b", &status, &ScriptedEngine::limits(), false);
        for line in [
            r#"vllm:time_to_first_token_seconds_bucket{model_name="a\"b",engine="0",le="0.001"} 1"#,
            r#"vllm:time_to_first_token_seconds_bucket{model_name="a\"b",engine="0",le="0.25"} 1"#,
            r#"vllm:time_to_first_token_seconds_bucket{model_name="a\"b",engine="0",le="0.5"} 2"#,
            r#"vllm:time_to_first_token_seconds_bucket{model_name="a\"b",engine="0",le="+Inf"} 3"#,
            r#"vllm:time_to_first_token_seconds_count{model_name="a\"b",engine="0"} 3"#,
            r#"interbed:kv_slots_empty{model_name="a\"b",engine="0"} 7"#,
            r#"interbed:kv_blocks{model_name="a\"b",engine="0",state="withdrawn"} 5"#,
            r#"vllm:num_preemptions_total{model_name="a\"b",engine="0"} 5"#,
            r#"vllm:num_requests_swapped{model_name="a\"b",engine="0"} 1"#,
            r#"interbed:preemptions_total{model_name="a\"b",engine="0",kind="recompute"} 3"#,
            r#"interbed:preemptions_total{model_name="a\"b",engine="0",kind="swap"} 2"#,
            r#"vllm:cpu_cache_usage_perc{model_name="a\"b",engine="0"} 0.25"#,
            r#"interbed:swap_out_bytes_total{model_name="a\"b",engine="0"} 300"#,
            r#"interbed:kv_bytes{model_name="a\"b",engine="0"} 4000"#,
            r#"interbed:weights_resident_bytes{model_name="a\"b",engine="0"} 8192"#,
            r#"interbed:kv_allocation_seconds_bucket{model_name="a\"b",engine="0",le="0.000001"} 0"#,
            r#"interbed:kv_allocation_seconds_bucket{model_name="a\"b",engine="0",le="0.000005"} 1"#,
            r#"interbed:kv_allocation_seconds_bucket{model_name="a\"b",engine="0",le="+Inf"} 1"#,
            r#"interbed:kv_allocation_seconds_sum{model_name="a\"b",engine="0"} 0.000003"#,
        ] {
            assert!(page.lines().any(|candidate| candidate == line), "{line}\n{page}");
        }
    }
}
