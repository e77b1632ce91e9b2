//! Works out to which scope each name belongs, by the rules of Jinja's compiler.
//!
//! Before a template runs, Jinja decides what each name holds when its scope is entered. A name that is first assigned
//! and then read does not see the variable of the rendering that has this name. The body of a loop begins each round
//! with the values that were assigned around the loop. A macro sees variables that are assigned after the macro.

use std::collections::HashSet;

use super::fault::{Fault, Result};
use super::syntax::{
    Arguments, Expression, ExpressionKind as Kind, For, Load, Macro, Name, Names, Scoped, Special, Statement,
    StatementKind, Target, Template,
};

/// The deepest syntax tree that is accepted. Functions that walk through a tree recurse once for each level.
const DEPTH_MAX: usize = 1000;

/// Fills in the names of all scopes of a template.
///
/// # Errors
/// Fails if the tree is too deep, or if a statement stands where Jinja does not accept it.
pub(super) fn resolve(template: &Template) -> Result<()> {
    check_depths(&template.body, 0)?;
    let mut symbols = Symbols::new(None);
    symbols.statements(&template.body);
    nested(&template.body, &symbols, Place::default())?;
    symbols.finish(&template.names);
    Ok(())
}

/// The names of one scope while they are collected.
#[derive(Clone)]
struct Symbols<'a> {
    parent: Option<&'a Symbols<'a>>,
    names: Vec<(Name, Load)>,
    stored: HashSet<Name>,
}

impl<'a> Symbols<'a> {
    fn new(parent: Option<&'a Symbols<'a>>) -> Self {
        Self { parent, names: Vec::new(), stored: HashSet::new() }
    }

    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|(known, _)| **known == *name)
    }

    fn outer_has(&self, name: &str) -> bool {
        self.parent.is_some_and(|parent| parent.has(name) || parent.outer_has(name))
    }

    fn define(&mut self, name: &Name, load: Load) {
        match self.names.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = load,
            None => self.names.push((name.clone(), load)),
        }
    }

    fn read(&mut self, name: &Name) {
        if !self.has(name) && !self.outer_has(name) {
            self.define(name, Load::Context);
        }
    }

    fn store(&mut self, name: &Name) {
        self.stored.insert(name.clone());
        if !self.has(name) {
            let load = if self.outer_has(name) { Load::Outer } else { Load::Missing };
            self.define(name, load);
        }
    }

    fn parameter(&mut self, name: &Name) {
        self.stored.insert(name.clone());
        self.define(name, Load::Parameter);
    }

    fn finish(self, names: &Names) {
        let _ = names.set(self.names);
    }

    /// Takes over the names that the branches of a condition use. A name that only some branches assign keeps, in the
    /// others, the value that it had before.
    fn join(&mut self, branches: Vec<Symbols<'a>>) {
        let mut stored: Vec<Name> = Vec::new();
        for branch in &branches {
            let new = branch.stored.iter().filter(|name| !self.stored.contains(*name));
            stored.extend(new.cloned());
        }
        for branch in branches {
            for (name, load) in &branch.names {
                self.define(name, *load);
            }
            self.stored.extend(branch.stored);
        }
        for name in stored {
            let load = if self.outer_has(&name) { Load::Outer } else { Load::Context };
            self.define(&name, load);
        }
    }

    fn branch(&self, statements: &[Statement]) -> Symbols<'a> {
        let mut branch = self.clone();
        branch.statements(statements);
        branch
    }

    fn statements(&mut self, statements: &[Statement]) {
        for statement in statements {
            self.statement(&statement.kind);
        }
    }

    /// Collects the names that a statement uses in its own scope. Scopes within the statement are handled on their own.
    fn statement(&mut self, statement: &StatementKind) {
        match statement {
            StatementKind::Text(_) | StatementKind::Break | StatementKind::Continue => {}
            StatementKind::Print(value) => self.expression(value),
            StatementKind::If(branches, otherwise) => {
                let Some(((test, body), others)) = branches.split_first() else { return };
                self.expression(test);
                let first = self.branch(body);
                let mut middle = self.clone();
                for (test, body) in others {
                    middle.expression(test);
                    let branches = vec![middle.branch(body), middle.clone(), middle.clone()];
                    middle.join(branches);
                }
                let last = self.branch(otherwise);
                self.join(vec![first, middle, last]);
            }
            StatementKind::For(node) => self.expression(&node.iterable),
            StatementKind::Set(target, value) => {
                self.expression(value);
                self.target(target);
            }
            StatementKind::SetBlock(node) => self.target(&node.target),
            StatementKind::With(node) => node.values.iter().for_each(|value| self.expression(value)),
            StatementKind::Macro(node) => self.store(&node.name),
            StatementKind::CallBlock(call, _) => self.expression(call),
            StatementKind::FilterBlock(node) => self.expression(&node.filter),
            StatementKind::Block(_) | StatementKind::Generation(_) => {}
        }
    }

    fn target(&mut self, target: &Target) {
        match target {
            Target::Name(name) => self.store(name),
            Target::Tuple(targets) => targets.iter().for_each(|target| self.target(target)),
            Target::Attribute(name, _) => self.read(name),
        }
    }

    fn target_as_parameter(&mut self, target: &Target) {
        match target {
            Target::Name(name) => self.parameter(name),
            Target::Tuple(targets) => targets.iter().for_each(|target| self.target_as_parameter(target)),
            Target::Attribute(name, _) => self.read(name),
        }
    }

    fn expression(&mut self, expression: &Expression) {
        reads(expression, &mut |name| self.read(name));
    }
}

