//! Arithmetic of the draw that is the same on every machine.

/// `e^x` for `x <= 0`, within 2^-50, the same bits everywhere: libraries differ in the last bit.
pub(super) fn exp(x: f64) -> f64 {
    let mut x = [x];
    exp_each(&mut x);
    x[0]
}

/// [`exp`] of each `x`, several at a time: nothing here keeps a compiler from using vectors.
///
/// `x = k ln 2 + r` with `|r| <= ln 2 / 2`, then the Taylor series of `e^r` to degree 13, whose rest is below 2^-57.
pub(super) fn exp_each<const N: usize>(x: &mut [f64; N]) {
    // ln 2 in two parts; the high one has 21 trailing zero bits, so that its product with `k` is exact.
    const LN2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
    const LN2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
    /// 1.5 * 2^52: adding it rounds to an integer, ties to even, and leaves it in the low bits.
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    let shifted = x.map(|x| x * std::f64::consts::LOG2_E + MAGIC);
    let mut r = *x;
    for (r, shifted) in r.iter_mut().zip(shifted) {
        let k = shifted - MAGIC;
        *r = *r - k * LN2_HIGH - k * LN2_LOW;
    }
    let mut sum = [1.0; N];
    for divisor in (1..=13).rev() {
        for (sum, r) in sum.iter_mut().zip(r) {
            *sum = 1.0 + *sum * r / f64::from(divisor);
        }
    }
    for ((x, sum), shifted) in x.iter_mut().zip(sum).zip(shifted) {
        let power = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
        *x = if *x < -700.0 { 0.0 } else { sum * power };
    }
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
