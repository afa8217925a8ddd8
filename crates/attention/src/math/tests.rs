use proptest::prelude::*;

use super::*;
use crate::Isa;
use crate::kernels::OPERAND_FLOOR;

/// Distance of `got` from `want` in units of the last place of `want` as f32.
fn ulps(got: f32, want: f64) -> f64 {
    let exponent = want.abs().log2().floor().max(-126.0);
    (f64::from(got) - want).abs() / (exponent - 23.0).exp2()
}

/// Every `step`-th f32 between two of the same sign, by bits.
fn sweep(from: f32, to: f32, step: usize) -> impl Iterator<Item = f32> {
    let (a, b) = (from.to_bits().min(to.to_bits()), from.to_bits().max(to.to_bits()));
    (a..=b).step_by(step).map(f32::from_bits)
}

#[test]
fn exp_is_within_one_and_a_half_ulp() {
    let mut worst: (f64, f32) = (0.0, 0.0);
    for x in sweep(-1e-9, -86.6, 97).chain(sweep(1e-9, 88.72, 97)) {
        let error = ulps(exp(x), f64::from(x).exp());
        if error > worst.0 {
            worst = (error, x);
        }
    }
    println!("worst: {} ULP at {}", worst.0, worst.1);
    assert!(worst.0 <= 1.5, "{} ULP at {}", worst.0, worst.1);
}

#[test]
fn exp_of_a_score_is_within_three_ulp_and_an_operand_of_a_product() {
    let mut worst: (f64, f32) = (0.0, 0.0);
    for x in sweep(-1e-9, -34.657, 97) {
        let got = exp_of_score(x);
        assert!(got == 0.0 || got >= OPERAND_FLOOR, "exp_of_score({x}) = {got:e}");
        let error = ulps(got, f64::from(x).exp());
        if error > worst.0 {
            worst = (error, x);
        }
    }
    println!("worst: {} ULP at {}", worst.0, worst.1);
    assert!(worst.0 <= 3.0, "{} ULP at {}", worst.0, worst.1);
    assert_eq!([0.0, -0.0, -1e-40].map(exp_of_score), [1.0; 3]);
    assert_eq!([-34.658, -1e30, f32::NEG_INFINITY].map(|x| exp_of_score(x).to_bits()), [0; 3]);
    for bits in [0x7fc0_0000, 0xffc0_0000, 0x7fc0_0001, 0x7fff_ffff, 0xffff_ffff, 0x7f80_0001] {
        assert!(exp_of_score(f32::from_bits(bits)).is_nan(), "{bits:x}");
    }
}

#[test]
fn exp_of_special_values() {
    assert_eq!(exp(0.0).to_bits(), 1f32.to_bits());
    assert_eq!(exp(-0.0).to_bits(), 1f32.to_bits());
    assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
    assert_eq!(exp(-1e30).to_bits(), 0);
    assert_eq!(exp(f32::INFINITY), f32::INFINITY);
    assert_eq!(exp(89.0), f32::INFINITY);
    assert!(exp(88.722).is_finite());
    assert!(exp(f32::NAN).is_nan() && exp(-f32::NAN).is_nan());
}

#[test]
fn exp_never_gives_a_denormal() {
    for x in sweep(-86.0, -90.0, 1) {
        let y = exp(x);
        assert!(y == 0.0 || y.is_normal(), "exp({x}) = {y:e}");
    }
}

#[test]
fn tanh_and_sigmoid_stay_near_the_exact_values() {
    let (mut tanh_worst, mut sigmoid_worst) = (0f64, 0f64);
    for x in sweep(1e-6, 20.0, 997).chain(sweep(-1e-6, -20.0, 997)) {
        tanh_worst = tanh_worst.max(ulps(tanh(x), f64::from(x).tanh()));
        sigmoid_worst = sigmoid_worst.max(ulps(sigmoid(x), 1.0 / (1.0 + (-f64::from(x)).exp())));
    }
    println!("tanh {tanh_worst} ULP, sigmoid {sigmoid_worst} ULP");
    assert!(tanh_worst <= 3.0 && sigmoid_worst <= 3.5, "tanh {tanh_worst}, sigmoid {sigmoid_worst}");
    assert_eq!([tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)], [1.0, -1.0]);
    assert_eq!([sigmoid(f32::INFINITY), sigmoid(f32::NEG_INFINITY)], [1.0, 0.0]);
    assert!(tanh(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan());
}

