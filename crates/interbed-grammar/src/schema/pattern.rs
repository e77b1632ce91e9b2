//! Expressions that a text has to match somewhere, as expressions of the whole text.

use llguidance::derivre::Regex;
use llguidance::regex_to_lark;

/// `pattern`, as the whole text has to match it, and as Lark may have it between slashes.
///
/// # Errors
/// It has an anchor elsewhere than at an end of one of its alternatives.
pub(super) fn whole(pattern: &str) -> Result<String, String> {
    let alternatives = alternatives(pattern)?;
    let one = |&(text, begins, ends): &(&str, bool, bool)| {
        let [before, behind] = [begins, ends].map(|is_bound| if is_bound { "" } else { "(?s:.*)" });
        format!("{before}(?:{}){behind}", regex_to_lark(text, "dw"))
    };
    Ok(format!("(?:{})", alternatives.iter().map(one).collect::<Vec<_>>().join("|")))
}

/// Whether a text matches an expression that [`whole`] made.
///
/// # Errors
/// It is no expression, or needs what is not supported.
pub(super) fn matches(whole: &str, text: &str) -> Result<bool, String> {
    let mut regex =
        Regex::new(whole).map_err(|error| error.to_string().lines().next_back().unwrap_or("").to_owned())?;
    Ok(regex.is_match(text))
}

/// The alternatives of an expression without the anchors at their ends, and whether they had these.
fn alternatives(pattern: &str) -> Result<Vec<(&str, bool, bool)>, String> {
    let (mut found, mut begin) = (Vec::new(), 0);
    let (mut depth, mut in_class, mut is_escaped) = (0usize, false, false);
    let (mut begins, mut ends) = (false, false);
    let elsewhere = || format!("the pattern {pattern:?} has an anchor within a part; leave it out");
    let cut = |from: usize, to: usize, begins: bool, ends: bool| {
        let (from, to) = (from + usize::from(begins), to - usize::from(ends));
        (pattern.get(from..to).unwrap_or_default(), begins, ends)
    };
    for (at, one) in pattern.char_indices() {
        // What follows an anchor of the end.
        if ends && !(one == '|' && depth == 0) {
            return Err(elsewhere());
        }
        match one {
            _ if is_escaped => {
                is_escaped = false;
                if !in_class && matches!(one, 'b' | 'B' | 'A' | 'z' | 'Z') {
                    return Err(elsewhere());
                }
            }
            '\\' => is_escaped = true,
            ']' if in_class => in_class = false,
            _ if in_class => {}
            '[' => in_class = true,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '^' if at == begin && depth == 0 => begins = true,
            '$' if depth == 0 => ends = true,
            '^' | '$' => return Err(elsewhere()),
            '|' if depth == 0 => {
                found.push(cut(begin, at, begins, ends));
                (begin, begins, ends) = (at + 1, false, false);
            }
            _ => {}
        }
    }
    found.push(cut(begin, pattern.len(), begins, ends));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_where_they_are() {
        for (pattern, yes, no) in [
            ("^x-", &["x-", "x-a"][..], &["ax-", "x"][..]),
            ("a|b$", &["xay", "xb", "b"], &["bx", ""]),
            ("^(a|b)+$", &["abab"], &["abc", ""]),
            ("^$|^[$^]\\$$", &["", "$$", "^$"], &["a", "$"]),
            ("", &["", "anything"], &[]),
            ("\\d/", &["1/", "a22/b"], &["/", "\u{663}/"]),
        ] {
            let whole = whole(pattern).expect(pattern);
            yes.iter().for_each(|text| assert_eq!(matches(&whole, text), Ok(true), "{pattern} {text}"));
            no.iter().for_each(|text| assert_eq!(matches(&whole, text), Ok(false), "{pattern} {text}"));
        }
        for pattern in ["(^a|b)", "a$b", "a^", "\\ba", "(a$)"] {
            assert!(whole(pattern).is_err(), "{pattern}");
        }
    }
}
