//! The kernels that are checked in belong to their sources.

use std::fs;
use std::path::PathBuf;

/// A sum of bytes that changes with any of them (FNV-1a).
fn sum(parts: &[Vec<u8>]) -> u64 {
    let bytes = parts.iter().flatten();
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[test]
fn kernels_were_compiled_from_their_sources() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("shaders");
    let named = |extension: &str| {
        let files = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|own| own == extension)).collect();
        files.sort();
        files
    };
    let read = |path: &PathBuf| fs::read(path).unwrap();
    let shared: Vec<_> = named("glsl").iter().map(read).collect();
    let sources = named("comp");
    assert!(sources.len() >= 7 && sources.len() == named("spv").len());
    let mut lines = String::new();
    for source in &sources {
        let compiled = read(&source.with_extension("spv"));
        // SPIR-V is words, the first of which names it.
        assert!(compiled.len().is_multiple_of(4) && compiled.starts_with(&0x0723_0203u32.to_le_bytes()));
        let mut parts = shared.clone();
        parts.extend([read(source), compiled]);
        let name = source.file_stem().unwrap().to_string_lossy();
        lines.push_str(&format!("{name} {:016x}\n", sum(&parts)));
    }
    let path = dir.join("sums");
    if std::env::var_os("INTERBED_WRITE_SUMS").is_some() {
        fs::write(&path, &lines).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap();
    assert_eq!(kept, lines, "after a change of a kernel, run crates/interbed-device/shaders/compile");
}
