//! AMX: tiles of up to 16 rows of 64 bytes, and their products.
//!
//! Rust has neither stable intrinsics nor stable detection of AMX, so this module writes both by hand. The compiler
//! knows tile registers only as clobbers, so code that uses tile registers between loading and storing has to be a
//! single block of assembly.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::mem::offset_of;
use std::sync::OnceLock;

/// The bits of CPUID leaf 7, register EDX, that stand for AMX-BF16, AMX-TILE and AMX-INT8.
const FEATURES: u32 = 1 << 22 | 1 << 24 | 1 << 25;

/// The bit of CPUID leaf 1, register ECX, by which the system says that `xgetbv` is available.
const OSXSAVE: u32 = 1 << 27;

/// The state components of the tile configuration and of the tile data, which the system must save.
const TILE_STATE: u32 = 1 << 17 | 1 << 18;

/// The number of Linux's `arch_prctl` system call.
const SYS_ARCH_PRCTL: usize = 158;
/// The request of `arch_prctl` for permission to use a large state component.
const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
/// The number of the tile data component in that request.
const XFEATURE_XTILEDATA: usize = 18;

/// Returns whether this process may use AMX tiles of bf16 and int8. The first call asks the system for permission.
pub(crate) fn enable() -> bool {
    static ENABLED: OnceLock<bool> = OnceLock::new();
    *ENABLED.get_or_init(|| cfg!(target_os = "linux") && is_present() && is_saved_by_system() && request())
}

fn is_present() -> bool {
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & FEATURES == FEATURES
}

fn is_saved_by_system() -> bool {
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let low: u32;
    // SAFETY: `xgetbv` exists because of OSXSAVE; register 0 always does.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _, options(nomem, nostack)) };
    low & TILE_STATE == TILE_STATE
}

fn request() -> bool {
    let outcome: isize;
    // SAFETY: this call takes two numbers and touches no memory of ours; the kernel changes rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL as isize => outcome,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack)
        );
    }
    outcome == 0
}

/// The shapes of the tile registers, in the layout that `ldtilecfg` reads.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// The number of bytes of a row, for each register.
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl TileConfig {
    /// Creates a configuration for products of one or two tiles of weights, of `heights` rows, with one or two groups
    /// of `members` tokens; 0 means that there is no second tile or group. Registers 0 to 3 hold sums (of weights 0
    /// with groups 0 and 1, then of weights 1), registers 4 and 5 hold weights, and registers 6 and 7 hold activations.
    pub(crate) fn new(heights: [usize; 2], members: [usize; 2]) -> Self {
        let mut config = Self { palette: 1, ..Self::default() };
        let mut set = |register: usize, rows: usize, row_bytes: usize| {
            if rows > 0 && row_bytes > 0 {
                (config.rows[register], config.row_bytes[register]) = (rows as u8, row_bytes as u16);
            }
        };
        for (a, height) in heights.into_iter().enumerate() {
            set(4 + a, height, 64);
            for (b, count) in members.into_iter().enumerate() {
                set(6 + b, 16, 4 * count);
                set(2 * a + b, height, 4 * count);
            }
        }
        config
    }
}

impl TileConfig {
    /// Creates a configuration for products of bytes: tiles of `rows` by `columns` with `columns` by `tokens`.
    /// Registers 0 and 1 hold sums, registers 4 and 5 the first operand, and registers 6 and 7 the second operand.
    pub(crate) fn for_bytes(rows: usize, columns: usize, tokens: usize) -> Self {
        let mut config = Self { palette: 1, ..Self::default() };
        let shapes = [(rows, 4 * tokens), (rows, columns), (columns / 4, 4 * tokens)];
        for (register, (rows, row_bytes)) in [0, 4, 6].into_iter().zip(shapes) {
            for register in [register, register + 1] {
                (config.rows[register], config.row_bytes[register]) = (rows as u8, row_bytes as u16);
            }
        }
        config
    }
}

/// Loads a configuration, which stays in force on this thread until the next one or [`release`].
///
/// # Safety
/// The machine has AMX.
pub(crate) unsafe fn configure(config: &TileConfig) {
    // SAFETY: guaranteed by the caller; the instruction reads the 64 bytes of the configuration. Compiled code does not
    // touch tiles, so the configuration stays.
    unsafe { asm!("ldtilecfg [{}]", in(reg) config, options(nostack, readonly)) };
}

