//! Estimates how soon contents of each class are used again, and what keeping them is therefore worth.

use super::{
    super::steps::step,
    ages::{Ages, BUCKETS},
    past::{CLASSES, GROUPS, group},
};

/// Number of contents that the prior counts for. The rates of a class start from those of its group, and the rates of a
/// group from those of all contents, as if this many contents had shown them.
const CONTENTS_BELIEVED: f32 = 4.0;

type Row = [f32; BUCKETS];

/// Counts of uses and idle times, and the worth that follows from them.
///
/// Keeping a block for some time gains the chance of a use within that time, and costs its room until then. The worth
/// at an age is the best ratio of expected uses to expected time, over all times for which the block could be kept. If
/// uses are rare at first and frequent later, the best choice is to wait for the later ones. Evicting the block of
/// least worth is Gittins' rule.
#[derive(Debug)]
pub(super) struct Rates {
    ages: Ages,
    uses: Vec<Row>,  // [class][bucket]
    times: Vec<Row>, // [class][bucket], time that all contents spent there
    /// Number of contents whose counted time begins in the bucket, less the number whose counted time ends in it; these
    /// times are not yet in `times`.
    passing: Vec<Row>, // [class][bucket]
    worths: Vec<Row>, // [class][bucket], worth at the bucket's start
}

impl Rates {
    pub(super) fn new(num_blocks: usize) -> Self {
        let rows = || vec![[0.0; BUCKETS]; CLASSES];
        let mut rates =
            Self { ages: Ages::new(num_blocks), uses: rows(), times: rows(), passing: rows(), worths: rows() };
        rates.estimate(1.0);
        rates
    }

    /// Counts a use of a content of `class` at `age`.
    pub(super) fn count_use(&mut self, class: usize, age: u32) {
        let (bucket, _) = self.ages.locate(age);
        self.uses[class][bucket] += 1.0;
    }

    /// Counts that a content of `class` was not used from age `from` to age `to`.
    pub(super) fn count_time(&mut self, class: usize, from: u32, to: u32) {
        let ((first, into_first), (last, into_last)) = (self.ages.locate(from), self.ages.locate(to));
        self.times[class][first] -= into_first * self.ages.width(first);
        self.times[class][last] += into_last * self.ages.width(last);
        // From the start of the first bucket to the start of the last: `estimate` adds the whole buckets in between.
        self.passing[class][first] += 1.0;
        self.passing[class][last] -= 1.0;
    }

    /// Returns what a content of `class` is worth at `age`.
    pub(super) fn worth(&self, class: usize, age: u32) -> f32 {
        let (bucket, fraction) = self.ages.locate(age);
        let row = &self.worths[class];
        let next = row[(bucket + 1).min(BUCKETS - 1)];
        row[bucket] + fraction * (next - row[bucket])
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        [&self.uses, &self.times, &self.passing, &self.worths].iter().map(|rows| size_of_val(rows.as_slice())).sum()
    }

    #[cfg(test)]
    pub(super) fn set_worths(&mut self, worth: f32) {
        self.worths.fill([worth; BUCKETS]);
    }

    /// Derives worths from the counts, and then scales the counts by `kept`.
    pub(super) fn estimate(&mut self, kept: f32) {
        for (passing, times) in self.passing.iter_mut().zip(&mut self.times) {
            let mut passed = 0.0;
            for (bucket, (passing, time)) in passing.iter_mut().zip(times).enumerate() {
                passed += std::mem::take(passing);
                *time += passed * self.ages.width(bucket);
            }
        }
        let (mut all, mut groups) = (Counts::default(), [Counts::default(); GROUPS]);
        for class in 0..CLASSES {
            all.add(&self.uses[class], &self.times[class]);
            groups[group(class)].add(&self.uses[class], &self.times[class]);
        }
        // Before anything is counted, the longer idle the less worth, as in LRU.
        let prior = std::array::from_fn(|bucket| 0.1 / self.ages.start(bucket + 1));
        let all = all.rates(&prior, self.ages);
        let groups = groups.map(|group| group.rates(&all, self.ages));
        for class in 0..CLASSES {
            step();
            let counts = Counts { uses: self.uses[class], times: self.times[class] };
            self.worths[class] = worths(&counts.rates(&groups[group(class)], self.ages), self.ages);
        }
        let counts = self.uses.iter_mut().chain(&mut self.times);
        counts.flatten().for_each(|count| *count *= kept);
    }
}

#[derive(Clone, Copy)]
struct Counts {
    uses: Row,
    times: Row,
}

impl Default for Counts {
    fn default() -> Self {
        Self { uses: [0.0; BUCKETS], times: [0.0; BUCKETS] }
    }
}

impl Counts {
    fn add(&mut self, uses: &Row, times: &Row) {
        for bucket in 0..BUCKETS {
            self.uses[bucket] += uses[bucket];
            self.times[bucket] += times[bucket];
        }
    }

