//! Translates grammars with `::=`, a syntax that is known as EBNF or GBNF, into Lark's syntax.
//!
//! Every character becomes a terminal of its own. The library cuts a text into terminals greedily, so longer terminals
//! would change the language: `"a" "b" | "ab" "c"` would no longer match the text `ab`. No character is a prefix of
//! another.

use std::collections::HashMap;
use std::fmt::Write;
use std::iter::Peekable;
use std::ops::RangeInclusive;
use std::str::CharIndices;

use crate::lark::quoted;

/// Maximum number of terminals, parenthesized parts and names in a grammar. The library counts up to 65,525 symbols.
const ITEMS_MAX: usize = 16 << 10;

/// Returns whether a text is a grammar in this syntax. Such a text has a line that begins a rule with `::=`.
pub(crate) fn is_ebnf(text: &str) -> bool {
    text.lines().any(|line| line.split_once("::=").is_some_and(|(name, _)| is_name(name.trim())))
}

/// Translates the grammar to Lark's syntax. Its rule `root` matches the whole answer.
///
/// # Errors
/// Fails with a description of the problem that names its line.
pub(crate) fn lark_of(text: &str) -> Result<String, String> {
    let mut reader =
        Reader { text, chars: text.char_indices().peekable(), names: Names::default(), items: 0, lark: String::new() };
    reader.rules()?;
    let Reader { names, lark, .. } = reader;
    if let Some((name, _)) = names.of.iter().find(|(_, rule)| !rule.is_defined) {
        return Err(format!("the rule {name:?} is named, but there is no {name:?} ::= …"));
    }
    let root = names.of.get("root").ok_or("there is no rule \"root\", with which the text begins")?;
    Ok(format!("start: rule{}\n{lark}", root.number))
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_of_name)
}

fn is_of_name(one: char) -> bool {
    one.is_ascii_alphanumeric() || one == '-' || one == '_'
}

#[derive(Default)]
struct Names<'a> {
    of: HashMap<&'a str, Rule>,
}

struct Rule {
    number: usize,
    is_defined: bool,
}

impl<'a> Names<'a> {
    fn rule(&mut self, name: &'a str) -> &mut Rule {
        let number = self.of.len();
        self.of.entry(name).or_insert(Rule { number, is_defined: false })
    }
}

struct Reader<'a> {
    text: &'a str,
    chars: Peekable<CharIndices<'a>>,
    names: Names<'a>,
    items: usize,
    /// The translation so far.
    lark: String,
}

impl<'a> Reader<'a> {
    fn rules(&mut self) -> Result<(), String> {
        while self.peek().is_some() {
            let name = self.name();
            if name.is_empty() || self.peek() != Some(':') || !self.rest().starts_with("::=") {
                return self.wrong("a rule, NAME ::= …, is expected here");
            }
            self.chars.nth(2);
            let rule = self.names.rule(name);
            if rule.is_defined {
                return self.wrong(&format!("the rule {name:?} is there twice"));
            }
            rule.is_defined = true;
            let _ = write!(self.lark, "rule{}: ", rule.number);
            self.alternatives()?;
            self.lark.push('\n');
        }
        Ok(())
    }

    /// Translates alternatives up to the first character that belongs to no sequence.
    fn alternatives(&mut self) -> Result<(), String> {
        loop {
            while self.item()? {
                self.lark.push(' ');
            }
            // An alternative may be empty.
            self.lark.push_str("\"\"");
            if self.peek() != Some('|') {
                return Ok(());
            }
            self.chars.next();
            self.lark.push_str(" | ");
        }
    }

    /// Translates one item with its repetition. Returns false if no item follows.
    fn item(&mut self) -> Result<bool, String> {
        let begin = self.lark.len();
        self.count()?;
        self.lark.push('(');
        match self.peek() {
            Some('"') => self.literal()?,
            Some('[') => self.class()?,
            Some('.') => {
                self.chars.next();
                self.lark.push_str(r"/[\x{0}-\x{10FFFF}]/");
            }
            Some('(') => {
                self.chars.next();
                self.alternatives()?;
                if self.peek() != Some(')') {
                    return self.wrong("\")\" is expected here");
                }
                self.chars.next();
            }
            Some(one) if is_of_name(one) && !self.is_at_rule() => {
                let name = self.name();
                let number = self.names.rule(name).number;
                let _ = write!(self.lark, "rule{number}");
            }
            Some(one) if !is_of_name(one) && one != '|' && one != ')' => {
                return self.wrong(&format!("{one:?} is not expected here"));
            }
            _ => {
                self.lark.truncate(begin);
                return Ok(false);
            }
        }
        self.lark.push(')');
        const REPEATS: [char; 4] = ['*', '+', '?', '{'];
        if let Some(one) = self.peek().filter(|one| REPEATS.contains(one)) {
            if one == '{' {
                self.times()?;
            } else {
                self.chars.next();
                self.lark.push(one);
            }
            if self.peek().is_some_and(|one| REPEATS.contains(&one)) {
                return self.wrong("what is repeated is repeated again; put brackets around it");
            }
        }
        Ok(true)
    }

    fn count(&mut self) -> Result<(), String> {
        self.items += 1;
        if self.items > ITEMS_MAX {
            return self
                .wrong(&format!("it has more than {ITEMS_MAX} characters, names and groups up to here; shorten it"));
        }
        Ok(())
    }

