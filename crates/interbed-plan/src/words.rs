//! Numbers in the form in which people read them. Sizes and rates are decimal here.

/// Writes a number with three figures: `45.6`, `9.64`, `137`.
pub fn number(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if size >= 9.995 => format!("{value:.1}"),
        _ if size >= 0.9995 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Writes bytes with a decimal prefix: `136.9 GB`, `4.19 MB`.
pub fn bytes(value: f64) -> String {
    scaled(value, "B")
}

/// Writes a number with a decimal prefix before `unit`.
pub fn scaled(value: f64, unit: &str) -> String {
    const PREFIXES: [(f64, &str); 4] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    // Values that round to a thousand get the next prefix; terabytes are easier to read as gigabytes.
    let prefixes = if unit == "B" || unit == "B/s" { &PREFIXES[1..] } else { &PREFIXES[..] };
    match prefixes.iter().find(|(factor, _)| value.abs() >= factor * 0.9995) {
        Some((factor, prefix)) => format!("{} {prefix}{unit}", number(value / factor)),
        None => format!("{value:.0} {unit}"),
    }
}

/// Writes a time: `9.64 s`, `12.3 ms`.
pub fn seconds(value: f64) -> String {
    match value {
        _ if value >= 0.0995 || value == 0.0 => format!("{} s", number(value)),
        _ if value >= 0.000_999_5 => format!("{} ms", number(value * 1e3)),
        _ => format!("{} us", number(value * 1e6)),
    }
}

/// Writes a number with commas: `1234567` becomes `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Writes a number in short: `1_235_814_400` becomes `1.24 B`.
pub fn short(number: u64) -> String {
    let value = number as f64;
    match number {
        1_000_000_000.. => format!("{:.2} B", value / 1e9),
        1_000_000.. => format!("{:.2} M", value / 1e6),
        1_000.. => format!("{:.1} K", value / 1e3),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_read_well() {
        assert_eq!(["0", "999", "1,000", "1,235,814,400"], [0, 999, 1000, 1_235_814_400].map(grouped)[..]);
        assert_eq!(["1.24 B", "3.50 M", "12.3 K", "17"], [1_235_814_400, 3_500_000, 12_345, 17].map(short)[..]);
    }

    #[test]
    fn three_figures_or_so() {
        let cases = [(136.902, "136.9"), (45.634, "45.6"), (9.643, "9.64"), (0.5, "0.500"), (0.0, "0.00")];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
        assert_eq!([bytes(136.9e9), bytes(4.194e6), bytes(12.0)], ["136.9 GB", "4.19 MB", "12 B"]);
        assert_eq!([seconds(9.643), seconds(0.012), seconds(4.4e-6)], ["9.64 s", "12.0 ms", "4.40 us"]);
    }
}
