//! The numbers that GGUF gives to types of tensors.

use interbed_kernels::DType;

use crate::safetensors::ElementType;

/// The types we compute with.
const KNOWN: [(u32, DType); 23] = [
    (0, DType::F32),
    (1, DType::F16),
    (2, DType::Q4_0),
    (3, DType::Q4_1),
    (6, DType::Q5_0),
    (7, DType::Q5_1),
    (8, DType::Q8_0),
    (10, DType::Q2K),
    (11, DType::Q3K),
    (12, DType::Q4K),
    (13, DType::Q5K),
    (14, DType::Q6K),
    (16, DType::Iq2Xxs),
    (17, DType::Iq2Xs),
    (18, DType::Iq3Xxs),
    (19, DType::Iq1S),
    (20, DType::Iq4Nl),
    (21, DType::Iq3S),
    (22, DType::Iq2S),
    (23, DType::Iq4Xs),
    (29, DType::Iq1M),
    (30, DType::BF16),
    (39, DType::Mxfp4),
];

/// Names of types that occur but are not supported, for messages.
const OTHERS: [(u32, &str); 9] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
];

/// Returns the element type that the format's type number `kind` stands for.
pub(super) fn element_type(kind: u32) -> ElementType {
    let known = KNOWN.iter().find(|(number, _)| *number == kind);
    let other = || OTHERS.iter().find(|(number, _)| *number == kind);
    match known {
        Some((_, dtype)) => ElementType::Known(*dtype),
        None => ElementType::Other(other().map_or_else(|| format!("type {kind}"), |(_, name)| (*name).to_owned())),
    }
}

/// Returns the format's number of a type.
pub(super) fn type_number(dtype: DType) -> u32 {
    // The table has every type; a test counts.
    KNOWN.iter().find(|(_, known)| *known == dtype).map_or(u32::MAX, |(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_its_number() {
        for dtype in DType::ALL {
            assert_eq!(element_type(type_number(dtype)), ElementType::Known(dtype));
        }
        assert_eq!(element_type(34).name(), "TQ1_0");
        assert_eq!(element_type(4).name(), "type 4");
    }
}
