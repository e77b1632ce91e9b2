//! Circles among the files of a crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::modules::{Module, Modules};

type Arrows = BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>>;

/// Circles of files that name each other, arrow by arrow; a module and the modules below it may do so.
///
/// A module may name its children and they it; without it, its children must form no circle in turn.
pub fn circles(modules: &Modules) -> Vec<String> {
    let arrows = modules.arrows();
    let mut found = Vec::new();
    let mut open = vec![arrows.keys().cloned().collect::<BTreeSet<Module>>()];
    while let Some(among) = open.pop() {
        for mut circle in connected(&arrows, &among) {
            match head(&circle) {
                Some(head) => {
                    circle.remove(&head);
                    open.push(circle);
                }
                None => found.push(told(modules, &arrows, &circle)),
            }
        }
    }
    found
}

/// The module that all others are below.
fn head(circle: &BTreeSet<Module>) -> Option<Module> {
    let shortest = circle.iter().min_by_key(|module| module.len())?;
    circle.iter().all(|module| module.starts_with(shortest)).then(|| shortest.clone())
}

/// Sets of two files or more, each of which reaches all others of its set.
fn connected(arrows: &Arrows, among: &BTreeSet<Module>) -> Vec<BTreeSet<Module>> {
    let reach: BTreeMap<&Module, BTreeSet<&Module>> =
        among.iter().map(|module| (module, reached(arrows, among, module))).collect();
    let mut sets = BTreeSet::new();
    for module in among {
        let both = |other: &&&Module| reach[*other].contains(module);
        let set: BTreeSet<Module> = reach[module].iter().filter(both).map(|&other| other.clone()).collect();
        if set.len() > 1 {
            sets.insert(set);
        }
    }
    sets.into_iter().collect()
}

fn reached<'m>(arrows: &'m Arrows, among: &BTreeSet<Module>, from: &'m Module) -> BTreeSet<&'m Module> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        let next = arrows[module].keys().filter(|target| among.contains(*target));
        open.extend(next.filter(|target| reached.insert(*target)));
    }
    reached
}

fn told(modules: &Modules, arrows: &Arrows, circle: &BTreeSet<Module>) -> String {
    let name = |module: &Module| match module.is_empty() {
        true => modules.path(module).file_name().expect("a name").to_string_lossy().into_owned(),
        false => module.join("/") + ".rs",
    };
    let mut text = format!("{} files name each other in a circle:\n", circle.len());
    for module in circle {
        for (target, names) in arrows[module].iter().filter(|(target, _)| circle.contains(*target)) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            writeln!(text, "  {} -> {} ({})", name(module), name(target), names.join(", ")).expect("memory");
        }
    }
    text
}
