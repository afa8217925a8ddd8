//! `ln(1 + e^x)`, without the system's library: the same bits on every machine.

use plimsoll_attention::math::exp;

/// `ln(1 + e^x)`; `x` itself above 20, as torch has it, where the difference is below 2.1e-9. Within 4e-7 of the exact value, relatively.
#[expect(clippy::cast_possible_truncation, reason = "computed in f64, used in f32")]
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { ln_1p(f64::from(exp(x))) as f32 }
}

/// `ln(1 + y)` for `y` from 0 on; NaN stays NaN.
fn ln_1p(y: f64) -> f64 {
    if y < 1e-4 {
        // The series; the first term left out is below 3e-13 of the result.
        return y - y * y * (0.5 - y * (1.0 / 3.0));
    }
    if !y.is_finite() {
        return y;
    }
    let x = 1.0 + y;
    // x = m 2^n with m in [sqrt(1/2), sqrt(2)): ln x = n ln 2 + 2 artanh((m - 1) / (m + 1)).
    let bits = x.to_bits();
    let (exponent, fraction) = ((bits >> 52) as i64 - 1023, bits & ((1 << 52) - 1));
    let m = f64::from_bits(fraction | (1023 << 52));
    let (m, n) = if m > std::f64::consts::SQRT_2 { (m * 0.5, exponent + 1) } else { (m, exponent) };
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    // Taylor series of artanh; on |s| <= 0.1716 the first term left out is below 1e-12.
    let series = 1.0
        + z * (1.0 / 3.0 + z * (1.0 / 5.0 + z * (1.0 / 7.0 + z * (1.0 / 9.0 + z * (1.0 / 11.0 + z * (1.0 / 13.0))))));
    n as f64 * std::f64::consts::LN_2 + 2.0 * s * series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_is_near_its_formula() {
        for step in -8000..=2500 {
            let x = step as f32 * 0.01;
            let want = f64::from(x).exp().ln_1p();
            let got = f64::from(softplus(x));
            assert!((got - want).abs() <= 4e-7 * want, "softplus({x}) = {got}, not {want}");
        }
    }

    #[test]
    fn softplus_of_special_values() {
        assert_eq!([softplus(20.5), softplus(1e30), softplus(f32::INFINITY)], [20.5, 1e30, f32::INFINITY]);
        assert_eq!([softplus(-200.0), softplus(f32::NEG_INFINITY)], [0.0, 0.0]);
        assert!(softplus(f32::NAN).is_nan());
        assert_eq!(softplus(0.0), std::f32::consts::LN_2);
    }
}
