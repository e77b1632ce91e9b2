//! Chooses the experts of each row of a pass, and the rows of a common tensor that get their results. The code computes
//! on the router's products alone, and the order of every sum follows from its row alone.

use crate::blueprint::{Floor, Groups, Router, Scores};

/// The experts that each row of a forward pass goes through in one layer. All layers reuse the memory of one `Routes`.
/// Once the largest pass has been routed, no more memory is allocated.
///
/// The results of all experts lie in one tensor, `[rows * chosen, width]`, or `[rows * (chosen + 1), width]` with a
/// shared expert. The tensor holds the results of one chosen expert after another, in ascending order of the experts.
/// The results of one expert are in the order of the rows. The results of the shared expert come last.
#[derive(Debug, Default)]
pub struct Routes {
    /// The chosen experts of each row, best first, `[rows, chosen]`.
    experts: Vec<u32>,
    /// The factors by which each row's results are multiplied, `[rows, chosen (+ 1)]`.
    factors: Vec<f32>,
    /// The rows of the common tensor that have each row's results, `[rows, chosen (+ 1)]`.
    places: Vec<u32>,
    /// The experts that at least one row has chosen, in ascending order, each with its number of rows.
    wanted: Vec<(u32, u32)>,
    /// The index in `rows` at which the rows of each expert in `wanted` begin, and then the length of `rows`.
    starts: Vec<u32>,
    /// The rows that go through each wanted expert, one expert after the other.
    rows: Vec<u32>,
    /// The factors of the shared expert's results, `[rows]`. The list is empty if there is no shared expert.
    shared: Vec<f32>,
    /// The numbers that are added to the scores for the choice, `[experts]`. The list is empty if there are none.
    bias: Vec<f32>,
    /// The factors that experts' weights are multiplied by at last, `[experts]`. The list is empty if there are none.
    expert_factors: Vec<f32>,
    ones: Vec<f32>,
    /// The wanted experts, each with its best rank in any row's choice, ordered by this rank.
    ranked: Vec<(u32, u32)>,
    scores: Vec<f32>,
    choice: Vec<f32>,
    groups: Vec<f32>,
    order: Vec<u32>,
}

impl Routes {
    /// Prepares to route `rows` rows. `shared` is `None` if there is no shared expert. Otherwise, the inner value holds
    /// a product for each row, `[rows]`, and the sigmoid of this product is the factor of the shared expert's result.
    /// If the inner value is `None`, these factors are 1.
    pub fn begin(&mut self, rows: usize, shared: Option<Option<&[f32]>>) {
        self.bias.clear();
        self.expert_factors.clear();
        self.shared.clear();
        match shared {
            Some(Some(products)) => self.shared.extend(products.iter().map(|&product| sigmoid(product))),
            Some(None) => self.shared.resize(rows, 1.0),
            None => {}
        }
        self.ones.resize(self.ones.len().max(rows), 1.0);
    }

    /// Returns the slice, `[experts]`, into which the caller must write the router's bias. The bias is added to the
    /// scores only while experts are chosen, and does not change the factors of the results.
    pub fn bias(&mut self, experts: usize) -> &mut [f32] {
        self.bias.resize(experts, 0.0);
        &mut self.bias
    }

    /// Returns the slice, `[experts]`, into which the caller must write the learned factors of experts, by which the
    /// weights of their results are multiplied.
    pub fn expert_factors(&mut self, experts: usize) -> &mut [f32] {
        self.expert_factors.resize(experts, 0.0);
        &mut self.expert_factors
    }

    /// Chooses the experts of all rows from the router's products `logits`, `[rows, experts]`. The caller must have
    /// called [`begin`](Self::begin) before.
    pub fn find(&mut self, router: &Router, chosen: usize, experts: usize, logits: &[f32]) {
        self.experts.clear();
        self.factors.clear();
        for (row, logits) in logits.chunks_exact(experts).enumerate() {
            self.choose(router, chosen, logits);
            self.weigh(router, chosen);
            self.factors.extend(self.shared.get(row));
        }
        self.gather(logits.len() / experts, chosen, experts);
    }

    /// Returns the experts that at least one row has chosen, each with the number of its rows. Experts are in ascending
    /// order.
    pub fn wanted(&self) -> &[(u32, u32)] {
        &self.wanted
    }

    /// Returns the row at which the results of `expert` begin in the tensor of all results, and the rows of the forward
    /// pass that go through this expert, in ascending order.
    ///
    /// # Panics
    /// Panics if no row has chosen the expert.
    pub fn of(&self, expert: u32) -> (usize, &[u32]) {
        let index = self.wanted.binary_search_by_key(&expert, |&(expert, _)| expert).expect("an expert that is wanted");
        let [start, end] = [self.starts[index], self.starts[index + 1]].map(|at| at as usize);
        (start, &self.rows[start..end])
    }

    /// Returns where each row's results lie in the tensor of all results, and the factors of these results. Both slices
    /// are `[rows, chosen]`, or `[rows, chosen + 1]` with a shared expert. The results of a row are added up in the
    /// order of the slices.
    pub fn sums(&self) -> (&[u32], &[f32]) {
        (&self.places, &self.factors)
    }