    /// Returns the uses per time in each bucket, with `similar` as the prior.
    fn rates(&self, similar: &Row, ages: Ages) -> Row {
        let (uses, times) = (blurred(&self.uses), blurred(&self.times));
        std::array::from_fn(|bucket| {
            let believed = CONTENTS_BELIEVED * ages.width(bucket);
            // Rounding can make sums slightly negative.
            (uses[bucket] + similar[bucket] * believed) / (times[bucket].max(0.0) + believed)
        })
    }
}

/// Returns the row in which each bucket has given half of its count to its neighbours. Contents of a chain are used
/// together, so counts are more uneven than the underlying chances.
fn blurred(row: &Row) -> Row {
    std::array::from_fn(|bucket| {
        let (before, after) = (row[bucket.saturating_sub(1)], row[(bucket + 1).min(BUCKETS - 1)]);
        0.5 * row[bucket] + 0.25 * (before + after)
    })
}

/// Returns for each bucket the greatest ratio of uses to time from the bucket's start to the end of any later bucket,
/// given the rate of uses per time in each bucket.
fn worths(rates: &Row, ages: Ages) -> Row {
    // For a content that is kept until it is used, from age 0 to the start of each bucket: the probability that it has
    // been used, and the mean time that it was kept. The ratios are slopes between these points.
    let mut points = [(0f64, 0f64); BUCKETS + 1];
    let mut unused = 1f64;
    for bucket in 0..BUCKETS {
        let (rate, width) = (f64::from(rates[bucket]), f64::from(ages.width(bucket)));
        let used = unused * -(-rate * width).exp_m1();
        let time = if used > 0.0 { used / rate } else { unused * width };
        let (uses, times) = points[bucket];
        points[bucket + 1] = (uses + used, times + time);
        unused -= used;
    }
    // The steepest slope to the right of a point leads to a corner of the upper hull of the points there.
    let mut worths = [0.0; BUCKETS];
    let mut hull = [BUCKETS; BUCKETS + 1];
    let mut corners = 1;
    for bucket in (0..BUCKETS).rev() {
        let slope = |to: usize| {
            let (uses, time) = (points[to].0 - points[bucket].0, points[to].1 - points[bucket].1);
            if time > 0.0 { uses / time } else { 0.0 }
        };
        while corners > 1 && slope(hull[corners - 2]) >= slope(hull[corners - 1]) {
            corners -= 1;
        }
        worths[bucket] = slope(hull[corners - 1]) as f32;
        hull[corners] = bucket;
        corners += 1;
    }
    worths
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: usize = 1000;

    /// Returns the worths at `ages` after many contents of one class have been used at the ages that `uses` gives.
    fn worths_at<const AGES: usize>(uses: impl Fn(u32) -> u32, ages: [u32; AGES]) -> [f32; AGES] {
        let mut rates = Rates::new(BLOCKS);
        for number in 0..20_000 {
            let age = uses(number);
            rates.count_time(3, 0, age);
            rates.count_use(3, age);
        }
        rates.estimate(1.0);
        ages.map(|age| rates.worth(3, age))
    }

    #[test]
    fn worth_grows_while_a_sure_use_comes_nearer_and_is_lost_once_it_is_overdue() {
        let [early, later, soon, overdue] = worths_at(|_| 4000, [100, 2000, 3500, 9000]);
        assert!(early < later && later < soon && overdue < early, "{early} {later} {soon} {overdue}");
        assert!((0.8..1.4).contains(&(early * 3900.0)), "one use in 3900: {early}");
    }

    #[test]
    fn worth_is_the_rate_where_that_is_always_the_same() {
        let exponential = |number: u32| (-((f64::from(number) + 0.5) / 20_000.0).ln() * 500.0) as u32;
        for worth in worths_at(exponential, [0, 200, 700, 1500]) {
            assert!((0.8..1.25).contains(&(worth * 500.0)), "{worth}");
        }
    }

    #[test]
    fn to_begin_with_worth_falls_with_age() {
        let rates = Rates::new(BLOCKS);
        let worths: Vec<_> = [0, 20, 100, 1000, 10_000].into_iter().map(|age| rates.worth(0, age)).collect();
        assert!(worths.is_sorted_by(|younger, older| younger > older) && worths[4] > 0.0, "{worths:?}");
    }

    #[test]
    fn worths_are_numbers_even_where_times_are_less_than_nothing() {
        let mut rates = Rates::new(BLOCKS);
        for age in (0..32).map(|bit| 1 << bit) {
            (0..100).for_each(|_| rates.count_time(1, age, 0));
            rates.count_use(1, age);
        }
        rates.estimate(1.0);
        assert!(rates.times[1].iter().any(|&time| time < 0.0));
        assert!(rates.worths.iter().flatten().all(|worth| worth.is_finite() && *worth >= 0.0));
    }

    #[test]
    fn all_time_is_counted_once() {
        let mut rates = Rates::new(BLOCKS);
        for cuts in [[0, 5, 15, 16], [0, 100, 777, 3000], [10, 20, 30, 40_000]] {
            cuts.windows(2).for_each(|cut| rates.count_time(1, cut[0], cut[1]));
        }
        rates.estimate(1.0);
        let counted: f32 = rates.times[1].iter().sum();
        assert!((counted - (16.0 + 3000.0 + 39_990.0)).abs() < 1.0, "{counted}");
    }
}
