//! Runs beam searches in a random load. They are carried out as the engine does (`group/beams.rs`), except that the
//! tokens of the beams are made up.

use std::collections::BTreeMap;

use super::*;

/// The searches in flight.
#[derive(Default)]
pub(super) struct Searches {
    runs: BTreeMap<GroupId, Run>,
    next: u64,
}

struct Run {
    beams: Vec<SequenceId>,
    width: usize,
    prompt_len: usize,
    /// The number of tokens that each beam has generated.
    generated: usize,
    /// The number of tokens after which the search ends.
    end: usize,
}

impl Searches {
    pub(super) fn add(&mut self, bench: &mut Bench, arrival: Arrival, width: usize) {
        let (prompt_len, end) = (arrival.prompt.len(), arrival.max_tokens);
        self.runs.insert(arrival.request.group, Run { beams: vec![arrival.id], width, prompt_len, generated: 0, end });
        bench.scheduler.add(Arrival { beams: Some(width), ..arrival });
    }

    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    /// Drops the search that `id` is part of.
    pub(super) fn remove(&mut self, bench: &mut Bench, id: SequenceId) {
        let search = bench.scheduler.sequence(id).search().expect("it is a beam");
        let run = self.runs.remove(&search).expect("its search is known");
        run.beams.iter().for_each(|&beam| drop(bench.scheduler.remove(beam)));
    }

    /// Continues or ends the searches whose pass has ended. All beams differ from their first token on. Now and then a
    /// beam dies, and another has two children.
    pub(super) fn retire(&mut self, bench: &mut Bench, random: &mut impl FnMut(u64) -> u64) {
        self.runs.retain(|_, run| {
            // Those that have lost their blocks wait as one.
            run.beams.retain(|&id| bench.scheduler.get_mut(id).is_some());
            let is_computed = |id: &SequenceId| {
                let sequence = bench.scheduler.sequence(*id);
                sequence.is_running() && sequence.pending() == 0
            };
            if !run.beams.iter().all(is_computed) {
                return true;
            }
            let is_trunk = bench.scheduler.sequence(run.beams[0]).is_trunk();
            assert!(!is_trunk || run.beams.len() == 1);
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
            for &beam in &run.beams {
                let missing = run.prompt_len + run.generated - bench.scheduler.sequence(beam).len();
                bench.scheduler.extend(beam, (0..missing).map(|_| beam.0 as u32));
            }
            true
        });
    }
}
