//! Estimates the cost of intersecting regular expressions before the library does it.
//!
//! The library follows an intersection byte by byte. Each of the intersected expressions has sets of bytes that may
//! come next. A step tries every combination of one set from each expression whose sets have a byte in common, so the
//! work is a product. The library counts this work and stops at its limit, but checks only between steps, so each step
//! has to be small.

use std::collections::{HashMap, HashSet};

use llguidance::derivre::raw::ExprSet;
use llguidance::derivre::{ExprRef, RegexAst, RegexBuilder};
use llguidance::earley::lexerspec::LexerSpec;

/// Maximum number of combinations in one step of an intersection.
const CHOICES_MAX: u64 = 100_000;
/// Maximum number of combinations in one step of all intersections together.
const CHOICES_OF_ALL_MAX: u64 = 4_000_000;
/// Maximum number of expressions that are visited. An expression that several intersections share counts for each of
/// them.
const LOOKED_AT_MAX: usize = 2_000_000;

/// A limit that a grammar exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMany {
    /// Plural noun for what is counted.
    pub(crate) unit: &'static str,
    pub(crate) got: usize,
    pub(crate) limit: usize,
}

/// Checks the intersections in a grammar's terminals.
///
/// # Errors
/// Fails if a step through one intersection, or through all of them together, would take too long.
pub(crate) fn check(spec: &LexerSpec) -> Result<(), TooMany> {
    let exprs = spec.regex_builder.exprset();
    let mut look = Look { exprs, kinds: Kinds::new(), joined: HashMap::new(), left: LOOKED_AT_MAX };
    let mut of_all = 0u64;
    for id in 1..exprs.len() as u32 {
        let expr = ExprRef::new(id);
        if look.kind(expr) != look.kinds.and {
            continue;
        }
        let choices = look.choices(expr)?;
        of_all = of_all.saturating_add(choices);
        limit("ways in which patterns for one text overlap", choices, CHOICES_MAX)?;
        limit("ways in which patterns overlap", of_all, CHOICES_OF_ALL_MAX)?;
    }
    Ok(())
}

fn limit(unit: &'static str, got: u64, limit: u64) -> Result<(), TooMany> {
    let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    if got > limit { Err(TooMany { unit, got: size(got), limit: size(limit) }) } else { Ok(()) }
}

/// The numbers by which the `derivre` library encodes kinds of expressions. The library does not export names for them.
struct Kinds {
    and: u8,
    not: u8,
    set: u8,
    /// Kinds of expressions that begin with one byte.
    single: [u8; 3],
}

impl Kinds {
    fn new() -> Self {
        let mut builder = RegexBuilder::new();
        let mut kind = |ast: RegexAst| {
            let expr = builder.mk(&ast).unwrap_or(ExprRef::NO_MATCH);
            builder.exprset().get_tag(expr) as u8
        };
        let regex = |text: &str| RegexAst::Regex(text.into());
        Self {
            and: kind(RegexAst::And(vec![regex("[ab]*c"), regex("[bc]*")])),
            not: kind(RegexAst::Not(Box::new(regex("[ab]*")))),
            set: kind(regex("[ab]")),
            single: [kind(regex("a")), kind(regex("ab")), kind(RegexAst::MultipleOf(3, 0))],
        }
    }
}

/// For each byte, the number of an expression's sets that contain the byte, and a hash of those sets. The hash is equal
/// for bytes in the same sets.
#[derive(Clone)]
struct Sets {
    counts: Box<[u64; 256]>,
    which: Box<[u64; 256]>,
}

impl Sets {
    fn none() -> Self {
        Self { counts: Box::new([0; 256]), which: Box::new([0; 256]) }
    }

    /// Adds the set with number `number`, which contains the bytes for which `has` returns true.
    fn add(&mut self, number: u64, has: impl Fn(u8) -> bool) {
        for byte in (0..=u8::MAX).filter(|&byte| has(byte)) {
            self.counts[usize::from(byte)] = self.counts[usize::from(byte)].saturating_add(1);
            self.mix(byte, number);
        }
    }

    fn mix(&mut self, byte: u8, number: u64) {
        let which = &mut self.which[usize::from(byte)];
        *which = which.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number + 1).rotate_left(29);
    }
}

struct Look<'a> {
    exprs: &'a ExprSet,
    kinds: Kinds,
    /// Sets of the intersections that were visited.
    joined: HashMap<ExprRef, Sets>,
    /// Number of expressions that may still be visited.
    left: usize,
}

