//! Makes a syntax tree of tokens, by Jinja's grammar with its loop controls and `{% generation %}`.

use std::sync::{Arc, OnceLock};

use super::fault::{Fault, Result};
use super::lexer::{Placed, Token, tokens};
use super::syntax::{
    Arguments, Binary, Block, Comparison, Constant, Expression, ExpressionKind as Kind, FilterBlock, For, Macro, Name,
    Scoped, SetBlock, Statement, StatementKind, Target, Template, Unary, With,
};

/// The deepest nesting of expressions and statements that is accepted. The parser recurses once for each level.
const DEPTH_MAX: usize = 150;
/// The words that cannot be names of variables.
const CONSTANTS: [&str; 6] = ["true", "True", "false", "False", "none", "None"];

/// Returns the syntax tree of a source.
///
/// # Errors
/// Fails if the source is no valid template, or uses a feature that Interbed does not know.
pub(super) fn parse(source: &str) -> Result<Template> {
    let mut parser = Parser { tokens: tokens(source)?, position: 0, depth: 0 };
    let body = parser.statements(&[])?;
    Ok(Template { body, names: OnceLock::new() })
}

struct Parser {
    tokens: Vec<Placed>,
    position: usize,
    depth: usize,
}

impl Parser {
    fn current(&self) -> &Token {
        &self.tokens[self.position.min(self.tokens.len() - 1)].token
    }

    fn look(&self) -> &Token {
        &self.tokens[(self.position + 1).min(self.tokens.len() - 1)].token
    }

    fn line(&self) -> usize {
        self.tokens[self.position.min(self.tokens.len() - 1)].line
    }

    fn next(&mut self) -> Token {
        let token = self.current().clone();
        self.position += 1;
        token
    }

    fn fail<T>(&self, problem: impl Into<String>) -> Result<T> {
        Err(Fault::at(problem, self.line()))
    }

