//! The house in order: which file and which crate names which, read from the sources themselves. Methods that one type
//! has in several files are not seen: nothing names them by their file.

mod circles;
mod modules;
mod source;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::repository;
use circles::circles;
use modules::Modules;
use source::Source;

#[test]
fn no_files_name_each_other_in_a_circle() {
    let told: Vec<String> = crates()
        .into_iter()
        .flat_map(|folder| {
            circles(&Modules::read(&folder.join("src"))).into_iter().map(move |circle| (folder.clone(), circle))
        })
        .map(|(folder, circle)| format!("{}: {circle}", name(&folder)))
        .collect();
    assert!(told.is_empty(), "a module and its children may name each other, but here\n\n{}", told.join("\n"));
}

#[test]
fn no_two_public_types_share_a_name() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for folder in crates() {
        for (path, source) in Modules::read(&folder.join("src")).sources() {
            for public_type in &source.public_types {
                places.entry(public_type.clone()).or_default().push(path.display().to_string());
            }
        }
    }
    assert!(places.contains_key("BlockManager") && places.contains_key("Plan"), "sources are read");
    places.retain(|_, places| places.len() > 1);
    assert!(places.is_empty(), "one name, one public type: {places:#?}");
}

#[test]
fn crates_name_only_those_below_them() {
    let picture = picture();
    let place = |crate_name: &str| {
        let place = picture.iter().position(|(name, _)| name == crate_name);
        place.unwrap_or_else(|| panic!("ARCHITECTURE.md does not show {crate_name}"))
    };
    for folder in crates() {
        let above = place(&name(&folder));
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        // Dependencies of tests too.
        for line in manifest.lines().filter(|line| line.starts_with("interbed-")) {
            let dependency = line.split(['.', ' ', '=']).next().expect("a name");
            if dependency == name(&folder) {
                // A crate may name itself, for features that its tests need.
                continue;
            }
            let below = place(dependency);
            let is_below = below > above && picture[below].1 > picture[above].1;
            assert!(is_below, "{} names {dependency}, which is not below it in ARCHITECTURE.md", name(&folder));
        }
    }
}

/// Longest line, in characters.
const LINE_MAX: usize = 120;

#[test]
fn lines_are_not_too_long() {
    let mut long = Vec::new();
    for path in files(&["rs", "toml", "md"]) {
        let text = fs::read_to_string(&path).expect("text");
        let mut verbatim = false;
        for (number, line) in (1..).zip(text.lines()) {
            verbatim ^= line.trim_start().starts_with("```");
            // Output of commands, rows of tables and raw strings cannot be broken.
            let whole = verbatim || line.starts_with('|') || line.contains("r\"") || line.contains("r#\"");
            if line.chars().count() > LINE_MAX && !whole {
                long.push(format!("{}:{number}", path.display()));
            }
        }
    }
    assert!(long.is_empty(), "longer than {LINE_MAX} characters:\n{}", long.join("\n"));
}

/// Most lines of a function, from its `fn` to its closing brace, without those of tests.
const FUNCTION_LINES_MAX: usize = 80;

/// Longer functions: the file in `crates`, the name, and why they may be.
const LONG_FUNCTIONS: &[(&str, &str, &str)] =
    &[("interbed-model/src/jinja/expressions.rs", "value_of", "an arm for each kind of expression")];

/// Words that name a family of models.
const FAMILY_WORDS: [&str; 21] = [
    "llama", "mistral", "mixtral", "qwen", "granite", "minicpm", "olmo", "glm", "minimax", "ernie", "smollm",
    "seed_oss", "exaone", "hunyuan", "gpt_oss", "gpt-oss", "phi3", "gemma", "arcee", "lfm2", "nemotron",
];

/// Files outside `families/` that may have some of these words, and why.
const FAMILIES_NAMED: &[(&str, &str)] = &[
    ("interbed-model/src/gguf/pre_tokenizer.rs", "pre-tokenizers are named after models"),
    ("interbed-model/src/tokenizer/pieces.rs", "expressions are named after models"),
    ("interbed-model/src/gguf/tokenizer.rs", "the format calls SentencePiece by a model's name"),
    ("interbed-model/src/blueprint/rope.rs", "a scaling is named after a model"),
    ("interbed-model/src/rope.rs", "a scaling is named after a model"),
    ("interbed-model/src/gguf/describe.rs", "a scaling is named after a model"),
];

