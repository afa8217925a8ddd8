//! The values that the 4-bit codes of table formats stand for.

/// Codes of IQ4_NL and IQ4_XS: 16 steps, finer around zero, from `ggml-common.h` of ggml.
pub(crate) const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Codes of MXFP4: E2M1 floats doubled to whole numbers, sign in the upper bit (OCP Microscaling Formats 1.0, section
/// 5.3.3). The code of minus zero stands for plain zero, as in ggml. The scale takes the doubling back.
pub(crate) const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of the power of two that an E8M0 exponent names, 2^(exponent - 128), as the upper 16 bits of an f32: always exact.
///
/// ggml gives the exponent 255, which is NaN in the OCP format, the value 2^127 like any other.
pub(crate) const fn half_e8m0_bits(exponent: u8) -> u16 {
    match exponent {
        // 2^-128 and 2^-127 are denormal.
        0 => 0x0020,
        1 => 0x0040,
        exponent => (exponent as u16 - 1) << 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_are_halved_powers_of_two() {
        for exponent in 0..=255u8 {
            let value = f32::from_bits(u32::from(half_e8m0_bits(exponent)) << 16);
            assert_eq!(f64::from(value), 2f64.powi(i32::from(exponent) - 128), "{exponent}");
        }
    }
}
