//! What one source file declares and names, read from its words alone.

use std::collections::{BTreeMap, BTreeSet};

/// A file of Rust, without what only tests see.
#[derive(Debug, Default)]
pub struct Source {
    /// Every `use`, however deep in the file.
    pub uses: Vec<Use>,
    /// Paths of two names or more outside of `use`.
    pub paths: Vec<Named>,
    /// Types, functions, constants, macros.
    pub items: BTreeSet<String>,
    /// `pub struct`, `enum`, `union`, `trait` and `type`; `pub(crate)` ones are left out.
    pub public_types: Vec<String>,
    /// Functions with a body.
    pub functions: Vec<Function>,
    /// Modules in files of their own that only tests see.
    pub test_modules: Vec<String>,
    /// How often a name occurs outside of `use`.
    pub words: BTreeMap<String, usize>,
}

/// A name that a `use` brings in.
#[derive(Debug)]
pub struct Use {
    pub path: Named,
    /// Its name in this file; `*` for a glob import.
    pub name: String,
    /// Others see it here too.
    pub exported: bool,
}

/// A function with a body.
#[derive(Debug)]
pub struct Function {
    pub name: String,
    /// Lines from its `fn` to the brace that closes its body.
    pub lines: usize,
}

/// A path as it is written.
#[derive(Debug, Clone)]
pub struct Named {
    /// The modules between braces around it, in this file.
    pub within: Vec<String>,
    pub segments: Vec<String>,
}

impl Source {
    pub fn read(text: &str) -> Self {
        let mut source = Self::default();
        let tokens = source.without_tests(&tokens(text));
        source.functions = functions(text, &tokens);
        let mut within: Vec<(String, usize)> = Vec::new();
        let (mut depth, mut at) = (0, 0);
        while at < tokens.len() {
            let (token, next) = (tokens[at], tokens.get(at + 1).copied().unwrap_or(""));
            let modules = || within.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
            match token {
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    within.pop_if(|(_, outside)| *outside == depth);
                }
                "mod" if tokens.get(at + 2) == Some(&"{") => within.push((next.to_owned(), depth)),
                "use" if next != "<" => {
                    let exported = at > 0 && matches!(tokens[at - 1], "pub" | ")");
                    at += 1;
                    source.read_tree(&tokens, &mut at, Named { within: modules(), segments: Vec::new() }, exported);
                    continue;
                }
                "struct" | "enum" | "union" | "trait" | "type" | "fn" | "const" | "static" | "macro_rules" => {
                    let name = if next == "!" { tokens.get(at + 2).copied().unwrap_or("") } else { next };
                    source.items.insert(name.to_owned());
                    if at > 0 && tokens[at - 1] == "pub" && !matches!(token, "fn" | "const" | "static") {
                        source.public_types.push(name.to_owned());
                    }
                }
                _ if is_name(token) && next == "::" && (at == 0 || !matches!(tokens[at - 1], "::" | ".")) => {
                    let mut segments = vec![token.to_owned()];
                    while tokens.get(at + 1) == Some(&"::") && tokens.get(at + 2).is_some_and(|token| is_name(token)) {
                        segments.push(tokens[at + 2].to_owned());
                        at += 2;
                    }
                    for segment in &segments {
                        *source.words.entry(segment.clone()).or_default() += 1;
                    }
                    source.paths.push(Named { within: modules(), segments });
                }
                _ if is_name(token) => *source.words.entry(token.to_owned()).or_default() += 1,
                _ => {}
            }
            at += 1;
        }
        source
    }

    /// Reads one branch of what stands behind `use`, up to the comma, brace or semicolon that ends it.
    fn read_tree(&mut self, tokens: &[&str], at: &mut usize, mut path: Named, exported: bool) {
        while let Some(&token) = tokens.get(*at) {
            match token {
                "{" => {
                    while tokens.get(*at).is_some_and(|&token| token != "}") {
                        *at += 1;
                        if tokens.get(*at) != Some(&"}") {
                            self.read_tree(tokens, at, path.clone(), exported);
                        }
                    }
                    *at += 1;
                    return;
                }
                "::" => {}
                "as" => {
                    let name = tokens.get(*at + 1).copied().unwrap_or("_").to_owned();
                    *at += 2;
                    return self.uses.push(Use { path, name, exported });
                }
                "*" => {
                    *at += 1;
                    return self.uses.push(Use { path, name: token.to_owned(), exported });
                }
                "self" if !path.segments.is_empty() => {}
                _ if is_name(token) => path.segments.push(token.to_owned()),
                _ => break,
            }
            *at += 1;
        }
        let name = path.segments.last().cloned().unwrap_or_default();
        self.uses.push(Use { path, name, exported });
    }

    /// Leaves out what stands under `#[cfg(test)]`, and notes its modules that have files.
    fn without_tests<'t>(&mut self, tokens: &[&'t str]) -> Vec<&'t str> {
        let mut kept = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            let all = ["#", "[", "cfg", "(", "all", "(", "test"];
            if !tokens[at..].starts_with(&["#", "[", "cfg", "(", "test", ")"]) && !tokens[at..].starts_with(&all) {
                kept.push(tokens[at]);
                at += 1;
                continue;
            }
            while tokens.get(at) == Some(&"#") {
                at = end_of_group(tokens, at + 1);
            }
            let item = &tokens[at..];
            if let Some(module) = item.iter().position(|&token| token == "mod")
                && item.get(module + 2) == Some(&";")
                && item[..module].iter().all(|token| matches!(*token, "pub" | "(" | "crate" | "super" | ")"))
            {
                self.test_modules.push(item[module + 1].to_owned());
            }
            at = end_of_item(tokens, at);
        }
        kept
    }
}

