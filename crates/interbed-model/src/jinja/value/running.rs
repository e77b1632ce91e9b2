//! Defines the values that a rendering makes while it runs: scopes, macros and loops.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use super::Value;
use crate::jinja::fault::{Fault, Result};
use crate::jinja::syntax::{For, Macro, Name};

/// The names of a scope with their values. The value is `None` while a name has no value.
pub(in crate::jinja) struct Scope {
    pub(in crate::jinja) slots: RefCell<Vec<(Name, Option<Value>)>>,
    pub(in crate::jinja) parent: Option<Rc<Scope>>,
    pub(in crate::jinja) is_top: bool,
}

/// A macro, with the scope in which it was made.
pub(crate) struct MacroValue {
    pub(in crate::jinja) node: Arc<Macro>,
    pub(in crate::jinja) scope: Rc<Scope>,
}

/// The state of a running loop.
pub(crate) struct Loop {
    pub(in crate::jinja) node: Arc<For>,
    pub(in crate::jinja) outer: Rc<Scope>,
    /// The items that have not been read.
    pub(in crate::jinja) source: RefCell<std::vec::IntoIter<Value>>,
    /// The scope in which the condition of the loop is evaluated.
    pub(in crate::jinja) test_scope: Option<Rc<Scope>>,
    /// The items that were read before their turn.
    pub(in crate::jinja) ahead: RefCell<VecDeque<Value>>,
    pub(in crate::jinja) index: Cell<usize>,
    pub(in crate::jinja) current: RefCell<Option<Value>>,
    pub(in crate::jinja) previous: RefCell<Option<Value>>,
    pub(in crate::jinja) changed: RefCell<Option<Vec<Value>>>,
    pub(in crate::jinja) depth: usize,
}

impl Scope {
    pub(in crate::jinja) fn get(&self, name: &str) -> Option<Option<Value>> {
        let slots = self.slots.borrow();
        slots.iter().find(|(known, _)| **known == *name).map(|(_, value)| value.clone())
    }

    /// Returns the value of a name in this scope or in the nearest scope around it that has the name. Returns `None` if
    /// no scope has the name.
    pub(in crate::jinja) fn find(&self, name: &str) -> Option<Option<Value>> {
        self.get(name).or_else(|| self.parent.as_ref()?.find(name))
    }

    pub(in crate::jinja) fn set(&self, name: &Name, value: Value) {
        let mut slots = self.slots.borrow_mut();
        match slots.iter_mut().find(|(known, _)| known == name) {
            Some((_, slot)) => *slot = Some(value),
            None => slots.push((name.clone(), Some(value))),
        }
    }
}

impl MacroValue {
    pub(in crate::jinja) fn name(&self) -> &Name {
        &self.node.name
    }

    pub(in crate::jinja) fn attribute(&self, name: &str) -> Result<Option<Value>> {
        let special = self.node.special.get().copied().unwrap_or_default();
        Ok(match name {
            "name" => Some(Value::Text(self.node.name.clone())),
            "arguments" => Some(Value::tuple(self.node.arguments.iter().cloned().map(Value::Text).collect())?),
            "catch_kwargs" => Some(Value::Bool(special.kwargs)),
            "catch_varargs" => Some(Value::Bool(special.varargs)),
            "caller" => Some(Value::Bool(special.caller)),
            "explicit_caller" => Some(Value::Bool(self.node.arguments.iter().any(|name| &**name == "caller"))),
            _ => None,
        })
    }
}

impl Loop {
    /// Returns the number of all items, once all have been read.
    fn length(&self) -> usize {
        self.index.get() + 1 + self.ahead.borrow().len() + self.source.borrow().len()
    }
}

/// Returns an attribute of `loop`, for which the interpreter has read enough items ahead.
pub(in crate::jinja) fn loop_attribute(running: &Loop, name: &str) -> Result<Option<Value>> {
    let number = |value: usize| Some(Value::Integer(i128::try_from(value).unwrap_or(i128::MAX)));
    let index = running.index.get();
    Ok(match name {
        "index" => number(index + 1),
        "index0" => number(index),
        "revindex" => number(running.length() - index),
        "revindex0" => number(running.length() - index - 1),
        "length" => number(running.length()),
        "first" => Some(Value::Bool(index == 0)),
        "last" => Some(Value::Bool(running.ahead.borrow().is_empty())),
        "depth" => number(running.depth + 1),
        "depth0" => number(running.depth),
        "previtem" if index == 0 => Some(Value::undefined("there is no previous item")),
        "previtem" => running.previous.borrow().clone(),
        "nextitem" => {
            let next = running.ahead.borrow().front().cloned();
            Some(next.unwrap_or_else(|| Value::undefined("there is no next item")))
        }
        _ => None,
    })
}

/// Returns the text that printing `loop` writes.
pub(in crate::jinja) fn printed_loop(running: &Loop) -> Result<String> {
    if running.test_scope.is_some() {
        return Err(Fault::unsupported("printing `loop` of a loop with a condition"));
    }
    Ok(format!("<LoopContext {}/{}>", running.index.get() + 1, running.length()))
}
