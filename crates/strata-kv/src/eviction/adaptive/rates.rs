//! How soon content of each class is used again, and what keeping it is therefore worth.

use super::{
    ages::{Ages, BUCKETS},
    past::{CLASSES, GROUPS, group},
};

/// What is not known of a class is taken from its group, and of a group from all, as if so many contents had been seen.
const CONTENTS_BELIEVED: f32 = 4.0;

type Row = [f32; BUCKETS];

/// Counts of uses, and the worth that follows from them.
///
/// Whoever keeps a block for some time hopes for a use within that time, and gives room for as long as that takes. The
/// worth at an age is the best ratio of the two, uses per time, over all times that one could keep it: where uses are
/// seldom at first and frequent later, it counts on waiting for them. Evicting the least worth is Gittins' rule.
#[derive(Debug)]
pub(super) struct Rates {
    ages: Ages,
    uses: Vec<Row>,   // [class][bucket]
    times: Vec<Row>,  // [class][bucket], spent there by all contents
    worths: Vec<Row>, // [class][bucket], at its start
}

impl Rates {
    pub(super) fn new(num_blocks: usize) -> Self {
        let rows = || vec![[0.0; BUCKETS]; CLASSES];
        let mut rates = Self { ages: Ages::new(num_blocks), uses: rows(), times: rows(), worths: rows() };
        rates.estimate(1.0);
        rates
    }

    /// Content of `class` was used again at `age`.
    pub(super) fn count_use(&mut self, class: usize, age: u32) {
        let (bucket, _) = self.ages.locate(age);
        self.uses[class][bucket] += 1.0;
    }

    /// Content of `class` was not used from age `from` to age `to`.
    pub(super) fn count_time(&mut self, class: usize, from: u32, to: u32) {
        let (first, _) = self.ages.locate(from);
        let to = to as f32;
        let mut at = from as f32;
        for bucket in first..BUCKETS {
            let end = self.ages.start(bucket + 1).min(to);
            self.times[class][bucket] += (end - at).max(0.0);
            at = end;
            if end == to {
                break;
            }
        }
    }

    /// What content of `class` is worth at `age`.
    pub(super) fn worth(&self, class: usize, age: u32) -> f32 {
        let (bucket, fraction) = self.ages.locate(age);
        let row = &self.worths[class];
        let next = row[(bucket + 1).min(BUCKETS - 1)];
        row[bucket] + fraction * (next - row[bucket])
    }

    /// Derives worths from what was counted, of which `kept` will count from now on.
    pub(super) fn estimate(&mut self, kept: f32) {
        let (mut all, mut groups) = (Counts::default(), [Counts::default(); GROUPS]);
        for class in 0..CLASSES {
            all.add(&self.uses[class], &self.times[class]);
            groups[group(class)].add(&self.uses[class], &self.times[class]);
        }
        // To begin with, the longer idle the less worth, as LRU has it.
        let prior = std::array::from_fn(|bucket| 0.1 / self.ages.start(bucket + 1));
        let all = all.rates(&prior, self.ages);
        let groups = groups.map(|group| group.rates(&all, self.ages));
        for class in 0..CLASSES {
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

    /// Uses per time, where little was counted as in `similar`.
    fn rates(&self, similar: &Row, ages: Ages) -> Row {
        std::array::from_fn(|bucket| {
            let believed = CONTENTS_BELIEVED * ages.width(bucket);
            (self.uses[bucket] + similar[bucket] * believed) / (self.times[bucket] + believed)
        })
    }
}

/// The greatest ratio of uses to time from the start of each bucket to the end of any later one, given how many uses come
/// per time while there are none.
fn worths(rates: &Row, ages: Ages) -> Row {
    // Of content that is kept until it is used, from age 0 to the start of each bucket: how likely the use has come, and
    // the mean time until then. The ratios are slopes between these points.
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
