//! Tests that every arrangement gives the right bytes, however it is read.

use std::path::PathBuf;

use interbed_kernels::Matrix;

use super::*;

/// Bytes in memory that stand for a file, for buffered and for direct reads.
struct Bytes(Vec<u8>);

impl RandomAccessFile for Bytes {
    fn path(&self) -> &Path {
        Path::new("bytes")
    }

    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), IoError> {
        buf.copy_from_slice(&self.0[offset as usize..][..buf.len()]);
        Ok(())
    }
}

impl DirectRead for Bytes {
    fn path(&self) -> &Path {
        Path::new("bytes")
    }

    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_aligned_at(&self, buf: &mut [u8], offset: u64, needed: usize) -> Result<(), IoError> {
        assert!(offset.is_multiple_of(DIRECT_ALIGN as u64) && buf.len().is_multiple_of(DIRECT_ALIGN));
        buf[..needed].copy_from_slice(&self.0[offset as usize..][..needed]);
        Ok(())
    }

    fn check_unchanged(&self) -> Result<(), IoError> {
        Ok(())
    }

    fn direct_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

/// Tensors of a layer that lie one after the other in a file, and the file.
#[derive(Default)]
struct Layer {
    entries: Vec<(String, CatalogEntry)>,
    bytes: Vec<u8>,
}

impl Layer {
    fn add(&mut self, name: &str, shape: &[usize], element_type: ElementType, bytes: &[u8]) {
        let (offset, shape) = (self.bytes.len() as u64, shape.to_vec());
        let entry = CatalogEntry { file: 0, offset, bytes: bytes.len() as u64, shape, element_type, scales: None };
        self.entries.push((format!("model.layers.7.mlp.experts.{name}"), entry));
        self.bytes.extend(bytes);
    }

    fn add_numbers(&mut self, name: &str, shape: &[usize], number: impl Fn(usize) -> f32) {
        let bytes: Vec<u8> = (0..shape.iter().product()).flat_map(|i| number(i).to_le_bytes()).collect();
        self.add(name, shape, ElementType::Known(DType::F32), &bytes);
    }

