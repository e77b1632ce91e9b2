//! What must hold after every operation (K14), checked from scratch: slow, and independent of how it came about.

use thiserror::Error;

use crate::{
    BlockId, BlockManager, SequenceId,
    block_pool::{Link, Parent},
};

/// The first broken invariant that was found. Always a bug of this crate, or of an eviction policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum InvariantViolation {
    /// A block must be exactly one of free, cached, used and withdrawn.
    #[error("{block} is free: {free}, cached: {cached}, used: {used}, withdrawn: {withdrawn}; exactly one must hold")]
    State {
        /// The block.
        block: BlockId,
        /// It is in the free list.
        free: bool,
        /// The eviction policy knows it.
        cached: bool,
        /// A table holds it.
        used: bool,
        /// It is in the list of those without memory.
        withdrawn: bool,
    },
    /// Free and withdrawn blocks are not findable, cached ones are.
    #[error("{block} is held by nobody, but its being findable ({published}) does not go with that")]
    Published {
        /// The block.
        block: BlockId,
        /// It has a place in a chain.
        published: bool,
    },
    /// A block's reference count must be the number of tables that hold it.
    #[error("{block} has reference count {ref_count}, but {holders} tables hold it")]
    RefCount {
        /// The block.
        block: BlockId,
        /// What the block says.
        ref_count: u32,
        /// What the tables say.
        holders: u32,
    },
    /// A block's count of children must be the number of published blocks that name it as parent.
    #[error("{block} counts {counted} children, but {found} published blocks name it as their parent")]
    Children {
        /// The block.
        block: BlockId,
        /// What the block says.
        counted: u32,
        /// What the others say.
        found: u32,
    },
    /// The parent of a published block must be published, with the content it had then.
    #[error("{block} continues {parent}, which has lost the content that was continued")]
    Orphan {
        /// The published block.
        block: BlockId,
        /// Its parent.
        parent: BlockId,
    },
    /// A published block's hash must be that of its parent's hash and its tokens.
    #[error("{block} is published under a hash that is not that of its tokens")]
    Hash {
        /// The block.
        block: BlockId,
    },
    /// A look-up of a published block's content must find this very block.
    #[error("a look-up of what {block} holds finds another block or none")]
    Lookup {
        /// The block.
        block: BlockId,
    },
    /// The index and the free and cached lists must hold exactly the blocks that they should.
    #[error("the {list} counts {counted} blocks, but there are {found}")]
    Count {
        /// Which.
        list: &'static str,
        /// Its own count.
        counted: usize,
        /// What a walk over the blocks finds.
        found: usize,
    },
    /// As many blocks must be there as may be used, or more if all are used.
    #[error("{present} blocks are there, {unused} of them unused, but {usable} may be used")]
    Usable {
        /// Blocks that are not withdrawn.
        present: usize,
        /// Those of them that are free or cached.
        unused: usize,
        /// How many there should be.
        usable: usize,
    },
    /// What is reported of a change of size must be where the report says.
    #[error("{block} is reported to have come: {came}, or left: {left}, but it is withdrawn: {withdrawn}")]
    Resize {
        /// The block.
        block: BlockId,
        /// It is in the list of those that came.
        came: bool,
        /// It is in the list of those that left.
        left: bool,
        /// It is withdrawn.
        withdrawn: bool,
    },
    /// A sequence must have just enough blocks, its published ones a chain from its root, the others its own.
    #[error("{id}: {what}")]
    Sequence {
        /// The sequence.
        id: SequenceId,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl BlockManager {
    /// Checks every invariant; takes time in proportion to the pool.
    ///
    /// # Errors
    /// The first violation found.
    pub fn check(&self) -> Result<(), InvariantViolation> {
        self.check_states()?;
        self.check_size()?;
        self.check_chains()?;
        self.check_sequences()
    }

    fn block_ids(&self) -> impl Iterator<Item = BlockId> {
        (0..self.pool.blocks.len() as u32).map(BlockId)
    }

    fn links(&self) -> impl Iterator<Item = (BlockId, &Link)> {
        self.block_ids().filter_map(|block| Some((block, self.pool.blocks[block.index()].link.as_ref()?)))
    }

    /// Each block is one of free, cached, used, withdrawn; reference counts are those of the tables.
    fn check_states(&self) -> Result<(), InvariantViolation> {
        let pool = &self.pool;
        let mut holders = vec![0u32; pool.blocks.len()];
        self.sequences.values().flat_map(|sequence| &sequence.blocks).for_each(|block| holders[block.index()] += 1);
        let (mut num_free, mut num_cached) = (0, 0);
        for block in self.block_ids() {
            let (state, holders) = (&pool.blocks[block.index()], holders[block.index()]);
            let (free, cached, used) = (pool.free.contains(block), pool.cached.contains(block), holders > 0);
            let withdrawn = pool.withdrawn.contains(block);
            if [free, cached, used, withdrawn].map(u8::from).iter().sum::<u8>() != 1 {
                return Err(InvariantViolation::State { block, free, cached, used, withdrawn });
            }
            if state.ref_count != holders {
                return Err(InvariantViolation::RefCount { block, ref_count: state.ref_count, holders });
            }
            let published = state.link.is_some();
            if !used && published != cached {
                return Err(InvariantViolation::Published { block, published });
            }
            num_free += usize::from(free);
            num_cached += usize::from(cached);
        }
        count("free list", pool.free.len(), num_free)?;
        count("free list walked", pool.free.iter().count(), num_free)?;
        count("eviction policy", pool.cached.len(), num_cached)?;
        count("index", pool.index.len(), self.links().count())
    }

    /// The size is what was asked for, as far as used blocks allow, and reports of its changes are true.
    fn check_size(&self) -> Result<(), InvariantViolation> {
        let pool = &self.pool;
        let withdrawn = self.block_ids().filter(|&block| pool.withdrawn.contains(block)).count();
        count("list of withdrawn blocks", pool.withdrawn.len(), withdrawn)?;
        let (present, unused, usable) = (pool.present(), pool.available(), pool.usable);
        if present < usable || (present > usable && unused > 0) {
            return Err(InvariantViolation::Usable { present, unused, usable });
        }
        for block in self.block_ids() {
            let (came, left) = (pool.resized.came.contains(block), pool.resized.left.contains(block));
            let withdrawn = pool.withdrawn.contains(block);
            if (came && withdrawn) || (left && !withdrawn) {
                return Err(InvariantViolation::Resize { block, came, left, withdrawn });
            }
        }
        Ok(())
    }

    /// Published blocks form chains from a root, each found by its content; index and content agree.
    fn check_chains(&self) -> Result<(), InvariantViolation> {
        let pool = &self.pool;
        let mut children = vec![0u32; pool.blocks.len()];
        for (block, link) in self.links() {
            let previous = match &link.parent {
                Parent::Root(root) => pool.hasher.root(root),
                Parent::Block { block: parent, generation } => {
                    children[parent.index()] += 1;
                    let state = &pool.blocks[parent.index()];
                    match &state.link {
                        Some(link) if state.generation == *generation => link.hash,
                        _ => return Err(InvariantViolation::Orphan { block, parent: *parent }),
                    }
                }
            };
            if link.hash != pool.hasher.block(previous, pool.tokens(block)) {
                return Err(InvariantViolation::Hash { block });
            }
            if pool.find(link.hash, &link.parent, pool.tokens(block)) != Some(block) {
                return Err(InvariantViolation::Lookup { block });
            }
        }
        for block in self.block_ids() {
            let (counted, found) = (pool.blocks[block.index()].children, children[block.index()]);
            if counted != found {
                return Err(InvariantViolation::Children { block, counted, found });
            }
        }
        Ok(())
    }

    fn check_sequences(&self) -> Result<(), InvariantViolation> {
        let pool = &self.pool;
        for (&id, sequence) in &self.sequences {
            let broken = |what| Err(InvariantViolation::Sequence { id, what });
            if sequence.blocks.len() != sequence.num_tokens.div_ceil(self.config.block_size) {
                return broken("it has more or fewer blocks than its tokens need");
            }
            if sequence.num_published * self.config.block_size > sequence.num_tokens {
                return broken("a block that is not full is published");
            }
            let (published, private) = sequence.blocks.split_at(sequence.num_published);
            let mut parent = Parent::Root(sequence.root.clone());
            for &block in published {
                match &pool.blocks[block.index()].link {
                    Some(link) if link.parent == parent => parent = pool.as_parent(block),
                    _ => return broken("its published blocks are not a chain from its root"),
                }
            }
            if private.iter().any(|block| pool.blocks[block.index()].link.is_some()) {
                return broken("a block is published that it has not committed");
            }
            // After a reset, blocks that were shared stay so without being published.
            let exclusive = sequence.publishing || !self.config.prefix_caching;
            if exclusive && private.iter().any(|block| pool.blocks[block.index()].ref_count != 1) {
                return broken("a block that it may still write is shared");
            }
        }
        Ok(())
    }
}

fn count(list: &'static str, counted: usize, found: usize) -> Result<(), InvariantViolation> {
    if counted == found { Ok(()) } else { Err(InvariantViolation::Count { list, counted, found }) }
}
