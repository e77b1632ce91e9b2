//! The files of a crate, and the files that each of them names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::source::{Named, Source};

/// Longest chain of names that are aliases of other names.
const DETOURS_MAX: usize = 16;

/// A module by its path from the crate's root, which is empty.
pub type Module = Vec<String>;

/// The files of a crate's `src`, without those of tests.
pub struct Modules {
    files: BTreeMap<Module, (PathBuf, Source)>,
}

impl Modules {
    pub fn read(src: &Path) -> Self {
        let mut files = BTreeMap::new();
        read_folder(src, &mut Vec::new(), &mut files);
        let tests: Vec<Module> = files
            .iter()
            .flat_map(|(module, (_, source)): (&Module, &(PathBuf, Source))| {
                source.test_modules.iter().map(move |test| [module.as_slice(), std::slice::from_ref(test)].concat())
            })
            .collect();
        files.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        Self { files }
    }

    pub fn path(&self, module: &[String]) -> &Path {
        &self.files[module].0
    }

    pub fn sources(&self) -> impl Iterator<Item = (&Path, &Source)> {
        self.files.values().map(|(path, source)| (path.as_path(), source))
    }

    /// For each file the files that it names, with the names. What a file only passes on to others is theirs.
    pub fn arrows(&self) -> BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>> {
        let mut arrows = BTreeMap::<_, BTreeMap<Module, BTreeSet<String>>>::new();
        for (module, (_, source)) in &self.files {
            let named = arrows.entry(module.clone()).or_default();
            let used = source.uses.iter().filter(|used| !used.exported || source.words.contains_key(&used.name));
            for path in used.map(|used| &used.path).chain(&source.paths) {
                if let Some(target) = self.resolve(module, path, 0).filter(|target| target != module) {
                    let name = path.segments.last().cloned().unwrap_or_default();
                    named.entry(target).or_default().insert(name);
                }
            }
        }
        arrows
    }

    /// The file in which what `path` names in `module` stands; none where it is of another crate.
    fn resolve(&self, module: &[String], path: &Named, detours: usize) -> Option<Module> {
        let mut here = [module, &path.within].concat();
        let mut rest = path.segments.as_slice();
        match rest.first()?.as_str() {
            "crate" => {
                here.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|segment| segment == "super") {
                    here.pop();
                    rest = &rest[1..];
                }
            }
            first => {
                let child = [here.as_slice(), &[first.to_owned()]].concat();
                if !self.files.contains_key(&child) {
                    let target = self.elsewhere(module, first, detours)?;
                    return Some(self.descend(target, &rest[1..], detours));
                }
            }
        }
        Some(self.descend(here, rest, detours))
    }

    /// Follows `rest` from `module` as far as there are files.
    fn descend(&self, mut module: Module, mut rest: &[String], detours: usize) -> Module {
        while let Some(first) = rest.first() {
            let child = [module.as_slice(), std::slice::from_ref(first)].concat();
            if self.files.contains_key(&child) {
                module = child;
            } else if let Some(target) = self.elsewhere(&module, first, detours) {
                module = target;
            } else {
                break;
            }
            rest = &rest[1..];
        }
        while !self.files.contains_key(&module) {
            module.pop();
        }
        module
    }

    /// The file in which `name` stands that `module` has from elsewhere; none if it is its own, or another crate's.
    fn elsewhere(&self, module: &[String], name: &str, detours: usize) -> Option<Module> {
        let (_, source) = self.files.get(module)?;
        if detours == DETOURS_MAX || source.items.contains(name) {
            return None;
        }
        // `use half;` in the module that it names would lead back to itself.
        let leads_on = |path: &Named| path.segments.len() > 1 || path.segments.first().is_some_and(|only| only != name);
        let mut all = source.uses.iter().filter(|used| leads_on(&used.path));
        if let Some(used) = all.find(|used| used.name == name) {
            return self.resolve(module, &used.path, detours + 1);
        }
        let everything = source.uses.iter().filter(|used| used.name == "*");
        // Aliases are not followed from here: two of them in one file could lead to each other for ever.
        let mut targets = everything.filter_map(|used| self.resolve(module, &used.path, DETOURS_MAX));
        targets.find(|target| target != module && self.files[target].1.items.contains(name))
    }
}

fn read_folder(folder: &Path, module: &mut Module, files: &mut BTreeMap<Module, (PathBuf, Source)>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry").path();
        let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            module.push(stem);
            read_folder(&path, module, files);
            module.pop();
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let root = module.is_empty() && matches!(stem.as_str(), "lib" | "main");
            let name = if root || stem == "mod" { module.clone() } else { [module.as_slice(), &[stem]].concat() };
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            files.insert(name, (path, Source::read(&text)));
        }
    }
}
