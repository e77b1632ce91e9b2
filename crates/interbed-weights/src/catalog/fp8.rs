//! Joins matrices in FP8 to their scales, which are tensors of their own: `X.weight` and `X.weight_scale_inv`. Both
//! become one tensor here, since neither is of use without the other.

use std::collections::{HashMap, HashSet};

use interbed_kernels::DType;

use super::CatalogEntry;
use crate::safetensors::ElementType;

/// Name of the codes' type in headers.
pub(crate) const CODES: &str = "F8_E4M3";

/// Ending that the name of the scales has after the name of the codes. (FP8 numbers are multiplied by these scales; the
/// name calls them inverse because they undo the scaling of the original numbers.)
const SUFFIX: &str = "_scale_inv";

/// Number of rows, and of columns, that share a scale.
const BLOCK: usize = 128;

/// Place of the scales of an FP8 matrix, if its file stores them as a separate tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileScales {
    /// Index in [`Catalog::files`](super::Catalog::files) of the file that holds the scales.
    pub file: usize,
    /// Offset of the first scale's first byte in that file.
    pub offset: u64,
    /// Element type of the scales. This is a type without quantisation, such as F32 or BF16.
    pub dtype: DType,
    /// Whether the whole matrix has a single scale, rather than one for each block of 128 by 128 elements.
    pub is_one: bool,
}

impl FileScales {
    /// Returns the number of scales of a matrix of `rows` by `cols`.
    pub fn count(&self, [rows, cols]: [usize; 2]) -> usize {
        if self.is_one { 1 } else { blocks([rows, cols]).iter().product() }
    }

    /// Returns the scale of each block, given the numbers in the file.
    pub(crate) fn spread(&self, numbers: Vec<f32>, shape: [usize; 2]) -> Vec<f32> {
        match self.is_one {
            true => vec![numbers[0]; blocks(shape).iter().product()],
            false => numbers,
        }
    }
}

/// Returns the number of blocks along the rows and along the columns of a matrix.
fn blocks(shape: [usize; 2]) -> [usize; 2] {
    shape.map(|len| len.div_ceil(BLOCK))
}

/// Attaches scales to the matrices of codes that they belong to. Codes whose scales are missing or of another shape
/// keep their type, which nothing computes with.
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

    /// Returns the entries made of codes of shape `[300, 130]` and scales of this type and shape.
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
