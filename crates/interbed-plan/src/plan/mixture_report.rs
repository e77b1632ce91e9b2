//! Writes a plan of a mixture, for people and for scripts.

use std::fmt::{self, Write};

use interbed_device::Bytes;
use serde_json::{Value, json};

use super::json::figure;
use super::mixture::{MixtureDecode, MixturePlan};
use super::report::{write_kv, write_machine};
use crate::words::{bytes, number, seconds, short};

impl MixturePlan {
    /// Returns the tables of the plan as text.
    pub fn report(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let (config, sizes) = (&self.subject.config, &self.sizes);
        let Some(mixture) = config.blueprint.mixture() else { return Ok(()) };
        writeln!(out, "{}", self.verdict())?;
        writeln!(
            out,
            "{}: {} parameters, {} of them for a token, mostly {}; KV {} a token",
            self.subject.name,
            short(config.blueprint.num_parameters()),
            short(config.blueprint.active_parameters()),
            self.subject.dtype,
            Bytes(self.kv_token)
        )?;
        writeln!(
            out,
            "{} layers of {} experts, {} each: {} in all, of which a token needs {}; other weights {}",
            config.blueprint.mixtures().count(),
            mixture.experts,
            bytes(sizes.expert),
            bytes(sizes.bank as f64),
            bytes(sizes.of_token as f64),
            bytes(sizes.dense as f64)
        )?;
        if let Some(note) = &self.subject.note {
            writeln!(out, "({note})")?;
        }
        write_machine(out, &self.machine)?;
        writeln!(out, "\nMemory")?;
        for (name, size) in self.memory.iter().filter(|(_, size)| *size > 0) {
            writeln!(out, "  {name:<24}{:>10}", bytes(*size as f64))?;
        }
        let share = 100.0 * sizes.room as f64 / sizes.bank.max(1) as f64;
        writeln!(out, "  {:<24}{:>8.1} %", "room for experts", share.min(100.0))?;
        write_kv(out, &self.kv)?;
        if sizes.room < sizes.of_token {
            let more = Bytes(sizes.of_token - sizes.room);
            writeln!(out, "  The experts of one token do not fit: with {more} more of --memory some would stay.")?;
        }
        writeln!(out, "\nRouting: {}", self.routing)?;
        writeln!(
            out,
            "  {:<16}{:>10}{:>11}{:>14}{:>13}{:>12}{:>11}{:>14}",
            "", "a pass", "tokens/s", "experts", "from disk", "disk", "compute", "foreseen"
        )?;
        for decode in &self.decode {
            let MixtureDecode { batch, needed, read, seconds: time, foreseen, disk, compute } = *decode;
            let name = if batch == 1 { "1 sequence".into() } else { format!("{batch} sequences") };
            writeln!(
                out,
                "  {name:<16}{:>10}{:>11}{:>14}{:>13}{:>12}{:>11}{:>14}",
                seconds(time),
                number(batch as f64 / time),
                bytes(needed),
                bytes(read),
                seconds(disk),
                seconds(compute),
                seconds(foreseen)
            )?;
        }
        for (batch, tokens) in &self.too_many {
            let name = format!("{batch} sequences");
            // The last token of an answer goes through no layer.
            let options = format!("--ignore-eos --max-tokens {} --record-routing FILE", tokens + 1);
            writeln!(out, "  {name:<16}  the routing is too short: record {tokens} tokens (interbed run {options})")?;
        }
        let prompt = &self.prompt;
        writeln!(
            out,
            "  {:<16}{:>10}{:>11}{:>14}{:>13}",
            format!("prompt of {}", self.prompt_tokens),
            seconds(prompt.seconds),
            number(self.prompt_tokens as f64 / prompt.seconds),
            if prompt.passes == 1 { "1 pass".to_owned() } else { format!("{} passes", prompt.passes) },
            bytes(prompt.read)
        )?;
        writeln!(
            out,
            "  Which experts a layer needs is known when it begins; `foreseen` is what perfect foresight would take."
        )
    }

