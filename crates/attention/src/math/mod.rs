//! Our own elementary functions: same bits on every instruction set and at every position of a slice.
//!
//! Errors against the exact value, as tested: [`exp`] within 1.5 ULP, [`tanh`] within 3 ULP, [`sigmoid`] within 3.5 ULP, [`sin_cos`] within 1e-7
//! for arguments up to 1e6. Polynomials were fitted for this crate by Chebyshev interpolation; the reductions are those of Cody and Waite, 1980.

mod functions;
mod sin_cos;
mod slices;
#[cfg(test)]
mod tests;

pub(crate) use functions::{Exp, Function, exp_of_score, exp_unbounded, softcap};
pub use functions::{exp, gelu, gelu_tanh, relu, sigmoid, silu, tanh};
pub use sin_cos::sin_cos;
pub use slices::{Activation, activate, exp_slice, glu, sum, sum_squares};
