//! A template's syntax tree, built anew so that whatever grows passes the [`super::allowance`] first.
//!
//! The engine counts instructions, but a single one may double a text or print a value that holds itself a million
//! times. So operands, what operators, filters and calls make, and literals in the source are handed through filters of
//! ours, whose names no template can write. That also keeps the compiler from computing `'x' * 100000000` beforehand.

use minijinja::machinery::ast::{
    AutoEscape, BinOp, BinOpKind, Block, Call, CallArg, CallBlock, Compare, CompareOp, Const, Do, EmitExpr, Expr,
    Filter, FilterBlock, ForLoop, GetAttr, GetItem, IfCond, IfExpr, List, Macro, Map, Set, SetBlock, Slice, Spanned,
    Stmt, Template, Test, Tuple, UnaryOp, UnaryOpKind, Var, WithBlock,
};
use minijinja::machinery::{CodeGenerator, Span};
use minijinja::{Error, ErrorKind, Value};

/// Deepest nesting of statements and expressions that is compiled; the compiler recurses.
const DEPTH_MAX: usize = 1000;

/// A value that is about to be worked on.
pub(super) const OPERAND: &str = "~operand";
/// A value that has been made.
pub(super) const MADE: &str = "~made";
/// A value on its way into a namespace.
pub(super) const STORED: &str = "~stored";
/// Text of the source on its way out.
pub(super) const RAW: &str = "~raw";
/// A product.
pub(super) const TIMES: &str = "~times";

/// The code of the template `parsed` with all of that in it.
///
/// # Errors
/// It is nested too deeply, or names other templates.
pub(super) fn compile<'s>(parsed: &Stmt<'s>, name: &'s str, source: &'s str) -> Result<CodeGenerator<'s>, Error> {
    let metered = statement(parsed, 0)?;
    let mut code = CodeGenerator::new(name, source);
    code.compile_stmt(&metered);
    Ok(code)
}

fn deeper(depth: usize) -> Result<usize, Error> {
    if depth < DEPTH_MAX {
        return Ok(depth + 1);
    }
    Err(Error::new(ErrorKind::SyntaxError, format!("expressions or statements are nested more than {DEPTH_MAX} deep")))
}

fn statements<'s>(list: &[Stmt<'s>], depth: usize) -> Result<Vec<Stmt<'s>>, Error> {
    list.iter().map(|entry| statement(entry, depth)).collect()
}

fn statement<'s>(given: &Stmt<'s>, depth: usize) -> Result<Stmt<'s>, Error> {
    let depth = deeper(depth)?;
    let body = |list: &[Stmt<'s>]| statements(list, depth);
    let value = |expr: &Expr<'s>| expression(expr, depth);
    Ok(match given {
        Stmt::Template(node) => Stmt::Template(at(node, Template { children: body(&node.children)? })),
        Stmt::EmitExpr(node) => {
            // A call that stands alone is compiled in a way of its own; what it writes is counted where it is written.
            let expr = match &node.expr {
                Expr::Call(inner) => Expr::Call(at(inner, call(inner, depth)?)),
                other => expression(other, depth)?,
            };
            Stmt::EmitExpr(at(node, EmitExpr { expr }))
        }
        Stmt::EmitRaw(node) => {
            let text = Expr::Const(at(node, Const { value: Value::from_safe_string(node.raw.to_owned()) }));
            Stmt::EmitExpr(at(node, EmitExpr { expr: through(RAW, text, node.span()) }))
        }
        Stmt::ForLoop(node) => {
            let made = ForLoop {
                target: target(&node.target, depth)?,
                iter: operand(&node.iter, depth)?,
                filter_expr: node.filter_expr.as_ref().map(value).transpose()?,
                recursive: node.recursive,
                body: body(&node.body)?,
                else_body: body(&node.else_body)?,
            };
            Stmt::ForLoop(at(node, made))
        }
        Stmt::IfCond(node) => {
            let (true_body, false_body) = (body(&node.true_body)?, body(&node.false_body)?);
            Stmt::IfCond(at(node, IfCond { expr: value(&node.expr)?, true_body, false_body }))
        }
        Stmt::WithBlock(node) => {
            let assigned = |(name, expr): &(Expr<'s>, Expr<'s>)| Ok((target(name, depth)?, expression(expr, depth)?));
            let assignments = node.assignments.iter().map(assigned).collect::<Result<_, Error>>()?;
            Stmt::WithBlock(at(node, WithBlock { assignments, body: body(&node.body)? }))
        }
        Stmt::Set(node) => {
            let mut expr = value(&node.expr)?;
            if stores(&node.target) {
                expr = through(STORED, expr, node.span());
            }
            Stmt::Set(at(node, Set { target: target(&node.target, depth)?, expr }))
        }
        Stmt::SetBlock(node) => {
            let filter = node.filter.as_ref().map(value).transpose()?;
            let made = SetBlock { target: target(&node.target, depth)?, filter, body: body(&node.body)? };
            Stmt::SetBlock(at(node, made))
        }
        Stmt::AutoEscape(node) => {
            Stmt::AutoEscape(at(node, AutoEscape { enabled: value(&node.enabled)?, body: body(&node.body)? }))
        }
        Stmt::FilterBlock(node) => {
            Stmt::FilterBlock(at(node, FilterBlock { filter: value(&node.filter)?, body: body(&node.body)? }))
        }
        Stmt::Block(node) => {
            Stmt::Block(at(node, Block { name: node.name, required: node.required, body: body(&node.body)? }))
        }
        Stmt::Macro(node) => Stmt::Macro(at(node, macro_declaration(node, depth)?)),
        Stmt::CallBlock(node) => {
            let macro_decl = at(&node.macro_decl, macro_declaration(&node.macro_decl, depth)?);
            let made = CallBlock { call: at(&node.call, call(&node.call, depth)?), macro_decl };
            Stmt::CallBlock(at(node, made))
        }
        Stmt::Do(node) => Stmt::Do(at(node, Do { call: at(&node.call, call(&node.call, depth)?) })),
        Stmt::Continue(node) => Stmt::Continue(at(node, minijinja::machinery::ast::Continue)),
        Stmt::Break(node) => Stmt::Break(at(node, minijinja::machinery::ast::Break)),
        Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
            let problem = "include, import and extends name other templates, of which there are none";
            return Err(Error::new(ErrorKind::SyntaxError, problem));
        }
    })
}

