//! The checksum of a region.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An XXH3-128 checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checksum(pub u128);

impl Checksum {
    /// Computes the checksum of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_128(bytes))
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Serialize for Checksum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = Some(text.as_str()).filter(|text| text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit()));
        let number = digits.and_then(|digits| u128::from_str_radix(digits, 16).ok());
        number.map(Self).ok_or_else(|| serde::de::Error::custom("a checksum has 32 hexadecimal digits"))
    }
}