/// Computes `count` adjacent products of unsigned by signed bytes. Product `i` takes `columns` bytes from byte
/// `columns * i` of each of 16 rows of `a` (`a_stride` bytes apart), and `columns / 4` rows of 64 bytes of `b`, which
/// follow the rows of product `i - 1`. Product `i` writes `[row 16][token 16]` to `c[i]`.
///
/// # Safety
/// [`TileConfig::for_bytes`] of 16 rows, `columns` and 16 tokens is loaded; all that memory is readable, `c` writable.
pub(crate) unsafe fn multiply_bytes(
    a: *const u8,
    a_stride: usize,
    b: *const u8,
    columns: usize,
    count: usize,
    c: *mut i32,
) {
    // SAFETY: guaranteed by the caller. All registers that change are declared, tiles too. Two products at a time use
    // different registers, so that one loads while the other multiplies.
    unsafe {
        asm!(
            "sub {count}, 2",
            "jb 3f",
            "2:",
            "tilezero tmm0",
            "tileloadd tmm4, [{a} + {a_stride}*1]",
            "tileloadd tmm6, [{b} + {line}*1]",
            "tdpbusd tmm0, tmm4, tmm6",
            "add {a}, {columns}",
            "add {b}, {b_step}",
            "tilezero tmm1",
            "tileloadd tmm5, [{a} + {a_stride}*1]",
            "tileloadd tmm7, [{b} + {line}*1]",
            "tdpbusd tmm1, tmm5, tmm7",
            "add {a}, {columns}",
            "add {b}, {b_step}",
            "tilestored [{c} + {line}*1], tmm0",
            "tilestored [{c} + {line}*1 + 1024], tmm1",
            "add {c}, 2048",
            "sub {count}, 2",
            "jae 2b",
            "3:",
            "add {count}, 2",
            "jz 4f",
            "tilezero tmm0",
            "tileloadd tmm4, [{a} + {a_stride}*1]",
            "tileloadd tmm6, [{b} + {line}*1]",
            "tdpbusd tmm0, tmm4, tmm6",
            "tilestored [{c} + {line}*1], tmm0",
            "4:",
            a = inout(reg) a => _,
            a_stride = in(reg) a_stride,
            b = inout(reg) b => _,
            b_step = in(reg) columns * 16,
            columns = in(reg) columns,
            count = inout(reg) count => _,
            c = inout(reg) c => _,
            line = in(reg) 64usize,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        );
    }
}

/// The operands of a run of tile products. The assembly below reads the fields by their offsets.
#[repr(C)]
pub(crate) struct TileCall {
    pub config: TileConfig,
    /// The addresses of the first step of columns in two tiles of 16 rows of weights. The weights are read in place, or
    /// from a copy of shape `[step][row 16][64 bytes]`.
    pub a: [*const u8; 2],
    /// The number of bytes from one row of weights to the next if the weights are read in place.
    pub a_stride: usize,
    /// The addresses of the activations of two groups of tokens. The first group has 16 tokens if there is a second
    /// one.
    pub b: [*const u8; 2],
    /// The number of bytes from one pair of columns to the next in the activations of the last group.
    pub b_stride: usize,
    /// The number of bytes from one step of columns to the next in the activations of the last group.
    pub b_step: usize,
    /// The number of whole steps of 32 columns.
    pub steps: usize,
    /// The address of the weights of a last step with fewer than 32 columns, `[row 32][64 bytes]`, or null if there is
    /// no such step.
    pub tail: *const u8,
    /// The address of the sums, `[row, token]`.
    pub c: *mut f32,
    /// The number of bytes from one row of sums to the next.
    pub c_stride: usize,
    /// Nonzero to add to the sums in memory, 0 to start from zero.
    pub accumulate: usize,
    /// The number of pairs of token groups to multiply, or 1 for a single group.
    pub pairs: usize,
    /// The number of bytes from the activations of one pair of groups to those of the next pair.
    pub pair_bytes: usize,
    /// The address of the first weights to prefetch.
    pub ahead: *const u8,
}

/// Ends the use of tiles on this thread, so that the system need not save them on context switches.
///
/// # Safety
/// The machine has AMX.
pub(crate) unsafe fn release() {
    // SAFETY: guaranteed by the caller; tiles hold nothing between calls of the kernels below.
    unsafe { asm!("tilerelease", options(nomem, nostack)) };
}

/// Macros for the operations of each shape on its sums. The sums of the first tile of rows are at `rax`, the sums of
/// the second tile at `rcx`, with `rdx` bytes between rows.
macro_rules! zero {
    (row_tile) => {
        "tilezero tmm0"
    };
    (group) => {
        concat!(zero!(row_tile), "\ntilezero tmm2")
    };
    (pair) => {
        concat!(zero!(group), "\ntilezero tmm1\ntilezero tmm3")
    };
}

