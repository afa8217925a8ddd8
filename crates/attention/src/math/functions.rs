//! Elementary functions, written once for one value and for lanes of values.

use crate::kernels::Values;

/// A function of one value, for any number of lanes.
pub(crate) trait Function: Copy {
    fn eval<V: Values>(self, x: V) -> V;
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident, $one:ident, |$x:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $name;
        impl Function for $name {
            #[inline(always)]
            fn eval<V: Values>(self, $x: V) -> V {
                $body
            }
        }
        $(#[$doc])*
        pub fn $one(x: f32) -> f32 {
            $name.eval(x)
        }
    )*};
}

functions! {
    /// `e^x`. Results below 2^-125 are 0, so no denormal ever appears; `exp(0) = 1`; NaN stays NaN.
    Exp, exp, |x| exp_of(x);
    /// Hyperbolic tangent.
    Tanh, tanh, |x| tanh_of(x);
    /// `1 / (1 + e^-x)`.
    Sigmoid, sigmoid, |x| sigmoid_of(x);
    /// `x * sigmoid(x)`.
    Silu, silu, |x| x.times(sigmoid_of(x));
    /// `x * (1 + erf(x / sqrt(2))) / 2`.
    Gelu, gelu, |x| gelu_of(x);
    /// GELU by its tanh approximation, `x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2`.
    GeluTanh, gelu_tanh, |x| gelu_tanh_of(x);
    /// `max(x, 0)`; NaN gives 0.
    Relu, relu, |x| x.larger(V::splat(0.0));
}

/// `cap * tanh(x / cap)`.
#[inline(always)]
pub(crate) fn softcap<V: Values>(x: V, cap: V) -> V {
    cap.times(tanh_of(x.over(cap)))
}

/// `c[0] + c[1] x + c[2] x^2 ..`, by Horner's rule.
#[inline(always)]
fn polynomial<V: Values, const N: usize>(x: V, c: [f32; N]) -> V {
    let mut sum = V::splat(c[N - 1]);
    for i in (0..N - 1).rev() {
        sum = sum.fma(x, V::splat(c[i]));
    }
    sum
}

#[inline(always)]
fn exp_of<V: Values>(x: V) -> V {
    V::splat(88.8).if_less(x, V::splat(f32::INFINITY), exp_unbounded(x))
}

/// 1.5 * 2^23: adding it leaves an integer in the low bits.
const MAGIC: f32 = 12_582_912.0;

/// [`exp`] where `x` is at most 88.8, or NaN.
#[inline(always)]
pub(crate) fn exp_unbounded<V: Values>(x: V) -> V {
    const LN_2_REST: f32 = -1.904_654_3e-9;
    /// `-125 ln 2`, rounded towards zero.
    const LOWEST: f32 = -86.643_394;
    let shifted = x.fma(V::splat(std::f32::consts::LOG2_E), V::splat(MAGIC));
    let n = shifted.minus(V::splat(MAGIC));
    let r = n.fma(V::splat(-std::f32::consts::LN_2), x);
    let r = n.fma(V::splat(-LN_2_REST), r);
    // (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2.
    let p = polynomial(r, [0.5, 0.166_665_76, 0.041_666_467, 0.008_363_18, 0.001_393_365_1]);
    let y = r.times(r).fma(p, r).plus(V::splat(1.0));
    let y = y.times_power_of_two(n, shifted);
    x.if_less(V::splat(LOWEST), V::splat(0.0), y)
}

/// `e^x` of a score less the largest one, so of `x` that is at most 0 or NaN: within 3 ULP, with `e^0 = 1`. Below 2^-50, where a bf16 product
/// drops an operand, it is 0: no sum has a part that its product lacks.
#[inline(always)]
pub(crate) fn exp_of_score<V: Values>(x: V) -> V {
    /// A little above `-50 ln 2`.
    const LOWEST: f32 = -34.657;
    /// Leaves one more than the integer in the low bits.
    const NEXT: f32 = MAGIC + 1.0;
    let next = x.fma(V::splat(std::f32::consts::LOG2_E), V::splat(NEXT));
    let n = next.minus(V::splat(NEXT));
    // What this ln 2 lacks is 1e-7 of the result where `n` is -50.
    let r = n.fma(V::splat(-std::f32::consts::LN_2), x);
    // e^r on |r| <= ln(2) / 2.
    let y = polynomial(r, [1.0, 0.999_999_7, 0.499_991_48, 0.166_676_37, 0.041_898_02, 0.008_290_298]);
    x.if_less(V::splat(LOWEST), V::splat(0.0), y.times_small_power_of_two(n, next))
}

#[inline(always)]
fn tanh_of<V: Values>(x: V) -> V {
    let a = x.magnitude();
    let z = x.times(x);
    // (tanh(x) - x) / x^3 on |x| < 0.625.
    let p = polynomial(z, [-0.333_333_34, 0.133_333_04, -0.053_959_407, 0.021_769_962, -0.008_346_98, 0.002_295_841_5]);
    let small = x.times(z).fma(p, x);
    let e = exp_of(a.plus(a));
    let large = V::splat(1.0).minus(V::splat(2.0).over(e.plus(V::splat(1.0))));
    a.if_less(V::splat(0.625), small, large.with_sign_of(x))
}

#[inline(always)]
fn sigmoid_of<V: Values>(x: V) -> V {
    V::splat(1.0).over(exp_of(V::splat(0.0).minus(x)).plus(V::splat(1.0)))
}

#[inline(always)]
fn erf_of<V: Values>(x: V) -> V {
    let a = x.magnitude();
    let z = x.times(x);
    // erf(x) / x on |x| < 1.
    let p = polynomial(
        z,
        [
            std::f32::consts::FRAC_2_SQRT_PI,
            -0.376_126_38,
            0.112_837_83,
            -0.026_865_438,
            0.005_221_053_5,
            -0.000_848_439_64,
            0.000_112_682_54,
            -9.673_59e-6,
        ],
    );
    let small = x.times(p);
    // x e^(x^2) erfc(x) as a polynomial in 1/x on 1 .. 4.25; past 4 the result rounds to 1.
    let t = V::splat(1.0).over(a);
    let q = polynomial(
        t,
        [
            0.564_025_7,
            0.002_438_215_5,
            -0.293_995_14,
            -0.000_112_761_96,
            0.657_753_1,
            -1.030_856_7,
            0.801_825_76,
            -0.331_798_1,
            0.058_303_576,
        ],
    );
    let tail = exp_of(V::splat(0.0).minus(z)).times(q).times(t);
    let large = V::splat(1.0).minus(tail);
    // NaN takes no arm of the comparison below that is not NaN itself.
    let large = V::splat(4.0).if_less(a, V::splat(1.0), large);
    a.if_less(V::splat(1.0), small, large.with_sign_of(x))
}

#[inline(always)]
fn gelu_of<V: Values>(x: V) -> V {
    let erf = erf_of(x.times(V::splat(std::f32::consts::FRAC_1_SQRT_2)));
    x.times(V::splat(0.5)).times(erf.plus(V::splat(1.0)))
}

#[inline(always)]
fn gelu_tanh_of<V: Values>(x: V) -> V {
    let cube = x.times(x).times(x);
    let inner = cube.fma(V::splat(0.044_715), x).times(V::splat(0.797_884_6));
    x.times(V::splat(0.5)).times(tanh_of(inner).plus(V::splat(1.0)))
}
