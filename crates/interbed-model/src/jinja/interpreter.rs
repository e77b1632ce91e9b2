//! Runs a template: statements, scopes, loops and macros. The code for expressions is in `expressions.rs`.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use super::allowance;
use super::arguments::Given;
use super::fault::{Fault, Result};
use super::functions;
use super::iteration::items;
use super::operators::is_true;
use super::printing;
use super::syntax::{For, Load, Macro, Name, Names, Scoped, Statement, StatementKind, Target, Template, With};
use super::value::{Loop, MacroValue, Object, Scope, Value};

/// The most macros, calls and recursions of loops that may run within each other.
const RECURSION_MAX: usize = 200;
/// The most expressions and statements that may be evaluated within each other, through all macros.
const DEPTH_MAX: usize = 20_000;

/// The state of one rendering of a template.
pub(crate) struct Machine<'r> {
    /// The variables with which the template is rendered, by name.
    context: HashMap<Name, Value>,
    /// The variables that the template assigned outside of all scopes. Blocks can read them.
    exports: HashMap<Name, Value>,
    fuel: u64,
    recursion: usize,
    depth: usize,
    date: &'r dyn Fn(&str) -> Result<String>,
    /// The scopes that macros refer to. Such a scope may refer to the macros in turn, so it is emptied when the machine
    /// is dropped.
    held: Vec<Rc<Scope>>,
}

/// Says how a list of statements ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Normal,
    Break,
    Continue,
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        for scope in &self.held {
            let slots = std::mem::take(&mut *scope.slots.borrow_mut());
            drop(slots);
        }
    }
}

impl<'r> Machine<'r> {
    /// Prepares a rendering with the variables `context`, of at most `fuel` steps. The function `date` formats the
    /// present date.
    pub(crate) fn new(context: HashMap<Name, Value>, fuel: u64, date: &'r dyn Fn(&str) -> Result<String>) -> Self {
        Self { context, exports: HashMap::new(), fuel, recursion: 0, depth: 0, date, held: Vec::new() }
    }

    /// Runs a template and returns the text that the template writes.
    pub(super) fn run(&mut self, template: &Template) -> Result<String> {
        let top = self.scope(&template.names, None, true);
        let mut output = String::new();
        self.statements(&template.body, &top, &mut output)?;
        Ok(output)
    }

    pub(super) fn look_up(&self, name: &str) -> Option<Value> {
        let found = self.exports.get(name).or_else(|| self.context.get(name));
        found.cloned().or_else(|| functions::global(name))
    }

    pub(super) fn call_function(&self, name: &str, given: Given) -> Result<Value> {
        functions::call(name, given, self.date)
    }

    fn scope(&self, names: &Names, parent: Option<&Rc<Scope>>, is_top: bool) -> Rc<Scope> {
        let names = names.get().map_or(&[][..], Vec::as_slice);
        let value = |(name, load): &(Name, Load)| {
            let value = match load {
                Load::Missing | Load::Parameter => None,
                Load::Outer => parent.and_then(|parent| parent.find(name)).flatten(),
                Load::Context => self.look_up(name),
            };
            (name.clone(), value)
        };
        let slots = RefCell::new(names.iter().map(value).collect());
        Rc::new(Scope { slots, parent: parent.cloned(), is_top })
    }

    fn inner(&self, names: &Names, parent: &Rc<Scope>) -> Rc<Scope> {
        self.scope(names, Some(parent), false)
    }

    /// Counts one step, and fails if no fuel is left or the time is over.
    pub(super) fn step(&mut self) -> Result<()> {
        self.fuel = self.fuel.checked_sub(1).ok_or_else(Fault::out_of_fuel)?;
        if self.fuel.is_multiple_of(64) {
            allowance::in_time()?;
        }
        Ok(())
    }

