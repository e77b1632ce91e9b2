//! Evaluates expressions.

use std::rc::Rc;

use super::arguments::Given;
use super::attributes::{attribute_of, item_of};
use super::fault::{Fault, Result};
use super::filters;
use super::functions;
use super::interpreter::Machine;
use super::iteration::{items, slice};
use super::methods;
use super::operators::{self, binary, compare, is_true, joined, negated};
use super::predicates;
use super::syntax::{Arguments, Constant, Expression, ExpressionKind as Kind, Unary};
use super::value::{Object, Scope, Value};

fn constant(constant: &Constant) -> Value {
    match constant {
        Constant::None => Value::None,
        Constant::Bool(value) => Value::Bool(*value),
        Constant::Integer(value) => Value::Integer(*value),
        Constant::Float(value) => Value::Float(*value),
        Constant::Text(text) => Value::Text(text.clone()),
    }
}

impl Machine<'_> {
    pub(super) fn evaluate(&mut self, expression: &Expression, scope: &Rc<Scope>) -> Result<Value> {
        self.step()?;
        let value = self.deeper(|machine| machine.value_of(expression, scope));
        value.map_err(|fault| fault.in_line(expression.line))
    }

    fn all(&mut self, expressions: &[Expression], scope: &Rc<Scope>) -> Result<Vec<Value>> {
        expressions.iter().map(|expression| self.evaluate(expression, scope)).collect()
    }

    fn value_of(&mut self, expression: &Expression, scope: &Rc<Scope>) -> Result<Value> {
        match &expression.kind {
            Kind::Constant(value) => Ok(constant(value)),
            Kind::Name(name) => self.name(name, scope),
            Kind::List(items) => Value::list(self.all(items, scope)?),
            Kind::Tuple(items) => Value::tuple(self.all(items, scope)?),
            Kind::Dict(pairs) => {
                let mut values = Vec::with_capacity(pairs.len());
                for (key, value) in pairs {
                    values.push((self.evaluate(key, scope)?, self.evaluate(value, scope)?));
                }
                Value::dict(values)
            }
            Kind::Unary(operator, operand) => {
                let value = self.evaluate(operand, scope)?;
                match operator {
                    Unary::Not => Ok(Value::Bool(!is_true(&value))),
                    Unary::Minus => negated(&value),
                    Unary::Plus => operators::plus(&value),
                }
            }
            Kind::Binary(operator, left, right) => {
                let (left, right) = (self.evaluate(left, scope)?, self.evaluate(right, scope)?);
                binary(*operator, &left, &right)
            }
            Kind::Concat(parts) => joined(&self.all(parts, scope)?),
            Kind::Compare(first, others) => {
                let mut left = self.evaluate(first, scope)?;
                for (operator, other) in others {
                    let right = self.evaluate(other, scope)?;
                    if !compare(*operator, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Kind::And(left, right) => {
                let left = self.evaluate(left, scope)?;
                if is_true(&left) { self.evaluate(right, scope) } else { Ok(left) }
            }
            Kind::Or(left, right) => {
                let left = self.evaluate(left, scope)?;
                if is_true(&left) { Ok(left) } else { self.evaluate(right, scope) }
            }
            Kind::Condition(test, value, otherwise) => {
                if is_true(&self.evaluate(test, scope)?) {
                    return self.evaluate(value, scope);
                }
                match otherwise {
                    Some(otherwise) => self.evaluate(otherwise, scope),
                    None => Ok(Value::undefined("the value of an `if` that does not hold and has no `else`")),
                }
            }
            Kind::Attribute(operand, name) => {
                let value = self.evaluate(operand, scope)?;
                self.look_ahead(&value, name)?;
                attribute_of(&value, name)
            }
            Kind::Item(operand, key) => {
                let value = self.evaluate(operand, scope)?;
                let key = self.evaluate(key, scope)?;
                if let Some(name) = key.as_text() {
                    self.look_ahead(&value, name)?;
                }
                item_of(&value, &key)
            }
            Kind::Slice(operand, parts) => {
                let value = self.evaluate(operand, scope)?;
                let mut bounds = [None, None, None];
                for (bound, part) in bounds.iter_mut().zip(parts) {
                    *bound = part.as_ref().map(|part| self.evaluate(part, scope)).transpose()?;
                }
                slice(&value, bounds)
            }
            Kind::Call(..) => self.call_expression(expression, scope, None),
            Kind::Filter(..) => self.filter_chain(expression, None, scope),
            Kind::Test(operand, name, arguments) => {
                let value = self.evaluate(operand, scope)?;
                let given = self.given(arguments, scope)?;
                predicates::check(name, &value, given).map(Value::Bool)
            }
        }
    }

    /// Evaluates a chain of filters. In a filter block, `text` is the text to which the innermost filter applies.
    pub(super) fn filter_chain(
        &mut self,
        expression: &Expression,
        text: Option<Value>,
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        let Kind::Filter(operand, name, arguments) = &expression.kind else { return self.evaluate(expression, scope) };
        let value = match operand {
            Some(operand) if text.is_some() => self.filter_chain(operand, text, scope)?,
            Some(operand) => self.evaluate(operand, scope)?,
            None => text.ok_or_else(|| Fault::new("a filter has nothing to work on"))?,
        };
        let given = self.given(arguments, scope)?;
        filters::apply(name, value, given)
    }

    fn given(&mut self, arguments: &Arguments, scope: &Rc<Scope>) -> Result<Given> {
        let mut positional = self.all(&arguments.positional, scope)?;
        if let Some(list) = &arguments.list {
            let list = self.evaluate(list, scope)?;
            positional.extend(items(&list)?);
        }
        let mut named = Vec::with_capacity(arguments.named.len());
        for (name, value) in &arguments.named {
            named.push((name.clone(), self.evaluate(value, scope)?));
        }
        if let Some(dict) = &arguments.dict {
            let Value::Dict(dict) = self.evaluate(dict, scope)? else {
                return Err(Fault::new("what follows ** in a call must be a mapping"));
            };
            for (name, value) in &dict.entries {
                let Some(name) = name.as_text() else { return Err(Fault::new("keywords must be strings")) };
                if named.iter().any(|(known, _)| known == name) {
                    return Err(Fault::new(format!("the argument '{name}' is given twice")));
                }
                named.push((name.clone(), value.clone()));
            }
        }
        Ok(Given { positional, named })
    }

    /// Evaluates a call. For a call block, `caller` is the function that renders the body of the block.
    pub(super) fn call_expression(
        &mut self,
        expression: &Expression,
        scope: &Rc<Scope>,
        caller: Option<Value>,
    ) -> Result<Value> {
        let Kind::Call(function, arguments) = &expression.kind else { return self.evaluate(expression, scope) };
        let function = self.evaluate(function, scope)?;
        let mut given = self.given(arguments, scope)?;
        if let Some(caller) = caller {
            if given.named.iter().any(|(name, _)| &**name == "caller") {
                return Err(Fault::new("the argument 'caller' is given twice"));
            }
            given.named.push(("caller".into(), caller));
        }
        match &function {
            Value::Undefined(name) => Err(Fault::new(format!("'{name}' is undefined"))),
            Value::Object(object) => match &**object {
                Object::Macro(called) => self.call_macro(called, given),
                Object::Loop(running) => self.call_loop(running, given),
                Object::Joiner { separator, used } => functions::join(separator, used, given),
                Object::Function(name) => self.call_function(name, given),
                Object::Method(receiver, name) => match receiver {
                    Value::Object(object) => match &**object {
                        Object::Loop(running) => methods::call_loop(running, name, given),
                        _ => methods::call(receiver, name, given),
                    },
                    _ => methods::call(receiver, name, given),
                },
                Object::Namespace(_) | Object::Cycler { .. } => {
                    Err(Fault::new(format!("'{}' object is not callable", function.type_name())))
                }
            },
            other => Err(Fault::new(format!("'{}' object is not callable", other.type_name()))),
        }
    }
}
