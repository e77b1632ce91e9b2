//! A device that finds missing waits: it executes submitted commands at random, in any legal order, and refuses
//! submissions that use the same memory without an order between them. The device computes with plain f32 arithmetic,
//! and serves tests.

mod blocks;
mod bytes;
mod operations;
mod room;

use std::ops::Range;
use std::sync::Arc;

use interbed_kernels::BlockGroups;

use crate::{Command, Device, DeviceError, HostBuffer, Operand, PassNeeds, PlacedBytes, Queue, Tensor, Token, Use};
pub use bytes::ReferenceBytes;
use operations::{DeviceMemory, Operation};
use room::{Room, Taken};

/// Number of queues, as numbered by [`index_of`].
const QUEUES: usize = 4;

/// The number of the last submission to each queue that is known to have been executed.
type Known = [u64; QUEUES];

/// A device that executes commands in a random legal order, and finds missing waits.
pub struct ReferenceDevice {
    memory: DeviceMemory,
    capacity: usize,
    groups: BlockGroups,
    /// Commands that were submitted but not executed, in the order of submission.
    pending: Vec<Pending>,
    /// Submissions that the host does not know to be complete, in the order of submission.
    open: Vec<Open>,
    /// The submissions that the last submission to each queue had to come after; later submissions must come after them
    /// too.
    last: [Known; QUEUES],
    /// The submissions that the host has waited for.
    host: Known,
    submitted: u64,
    random: u64,
    /// Whether copies read host memory when they are executed, instead of when they are submitted.
    shares: bool,
    /// The memory that weights and KV blocks share; `None` if there is enough of it, and all blocks have theirs.
    room: Option<Room>,
    /// The memory that each block has taken of `room`.
    taken: Vec<Option<Taken>>,
    /// Memory for blocks of each group that are to come.
    spare: Vec<Vec<Taken>>,
}

/// A command that has yet to be executed.
struct Pending {
    number: u64,
    queue: Queue,
    /// Submissions that must be executed before this command.
    after: Known,
    uses: Vec<Use>,
    operation: Operation,
}

/// A submission that others may have to wait for.
struct Open {
    token: Token,
    after: Known,
    uses: Vec<Use>,
}

impl ReferenceDevice {
    /// Creates a device for passes of these `needs`, with the blocks of `groups`; `seed` chooses the order of
    /// execution. All memory is poisoned, so that reading anything before it is written shows in the results. With an
    /// odd seed, the device [shares](Device::share) host memory.
    pub fn new(needs: &PassNeeds, groups: &BlockGroups, seed: u64) -> Self {
        let capacity = needs.tensors.bytes() / size_of::<f32>();
        Self {
            memory: DeviceMemory::poisoned(capacity, groups.trunk().block_size()),
            capacity,
            groups: groups.clone(),
            pending: Vec::new(),
            open: Vec::new(),
            last: [[0; QUEUES]; QUEUES],
            host: [0; QUEUES],
            submitted: 0,
            random: seed,
            shares: !seed.is_multiple_of(2),
            room: None,
            taken: Vec::new(),
            spare: groups.groups().iter().map(|_| Vec::new()).collect(),
        }
    }

    /// Gives the device only `bytes` bytes of memory for weights and blocks. Blocks have none before they
    /// [come](Device::resize_blocks), and the device refuses commands on blocks without memory.
    pub fn with_memory(self, bytes: u64) -> Self {
        let taken = (0..self.groups.num_blocks()).map(|_| None).collect();
        Self { room: Some(Room::new(bytes)), taken, ..self }
    }

    /// Returns the number of bytes of its memory that weights and KV blocks take, if the device has
    /// [little](Self::with_memory).
    pub fn memory_used(&self) -> Option<u64> {
        self.room.as_ref().map(Room::used)
    }

    /// # Panics
    /// Panics if a block has no memory.
    fn expect_memory(&self, blocks: impl IntoIterator<Item = u32>) {
        if self.room.is_some() {
            blocks.into_iter().for_each(|block| assert!(self.taken[block as usize].is_some(), "block {block}"));
        }
    }

    /// Checks that a submission to `queue`, which comes after what `after` names, is ordered with every other one that
    /// uses the same memory.
    fn check_order(&self, queue: Queue, after: &Known, uses: &[Use]) -> Result<(), DeviceError> {
        let unordered = self.open.iter().find(|earlier| {
            let ordered = earlier.token.queue == queue || earlier.token.number <= after[index_of(earlier.token.queue)];
            !ordered && conflict(&earlier.uses, uses)
        });
        match unordered {
            Some(first) => Err(DeviceError::Unordered { first: first.token.number, second: self.submitted + 1 }),
            None => Ok(()),
        }
    }

    /// Takes note of a submission whose commands are pending, and executes some commands.
    fn submitted(&mut self, queue: Queue, after: Known, uses: Vec<Use>) -> Token {
        self.submitted += 1;
        self.last[index_of(queue)] = after;
        let token = Token { queue, number: self.submitted };
        self.open.push(Open { token, after, uses });
        // While the host continues, the device executes a random number of commands, sometimes none.
        for _ in 0..self.next_random() % 4 {
            self.execute_any();
        }
        token
    }

