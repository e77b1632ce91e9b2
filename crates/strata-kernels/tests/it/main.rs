//! Every kernel against a plain f64 reference, at every level of this machine, and the promise that everything rests
//! on: a token's result does not depend on its company.

mod attention;
mod matmul;
mod probe;
mod rows;
mod support;