    /// Returns `count` factors that are all 1. `count` is at most the number of rows in the largest pass.
    pub fn ones(&self, count: usize) -> &[f32] {
        &self.ones[..count]
    }

    /// Returns the experts of a row, best first, and the factors of their results. Both slices have `chosen` elements.
    pub fn of_row(&self, row: usize, chosen: usize) -> (&[u32], &[f32]) {
        let slots = chosen + usize::from(!self.shared.is_empty());
        (&self.experts[row * chosen..][..chosen], &self.factors[row * slots..][..chosen])
    }

    /// Returns the experts that at least one row has chosen, each with the best rank that any row gives it. Rank 0 is a
    /// row's first choice. Experts are in ascending order of rank.
    pub fn ranked(&mut self, chosen: usize) -> &[(u32, u32)] {
        let Self { ranked, experts, order: seen, wanted, .. } = self;
        ranked.clear();
        ranked.reserve(wanted.capacity());
        seen.fill(0);
        for rank in 0..chosen {
            for &expert in experts.iter().skip(rank).step_by(chosen) {
                if std::mem::replace(&mut seen[expert as usize], 1) == 0 {
                    ranked.push((expert, rank as u32));
                }
            }
        }
        ranked
    }

    /// Chooses the experts of one row, and appends their scores to `factors`.
    fn choose(&mut self, router: &Router, chosen: usize, logits: &[f32]) {
        let Self { scores, choice, groups, order, bias, .. } = self;
        scores.clear();
        scores.extend_from_slice(logits);
        match router.scores {
            Scores::Softmax => softmax(scores),
            Scores::Sigmoid => scores.iter_mut().for_each(|score| *score = sigmoid(*score)),
            Scores::SoftmaxOfChosen => {}
            Scores::RootOfSoftplus => scores.iter_mut().for_each(|score| *score = softplus(*score).sqrt()),
        }
        choice.clear();
        choice.extend_from_slice(scores);
        choice.iter_mut().zip(bias.iter()).for_each(|(choice, bias)| *choice += bias);
        if let Some(of) = router.groups {
            keep_groups(of, choice, groups);
        }
        order.clear();
        order.extend(0..choice.len() as u32);
        // Among equals the first; NaN before all, so that it shows.
        let before =
            |&one: &u32, &other: &u32| choice[other as usize].total_cmp(&choice[one as usize]).then(one.cmp(&other));
        if chosen < order.len() {
            order.select_nth_unstable_by(chosen, before);
        }
        let best = &mut order[..chosen];
        best.sort_unstable_by(before);
        self.experts.extend_from_slice(best);
        self.factors.extend(best.iter().map(|&expert| scores[expert as usize]));
    }

