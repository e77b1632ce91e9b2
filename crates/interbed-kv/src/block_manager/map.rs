//! Tells what every trunk block is used for at one moment, for pictures of memory.

use super::BlockManager;
use crate::ids::SequenceId;

/// The use of a trunk block, in two bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockUse(u16);

impl BlockUse {
    /// The block has no memory.
    pub const WITHDRAWN: Self = Self(0);
    /// The block holds no content.
    pub const FREE: Self = Self(1);
    /// A look-up can find the block's content, and nothing holds the block.
    pub const CACHED: Self = Self(2);
    /// Only a transfer holds the block.
    pub const MOVING: Self = Self(3);
    /// Number of sequences that can be told apart. Sequences get numbers below this one.
    pub const OWNERS_MAX: u16 = Self::SHARED - Self::FIRST_OWNER;

    const FIRST_OWNER: u16 = 4;
    const SHARED: u16 = 1 << 15;

    /// Marks a block that the sequence with this number holds. Numbers from [`OWNERS_MAX`](Self::OWNERS_MAX) on count
    /// as the highest number below.
    pub fn owned(number: u16) -> Self {
        Self(Self::FIRST_OWNER + number.min(Self::OWNERS_MAX - 1))
    }

    /// Marks the block as one that other sequences hold as well.
    pub fn shared(self) -> Self {
        Self(self.0 | Self::SHARED)
    }

    /// Returns the lowest number of the sequences that hold the block; `None` if no sequence holds it.
    pub fn owner(self) -> Option<u16> {
        (self.0 & !Self::SHARED).checked_sub(Self::FIRST_OWNER)
    }

    /// Returns whether several sequences hold the block.
    pub fn is_shared(self) -> bool {
        self.0 & Self::SHARED != 0
    }

    /// Returns a number for each use: 0 for withdrawn, 1 for free, 2 for cached, 3 for moving, and from 4 on the lowest
    /// number of the sequences that hold the block, plus 4. The code is 32768 more if several sequences hold the block.
    pub fn code(self) -> u16 {
        self.0
    }
}

impl BlockManager {
    /// Writes what each trunk block is used for into `uses`, in the order of ids, and replaces what was there. `number`
    /// gives the number of a sequence; a block that several sequences hold gets the lowest of their numbers. The call
    /// takes time in proportion to the pool and to all tables.
    pub fn map(&self, number: impl Fn(SequenceId) -> u16, uses: &mut Vec<BlockUse>) {
        uses.clear();
        uses.extend(self.cache.blocks().states().map(|(is_present, has_content)| match (is_present, has_content) {
            (false, _) => BlockUse::WITHDRAWN,
            (true, false) => BlockUse::FREE,
            (true, true) => BlockUse::CACHED,
        }));
        let moving =
            self.transfers.flights().flat_map(|(_, flight)| &flight.transfers).map(|transfer| transfer.part.block);
        for block in moving.chain(self.transfers.fetched()) {
            // The map has trunk blocks alone; transfers may also hold tail blocks.
            uses.get_mut(block.index()).into_iter().for_each(|place| *place = BlockUse::MOVING);
        }
        for (id, table) in self.tables.iter() {
            let number = number(id);
            for block in table.blocks() {
                let place = &mut uses[block.index()];
                *place = match place.owner() {
                    None => BlockUse::owned(number),
                    Some(other) => BlockUse::owned(number.min(other)).shared(),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChainRoot, KvConfig, TokenId};

    #[test]
    fn each_use_has_its_code() {
        let codes = [BlockUse::WITHDRAWN, BlockUse::FREE, BlockUse::CACHED, BlockUse::MOVING].map(BlockUse::code);
        assert_eq!(codes, [0, 1, 2, 3]);
        let own = BlockUse::owned(7);
        assert_eq!((own.code(), own.shared().code()), (11, 32_779));
        assert_eq!(
            (own.owner(), own.shared().owner(), own.is_shared(), own.shared().is_shared()),
            (Some(7), Some(7), false, true)
        );
        assert_eq!((BlockUse::MOVING.owner(), BlockUse::MOVING.is_shared()), (None, false));
        // Beyond the numbers that there are, sequences look alike.
        let last = BlockUse::owned(u16::MAX);
        assert_eq!((last.owner(), last.is_shared()), (Some(BlockUse::OWNERS_MAX - 1), false));
    }

    #[test]
    fn a_shared_prefix_is_seen() {
        let config = KvConfig { num_blocks: 8, block_size: 2, ..KvConfig::default() };
        let mut manager = BlockManager::new(config).expect("a good configuration");
        let begin = |manager: &mut BlockManager, id: u64, tokens: &[TokenId]| {
            let hashes = manager.hash_prefix(&ChainRoot::default(), tokens);
            manager.allocate(SequenceId(id), tokens, &hashes).expect("there is room");
            manager.commit(SequenceId(id), tokens.len());
        };
        begin(&mut manager, 1, &[1, 2, 3, 4, 5]);
        begin(&mut manager, 2, &[1, 2, 9]);
        manager.set_usable(6);
        let mut uses = Vec::new();
        manager.map(|id| id.0 as u16, &mut uses);
        let table = |id| manager.block_table(SequenceId(id)).expect("resident");
        assert_eq!(uses[table(1)[0].index()], BlockUse::owned(1).shared());
        assert_eq!(uses[table(1)[2].index()], BlockUse::owned(1));
        assert_eq!(uses[table(2)[1].index()], BlockUse::owned(2));
        let count = |uses: &[BlockUse], use_| uses.iter().filter(|&&other| other == use_).count();
        assert_eq!((count(&uses, BlockUse::FREE), count(&uses, BlockUse::WITHDRAWN)), (2, 2));
        manager.free(SequenceId(1));
        manager.map(|id| id.0 as u16, &mut uses);
        // The partial block is free; of the others, one is found by nobody now, and one is the second's alone.
        assert_eq!((count(&uses, BlockUse::CACHED), count(&uses, BlockUse::FREE)), (1, 3));
        assert_eq!(count(&uses, BlockUse::owned(2)), 2);
    }
}
