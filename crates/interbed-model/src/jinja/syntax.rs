//! Defines the syntax tree of a template.

use std::sync::{Arc, OnceLock};

pub(super) type Name = Arc<str>;

/// The names of a scope, and what each name holds when the scope is entered.
pub(super) type Names = OnceLock<Vec<(Name, Load)>>;

/// Says what a name holds when its scope is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// The name has no value when the scope is entered. Statements of the scope assign one before they read the name.
    Missing,
    /// The name is a parameter, such as a macro's argument or a loop's item. It receives its value right after the
    /// scope is entered.
    Parameter,
    /// The name has the value that it has in the enclosing scope.
    Outer,
    /// No enclosing scope defines the name. The name has the first of these values that exists: the one that the
    /// template assigned to it at top level, the caller's variable with this name, or the global function with this
    /// name.
    Context,
}

#[derive(Debug)]
pub(super) struct Template {
    pub(super) body: Vec<Statement>,
    pub(super) names: Names,
}

#[derive(Debug)]
pub(super) struct Statement {
    pub(super) kind: StatementKind,
    pub(super) line: usize,
}

#[derive(Debug)]
pub(super) enum StatementKind {
    Text(Arc<str>),
    Print(Expression),
    /// An `if` statement: each condition with its body, and the statements after `else`.
    If(Vec<(Expression, Vec<Statement>)>, Vec<Statement>),
    For(Arc<For>),
    Set(Target, Expression),
    SetBlock(SetBlock),
    With(With),
    Macro(Arc<Macro>),
    /// A `{% call %}` block: the call, and the block's body as a macro.
    CallBlock(Expression, Arc<Macro>),
    FilterBlock(FilterBlock),
    Block(Arc<Block>),
    /// A `{% generation %}` block, which has its own scope.
    Generation(Scoped),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) iterable: Expression,
    pub(super) test: Option<Expression>,
    pub(super) body: Vec<Statement>,
    pub(super) otherwise: Vec<Statement>,
    pub(super) recursive: bool,
    /// Whether the body reads `loop`.
    pub(super) has_loop: OnceLock<bool>,
    pub(super) names: Names,
    pub(super) test_names: Names,
    pub(super) otherwise_names: Names,
}

#[derive(Debug)]
pub(super) struct SetBlock {
    pub(super) target: Target,
    pub(super) filter: Option<Expression>,
    pub(super) scoped: Scoped,
}

#[derive(Debug)]
pub(super) struct With {
    pub(super) targets: Vec<Target>,
    pub(super) values: Vec<Expression>,
    pub(super) scoped: Scoped,
}

#[derive(Debug)]
pub(super) struct FilterBlock {
    /// A chain of filters, of which the first has no operand.
    pub(super) filter: Expression,
    pub(super) scoped: Scoped,
}

#[derive(Debug)]
pub(super) struct Block {
    pub(super) scoped: Scoped,
}

/// Statements that have a scope of their own.
#[derive(Debug)]
pub(super) struct Scoped {
    pub(super) body: Vec<Statement>,
    pub(super) names: Names,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Name,
    pub(super) arguments: Vec<Name>,
    /// The default values of the last arguments.
    pub(super) defaults: Vec<Expression>,
    pub(super) scoped: Scoped,
    /// Says which of `caller`, `kwargs` and `varargs` the body reads.
    pub(super) special: OnceLock<Special>,
}

/// Says which special names the body of a macro reads besides its arguments.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Special {
    pub(super) caller: bool,
    pub(super) kwargs: bool,
    pub(super) varargs: bool,
}

/// The left side of an assignment.
#[derive(Debug)]
pub(super) enum Target {
    Name(Name),
    Tuple(Vec<Target>),
    /// An attribute of a namespace: the name of the namespace, and the name of the attribute.
    Attribute(Name, Name),
}

#[derive(Debug)]
pub(super) struct Expression {
    pub(super) kind: ExpressionKind,
    pub(super) line: usize,
}

#[derive(Debug)]
pub(super) enum ExpressionKind {
    Constant(Constant),
    Name(Name),
    List(Vec<Expression>),
    Tuple(Vec<Expression>),
    Dict(Vec<(Expression, Expression)>),
    Unary(Unary, Box<Expression>),
    Binary(Binary, Box<Expression>, Box<Expression>),
    Concat(Vec<Expression>),
    Compare(Box<Expression>, Vec<(Comparison, Expression)>),
    And(Box<Expression>, Box<Expression>),
    Or(Box<Expression>, Box<Expression>),
    /// A conditional expression: the condition, the value if the condition holds, and the value otherwise.
    Condition(Box<Expression>, Box<Expression>, Option<Box<Expression>>),
    Attribute(Box<Expression>, Name),
    Item(Box<Expression>, Box<Expression>),
    Slice(Box<Expression>, [Option<Box<Expression>>; 3]),
    Call(Box<Expression>, Arguments),
    Filter(Option<Box<Expression>>, Name, Arguments),
    Test(Box<Expression>, Name, Arguments),
}

#[derive(Debug, Clone)]
pub(super) enum Constant {
    None,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(Arc<str>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unary {
    Not,
    Minus,
    Plus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}

/// The arguments of a call as they are written.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expression>,
    pub(super) named: Vec<(Name, Expression)>,
    /// The argument `*list`, whose items become positional arguments.
    pub(super) list: Option<Box<Expression>>,
    pub(super) dict: Option<Box<Expression>>,
}