    /// Returns the plan as one JSON object, in bytes, seconds and rates.
    pub fn to_json(&self) -> Value {
        let (config, sizes, machine) = (&self.subject.config, &self.sizes, &self.machine);
        let memory = self.memory.iter().map(|(name, size)| ((*name).to_owned(), json!(size)));
        let decode = |decode: &MixtureDecode| {
            json!({
                "batch": decode.batch,
                "seconds": decode.seconds,
                "tokens_per_s": decode.batch as f64 / decode.seconds,
                "expert_bytes": decode.needed,
                "disk_bytes": decode.read,
                "disk_seconds": decode.disk,
                "compute_seconds": decode.compute,
                "foreseen_seconds": decode.foreseen,
            })
        };
        json!({
            "verdict": self.verdict().to_json(),
            "model": {
                "name": self.subject.name,
                "note": self.subject.note,
                "parameters": config.blueprint.num_parameters(),
                "active_parameters": config.blueprint.active_parameters(),
                "dtype": self.subject.dtype.name(),
                "kv_bytes_per_token": self.kv_token,
                "dense_bytes": sizes.dense,
                "expert_bytes": sizes.expert,
                "bank_bytes": sizes.bank,
                "token_expert_bytes": sizes.of_token,
            },
            "machine": {
                "disk_bytes_per_s": figure(&machine.disk),
                "memory_bytes": figure(&machine.memory),
                "host_bytes_per_s": figure(&machine.bandwidth),
                "host_flops": figure(&machine.flops),
            },
            "memory": serde_json::Map::from_iter(memory),
            "expert_room_bytes": sizes.room,
            "kv_tokens": self.kv.tokens,
            "routing": self.routing,
            "decode": self.decode.iter().map(decode).collect::<Vec<_>>(),
            "batches_too_large": self.too_many.iter().map(|(batch, _)| batch).collect::<Vec<_>>(),
            "prompt": {
                "tokens": self.prompt_tokens,
                "passes": self.prompt.passes,
                "seconds": self.prompt.seconds,
                "disk_bytes": self.prompt.read,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::num::NonZeroUsize;
    use std::path::{Path, PathBuf};

    use interbed_device::Bytes;
    use interbed_engine::{MemoryNeeds, SchemaNeeds};
    use interbed_kernels::DType;
    use tempfile::TempDir;

    use super::super::{Batches, KnownFigures, Passes, PlanRequest, Subject};
    use super::*;
    use crate::progress::Progress;
    use crate::refusal::Refusal;
    use crate::routing::{LayerBytes, RoutingHead, RoutingRow, RoutingWriter};

    struct Silent;

    impl Progress for Silent {
        fn begin_steps(&mut self, _what: &'static str, _total: u64) {}
        fn begin_bytes(&mut self, _what: &'static str, _total: u64) {}
        fn advance(&mut self, _by: u64) {}
        fn end(&mut self) {}
    }

    fn plan(memory_gib: u64, flops: f64) -> MixturePlan {
        plan_of(memory_gib, flops, 8, None).unwrap()
    }

    fn plan_of(memory_gib: u64, flops: f64, batch: usize, trace: Option<PathBuf>) -> Result<MixturePlan, Refusal> {
        let subject = Subject::imagined(Path::new("qwen3-30b-a3b"), Some(DType::Q4K)).unwrap().unwrap();
        let bytes = subject.weight_bytes().unwrap();
        let needs = MemoryNeeds {
            process: Bytes(0),
            opening: Bytes(0),
            weights: bytes.whole,
            weights_streamed: bytes.streamed,
            scratch: Bytes(100 << 20),
            requests: Bytes(16 << 20),
            schemas: SchemaNeeds::default(),
            swap: Bytes(0),
            block: Bytes(3 << 19),
            block_returnable: Bytes(3 << 19),
            blocks_most: 100,
            block_size: 16,
            blocks_beside: 0,
            max_model_len: 1024,
            max_num_seqs: 8,
        };
        let request = PlanRequest {
            subject,
            machine: KnownFigures {
                disk_bw: Some(2e9),
                host_bw: Some(20e9),
                flops: Some(flops),
                memory: Some(Bytes(memory_gib << 30)),
                ..KnownFigures::default()
            },
            threads: NonZeroUsize::MIN,
            needs: &|_| needs,
            passes: Passes { tokens: 512, given: false, usual: 512, longer: &|_| None },
            kv_token: 98_304,
            batches: Batches::new(&[NonZeroUsize::new(batch).unwrap()]).unwrap(),
            prompt_tokens: 512,
            kv_tokens: None,
            host_weights: None,
            gpu_weights: None,
        };
        MixturePlan::make(request, trace, &mut Silent)
    }

    /// Writes a trace of `tokens` tokens of a model of these layers and experts. Each token uses four experts, always
    /// the same ones.
    fn trace(folder: &TempDir, layers: u32, experts: u32, tokens: u32) -> PathBuf {
        let of = |layer| LayerBytes { layer, expert_bytes: 3_000_000, dense_bytes: 0 };
        let layer_bytes = (0..layers).map(of).collect();
        let head = RoutingHead { model: "m".into(), arch: "a".into(), layers, experts, top_k: 4, layer_bytes };
        let path = folder.path().join(format!("{layers}-{experts}-{tokens}.csv"));
        let mut writer = RoutingWriter::new(File::create(&path).unwrap(), &head).unwrap();
        let rows =
            (0..tokens).flat_map(|step| (0..layers).flat_map(move |layer| (0..4).map(move |slot| (step, layer, slot))));
        for (step, layer, slot) in rows {
            let (turn, prompt, weight, held, read_bytes) = (0, false, 1.0, true, 0);
            let row = RoutingRow { turn, prompt, step, layer, slot, expert: 7 * slot, weight, held, read_bytes };
            writer.write(&row).unwrap();
        }
        writer.finish().unwrap();
        path
    }

    #[test]
    fn a_recorded_routing_is_planned_with() {
        let folder = tempfile::tempdir().unwrap();
        let recorded = plan_of(2, 1e12, 8, Some(trace(&folder, 48, 128, 40))).unwrap();
        let sizes = recorded.sizes;
        let [one] = &recorded.decode[..] else { panic!("{:?}", recorded.decode) };
        // Half as many experts a token as the model has: what they need is doubled. All of it stays.
        assert!((one.needed - sizes.of_token as f64).abs() < 1.0 && one.read == sizes.dense_read as f64, "{one:?}");
        assert_eq!(recorded.too_many, [(8, 136)]);
        let report = recorded.report();
        for part in [
            "of m, 4 experts for each token instead of 8",
            "8 sequences",
            "record 136 tokens (interbed run --ignore-eos --max-tokens 137",
        ] {
            assert!(report.contains(part), "{part} in {report}");
        }
        assert_eq!(recorded.to_json()["batches_too_large"], json!([8]));
        let refused = |batch, trace: Option<PathBuf>, part: &str| {
            let error = plan_of(2, 1e12, batch, trace).err().expect("it is refused").to_string();
            assert!(error.contains(part), "{part} in {error}");
        };
        refused(8, Some(trace(&folder, 48, 128, 16)), "is too short");
        refused(8, Some(trace(&folder, 47, 128, 40)), "is of 47 layers with 128 experts, and this model has 48");
        refused(8, Some(folder.path().join("none.csv")), "none.csv");
        refused(257, None, "--batch 257 is too large for a mixture");
    }

    #[test]
    fn more_memory_reads_less_and_takes_less_time() {
        let plans = [1, 4, 8, 32].map(|gib| plan(gib, 1e12));
        for pair in plans.windows(2) {
            for (less, more) in pair[0].decode.iter().zip(&pair[1].decode) {
                assert!(less.read > more.read && less.seconds > more.seconds, "{less:?} {more:?}");
            }
            assert!(pair[0].prompt.read > pair[1].prompt.read);
        }
        let [one, eight] = &plans[3].decode[..] else { panic!("two batches") };
        assert_eq!((one.read, eight.read), (0.0, 0.0), "all of it is in memory");
        let sizes = plans[0].sizes;
        assert_eq!(sizes.of_token, sizes.bank / 16, "8 of 128");
        for decode in plans.iter().flat_map(|plan| &plan.decode) {
            assert!(decode.seconds >= decode.foreseen, "{decode:?}");
            assert!(decode.needed >= sizes.of_token as f64 * 0.99 && decode.needed <= (sizes.of_token * 8) as f64);
        }
        assert!(plans[0].report().contains("do not fit") && plans[3].to_json()["decode"][1]["batch"] == 8);
    }
}