    /// Runs `work` one level deeper, and fails if the nesting would be too deep.
    pub(super) fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= DEPTH_MAX {
            return Err(Fault::new("the recursion limit is exceeded"));
        }
        self.depth += 1;
        let result = work(self);
        self.depth -= 1;
        result
    }

    fn recurse<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.recursion >= RECURSION_MAX {
            return Err(Fault::new("the recursion limit is exceeded"));
        }
        self.recursion += 1;
        let result = work(self);
        self.recursion -= 1;
        result
    }

    fn statements(&mut self, body: &[Statement], scope: &Rc<Scope>, output: &mut String) -> Result<Flow> {
        for statement in body {
            let flow = self.deeper(|machine| machine.statement(statement, scope, output));
            match flow.map_err(|fault| fault.in_line(statement.line))? {
                Flow::Normal => {}
                other => return Ok(other),
            }
        }
        Ok(Flow::Normal)
    }

    fn statement(&mut self, statement: &Statement, scope: &Rc<Scope>, output: &mut String) -> Result<Flow> {
        self.step()?;
        match &statement.kind {
            StatementKind::Text(text) => {
                allowance::write(text.len())?;
                output.push_str(text);
            }
            StatementKind::Print(value) => {
                let value = self.evaluate(value, scope)?;
                let before = output.len();
                printing::print(&value, output)?;
                allowance::write(output.len() - before)?;
            }
            StatementKind::If(branches, otherwise) => {
                for (test, body) in branches {
                    if is_true(&self.evaluate(test, scope)?) {
                        return self.statements(body, scope, output);
                    }
                }
                return self.statements(otherwise, scope, output);
            }
            StatementKind::For(node) => {
                let iterable = self.evaluate(&node.iterable, scope)?;
                return self.for_loop(node, scope, &iterable, 0, output);
            }
            StatementKind::Set(target, value) => {
                let value = self.evaluate(value, scope)?;
                self.assign(target, value, scope)?;
            }
            StatementKind::SetBlock(node) => {
                let inner = self.inner(&node.scoped.names, scope);
                let mut text = String::new();
                let flow = self.statements(&node.scoped.body, &inner, &mut text)?;
                if flow != Flow::Normal {
                    return Ok(flow);
                }
                let mut value = Value::text(text)?;
                if let Some(filter) = &node.filter {
                    value = self.filter_chain(filter, Some(value), &inner)?;
                }
                self.assign(&node.target, value, scope)?;
            }
            StatementKind::With(node) => return self.with(node, scope, output),
            StatementKind::Macro(node) => {
                let value = self.macro_value(node, scope);
                self.assign_name(&node.name, value, scope);
            }
            StatementKind::CallBlock(call, node) => {
                let caller = self.macro_value(node, scope);
                let value = self.call_expression(call, scope, Some(caller))?;
                let before = output.len();
                printing::print(&value, output)?;
                allowance::write(output.len() - before)?;
            }
            StatementKind::FilterBlock(node) => {
                let inner = self.inner(&node.scoped.names, scope);
                let mut text = String::new();
                let flow = self.statements(&node.scoped.body, &inner, &mut text)?;
                if flow != Flow::Normal {
                    return Ok(flow);
                }
                let text = Value::text(text)?;
                let value = self.filter_chain(&node.filter, Some(text), &inner)?;
                if !matches!(value, Value::Text(_) | Value::Markup(_)) {
                    return Err(Fault::new(format!("a filter block makes a {} of its text", value.type_name())));
                }
                let before = output.len();
                printing::print(&value, output)?;
                allowance::write(output.len() - before)?;
            }
            StatementKind::Block(node) => {
                let inner = self.scope(&node.scoped.names, None, false);
                return self.statements(&node.scoped.body, &inner, output);
            }
            StatementKind::Generation(node) => return self.scoped(node, scope, output),
            StatementKind::Break => return Ok(Flow::Break),
            StatementKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Normal)
    }

    fn scoped(&mut self, node: &Scoped, scope: &Rc<Scope>, output: &mut String) -> Result<Flow> {
        let inner = self.inner(&node.names, scope);
        self.statements(&node.body, &inner, output)
    }

    fn with(&mut self, node: &With, scope: &Rc<Scope>, output: &mut String) -> Result<Flow> {
        let inner = self.inner(&node.scoped.names, scope);
        for (target, value) in node.targets.iter().zip(&node.values) {
            // All values belong to the scope around.
            let value = self.evaluate(value, scope)?;
            self.assign(target, value, &inner)?;
        }
        self.statements(&node.scoped.body, &inner, output)
    }

    fn assign_name(&mut self, name: &Name, value: Value, scope: &Rc<Scope>) {
        if scope.is_top {
            self.exports.insert(name.clone(), value.clone());
        }
        scope.set(name, value);
    }

    fn assign(&mut self, target: &Target, value: Value, scope: &Rc<Scope>) -> Result<()> {
        match target {
            Target::Name(name) => self.assign_name(name, value, scope),
            Target::Tuple(targets) => {
                let mut values = items(&value)?;
                if values.len() != targets.len() {
                    let (expected, got) = (targets.len(), values.len());
                    return Err(Fault::new(format!("{got} values cannot be unpacked into {expected} names")));
                }
                for (target, value) in targets.iter().zip(values.drain(..)) {
                    self.assign(target, value, scope)?;
                }
            }
            Target::Attribute(name, attribute) => {
                let namespace = self.name(name, scope)?;
                let stored = match &namespace {
                    Value::Object(object) => match &**object {
                        Object::Namespace(values) => Some(values),
                        _ => None,
                    },
                    _ => None,
                };
                let Some(values) = stored else {
                    return Err(Fault::new(format!("'{name}' is no namespace, and so has no attributes to assign")));
                };
                value.storable()?;
                let mut values = values.borrow_mut();
                match values.iter_mut().find(|(known, _)| known == attribute) {
                    Some((_, slot)) => *slot = value,
                    None => values.push((attribute.clone(), value)),
                }
            }
        }
        Ok(())
    }

    fn macro_value(&mut self, node: &Arc<Macro>, scope: &Rc<Scope>) -> Value {
        if !self.held.last().is_some_and(|last| Rc::ptr_eq(last, scope)) {
            self.held.push(scope.clone());
        }
        Value::object(Object::Macro(MacroValue { node: node.clone(), scope: scope.clone() }))
    }

    fn for_loop(
        &mut self,
        node: &Arc<For>,
        outer: &Rc<Scope>,
        iterable: &Value,
        depth: usize,
        output: &mut String,
    ) -> Result<Flow> {
        let source = RefCell::new(items(iterable)?.into_iter());
        let test_scope = node.test.as_ref().map(|_| self.inner(&node.test_names, outer));
        let state = Value::object(Object::Loop(Box::new(Loop {
            node: node.clone(),
            outer: outer.clone(),
            source,
            test_scope,
            ahead: RefCell::new(VecDeque::new()),
            index: Cell::new(0),
            current: RefCell::new(None),
            previous: RefCell::new(None),
            changed: RefCell::new(None),
            depth,
        })));
        let Value::Object(object) = &state else { return Ok(Flow::Normal) };
        let Object::Loop(running) = &**object else { return Ok(Flow::Normal) };
        let has_loop = node.has_loop.get().copied().unwrap_or(false);
        let loop_name: Name = "loop".into();
        let mut is_first = true;
        let mut completed = false;
        while let Some(item) = self.next_item(running)? {
            if !is_first {
                running.index.set(running.index.get() + 1);
            }
            is_first = false;
            if has_loop {
                let before = running.current.replace(Some(item.clone()));
                running.previous.replace(before);
            }
            let inner = self.inner(&node.names, outer);
            self.assign(&node.target, item, &inner)?;
            if has_loop {
                inner.set(&loop_name, state.clone());
            }
            match self.statements(&node.body, &inner, output)? {
                // Jinja notes only rounds that ran to their end.
                Flow::Normal => completed = true,
                Flow::Continue => {}
                Flow::Break => break,
            }
        }
        if !completed && !node.otherwise.is_empty() {
            let inner = self.inner(&node.otherwise_names, outer);
            return self.statements(&node.otherwise, &inner, output);
        }
        Ok(Flow::Normal)
    }

    fn next_item(&mut self, running: &Loop) -> Result<Option<Value>> {
        if let Some(item) = running.ahead.borrow_mut().pop_front() {
            return Ok(Some(item));
        }
        self.pull(running)
    }

    /// Returns the next item of the loop's source for which the loop's condition holds, or `None` after the last.
    fn pull(&mut self, running: &Loop) -> Result<Option<Value>> {
        loop {
            let next = running.source.borrow_mut().next();
            let Some(item) = next else { return Ok(None) };
            let (Some(test), Some(scope)) = (&running.node.test, &running.test_scope) else { return Ok(Some(item)) };
            self.assign(&running.node.target, item.clone(), scope)?;
            if is_true(&self.evaluate(test, scope)?) {
                return packed(&running.node.target, item).map(Some);
            }
        }
    }

    /// Reads as many items ahead as the attribute `attribute` of `loop` needs.
    pub(super) fn look_ahead(&mut self, value: &Value, attribute: &str) -> Result<()> {
        let Value::Object(object) = value else { return Ok(()) };
        let Object::Loop(running) = &**object else { return Ok(()) };
        let wanted = match attribute {
            "last" | "nextitem" => 1,
            "length" | "revindex" | "revindex0" => usize::MAX,
            _ => 0,
        };
        while running.ahead.borrow().len() < wanted {
            let Some(item) = self.pull(running)? else { break };
            running.ahead.borrow_mut().push_back(item);
        }
        Ok(())
    }

    /// Calls a macro with the given arguments and returns the text that the macro writes.
    pub(super) fn call_macro(&mut self, value: &MacroValue, mut given: Given) -> Result<Value> {
        let node = &value.node;
        let special = node.special.get().copied().unwrap_or_default();
        let count = node.arguments.len();
        let explicit_caller = node.arguments.iter().any(|name| &**name == "caller");
        let rest = given.positional.split_off(given.positional.len().min(count));
        let mut values: Vec<Option<Value>> = given.positional.into_iter().map(Some).collect();
        let mut found_caller = values.len() == count && explicit_caller;
        let mut take = |name: &str| {
            let place = given.named.iter().position(|(known, _)| **known == *name)?;
            Some(given.named.remove(place).1)
        };
        for name in &node.arguments[values.len()..] {
            found_caller |= &**name == "caller";
            values.push(take(name));
        }
        let caller = if special.caller && !found_caller {
            let caller = take("caller").filter(|caller| !matches!(caller, Value::None));
            Some(caller.unwrap_or_else(|| Value::undefined("caller")))
        } else {
            None
        };
        let scope = self.inner(&node.scoped.names, &value.scope);
        if let Some(caller) = caller {
            scope.set(&"caller".into(), caller);
        }
        if special.kwargs {
            let pairs = given.named.into_iter().map(|(name, value)| (Value::Text(name), value));
            scope.set(&"kwargs".into(), Value::dict(pairs)?);
        } else if let Some((name, _)) = given.named.first() {
            return Err(Fault::new(format!("macro '{}' takes no keyword argument '{name}'", node.name)));
        }
        if special.varargs {
            scope.set(&"varargs".into(), Value::tuple(rest)?);
        } else if !rest.is_empty() {
            return Err(Fault::new(format!("macro '{}' takes not more than {count} arguments", node.name)));
        }
        let given: Vec<bool> = values.iter().map(Option::is_some).collect();
        for (name, value) in node.arguments.iter().zip(values) {
            if let Some(value) = value {
                scope.set(name, value);
            }
        }
        self.recurse(|machine| {
            // A default may name the arguments before it.
            for (index, name) in node.arguments.iter().enumerate().filter(|(index, _)| !given[*index]) {
                let default = (index + node.defaults.len()).checked_sub(count).map(|place| &node.defaults[place]);
                let value = match default {
                    Some(default) => machine.evaluate(default, &scope)?,
                    None => Value::Undefined(name.clone()),
                };
                scope.set(name, value);
            }
            let mut output = String::new();
            machine.statements(&node.scoped.body, &scope, &mut output)?;
            Value::text(output)
        })
    }

    /// Calls `loop` with an iterable in a recursive loop and returns the text that the loop writes.
    pub(super) fn call_loop(&mut self, running: &Loop, given: Given) -> Result<Value> {
        let [iterable] = given.fill("loop", ["iterable"], 1)?;
        if !running.node.recursive {
            return Err(Fault::new("the loop must have the 'recursive' marker to be called recursively"));
        }
        let iterable = iterable.unwrap_or(Value::None);
        self.recurse(|machine| {
            let mut output = String::new();
            machine.for_loop(&running.node, &running.outer, &iterable, running.depth + 1, &mut output)?;
            Value::text(output)
        })
    }

    /// Returns the value of a name in a scope, or an undefined value if nothing has this name.
    pub(super) fn name(&self, name: &Name, scope: &Rc<Scope>) -> Result<Value> {
        let found = match scope.find(name) {
            Some(value) => value,
            None => self.look_up(name),
        };
        match found {
            Some(value) => Ok(value),
            None if matches!(&**name, "self" | "super") => Err(Fault::unsupported(format!("`{name}`"))),
            None => Ok(Value::Undefined(name.clone())),
        }
    }
}