impl Look<'_> {
    fn kind(&self, expr: ExprRef) -> u8 {
        self.exprs.get_tag(expr) as u8
    }

    /// Returns the number of combinations in one step of an intersection.
    fn choices(&mut self, expr: ExprRef) -> Result<u64, TooMany> {
        let sets = self.joined_sets(expr)?;
        // Bytes in the same sets are counted once.
        let cases: HashMap<u64, u64> = sets.which.iter().copied().zip(sets.counts.iter().copied()).collect();
        Ok(cases.values().fold(0, |sum: u64, &count| sum.saturating_add(count)))
    }

    /// Returns the sets of an intersection. Its operands have smaller ids, so the recursion ends.
    fn joined_sets(&mut self, expr: ExprRef) -> Result<Sets, TooMany> {
        if let Some(known) = self.joined.get(&expr) {
            return Ok(known.clone());
        }
        let mut joined = Sets { counts: Box::new([1; 256]), which: Box::new([0; 256]) };
        for &part in self.exprs.get_args(expr) {
            let sets = self.sets(part)?;
            for byte in 0..=u8::MAX {
                let (index, which) = (usize::from(byte), sets.which[usize::from(byte)]);
                // The library has tried combinations of the first operands before it reaches one that lacks the byte.
                joined.counts[index] = joined.counts[index].saturating_mul(sets.counts[index].max(1));
                joined.mix(byte, which);
            }
        }
        self.joined.insert(expr, joined.clone());
        Ok(joined)
    }

    /// Returns the sets of bytes that may come next anywhere in an expression.
    fn sets(&mut self, expr: ExprRef) -> Result<Sets, TooMany> {
        let mut sets = Sets::none();
        let mut stack = vec![expr];
        let (mut seen, mut has_single) = (HashSet::from([expr]), false);
        while let Some(next) = stack.pop() {
            if self.left == 0 {
                return Err(TooMany {
                    unit: "parts of patterns for one text",
                    got: LOOKED_AT_MAX + 1,
                    limit: LOOKED_AT_MAX,
                });
            }
            self.left -= 1;
            let (kind, exprs) = (self.kind(next), self.exprs);
            if kind == self.kinds.and {
                let joined = self.joined_sets(next)?;
                for byte in 0..=u8::MAX {
                    let index = usize::from(byte);
                    sets.counts[index] = sets.counts[index].saturating_add(joined.counts[index]);
                    sets.mix(byte, joined.which[index]);
                }
                continue;
            }
            if kind == self.kinds.not {
                // The library splits the bytes that a negation excludes into disjoint sets.
                sets.add(u64::from(next.as_u32()), |_| true);
                continue;
            }
            if kind == self.kinds.set {
                sets.add(u64::from(next.as_u32()), |byte| exprs.get(next).matches_byte(byte));
            }
            has_single |= self.kinds.single.contains(&kind);
            stack.extend(exprs.get_args(next).iter().copied().filter(|&part| seen.insert(part)));
        }
        if has_single {
            // Each byte may be a set of its own.
            for byte in 0..=u8::MAX {
                sets.add(u64::MAX >> 1, |other| other == byte);
                sets.mix(byte, 0);
            }
        }
        Ok(sets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(patterns: &[RegexAst]) -> LexerSpec {
        let mut spec = LexerSpec::new().unwrap();
        spec.setup_lexeme_class(RegexAst::NoMatch).unwrap();
        spec.add_greedy_lexeme("T".into(), RegexAst::And(patterns.to_vec()), false, None, usize::MAX).unwrap();
        spec
    }

    #[test]
    fn kinds_are_told_apart() {
        let kinds = Kinds::new();
        let all = [kinds.and, kinds.not, kinds.set, kinds.single[0], kinds.single[1], kinds.single[2]];
        assert_eq!(HashSet::from(all).len(), all.len(), "{all:?}");
    }

    #[test]
    fn a_product_is_seen_before_it_is_computed() {
        let search = |text: String| RegexAst::SearchRegex(text);
        let few: Vec<_> = (0..3).map(|least| search(format!("a{{{least},}}b"))).collect();
        assert_eq!(check(&spec(&few)), Ok(()));
        for many in [
            (0..26).map(|least| search(format!("a{{{least},}}"))).collect::<Vec<_>>(),
            (0..26).map(|least| search(format!("[a-m]{{{least},}}[f-z]"))).collect(),
            (0..20)
                .map(|least| RegexAst::Not(Box::new(search(format!("x{{{least}}}y")))))
                .chain((0..20).map(|least| search(format!("(x|y){{{least}}}[xyz]"))))
                .collect(),
        ] {
            assert!(check(&spec(&many)).is_err());
        }
    }
}
