//! Sizes in the form in which people write and read them. Units are binary: `6G` is 6 GiB.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        // 1023.95 would print as 1024.0, which belongs to the next unit.
        while value >= 1023.95 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let digits = match unit {
            0 => 0,
            _ if value < 10.0 => 2,
            _ => 1,
        };
        f.pad(&format!("{value:.digits$} {}", UNITS[unit]))
    }
}

/// A text that is no valid size.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("'{0}' is no size; write a number and a unit, such as 6G, 512M or 1.5GiB (1G = 1024 x 1024 x 1024 bytes)")]
pub struct BadSize(String);

impl FromStr for Bytes {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        let bad = || BadSize(text.to_owned());
        let lower = text.trim().to_ascii_lowercase();
        let split = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
        let (number, unit) = lower.split_at(split);
        let unit = unit.trim();
        let unit_bytes = match unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(unit) {
            "" => 1u64,
            "k" => 1 << 10,
            "m" => 1 << 20,
            "g" => 1 << 30,
            "t" => 1 << 40,
            _ => return Err(bad()),
        };
        let bytes = number.parse::<f64>().map_err(|_| bad())? * unit_bytes as f64;
        // Beyond 2^53 a double cannot represent every byte count, and no machine has that much.
        if !(1.0..9e15).contains(&bytes) {
            return Err(bad());
        }
        Ok(Self(bytes as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary() {
        let read = |text: &str| text.parse::<Bytes>().map(|size| size.0).ok();
        assert_eq!(read("6G"), Some(6 << 30));
        assert_eq!(read("6 GiB"), Some(6 << 30));
        assert_eq!(read("512m"), Some(512 << 20));
        assert_eq!(read("1.5gb"), Some(3 << 29));
        assert_eq!(read("4096"), Some(4096));
        assert_eq!(read("2T"), Some(2 << 40));
        for bad in ["", "G", "-1G", "6X", "1e3G", "0", "nan", "99999999T", "1..2G"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes_print_with_a_unit() {
        let print = |bytes| Bytes(bytes).to_string();
        assert_eq!(print(17), "17 B");
        assert_eq!(print(1536), "1.50 KiB");
        assert_eq!(print(6 << 30), "6.00 GiB");
        assert_eq!(print(100 << 20), "100.0 MiB");
        assert_eq!(print((1 << 30) - 1), "1.00 GiB");
    }
}