/// Describes where statements stand.
#[derive(Clone, Copy, Default)]
struct Place {
    in_loop: bool,
}

/// Fills in the names of the scopes within `statements`.
fn nested(statements: &[Statement], symbols: &Symbols<'_>, place: Place) -> Result<()> {
    for statement in statements {
        nested_in(statement, symbols, place).map_err(|fault| fault.in_line(statement.line))?;
    }
    Ok(())
}

fn nested_in(statement: &Statement, symbols: &Symbols<'_>, place: Place) -> Result<()> {
    match &statement.kind {
        StatementKind::Break | StatementKind::Continue if !place.in_loop => {
            Err(Fault::new("{% break %} and {% continue %} must stand in a loop"))
        }
        StatementKind::Text(_)
        | StatementKind::Print(_)
        | StatementKind::Set(..)
        | StatementKind::Break
        | StatementKind::Continue => Ok(()),
        StatementKind::If(branches, otherwise) => {
            for (_, body) in branches {
                nested(body, symbols, place)?;
            }
            nested(otherwise, symbols, place)
        }
        StatementKind::For(node) => for_loop(node, symbols, place),
        StatementKind::SetBlock(node) => scope(&node.scoped, symbols, place, |_| {}, |_| {}),
        StatementKind::With(node) => {
            let parameters = |inner: &mut Symbols<'_>| {
                node.targets.iter().for_each(|target| inner.target_as_parameter(target));
            };
            scope(&node.scoped, symbols, place, parameters, |_| {})
        }
        StatementKind::Macro(node) | StatementKind::CallBlock(_, node) => macro_scope(node, symbols),
        StatementKind::FilterBlock(node) => {
            scope(&node.scoped, symbols, place, |_| {}, |inner| inner.expression(&node.filter))
        }
        // Functions of their own for Python.
        StatementKind::Block(node) => {
            let empty = Symbols::new(None);
            scope(&node.scoped, &empty, Place::default(), |_| {}, |_| {})
        }
        StatementKind::Generation(scoped) => scope(scoped, symbols, Place::default(), |_| {}, |_| {}),
    }
}

