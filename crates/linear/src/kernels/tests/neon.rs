//! What holds on AArch64 alone.

use std::arch::asm;
use std::hint::black_box;

use super::*;

/// Runs `f` with denormals flushed to zero, operands and results.
fn flushing<T>(f: impl FnOnce() -> T) -> T {
    const FLUSH_TO_ZERO: u64 = 1 << 24;
    let (mut f, mut result) = (Some(f), None);
    // A call that the compiler cannot look through: it knows nothing of the switch, and would move operations over it.
    let mut once = || result = f.take().map(|f| f());
    let call: &mut dyn FnMut() = black_box(&mut once);
    let before: u64;
    // SAFETY: reads the control register of floating point; then sets one bit of it for as long as the call takes.
    unsafe {
        asm!("mrs {}, fpcr", out(reg) before);
        asm!("msr fpcr, {}", in(reg) before | FLUSH_TO_ZERO);
    }
    call();
    // SAFETY: as it was.
    unsafe { asm!("msr fpcr, {}", in(reg) before) };
    result.unwrap()
}

#[test]
fn the_switch_flushes_denormals() {
    let half_of_the_smallest = || {
        let mut x = f32::MIN_POSITIVE;
        // SAFETY: a multiplication of two registers.
        unsafe { asm!("fmul {x:s}, {x:s}, {half:s}", x = inout(vreg) x, half = in(vreg) 0.5f32) };
        x.to_bits()
    };
    assert_eq!((half_of_the_smallest(), flushing(half_of_the_smallest)), (1 << 22, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Operands of all magnitudes, denormals among them: what is left of them leaves none in a chain.
    #[test]
    fn flushing_denormals_changes_no_product(
        k in 1usize..=300, rows in 1usize..=8,
        bytes in prop::collection::vec(any::<u8>(), 977), bits in prop::collection::vec(any::<u32>(), 613),
        tiny in 0u32..3,
    ) {
        let Some(kernel) = Neon::detect() else { unreachable!("every AArch64 CPU has NEON") };
        // Any exponent, one around 2^-50, or denormals beside ordinary numbers.
        let values: Vec<f32> = bits
            .into_iter()
            .map(|bits| match tiny {
                0 => bits,
                1 => (bits & 0x807f_ffff) | ((74 + bits % 6) << 23),
                _ if bits.is_multiple_of(2) => bits & 0x807f_ffff,
                _ => (bits & 0x807f_ffff) | (127 << 23),
            })
            .map(f32::from_bits)
            .collect();
        let mut rounded = [vec![0.0; values.len()], vec![0.0; values.len()]];
        kernel.round(&values, &mut rounded[0]);
        flushing(|| kernel.round(&values, &mut rounded[1]));
        prop_assert_eq!(super::bits(&rounded[0]), super::bits(&rounded[1]));
        // A denormal bias is the caller's own: it is added as it is.
        for &ty in &WeightType::ALL[1..] {
            let mut case = Case::new(ty, k, rows, &bytes, &values);
            case.bias = [1.0; PANEL];
            prop_assert_eq!(case.tiled(kernel), flushing(|| case.tiled(kernel)), "{}, tiled", ty);
            prop_assert_eq!(case.fused(kernel), flushing(|| case.fused(kernel)), "{}, fused", ty);
        }
    }
}