    fn literal(&mut self) -> Result<(), String> {
        self.chars.next();
        let mut is_first = true;
        loop {
            match self.chars.next() {
                None => return self.wrong("a text has no end; close it with '\"'"),
                Some((_, '"')) => break,
                Some((_, one)) => {
                    let one = self.unescaped(one)?;
                    self.count()?;
                    self.lark.push_str(if is_first { "" } else { " " });
                    self.lark.push_str(&quoted(one.encode_utf8(&mut [0; 4])));
                    is_first = false;
                }
            }
        }
        if is_first {
            self.lark.push_str("\"\"");
        }
        Ok(())
    }

    fn class(&mut self) -> Result<(), String> {
        self.chars.next();
        let is_negated = self.chars.next_if(|&(_, one)| one == '^').is_some();
        let mut ranges: Vec<RangeInclusive<char>> = Vec::new();
        loop {
            match self.chars.next() {
                None => return self.wrong("characters to choose from have no end; close them with \"]\""),
                Some((_, ']')) => break,
                Some((_, one)) => {
                    let low = self.unescaped(one)?;
                    let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
                    let mut high = low;
                    if is_range {
                        self.chars.next();
                        let Some((_, one)) = self.chars.next() else { continue };
                        high = self.unescaped(one)?;
                    }
                    if low > high {
                        return self.wrong(&format!("no character is from {low:?} to {high:?}"));
                    }
                    ranges.push(low..=high);
                }
            }
        }
        if ranges.is_empty() {
            return self.wrong("there are no characters to choose from between \"[\" and \"]\"");
        }
        self.lark.push_str(if is_negated { "/[^" } else { "/[" });
        for range in ranges {
            let _ = write!(self.lark, "\\x{{{:X}}}-\\x{{{:X}}}", u32::from(*range.start()), u32::from(*range.end()));
        }
        self.lark.push_str("]/");
        Ok(())
    }

    /// Reads a repetition: `{m}`, `{m,}`, `{,n}` or `{m,n}`.
    fn times(&mut self) -> Result<(), String> {
        self.chars.next();
        let mut inside = String::new();
        while let Some((_, one)) = self.chars.next_if(|&(_, one)| one.is_ascii_digit() || one == ',' || one == ' ') {
            inside.push(one);
        }
        let closed = self.chars.next_if(|&(_, one)| one == '}').is_some();
        let number = |text: &str| text.trim().parse::<u32>().ok();
        let told = match inside.split_once(',') {
            None => number(&inside).map(|count| format!("{{{count}}}")),
            Some((low, high)) => {
                let low = if low.trim().is_empty() { Some(0) } else { number(low) };
                let high = if high.trim().is_empty() { Some(None) } else { number(high).map(Some) };
                match (low, high) {
                    (Some(low), Some(None)) => Some(format!("{{{low},}}")),
                    (Some(low), Some(Some(high))) if low <= high => Some(format!("{{{low},{high}}}")),
                    _ => None,
                }
            }
        };
        match told.filter(|_| closed) {
            Some(told) => {
                self.lark.push_str(&told);
                Ok(())
            }
            None => self.wrong("how often it is repeated is not written as {2}, {2,}, {,5} or {2,5}"),
        }
    }

    /// Decodes an escape. `one` is the character that was read, and the rest of the escape is read here.
    fn unescaped(&mut self, one: char) -> Result<char, String> {
        if one != '\\' {
            return Ok(one);
        }
        let digits = match self.chars.next() {
            Some((_, 'n')) => return Ok('\n'),
            Some((_, 'r')) => return Ok('\r'),
            Some((_, 't')) => return Ok('\t'),
            Some((_, one @ ('\\' | '"' | '\'' | '[' | ']' | '-' | '^' | '/'))) => return Ok(one),
            Some((_, 'x')) => 2,
            Some((_, 'u')) => 4,
            Some((_, 'U')) => 8,
            _ => return self.wrong("\"\\\" is followed by what it does not escape; write \"\\\\\" for itself"),
        };
        let code: String = self.rest().chars().take(digits).collect();
        let found = u32::from_str_radix(&code, 16).ok().and_then(char::from_u32);
        match found.filter(|_| code.len() == digits && code.bytes().all(|digit| digit.is_ascii_hexdigit())) {
            Some(found) => {
                self.chars.nth(digits - 1);
                Ok(found)
            }
            None => self.wrong(&format!("no character has the {digits} digits {code:?}")),
        }
    }

    /// Skips white space and comments, and returns the next character without reading it.
    fn peek(&mut self) -> Option<char> {
        loop {
            match self.chars.peek()?.1 {
                '#' => while self.chars.next_if(|&(_, one)| one != '\n').is_some() {},
                one if one.is_whitespace() => {
                    self.chars.next();
                }
                one => return Some(one),
            }
        }
    }

    /// Reads a name. Returns an empty one if none follows.
    fn name(&mut self) -> &'a str {
        let rest = self.rest();
        let name = &rest[..rest.find(|one| !is_of_name(one)).unwrap_or(rest.len())];
        for _ in name.chars() {
            self.chars.next();
        }
        name
    }

    /// Returns whether the next name is followed by `::=`, so that a rule begins here.
    fn is_at_rule(&mut self) -> bool {
        self.rest().trim_start_matches(is_of_name).trim_start().starts_with("::=")
    }

    fn rest(&mut self) -> &'a str {
        let at = self.chars.peek().map_or(self.text.len(), |&(at, _)| at);
        &self.text[at..]
    }

    fn wrong<T>(&mut self, problem: &str) -> Result<T, String> {
        let read = self.text.len() - self.rest().len();
        let line = 1 + self.text[..read].matches('\n').count();
        Err(format!("line {line}: {problem}"))
    }
}
