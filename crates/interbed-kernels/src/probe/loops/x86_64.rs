//! Loops for the units of x86-64, except for f32 lanes.

use std::arch::asm;
use std::arch::x86_64::*;
use std::hint::black_box;

use super::{CHAINS, Loop};
use crate::Level;
use crate::level::Instructions;
use crate::probe::Unit;

/// Returns the loop for `unit`, if this architecture has instructions for that unit at the level. Returns `None` for
/// f32, whose loop all architectures share.
pub(super) fn of(level: Level, unit: Unit) -> Option<Loop> {
    // In each SAFETY comment below: a `Level` proves that its instructions exist.
    Some(match unit {
        Unit::Bf16Dot if level.instructions() >= Instructions::Avx512Bf16 => {
            // SAFETY: AVX-512 BF16 exists.
            Loop::new(CHAINS * 32 * 2, |rounds| unsafe { bf16_dot(rounds) })
        }
        Unit::Int8Dot if level.instructions() >= Instructions::Avx512Vnni => {
            // SAFETY: AVX-512 VNNI exists.
            Loop::new(CHAINS * 64 * 2, |rounds| unsafe { int8_dot_vnni(rounds) })
        }
        Unit::Int8Dot if level.instructions() >= Instructions::Avx512 => {
            // SAFETY: AVX-512 BW exists.
            Loop::new(CHAINS * 64 * 2, |rounds| unsafe { int8_dot_avx512(rounds) })
        }
        Unit::Int8Dot if level.instructions() >= Instructions::Avx2 => {
            // SAFETY: AVX2 exists.
            Loop::new(CHAINS * 32 * 2, |rounds| unsafe { int8_dot_avx2(rounds) })
        }
        Unit::AmxBf16 if level.instructions() == Instructions::Amx => {
            // SAFETY: AMX exists and the system lets this process use it.
            Loop::new(TILE_PRODUCTS * 16 * 16 * 32 * 2, |rounds| unsafe { amx_bf16(rounds) })
        }
        Unit::AmxInt8 if level.instructions() == Instructions::Amx => {
            // SAFETY: AMX exists and the system lets this process use it.
            Loop::new(TILE_PRODUCTS * 16 * 16 * 64 * 2, |rounds| unsafe { amx_int8(rounds) })
        }
        _ => return None,
    })
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn bf16_dot(rounds: usize) {
    // Bits of the pairs 1.0, 1.0 and 0.5, -0.5, so that sums do not change.
    let (a, b) = (black_box(0x3f80_3f80), black_box(0xbf00_3f00_u32.cast_signed()));
    // SAFETY: both are 64 bytes without invalid values.
    let (a, b) = unsafe {
        (
            std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(a)),
            std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(b)),
        )
    };
    let mut chains = [_mm512_set1_ps(1.0); CHAINS];
    for _ in 0..rounds {
        for chain in &mut chains {
            *chain = _mm512_dpbf16_ps(*chain, a, b);
        }
    }
    black_box(chains);
}

#[target_feature(enable = "avx512f,avx512vnni")]
fn int8_dot_vnni(rounds: usize) {
    let (a, b) = (_mm512_set1_epi8(black_box(3)), _mm512_set1_epi8(black_box(-5)));
    let mut chains = [_mm512_set1_epi32(1); CHAINS];
    for _ in 0..rounds {
        for chain in &mut chains {
            *chain = _mm512_dpbusd_epi32(*chain, a, b);
        }
    }
    black_box(chains);
}

// Without VNNI a dot product is three instructions. The chain itself is an operand of the first, so that the compiler
// cannot hoist the first two out of the loop.

#[target_feature(enable = "avx512f,avx512bw")]
fn int8_dot_avx512(rounds: usize) {
    let (factor, ones) = (_mm512_set1_epi8(black_box(-5)), _mm512_set1_epi16(black_box(1)));
    let mut chains = [_mm512_set1_epi32(1); CHAINS];
    for _ in 0..rounds {
        for chain in &mut chains {
            let pairs = _mm512_maddubs_epi16(*chain, factor);
            *chain = _mm512_add_epi32(*chain, _mm512_madd_epi16(pairs, ones));
        }
    }
    black_box(chains);
}

