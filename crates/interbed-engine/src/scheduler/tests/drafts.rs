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
