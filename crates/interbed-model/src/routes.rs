//! Which experts each row of a pass goes through, and in which rows of a common tensor their results come to lie. Pure
//! arithmetic on the router's products; the order of every sum follows from a row alone.

use crate::blueprint::{Floor, Groups, Router, Scores};

/// The routes of a pass's rows through one layer. Reused from layer to layer, so that nothing is allocated once the
/// largest pass has been seen.
///
/// The results of all experts lie in one tensor, `[rows * chosen (+ rows), width]`: those of the first expert that is
/// wanted, then the next one's, each in the order of the rows, and behind them those of the shared expert.
#[derive(Debug, Default)]
pub struct Routes {
    /// `[rows, chosen]`, best first.
    experts: Vec<u32>,
    /// `[rows, chosen (+ 1)]`: what each result is multiplied by.
    factors: Vec<f32>,
    /// Same shape as `factors`: the row of the common tensor where it is.
    places: Vec<u32>,
    /// The experts that are wanted, ascending, each with its number of rows.
    wanted: Vec<(u32, u32)>,
    /// For each of `wanted`, where its rows begin in `rows`, and then the end.
    starts: Vec<u32>,
    /// The rows that go through each, one expert after the other.
    rows: Vec<u32>,
    /// `[rows]`, the factors of the shared expert's results, if there is one.
    shared: Vec<f32>,
    /// `[experts]`, added for the choice; or nothing.
    bias: Vec<f32>,
    ones: Vec<f32>,
    /// The experts that are wanted, each with its best rank in any row's choice, by rank.
    ranked: Vec<(u32, u32)>,
    scores: Vec<f32>,
    choice: Vec<f32>,
    groups: Vec<f32>,
    order: Vec<u32>,
}

impl Routes {
    /// Begins to find the routes of `rows` rows. If all of them go through a shared expert too, `shared` are the
    /// products whose sigmoids are the factors of its results, `[rows]`; without products, the factors are 1.
    pub fn begin(&mut self, rows: usize, shared: Option<Option<&[f32]>>) {
        self.bias.clear();
        self.shared.clear();
        match shared {
            Some(Some(products)) => self.shared.extend(products.iter().map(|&product| sigmoid(product))),
            Some(None) => self.shared.resize(rows, 1.0),
            None => {}
        }
        self.ones.resize(self.ones.len().max(rows), 1.0);
    }

    /// Where to write what is added to the scores for the choice, `[experts]`.
    pub fn bias(&mut self, experts: usize) -> &mut [f32] {
        self.bias.resize(experts, 0.0);
        &mut self.bias
    }

    /// Finds the routes of all rows by the router's products, `[rows, experts]`; begun before.
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

    /// The experts that are wanted, ascending, each with its number of rows.
    pub fn wanted(&self) -> &[(u32, u32)] {
        &self.wanted
    }

    /// Of an expert that is wanted: where its results begin in the common tensor, and the rows that go through it,
    /// ascending.
    ///
    /// # Panics
    /// If it is not wanted.
    pub fn of(&self, expert: u32) -> (usize, &[u32]) {
        let index = self.wanted.binary_search_by_key(&expert, |&(expert, _)| expert).expect("an expert that is wanted");
        let [start, end] = [self.starts[index], self.starts[index + 1]].map(|at| at as usize);
        (start, &self.rows[start..end])
    }

    /// For each row, where its results are, and what they are multiplied by: `[rows, chosen (+ 1)]` each. Sums are made
    /// in this order.
    pub fn sums(&self) -> (&[u32], &[f32]) {
        (&self.places, &self.factors)
    }

    /// Factors of one, for as many rows as there may be.
    pub fn ones(&self, count: usize) -> &[f32] {
        &self.ones[..count]
    }

    /// A row's experts, best first, and what their results are multiplied by, `[chosen]` each.
    pub fn of_row(&self, row: usize, chosen: usize) -> (&[u32], &[f32]) {
        let slots = chosen + usize::from(!self.shared.is_empty());
        (&self.experts[row * chosen..][..chosen], &self.factors[row * slots..][..chosen])
    }

    /// The experts that are wanted, each with its best place in any row's choice, the best first.
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

    /// Chooses one row's experts, whose scores are then at the end of `factors`.
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

    /// Makes the weights of the last row's experts from their scores.
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
    }

    /// Sorts the rows by expert.
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

/// Makes the choice of all experts outside the best groups impossible.
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

/// `ln(1 + e^x)`, without overflow.
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
