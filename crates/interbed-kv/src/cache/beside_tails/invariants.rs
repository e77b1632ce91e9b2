//! Checks what must hold between contents, resume points and tail blocks, from scratch.

use std::collections::HashMap;

use crate::{
    cache::Cache,
    contents::ContentId,
    ids::BlockId,
    invariant_violation::{InvariantViolation, count},
};

impl Cache {
    /// Checks pools, points and the budget. `holders` counts the tables and transfers that hold each tail block.
    pub(crate) fn check_tails(&self, holders: &HashMap<BlockId, u32>) -> Result<(), InvariantViolation> {
        let Some(tails) = self.tails() else { return Ok(()) };
        let findable = || {
            let contents = self.blocks.contents().map(|(_, content)| content);
            contents.filter(|&content| self.contents.is_findable(content))
        };
        let points: Vec<_> = findable().filter(|&content| tails.points.contains(content)).collect();
        count("resume points", tails.points.len(), points.len())?;
        let mut ways: HashMap<ContentId, u32> = HashMap::new();
        for &point in &points {
            let mut last = Some(point);
            while let Some(content) = last {
                let ways = ways.entry(content).or_default();
                *ways += 1;
                last = if *ways == 1 { self.contents.parent_content(content) } else { None };
            }
        }
        for content in findable() {
            let found = ways.get(&content).copied().unwrap_or_default();
            count("ways to a resume point", tails.points.ways(content) as usize, found as usize)?;
            let block = self.contents.block(content).expect("what can be found is in a block");
            if found == 0 && self.contents.users(content) == 0 {
                return Err(InvariantViolation::Useless { block });
            }
        }
        for pool in &tails.pools {
            let mut pins: HashMap<ContentId, u32> = HashMap::new();
            for &point in &points {
                let mut last = Some(point);
                for _ in 0..pool.keeps().tail_blocks(usize::MAX, self.block_size) {
                    let Some(content) = last else { break };
                    *pins.entry(content).or_default() += 1;
                    last = self.contents.parent_content(content);
                }
            }
            let holders = |block| holders.get(&block).copied().unwrap_or_default();
            pool.check(holders, |content| pins.get(&content).copied().unwrap_or_default())?;
        }
        let (present, usable) = (self.present_bytes(tails), tails.usable_bytes());
        let unused = self.policy.len() * tails.block_bytes + tails.cached_bytes();
        if present > usable && unused > 0 {
            return Err(InvariantViolation::Usable { present, unused, usable });
        }
        Ok(())
    }
}
