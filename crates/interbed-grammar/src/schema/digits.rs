//! Builds regular expressions for the decimals between two bounds.

use super::decimal::Decimal;

/// Returns an expression for the numbers from `low` to `high`, both included, without an exponent and with at most
/// `places` digits after the decimal point. The bounds have no more digits than that. Returns `None` if there are no
/// such numbers.
pub(super) fn between(low: &Decimal, high: &Decimal, places: usize) -> Option<String> {
    if low > high {
        return None;
    }
    let mut alternatives = Vec::new();
    if low.is_negative() {
        // Zero is written without a sign.
        let least = Decimal::power_of_ten(-(places as i64));
        let nearest = if high.is_negative() { high.negated() } else { least };
        let farthest = low.negated();
        if nearest <= farthest {
            alternatives.push(format!("-{}", positive(&nearest, &farthest, places)));
        }
    }
    if !high.is_negative() {
        let nearest = if low.is_negative() { Decimal::zero() } else { low.clone() };
        alternatives.push(positive(&nearest, high, places));
    }
    Some(any_of(alternatives))
}

/// Returns an expression for the numbers from `low` to `high`, both not negative, with at most `places` digits after
/// the decimal point.
fn positive(low: &Decimal, high: &Decimal, places: usize) -> String {
    let ((low, low_fraction), (high, high_fraction)) = (low.parts(), high.parts());
    if low == high {
        return format!("{low}{}", fraction_between(&low_fraction, &high_fraction, places));
    }
    let mut alternatives = vec![format!("{low}{}", fraction_from(&low_fraction, places))];
    if let Some(whole) = whole_between(&next(&low), &previous(&high)) {
        alternatives.push(format!("{whole}{}", any_fraction(places)));
    }
    alternatives.push(format!("{high}{}", fraction_to(&high_fraction, places)));
    any_of(alternatives)
}

fn any_of(mut alternatives: Vec<String>) -> String {
    match alternatives.len() {
        1 => alternatives.remove(0),
        _ => format!("({})", alternatives.join("|")),
    }
}

fn any_fraction(places: usize) -> String {
    if places == 0 { String::new() } else { format!(r"(\.[0-9]{{1,{places}}})?") }
}

fn no_fraction(places: usize) -> String {
    if places == 0 { String::new() } else { format!(r"(\.0{{1,{places}}})?") }
}

fn fraction_from(low: &str, places: usize) -> String {
    if low.is_empty() { any_fraction(places) } else { format!(r"\.{}", from(low, places)) }
}

fn fraction_to(high: &str, places: usize) -> String {
    if high.is_empty() { no_fraction(places) } else { format!(r"(\.{})?", to(high, places)) }
}

fn fraction_between(low: &str, high: &str, places: usize) -> String {
    match (low.is_empty(), high.is_empty()) {
        (true, _) => fraction_to(high, places),
        // No fraction is between the bounds.
        (false, true) => String::new(),
        (false, false) => format!(r"\.{}", both(low, high, places)),
    }
}

/// Returns an expression for up to `count` further digits of the class `digit`.
fn more(digit: &str, count: usize) -> String {
    if count == 0 { String::new() } else { format!("{digit}{{0,{count}}}") }
}

/// Returns an expression for one digit from `low` to `high`; `None` if there is none.
fn one_of(low: u8, high: u8) -> Option<String> {
    match low.cmp(&high) {
        std::cmp::Ordering::Less => Some(format!("[{low}-{high}]")),
        std::cmp::Ordering::Equal => Some(low.to_string()),
        std::cmp::Ordering::Greater => None,
    }
}

fn first(digits: &str) -> (u8, &str) {
    (digits.as_bytes().first().map_or(0, |digit| digit - b'0'), digits.get(1..).unwrap_or_default())
}

/// Returns an expression for one to `count` digits after the decimal point that are at least `low`. The last digit of
/// `low` is not 0.
fn from(low: &str, count: usize) -> String {
    let (digit, rest) = first(low);
    let left = count.saturating_sub(1);
    let same = if rest.is_empty() { more("[0-9]", left) } else { from(rest, left) };
    let higher = one_of(digit + 1, 9).map(|higher| higher + &more("[0-9]", left));
    any_of([Some(format!("{digit}{same}")), higher].into_iter().flatten().collect())
}

/// Returns an expression for up to `count` digits after the decimal point that are at most `high`.
fn to(high: &str, count: usize) -> String {
    let (digit, rest) = first(high);
    let left = count.saturating_sub(1);
    let same = if rest.is_empty() { more("0", left) } else { format!("({})?", to(rest, left)) };
    let lower = digit.checked_sub(1).and_then(|below| one_of(0, below)).map(|lower| lower + &more("[0-9]", left));
    any_of([Some(format!("{digit}{same}")), lower].into_iter().flatten().collect())
}