fn macro_declaration<'s>(node: &Macro<'s>, depth: usize) -> Result<Macro<'s>, Error> {
    Ok(Macro {
        name: node.name,
        args: node.args.iter().map(|name| target(name, depth)).collect::<Result<_, _>>()?,
        defaults: node.defaults.iter().map(|value| expression(value, depth)).collect::<Result<_, _>>()?,
        body: statements(&node.body, depth)?,
    })
}

/// Whether an assignment changes a namespace.
fn stores(target: &Expr<'_>) -> bool {
    match target {
        Expr::GetAttr(_) => true,
        Expr::List(list) => list.items.iter().any(stores),
        Expr::Tuple(list) => list.items.iter().any(stores),
        _ => false,
    }
}

/// Targets of assignments stay as they are.
fn target<'s>(given: &Expr<'s>, depth: usize) -> Result<Expr<'s>, Error> {
    let depth = deeper(depth)?;
    let all = |items: &[Expr<'s>]| items.iter().map(|item| target(item, depth)).collect::<Result<Vec<_>, _>>();
    Ok(match given {
        Expr::GetAttr(node) => Expr::GetAttr(at(node, GetAttr { expr: target(&node.expr, depth)?, name: node.name })),
        Expr::List(node) => Expr::List(at(node, List { items: all(&node.items)? })),
        Expr::Tuple(node) => Expr::Tuple(at(node, Tuple { items: all(&node.items)? })),
        other => expression(other, depth)?,
    })
}

/// An expression whose value something works on.
fn operand<'s>(given: &Expr<'s>, depth: usize) -> Result<Expr<'s>, Error> {
    let made = expression(given, depth)?;
    Ok(match given {
        // Small, or looked at already.
        Expr::Const(_) | Expr::Filter(_) | Expr::List(_) | Expr::Tuple(_) | Expr::Map(_) | Expr::Slice(_) => made,
        Expr::Test(_) | Expr::Compare(_) | Expr::UnaryOp(_) => made,
        _ => through(OPERAND, made, given.span()),
    })
}

