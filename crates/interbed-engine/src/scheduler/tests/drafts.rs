//! Tests drafts: which passes count as computing a prompt, and which drafts are computed at all.

use super::*;

/// A drafter that always guesses the same tokens.
struct Guesses(Vec<TokenId>);

impl Drafter for Guesses {
    fn draft(&mut self, _: &[TokenId], _: usize, drafts: &mut Vec<TokenId>) {
        drafts.extend_from_slice(&self.0);
    }
}

impl Bench {
    /// Plans a step in which `guesses` follow each token, with a vocabulary of 50 tokens.
    fn plan_with(&mut self, guesses: &[TokenId]) {
        self.scheduler.schedule(&mut self.plan);
        self.scheduler.draft(&mut self.plan, &mut Guesses(guesses.to_vec()), 50);
    }
}

#[test]
fn a_guess_that_the_model_does_not_have_is_not_run() {
    let check = |guesses: &[TokenId], run: &[TokenId]| {
        let mut bench = Bench::new(100, 2, 64);
        bench.scheduler.add(Arrival { max_tokens: 30, ..arrival(1, 8) });
        bench.step();
        bench.plan_with(guesses);
        assert_eq!(bench.scheduler.sequence(SequenceId(1)).drafts(), run);
        assert_eq!(bench.plan.entries[0].count, 1 + run.len());
    };
    check(&[3, 49, 4], &[3, 49, 4]);
    check(&[3, 50, 4], &[3]);
    check(&[u32::MAX], &[]);
}

#[test]
fn guesses_are_no_prefill() {
    let mut bench = Bench::new(10, 4, 64);
    bench.scheduler.add(Arrival { max_tokens: 12, ..arrival(1, 20) });
    bench.add(2, 36);
    bench.step();
    assert_eq!(bench.plan.prefill_tokens(), Some(20));
    bench.step();
    assert!(bench.scheduler.refused, "the second is too large");
    bench.plan_with(&[7, 7, 7]);
    let entry = bench.plan.entries[0];
    assert_eq!((entry.count, entry.drafts(), bench.plan.prefill_tokens()), (4, 3, None));
    bench.scheduler.complete(&entry, 4);
    assert!(bench.scheduler.refused, "nothing of a prompt was published");
    bench.check();
}

#[test]
fn right_guesses_are_computed_again_where_there_are_states() {
    let state = TailConfig { keeps: Keeps::State, block_bytes: 10, parts: 1 };
    let kv = KvConfig { block_size: 4, tails: vec![state], block_bytes: 10, pass_tokens: 64, ..KvConfig::default() };
    let mut bench = Bench::over(kv, Bench::config(2, 64, PreemptionMode::Recompute));
    bench.scheduler.add(Arrival { max_tokens: 30, ..arrival(1, 8) });
    assert_eq!([bench.step(), bench.step()], [[(1, 4)]; 2], "a pass ends behind the prompt's last full block");
    let mut pass = |guesses: &[TokenId], accepted: usize| {
        bench.plan_with(guesses);
        let entry = bench.plan.entries[0];
        assert_eq!((entry.drafts(), bench.plan.prefill_tokens()), (guesses.len(), None));
        bench.scheduler.complete(&entry, accepted);
        bench.check();
        // As long as the next token is not known, there is nothing to compute.
        bench.scheduler.schedule(&mut bench.plan);
        assert!(bench.plan.entries.is_empty(), "{:?}", bench.plan.entries);
        bench.scheduler.push_token(entry.id, 7);
        let Sequence { computed, again, .. } = *bench.scheduler.sequence(entry.id);
        [entry.start, entry.count, entry.stored_after, computed, again]
    };
    // All are right, and the state takes in none of them.
    assert_eq!(pass(&[7, 7, 7], 4), [8, 4, 1, 9, 3]);
    // The tokens are computed again, and the state is stored at the end of a block.
    assert_eq!(pass(&[7, 7], 1), [9, 6, 3, 12, 1]);
    assert_eq!(pass(&[], 1), [12, 2, 2, 14, 0]);
    assert_eq!(pass(&[7, 7, 7], 2), [14, 4, 1, 15, 1]);
    assert_eq!(pass(&[], 1), [15, 2, 1, 16, 1]);
    // A sequence that makes room computes everything again.
    bench.scheduler.recompute(&[SequenceId(1)]);
    let Sequence { computed, again, .. } = *bench.scheduler.sequence(SequenceId(1));
    assert_eq!([computed, again], [0, 0]);
    bench.check();
}
