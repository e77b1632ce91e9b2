//! Checks what must hold among contents, from scratch.

use std::collections::HashMap;

use super::{ContentId, Contents, Continues, NONE, Node, Parent};
use crate::{
    ids::BlockId,
    invariant_violation::{InvariantViolation, count},
};

impl Contents {
    /// Checks that findable contents form chains from a root, and that a look-up finds each. `located` and `slots`,
    /// both indexed by content, give the block that holds each content and the number of its slots. They must agree
    /// with the contents' own locations.
    pub(crate) fn check(&self, located: &[Option<BlockId>], slots: &[u32]) -> Result<(), InvariantViolation> {
        let mut children = vec![0u32; self.nodes.len()];
        let mut roots: HashMap<u32, u32> = HashMap::new();
        let mut num_findable = 0;
        for (content, node) in self.ids().map(|content| (content, self.node(content))) {
            let block = (node.block != NONE).then_some(BlockId(node.block));
            if block != located[content.index()] || node.below != (slots[content.index()] > 0) {
                return Err(InvariantViolation::Location { content: content.0, block });
            }
            if node.users > 0 && block.is_none() {
                return Err(InvariantViolation::Location { content: content.0, block });
            }
            match node.parent.get() {
                None => continue,
                Some(Continues::Root(root)) => *roots.entry(root.0).or_default() += 1,
                Some(Continues::Content(parent)) => children[parent.index()] += 1,
            }
            num_findable += 1;
            let Some(block) = block else { return Err(InvariantViolation::Location { content: content.0, block }) };
            self.check_findable(content, node, block)?;
        }
        for content in self.ids() {
            let (counted, found) = (self.node(content).children, children[content.index()]);
            if counted != found {
                return Err(InvariantViolation::Children { content: content.0, counted, found });
            }
        }
        count("index", self.num_findable, num_findable)?;
        count("slots of contents", self.slots.values().sum::<u32>() as usize, slots.iter().sum::<u32>() as usize)?;
        let all = located.iter().zip(slots).filter(|(block, slots)| block.is_some() || **slots > 0).count();
        count("contents", self.num_contents, all)?;
        count("vacant contents", self.num_vacant(), self.nodes.len() - all)?;
        count("table of roots", self.roots.len(), roots.len())?;
        roots.into_iter().try_for_each(|(root, found)| {
            let root = crate::root_table::RootId(root);
            count("holders of a root", self.roots.holders(root) as usize, found as usize)
        })
    }

    fn check_findable(&self, content: ContentId, node: &Node, block: BlockId) -> Result<(), InvariantViolation> {
        if let Some(Continues::Content(parent)) = node.parent.get()
            && !self.is_findable(parent)
        {
            return Err(InvariantViolation::Orphan { block, parent: parent.0 });
        }
        let hash = self.hasher.block(self.hash_of(node.parent), self.tokens(content));
        if !node.hashed || node.hash != hash || usize::from(node.filled) != self.block_size {
            return Err(InvariantViolation::Hash { block });
        }
        if self.find(hash, node.parent, self.tokens(content)) != Some(content) {
            return Err(InvariantViolation::Lookup { block });
        }
        Ok(())
    }

    /// Returns the parent of `content`, which is another content or a root; `None` if the content is not findable.
    pub(crate) fn continues(&self, content: ContentId) -> Option<Parent> {
        let parent = self.node(content).parent;
        (parent != Parent::NONE).then_some(parent)
    }

    /// Returns what chains from `root` continue; `None` if no content under the root is findable.
    pub(crate) fn find_root(&self, root: &crate::hash::ChainRoot) -> Option<Parent> {
        self.roots.find(root).map(Parent::root)
    }

    fn ids(&self) -> impl Iterator<Item = ContentId> + use<> {
        (0..self.nodes.len() as u32).map(ContentId)
    }

    fn num_vacant(&self) -> usize {
        let mut at = self.vacant;
        let mut next = || {
            let content = (at != NONE).then_some(ContentId(at))?;
            at = self.node(content).next;
            Some(content)
        };
        std::iter::from_fn(&mut next).count()
    }
}
