//! Beam searches in a random load, carried out as the engine does (`engine/beams.rs`), but for what the beams say.

use std::collections::BTreeMap;

use super::*;

/// Searches under way, each by the sequence that it began with.
#[derive(Default)]
pub(super) struct Searches {
    runs: BTreeMap<SequenceId, Run>,
    next: u64,
}

struct Run {
    beams: Vec<SequenceId>,
    width: usize,
    prompt_len: usize,
    /// Tokens of each beam.
    generated: usize,
    /// Tokens after which it ends.
    end: usize,
}

impl Searches {
    pub(super) fn add(&mut self, bench: &mut Bench, arrival: Arrival, width: usize) {
        let (prompt_len, end) = (arrival.prompt.len(), arrival.max_tokens);
        self.runs.insert(arrival.id, Run { beams: vec![arrival.id], width, prompt_len, generated: 0, end });
        bench.scheduler.add(Arrival { beams: Some(width), ..arrival });
    }

    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    /// Drops the search that `id` is part of.
    pub(super) fn remove(&mut self, bench: &mut Bench, id: SequenceId) {
        let search = bench.scheduler.sequence(id).search.expect("it is a beam");
        let run = self.runs.remove(&search).expect("its search is known");
        run.beams.iter().for_each(|&beam| drop(bench.scheduler.remove(beam)));
    }

    /// Those that have lost their blocks wait as one sequence each.
    pub(super) fn gather(&mut self, bench: &mut Bench) {
        for run in self.runs.values_mut() {
            if run.beams.len() > 1 && bench.scheduler.any_waits(&run.beams) {
                bench.scheduler.gather(&run.beams, run.prompt_len);
                run.beams.truncate(1);
            }
        }
    }

    /// Those whose pass has retired go on, or end. All beams differ from their first token on; now and then one of them dies,
    /// and another has two children.
    pub(super) fn retire(&mut self, bench: &mut Bench, random: &mut impl FnMut(u64) -> u64) {
        self.runs.retain(|_, run| {
            let is_computed = |id: &SequenceId| {
                let sequence = bench.scheduler.sequence(*id);
                sequence.place == Place::Running && sequence.pending() == 0
            };
            if !run.beams.iter().all(is_computed) {
                return true;
            }
            let is_trunk = run.beams.len() < run.width && run.generated > 0;
            if !is_trunk {
                run.generated += 1;
                if run.generated >= run.end {
                    run.beams.iter().for_each(|&beam| drop(bench.scheduler.remove(beam)));
                    return false;
                }
                if run.beams.len() > 1 && random(4) == 0 {
                    bench.scheduler.remove(run.beams.pop().expect("it has beams"));
                }
            }
            let parent = run.beams[random(run.beams.len() as u64) as usize];
            while run.beams.len() < run.width {
                let child = SequenceId((1 << 32) + self.next);
                self.next += 1;
                bench.scheduler.branch(parent, child);
                run.beams.push(child);
            }
            bench.scheduler.share_seats(&run.beams, run.width);
            let known = if is_trunk { run.generated } else { 1 };
            for &beam in &run.beams {
                bench.scheduler.extend(beam, (0..known).map(|_| beam.0 as u32));
            }
            true
        });
    }
}