fn scope(
    scoped: &Scoped,
    symbols: &Symbols<'_>,
    place: Place,
    before: impl FnOnce(&mut Symbols<'_>),
    after: impl FnOnce(&mut Symbols<'_>),
) -> Result<()> {
    let mut inner = Symbols::new(Some(symbols));
    before(&mut inner);
    inner.statements(&scoped.body);
    after(&mut inner);
    nested(&scoped.body, &inner, place)?;
    inner.finish(&scoped.names);
    Ok(())
}

fn for_loop(node: &For, symbols: &Symbols<'_>, place: Place) -> Result<()> {
    let mut assigned = false;
    events(&node.body, &mut |name, event| assigned |= event == Event::Store && &**name == "loop");
    assigned |= names_loop(&node.target);
    if assigned {
        return Err(Fault::new("`loop` is assigned to within a loop"));
    }
    let has_loop = node.recursive || undeclared(&node.body, "loop");
    let _ = node.has_loop.set(has_loop);

    let mut inner = Symbols::new(Some(symbols));
    if has_loop {
        inner.parameter(&"loop".into());
    }
    inner.target_as_parameter(&node.target);
    inner.statements(&node.body);
    nested(&node.body, &inner, Place { in_loop: true })?;
    inner.finish(&node.names);

    if let Some(test) = &node.test {
        let mut inner = Symbols::new(Some(symbols));
        inner.target_as_parameter(&node.target);
        inner.expression(test);
        inner.finish(&node.test_names);
    }
    let mut inner = Symbols::new(Some(symbols));
    inner.statements(&node.otherwise);
    // What stands after `else` belongs to the loop around.
    let around = Place { in_loop: place.in_loop && !node.recursive };
    nested(&node.otherwise, &inner, around)?;
    inner.finish(&node.otherwise_names);
    Ok(())
}

fn names_loop(target: &Target) -> bool {
    match target {
        Target::Name(name) => &**name == "loop",
        Target::Tuple(targets) => targets.iter().any(names_loop),
        Target::Attribute(..) => false,
    }
}

fn macro_scope(node: &Macro, symbols: &Symbols<'_>) -> Result<()> {
    let named = |name: &str| node.arguments.iter().position(|argument| **argument == *name);
    let special = Special {
        caller: undeclared(&node.scoped.body, "caller"),
        kwargs: undeclared(&node.scoped.body, "kwargs") && named("kwargs").is_none(),
        varargs: undeclared(&node.scoped.body, "varargs") && named("varargs").is_none(),
    };
    let mut inner = Symbols::new(Some(symbols));
    node.arguments.iter().for_each(|name| inner.parameter(name));
    node.defaults.iter().for_each(|value| inner.expression(value));
    inner.statements(&node.scoped.body);
    if special.caller {
        match named("caller") {
            Some(index) if node.arguments.len() - index > node.defaults.len() => {
                return Err(Fault::new("the argument `caller` of a macro must have a default"));
            }
            Some(_) => {}
            None => inner.parameter(&"caller".into()),
        }
    }
    if special.kwargs {
        inner.parameter(&"kwargs".into());
    }
    if special.varargs {
        inner.parameter(&"varargs".into());
    }
    let _ = node.special.set(special);
    nested(&node.scoped.body, &inner, Place::default())?;
    inner.finish(&node.scoped.names);
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Load,
    Store,
}

/// Returns whether statements read `name` before they assign it, in the order in which Jinja looks at them.
fn undeclared(statements: &[Statement], name: &str) -> bool {
    let (mut found, mut ended) = (false, false);
    events(statements, &mut |other, event| {
        if **other == *name && !ended {
            match event {
                Event::Load => found = true,
                Event::Store => ended = true,
            }
        }
    });
    found
}

/// Calls `event` for each name that the statements and the scopes within them read or assign.
fn events(statements: &[Statement], event: &mut dyn FnMut(&Name, Event)) {
    for statement in statements {
        match &statement.kind {
            StatementKind::Text(_) | StatementKind::Break | StatementKind::Continue => {}
            StatementKind::Block(_) => {}
            StatementKind::Print(value) => reads(value, &mut |name| event(name, Event::Load)),
            StatementKind::If(branches, otherwise) => {
                for (test, body) in branches {
                    reads(test, &mut |name| event(name, Event::Load));
                    events(body, event);
                }
                events(otherwise, event);
            }
            StatementKind::For(node) => {
                target_events(&node.target, event);
                reads(&node.iterable, &mut |name| event(name, Event::Load));
                events(&node.body, event);
                events(&node.otherwise, event);
                node.test.iter().for_each(|test| reads(test, &mut |name| event(name, Event::Load)));
            }
            StatementKind::Set(target, value) => {
                target_events(target, event);
                reads(value, &mut |name| event(name, Event::Load));
            }
            StatementKind::SetBlock(node) => {
                target_events(&node.target, event);
                node.filter.iter().for_each(|filter| reads(filter, &mut |name| event(name, Event::Load)));
                events(&node.scoped.body, event);
            }
            StatementKind::With(node) => {
                node.targets.iter().for_each(|target| target_events(target, event));
                node.values.iter().for_each(|value| reads(value, &mut |name| event(name, Event::Load)));
                events(&node.scoped.body, event);
            }
            StatementKind::Macro(node) => macro_events(node, event),
            StatementKind::CallBlock(call, node) => {
                reads(call, &mut |name| event(name, Event::Load));
                macro_events(node, event);
            }
            StatementKind::FilterBlock(node) => {
                events(&node.scoped.body, event);
                reads(&node.filter, &mut |name| event(name, Event::Load));
            }
            StatementKind::Generation(scoped) => events(&scoped.body, event),
        }
    }
}

fn macro_events(node: &Macro, event: &mut dyn FnMut(&Name, Event)) {
    // An argument hides what is around.
    node.arguments.iter().for_each(|name| event(name, Event::Store));
    node.defaults.iter().for_each(|value| reads(value, &mut |name| event(name, Event::Load)));
    events(&node.scoped.body, event);
}

fn target_events(target: &Target, event: &mut dyn FnMut(&Name, Event)) {
    match target {
        Target::Name(name) => event(name, Event::Store),
        Target::Tuple(targets) => targets.iter().for_each(|target| target_events(target, event)),
        Target::Attribute(..) => {}
    }
}

/// Calls `read` for each name that an expression reads, in order.
fn reads(expression: &Expression, read: &mut dyn FnMut(&Name)) {
    if let Kind::Name(name) = &expression.kind {
        read(name);
    }
    children(expression, &mut |child| reads(child, read));
}

/// Calls `child` for each expression directly within an expression.
fn children<'e>(expression: &'e Expression, child: &mut dyn FnMut(&'e Expression)) {
    let arguments = |arguments: &'e Arguments, child: &mut dyn FnMut(&'e Expression)| {
        arguments.positional.iter().for_each(&mut *child);
        arguments.named.iter().for_each(|(_, value)| child(value));
        arguments.list.iter().chain(&arguments.dict).for_each(|value| child(value));
    };
    match &expression.kind {
        Kind::Constant(_) | Kind::Name(_) => {}
        Kind::List(items) | Kind::Tuple(items) | Kind::Concat(items) => items.iter().for_each(child),
        Kind::Dict(pairs) => pairs.iter().for_each(|(key, value)| {
            child(key);
            child(value);
        }),
        Kind::Unary(_, operand) | Kind::Attribute(operand, _) => child(operand),
        Kind::Binary(_, left, right) | Kind::And(left, right) | Kind::Or(left, right) | Kind::Item(left, right) => {
            child(left);
            child(right);
        }
        Kind::Compare(first, others) => {
            child(first);
            others.iter().for_each(|(_, other)| child(other));
        }
        Kind::Condition(test, value, otherwise) => {
            child(test);
            child(value);
            otherwise.iter().for_each(|value| child(value));
        }
        Kind::Slice(operand, parts) => {
            child(operand);
            parts.iter().flatten().for_each(|part| child(part));
        }
        Kind::Call(function, given) => {
            child(function);
            arguments(given, child);
        }
        Kind::Filter(operand, _, given) => {
            operand.iter().for_each(|operand| child(operand));
            arguments(given, child);
        }
        Kind::Test(operand, _, given) => {
            child(operand);
            arguments(given, child);
        }
    }
}

fn check_depth(expression: &Expression, depth: usize) -> Result<()> {
    if depth > DEPTH_MAX {
        let problem = format!("an expression is nested more than {DEPTH_MAX} deep");
        return Err(Fault::at(problem, expression.line));
    }
    let mut checked = Ok(());
    children(expression, &mut |child| {
        if checked.is_ok() {
            checked = check_depth(child, depth + 1);
        }
    });
    checked
}

fn check_depths(statements: &[Statement], depth: usize) -> Result<()> {
    for statement in statements {
        let scoped = |scoped: &Scoped| check_depths(&scoped.body, depth + 1);
        let value = |value: &Expression| check_depth(value, depth + 1);
        match &statement.kind {
            StatementKind::Text(_) | StatementKind::Break | StatementKind::Continue => {}
            StatementKind::Print(expression) | StatementKind::Set(_, expression) => value(expression)?,
            StatementKind::If(branches, otherwise) => {
                for (test, body) in branches {
                    value(test)?;
                    check_depths(body, depth + 1)?;
                }
                check_depths(otherwise, depth + 1)?;
            }
            StatementKind::For(node) => {
                value(&node.iterable)?;
                node.test.iter().try_for_each(value)?;
                check_depths(&node.body, depth + 1)?;
                check_depths(&node.otherwise, depth + 1)?;
            }
            StatementKind::SetBlock(node) => {
                node.filter.iter().try_for_each(value)?;
                scoped(&node.scoped)?;
            }
            StatementKind::With(node) => {
                node.values.iter().try_for_each(value)?;
                scoped(&node.scoped)?;
            }
            StatementKind::Macro(node) => {
                node.defaults.iter().try_for_each(value)?;
                scoped(&node.scoped)?;
            }
            StatementKind::CallBlock(call, node) => {
                value(call)?;
                node.defaults.iter().try_for_each(value)?;
                scoped(&node.scoped)?;
            }
            StatementKind::FilterBlock(node) => {
                value(&node.filter)?;
                scoped(&node.scoped)?;
            }
            StatementKind::Block(node) => scoped(&node.scoped)?,
            StatementKind::Generation(node) => scoped(node)?,
        }
    }
    Ok(())
}