    /// Rearranges the layer's experts, and returns the resulting tensors by name.
    fn rearranged(mut self) -> BTreeMap<String, (CatalogEntry, Vec<u8>)> {
        let (found, arrangement) = take(&mut self.entries, 1);
        assert!(self.entries.is_empty(), "{:?}", self.entries);
        let bytes = Arc::new(Bytes(self.bytes));
        let file = RearrangedFile::new(&[Arc::clone(&bytes) as Arc<dyn RandomAccessFile>], arrangement);
        let len = RandomAccessFile::len(&file) as usize;
        let mut all = vec![7; len];
        file.read_exact_at(&mut all, 0).unwrap();
        // However it is cut, it is the same.
        for (start, count) in [(0, 1), (1, 30), (33, 1000), (len / 2, len / 3), (4095, 18), (len - 5, 5), (len, 0)] {
            let (start, end) = (start.min(len), (start + count).min(len));
            let mut part = vec![7; end - start];
            file.read_exact_at(&mut part, start as u64).unwrap();
            assert!(part == all[start..end], "{start}..{end}");
        }
        assert!(file.read_exact_at(&mut [0; 2], len as u64 - 1).is_err());
        let direct = file.direct(vec![bytes]);
        let mut buffer = AlignedBuffer::new_zeroed(len).unwrap();
        for first in (0..len).step_by(DIRECT_ALIGN) {
            let needed = (len - first).min(2 * DIRECT_ALIGN - 100);
            let buffer = &mut buffer.as_mut()[..needed.next_multiple_of(DIRECT_ALIGN)];
            direct.read_aligned_at(buffer, first as u64, needed).unwrap();
            assert!(buffer[..needed] == all[first..first + needed], "from {first}");
        }
        let tensor = |Rearranged { name, entry, .. }: Rearranged| {
            let bytes = all[entry.offset as usize..][..entry.bytes as usize].to_vec();
            (name.strip_prefix("model.layers.7.mlp.experts.").unwrap().to_owned(), (entry, bytes))
        };
        found.into_iter().map(tensor).collect()
    }
}

/// A function that returns the number in a row and column.
type Number<'n> = &'n dyn Fn(usize, usize) -> f32;

const EXPERTS: usize = 3;
const HIDDEN: usize = 64;
const WIDTH: usize = 96;

fn add_biases(layer: &mut Layer) {
    layer.add_numbers("gate_up_proj_bias", &[EXPERTS, 2 * WIDTH], |i| i as f32);
    layer.add_numbers("down_proj_bias", &[EXPERTS, HIDDEN], |i| 0.5 * i as f32);
}

fn check_biases(tensors: &BTreeMap<String, (CatalogEntry, Vec<u8>)>) {
    for (name, rows, number) in [
        ("all.gate_proj.bias", WIDTH, (|i| 2.0 * i as f32) as fn(usize) -> f32),
        ("all.up_proj.bias", WIDTH, |i| 2.0 * i as f32 + 1.0),
        ("all.down_proj.bias", HIDDEN, |i| 0.5 * i as f32),
    ] {
        let (entry, bytes) = &tensors[name];
        assert_eq!(entry.shape, [EXPERTS * rows]);
        let want: Vec<u8> = (0..EXPERTS * rows).flat_map(|i| number(i).to_le_bytes()).collect();
        assert!(*bytes == want, "{name}");
    }
}

#[test]
fn columns_in_turns_become_rows() {
    let mut layer = Layer::default();
    layer.add_numbers("gate_up_proj", &[EXPERTS, HIDDEN, 2 * WIDTH], |i| i as f32);
    layer.add_numbers("down_proj", &[EXPERTS, WIDTH, HIDDEN], |i| -(i as f32));
    add_biases(&mut layer);
    let tensors = layer.rearranged();
    assert_eq!(tensors.len(), 3 * EXPERTS + 3);
    check_biases(&tensors);
    for expert in 0..EXPERTS {
        let gate_up = |row: usize, col: usize| ((expert * HIDDEN + col) * 2 * WIDTH + row) as f32;
        let down = |row: usize, col: usize| -(((expert * WIDTH + col) * HIDDEN + row) as f32);
        let gate = |row: usize, col: usize| gate_up(2 * row, col);
        let up = |row: usize, col: usize| gate_up(2 * row + 1, col);
        let wanted: [(&str, [usize; 2], Number<'_>); 3] =
            [("gate", [WIDTH, HIDDEN], &gate), ("up", [WIDTH, HIDDEN], &up), ("down", [HIDDEN, WIDTH], &down)];
        for (matrix, [rows, cols], number) in wanted {
            let (entry, bytes) = &tensors[&format!("{expert}.{matrix}_proj.weight")];
            assert_eq!((entry.shape.as_slice(), entry.file), (&[rows, cols][..], 1));
            let numbers = (0..rows).flat_map(|row| (0..cols).map(move |col| number(row, col)));
            assert!(*bytes == numbers.flat_map(f32::to_le_bytes).collect::<Vec<_>>(), "{expert} {matrix}");
        }
    }
}

fn decoders(name: &str) -> Vec<u8> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../interbed-model/tests/fixtures/decoders");
    std::fs::read(dir.join(name)).unwrap()
}

#[test]
fn blocks_become_those_of_gguf_and_mean_the_same_numbers() {
    let [blocks, scales, in_gguf, numbers] =
        ["blocks", "scales", "gguf_blocks", "f32"].map(|name| decoders(&format!("mxfp4.{name}")));
    let numbers: Vec<f32> = numbers.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    // Rows of two blocks. Each expert has two of gate, two of up, and four of down.
    let u8 = || ElementType::Other("U8".to_owned());
    let (rows, experts) = (scales.len() / 2, scales.len() / 8);
    let mut layer = Layer::default();
    // Not at a multiple of anything.
    layer.bytes.extend([9; 5]);
    layer.add("gate_up_proj_blocks", &[experts, 4, 2, 16], u8(), &blocks);
    layer.add("gate_up_proj_scales", &[experts, 4, 2], u8(), &scales);
    layer.add("down_proj_blocks", &[experts, 4, 2, 16], u8(), &blocks);
    layer.add("down_proj_scales", &[experts, 4, 2], u8(), &scales);
    layer.add_numbers("gate_up_proj_bias", &[experts, 4], |_| 0.0);
    layer.add_numbers("down_proj_bias", &[experts, 4], |_| 0.0);
    let tensors = layer.rearranged();
    let mut checked = 0;
    for row in 0..rows {
        let (expert, matrix) = (row / 4, if row % 2 == 0 { "gate" } else { "up" });
        let (entry, bytes) = &tensors[&format!("{expert}.{matrix}_proj.weight")];
        assert_eq!(entry.element_type, ElementType::Known(DType::Mxfp4));
        let bytes = &bytes[row % 4 / 2 * 34..][..34];
        assert!(*bytes == in_gguf[row * 34..][..34], "row {row}");
        let down = &tensors[&format!("{expert}.down_proj.weight")].1;
        assert!(down[row % 4 * 34..][..34] == *bytes, "row {row} of down");
        let mut widened = [0.0; 64];
        Matrix::new(DType::Mxfp4, 1, 64, bytes).widen_row(0, &mut widened);
        for (got, want) in widened.iter().zip(&numbers[row * 64..]) {
            // GGUF's integers have no -0.
            assert!(got.to_bits() == want.to_bits() || *got == *want || (got.is_nan() && want.is_nan()));
            checked += 1;
        }
    }
    assert_eq!(checked, numbers.len());
}

#[test]
fn what_does_not_belong_together_stays_as_it_is() {
    let whole = || {
        let mut layer = Layer::default();
        layer.add_numbers("gate_up_proj", &[EXPERTS, HIDDEN, 2 * WIDTH], |i| i as f32);
        layer.add_numbers("down_proj", &[EXPERTS, WIDTH, HIDDEN], |i| i as f32);
        add_biases(&mut layer);
        layer.entries
    };
    for (index, shape) in [
        (0, vec![EXPERTS, HIDDEN]),
        (0, vec![EXPERTS, HIDDEN, 2 * WIDTH - 1]),
        (1, vec![EXPERTS + 1, WIDTH, HIDDEN]),
        (3, vec![EXPERTS, HIDDEN + 1]),
    ] {
        let mut entries = whole();
        entries[index].1.shape = shape;
        let before = entries.clone();
        let (found, arrangement) = take(&mut entries, 1);
        assert!(found.is_empty() && arrangement.is_empty() && entries == before, "tensor {index}");
    }
    // Other families have no biases, and store experts as they are read.
    let mut entries = whole();
    entries.retain(|(name, _)| !name.ends_with("_bias"));
    assert!(take(&mut entries, 1).0.is_empty() && entries.len() == 2);
}

/// Two key heads of width 3, each with two value heads, and rows of 5 numbers, by the names of either format.
#[test]
fn inputs_grouped_by_key_heads_become_matrices() {
    const COLS: usize = 5;
    let (keys, each, width) = (2, 2, 3);
    let group = 2 * width + 2 * each * width;
    let row_of = |row: usize| (0..COLS).flat_map(move |col| ((row * COLS + col) as f32).to_le_bytes());
    let groups = |skip: usize, run: usize, group: usize| {
        (0..keys).flat_map(move |key| (0..run).map(move |row| key * group + skip + row)).collect::<Vec<_>>()
    };
    let [q, k] = [0, width].map(|skip| groups(skip, width, group));
    let [v, z] = [2 * width, 2 * width + each * width].map(|skip| groups(skip, each * width, group));
    let [b, a] = [0, each].map(|skip| groups(skip, each, 2 * each));
    for names in [
        [
            "model.layers.7.linear_attn.in_proj_qkvz.weight",
            "model.layers.7.linear_attn.in_proj_ba.weight",
            "model.layers.7.linear_attn.A_log",
            "model.layers.7.linear_attn.norm.weight",
            "model.layers.7.linear_attn.conv1d.weight",
        ],
        [
            "blk.7.ssm_in.weight",
            "blk.7.ssm_ba.weight",
            "blk.7.ssm_a",
            "blk.7.ssm_norm.weight",
            "blk.7.ssm_conv1d.weight",
        ],
    ] {
        let channels = 2 * keys * width + keys * each * width;
        let shapes: [&[usize]; 5] =
            [&[keys * group, COLS], &[keys * 2 * each, COLS], &[keys * each], &[width], &[channels, 4]];
        let mut layer = Layer::default();
        layer.bytes.extend([9; 5]);
        for (name, shape) in names.into_iter().zip(shapes) {
            layer.add_numbers("", shape, |i| i as f32);
            layer.entries.last_mut().unwrap().0 = name.to_owned();
        }
        let (mut entries, bytes) = (layer.entries, layer.bytes);
        let (found, arrangement) = take(&mut entries, 1);
        assert_eq!(entries.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), names[2..]);
        let file = RearrangedFile::new(&[Arc::new(Bytes(bytes)) as Arc<dyn RandomAccessFile>], arrangement);
        for (matrix, rows) in
            [("qkv", [q.clone(), k.clone(), v.clone()].concat()), ("z", z.clone()), ("b", b.clone()), ("a", a.clone())]
        {
            let name = format!("model.layers.7.linear_attn.in_proj_{matrix}.weight");
            let Rearranged { entry, .. } = found.iter().find(|found| found.name == name).unwrap();
            assert_eq!(entry.shape, [rows.len(), COLS]);
            let want: Vec<u8> = rows.iter().flat_map(|&row| row_of(row)).collect();
            for (start, end) in [(0, want.len()), (1, want.len() - 1), (COLS * 4 * 2 + 3, COLS * 4 * 2 + 9)] {
                let mut part = vec![7; end - start];
                file.read_exact_at(&mut part, entry.offset + start as u64).unwrap();
                assert!(part == want[start..end], "{name}: {start}..{end}");
            }
        }
    }
}

#[test]
fn groups_that_do_not_fit_stay() {
    let name = |within: &str| format!("model.layers.7.linear_attn.{within}");
    for (rates, norm, channels, rows) in
        [(4, 3, 24, 35), (4, 3, 25, 36), (4, 0, 24, 36), (3, 3, 24, 36), (4, 3, 12, 36)]
    {
        let mut layer = Layer::default();
        for (within, shape) in [
            ("in_proj_qkvz.weight", &[rows, 5][..]),
            ("A_log", &[rates]),
            ("norm.weight", &[norm]),
            ("conv1d.weight", &[channels, 1, 4]),
        ] {
            layer.add_numbers("", shape, |i| i as f32);
            layer.entries.last_mut().unwrap().0 = name(within);
        }
        let (found, arrangement) = take(&mut layer.entries, 1);
        assert!(found.is_empty() && arrangement.is_empty() && layer.entries.len() == 4, "{rates} {norm} {channels}");
    }
}