/// erf by its Maclaurin series in f64, for |x| up to 4.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..120 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn gelu_is_near_its_formulas() {
    for x in sweep(1e-4, 5.5, 997).chain(sweep(-1e-4, -5.5, 997)) {
        let wide = f64::from(x);
        let exact = 0.5 * wide * (1.0 + erf(wide / std::f64::consts::SQRT_2));
        assert!(
            (f64::from(gelu(x)) - exact).abs() <= 3e-7 * wide.abs().max(1.0),
            "gelu({x}) = {}, not {exact}",
            gelu(x)
        );
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044_715 * wide.powi(3));
        let approximate = 0.5 * wide * (1.0 + inner.tanh());
        assert!((f64::from(gelu_tanh(x)) - approximate).abs() <= 3e-7 * wide.abs().max(1.0), "gelu_tanh({x})");
        assert!((f64::from(silu(x)) - wide / (1.0 + (-wide).exp())).abs() <= 3e-7 * wide.abs().max(1.0), "silu({x})");
    }
    for x in [6.0, 50.0, 1e30] {
        assert_eq!([gelu(x), gelu_tanh(x), silu(100.0 * x)], [x, x, 100.0 * x]);
        assert_eq!([gelu(-x), gelu_tanh(-x * 10.0), silu(-100.0 * x)], [0.0; 3]);
    }
    assert_eq!([gelu(0.0), gelu_tanh(0.0), silu(0.0), relu(-1.0), relu(2.0)], [0.0, 0.0, 0.0, 0.0, 2.0]);
    assert!(gelu(f32::NAN).is_nan() && gelu_tanh(f32::NAN).is_nan() && silu(f32::NAN).is_nan());
}

#[test]
fn sin_cos_is_within_1e_7_up_to_a_million() {
    let mut x = -1e6;
    while x <= 1e6 {
        let (sin, cos) = sin_cos(x);
        let error = (f64::from(sin) - x.sin()).abs().max((f64::from(cos) - x.cos()).abs());
        assert!(error <= 1e-7, "sin_cos({x}) = ({sin}, {cos})");
        x += 1.234_567_89;
    }
    assert_eq!(sin_cos(0.0), (0.0, 1.0));
    assert!(sin_cos(f64::NAN).0.is_nan() && sin_cos(f64::INFINITY).1.is_nan());
}

const ALL: [Activation; 7] = [
    Activation::Silu,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Relu,
    Activation::Sigmoid,
    Activation::Tanh,
    Activation::Exp,
];

fn one(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => silu(x),
        Activation::Gelu => gelu(x),
        Activation::GeluTanh => gelu_tanh(x),
        Activation::Relu => relu(x),
        Activation::Sigmoid => sigmoid(x),
        Activation::Tanh => tanh(x),
        Activation::Exp => exp(x),
    }
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

proptest! {
    #[test]
    fn slices_give_the_bits_of_single_values(x in prop::collection::vec(prop_oneof![any::<f32>(), -100f32..100.0], 0..67), up in -2f32..2.0) {
        for isa in Isa::available() {
            for activation in ALL {
                let mut got = x.clone();
                activate(isa, activation, &mut got);
                let ups = vec![up; x.len()];
                let mut gated = x.clone();
                glu(isa, activation, &mut gated, &ups);
                for (i, &x) in x.iter().enumerate() {
                    prop_assert!(same(got[i], one(activation, x)), "{:?} of {} on {:?}: {}", activation, x, isa, got[i]);
                    prop_assert!(same(gated[i], one(activation, x) * up), "gated {:?} of {}", activation, x);
                }
            }
        }
    }

    #[test]
    fn sums_follow_the_eight_lanes(x in prop::collection::vec(-100f32..100.0, 0..67)) {
        let lanes = |f: fn(f32, f32) -> f32| {
            let mut l = [0f32; 8];
            x.iter().enumerate().for_each(|(i, &x)| l[i % 8] = f(x, l[i % 8]));
            ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
        };
        for isa in Isa::available() {
            prop_assert_eq!(sum(isa, &x).to_bits(), lanes(|x, l| l + x).to_bits());
            prop_assert_eq!(sum_squares(isa, &x).to_bits(), lanes(|x, l| x.mul_add(x, l)).to_bits());
        }
    }
}
