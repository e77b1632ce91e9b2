//! Matrices in FP8, whose scales are tensors of their own: `X.weight` and `X.weight_scale_inv`. They become one tensor
//! here, since neither is of use without the other.

use std::collections::{HashMap, HashSet};

use interbed_kernels::DType;

use super::CatalogEntry;
use crate::safetensors::ElementType;

/// The type of the codes, as headers have it.
pub(crate) const CODES: &str = "F8_E4M3";

/// What the name of the scales ends with, behind that of the codes. (What was scaled is multiplied by them: they are
/// the inverse of what the numbers were multiplied with.)
const SUFFIX: &str = "_scale_inv";

/// Rows, and columns, that share a scale.
const BLOCK: usize = 128;

/// The scales of a matrix of FP8 codes, where its file has them apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileScales {
    /// Which of the catalog's files holds them.
    pub file: usize,
    /// Their first byte in that file.
    pub offset: u64,
    /// Their type: plain.
    pub dtype: DType,
    /// Whether there is one for the whole matrix, and not for each 128 rows and columns.
    pub is_one: bool,
}

impl FileScales {
    /// How many there are for a matrix of `rows` by `cols`.
    pub fn count(&self, [rows, cols]: [usize; 2]) -> usize {
        if self.is_one { 1 } else { blocks([rows, cols]).iter().product() }
    }

    /// The scales of each block, of the numbers in the file.
    pub(crate) fn spread(&self, numbers: Vec<f32>, shape: [usize; 2]) -> Vec<f32> {
        match self.is_one {
            true => vec![numbers[0]; blocks(shape).iter().product()],
            false => numbers,
        }
    }
}

/// Blocks that rows and columns are cut into.
fn blocks(shape: [usize; 2]) -> [usize; 2] {
    shape.map(|len| len.div_ceil(BLOCK))
}

/// Makes each matrix of codes one with its scales. Codes whose scales are missing or of another shape keep their type,
/// which nothing computes with.
pub(super) fn join(entries: &mut Vec<(String, CatalogEntry)>) {
    let mut scales: HashMap<&str, &CatalogEntry> = HashMap::new();
    for (name, entry) in &*entries {
        scales.extend(name.strip_suffix(SUFFIX).map(|matrix| (matrix, entry)));
    }
    let of = |(name, entry): &(String, CatalogEntry)| {
        let &[rows, cols] = entry.shape.as_slice() else { return None };
        if rows == 0 || cols == 0 {
            return None;
        }
        let scales =
            scales.get(name.as_str()).filter(|_| entry.element_type == ElementType::Other(CODES.to_owned()))?;
        let dtype = match scales.element_type {
            ElementType::Known(dtype) if dtype.is_plain() => dtype,
            _ => return None,
        };
        let is_one = scales.shape.iter().product::<usize>() == 1;
        let fits = is_one || scales.shape == blocks([rows, cols]);
        fits.then_some(FileScales { file: scales.file, offset: scales.offset, dtype, is_one })
    };
    let found: Vec<_> = entries.iter().map(of).collect();
    let mut joined = HashSet::new();
    for ((name, entry), scales) in entries.iter_mut().zip(found) {
        if scales.is_some() {
            joined.insert(format!("{name}{SUFFIX}"));
            entry.element_type = ElementType::Known(DType::Fp8);
            entry.scales = scales.map(Box::new);
        }
    }
    entries.retain(|(name, _)| !joined.contains(name));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(element_type: ElementType, shape: &[usize]) -> CatalogEntry {
        CatalogEntry { file: 0, offset: 10, bytes: 1, shape: shape.to_vec(), element_type, scales: None }
    }

    /// What becomes of codes `[300, 130]` with scales of this type and shape.
    fn joined(dtype: DType, shape: &[usize]) -> Vec<(String, CatalogEntry)> {
        let codes = entry(ElementType::Other(CODES.to_owned()), &[300, 130]);
        let scales = entry(ElementType::Known(dtype), shape);
        let mut entries = vec![("a.weight".to_owned(), codes), ("a.weight_scale_inv".to_owned(), scales)];
        join(&mut entries);
        entries
    }

    #[test]
    fn codes_and_scales_become_one() {
        for (dtype, shape) in [(DType::F32, &[3, 2][..]), (DType::BF16, &[3, 2]), (DType::F32, &[]), (DType::F32, &[1])]
        {
            let all = joined(dtype, shape);
            assert_eq!(all.len(), 1);
            assert_eq!(all[0].1.element_type, ElementType::Known(DType::Fp8));
            let scales = all[0].1.scales.as_ref().unwrap();
            assert_eq!((scales.dtype, scales.is_one), (dtype, shape.len() < 2));
            assert_eq!(scales.count([300, 130]), if scales.is_one { 1 } else { 6 });
            assert_eq!(scales.spread(vec![2.0; scales.count([300, 130])], [300, 130]), [2.0; 6]);
        }
    }

    #[test]
    fn scales_of_other_shapes_are_not_taken() {
        for (dtype, shape) in [(DType::F32, &[2, 3][..]), (DType::F32, &[300, 1]), (DType::Q8_0, &[3, 2])] {
            let all = joined(dtype, shape);
            assert_eq!(all.len(), 2);
            assert_eq!(all[0].1.element_type, ElementType::Other(CODES.to_owned()));
        }
    }
}