/// Returns an expression for up to `count` digits after the decimal point from `low` to `high`.
fn both(low: &str, high: &str, count: usize) -> String {
    let ((low_digit, low_rest), (high_digit, high_rest)) = (first(low), first(high));
    let left = count.saturating_sub(1);
    if low_digit == high_digit {
        let rest = match (low_rest.is_empty(), high_rest.is_empty()) {
            (_, true) => more("0", left),
            (true, false) => format!("({})?", to(high_rest, left)),
            (false, false) => both(low_rest, high_rest, left),
        };
        return format!("{low_digit}{rest}");
    }
    let lowest = if low_rest.is_empty() { more("[0-9]", left) } else { from(low_rest, left) };
    let highest = if high_rest.is_empty() { more("0", left) } else { format!("({})?", to(high_rest, left)) };
    let middle = one_of(low_digit + 1, high_digit.saturating_sub(1)).map(|middle| middle + &more("[0-9]", left));
    let alternatives = [Some(format!("{low_digit}{lowest}")), middle, Some(format!("{high_digit}{highest}"))];
    any_of(alternatives.into_iter().flatten().collect())
}

/// Returns an expression for the whole numbers from `low` to `high`, which are strings of digits; `None` if there are
/// none.
fn whole_between(low: &str, high: &str) -> Option<String> {
    let (shorter, longer) = (low.len(), high.len());
    if shorter > longer || (shorter == longer && low > high) {
        return None;
    }
    if shorter == longer {
        return Some(same_length(low, high));
    }
    let mut alternatives = vec![same_length(low, &"9".repeat(shorter))];
    if shorter + 1 < longer {
        alternatives.push(format!("[1-9][0-9]{{{shorter},{}}}", longer - 2));
    }
    alternatives.push(same_length(&format!("1{}", "0".repeat(longer - 1)), high));
    Some(any_of(alternatives))
}

fn same_length(low: &str, high: &str) -> String {
    let left = low.len();
    if low.bytes().all(|digit| digit == b'0') && high.bytes().all(|digit| digit == b'9') {
        return match left {
            0 => String::new(),
            1 => "[0-9]".into(),
            _ => format!("[0-9]{{{left}}}"),
        };
    }
    let ((low_digit, low_rest), (high_digit, high_rest)) = (first(low), first(high));
    if low_digit == high_digit {
        return format!("{low_digit}{}", same_length(low_rest, high_rest));
    }
    let (zeros, nines) = ("0".repeat(left - 1), "9".repeat(left - 1));
    // This merges full ranges of the leading digit into one alternative.
    let (from, lowest) = match low_rest == zeros {
        true => (low_digit, None),
        false => (low_digit + 1, Some(format!("{low_digit}{}", same_length(low_rest, &nines)))),
    };
    let (to, highest) = match high_rest == nines {
        true => (high_digit, None),
        false => (high_digit - 1, Some(format!("{high_digit}{}", same_length(&zeros, high_rest)))),
    };
    let middle = one_of(from, to).map(|middle| middle + &same_length(&zeros, &nines));
    any_of([lowest, middle, highest].into_iter().flatten().collect())
}

/// Adds one to a whole number in digits.
fn next(digits: &str) -> String {
    Decimal::of(digits).map_or_else(String::new, |one| one.above(0).plain())
}

/// Subtracts one from a positive whole number in digits.
fn previous(digits: &str) -> String {
    Decimal::of(digits).map_or_else(String::new, |one| one.negated().above(0).negated().plain())
}

#[cfg(test)]
mod tests {
    use llguidance::derivre::Regex;

    use super::*;

    /// Compares every text with up to two digits on each side of the decimal point with the bounds.
    #[test]
    fn all_texts_between_two_bounds_and_no_others() {
        let bounds = [
            "-12.5", "-10", "-9.99", "-1", "-0.5", "-0.01", "0", "0.05", "0.5", "0.75", "1", "1.01", "9", "9.5", "10",
            "10.05", "19", "20.5", "99.99",
        ];
        let mut texts: Vec<String> = Vec::new();
        for whole in 0..100 {
            texts.push(whole.to_string());
            texts.extend((0..10).map(|digit| format!("{whole}.{digit}")));
            texts.extend((0..100).map(|digits| format!("{whole}.{digits:02}")));
        }
        for (index, low) in bounds.iter().enumerate() {
            for high in &bounds[index..] {
                let (low, high) = (Decimal::of(low).unwrap(), Decimal::of(high).unwrap());
                let expression = between(&low, &high, 2).expect("some");
                let mut regex = Regex::new(&expression).expect("an expression");
                for text in &texts {
                    for text in [text.clone(), format!("-{text}")] {
                        let value = Decimal::of(&text).unwrap();
                        let is_zero = value.is_zero() && text.starts_with('-');
                        let expected = low <= value && value <= high && !is_zero;
                        assert_eq!(regex.is_match(&text), expected, "{text} of {low:?} to {high:?}: {expression}");
                    }
                }
                assert!(!regex.is_match("01") && !regex.is_match("1.") && !regex.is_match(""), "{expression}");
            }
        }
    }

    #[test]
    fn whole_numbers_of_all_lengths() {
        for (low, high) in [(0, 0), (0, 1234), (7, 1000), (99, 101), (100, 999), (1, 98765), (350, 5000), (999, 10_000)]
        {
            let expression = whole_between(&low.to_string(), &high.to_string()).expect("some");
            let mut regex = Regex::new(&expression).expect("an expression");
            for value in 0..=100_000 {
                assert_eq!(regex.is_match(&value.to_string()), (low..=high).contains(&value), "{value}: {expression}");
            }
        }
        assert_eq!(whole_between("5", "4"), None);
    }
}
