//! Emulates AMX on machines without it: tile instructions that the processor refuses are executed in software.
//!
//! A refused instruction raises SIGILL. The handler decodes it at the program counter, executes it on tiles that belong
//! to the thread, and lets the program continue after it. So the tests run the actual machine code of the kernels, with
//! its addresses, strides and configurations. Any other refused instruction stays fatal.

use std::cell::RefCell;
use std::sync::Once;

use half::bf16;
use interbed_kernels::Level;

/// The AMX level: the machine's own, or emulated. `None` if the machine lacks AVX-512 BF16, which the code around the
/// tiles needs.
pub fn amx_level() -> Option<Level> {
    if let Some(level) = Level::available().find(|level| level.name() == "amx") {
        return Some(level);
    }
    Level::available().find(|level| level.name() == "avx512-bf16")?;
    static INSTALL: Once = Once::new();
    INSTALL.call_once(install);
    // SAFETY: the instructions that the machine lacks are emulated from here on.
    unsafe { Level::assume("amx") }
}

fn install() {
    // SAFETY: a handler with the signature that SA_SIGINFO asks for; all fields are set or zero.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_refused;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()), 0);
    }
}

#[derive(Clone, Copy)]
struct Tiles {
    /// Bytes of a row, and number of rows, for each register; zero before a configuration is loaded.
    shapes: [(usize, usize); 8],
    /// Shape: `[register][row][byte]`.
    data: [[[u8; 64]; 16]; 8],
}

thread_local! {
    static TILES: RefCell<Tiles> = const { RefCell::new(Tiles { shapes: [(0, 0); 8], data: [[[0; 64]; 16]; 8] }) };
}

extern "C" fn on_refused(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes the context of the interrupted thread, which waits meanwhile.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let outcome = TILES.with(|tiles| carry_out(registers, &mut tiles.borrow_mut()));
    match outcome {
        Some(length) => registers[libc::REG_RIP as usize] += length as i64,
        // The instruction is no tile instruction: abort as the process would without a handler.
        None => std::process::abort(),
    }
}

/// An instruction under the three-byte VEX prefix, `C4 RXB.map W.vvvv.L.pp opcode modrm …`, in map 0F38.
struct Instruction {
    prefix: u8,
    opcode: u8,
    /// Destination (or source, for stores).
    reg: usize,
    /// Second register operand, if there is one.
    vvvv: usize,
    operand: Operand,
    length: usize,
}

enum Operand {
    Register(usize),
    Memory {
        base: u64,
        /// Index times scale, which tile loads use as the distance between rows.
        stride: u64,
    },
}

/// Executes a tile instruction; returns its length, or `None` if it is another instruction.
fn carry_out(registers: &[i64; 23], tiles: &mut Tiles) -> Option<usize> {
    let instruction = decode(registers)?;
    let Instruction { prefix, opcode, reg, vvvv, ref operand, length } = instruction;
    match (prefix, opcode, operand) {
        // ldtilecfg
        (0, 0x49, &Operand::Memory { base, .. }) => {
            // SAFETY: the instruction reads 64 bytes from there.
            let config = unsafe { (base as *const [u8; 64]).read_unaligned() };
            assert!(config[0] == 1 && config[1..16].iter().all(|&byte| byte == 0), "palette and reserved bytes");
            for register in 0..8 {
                let row_bytes = u16::from_le_bytes([config[16 + 2 * register], config[17 + 2 * register]]);
                let shape = (usize::from(row_bytes), usize::from(config[48 + register]));
                assert!(shape.0 <= 64 && shape.1 <= 16, "limits of palette 1");
                assert_eq!(shape.0 == 0, shape.1 == 0, "a tile has rows and columns, or neither");
                tiles.shapes[register] = shape;
            }
            tiles.data = [[[0; 64]; 16]; 8];
        }
        // tilerelease
        (0, 0x49, &Operand::Register(0)) => tiles.shapes = [(0, 0); 8],
        // tilezero
        (3, 0x49, &Operand::Register(_)) => {
            assert!(tiles.shapes[reg].0 > 0, "tile {reg} is configured");
            tiles.data[reg] = [[0; 64]; 16];
        }
        // tileloadd
        (3, 0x4B, &Operand::Memory { base, stride }) => {
            let (row_bytes, rows) = tiles.shapes[reg];
            assert!(row_bytes > 0, "tile {reg} is configured");
            tiles.data[reg] = [[0; 64]; 16];
            for (row, to) in tiles.data[reg][..rows].iter_mut().enumerate() {
                let from = base.wrapping_add(stride.wrapping_mul(row as u64)) as *const u8;
                // SAFETY: the instruction reads these bytes.
                unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), row_bytes) };
            }
        }
        // tilestored
        (2, 0x4B, &Operand::Memory { base, stride }) => {
            let (row_bytes, rows) = tiles.shapes[reg];
            assert!(row_bytes > 0, "tile {reg} is configured");
            for (row, from) in tiles.data[reg][..rows].iter().enumerate() {
                let to = base.wrapping_add(stride.wrapping_mul(row as u64)) as *mut u8;
                // SAFETY: the instruction writes these bytes.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, row_bytes) };
            }
        }
        // tdpbf16ps
        (2, 0x5C, &Operand::Register(a)) => multiply(tiles, reg, a, vvvv, add_bf16),
        // tdpbssd, tdpbsud, tdpbusd, tdpbuud
        (3, 0x5E, &Operand::Register(a)) => multiply(tiles, reg, a, vvvv, |c, a, b| add_bytes(c, a, b, true, true)),
        (2, 0x5E, &Operand::Register(a)) => multiply(tiles, reg, a, vvvv, |c, a, b| add_bytes(c, a, b, true, false)),
        (1, 0x5E, &Operand::Register(a)) => multiply(tiles, reg, a, vvvv, |c, a, b| add_bytes(c, a, b, false, true)),
        (0, 0x5E, &Operand::Register(a)) => multiply(tiles, reg, a, vvvv, |c, a, b| add_bytes(c, a, b, false, false)),
        _ => return None,
    }
    Some(length)
}