/// The functions among `tokens`, which are parts of `text`.
fn functions(text: &str, tokens: &[&str]) -> Vec<Function> {
    let start = |token: &str| token.as_ptr() as usize - text.as_ptr() as usize;
    let mut functions = Vec::new();
    for (at, pair) in tokens.array_windows().enumerate() {
        // A type of functions has no name.
        let ["fn", name] = *pair else { continue };
        let last = tokens[..end_of_item(tokens, at)].last().expect("it ends behind its first token");
        if is_name(name) && *last == "}" {
            let lines = text[start(pair[0])..start(last)].matches('\n').count() + 1;
            functions.push(Function { name: name.to_owned(), lines });
        }
    }
    functions
}

/// Where an item, statement or field that begins `at` has ended.
fn end_of_item(tokens: &[&str], mut at: usize) -> usize {
    let first = tokens[at..].iter().find(|token| !matches!(**token, "pub" | "(" | "crate" | ")")).copied();
    let field = !matches!(
        first.unwrap_or(""),
        "fn" | "mod" | "use" | "struct" | "enum" | "impl" | "const" | "static" | "type" | "trait" | "let" | "unsafe"
    );
    while at < tokens.len() {
        match tokens[at] {
            "{" => return end_of_group(tokens, at),
            "(" | "[" => at = end_of_group(tokens, at),
            ";" => return at + 1,
            "," if field => return at + 1,
            "}" => return at,
            _ => at += 1,
        }
    }
    at
}

/// Behind the bracket that closes the one `at`.
fn end_of_group(tokens: &[&str], at: usize) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    tokens.len()
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Names, `::` and single characters; no comments, strings, characters, numbers or lifetimes.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => comment(rest),
            '"' => string(rest),
            '\'' => character_or_lifetime(rest),
            'b' | 'c' | 'r' if let Some(length) = prefixed_string(rest) => length,
            _ if first.is_alphanumeric() || first == '_' => {
                let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                if !first.is_ascii_digit() {
                    tokens.push(&rest[..length]);
                }
                length
            }
            ':' if rest.starts_with("::") => {
                tokens.push("::");
                2
            }
            _ => {
                if !first.is_whitespace() {
                    tokens.push(&rest[..first.len_utf8()]);
                }
                first.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    tokens
}

fn comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        match text.as_bytes()[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            b'"' if !escaped => return at + 1,
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// `b"..."`, `c"..."`, `r"..."`, `br#"..."#` and the like.
fn prefixed_string(text: &str) -> Option<usize> {
    let start = text.find(|c: char| !matches!(c, 'b' | 'c' | 'r')).filter(|&start| start <= 2)?;
    if !text[..start].ends_with('r') {
        return text[start..].starts_with('"').then(|| start + string(&text[start..]));
    }
    let hashes = text[start..].bytes().take_while(|&byte| byte == b'#').count();
    text[start + hashes..].starts_with('"').then(|| {
        let end = format!("\"{}", "#".repeat(hashes));
        let inside = start + hashes + 1;
        text[inside..].find(&end).map_or(text.len(), |length| inside + length + end.len())
    })
}

fn character_or_lifetime(text: &str) -> usize {
    let mut characters = text.char_indices().skip(1);
    match (characters.next(), characters.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let behind = at + escaped.len_utf8();
            text[behind..].find('\'').map_or(text.len(), |length| behind + length + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1 + text[1..].find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len() - 1),
    }
}