    fn is_operator(&self, operator: &str) -> bool {
        matches!(self.current(), Token::Operator(current) if *current == operator)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.current(), Token::Name(current) if **current == *name)
    }

    fn skip_operator(&mut self, operator: &str) -> bool {
        let found = self.is_operator(operator);
        self.position += usize::from(found);
        found
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.position += usize::from(found);
        found
    }

    fn expect_operator(&mut self, operator: &str) -> Result<()> {
        if self.skip_operator(operator) {
            return Ok(());
        }
        self.fail(format!("expected `{operator}`, found {}", described(self.current())))
    }

    fn expect_name(&mut self) -> Result<Name> {
        match self.next() {
            Token::Name(name) => Ok(name),
            other => {
                self.position -= 1;
                self.fail(format!("expected a name, found {}", described(&other)))
            }
        }
    }

    fn expect(&mut self, token: &Token) -> Result<()> {
        if self.current() == token {
            self.position += 1;
            return Ok(());
        }
        self.fail(format!("expected {}, found {}", described(token), described(self.current())))
    }

    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= DEPTH_MAX {
            return self.fail(format!("expressions or statements are nested more than {DEPTH_MAX} deep"));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Parses statements up to the end of the source, or up to a tag that is one of `ends`. That tag stays the current
    /// token.
    fn statements(&mut self, ends: &[&str]) -> Result<Vec<Statement>> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            match self.next() {
                Token::Data(text) => body.push(Statement { kind: StatementKind::Text(text), line }),
                Token::VariableBegin => {
                    let value = self.tuple(true, &[], false)?;
                    self.expect(&Token::VariableEnd)?;
                    body.push(Statement { kind: StatementKind::Print(value), line });
                }
                Token::BlockBegin => {
                    if ends.iter().any(|end| self.is_name(end)) {
                        return Ok(body);
                    }
                    let parsed = self.deeper(|parser| parser.statement(line))?;
                    body.extend(parsed);
                    self.expect(&Token::BlockEnd)?;
                }
                Token::End if ends.is_empty() => return Ok(body),
                other => {
                    self.position -= 1;
                    let expected = ends.join("` or `");
                    return self.fail(format!("found {} where `{expected}` was looked for", described(&other)));
                }
            }
        }
    }

    /// Parses the body of a tag up to a tag that is one of `ends`, which stays the current token.
    fn body(&mut self, ends: &[&str]) -> Result<Vec<Statement>> {
        self.skip_operator(":");
        self.expect(&Token::BlockEnd)?;
        self.statements(ends)
    }

    /// Parses the body of a tag up to the tag `end`, and skips the name of that tag.
    fn whole_body(&mut self, end: &str) -> Result<Vec<Statement>> {
        let body = self.body(&[end])?;
        self.position += 1;
        Ok(body)
    }

    fn scoped(&mut self, end: &str) -> Result<Scoped> {
        Ok(Scoped { body: self.whole_body(end)?, names: OnceLock::new() })
    }

    fn statement(&mut self, line: usize) -> Result<Vec<Statement>> {
        let Token::Name(tag) = self.next() else {
            self.position -= 1;
            return self.fail("expected the name of a tag");
        };
        let kind = match &*tag {
            "for" => self.for_loop()?,
            "if" => self.condition()?,
            "set" => self.assignment()?,
            "with" => self.with()?,
            "macro" => {
                let name = self.target_name()?;
                let (arguments, defaults) = self.signature()?;
                let scoped = self.scoped("endmacro")?;
                let special = OnceLock::new();
                StatementKind::Macro(Arc::new(Macro { name, arguments, defaults, scoped, special }))
            }
            "call" => {
                let (arguments, defaults) =
                    if self.is_operator("(") { self.signature()? } else { (Vec::new(), Vec::new()) };
                let call = self.expression(true)?;
                if !matches!(call.kind, Kind::Call(..)) {
                    return self.fail("a call block needs a call");
                }
                let scoped = self.scoped("endcall")?;
                let (name, special) = ("caller".into(), OnceLock::new());
                StatementKind::CallBlock(call, Arc::new(Macro { name, arguments, defaults, scoped, special }))
            }
            "filter" => {
                let filter = self.filters(None, true)?;
                let Some(filter) = filter else { return self.fail("expected a filter") };
                StatementKind::FilterBlock(FilterBlock { filter, scoped: self.scoped("endfilter")? })
            }
            "block" => self.block()?,
            "generation" => StatementKind::Generation(self.scoped("endgeneration")?),
            "break" => StatementKind::Break,
            "continue" => StatementKind::Continue,
            "print" => return self.print(line),
            "include" | "import" | "extends" | "from" => {
                let problem = format!("{{% {tag} %}} names another template, of which there is none");
                return Err(Fault::at(problem, line));
            }
            "autoescape" => return Err(Fault::unsupported("{% autoescape %}").in_line(line)),
            other => return Err(Fault::at(format!("unknown tag {other:?}"), line)),
        };
        Ok(vec![Statement { kind, line }])
    }

    fn print(&mut self, line: usize) -> Result<Vec<Statement>> {
        let mut statements = Vec::new();
        while *self.current() != Token::BlockEnd {
            if !statements.is_empty() {
                self.expect_operator(",")?;
            }
            statements.push(Statement { kind: StatementKind::Print(self.expression(true)?), line });
        }
        Ok(statements)
    }

    fn for_loop(&mut self) -> Result<StatementKind> {
        let target = self.target(&["in"], false)?;
        if !self.skip_name("in") {
            return self.fail("expected `in`");
        }
        let iterable = self.tuple(false, &["recursive"], false)?;
        let test = if self.skip_name("if") { Some(self.expression(true)?) } else { None };
        let recursive = self.skip_name("recursive");
        let body = self.body(&["endfor", "else"])?;
        let is_else = self.is_name("else");
        self.position += 1;
        let otherwise = if is_else { self.whole_body("endfor")? } else { Vec::new() };
        let (names, test_names, otherwise_names) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let has_loop = OnceLock::new();
        Ok(StatementKind::For(Arc::new(For {
            target,
            iterable,
            test,
            body,
            otherwise,
            recursive,
            has_loop,
            names,
            test_names,
            otherwise_names,
        })))
    }

    fn condition(&mut self) -> Result<StatementKind> {
        let mut branches = Vec::new();
        loop {
            let test = self.tuple(false, &[], false)?;
            let body = self.body(&["elif", "else", "endif"])?;
            branches.push((test, body));
            if self.skip_name("elif") {
                continue;
            }
            let is_else = self.is_name("else");
            self.position += 1;
            let otherwise = if is_else { self.whole_body("endif")? } else { Vec::new() };
            return Ok(StatementKind::If(branches, otherwise));
        }
    }

    fn assignment(&mut self) -> Result<StatementKind> {
        let target = self.target(&[], true)?;
        if self.skip_operator("=") {
            return Ok(StatementKind::Set(target, self.tuple(true, &[], false)?));
        }
        let filter = self.filters(None, false)?;
        Ok(StatementKind::SetBlock(SetBlock { target, filter, scoped: self.scoped("endset")? }))
    }

    fn with(&mut self) -> Result<StatementKind> {
        let (mut targets, mut values) = (Vec::new(), Vec::new());
        while *self.current() != Token::BlockEnd {
            if !targets.is_empty() {
                self.expect_operator(",")?;
            }
            targets.push(self.target(&[], false)?);
            self.expect_operator("=")?;
            values.push(self.expression(true)?);
        }
        Ok(StatementKind::With(With { targets, values, scoped: self.scoped("endwith")? }))
    }

    fn block(&mut self) -> Result<StatementKind> {
        let name = self.expect_name()?;
        if self.is_name("scoped") || self.is_name("required") {
            return Err(Fault::unsupported("a scoped or required block").in_line(self.line()));
        }
        let scoped = self.scoped("endblock")?;
        self.skip_name(&name);
        Ok(StatementKind::Block(Arc::new(Block { scoped })))
    }

    fn signature(&mut self) -> Result<(Vec<Name>, Vec<Expression>)> {
        let (mut arguments, mut defaults) = (Vec::new(), Vec::new());
        self.expect_operator("(")?;
        while !self.is_operator(")") {
            if !arguments.is_empty() {
                self.expect_operator(",")?;
            }
            let name = self.target_name()?;
            if arguments.contains(&name) {
                return self.fail(format!("the argument {name} is named twice"));
            }
            arguments.push(name);
            if self.skip_operator("=") {
                defaults.push(self.expression(true)?);
            } else if !defaults.is_empty() {
                return self.fail("an argument without a default follows one with a default");
            }
        }
        self.expect_operator(")")?;
        Ok((arguments, defaults))
    }

    fn target_name(&mut self) -> Result<Name> {
        let name = self.expect_name()?;
        if CONSTANTS.contains(&&*name) {
            return self.fail(format!("{name} cannot be assigned to"));
        }
        Ok(name)
    }

    fn target(&mut self, ends: &[&str], with_namespace: bool) -> Result<Target> {
        let mut targets = Vec::new();
        let mut is_tuple = false;
        loop {
            if !targets.is_empty() {
                self.expect_operator(",")?;
            }
            if self.is_tuple_end(ends) {
                break;
            }
            targets.push(self.single_target(with_namespace)?);
            if !self.is_operator(",") {
                break;
            }
            is_tuple = true;
        }
        if !is_tuple && targets.len() == 1 {
            return Ok(targets.remove(0));
        }
        if targets.is_empty() {
            return self.fail("expected a name");
        }
        Ok(Target::Tuple(targets))
    }

    fn single_target(&mut self, with_namespace: bool) -> Result<Target> {
        if self.skip_operator("(") {
            // Attributes of namespaces are not looked for in parentheses.
            let target = self.deeper(|parser| parser.target(&[], false))?;
            self.expect_operator(")")?;
            return Ok(target);
        }
        let name = self.target_name()?;
        if with_namespace && self.skip_operator(".") {
            return Ok(Target::Attribute(name, self.expect_name()?));
        }
        Ok(Target::Name(name))
    }

    fn is_tuple_end(&self, ends: &[&str]) -> bool {
        matches!(self.current(), Token::VariableEnd | Token::BlockEnd)
            || self.is_operator(")")
            || ends.iter().any(|end| self.is_name(end))
    }

    /// Parses an expression, or a tuple of several expressions with commas between them.
    fn tuple(&mut self, with_condition: bool, ends: &[&str], in_parentheses: bool) -> Result<Expression> {
        let line = self.line();
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            if !items.is_empty() {
                self.expect_operator(",")?;
            }
            if self.is_tuple_end(ends) {
                break;
            }
            items.push(self.expression(with_condition)?);
            if !self.is_operator(",") {
                break;
            }
            is_tuple = true;
        }
        if !is_tuple {
            match items.pop() {
                Some(item) => return Ok(item),
                None if !in_parentheses => {
                    return self.fail(format!("expected an expression, found {}", described(self.current())));
                }
                None => {}
            }
        }
        Ok(Expression { kind: Kind::Tuple(items), line })
    }

    fn expression(&mut self, with_condition: bool) -> Result<Expression> {
        self.deeper(|parser| if with_condition { parser.conditional() } else { parser.or() })
    }

    fn conditional(&mut self) -> Result<Expression> {
        let mut value = self.or()?;
        while self.is_name("if") {
            let line = self.line();
            self.position += 1;
            let test = self.or()?;
            let otherwise = match self.skip_name("else") {
                true => Some(Box::new(self.deeper(Self::conditional)?)),
                false => None,
            };
            value = Expression { kind: Kind::Condition(Box::new(test), Box::new(value), otherwise), line };
        }
        Ok(value)
    }

    fn or(&mut self) -> Result<Expression> {
        let mut left = self.and()?;
        while self.is_name("or") {
            let line = self.line();
            self.position += 1;
            let right = self.and()?;
            left = Expression { kind: Kind::Or(Box::new(left), Box::new(right)), line };
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Expression> {
        let mut left = self.not()?;
        while self.is_name("and") {
            let line = self.line();
            self.position += 1;
            let right = self.not()?;
            left = Expression { kind: Kind::And(Box::new(left), Box::new(right)), line };
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Expression> {
        let line = self.line();
        if self.skip_name("not") {
            let operand = self.deeper(Self::not)?;
            return Ok(Expression { kind: Kind::Unary(Unary::Not, Box::new(operand)), line });
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Expression> {
        let line = self.line();
        let first = self.sum()?;
        let mut others = Vec::new();
        loop {
            let operator = match self.current() {
                Token::Operator("==") => Comparison::Equal,
                Token::Operator("!=") => Comparison::NotEqual,
                Token::Operator("<") => Comparison::Less,
                Token::Operator("<=") => Comparison::LessEqual,
                Token::Operator(">") => Comparison::Greater,
                Token::Operator(">=") => Comparison::GreaterEqual,
                Token::Name(name) if &**name == "in" => Comparison::In,
                Token::Name(name) if &**name == "not" => match self.look() {
                    Token::Name(next) if &**next == "in" => {
                        self.position += 1;
                        Comparison::NotIn
                    }
                    _ => break,
                },
                _ => break,
            };
            self.position += 1;
            others.push((operator, self.sum()?));
        }
        if others.is_empty() {
            return Ok(first);
        }
        Ok(Expression { kind: Kind::Compare(Box::new(first), others), line })
    }

    fn binary(
        &mut self,
        operators: &[(&str, Binary)],
        operand: impl Fn(&mut Self) -> Result<Expression>,
    ) -> Result<Expression> {
        let mut left = operand(self)?;
        loop {
            let found = operators.iter().find(|(operator, _)| self.is_operator(operator));
            let Some(&(_, operator)) = found else { return Ok(left) };
            let line = self.line();
            self.position += 1;
            let right = operand(self)?;
            left = Expression { kind: Kind::Binary(operator, Box::new(left), Box::new(right)), line };
        }
    }

    fn sum(&mut self) -> Result<Expression> {
        self.binary(&[("+", Binary::Add), ("-", Binary::Subtract)], Self::concat)
    }

    fn concat(&mut self) -> Result<Expression> {
        let line = self.line();
        let mut parts = vec![self.product()?];
        while self.skip_operator("~") {
            parts.push(self.product()?);
        }
        match parts.len() {
            1 => Ok(parts.remove(0)),
            _ => Ok(Expression { kind: Kind::Concat(parts), line }),
        }
    }

    fn product(&mut self) -> Result<Expression> {
        let operators =
            [("*", Binary::Multiply), ("/", Binary::Divide), ("//", Binary::FloorDivide), ("%", Binary::Remainder)];
        self.binary(&operators, |parser| parser.binary(&[("**", Binary::Power)], |parser| parser.unary(true)))
    }

    fn unary(&mut self, with_filters: bool) -> Result<Expression> {
        let line = self.line();
        let operator = match self.current() {
            Token::Operator("-") => Some(Unary::Minus),
            Token::Operator("+") => Some(Unary::Plus),
            _ => None,
        };
        let node = match operator {
            Some(operator) => {
                self.position += 1;
                let operand = self.deeper(|parser| parser.unary(false))?;
                Expression { kind: Kind::Unary(operator, Box::new(operand)), line }
            }
            None => self.primary()?,
        };
        let node = self.postfix(node)?;
        if with_filters { self.filters_and_tests(node) } else { Ok(node) }
    }

    fn primary(&mut self) -> Result<Expression> {
        let line = self.line();
        let constant = |value| Ok(Expression { kind: Kind::Constant(value), line });
        match self.next() {
            Token::Name(name) => match &*name {
                "true" | "True" => constant(Constant::Bool(true)),
                "false" | "False" => constant(Constant::Bool(false)),
                "none" | "None" => constant(Constant::None),
                _ => Ok(Expression { kind: Kind::Name(name), line }),
            },
            Token::Text(first) => {
                if !matches!(self.current(), Token::Text(_)) {
                    return constant(Constant::Text(first));
                }
                let mut text = first.to_string();
                while let Token::Text(more) = self.current() {
                    text.push_str(more);
                    self.position += 1;
                }
                constant(Constant::Text(text.into()))
            }
            Token::Integer(value) => constant(Constant::Integer(value)),
            Token::Float(value) => constant(Constant::Float(value)),
            Token::Operator("(") => {
                let inner = self.deeper(|parser| parser.tuple(true, &[], true))?;
                self.expect_operator(")")?;
                Ok(inner)
            }
            Token::Operator("[") => {
                let mut items = Vec::new();
                while !self.is_operator("]") {
                    if !items.is_empty() {
                        self.expect_operator(",")?;
                    }
                    if self.is_operator("]") {
                        break;
                    }
                    items.push(self.expression(true)?);
                }
                self.expect_operator("]")?;
                Ok(Expression { kind: Kind::List(items), line })
            }
            Token::Operator("{") => {
                let mut pairs = Vec::new();
                while !self.is_operator("}") {
                    if !pairs.is_empty() {
                        self.expect_operator(",")?;
                    }
                    if self.is_operator("}") {
                        break;
                    }
                    let key = self.expression(true)?;
                    self.expect_operator(":")?;
                    pairs.push((key, self.expression(true)?));
                }
                self.expect_operator("}")?;
                Ok(Expression { kind: Kind::Dict(pairs), line })
            }
            other => {
                self.position -= 1;
                self.fail(format!("expected an expression, found {}", described(&other)))
            }
        }
    }

    fn postfix(&mut self, mut node: Expression) -> Result<Expression> {
        loop {
            node = match self.current() {
                Token::Operator(".") => self.attribute(node)?,
                Token::Operator("[") => self.subscript(node)?,
                Token::Operator("(") => self.call(node)?,
                _ => return Ok(node),
            };
        }
    }

    fn attribute(&mut self, node: Expression) -> Result<Expression> {
        let line = self.line();
        self.position += 1;
        let kind = match self.next() {
            Token::Name(name) => Kind::Attribute(Box::new(node), name),
            Token::Integer(index) => {
                let index = Expression { kind: Kind::Constant(Constant::Integer(index)), line };
                Kind::Item(Box::new(node), Box::new(index))
            }
            other => {
                self.position -= 1;
                return self.fail(format!("expected a name or a number, found {}", described(&other)));
            }
        };
        Ok(Expression { kind, line })
    }

    fn subscript(&mut self, node: Expression) -> Result<Expression> {
        let line = self.line();
        self.position += 1;
        let start = if self.is_operator(":") { None } else { Some(Box::new(self.expression(true)?)) };
        let kind = if self.skip_operator(":") {
            let part = |parser: &mut Self| -> Result<Option<Box<Expression>>> {
                if parser.is_operator(":") || parser.is_operator("]") {
                    return Ok(None);
                }
                Ok(Some(Box::new(parser.expression(true)?)))
            };
            let stop = part(self)?;
            let step = if self.skip_operator(":") { part(self)? } else { None };
            Kind::Slice(Box::new(node), [start, stop, step])
        } else if let Some(index) = start {
            if self.is_operator(",") {
                return Err(Fault::unsupported("an index of several parts").in_line(line));
            }
            Kind::Item(Box::new(node), index)
        } else {
            return self.fail("expected an index");
        };
        self.expect_operator("]")?;
        Ok(Expression { kind, line })
    }

    fn call(&mut self, node: Expression) -> Result<Expression> {
        let line = self.line();
        let arguments = self.arguments()?;
        Ok(Expression { kind: Kind::Call(Box::new(node), arguments), line })
    }

    fn arguments(&mut self) -> Result<Arguments> {
        self.expect_operator("(")?;
        let mut arguments = Arguments::default();
        let mut is_first = true;
        while !self.is_operator(")") {
            if !is_first {
                self.expect_operator(",")?;
                if self.is_operator(")") {
                    break;
                }
            }
            is_first = false;
            let misplaced = "the arguments of a call are not in order";
            if self.skip_operator("*") {
                if arguments.list.is_some() || arguments.dict.is_some() {
                    return self.fail(misplaced);
                }
                arguments.list = Some(Box::new(self.expression(true)?));
            } else if self.skip_operator("**") {
                if arguments.dict.is_some() {
                    return self.fail(misplaced);
                }
                arguments.dict = Some(Box::new(self.expression(true)?));
            } else if matches!(self.current(), Token::Name(_)) && *self.look() == Token::Operator("=") {
                if arguments.dict.is_some() {
                    return self.fail(misplaced);
                }
                let name = self.expect_name()?;
                self.position += 1;
                if arguments.named.iter().any(|(other, _)| *other == name) {
                    return self.fail(format!("the argument {name} is given twice"));
                }
                let value = self.expression(true)?;
                arguments.named.push((name, value));
            } else {
                if arguments.list.is_some() || arguments.dict.is_some() || !arguments.named.is_empty() {
                    return self.fail(misplaced);
                }
                let value = self.expression(true)?;
                arguments.positional.push(value);
            }
        }
        self.expect_operator(")")?;
        Ok(arguments)
    }

    fn filters_and_tests(&mut self, mut node: Expression) -> Result<Expression> {
        loop {
            node = match self.current() {
                Token::Operator("|") => match self.filters(Some(node), false)? {
                    Some(node) => node,
                    None => return self.fail("expected a filter"),
                },
                Token::Name(name) if &**name == "is" => self.test(node)?,
                // Of what a filter or a test gave.
                Token::Operator("(") => self.call(node)?,
                _ => return Ok(node),
            };
        }
    }

    fn dotted_name(&mut self) -> Result<Name> {
        let mut name = self.expect_name()?;
        while self.skip_operator(".") {
            name = format!("{name}.{}", self.expect_name()?).into();
        }
        Ok(name)
    }

    fn filters(&mut self, mut node: Option<Expression>, mut inline: bool) -> Result<Option<Expression>> {
        while inline || self.is_operator("|") {
            if !inline {
                self.position += 1;
            }
            inline = false;
            let line = self.line();
            let name = self.dotted_name()?;
            let arguments = if self.is_operator("(") { self.arguments()? } else { Arguments::default() };
            node = Some(Expression { kind: Kind::Filter(node.map(Box::new), name, arguments), line });
        }
        Ok(node)
    }

    fn test(&mut self, node: Expression) -> Result<Expression> {
        let line = self.line();
        self.position += 1;
        let negated = self.skip_name("not");
        let name = self.dotted_name()?;
        let has_operand = match self.current() {
            Token::Name(next) => !matches!(&**next, "else" | "or" | "and"),
            Token::Text(_) | Token::Integer(_) | Token::Float(_) => true,
            Token::Operator(operator) => matches!(*operator, "[" | "{"),
            _ => false,
        };
        let arguments = if self.is_operator("(") {
            self.arguments()?
        } else if has_operand {
            if self.is_name("is") {
                return self.fail("tests cannot be chained");
            }
            let operand = self.deeper(|parser| {
                let operand = parser.primary()?;
                parser.postfix(operand)
            })?;
            Arguments { positional: vec![operand], ..Arguments::default() }
        } else {
            Arguments::default()
        };
        let test = Expression { kind: Kind::Test(Box::new(node), name, arguments), line };
        if negated {
            return Ok(Expression { kind: Kind::Unary(Unary::Not, Box::new(test)), line });
        }
        Ok(test)
    }
}

fn described(token: &Token) -> String {
    match token {
        Token::Data(_) => "text".into(),
        Token::VariableBegin => "`{{`".into(),
        Token::VariableEnd => "`}}`".into(),
        Token::BlockBegin => "`{%`".into(),
        Token::BlockEnd => "`%}`".into(),
        Token::Name(name) => format!("`{name}`"),
        Token::Text(_) => "a string".into(),
        Token::Integer(_) | Token::Float(_) => "a number".into(),
        Token::Operator(operator) => format!("`{operator}`"),
        Token::End => "the end of the template".into(),
    }
}