/// Four bytes, which products take together.
type Four = [u8; 4];

/// Computes `c[m][n] = add(c[m][n], all of a[m], column n of b)`, in groups of four bytes.
fn multiply(tiles: &mut Tiles, c: usize, a: usize, b: usize, add: impl Fn(Four, &[Four], &[Four]) -> Four) {
    let ((c_bytes, c_rows), (a_bytes, a_rows), (b_bytes, b_rows)) = (tiles.shapes[c], tiles.shapes[a], tiles.shapes[b]);
    assert!(c != a && c != b && a != b, "operands are three tiles");
    assert!(c_rows == a_rows && c_bytes == b_bytes && a_bytes == 4 * b_rows && c_rows > 0, "shapes fit");
    for m in 0..c_rows {
        let (row, _) = tiles.data[a][m].as_chunks::<4>();
        let row = row[..b_rows].to_vec();
        for n in 0..c_bytes / 4 {
            let at = 4 * n..4 * n + 4;
            let column: Vec<[u8; 4]> =
                (0..b_rows).map(|k| tiles.data[b][k][at.clone()].try_into().expect("four bytes")).collect();
            let before = tiles.data[c][m][at.clone()].try_into().expect("four bytes");
            tiles.data[c][m][at].copy_from_slice(&add(before, &row, &column));
        }
    }
}

/// Adds products of bf16: even and odd ones are summed apart, then together, then added; subnormals count as zero.
fn add_bf16(c: Four, a: &[Four], b: &[Four]) -> Four {
    let flush = |x: f32| if x.is_subnormal() { 0.0 } else { x };
    let half = |pair: &Four, i: usize| flush(bf16::from_le_bytes([pair[2 * i], pair[2 * i + 1]]).to_f32());
    let mut sums = [0.0f32; 2];
    for (a, b) in a.iter().zip(b) {
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = flush(half(a, i).mul_add(half(b, i), *sum));
        }
    }
    flush(flush(f32::from_le_bytes(c)) + flush(sums[0] + sums[1])).to_le_bytes()
}

fn add_bytes(c: Four, a: &[Four], b: &[Four], a_signed: bool, b_signed: bool) -> Four {
    let value = |byte: u8, signed: bool| if signed { i32::from(byte as i8) } else { i32::from(byte) };
    let mut sum = i32::from_le_bytes(c);
    for (a, b) in a.iter().zip(b) {
        for i in 0..4 {
            sum = sum.wrapping_add(value(a[i], a_signed) * value(b[i], b_signed));
        }
    }
    sum.to_le_bytes()
}

fn decode(registers: &[i64; 23]) -> Option<Instruction> {
    let start = registers[libc::REG_RIP as usize] as *const u8;
    let mut next = 0;
    let mut byte = || {
        // SAFETY: the processor has fetched the instruction's bytes from there.
        let byte = unsafe { start.add(next).read() };
        next += 1;
        byte
    };
    if byte() != 0xC4 {
        return None;
    }
    let (first, second, opcode, modrm) = (byte(), byte(), byte(), byte());
    // Map 0F38, W0, 128 bits.
    if first & 0x1F != 2 || second & 0x84 != 0 {
        return None;
    }
    // The prefix's bits are stored inverted.
    let high = |bit: u8| usize::from(!first >> bit & 1) << 3;
    let (r, x, b) = (high(7), high(6), high(5));
    let mut instruction = Instruction {
        prefix: second & 3,
        opcode,
        reg: usize::from(modrm >> 3 & 7) + r,
        vvvv: usize::from(!second >> 3 & 15),
        operand: Operand::Register(usize::from(modrm & 7) + b),
        length: 0,
    };
    let mode = modrm >> 6;
    if mode != 3 {
        let value = |register: usize| registers[GENERAL[register] as usize] as u64;
        let (mut base, mut stride) = (0, 0);
        let mut displaced_only = false;
        if modrm & 7 == 4 {
            let sib = byte();
            let (base_register, index) = (usize::from(sib & 7) + b, usize::from(sib >> 3 & 7) + x);
            if index != 4 {
                stride = value(index) << (sib >> 6);
            }
            displaced_only = sib & 7 == 5 && mode == 0;
            if !displaced_only {
                base = value(base_register);
            }
        } else if modrm & 7 == 5 && mode == 0 {
            // Relative to the program counter: no kernel of this crate uses this.
            return None;
        } else {
            base = value(usize::from(modrm & 7) + b);
        }
        let displacement = match mode {
            1 => i64::from(byte() as i8),
            2 => i64::from(i32::from_le_bytes([byte(), byte(), byte(), byte()])),
            _ if displaced_only => i64::from(i32::from_le_bytes([byte(), byte(), byte(), byte()])),
            _ => 0,
        };
        instruction.operand = Operand::Memory { base: base.wrapping_add(displacement as u64), stride };
    }
    instruction.length = next;
    Some(instruction)
}

/// General registers in the order of their numbers.
const GENERAL: [libc::c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];
