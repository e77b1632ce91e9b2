//! Exact decimals of any size, as JSON writes them.

use std::cmp::Ordering;

/// An exact decimal: `digits × 10^exponent`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Decimal {
    is_negative: bool,
    /// Significant digits without zeros at either end; empty for zero.
    digits: String,
    exponent: i64,
}

impl Decimal {
    /// The exponent to which larger exponents are cut. No bound, step or number that is written comes near it.
    const EXPONENT_MAX: i64 = 1 << 40;

    /// Parses a JSON number; returns `None` for any other text.
    pub(super) fn of(text: &str) -> Option<Self> {
        let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{whole}{fraction}");
        if all.is_empty() || !all.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let (exponent_sign, size) = match exponent.as_bytes().first() {
            Some(b'-') => (-1, &exponent[1..]),
            Some(b'+') => (1, &exponent[1..]),
            _ => (1, exponent),
        };
        if size.is_empty() || !size.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let size = size.trim_start_matches('0');
        let size = if size.is_empty() { 0 } else { size.parse::<i64>().unwrap_or(Self::EXPONENT_MAX) };
        let exponent = exponent_sign * size.min(Self::EXPONENT_MAX);
        Some(Self::new(is_negative, &all, exponent - fraction.len() as i64))
    }

    fn new(is_negative: bool, digits: &str, exponent: i64) -> Self {
        let digits = digits.trim_start_matches('0');
        let kept = digits.trim_end_matches('0');
        if kept.is_empty() {
            return Self { is_negative: false, digits: String::new(), exponent: 0 };
        }
        Self { is_negative, digits: kept.to_owned(), exponent: exponent + (digits.len() - kept.len()) as i64 }
    }

    /// Returns the number of significant digits.
    pub(super) fn len(&self) -> usize {
        self.digits.len()
    }

    pub(super) fn zero() -> Self {
        Self::new(false, "", 0)
    }

    /// Returns `10^power`.
    pub(super) fn power_of_ten(power: i64) -> Self {
        Self::new(false, "1", power)
    }

    /// Returns `units × 10^-places`.
    pub(super) fn of_units(units: i128, places: u32) -> Self {
        Self::new(units < 0, &units.unsigned_abs().to_string(), -i64::from(places))
    }

    pub(super) fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    pub(super) fn is_negative(&self) -> bool {
        self.is_negative
    }

    pub(super) fn is_whole(&self) -> bool {
        self.exponent >= 0
    }

    pub(super) fn negated(&self) -> Self {
        Self { is_negative: !self.is_negative && !self.is_zero(), ..self.clone() }
    }

    /// Returns the number of digits before the decimal point; 0 below 1.
    pub(super) fn whole_digits(&self) -> i64 {
        if self.is_zero() { 0 } else { (self.digits.len() as i64 + self.exponent).max(0) }
    }

    /// Returns the number of digits after the decimal point.
    pub(super) fn places(&self) -> i64 {
        (-self.exponent).max(0)
    }

    /// Returns the value in units of `10^-places`, if that is a whole number of at most 38 digits.
    pub(super) fn units(&self, places: u32) -> Option<i128> {
        let shift = self.exponent + i64::from(places);
        if self.is_zero() {
            return Some(0);
        }
        if shift < 0 || self.digits.len() as i64 + shift > 38 {
            return None;
        }
        let size: i128 = format!("{}{}", self.digits, "0".repeat(shift as usize)).parse().ok()?;
        Some(if self.is_negative { -size } else { size })
    }

    /// Returns the largest multiple of `10^-places` that is not above the value.
    pub(super) fn floor(&self, places: i64) -> Self {
        let cut = -places - self.exponent;
        if cut <= 0 {
            return self.clone();
        }
        let kept = self.digits.len().saturating_sub(usize::try_from(cut).unwrap_or(usize::MAX));
        let towards_zero = Self::new(self.is_negative, &self.digits[..kept], -places);
        // Digits that are cut off are never all zero, because the last digit is not zero.
        if self.is_negative { towards_zero.minus_unit(places) } else { towards_zero }
    }

    /// Returns the smallest multiple of `10^-places` that is not below the value.
    pub(super) fn ceil(&self, places: i64) -> Self {
        self.negated().floor(places).negated()
    }

    /// Subtracts `10^-places` from a value that is a multiple of it.
    fn minus_unit(&self, places: i64) -> Self {
        if self.is_negative || self.is_zero() {
            return Self::new(true, &increased(&self.at_places(places)), -places);
        }
        Self::new(false, &decreased(&self.at_places(places)), -places)
    }

    /// Adds `10^-places` to a value that is a multiple of it.
    pub(super) fn above(&self, places: i64) -> Self {
        self.negated().minus_unit(places).negated()
    }

    /// Returns all digits down to `10^-places`, without the sign. The value is a multiple of `10^-places`.
    fn at_places(&self, places: i64) -> String {
        let zeros = usize::try_from(self.exponent + places).unwrap_or(0);
        if self.is_zero() { "0".to_owned() } else { format!("{}{}", self.digits, "0".repeat(zeros)) }
    }

    /// Returns the digits before and after the decimal point, without the sign.
    pub(super) fn parts(&self) -> (String, String) {
        let places = self.places();
        let all = self.at_places(places);
        let places = places as usize;
        let all = if all.len() <= places { format!("{}{all}", "0".repeat(places + 1 - all.len())) } else { all };
        let (whole, fraction) = all.split_at(all.len() - places);
        (whole.to_owned(), fraction.to_owned())
    }

