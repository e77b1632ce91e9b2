//! Turns patterns, which match anywhere in a text, into expressions that match the whole text.

use llguidance::derivre::raw::{ExprSet, RelevanceCache};
use llguidance::derivre::{ExprRef, Regex, RegexAst, RegexBuilder};
use llguidance::regex_to_lark;

/// The number of bytes of the library's tables that count as one step of work.
const STEP_BYTES: usize = 256;
/// The library's cost that counts as one step of work.
const STEP_COST: u64 = 64;
/// The number of bytes of a pattern that count as one step of reading it.
const READ_BYTES: usize = 4;
/// The number of steps that reading a Unicode class in a pattern counts as.
const READ_CLASS: usize = 100;
/// The largest cost, as the library counts it, of deciding whether some text matches several expressions at once.
const COST_MAX: u64 = 1_000_000;

/// Rewrites `pattern` so that it matches the whole text, in the form that Lark accepts between slashes.
///
/// # Errors
/// Fails if the pattern has an anchor elsewhere than at an end of one of its alternatives.
pub(super) fn whole(pattern: &str) -> Result<String, String> {
    let alternatives = alternatives(pattern)?;
    let one = |&(text, begins, ends): &(&str, bool, bool)| {
        let [before, behind] = [begins, ends].map(|is_bound| if is_bound { "" } else { "(?s:.*)" });
        format!("{before}(?:{}){behind}", regex_to_lark(&spelled(text, ""), "dw"))
    };
    Ok(format!("(?:{})", alternatives.iter().map(one).collect::<Vec<_>>().join("|")))
}

/// Checks a pattern that a text has to match somewhere, and returns it in the form that the library accepts in a
/// schema.
///
/// If a class has all control characters, the library adds the escapes of quotes and backslashes to the class, even if
/// it has neither quotes nor backslashes. Negated classes are therefore written without the first control character.
///
/// # Errors
/// Fails if the pattern is invalid, or needs an unsupported feature.
pub(super) fn checked(pattern: &str) -> Result<String, String> {
    let told = |problem: String| {
        let reason = problem.lines().next_back().unwrap_or("").trim_start_matches("error: ").to_owned();
        format!("the pattern cannot be enforced: {reason}")
    };
    let (spelled, mut builder) = (spelled(pattern, r"\x00"), RegexBuilder::new());
    let read = builder.mk(&RegexAst::SearchRegex(regex_to_lark(&spelled, "dw")));
    read.map_err(|error| told(error.to_string()))?;
    let exprs = builder.exprset();
    // This looks for a set of bytes that contains all control characters but lacks another one, such as the quotation
    // mark.
    let misses = |expr: ExprRef| {
        let set = exprs.get(expr);
        let is_full = (0..b' ').all(|byte| byte == b'\n' || set.matches_byte(byte));
        is_full && !(set.matches_byte(b'"') && set.matches_byte(b'\\'))
    };
    let kind = set_kind();
    let is_leaf = |expr: &ExprRef| exprs.get_tag(*expr) as u8 == kind;
    if (1..exprs.len() as u32).map(ExprRef::new).filter(is_leaf).any(misses) {
        return Err(told("a class in it has all control characters, but no quote or backslash".into()));
    }
    Ok(spelled)
}

/// Returns the library's number for expressions that are sets of bytes. The library does not export a name for it.
fn set_kind() -> u8 {
    let mut builder = RegexBuilder::new();
    let set = builder.mk(&RegexAst::Regex("[ab]".into())).unwrap_or(ExprRef::NO_MATCH);
    builder.exprset().get_tag(set) as u8
}

/// Rewrites a pattern so that its classes mean what most readers take them to mean: brackets, `&&`, `--` and `~~`
/// inside a class stand for themselves. Negated classes also exclude `also`.
fn spelled(pattern: &str, also: &str) -> String {
    let (mut text, mut rest) = (String::new(), pattern.chars().peekable());
    let mut in_class = false;
    while let Some(one) = rest.next() {
        match one {
            '\\' => {
                text.push(one);
                text.extend(rest.next());
            }
            '[' if !in_class => {
                in_class = true;
                text.push(one);
                if rest.next_if_eq(&'^').is_some() {
                    text.push('^');
                    text += also;
                }
                if rest.next_if_eq(&']').is_some() {
                    text += r"\]";
                }
            }
            ']' => {
                in_class = false;
                text.push(one);
            }
            '[' => text += r"\[",
            '&' | '~' if in_class => {
                text.push('\\');
                text.push(one);
            }
            '-' if in_class => {
                text.push(one);
                if rest.next_if_eq(&'-').is_some() {
                    text += r"\-";
                }
            }
            _ => text.push(one),
        }
    }
    text
}

/// A compiled pattern that counts the cost of matching.
pub(super) struct Matching {
    regex: Regex,
    /// The number of steps of work so far.
    steps: usize,
}

