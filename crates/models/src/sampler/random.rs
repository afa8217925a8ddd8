//! Arithmetic of the draw that is the same on every machine.

/// `e^x` for `x <= 0`, within 2^-50, the same bits everywhere: libraries differ in the last bit.
///
/// `x = k ln 2 + r` with `|r| <= ln 2 / 2`, then the Taylor series of `e^r` to degree 13, whose rest is below 2^-57.
pub(super) fn exp(x: f64) -> f64 {
    // ln 2 in two parts; the high one has 21 trailing zero bits, so that its product with `k` is exact.
    const LN2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
    const LN2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
    if x < -700.0 {
        return 0.0;
    }
    let k = (x * std::f64::consts::LOG2_E).round_ties_even();
    let r = x - k * LN2_HIGH - k * LN2_LOW;
    let mut sum = 1.0;
    for divisor in (1..=13).rev() {
        sum = 1.0 + sum * r / f64::from(divisor);
    }
    #[expect(clippy::cast_possible_truncation, reason = "an integer from -1010 to 0")]
    let exponent = (1023 + k as i64) as u64;
    sum * f64::from_bits(exponent << 52)
}

/// SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", figure 17): one 64-bit state,
/// every seed a good one, and a sequence that is the same for ever.
#[derive(Debug, Clone)]
pub(super) struct SplitMix64(u64);

impl SplitMix64 {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A multiple of 2^-53 in [0, 1), all equally likely.
    pub(super) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 * f64::from_bits((1023 - 53) << 52)
    }
}
