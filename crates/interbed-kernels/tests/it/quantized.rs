//! Tests decoding and encoding of blocks against the Python package `gguf`.

use std::path::PathBuf;

use half::f16;
use interbed_kernels::{DType, dequantize, quantize};

use crate::support::{Numbers, bits};

pub const QUANTISED: [DType; 20] = [
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q2K,
    DType::Q3K,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
    DType::Iq4Nl,
    DType::Mxfp4,
    DType::Iq4Xs,
    DType::Iq3S,
    DType::Iq3Xxs,
    DType::Iq2S,
    DType::Iq2Xs,
    DType::Iq2Xxs,
    DType::Iq1M,
    DType::Iq1S,
];

/// The types that can be encoded, with the largest expected error, relative to a block's largest number.
const ENCODED: [(DType, f32); 4] =
    [(DType::Q8_0, 0.0045), (DType::Q4_0, 0.13), (DType::Q4K, 0.10), (DType::Mxfp4, 0.21)];

fn fixture_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/quantized").join(name)
}

pub fn fixture(dtype: DType, extension: &str) -> Vec<u8> {
    let path = fixture_path(&format!("{}.{extension}", dtype.name().to_lowercase()));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

pub fn decoded(dtype: DType, blocks: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; blocks.len() / dtype.block_bytes() * dtype.block_len()];
    dequantize(dtype, blocks, &mut out);
    out
}

fn encoded(dtype: DType, numbers: &[f32]) -> Vec<u8> {
    let mut out = vec![0xa5; dtype.row_bytes(numbers.len()).unwrap()];
    quantize(dtype, numbers, &mut out);
    out
}

#[test]
fn blocks_mean_what_gguf_says() {
    for dtype in QUANTISED {
        let want = floats(&fixture(dtype, "f32"));
        assert_eq!(want.len(), 1024);
        assert_eq!(bits(&decoded(dtype, &fixture(dtype, "blocks"))), bits(&want), "{dtype}");
    }
}

#[test]
fn gguf_reads_what_we_encode() {
    let numbers = floats(&std::fs::read(fixture_path("numbers.f32")).unwrap());
    for (dtype, _) in ENCODED {
        let blocks = encoded(dtype, &numbers);
        if std::env::var_os("INTERBED_WRITE_FIXTURES").is_some() {
            let name = format!("{}.encoded", dtype.name().to_lowercase());
            std::fs::write(fixture_path(&name), &blocks).unwrap();
            continue;
        }
        let hint = "if the encoder was changed on purpose: see tools/reference/README.md";
        assert_eq!(blocks, fixture(dtype, "encoded"), "{dtype}; {hint}");
        assert_eq!(bits(&decoded(dtype, &blocks)), bits(&floats(&fixture(dtype, "encoded_f32"))), "{dtype}; {hint}");
    }
}

#[test]
fn the_encoders_that_gguf_has_too_are_no_better() {
    let numbers = floats(&std::fs::read(fixture_path("numbers.f32")).unwrap());
    let error = |decoded: Vec<f32>| {
        decoded.iter().zip(&numbers).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>() / numbers.len() as f64
    };
    for dtype in [DType::Q8_0, DType::Q4_0] {
        let ours = error(decoded(dtype, &encoded(dtype, &numbers)));
        let theirs = error(decoded(dtype, &fixture(dtype, "gguf_blocks")));
        assert!(ours <= theirs * 1.01, "{dtype}: {ours} against {theirs}");
    }
    let q4_0 = error(decoded(DType::Q4_0, &encoded(DType::Q4_0, &numbers)));
    let q4_k = error(decoded(DType::Q4K, &encoded(DType::Q4K, &numbers)));
    assert!(q4_k < q4_0, "minima must pay on skewed blocks: {q4_k} against {q4_0}");
}

#[test]
fn encoding_loses_no_more_than_a_step() {
    let mut numbers = Numbers(11);
    for scale in [0.1f32, 1.0, 1000.0] {
        let numbers: Vec<f32> = numbers.take(256 * 20).iter().map(|x| x * x * x * scale).collect();
        for (dtype, share) in ENCODED {
            let decoded = decoded(dtype, &encoded(dtype, &numbers));
            for (got, want) in decoded.chunks(32).zip(numbers.chunks(32)) {
                // Scales of Q4_K have 6 bits relative to the largest of 256 numbers.
                let largest = want.iter().fold(0.0f32, |a, b| a.max(b.abs()));
                let slack = if dtype == DType::Q4K { scale / 63.0 } else { 0.0 };
                for (got, want) in got.iter().zip(want) {
                    assert!((got - want).abs() <= largest * share + slack, "{dtype}: {got} for {want} of {largest}");
                }
            }
        }
    }
}

#[test]
fn zeros_stay_zeros_and_what_is_not_finite_shows() {
    for (dtype, _) in ENCODED {
        assert!(decoded(dtype, &encoded(dtype, &[0.0; 256])).iter().all(|x| *x == 0.0), "{dtype}");
        // Numbers far below the smallest half float become zero, which is harmless.
        let tiny: Vec<f32> = Numbers(4).take(256).iter().map(|x| x * 1e-40).collect();
        assert!(decoded(dtype, &encoded(dtype, &tiny)).iter().all(|x| x.abs() < 1e-6), "{dtype}");
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN] {
            for at in [0, 7, 9, 31] {
                let mut numbers = Numbers(5).take(256);
                numbers[at] = bad;
                let decoded = decoded(dtype, &encoded(dtype, &numbers));
                assert!(decoded[..32].iter().any(|x| !x.is_finite()), "{dtype} hides {bad} at {at}");
            }
        }
    }
}

#[test]
fn any_bytes_decode() {
    for dtype in QUANTISED {
        for fill in [0x00, 0x7c, 0x7e, 0x80, 0xfc, 0xff] {
            let blocks = vec![fill; dtype.block_bytes() * 3];
            assert_eq!(decoded(dtype, &blocks).len(), dtype.block_len() * 3);
        }
    }
    // A subnormal half float is a number like others.
    let mut block = [1u8; 34];
    block[..2].copy_from_slice(&f16::from_bits(1).to_le_bytes());
    assert_eq!(decoded(DType::Q8_0, &block), [2f32.powi(-24); 32]);
}
