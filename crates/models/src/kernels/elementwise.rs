//! Functions of one element, sums and products of two: in place, on the left operand.

use super::{for_rows, softplus::softplus};
use multiversion::multiversion;
use plimsoll_attention::{Isa, math};
use plimsoll_program::{Activation, Unary};

/// `x[i] = function(x[i])`.
pub(crate) fn unary(x: &mut [f32], function: Unary, isa: Isa, threads: usize) {
    use math::Activation as Math;
    for_rows(x, 1, threads, |_, x| match function {
        Unary::Silu => math::activate(isa, Math::Silu, x),
        Unary::Sigmoid => math::activate(isa, Math::Sigmoid, x),
        Unary::Gelu => math::activate(isa, Math::Gelu, x),
        Unary::GeluTanh => math::activate(isa, Math::GeluTanh, x),
        Unary::Relu => math::activate(isa, Math::Relu, x),
        Unary::Tanh => math::activate(isa, Math::Tanh, x),
        Unary::Exp => math::activate(isa, Math::Exp, x),
        Unary::Neg => each(x, |x| -x),
        Unary::Square => each(x, |x| x * x),
        Unary::Sqrt => each(x, f32::sqrt),
        Unary::Softplus => each(x, softplus),
    });
}

/// `gate[i] = activation(gate[i]) * up[i]`.
pub(crate) fn glu(gate: &mut [f32], up: &[f32], activation: Activation, isa: Isa, threads: usize) {
    assert_eq!(gate.len(), up.len(), "gate and up differ in length");
    let activation = match activation {
        Activation::Silu => math::Activation::Silu,
        Activation::Gelu => math::Activation::Gelu,
        Activation::GeluTanh => math::Activation::GeluTanh,
        Activation::Relu => math::Activation::Relu,
        Activation::Sigmoid => math::Activation::Sigmoid,
    };
    for_rows(gate, 1, threads, |first, gate| math::glu(isa, activation, gate, &up[first..][..gate.len()]));
}

/// `a[i] = a[i] + b[i]`; a shorter `b` is one row, added to every row of `a`.
pub(crate) fn add(a: &mut [f32], b: &[f32], threads: usize) {
    zip(a, b, threads, add_each);
}

/// `a[i] = a[i] * b[i]`; a shorter `b` is one row, and multiplies every row of `a`.
pub(crate) fn mul(a: &mut [f32], b: &[f32], threads: usize) {
    zip(a, b, threads, mul_each);
}

/// `x[i] = x[i] * factor`.
pub(crate) fn scale(x: &mut [f32], factor: f32, threads: usize) {
    for_rows(x, 1, threads, |_, x| each(x, |x| x * factor));
}

/// `x[i] = cap * tanh(x[i] / cap)`.
pub(crate) fn softcap(x: &mut [f32], cap: f32, threads: usize) {
    for_rows(x, 1, threads, |_, x| each(x, |x| cap * math::tanh(x / cap)));
}

/// Sum of all elements, in f64 and ascending order: it may span rows, so no lanes are promised, only the order.
#[expect(clippy::cast_possible_truncation, reason = "summed in f64, kept in f32")]
pub(crate) fn sum(x: &[f32]) -> f32 {
    x.iter().map(|&x| f64::from(x)).sum::<f64>() as f32
}

fn zip(a: &mut [f32], b: &[f32], threads: usize, f: impl Fn(&mut [f32], &[f32]) + Sync) {
    if a.is_empty() {
        return;
    }
    assert!(!b.is_empty() && a.len().is_multiple_of(b.len()), "{} elements are no rows of {}", a.len(), b.len());
    if a.len() == b.len() {
        for_rows(a, 1, threads, |first, a| f(a, &b[first..]));
    } else {
        for_rows(a, b.len(), threads, |_, a| a.chunks_exact_mut(b.len()).for_each(|row| f(row, b)));
    }
}

fn each(x: &mut [f32], f: impl Fn(f32) -> f32) {
    for x in x {
        *x = f(*x);
    }
}

/// Where it is compiled for more than one instruction set, the compiler has wider registers and gives the same bits: no product is fused with a sum
/// unless the source says so.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn add_each(a: &mut [f32], b: &[f32]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a += b;
    }
}

/// As [`add_each`].
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn mul_each(a: &mut [f32], b: &[f32]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a *= b;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn activations_have_their_known_values() {
        let check = |activation, want: [f32; 3]| {
            let mut x = [-1.0, 0.0, 2.0];
            glu(&mut x, &[1.0, 1.0, 10.0], activation, Isa::Scalar, 1);
            for (x, want) in x.into_iter().zip(want) {
                assert!((x - want).abs() < 2e-5, "{activation:?}: {x}, want {want}");
            }
        };
        check(Activation::Silu, [-0.268_941_4, 0.0, 17.615_942]);
        check(Activation::Gelu, [-0.158_655_25, 0.0, 19.544_997]);
        check(Activation::GeluTanh, [-0.158_808_01, 0.0, 19.545_977]);
        check(Activation::Relu, [0.0, 0.0, 20.0]);
        check(Activation::Sigmoid, [0.268_941_4, 0.5, 8.807_971]);
    }

    #[test]
    fn a_row_operand_is_applied_to_every_row() {
        let mut a = [1.0, 2.0, 3.0, 4.0];
        add(&mut a, &[10.0, 20.0], 1);
        assert_eq!(a, [11.0, 22.0, 13.0, 24.0]);
        mul(&mut a, &[0.0, 1.0], 1);
        assert_eq!(a, [0.0, 22.0, 0.0, 24.0]);
    }

    proptest! {
        #[test]
        fn bits_are_equal_for_every_split_and_instruction_set(len in 1usize..50_000, threads in 1usize..=4) {
            let x: Vec<f32> = (0..len).map(|i| (i as f32 - len as f32 / 2.0) * 0.003).collect();
            for activation in [Activation::Silu, Activation::GeluTanh] {
                let mut want = x.clone();
                glu(&mut want, &x, activation, Isa::Scalar, 1);
                for isa in Isa::available() {
                    let mut got = x.clone();
                    glu(&mut got, &x, activation, isa, threads);
                    prop_assert!(got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()));
                }
            }
        }
    }
}
