//! Finds out which known name a mistyped name may mean.

/// Returns whether `typed` is similar enough to `known` for an error message to suggest `known`. Two names are similar
/// if they begin with the same letter and differ in at most two letters, or in fewer if `typed` is short. They are also
/// similar if `typed` consists of the first words of `known`.
pub fn is_near(typed: &str, known: &str) -> bool {
    let bare = |name: &str| name.trim_start_matches('-').to_ascii_lowercase();
    let (typed, known) = (bare(typed), bare(known));
    let (letters, others) = (typed.chars().count(), known.chars().count());
    let most = match letters {
        0..3 => 0,
        // A replaced letter makes another word, but a missing or additional letter is a typing error.
        3 => usize::from(letters != others),
        4..6 => 1,
        _ => 2,
    };
    let begins = typed.contains('-') && known.strip_prefix(&typed).is_some_and(|rest| rest.starts_with('-'));
    begins || (typed.chars().next() == known.chars().next() && distance(&typed, &known) <= most)
}

/// Returns the number of letters that must be inserted, removed or replaced to turn one name into the other.
pub fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, known) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *known);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_that_differ_are_counted() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("memory", "memory"), 0);
        assert_eq!(distance("memroy", "memory"), 2);
        assert_eq!(distance("max-modellen", "max-model-len"), 1);
    }

    #[test]
    fn tips_name_what_is_spelled_alike_and_nothing_else() {
        for (typed, known) in [
            ("pul", "pull"),
            ("--memroy", "--memory"),
            ("--thread", "--threads"),
            ("serv", "serve"),
            ("--max-model", "--max-model-len"),
            ("--no-prefix", "--no-prefix-caching"),
        ] {
            assert!(is_near(typed, known), "{typed} {known}");
        }
        for (typed, known) in [
            ("--in-prefix", "--min-p"),
            ("--ram", "--raw"),
            ("--no-perf", "--no-prefix-caching"),
            ("--no-repack", "--no-echo"),
            ("--stream", "--stream-policy"),
            ("--headless", "--threads"),
            ("version", "verify"),
            ("logs", "logits"),
            ("server", "erase"),
            ("", "rm"),
        ] {
            assert!(!is_near(typed, known), "{typed} {known}");
        }
    }
}
