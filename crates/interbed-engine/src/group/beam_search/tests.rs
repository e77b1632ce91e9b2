//! Compares the planner with a search through all sequences, and with a plain beam search.

use proptest::prelude::*;

use super::*;

const END: TokenId = 0;
const STOP: TokenId = 1;

/// A model of a few tokens. Each history has its own distribution, whose log-probabilities take `steps` different
/// values, so that few steps give many ties. About every fifth token is impossible.
#[derive(Debug, Clone, Copy)]
struct Toy {
    vocabulary: u32,
    seed: u64,
    steps: u64,
}

impl Toy {
    /// Returns the log-probability of each token after `history`.
    fn after(&self, history: &[TokenId]) -> Vec<f32> {
        let mixed = |state: u64, next: u64| {
            let mixed = (state ^ next.wrapping_add(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed ^ (mixed >> 29)
        };
        let state = history.iter().fold(self.seed, |state, &token| mixed(state, u64::from(token)));
        let logits: Vec<f64> = (0..self.vocabulary)
            .map(|token| match mixed(state, 1000 + u64::from(token)) >> 20 {
                impossible if token > 1 && impossible % 5 == 0 => f64::NEG_INFINITY,
                value => (value % self.steps) as f64 / self.steps as f64 * 3.0,
            })
            .collect();
        let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
        logits.iter().map(|logit| (logit - sum.ln()) as f32).collect()
    }

    fn row(&self, history: &[TokenId], len: usize) -> Row {
        let logprobs = self.after(history);
        let mut order: Vec<usize> = (0..logprobs.len()).collect();
        order.sort_by(|&a, &b| logprobs[b].total_cmp(&logprobs[a]).then(a.cmp(&b)));
        let entry = |(rank, &token): (usize, &usize)| TokenLogprob {
            token: token as TokenId,
            logprob: logprobs[token],
            rank: rank as u32 + 1,
        };
        let next: Vec<_> = order.iter().enumerate().map(entry).take(len).collect();
        let top = next.iter().take(2).copied().collect();
        Row { next, top: Some(top) }
    }
}

#[derive(Debug, Clone)]
struct Task {
    toy: Toy,
    params: BeamParams,
    wanted: usize,
    prompt_len: usize,
    min_tokens: usize,
    max_tokens: usize,
}

impl Task {
    fn sampling(&self) -> SamplingParams {
        SamplingParams {
            max_tokens: self.max_tokens,
            min_tokens: self.min_tokens,
            stop_token_ids: vec![STOP],
            ..SamplingParams::default()
        }
    }

    /// Returns the answer of the planner and the number of steps. Checks the planner's invariants after each step.
    fn search(&self) -> (Vec<(Vec<TokenId>, FinishReason)>, usize) {
        let mut search = BeamSearch::new(self.params, self.wanted, self.prompt_len, &self.sampling(), &[END]);
        let mut steps = 0;
        let mut live: Vec<Vec<TokenId>> = vec![Vec::new()];
        while !live.is_empty() {
            let rows: Vec<Row> = live.iter().map(|tokens| self.toy.row(tokens, search.row_len())).collect();
            let branches = search.advance(&rows);
            steps += 1;
            live = branches.iter().map(|branch| [live[branch.parent].as_slice(), &[branch.token]].concat()).collect();
            assert!(live.len() <= self.params.width && search.num_live() == live.len());
            assert!(branches.is_sorted_by_key(|branch| branch.parent));
            for (beam, tokens) in live.iter().enumerate() {
                assert!(search.tokens(beam).eq(tokens.iter().copied()));
                assert_eq!(tokens.len(), steps, "all beams are equally long");
                assert!(tokens.iter().all(|&token| token > STOP), "what ends a sequence ends it");
                assert!(!live[..beam].contains(tokens), "no beam is there twice");
            }
            assert!(search.finished.is_sorted_by(|a, b| a.score >= b.score));
            let within = |beam: &Beam| beam.tokens.capacity() <= self.max_tokens;
            assert!(search.live.iter().all(within), "no more memory than it is charged");
        }
        assert!(steps <= self.max_tokens);
        let best = search.take_best();
        assert!(best.len() <= self.wanted);
        let answer = best.iter().map(|one| (one.tokens().map(|(token, _)| token).collect(), one.reason)).collect();
        (answer, steps)
    }

    fn reason(token: TokenId) -> FinishReason {
        match token {
            END => FinishReason::EndOfSequence,
            STOP => FinishReason::StopToken(STOP),
            _ => FinishReason::Length,
        }
    }

    fn score(&self, tokens: &[TokenId], logprob: f64) -> f64 {
        let ended = tokens.last().is_some_and(|&token| token <= STOP);
        let length = self.prompt_len + tokens.len() - usize::from(ended);
        logprob / (length as f64).powf(f64::from(self.params.length_penalty))
    }

    /// Collects all sequences that the model can produce, with their scores.
    fn everything(&self, tokens: &mut Vec<TokenId>, logprob: f64, found: &mut Vec<(Vec<TokenId>, f64)>) {
        if tokens.last().is_some_and(|&token| token <= STOP) || tokens.len() == self.max_tokens {
            return found.push((tokens.clone(), self.score(tokens, logprob)));
        }
        for (token, next) in (0..).zip(self.toy.after(tokens)) {
            if next.is_finite() && (token > STOP || tokens.len() >= self.min_tokens) {
                tokens.push(token);
                self.everything(tokens, logprob + f64::from(next), found);
                tokens.pop();
            }
        }
    }

    /// Runs a beam search that never stops early, keeps all finished hypotheses, and sorts them at the end.
    fn plainly(&self) -> Vec<(Vec<TokenId>, FinishReason)> {
        let mut live: Vec<(Vec<TokenId>, f64)> = vec![(Vec::new(), 0.0)];
        let mut finished = Vec::new();
        for step in 0..self.max_tokens {
            let mut going_on = Vec::new();
            for (parent, (tokens, logprob)) in live.iter().enumerate() {
                let row = self.toy.row(tokens, usize::MAX);
                let allowed = row.next.iter().filter(|next| next.token > STOP || step >= self.min_tokens);
                for next in allowed.take(2 * self.params.width).filter(|next| next.logprob > f32::NEG_INFINITY) {
                    let beam = ([&tokens[..], &[next.token]].concat(), logprob + f64::from(next.logprob));
                    if next.token <= STOP { finished.push(beam) } else { going_on.push((parent, next.token, beam)) }
                }
            }
            going_on.sort_by(|a, b| b.2.1.total_cmp(&a.2.1).then((a.0, a.1).cmp(&(b.0, b.1))));
            going_on.truncate(self.params.width);
            if step + 1 == self.max_tokens {
                finished.extend(going_on.drain(..).map(|(_, _, beam)| beam));
            }
            going_on.sort_by_key(|&(parent, ..)| parent);
            live = going_on.into_iter().map(|(_, _, beam)| beam).collect();
            if self.params.early_stopping && finished.len() >= self.params.width {
                break;
            }
        }
        let mut scored: Vec<_> =
            finished.into_iter().map(|(tokens, logprob)| (self.score(&tokens, logprob), tokens)).collect();
        scored.sort_by(|a, b| b.0.total_cmp(&a.0));
        scored.truncate(self.wanted);
        scored.into_iter().map(|(_, tokens)| (tokens.clone(), Self::reason(tokens[tokens.len() - 1]))).collect()
    }
}

fn tasks(widths: std::ops::Range<usize>) -> impl Strategy<Value = Task> {
    let toy = (2u32..7, any::<u64>(), prop_oneof![Just(3u64), Just(1 << 30)])
        .prop_map(|(vocabulary, seed, steps)| Toy { vocabulary, seed, steps });
    let penalty = prop_oneof![Just(1.0f32), Just(0.0), -3.0f32..4.0];
    (toy, widths, penalty, any::<bool>(), 1usize..5, 1usize..20, 0usize..4, 1usize..8).prop_map(
        |(toy, width, length_penalty, early_stopping, wanted, prompt_len, min_tokens, max_tokens)| Task {
            toy,
            params: BeamParams { width, length_penalty, early_stopping },
            wanted: wanted.min(width),
            prompt_len,
            min_tokens: min_tokens.min(max_tokens),
            max_tokens,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn as_beam_search_written_down_plainly(task in tasks(1..9)) {
        prop_assert_eq!(task.search().0, task.plainly());
    }

    #[test]
    fn wide_enough_it_is_exact(mut task in tasks(3000..3001)) {
        task.params.early_stopping = false;
        // 5 x 4^4 and a few are less than the width, and ties would need a rule.
        task.toy.vocabulary = task.toy.vocabulary.min(6);
        task.toy.steps = 1 << 30;
        task.max_tokens = task.max_tokens.min(5);
        task.min_tokens = task.min_tokens.min(task.max_tokens);
        let mut found = Vec::new();
        task.everything(&mut Vec::new(), 0.0, &mut found);
        found.sort_by(|a, b| b.1.total_cmp(&a.1));
        let expected: Vec<_> = found.into_iter().take(task.wanted).map(|(tokens, _)| tokens).collect();
        let got: Vec<_> = task.search().0.into_iter().map(|(tokens, _)| tokens).collect();
        prop_assert_eq!(got, expected);
    }

    #[test]
    fn of_width_one_it_is_greedy(mut task in tasks(1..2)) {
        task.wanted = 1;
        task.min_tokens = task.max_tokens;
        let mut greedy: Vec<TokenId> = Vec::new();
        while greedy.len() < task.max_tokens {
            let row = task.toy.row(&greedy, usize::MAX);
            let Some(next) = row.next.iter().find(|next| next.token > STOP && next.logprob.is_finite()) else { break };
            greedy.push(next.token);
        }
        let expected = if greedy.len() == task.max_tokens { vec![(greedy, FinishReason::Length)] } else { Vec::new() };
        prop_assert_eq!(task.search().0, expected);
    }
}

#[test]
fn it_ends_early_when_nothing_can_win_and_not_before() {
    let toy = Toy { vocabulary: 2, seed: 0, steps: 1 };
    let task = |length_penalty| Task {
        toy,
        params: BeamParams { width: 1, length_penalty, early_stopping: false },
        wanted: 1,
        prompt_len: 1,
        min_tokens: 0,
        max_tokens: 5,
    };
    // Both tokens end the sequence: one step says all.
    assert_eq!(task(1.0).search(), (vec![(vec![END], FinishReason::EndOfSequence)], 1));
    let row = |likely: f32| -> Row {
        let entry = |(token, logprob): (TokenId, f32)| TokenLogprob { token, logprob, rank: token + 1 };
        Row { next: [(END, likely), (2, -0.7)].map(entry).to_vec(), top: None }
    };
    // Without a penalty a beam at -0.7 cannot beat -0.6; with one, length may make up for it.
    for (length_penalty, goes_on) in [(0.0, false), (1.0, true)] {
        let task = task(length_penalty);
        let mut search = BeamSearch::new(task.params, 1, 1, &task.sampling(), &[END]);
        assert_eq!(!search.advance(&[row(-0.6)]).is_empty(), goes_on);
    }
}

#[test]
fn a_hypothesis_tells_its_log_probabilities() {
    let toy = Toy { vocabulary: 6, seed: 4, steps: 1 << 30 };
    let params = BeamParams { width: 2, ..BeamParams::default() };
    let sampling = SamplingParams { max_tokens: 3, min_tokens: 3, ..SamplingParams::default() };
    let mut search = BeamSearch::new(params, 1, 1, &sampling, &[END]);
    let mut live: Vec<Vec<TokenId>> = vec![Vec::new()];
    while !live.is_empty() {
        let rows: Vec<Row> = live.iter().map(|tokens| toy.row(tokens, search.row_len())).collect();
        live = search.advance(&rows).iter().map(|next| [&live[next.parent][..], &[next.token]].concat()).collect();
    }
    let best = search.take_best().remove(0);
    let mut history = Vec::new();
    for (token, logprobs) in best.tokens() {
        let logprobs = logprobs.expect("they are wanted");
        let row = toy.row(&history, usize::MAX);
        assert_eq!(logprobs.top, row.next[..2]);
        assert_eq!(logprobs.chosen, *row.next.iter().find(|entry| entry.token == token).unwrap());
        history.push(token);
    }
    assert_eq!(history.len(), 3);
}