/// Returns an item in the form that remains after the loop's condition unpacked the item: each unpacked part is a
/// tuple.
fn packed(target: &Target, item: Value) -> Result<Value> {
    let Target::Tuple(targets) = target else { return Ok(item) };
    let parts = targets.iter().zip(items(&item)?).map(|(target, item)| packed(target, item));
    Value::tuple(parts.collect::<Result<_>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_that_hold_the_macros_made_in_them_are_freed() {
        let source = "{% set ns = namespace(l=[]) %}\
                      {% macro m(a) %}{% set ns.f = m %}{{ caller() if a else 'x' }}{% endmacro %}\
                      {% for i in range(3) %}{% macro n() %}{{ n }}{{ i }}{% endmacro %}{% set ns.g = n %}{{ n() }}\
                      {% call m(i) %}{% set ns.c = caller %}y{% endcall %}{% endfor %}";
        let template = crate::jinja::parser::parse(source).expect("a template");
        crate::jinja::scopes::resolve(&template).expect("scopes");
        allowance::begin(1000, 1000);
        let date = |_: &str| Ok(String::new());
        let mut machine = Machine::new(HashMap::new(), 10_000, &date);
        let text = machine.run(&template).expect("a text");
        assert_eq!(text, "<Macro 'n'>0x<Macro 'n'>1y<Macro 'n'>2y");
        let scopes: Vec<_> = machine.held.iter().map(Rc::downgrade).collect();
        assert!(scopes.len() >= 4);
        drop(machine);
        assert!(scopes.iter().all(|scope| scope.upgrade().is_none()));
    }
}
