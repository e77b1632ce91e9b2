//! Encodes a batch of changes in msgpack, in the format of vLLM's `KVEventBatch` (version 0.24 and later). A batch is
//! an array of time, events and rank, in which each event is a map with its `type`.

use interbed_kv::{BlockHash, CacheChange, CacheChanges, TokenId};

/// The name that the format gives to the memory that attention reads.
const MEDIUM: &str = "GPU";
/// The rank of the cache. There is one cache, but routers expect a number.
const RANK: u64 = 0;
const GROUP: u64 = 0;

/// One event, which is a run of changes that continue each other.
enum Event<'c> {
    Stored { parent: Option<BlockHash>, blocks: Vec<(BlockHash, &'c [TokenId])> },
    Removed(Vec<BlockHash>),
    Cleared,
}

/// Encodes a batch of `changes` of blocks of `block_size` tokens, at `seconds` since 1970.
pub fn encode(changes: &CacheChanges, block_size: usize, seconds: f64) -> Vec<u8> {
    let events = events(changes);
    let mut writer = Writer(Vec::new());
    writer.array(3);
    writer.float(seconds);
    writer.array(events.len());
    events.iter().for_each(|event| writer.event(event, block_size));
    writer.number(RANK);
    writer.0
}

/// Groups the changes into events. Blocks that were stored one after the other as a chain are one event, and so are
/// blocks that were removed together.
fn events(changes: &CacheChanges) -> Vec<Event<'_>> {
    let mut events: Vec<Event<'_>> = Vec::new();
    for change in changes.iter() {
        match (change, events.last_mut()) {
            (CacheChange::Stored { hash, parent, tokens }, Some(Event::Stored { blocks, .. }))
                if parent.is_some() && parent == blocks.last().map(|(hash, _)| *hash) =>
            {
                blocks.push((hash, tokens));
            }
            (CacheChange::Stored { hash, parent, tokens }, _) => {
                events.push(Event::Stored { parent, blocks: vec![(hash, tokens)] });
            }
            (CacheChange::Removed { hash }, Some(Event::Removed(hashes))) => hashes.push(hash),
            (CacheChange::Removed { hash }, _) => events.push(Event::Removed(vec![hash])),
            (CacheChange::Cleared, _) => events.push(Event::Cleared),
        }
    }
    events
}

/// Encodes to memory, which does not fail.
struct Writer(Vec<u8>);

const MEMORY: &str = "writing to memory does not fail";

impl Writer {
    fn event(&mut self, event: &Event<'_>, block_size: usize) {
        match event {
            Event::Stored { parent, blocks } => {
                self.map(9);
                self.entry("type", "BlockStored");
                self.text("block_hashes");
                self.numbers(blocks.iter().map(|(hash, _)| hash.0));
                self.text("parent_block_hash");
                match parent {
                    Some(hash) => self.number(hash.0),
                    None => self.nil(),
                }
                self.text("token_ids");
                self.array(blocks.iter().map(|(_, tokens)| tokens.len()).sum());
                blocks.iter().flat_map(|(_, tokens)| *tokens).for_each(|&token| self.number(token.into()));
                self.text("block_size");
                self.number(block_size as u64);
                self.text("lora_id");
                self.nil();
                self.entry("medium", MEDIUM);
                self.text("lora_name");
                self.nil();
                self.group();
            }
            Event::Removed(hashes) => {
                self.map(4);
                self.entry("type", "BlockRemoved");
                self.text("block_hashes");
                self.numbers(hashes.iter().map(|hash| hash.0));
                self.entry("medium", MEDIUM);
                self.group();
            }
            Event::Cleared => {
                self.map(1);
                self.entry("type", "AllBlocksCleared");
            }
        }
    }

    fn group(&mut self) {
        self.text("group_idx");
        self.number(GROUP);
    }

    fn numbers(&mut self, numbers: impl ExactSizeIterator<Item = u64>) {
        self.array(numbers.len());
        numbers.for_each(|number| self.number(number));
    }

    fn entry(&mut self, name: &str, value: &str) {
        self.text(name);
        self.text(value);
    }

    fn array(&mut self, length: usize) {
        rmp::encode::write_array_len(&mut self.0, length as u32).expect(MEMORY);
    }

    fn map(&mut self, length: u32) {
        rmp::encode::write_map_len(&mut self.0, length).expect(MEMORY);
    }

    fn text(&mut self, text: &str) {
        rmp::encode::write_str(&mut self.0, text).expect(MEMORY);
    }

    fn number(&mut self, number: u64) {
        rmp::encode::write_uint(&mut self.0, number).expect(MEMORY);
    }

    fn float(&mut self, number: f64) {
        rmp::encode::write_f64(&mut self.0, number).expect(MEMORY);
    }

    fn nil(&mut self) {
        rmp::encode::write_nil(&mut self.0).expect(MEMORY);
    }
}