#[test]
fn no_line_outside_their_folder_names_a_family() {
    let parent = repository().join("crates");
    let mut named = BTreeMap::new();
    for crate_name in ["interbed-model", "interbed-weights"] {
        for file in files(&["rs"]) {
            let Ok(path) = file.strip_prefix(parent.join(crate_name)) else { continue };
            let place = format!("{crate_name}/{}", path.display());
            let is_of_families = path.starts_with("src/families") || path == Path::new("src/families.rs");
            if !path.starts_with("src") || is_of_families || place.ends_with("tests.rs") || place.contains("/tests/") {
                continue;
            }
            let text = fs::read_to_string(&file).expect("a source");
            // Modules of tests are last in a file, and the program llama.cpp is no family.
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_lowercase();
            let text = text.replace("llama.cpp", "").replace("llama_cpp", "");
            let lines = text.lines().filter(|line| FAMILY_WORDS.iter().any(|word| line.contains(word)));
            let lines: Vec<String> = lines.map(str::to_owned).collect();
            if !lines.is_empty() {
                named.insert(place, lines);
            }
        }
    }
    for (file, why) in FAMILIES_NAMED {
        assert!(named.remove(*file).is_some(), "{file} names no family: strike it from FAMILIES_NAMED ({why})");
    }
    assert!(named.is_empty(), "a family has its place in families/: {named:#?}");
}

#[test]
fn functions_fit_on_a_page() {
    let mut long = BTreeMap::new();
    let (mut functions, parent) = (0, repository().join("crates"));
    for folder in crates() {
        for (path, source) in Modules::read(&folder.join("src")).sources() {
            functions += source.functions.len();
            let file = path.strip_prefix(&parent).expect("a file of a crate").display().to_string();
            let too_long = source.functions.iter().filter(|function| function.lines > FUNCTION_LINES_MAX);
            long.extend(too_long.map(|function| ((file.clone(), function.name.clone()), function.lines)));
        }
    }
    assert!(functions > 1_000, "{functions} functions were read");
    let known: Vec<_> = LONG_FUNCTIONS.iter().map(|&(file, name, _)| (file.to_owned(), name.to_owned())).collect();
    let new: Vec<String> = long
        .iter()
        .filter(|(function, _)| !known.contains(function))
        .map(|((file, name), lines)| format!("{file}: `{name}` has {lines} lines"))
        .collect();
    assert!(new.is_empty(), "more than {FUNCTION_LINES_MAX} lines; give a step a name:\n{}", new.join("\n"));
    for function in known {
        assert!(long.contains_key(&function), "{function:?} is no longer too long: strike it from LONG_FUNCTIONS");
    }
}

#[test]
fn functions_are_measured_from_their_name_to_their_brace() {
    let lines = |text: &str| -> Vec<(String, usize)> {
        Source::read(text).functions.into_iter().map(|function| (function.name, function.lines)).collect()
    };
    let check = |text: &str, expected: &[(&str, usize)]| {
        let expected: Vec<_> = expected.iter().map(|&(name, lines)| (name.to_owned(), lines)).collect();
        assert_eq!(lines(text), expected, "{text}");
    };
    check("fn a() {}", &[("a", 1)]);
    check("/// Lines\n/// before.\n#[inline]\npub const fn a(\n) -> [u8; 2] {\n}\n\n", &[("a", 3)]);
    check("fn a() {\n  // }\n  \"}\n\";\n  '}'\n}", &[("a", 6)]);
    check("impl A { fn a() {\n fn b() {\n} if c {\n} } }", &[("a", 4), ("b", 2)]);
    // Without a body, without a name, or in tests.
    check("trait T { fn a(&self) -> [u8; 1];\n\n}\ntype F = fn(u8) -> u8;", &[]);
    check("#[cfg(test)] mod tests {\n fn a() {\n} }\n#[cfg(test)] fn b() {\n}", &[]);
}

#[test]
fn links_lead_to_pages_that_are_there() {
    let mut links = 0;
    for path in files(&["md"]) {
        let text = fs::read_to_string(&path).expect("text");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(link, _)| link)) {
            let page = link.split('#').next().unwrap_or_default();
            if page.is_empty() || page.contains("://") || page.contains(' ') {
                continue;
            }
            links += 1;
            assert!(path.parent().expect("a folder").join(page).exists(), "{}: {link}", path.display());
        }
    }
    assert!(links > 20, "{links} links were read");
}

/// Most lines of ARCHITECTURE.md, which is read in one sitting.
const MAP_LINES_MAX: usize = 300;

#[test]
fn each_crate_has_a_page_that_names_files_which_are_there() {
    let map = fs::read_to_string(repository().join("ARCHITECTURE.md")).expect("the map");
    assert!(map.lines().count() <= MAP_LINES_MAX, "ARCHITECTURE.md has more than {MAP_LINES_MAX} lines");
    let sources = files(&["rs"]);
    let mut named = 0;
    for folder in crates() {
        let page = format!("docs/internals/{}.md", name(&folder));
        assert!(map.contains(&page), "ARCHITECTURE.md should name {page}");
        let text = fs::read_to_string(repository().join(&page)).unwrap_or_else(|_| panic!("{page} is missing"));
        // What stands between two backticks.
        for file in text.split('`').skip(1).step_by(2).filter(|code| code.ends_with(".rs")) {
            assert!(sources.iter().any(|source| source.ends_with(file)), "{page} names {file}, which is not there");
            named += 1;
        }
    }
    assert!(named > 100, "{named} files were named");
}

