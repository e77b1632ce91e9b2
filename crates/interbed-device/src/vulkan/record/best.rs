//! The greatest numbers of rows: kernels first find the greatest numbers of parts of a row, and then the greatest of
//! these.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use super::Recorder;
use crate::vulkan::error::GpuError;
use crate::vulkan::kernels::{Kernel, THREADS};
use crate::{BEST_MAX, BEST_WIDTH_MAX, Operand, PassNeeds, Tensor, Use};

/// The most bytes of room for the results of parts, which suffice for one row of the greatest width.
const ROOM_MAX: usize = 2 << 20;

/// Rows for which there is room, unless the room would exceed [`ROOM_MAX`].
const ROWS: usize = 64;

/// Numbers that one thread reads of a part; `best.comp` has the same constant.
const EACH: usize = 16;

/// Bytes of a key or of a pair.
const KEY: usize = 8;

/// Returns the number of bytes of room that passes of these `needs` take.
pub fn room_bytes(needs: &PassNeeds) -> usize {
    let part = EACH * THREADS as usize;
    if needs.best_width <= part {
        return 0;
    }
    (ROWS * KEY * left_of_row(needs.best_width, BEST_MAX, part).iter().sum::<usize>()).min(ROOM_MAX)
}

/// Returns the number of keys that the parts of a row leave, and the number that parts of these keys leave.
fn left_of_row(width: usize, count: usize, part: usize) -> [usize; 2] {
    let left_of = |numbers: usize| numbers.div_ceil(part) * count;
    [left_of(width), left_of(left_of(width))]
}

impl Recorder<'_> {
    /// Has the `count` greatest of each row of `x` in `out`.
    pub(super) fn best(
        &mut self,
        uses: &[Use],
        x: Tensor,
        width: usize,
        count: usize,
        out: Tensor,
    ) -> Result<(), GpuError> {
        assert!((1..=BEST_MAX.min(width)).contains(&count) && width <= BEST_WIDTH_MAX, "{count} of {width}");
        let (rows, part) = (x.len() / width, EACH * self.kernels.threads());
        assert_eq!(out.len(), rows * count * 2);
        let left_of = |numbers: usize| numbers.div_ceil(part) * count;
        let room = Arc::clone(self.best_room);
        let place = Operand::Weights { memory: Arc::as_ptr(&room).addr(), start: 0, end: room.len() };
        let uses: Vec<Use> = uses.iter().copied().chain([Use { place, writes: true }]).collect();
        // Two parts of the room by turns.
        let [one, other] = left_of_row(width, count, part);
        let rows_max = if width <= part { rows } else { (room.len() / KEY / (one + other)).min(rows) };
        assert!(rows_max > 0, "wider rows than were reserved for");
        for first in (0..rows).step_by(rows_max) {
            let rows = rows_max.min(rows - first);
            let rooms = [room.address(), room.address() + (rows * one * KEY) as u64];
            let (mut from, mut numbers, mut times) = (self.address(x.part(first * width..x.len())), width, 0);
            loop {
                let parts = numbers.div_ceil(part);
                let is_last = parts == 1;
                let result = match is_last {
                    true => self.address(out.part(first * count * 2..out.len())),
                    false => rooms[times % 2],
                };
                let (numbers_of, count_of) = (numbers as u32, count as u32);
                let push = BestPush {
                    from,
                    result,
                    numbers: numbers_of,
                    count: count_of,
                    is_last: u32::from(is_last),
                    unused: 0,
                };
                self.run(&uses, Kernel::Best { of_keys: times > 0 }, &push, [parts, rows])?;
                if is_last {
                    break;
                }
                (from, numbers, times) = (result, left_of(numbers), times + 1);
            }
        }
        Ok(())
    }
}

/// The arguments of `best.comp`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BestPush {
    from: u64,
    result: u64,
    numbers: u32,
    count: u32,
    is_last: u32,
    unused: u32,
}
