//! Rounding of operands.

/// Bits of 2^-50, the smallest magnitude that survives as a bf16 operand.
pub(crate) const SMALLEST_OPERAND_BITS: u32 = (127 - 50) << 23;

/// Rounds an operand of a bf16 product to bf16, as f32.
///
/// Round to nearest, ties to even. NaN becomes the canonical quiet NaN. A magnitude below 2^-50 becomes +0, so
/// each product is zero or a multiple of 2^-114 and no partial sum can be denormal: flushing denormals, as the AMX
/// instruction does, changes nothing.
pub fn bf16_operand(x: f32) -> f32 {
    let bits = x.to_bits();
    // Infinity has a zero lower half and stays; the largest finite values round up into it. Choices instead of early returns, and a sum
    // that is not checked (only a NaN's could wrap): loops become vectors.
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000;
    let number = if bits & 0x7fff_ffff < SMALLEST_OPERAND_BITS { 0.0 } else { f32::from_bits(rounded) };
    if x.is_nan() { f32::NAN } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;
    use proptest::prelude::*;

    #[test]
    fn ties_go_to_even() {
        assert_eq!(bf16_operand(f32::from_bits(0x3f80_8000)).to_bits(), 0x3f80_0000);
        assert_eq!(bf16_operand(f32::from_bits(0x3f81_8000)).to_bits(), 0x3f82_0000);
        assert_eq!(bf16_operand(f32::from_bits(0x3f80_8001)).to_bits(), 0x3f81_0000);
    }

    #[test]
    fn magnitudes_below_two_to_the_minus_50_become_positive_zero() {
        let limit = 2f32.powi(-50);
        assert_eq!(bf16_operand(limit), limit);
        assert_eq!(bf16_operand(-limit), -limit);
        for x in [limit.next_down(), -limit.next_down(), f32::MIN_POSITIVE, 1e-45, -0.0] {
            assert_eq!(bf16_operand(x).to_bits(), 0, "{x:e}");
        }
    }

    #[test]
    fn infinities_stay_and_nan_is_canonical() {
        assert_eq!(bf16_operand(f32::INFINITY), f32::INFINITY);
        assert_eq!(bf16_operand(f32::NEG_INFINITY), f32::NEG_INFINITY);
        assert_eq!(bf16_operand(f32::MAX), f32::INFINITY);
        for bits in [0x7fff_ffff, 0xffff_ffff, 0x7f80_0001, 0xffc0_0000] {
            assert_eq!(bf16_operand(f32::from_bits(bits)).to_bits(), f32::NAN.to_bits());
        }
    }

    proptest! {
        #[test]
        fn other_values_round_as_the_half_crate_does(x in any::<f32>()) {
            prop_assume!(!x.is_nan() && x.abs() >= 2f32.powi(-50));
            prop_assert_eq!(bf16_operand(x).to_bits(), bf16::from_f32(x).to_f32().to_bits());
        }
    }
}
