//! Divides idle times into the buckets in which they are counted.

/// Number of age buckets, the first from age 0 on; there are four to an octave of ages.
pub(super) const BUCKETS: usize = 54;

/// Number of bits of an `f32` below its exponent and the two highest bits of its mantissa: the bits above count
/// quarters of octaves.
const FRACTION_BITS: u32 = 21;

/// Buckets of ages. Ages are numbers of block uses. The first bucket ends at a sixty-fourth of the pool, the last
/// begins at 128 pools.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ages {
    /// Upper bits, as an `f32`, of the age at which the first bucket ends.
    first: u32,
}

impl Ages {
    pub(super) fn new(num_blocks: usize) -> Self {
        Self { first: ((num_blocks / 64).max(1) as f32).to_bits() >> FRACTION_BITS }
    }

    /// Returns the bucket of `age`, and how far into the bucket the age lies, from 0 to 1.
    pub(super) fn locate(self, age: u32) -> (usize, f32) {
        let bits = (age as f32).to_bits();
        let bucket = (bits >> FRACTION_BITS).wrapping_sub(self.first).wrapping_add(1);
        match bits >> FRACTION_BITS < self.first {
            true => (0, age as f32 / self.start(1)),
            false if bucket as usize >= BUCKETS => (BUCKETS - 1, 1.0),
            false => (bucket as usize, (bits & ((1 << FRACTION_BITS) - 1)) as f32 / (1 << FRACTION_BITS) as f32),
        }
    }

    /// Returns the age where `bucket` starts; for `BUCKETS`, the age where the last bucket ends.
    pub(super) fn start(self, bucket: usize) -> f32 {
        if bucket == 0 { 0.0 } else { f32::from_bits((self.first + bucket as u32 - 1) << FRACTION_BITS) }
    }

    pub(super) fn width(self, bucket: usize) -> f32 {
        self.start(bucket + 1) - self.start(bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_age_lies_where_it_is_located() {
        for num_blocks in [1, 64, 1000, 1 << 26] {
            let ages = Ages::new(num_blocks);
            assert!((0..BUCKETS).all(|bucket| ages.width(bucket) > 0.0));
            for age in (0..10_000).chain((0..32).map(|bit| 1 << bit)).chain([u32::MAX]) {
                let (bucket, fraction) = ages.locate(age);
                let at = ages.start(bucket) + fraction * ages.width(bucket);
                let expected = (age as f32).min(ages.start(BUCKETS));
                assert!((at - expected).abs() <= 1e-4 * expected, "{num_blocks} blocks, age {age}: {at}");
            }
        }
    }
}