    /// Submits an operation on KV blocks that no command describes to the queue of passes.
    fn submit_on_blocks(&mut self, writes: bool, operation: Operation) -> Result<Token, DeviceError> {
        let (queue, number) = (Queue::Compute, self.submitted + 1);
        let mut after = self.last[index_of(queue)];
        raise(&mut after, &self.host);
        let uses = vec![Use { place: Operand::Kv, writes }];
        self.check_order(queue, &after, &uses)?;
        self.pending.push(Pending { number, queue, after, uses: uses.clone(), operation });
        Ok(self.submitted(queue, after, uses))
    }

    /// Executes one of the commands that may be executed now, chosen at random. Returns false if there is none.
    fn execute_any(&mut self) -> bool {
        let ready: Vec<_> = (0..self.pending.len()).filter(|&index| self.is_ready(index)).collect();
        if ready.is_empty() {
            return false;
        }
        let chosen = ready[self.next_random() as usize % ready.len()];
        let pending = self.pending.remove(chosen);
        (pending.operation)(&mut self.memory);
        true
    }

    /// Returns whether all commands that the command must come after have been executed.
    fn is_ready(&self, index: usize) -> bool {
        let command = &self.pending[index];
        self.pending[..index].iter().all(|earlier| {
            let waited_for = earlier.number <= command.after[index_of(earlier.queue)];
            let in_order = earlier.queue == command.queue && conflict(&earlier.uses, &command.uses);
            !(waited_for || in_order)
        })
    }

    /// Returns the next number of splitmix64.
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}

impl Device for ReferenceDevice {
    fn tensor_capacity(&self) -> usize {
        self.capacity
    }