fn expression<'s>(given: &Expr<'s>, depth: usize) -> Result<Expr<'s>, Error> {
    let depth = deeper(depth)?;
    let value = |expr: &Expr<'s>| expression(expr, depth);
    let worked_on = |expr: &Expr<'s>| operand(expr, depth);
    let option = |expr: &Option<Expr<'s>>| expr.as_ref().map(value).transpose();
    let all = |items: &[Expr<'s>]| items.iter().map(value).collect::<Result<Vec<_>, _>>();
    let span = given.span();
    let made = match given {
        Expr::Var(node) => return Ok(Expr::Var(at(node, Var { id: node.id }))),
        Expr::Const(node) => return Ok(Expr::Const(at(node, Const { value: node.value.clone() }))),
        Expr::UnaryOp(node) => {
            // It cannot be copied.
            let op = if matches!(node.op, UnaryOpKind::Not) { UnaryOpKind::Not } else { UnaryOpKind::Neg };
            return Ok(Expr::UnaryOp(at(node, UnaryOp { op, expr: value(&node.expr)? })));
        }
        Expr::BinOp(node) => {
            let (left, right) = (&node.left, &node.right);
            match node.op {
                BinOpKind::ScAnd | BinOpKind::ScOr => {
                    let (left, right) = (value(left)?, value(right)?);
                    return Ok(Expr::BinOp(at(node, BinOp { op: node.op, left, right })));
                }
                BinOpKind::Mul => {
                    let args = vec![CallArg::Pos(worked_on(right)?)];
                    let filter = Filter { name: TIMES, expr: Some(worked_on(left)?), args };
                    Expr::Filter(Spanned::new(filter, span))
                }
                op => {
                    let (left, right) = (worked_on(left)?, worked_on(right)?);
                    Expr::BinOp(at(node, BinOp { op, left, right }))
                }
            }
        }
        Expr::Compare(node) => {
            let compared = |next: &CompareOp<'s>| Ok(CompareOp { op: next.op, expr: operand(&next.expr, depth)? });
            let ops = node.ops.iter().map(compared).collect::<Result<_, Error>>()?;
            return Ok(Expr::Compare(at(node, Compare { expr: worked_on(&node.expr)?, ops })));
        }
        Expr::IfExpr(node) => {
            let (test_expr, true_expr) = (value(&node.test_expr)?, value(&node.true_expr)?);
            let made = IfExpr { test_expr, true_expr, false_expr: option(&node.false_expr)? };
            return Ok(Expr::IfExpr(at(node, made)));
        }
        Expr::Test(node) => {
            let (expr, args) = (worked_on(&node.expr)?, arguments(&node.args, depth)?);
            return Ok(Expr::Test(at(node, Test { name: node.name, expr, args })));
        }
        Expr::GetAttr(node) => {
            return Ok(Expr::GetAttr(at(node, GetAttr { expr: value(&node.expr)?, name: node.name })));
        }
        Expr::GetItem(node) => {
            let (expr, subscript_expr) = (value(&node.expr)?, worked_on(&node.subscript_expr)?);
            return Ok(Expr::GetItem(at(node, GetItem { expr, subscript_expr })));
        }
        Expr::Filter(node) => {
            let expr = node.expr.as_ref().map(worked_on).transpose()?;
            Expr::Filter(at(node, Filter { name: node.name, expr, args: arguments(&node.args, depth)? }))
        }
        Expr::Slice(node) => {
            let (start, stop, step) = (option(&node.start)?, option(&node.stop)?, option(&node.step)?);
            Expr::Slice(at(node, Slice { expr: value(&node.expr)?, start, stop, step }))
        }
        Expr::Call(node) => Expr::Call(at(node, call(node, depth)?)),
        Expr::List(node) => Expr::List(at(node, List { items: all(&node.items)? })),
        Expr::Tuple(node) => Expr::Tuple(at(node, Tuple { items: all(&node.items)? })),
        Expr::Map(node) => {
            let keys = node.keys.iter().map(worked_on).collect::<Result<_, _>>()?;
            Expr::Map(at(node, Map { keys, values: all(&node.values)? }))
        }
    };
    Ok(through(MADE, made, span))
}

fn call<'s>(node: &Call<'s>, depth: usize) -> Result<Call<'s>, Error> {
    let expr = match &node.expr {
        // A method's text is worked on.
        Expr::GetAttr(attribute) if !matches!(&attribute.expr, Expr::Var(name) if name.id == "self") => {
            let receiver = operand(&attribute.expr, deeper(depth)?)?;
            Expr::GetAttr(at(attribute, GetAttr { expr: receiver, name: attribute.name }))
        }
        // The name decides how a call is compiled.
        other => target(other, depth)?,
    };
    Ok(Call { expr, args: arguments(&node.args, depth)? })
}

fn arguments<'s>(args: &[CallArg<'s>], depth: usize) -> Result<Vec<CallArg<'s>>, Error> {
    let argument = |given: &CallArg<'s>| {
        Ok(match given {
            CallArg::Pos(expr) => CallArg::Pos(operand(expr, depth)?),
            CallArg::Kwarg(name, expr) => CallArg::Kwarg(name, operand(expr, depth)?),
            CallArg::PosSplat(expr) => CallArg::PosSplat(operand(expr, depth)?),
            CallArg::KwargSplat(expr) => CallArg::KwargSplat(operand(expr, depth)?),
        })
    };
    args.iter().map(argument).collect()
}

fn through<'s>(name: &'static str, expr: Expr<'s>, span: Span) -> Expr<'s> {
    Expr::Filter(Spanned::new(Filter { name, expr: Some(expr), args: Vec::new() }, span))
}

/// A node where another was.
fn at<T, U>(place: &Spanned<U>, node: T) -> Spanned<T> {
    Spanned::new(node, place.span())
}