    /// Returns the number written without an exponent.
    pub(super) fn plain(&self) -> String {
        let (whole, fraction) = self.parts();
        let point = if fraction.is_empty() { "" } else { "." };
        format!("{}{whole}{point}{fraction}", if self.is_negative { "-" } else { "" })
    }

    /// Returns the nearest floating-point number.
    pub(super) fn to_f64(&self) -> f64 {
        let sign = if self.is_negative { "-" } else { "" };
        let digits = if self.is_zero() { "0" } else { &self.digits };
        format!("{sign}{digits}e{}", self.exponent).parse().unwrap_or(f64::NAN)
    }

    /// Returns whether the value is a multiple of `step`. Returns false if the numbers are too large to tell.
    pub(super) fn is_multiple_of(&self, step: &Self) -> bool {
        if self.is_zero() {
            return true;
        }
        let base = self.exponent.min(step.exponent);
        let (zeros, step_zeros) = (self.exponent - base, step.exponent - base);
        // Numbers this large are never written by the grammar.
        if zeros > 4096 || step.digits.len() as i64 + step_zeros > 30 {
            return false;
        }
        let Ok(step) = format!("{}{}", step.digits, "0".repeat(step_zeros as usize)).parse::<u128>() else {
            return false;
        };
        let digits = self.digits.bytes().map(|digit| u128::from(digit - b'0')).chain((0..zeros).map(|_| 0));
        step != 0 && digits.fold(0, |rest, digit| (rest * 10 + digit) % step) == 0
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let sign = |one: &Self| if one.is_zero() { 0 } else { 1 - 2 * i32::from(one.is_negative) };
        let size = |one: &Self| one.digits.len() as i64 + one.exponent;
        let sizes = || size(self).cmp(&size(other)).then_with(|| self.digits.cmp(&other.digits));
        match sign(self).cmp(&sign(other)) {
            Ordering::Equal if self.is_negative => sizes().reverse(),
            Ordering::Equal if self.is_zero() => Ordering::Equal,
            Ordering::Equal => sizes(),
            different => different,
        }
    }
}

/// Adds one to a number in decimal digits.
fn increased(digits: &str) -> String {
    let mut all: Vec<u8> = digits.bytes().collect();
    for digit in all.iter_mut().rev() {
        if *digit != b'9' {
            *digit += 1;
            return String::from_utf8_lossy(&all).into_owned();
        }
        *digit = b'0';
    }
    format!("1{}", String::from_utf8_lossy(&all))
}

/// Subtracts one from a positive number in decimal digits.
fn decreased(digits: &str) -> String {
    let mut all: Vec<u8> = digits.bytes().collect();
    for digit in all.iter_mut().rev() {
        if *digit != b'0' {
            *digit -= 1;
            break;
        }
        *digit = b'9';
    }
    String::from_utf8_lossy(&all).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Decimal {
        Decimal::of(text).expect("a number")
    }

    #[test]
    fn texts_are_read_exactly() {
        for (text, plain) in [
            ("0", "0"),
            ("-0.0", "0"),
            ("1.50", "1.5"),
            ("-12e3", "-12000"),
            ("12e-3", "0.012"),
            ("0.1000000000000000055", "0.1000000000000000055"),
            ("12345678901234567890123", "12345678901234567890123"),
        ] {
            assert_eq!(of(text).plain(), plain);
        }
        assert!(["", "-", "1e", "x", "1.2.3", ".e1"].iter().all(|text| Decimal::of(text).is_none()));
        assert!(of("1e400") > of("1e399") && of("-1e400") < of("1e-400") && of("1e-99999999999999999999") > of("0"));
    }

    #[test]
    fn order_and_neighbours() {
        let sorted = ["-100", "-99.9", "-1.05", "-1", "-0.5", "0", "0.05", "0.5", "0.55", "1", "9", "10", "1e3"];
        for (index, one) in sorted.iter().enumerate() {
            for (at, other) in sorted.iter().enumerate() {
                assert_eq!(of(one).cmp(&of(other)), index.cmp(&at), "{one} {other}");
            }
        }
        for (text, places, floor, ceil) in [
            ("1.25", 1, "1.2", "1.3"),
            ("-1.25", 1, "-1.3", "-1.2"),
            ("7", 2, "7", "7"),
            ("-0.001", 0, "-1", "0"),
            ("999.5", 0, "999", "1000"),
            ("0.00001", 2, "0", "0.01"),
            ("15", -1, "10", "20"),
        ] {
            assert_eq!((of(text).floor(places).plain(), of(text).ceil(places).plain()), (floor.into(), ceil.into()));
        }
        for (text, places, above) in [("5", 2, "5.01"), ("-5", 2, "-4.99"), ("0", 3, "0.001"), ("-0.01", 2, "0")] {
            assert_eq!(of(text).above(places).plain(), above);
        }
    }

    #[test]
    fn multiples_are_exact() {
        for (value, step, is) in [
            ("0.3", "0.1", true),
            ("0.35", "0.1", false),
            ("1e400", "3", false),
            ("1e400", "8", true),
            ("-12", "4", true),
            ("0", "7", true),
            ("7.5", "2.5", true),
            ("100", "1e1", true),
        ] {
            assert_eq!(of(value).is_multiple_of(&of(step)), is, "{value} {step}");
        }
    }
}