    fn submit(&mut self, queue: Queue, commands: &[Command<'_>], waits: &[Token]) -> Result<Token, DeviceError> {
        let number = self.submitted + 1;
        let mut after = self.last[index_of(queue)];
        raise(&mut after, &self.host);
        for token in waits {
            assert!(token.number <= self.submitted, "a wait for what has not been submitted never ends");
            raise(&mut after, &self.last_of(*token));
        }
        let uses: Vec<_> = commands.iter().flat_map(Command::uses).collect();
        self.check_order(queue, &after, &uses)?;
        for command in commands {
            match command {
                Command::StoreKv { sequences, .. } | Command::Attend { sequences, .. } => {
                    self.expect_memory(sequences.tables.iter().copied());
                }
                Command::Convolve { sequences, .. }
                | Command::ShortConvolution { sequences, .. }
                | Command::DeltaRule { sequences, .. }
                | Command::StateSpace { sequences, .. } => {
                    self.expect_memory(sequences.iter().flat_map(|span| span.from.into_iter().chain([span.to])));
                }
                Command::CopyBlocks { copies } => {
                    copies.iter().for_each(|&copy| _ = self.groups.group_of_copy(copy));
                    self.expect_memory(copies.iter().flat_map(|&(from, to)| [from, to]));
                }
                _ => {}
            }
            let uses: Vec<_> = command.uses().into_iter().collect();
            for used in &uses {
                if let (Operand::Host(tensor), true) = (used.place, used.writes) {
                    self.memory.poison_host(tensor);
                }
            }
            self.pending.push(Pending { number, queue, after, uses, operation: operations::of(command, self.shares) });
        }
        Ok(self.submitted(queue, after, uses))
    }

    fn copies_downloads(&self) -> bool {
        true
    }

    fn complete(&mut self, token: Token) -> Result<(), DeviceError> {
        let known = self.last_of(token);
        while self.pending.iter().any(|pending| pending.number <= known[index_of(pending.queue)]) {
            assert!(self.execute_any(), "submissions only wait for earlier ones, so something can be executed");
        }
        raise(&mut self.host, &known);
        let host = self.host;
        self.open.retain(|earlier| earlier.token.number > host[index_of(earlier.token.queue)]);
        Ok(())
    }

    fn is_complete(&mut self, token: Token) -> Result<bool, DeviceError> {
        let known = self.last_of(token);
        let is_pending = self.pending.iter().any(|pending| pending.number <= known[index_of(pending.queue)]);
        if is_pending {
            self.execute_any();
        } else {
            self.complete(token)?;
        }
        Ok(!is_pending)
    }

    fn share(&mut self, _memory: &HostBuffer) -> bool {
        self.shares
    }

    fn computes_on_host(&self) -> bool {
        true
    }

    fn allocate(&mut self, len: usize) -> Result<PlacedBytes, DeviceError> {
        let taken = self.room.as_ref().map(|room| room.take(len as u64).ok_or(DeviceError::Full)).transpose()?;
        Ok(PlacedBytes::Reference(Arc::new(ReferenceBytes::poisoned(len, taken))))
    }

    fn has_own_memory(&self) -> bool {
        true
    }

    fn block_groups(&self) -> &BlockGroups {
        &self.groups
    }

    fn read_block(&mut self, block: u32, begin: usize, into: &mut [u8]) -> Result<(), DeviceError> {
        let layout = self.groups.layout_of(block).clone();
        self.expect_memory([block]);
        let last = self.submit_on_blocks(false, Box::new(|_| ()))?;
        self.complete(last)?;
        let mut bytes = vec![0; begin + into.len()];
        self.memory.read_block(&layout, block, &mut bytes);
        into.copy_from_slice(&bytes[begin..]);
        Ok(())
    }

    fn fill_block(
        &mut self,
        block: u32,
        bytes: Range<usize>,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        let layout = self.groups.layout_of(block).clone();
        self.expect_memory([block]);
        let mut part = vec![0; bytes.len()];
        fill(&mut part);
        let fill = move |memory: &mut DeviceMemory| {
            let mut content = vec![0; layout.content_bytes()];
            memory.read_block(&layout, block, &mut content);
            content[bytes].copy_from_slice(&part);
            memory.fill_block(&layout, block, &content);
        };
        self.submit_on_blocks(true, Box::new(fill)).map(|_| ())
    }

    fn reserve_blocks(&mut self, group: usize, count: usize) -> Result<usize, DeviceError> {
        let bytes = self.groups.groups()[group].block_bytes() as u64;
        while self.room.is_some() && self.spare[group].len() < count {
            let mut taken = self.room.as_ref().and_then(|room| room.take(bytes));
            if taken.is_none() {
                // What was dropped keeps its memory until it has been used.
                self.settle()?;
                taken = self.room.as_ref().and_then(|room| room.take(bytes));
            }
            match taken {
                Some(taken) => self.spare[group].push(taken),
                None => return Ok(self.spare[group].len()),
            }
        }
        Ok(count)
    }

    fn settle(&mut self) -> Result<(), DeviceError> {
        for queue in [Queue::Compute, Queue::Upload, Queue::Download, Queue::Host] {
            self.complete(Token { queue, number: self.submitted })?;
        }
        Ok(())
    }

    fn prepare_blocks(&mut self, group: usize, count: usize) {
        let blocks: Vec<_> = self.groups.groups()[group].numbers().take(count).map(|block| block as u32).collect();
        let poisoned = self.submit_on_blocks(true, Box::new(move |memory| memory.poison_blocks(&blocks)));
        poisoned.expect("nothing is under way in other queues that uses KV");
    }

    fn resize_blocks(&mut self, came: &[u32], left: &[u32]) -> Result<(), DeviceError> {
        let mut gone = left.to_vec();
        let mut unused = Vec::new();
        if self.room.is_some() {
            for &block in left {
                self.spare[self.groups.group_of(block)].extend(self.taken[block as usize].take());
            }
            for &block in came {
                let taken = &mut self.taken[block as usize];
                if taken.is_none() {
                    *taken = Some(self.spare[self.groups.group_of(block)].pop().ok_or(DeviceError::Full)?);
                    gone.push(block);
                }
            }
            unused = self.spare.iter_mut().flat_map(std::mem::take).collect();
        }
        let num_blocks = self.groups.num_blocks();
        assert!(gone.iter().all(|&block| (block as usize) < num_blocks), "blocks of {num_blocks}");
        let poison = move |memory: &mut DeviceMemory| {
            memory.poison_blocks(&gone);
            drop(unused);
        };
        self.submit_on_blocks(true, Box::new(poison)).map(|_| ())
    }

    fn downloaded(&mut self, tensor: Tensor) -> Result<&mut [f32], DeviceError> {
        let read = Use { place: Operand::Host(tensor), writes: false };
        // Submissions that the host has waited for are no longer open.
        match self.open.iter().find(|earlier| conflict(&earlier.uses, &[read])) {
            Some(writer) => Err(DeviceError::ReadTooEarly { writer: writer.token.number }),
            None => Ok(self.memory.host(tensor)),
        }
    }
}

impl ReferenceDevice {
    /// Returns what has been executed once `token` is complete: the submissions to its queue up to `token`, and
    /// everything that these had to come after.
    fn last_of(&self, token: Token) -> Known {
        let mut known = self.host;
        for earlier in &self.open {
            if earlier.token.queue == token.queue && earlier.token.number <= token.number {
                raise(&mut known, &earlier.after);
            }
        }
        let own = &mut known[index_of(token.queue)];
        *own = (*own).max(token.number);
        known
    }
}

fn index_of(queue: Queue) -> usize {
    match queue {
        Queue::Compute => 0,
        Queue::Upload => 1,
        Queue::Download => 2,
        Queue::Host => 3,
    }
}

fn raise(known: &mut Known, by: &Known) {
    known.iter_mut().zip(by).for_each(|(known, by)| *known = (*known).max(*by));
}

fn conflict(some: &[Use], others: &[Use]) -> bool {
    some.iter().any(|one| others.iter().any(|other| one.conflicts(other)))
}

#[cfg(test)]
mod tests;
