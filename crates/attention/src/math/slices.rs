//! The functions over slices.

use super::functions::{Exp, Function, Gelu, GeluTanh, Relu, Sigmoid, Silu, Tanh};
use crate::Isa;
#[cfg(target_arch = "aarch64")]
use crate::kernels::Neon;
#[cfg(target_arch = "x86_64")]
use crate::kernels::{Avx2, Avx512};
use crate::kernels::{Kernels, Scalar};

/// A function applied to each element of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// [`super::silu`].
    Silu,
    /// [`super::gelu`].
    Gelu,
    /// [`super::gelu_tanh`].
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// [`super::sigmoid`].
    Sigmoid,
    /// [`super::tanh`].
    Tanh,
    /// [`super::exp`].
    Exp,
}

/// Returns from the function with `$call`, run with the kernels of `$isa`; an instruction set this CPU lacks runs the scalar ones, which give the same bits.
macro_rules! dispatch {
    ($isa:expr, |$kernels:ident| $call:expr) => {{
        #[cfg(target_arch = "x86_64")]
        match $isa {
            Isa::Avx512 | Isa::Amx => {
                if let Some($kernels) = Avx512::detect() {
                    return $call;
                }
            }
            Isa::Avx2 => {
                if let Some($kernels) = Avx2::detect() {
                    return $call;
                }
            }
            Isa::Scalar | Isa::Neon => {}
        }
        #[cfg(target_arch = "aarch64")]
        if $isa == Isa::Neon
            && let Some($kernels) = Neon::detect()
        {
            return $call;
        }
        let (_, $kernels) = ($isa, Scalar);
        $call
    }};
}

macro_rules! with_function {
    ($activation:expr, |$f:ident| $call:expr) => {
        match $activation {
            Activation::Silu => {
                let $f = Silu;
                $call
            }
            Activation::Gelu => {
                let $f = Gelu;
                $call
            }
            Activation::GeluTanh => {
                let $f = GeluTanh;
                $call
            }
            Activation::Relu => {
                let $f = Relu;
                $call
            }
            Activation::Sigmoid => {
                let $f = Sigmoid;
                $call
            }
            Activation::Tanh => {
                let $f = Tanh;
                $call
            }
            Activation::Exp => {
                let $f = Exp;
                $call
            }
        }
    };
}

/// [`super::exp`] of each element, in place.
pub fn exp_slice(isa: Isa, x: &mut [f32]) {
    activate(isa, Activation::Exp, x);
}

/// The activation of each element, in place.
pub fn activate(isa: Isa, activation: Activation, x: &mut [f32]) {
    fn run<F: Function>(isa: Isa, f: F, x: &mut [f32]) {
        dispatch!(isa, |kernels| kernels.map(f, x));
    }
    with_function!(activation, |f| run(isa, f, x));
}

/// A gated linear unit, in place of the gate: `gate[i] = activation(gate[i]) * up[i]`; SwiGLU with [`Activation::Silu`].
///
/// # Panics
/// If the lengths differ.
pub fn glu(isa: Isa, activation: Activation, gate: &mut [f32], up: &[f32]) {
    fn run<F: Function>(isa: Isa, f: F, gate: &mut [f32], up: &[f32]) {
        dispatch!(isa, |kernels| kernels.gate(f, gate, up));
    }
    with_function!(activation, |f| run(isa, f, gate, up));
}

/// Sum of a row: element `i` joins lane `i % 8`, ascending; lanes combine as `((0+4)+(2+6)) + ((1+5)+(3+7))`.
pub fn sum(isa: Isa, x: &[f32]) -> f32 {
    dispatch!(isa, |kernels| kernels.sum(x, false))
}

/// Sum of the squares of a row in the lanes of [`sum`], each square added by a fused multiply-add.
pub fn sum_squares(isa: Isa, x: &[f32]) -> f32 {
    dispatch!(isa, |kernels| kernels.sum(x, true))
}