macro_rules! load {
    (row_tile) => {
        "tileloadd tmm0, [rax + rdx*1]"
    };
    (group) => {
        concat!(load!(row_tile), "\ntileloadd tmm2, [rcx + rdx*1]")
    };
    (pair) => {
        concat!(load!(group), "\ntileloadd tmm1, [rax + rdx*1 + 64]\ntileloadd tmm3, [rcx + rdx*1 + 64]")
    };
}

macro_rules! store {
    (row_tile) => {
        "tilestored [rax + rdx*1], tmm0"
    };
    (group) => {
        concat!(store!(row_tile), "\ntilestored [rcx + rdx*1], tmm2")
    };
    (pair) => {
        concat!(store!(group), "\ntilestored [rax + rdx*1 + 64], tmm1\ntilestored [rcx + rdx*1 + 64], tmm3")
    };
}

/// Loads one tile of weights at `$at` into `$tile`. Rows in place are `r10` bytes apart, and copied rows 64 bytes
/// (`r15`). After the load, the macro moves `$at` on to the columns of the next step, which are further in the row, or
/// in the next copied tile.
macro_rules! weights {
    (in_place $tile:literal $at:literal) => {
        concat!("tileloadd ", $tile, ", [", $at, " + r10*1]\nadd ", $at, ", 64\n")
    };
    (copied $tile:literal $at:literal) => {
        concat!("tileloadd ", $tile, ", [", $at, " + r15*1]\nadd ", $at, ", 1024\n")
    };
}

/// Computes one step of columns, with weights from `r8` and `r9`, and activations from `r11` and `r12`. For a single
/// group or the last group, pairs are `r13` bytes apart and steps are `rcx` bytes apart. The first of two groups is
/// whole.
macro_rules! step {
    (row_tile $weights:ident) => {
        concat!(
            weights!($weights "tmm4" "r8"),
            "tileloadd tmm6, [r11 + r13*1]\n",
            "tdpbf16ps tmm0, tmm4, tmm6\n",
            "add r11, rcx"
        )
    };
    (group $weights:ident) => {
        concat!(step!(row_tile $weights), "\n", weights!($weights "tmm5" "r9"), "tdpbf16ps tmm2, tmm5, tmm6")
    };
    (pair $weights:ident) => {
        concat!(
            weights!($weights "tmm4" "r8"),
            "tileloadd tmm6, [r11 + r15*1]\n",
            "tdpbf16ps tmm0, tmm4, tmm6\n",
            weights!($weights "tmm5" "r9"),
            "tdpbf16ps tmm2, tmm5, tmm6\n",
            "tileloadd tmm7, [r12 + r13*1]\n",
            "tdpbf16ps tmm1, tmm4, tmm7\n",
            "tdpbf16ps tmm3, tmm5, tmm7\n",
            "add r11, 1024\n",
            "add r12, rcx"
        )
    };
}

/// Prefetches memory at `rsi` with each step of columns: as much as a step of 32 rows needs, or one line of each of
/// three rows that are `r10` bytes apart.
macro_rules! ahead {
    (nothing) => {
        ""
    };
    (what_follows) => {
        concat!(
            ".irp at, 0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960, ",
            "1024, 1088, 1152, 1216, 1280, 1344, 1408, 1472, 1536, 1600, 1664, 1728, 1792, 1856, 1920, 1984\n",
            "prefetcht1 [rsi + \\at]\n",
            ".endr\n",
            "add rsi, 2048"
        )
    };
    (three_rows) => {
        "prefetcht1 [rsi]\nprefetcht1 [rsi + r10]\nprefetcht1 [rsi + r10*2]\nadd rsi, 64"
    };
}

/// Moves `rsi` to the rows for the next pair of groups: back over the steps' columns, three rows on.
macro_rules! ahead_pair {
    (three_rows) => {
        "mov rax, [rdi + {steps}]\nshl rax, 6\nsub rsi, rax\nlea rsi, [rsi + r10*2]\nadd rsi, r10"
    };
    ($other:ident) => {
        ""
    };
}