#[target_feature(enable = "avx2")]
fn int8_dot_avx2(rounds: usize) {
    let (factor, ones) = (_mm256_set1_epi8(black_box(-5)), _mm256_set1_epi16(black_box(1)));
    let mut chains = [_mm256_set1_epi32(1); CHAINS];
    for _ in 0..rounds {
        for chain in &mut chains {
            let pairs = _mm256_maddubs_epi16(*chain, factor);
            *chain = _mm256_add_epi32(*chain, _mm256_madd_epi16(pairs, ones));
        }
    }
    black_box(chains);
}

/// The number of tile products in one round of a tile loop, each with its own accumulator. A product takes 16 cycles,
/// and its result is ready after some 52 cycles.
const TILE_PRODUCTS: usize = 4;

/// The tile configuration that `ldtilecfg` reads: palette 1, and eight tiles of 16 rows by 64 bytes.
#[repr(C, align(64))]
struct TileConfig([u8; 64]);

impl TileConfig {
    const fn full() -> Self {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        let mut tile = 0;
        while tile < 8 {
            // Bytes of a row, 16 bits each, begin at byte 16; numbers of rows begin at byte 48.
            bytes[16 + 2 * tile] = 64;
            bytes[48 + tile] = 16;
            tile += 1;
        }
        Self(bytes)
    }
}

/// The bytes of one tile.
#[repr(C, align(64))]
struct Tile([u8; 1024]);

impl Tile {
    /// Returns a tile filled with copies of `pattern`.
    fn of(pattern: [u8; 4]) -> Self {
        Self(std::array::from_fn(|i| pattern[i % 4]))
    }
}

/// A tile loop as one block of assembly, since the compiler knows tile registers only as clobbers: two tiles by two, so
/// that four accumulators are in flight.
macro_rules! tile_loop {
    ($product:literal, $rounds:expr, $a:expr, $b:expr) => {{
        let (config, a, b) = (TileConfig::full(), $a, $b);
        // SAFETY: reads the configuration and two tiles, which outlive the block; tile registers are declared, and
        // released before it ends.
        unsafe {
            asm!(
                "ldtilecfg [{config}]",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "tileloadd tmm4, [{a} + {stride}]",
                "tileloadd tmm5, [{a} + {stride}]",
                "tileloadd tmm6, [{b} + {stride}]",
                "tileloadd tmm7, [{b} + {stride}]",
                "2:",
                concat!($product, " tmm0, tmm4, tmm6"),
                concat!($product, " tmm1, tmm4, tmm7"),
                concat!($product, " tmm2, tmm5, tmm6"),
                concat!($product, " tmm3, tmm5, tmm7"),
                "dec {rounds}",
                "jnz 2b",
                "tilerelease",
                config = in(reg) &raw const config,
                a = in(reg) &raw const a,
                b = in(reg) &raw const b,
                stride = in(reg) 64usize,
                rounds = inout(reg) $rounds.max(1) => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly)
            );
        }
    }};
}

/// Multiplies bf16 tiles for `rounds` rounds.
///
/// # Safety
/// AMX-BF16 exists, and the system lets this process use tiles.
unsafe fn amx_bf16(rounds: usize) {
    // Pairs of 1.0 and 1.0, and of 0.5 and -0.5: the sums stay 0 while the multipliers work.
    tile_loop!("tdpbf16ps", rounds, Tile::of([0x80, 0x3f, 0x80, 0x3f]), Tile::of([0x00, 0x3f, 0x00, 0xbf]));
}

/// Multiplies int8 tiles for `rounds` rounds.
///
/// # Safety
/// AMX-INT8 exists, and the system lets this process use tiles.
unsafe fn amx_int8(rounds: usize) {
    tile_loop!("tdpbssd", rounds, Tile::of([3, 5, 3, 5]), Tile::of([5, 0xfd, 5, 0xfd]));
}