/// All files of these kinds, but for fixtures and what is built.
fn files(endings: &[&str]) -> Vec<PathBuf> {
    let mut folders = vec![repository().to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if path.is_dir() {
                let passed = name.starts_with('.') || ["target", "fixtures", "peers"].contains(&name.as_str());
                folders.extend((!passed).then_some(path));
            } else if path.extension().is_some_and(|ending| endings.iter().any(|known| ending == *known)) {
                files.push(path);
            }
        }
    }
    files
}

/// The crates of ARCHITECTURE.md's picture from top to bottom, each with how far it is indented.
fn picture() -> Vec<(String, usize)> {
    let page = fs::read_to_string(repository().join("ARCHITECTURE.md")).expect("the page");
    let start = page.find("```text\ninterbed-lab ").expect("the picture of the crates") + "```text\n".len();
    let lines = page[start..].lines().take_while(|line| !line.starts_with("```"));
    lines
        .map(|line| {
            let name = line.split_whitespace().next().expect("each line names a crate");
            (name.to_owned(), line.len() - line.trim_start().len())
        })
        .collect()
}

fn crates() -> Vec<PathBuf> {
    let entries = fs::read_dir(repository().join("crates")).expect("the crates");
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    folders.retain(|folder| folder.join("Cargo.toml").is_file());
    folders.sort();
    assert!(folders.len() >= 10, "{folders:?}");
    folders
}

fn name(folder: &Path) -> String {
    folder.file_name().expect("a crate's folder").to_string_lossy().into_owned()
}

/// The circles of a crate of these files.
fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    circles(&Modules::read(folder.path()))
}

#[test]
fn circles_are_found_through_whatever_names_a_file() {
    let lib = ("lib.rs", "mod a; mod b; mod c;\npub use b::Bee;\npub(crate) use c::{sea, Sea as Ocean};");
    let check = |a: &str, b: &str, c: &str, arrows: &[&str]| {
        let found = circles_of(&[lib, ("a.rs", a), ("b.rs", b), ("c.rs", c)]);
        assert_eq!(found.len(), usize::from(!arrows.is_empty()), "{found:?}");
        assert!(arrows.iter().all(|arrow| found[0].contains(arrow)), "{arrows:?} in {found:?}");
    };
    let (a, b, c) = ("pub struct Eh;", "pub struct Bee;", "pub struct Sea; pub fn sea() {}");
    check(a, b, c, &[]);
    check(
        "use crate::Bee; pub struct Eh;",
        "use super::a::Eh; pub struct Bee;",
        c,
        &["a.rs -> b.rs (Bee)", "b.rs -> a.rs"],
    );
    check("use crate::{Bee}; pub struct Eh;", "fn f() { crate::a::Eh; } pub struct Bee;", c, &["b.rs -> a.rs (Eh)"]);
    check(
        "use crate::Bee;",
        "use crate::c; pub struct Bee;",
        "use crate::a; pub struct Sea; pub fn sea() {}",
        &["c.rs -> a.rs"],
    );
    check("use crate::Ocean;", b, "use crate::a::*; pub struct Sea; pub fn sea() {}", &["a.rs -> c.rs (Ocean)"]);
    // Names in tests, comments and strings do not count.
    check("use crate::Bee;", "// crate::a::Eh\npub struct Bee; #[cfg(test)] mod tests { use crate::a; }", c, &[]);
    check(
        "use crate::Bee;",
        "pub struct Bee; const T: &str = \"crate::a\"; fn f(_: &'static str) -> char { '\"' }",
        c,
        &[],
    );
}

#[test]
fn children_name_their_parent_but_not_each_other_in_a_circle() {
    let parent = ("a.rs", "mod one; mod two; use one::One; pub struct Eh;");
    let check = |one: &str, two: &str, count: usize| {
        let found = circles_of(&[("lib.rs", "mod a;"), parent, ("a/one.rs", one), ("a/two.rs", two)]);
        assert_eq!(found.len(), count, "{found:?}");
    };
    check("use super::Eh; pub struct One;", "use super::one::One;", 0);
    check("use super::{Eh, two::Two}; pub struct One;", "use super::one::One; pub struct Two;", 1);
    // A name that a parent imports from another child belongs to that child.
    check("use super::two::Two; pub struct One;", "use super::One; pub struct Two;", 1);
    let stranger = [
        ("lib.rs", "mod a; mod b;"),
        parent,
        ("b.rs", "use crate::a::Eh;"),
        ("a/two.rs", ""),
        ("a/one.rs", "use crate::b; pub struct One;"),
    ];
    assert_eq!(circles_of(&stranger).len(), 1);
}