/// Defines one kernel, which is a run of tile products as a single block of assembly. The kernel multiplies up to 16
/// rows by one group of tokens (`row_tile`), or 32 rows by one group (`group`) or by pairs of groups (`pair`). It reads
/// weights in place or from a copy.
macro_rules! tile_kernel {
    ($(#[$doc:meta])* $name:ident: $shape:ident, $weights:ident, $ahead:ident) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The machine has AMX, the configuration fits the kernel's registers, and all memory that the call describes
        /// is readable, the sums writable.
        pub(crate) unsafe fn $name(call: &mut TileCall) {
            // SAFETY: guaranteed by the caller. All registers that change are declared, tiles too.
            unsafe {
                asm!(
                    "ldtilecfg [rdi]",
                    "mov rsi, [rdi + {ahead}]",
                    "mov r15d, 64",
                    // Loops over the pairs of groups.
                    "2:",
                    "mov r8, [rdi + {a}]",
                    "mov r9, [rdi + {a} + 8]",
                    "mov r10, [rdi + {a_stride}]",
                    "mov r11, [rdi + {b}]",
                    "mov r12, [rdi + {b} + 8]",
                    "mov r13, [rdi + {b_stride}]",
                    "mov r14, [rdi + {steps}]",
                    "mov rax, [rdi + {c}]",
                    "mov rdx, [rdi + {c_stride}]",
                    "mov rcx, rdx",
                    "shl rcx, 4",
                    "add rcx, rax",
                    "cmp qword ptr [rdi + {accumulate}], 0",
                    "jne 3f",
                    zero!($shape),
                    "jmp 4f",
                    "3:",
                    load!($shape),
                    "4:",
                    "mov rax, [rdi + {tail}]",
                    "mov rcx, [rdi + {b_step}]",
                    "test r14, r14",
                    "jz 6f",
                    // Loops over the whole steps of columns.
                    "5:",
                    step!($shape $weights),
                    ahead!($ahead),
                    "dec r14",
                    "jnz 5b",
                    // Computes the partial step from its copy.
                    "6:",
                    "test rax, rax",
                    "jz 7f",
                    "mov r8, rax",
                    "lea r9, [rax + 1024]",
                    "mov r10, r15",
                    "xor eax, eax",
                    "mov r14d, 1",
                    "jmp 5b",
                    "7:",
                    "mov rax, [rdi + {c}]",
                    "mov rcx, rdx",
                    "shl rcx, 4",
                    "add rcx, rax",
                    store!($shape),
                    ahead_pair!($ahead),
                    "dec qword ptr [rdi + {pairs}]",
                    "jz 8f",
                    "mov rax, [rdi + {pair_bytes}]",
                    "add qword ptr [rdi + {b}], rax",
                    "add qword ptr [rdi + {b} + 8], rax",
                    "add qword ptr [rdi + {c}], 128",
                    "jmp 2b",
                    "8:",
                    a = const offset_of!(TileCall, a),
                    a_stride = const offset_of!(TileCall, a_stride),
                    b = const offset_of!(TileCall, b),
                    b_stride = const offset_of!(TileCall, b_stride),
                    b_step = const offset_of!(TileCall, b_step),
                    steps = const offset_of!(TileCall, steps),
                    tail = const offset_of!(TileCall, tail),
                    c = const offset_of!(TileCall, c),
                    c_stride = const offset_of!(TileCall, c_stride),
                    accumulate = const offset_of!(TileCall, accumulate),
                    pairs = const offset_of!(TileCall, pairs),
                    pair_bytes = const offset_of!(TileCall, pair_bytes),
                    ahead = const offset_of!(TileCall, ahead),
                    in("rdi") call,
                    out("rax") _, out("rcx") _, out("rdx") _, out("rsi") _,
                    out("r8") _, out("r9") _, out("r10") _, out("r11") _,
                    out("r12") _, out("r13") _, out("r14") _, out("r15") _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack)
                );
            }
        }
    };
}

tile_kernel! {
    /// Multiplies 32 rows of weights in place by one group of tokens, and prefetches the 32 rows that follow.
    stream_panel: group, in_place, what_follows
}

tile_kernel! {
    /// Multiplies 32 rows of weights in place by pairs of groups of tokens, and prefetches the rows that follow.
    stream_panel_pair: pair, in_place, what_follows
}

tile_kernel! {
    /// Multiplies up to 16 rows of weights in place by one group of tokens.
    stream_row_tile: row_tile, in_place, nothing
}

tile_kernel! {
    /// Multiplies 32 rows of copied weights by pairs of groups of tokens, and prefetches three of the next rows with
    /// each pair.
    sweep_pairs: pair, copied, three_rows
}

tile_kernel! {
    /// Multiplies 32 rows of copied weights by one group of tokens.
    sweep_group: group, copied, nothing
}

tile_kernel! {
    /// Multiplies up to 16 rows of copied weights by one group of tokens.
    sweep_row_tile: row_tile, copied, nothing
}