    /// Turns the scores of the last row's experts into their weights.
    fn weigh(&mut self, router: &Router, chosen: usize) {
        let start = self.factors.len() - chosen;
        let weights = &mut self.factors[start..];
        if router.scores == Scores::SoftmaxOfChosen {
            softmax(weights);
        }
        if let Some(floor) = router.normalise {
            let sum: f32 = weights.iter().sum();
            let sum = match floor {
                Floor::Plus(more) => sum + more,
                Floor::Least(least) => sum.max(least),
            };
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
        weights.iter_mut().for_each(|weight| *weight *= router.scale);
        if !self.expert_factors.is_empty() {
            let chosen = &self.experts[self.experts.len() - chosen..];
            weights
                .iter_mut()
                .zip(chosen)
                .for_each(|(weight, &expert)| *weight *= self.expert_factors[expert as usize]);
        }
    }

    /// Groups the rows by the experts through which they go.
    fn gather(&mut self, rows: usize, chosen: usize, experts: usize) {
        let Self { wanted, starts, order: counts, places, .. } = self;
        counts.clear();
        counts.resize(experts, 0);
        self.experts.iter().for_each(|&expert| counts[expert as usize] += 1);
        wanted.clear();
        starts.clear();
        // As many as there can be, whatever a pass chooses.
        wanted.reserve(experts);
        starts.reserve(experts + 1);
        let mut start = 0;
        for (expert, count) in (0..).zip(counts) {
            if *count > 0 {
                wanted.push((expert, *count));
                starts.push(start);
                start += std::mem::replace(count, start);
            }
        }
        starts.push(start);
        self.rows.clear();
        self.rows.resize(rows * chosen, 0);
        places.clear();
        for (row, of_row) in self.experts.chunks_exact(chosen).enumerate() {
            for &expert in of_row {
                let place = &mut self.order[expert as usize];
                self.rows[*place as usize] = row as u32;
                places.push(*place);
                *place += 1;
            }
            if !self.shared.is_empty() {
                places.push((rows * chosen + row) as u32);
            }
        }
    }
}

/// Keeps only the best groups of experts: no expert of another group can be chosen afterwards.
fn keep_groups(Groups { count, kept }: Groups, choice: &mut [f32], scores: &mut Vec<f32>) {
    let size = choice.len() / count;
    scores.clear();
    scores.extend(choice.chunks_exact(size).map(|group| {
        let [mut first, mut second] = [f32::NEG_INFINITY; 2];
        for &score in group {
            if score > first {
                (first, second) = (score, first);
            } else {
                second = second.max(score);
            }
        }
        first + second
    }));
    for (index, group) in choice.chunks_exact_mut(size).enumerate() {
        let own = scores[index];
        let better = scores.iter().enumerate().filter(|&(other, &score)| score > own || score == own && other < index);
        if better.count() >= kept {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

fn softmax(scores: &mut [f32]) {
    let greatest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = (*score - greatest).exp());
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
}

/// Computes `ln(1 + e^x)` without overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Router = Router {
        scores: Scores::Softmax,
        choice_bias: false,
        groups: None,
        normalise: None,
        scale: 1.0,
        own_norm: None,
        expert_factors: false,
        by_token: false,
    };

    fn routes(router: &Router, chosen: usize, rows: &[&[f32]], bias: Option<&[f32]>) -> Routes {
        let mut routes = Routes::default();
        let experts = rows[0].len();
        // What an earlier layer left has no effect.
        routes.begin(3, Some(None));
        routes.bias(experts).fill(7.0);
        routes.find(router, 1, experts, &vec![0.5; 3 * experts]);
        routes.begin(rows.len(), None);
        if let Some(bias) = bias {
            routes.bias(experts).copy_from_slice(bias);
        }
        routes.find(router, chosen, experts, &rows.concat());
        routes
    }

    fn close(got: &[f32], want: &[f32]) {
        assert!(got.len() == want.len() && got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?} {want:?}");
    }

    #[test]
    fn the_best_are_chosen_and_among_equals_the_first() {
        let found = routes(&PLAIN, 2, &[&[0.0, 2.0, 2.0, 1.0], &[3.0, 0.0, 0.0, 0.0]], None);
        assert_eq!(found.experts, [1, 2, 0, 1]);
        assert_eq!(found.of_row(1, 2).0, [0, 1]);
        let (e, sum) = (std::f32::consts::E, 1.0 + 2.0 * 1f32.exp().powi(2) + 1f32.exp());
        close(&found.sums().1[..2], &[e * e / sum, e * e / sum]);
        let roots = Router { scores: Scores::RootOfSoftplus, ..PLAIN };
        close(routes(&roots, 1, &[&[0.0, -90.0]], None).sums().1, &[2f32.ln().sqrt()]);
        let of_chosen = Router { scores: Scores::SoftmaxOfChosen, ..PLAIN };
        close(routes(&of_chosen, 2, &[&[0.0, 2.0, 2.0, 1.0]], None).sums().1, &[0.5, 0.5]);
    }

    #[test]
    fn ranks_are_the_best_of_all_rows() {
        let mut found = routes(&PLAIN, 2, &[&[0.0, 2.0, 1.0, 0.0], &[9.0, 8.0, 0.0, 0.0]], None);
        assert_eq!(found.ranked(2), [(1, 0), (0, 0), (2, 1)]);
    }

    #[test]
    fn a_bias_changes_the_choice_and_no_weight() {
        let router = Router {
            scores: Scores::Sigmoid,
            choice_bias: true,
            normalise: Some(Floor::Plus(1e-20)),
            scale: 2.5,
            ..PLAIN
        };
        let found = routes(&router, 2, &[&[0.0, 1.0, 2.0, -1.0]], Some(&[0.0, 0.0, -9.0, 9.0]));
        assert_eq!(found.experts, [3, 1]);
        let (a, b) = (sigmoid(-1.0), sigmoid(1.0));
        close(found.sums().1, &[2.5 * a / (a + b), 2.5 * b / (a + b)]);
    }

    #[test]
    fn groups_are_kept_by_the_sum_of_their_two_best() {
        let router = Router { groups: Some(Groups { count: 3, kept: 2 }), scores: Scores::Sigmoid, ..PLAIN };
        // The best single expert is in the group with the least sum.
        let found = routes(&router, 3, &[&[5.0, -9.0, -9.0, 1.0, 1.5, 0.0, 2.0, -1.0, 0.5]], None);
        assert_eq!(found.experts, [6, 4, 3]);
    }

    #[test]
    fn results_lie_by_expert_and_are_found_by_row() {
        let found = {
            let mut routes = Routes::default();
            let logits = [[0.0, 3.0, 2.0], [3.0, 0.0, 2.0], [0.0, 3.0, 2.0]].concat();
            routes.begin(3, Some(Some(&[0.0, 100.0, -100.0])));
            routes.find(&PLAIN, 2, 3, &logits);
            routes
        };
        assert_eq!(found.wanted(), [(0, 1), (1, 2), (2, 3)]);
        assert_eq!(found.of(1), (1, &[0, 2][..]));
        assert_eq!(found.of(2), (3, &[0, 1, 2][..]));
        let (places, factors) = found.sums();
        assert_eq!(places, [1, 3, 6, 0, 4, 7, 2, 5, 8]);
        close(&[factors[2], factors[5], factors[8]], &[0.5, 1.0, 0.0]);
    }
}
