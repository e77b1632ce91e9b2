//! Finds out which blocks of a trace's prompts are equal together with everything before them.

use std::collections::HashMap;

use crate::replay::trace::{Request, Trace};

/// The number of a content, which is a block together with all blocks before it. The number is below the count of the
/// trace's references. Servers, their events and the remote tier name contents by it.
pub(super) type ContentNumber = u32;

/// The contents of all prompts. Where equal ids mean equal prefixes, as in Mooncake's traces, there are as many
/// contents as distinct blocks; where one id comes after different blocks, there are more.
#[derive(Debug)]
pub(super) struct Chains {
    contents: Vec<ContentNumber>, // [request, block of its prompt]
    distinct: usize,
}

impl Chains {
    pub fn of(trace: &Trace) -> Self {
        let mut known: HashMap<(Option<ContentNumber>, u32), ContentNumber> = HashMap::new();
        let mut contents = Vec::with_capacity(trace.references().len());
        for request in trace.requests() {
            let mut above = None;
            for &block in trace.blocks(request) {
                let next = known.len() as ContentNumber;
                let content = *known.entry((above, block)).or_insert(next);
                contents.push(content);
                above = Some(content);
            }
        }
        Self { contents, distinct: known.len() }
    }

    /// Returns the contents of a prompt, in order.
    pub fn of_prompt(&self, request: &Request) -> &[ContentNumber] {
        &self.contents[request.references()]
    }

    /// Returns the number of distinct contents; every content number is below it.
    pub fn distinct(&self) -> usize {
        self.distinct
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_is_a_block_and_what_comes_before_it() {
        let mut trace = Trace::default();
        for ids in [&[5, 6, 7][..], &[5, 6], &[6, 7], &[5, 7], &[]] {
            trace.push(0.0, 512 * ids.len(), 0, ids);
        }
        trace.finish();
        let chains = Chains::of(&trace);
        let of: Vec<&[ContentNumber]> = trace.requests().iter().map(|request| chains.of_prompt(request)).collect();
        assert_eq!(of, [&[0, 1, 2][..], &[0, 1], &[3, 4], &[0, 5], &[]]);
        assert_eq!(chains.distinct(), 6);
    }
}