impl Matching {
    /// Returns the number of steps of work that [`Matching::new`] takes for this pattern.
    pub(super) fn steps_to_read(pattern: &str) -> usize {
        let classes = ["\\p", "\\P", "(?"].iter().map(|class| pattern.matches(class).count()).sum::<usize>();
        pattern.len() / READ_BYTES + classes * READ_CLASS
    }

    /// Compiles `pattern`, which a text has to match somewhere.
    ///
    /// # Errors
    /// Fails if the pattern is invalid, or needs an unsupported feature.
    pub(super) fn new(pattern: &str) -> Result<Self, String> {
        let told = |problem: &str| problem.lines().next_back().unwrap_or("").to_owned();
        let regex = Regex::new(&whole(pattern)?).map_err(|error| told(&error.to_string()))?;
        Ok(Self { regex, steps: 0 })
    }

    /// Returns whether a text matches, and the number of steps of work that this took. Gives up after more than `most`
    /// steps.
    pub(super) fn is_match(&mut self, text: &str, most: usize) -> (bool, usize) {
        let before = self.steps;
        let mut state = self.regex.initial_state();
        for byte in text.bytes() {
            state = self.regex.transition(state, byte);
            let cost = usize::try_from(self.regex.cost() / STEP_COST).unwrap_or(usize::MAX);
            self.steps = cost.saturating_add(self.regex.num_bytes() / STEP_BYTES);
            if state.is_dead() || self.steps - before > most {
                return (false, self.steps - before);
            }
        }
        (self.regex.is_accepting(state), self.steps - before)
    }
}

/// A set of property names in quotes, by which the grammar decides whether some name matches several patterns at once.
pub(super) struct Names {
    exprs: ExprSet,
    cache: RelevanceCache,
    /// The expression for all names, in quotes.
    any: ExprRef,
    patterns: Vec<ExprRef>,
    /// The patterns that all names have to match.
    all: Vec<ExprRef>,
    listed: Vec<ExprRef>,
    left: u64,
}

impl Names {
    /// Compiles the expressions. Names have all of the forms `any`, which include the quotes, and match all patterns of
    /// `all`. The `patterns` are told apart. `patterns` and `all` are expressions from [`whole`], without quotes.
    /// `listed` are names as JSON strings.
    ///
    /// # Errors
    /// Fails if an expression is invalid, or needs an unsupported feature.
    pub(super) fn new(any: &[String], patterns: &[String], all: &[String], listed: &[String]) -> Result<Self, String> {
        let mut builder = RegexBuilder::new();
        let mut read = |ast: RegexAst| {
            builder.mk(&ast).map_err(|error| error.to_string().lines().next_back().unwrap_or("").to_owned())
        };
        let quote = || RegexAst::Literal("\"".into());
        let quoted = |text: &String| RegexAst::Concat(vec![quote(), RegexAst::Regex(text.clone()), quote()]);
        let any = read(RegexAst::And(any.iter().map(|text| RegexAst::Regex(text.clone())).collect()))?;
        let patterns = patterns.iter().map(|text| read(quoted(text))).collect::<Result<_, _>>()?;
        let all = all.iter().map(|text| read(quoted(text))).collect::<Result<_, _>>()?;
        let listed = listed.iter().map(|text| read(RegexAst::Literal(text.clone()))).collect::<Result<_, _>>()?;
        let (exprs, cache) = (builder.into_exprset(), RelevanceCache::new());
        Ok(Self { exprs, cache, any, patterns, all, listed, left: COST_MAX })
    }

    /// Returns whether some name that is not listed matches the pattern at `index`, if given, and no other pattern.
    /// Returns `None` if that takes too long to decide.
    pub(super) fn has_other(&mut self, index: Option<usize>) -> Option<bool> {
        let others = self.patterns.iter().enumerate().filter(|(at, _)| Some(*at) != index).map(|(_, one)| *one);
        let mut without: Vec<ExprRef> = others.chain(self.listed.iter().copied()).collect();
        let before = self.exprs.cost();
        let excluded = self.exprs.mk_or(&mut without);
        let mut all = vec![self.any, self.exprs.mk_not(excluded)];
        all.extend(index.and_then(|index| self.patterns.get(index)));
        all.extend(&self.all);
        let all = self.exprs.mk_and(&mut all);
        let found = self.cache.is_non_empty_limited(&mut self.exprs, all, self.left).ok();
        self.left = self.left.saturating_sub(self.exprs.cost() - before);
        found
    }
}

/// Returns the alternatives of a pattern without the anchors at their ends. Also returns whether each had an anchor at
/// its start and at its end.
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
        // Only the end of an alternative may follow an end anchor.
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
            let mut matching = Matching::new(pattern).expect(pattern);
            yes.iter().for_each(|text| assert!(matching.is_match(text, 1000).0, "{pattern} {text}"));
            no.iter().for_each(|text| assert!(!matching.is_match(text, 1000).0, "{pattern} {text}"));
        }
        for pattern in ["(^a|b)", "a$b", "a^", "\\ba", "(a$)"] {
            assert!(whole(pattern).is_err(), "{pattern}");
        }
    }
}
