//! `tdpbf16ps`: products of pairs of bf16.

use std::arch::asm;

use crate::tiles::{ELEMENTS, Tile};

/// Adds to each sum of the first `rows` rows the products of its row of `left` and its column of `right`: two chains of fused
/// multiply-adds from +0, over even and odd words of the first `pairs` pairs, then the sum of both. Every operation rounds to nearest even,
/// takes denormals as zeros and gives zeros for them: Intel Software Developer's Manual, volume 2, TDPBF16PS.
///
/// All columns are added to. The others than those of `sums` become what zeros make of infinities.
pub(crate) fn add_product(sums: &mut Tile, left: &Tile, right: &Tile, rows: usize, pairs: usize) {
    assert!(is_x86_feature_detected!("avx512f"), "the emulator needs AVX-512");
    assert!((1..=ELEMENTS).contains(&pairs), "not the pairs of a row");
    for (sums, left) in sums.0.iter_mut().zip(&left.0).take(rows) {
        // SAFETY: AVX-512 was found; a row has as many pairs.
        unsafe { add_row(sums, left, right, pairs) };
    }
}

/// # Safety
/// `pairs` is 1 to 16.
#[target_feature(enable = "avx512f")]
unsafe fn add_row(sums: &mut [u32; ELEMENTS], left: &[u32; ELEMENTS], right: &Tile, pairs: usize) {
    /// Control of vectors' floating point: no exceptions, round to nearest even, denormals are zeros as operands and as results. So the
    /// processor itself says what is a denormal, also where that depends on rounding.
    static CONTROL: u32 = 0x1f80 | 0x8000 | 0x0040;
    let mut saved = 0u32;
    // SAFETY: `pairs` elements of `left` and as many rows of `right` are read, and all of `sums`. The control is as it was at the end; nothing
    // between needs it but the assembly.
    unsafe {
        asm!(
            "stmxcsr [{saved}]",
            "ldmxcsr [{control}]",
            "vpxord {even}, {even}, {even}",
            "vpxord {odd}, {odd}, {odd}",
            "2:",
            "vpbroadcastd {left_pair}, dword ptr [{left}]",
            "vmovdqu32 {right_pair}, [{right}]",
            "vpslld {left_word}, {left_pair}, 16",
            "vpslld {right_word}, {right_pair}, 16",
            "vfmadd231ps {even}, {left_word}, {right_word}",
            "vpandd {left_word}, {left_pair}, {high}",
            "vpandd {right_word}, {right_pair}, {high}",
            "vfmadd231ps {odd}, {left_word}, {right_word}",
            "add {left}, 4",
            "add {right}, 64",
            "dec {pairs}",
            "jnz 2b",
            "vaddps {even}, {even}, {odd}",
            "vmovdqu32 {odd}, [{sums}]",
            "vaddps {even}, {odd}, {even}",
            "vmovdqu32 [{sums}], {even}",
            "ldmxcsr [{saved}]",
            saved = in(reg) &raw mut saved,
            control = in(reg) &raw const CONTROL,
            left = inout(reg) left.as_ptr() => _,
            right = inout(reg) right.0.as_ptr() => _,
            sums = in(reg) sums.as_mut_ptr(),
            pairs = inout(reg) pairs => _,
            high = in(zmm_reg) std::arch::x86_64::_mm512_set1_epi32(!0xffff),
            even = out(zmm_reg) _,
            odd = out(zmm_reg) _,
            left_pair = out(zmm_reg) _,
            right_pair = out(zmm_reg) _,
            left_word = out(zmm_reg) _,
            right_word = out(zmm_reg) _,
            options(nostack),
        );
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::hint::black_box;

    use super::*;

    fn flush(x: f32) -> f32 {
        if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
    }

    fn add(a: f32, b: f32) -> f32 {
        flush(flush(a) + flush(b))
    }

    fn words(pair: u32) -> [f32; 2] {
        [pair << 16, pair & !0xffff].map(|bits| flush(f32::from_bits(bits)))
    }

    /// The manual's pseudocode, one element at a time.
    pub(crate) fn add_by_definition(sums: &mut Tile, left: &Tile, right: &Tile, rows: usize, pairs: usize) {
        for (sums, left) in sums.0.iter_mut().zip(&left.0).take(rows) {
            for (column, sum) in sums.iter_mut().enumerate() {
                let mut chains = [0.0f32; 2];
                for (left, right) in left.iter().zip(&right.0).take(pairs) {
                    let (left, right) = (words(*left), words(right[column]));
                    for (chain, (left, right)) in chains.iter_mut().zip(left.into_iter().zip(right)) {
                        *chain = flush(left.mul_add(right, *chain));
                    }
                }
                *sum = add(f32::from_bits(*sum), add(chains[0], chains[1])).to_bits();
            }
        }
    }

    pub(crate) fn assert_same(got: &Tile, want: &Tile) {
        for (row, (got, want)) in got.0.iter().zip(&want.0).enumerate() {
            for (column, (got, want)) in got.iter().zip(want).enumerate() {
                let both_nan = f32::from_bits(*got).is_nan() && f32::from_bits(*want).is_nan();
                assert!(got == want || both_nan, "row {row}, column {column}: {got:08x}, not {want:08x}");
            }
        }
    }

    /// Bits without an order.
    pub(crate) fn random_tile(seed: &mut u64, element: impl Fn(u32) -> u32) -> Tile {
        let mut tile = Tile::ZERO;
        for bits in tile.0.as_flattened_mut() {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *bits = element(u32::try_from(*seed >> 32).unwrap());
        }
        tile
    }

    /// One sum, over pairs of words of both operands, whose value bf16 can hold.
    fn check(sum: f32, pairs: &[[(f32, f32); 2]], want: f32) {
        if !is_x86_feature_detected!("avx512f") {
            return;
        }
        let pack = |[even, odd]: [f32; 2]| {
            assert!((even.to_bits() | odd.to_bits()) & 0xffff == 0, "not bf16");
            even.to_bits() >> 16 | odd.to_bits()
        };
        let (mut sums, mut left, mut right) = (Tile::ZERO, Tile::ZERO, Tile::ZERO);
        sums.0[0][0] = sum.to_bits();
        for (k, [even, odd]) in pairs.iter().enumerate() {
            left.0[0][k] = pack([even.0, odd.0]);
            right.0[k][0] = pack([even.1, odd.1]);
        }
        add_product(&mut sums, &left, &right, 1, pairs.len());
        let got = f32::from_bits(sums.0[0][0]);
        assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{got:e}, not {want:e}: {pairs:?}");
    }

    fn power(exponent: i32) -> f32 {
        2.0f32.powi(exponent)
    }

    const NOTHING: (f32, f32) = (0.0, 0.0);

    #[test]
    fn words_are_added_in_ascending_order_and_even_and_odd_ones_apart() {
        let (one, small) = ((1.0, 1.0), (power(-12), power(-12)));
        // Half of the last place of 1, which is rounded to even each time, unless two of them come first.
        check(0.0, &[[one, NOTHING], [small, NOTHING], [small, NOTHING]], 1.0);
        check(0.0, &[[small, NOTHING], [small, NOTHING], [one, NOTHING]], 1.0 + f32::EPSILON);
        check(0.0, &[[one, small], [NOTHING, small]], 1.0 + f32::EPSILON);
        // The sum so far comes last.
        check(1.0, &[[small, NOTHING]], 1.0);
        check(1.0, &[[small, small]], 1.0 + f32::EPSILON);
    }

    #[test]
    fn a_product_is_too_large_or_too_small_only_with_what_it_is_added_to() {
        check(0.0, &[[(-power(127), 1.0), NOTHING], [(power(127), 2.0), NOTHING]], power(127));
        check(0.0, &[[(power(127), 2.0), NOTHING], [(-power(127), 1.0), NOTHING]], f32::INFINITY);
        let small = (power(-64), power(-65));
        check(0.0, &[[(power(-120), 1.0), NOTHING], [small, NOTHING]], power(-120) + power(-129));
        check(0.0, &[[small, NOTHING], [(power(-120), 1.0), NOTHING]], power(-120));
    }

    #[test]
    fn what_cancels_is_a_positive_zero() {
        check(0.0, &[[(1.5, 1.5), NOTHING], [(-1.5, 1.5), NOTHING]], 0.0);
        check(0.0, &[[(1.5, 1.5), (-1.5, 1.5)]], 0.0);
        check(-2.25, &[[(1.5, 1.5), NOTHING]], 0.0);
        check(-0.0, &[[(-0.0, 1.0), (-0.0, 1.0)]], 0.0);
    }

    #[test]
    fn infinities_and_nans_go_through() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        check(0.0, &[[(inf, 1.0), NOTHING]], inf);
        check(0.0, &[[(inf, -1.0), NOTHING]], -inf);
        check(0.0, &[[(inf, 0.0), NOTHING]], nan);
        check(0.0, &[[(inf, 1.0), (-inf, 1.0)]], nan);
        check(-inf, &[[(inf, 1.0), NOTHING]], nan);
        check(0.0, &[[(f32::from_bits(0x7fc0_0000), 1.0), NOTHING]], nan);
        check(0.0, &[[(power(127), power(127)), NOTHING]], inf);
        check(nan, &[[(1.0, 1.0), NOTHING]], nan);
    }

    #[test]
    fn denormals_are_zeros() {
        let denormal = f32::from_bits(0x007f_0000);
        check(0.0, &[[(denormal, power(127)), NOTHING]], 0.0);
        check(0.0, &[[(denormal, f32::INFINITY), NOTHING]], f32::NAN);
        check(denormal, &[[NOTHING, NOTHING]], 0.0);
        // A product, a sum of a chain, of both chains, and the last sum.
        check(0.0, &[[(power(-64), power(-63)), NOTHING]], 0.0);
        let (large, less) = ((power(-63), 1.5 * power(-63)), (-power(-63), power(-63)));
        check(0.0, &[[large, NOTHING], [less, NOTHING]], 0.0);
        check(0.0, &[[large, less]], 0.0);
        check(1.5 * power(-126), &[[less, NOTHING]], 0.0);
        check(-1.5 * power(-126), &[[(power(-63), power(-63)), NOTHING]], -0.0);
        // The smallest numbers that are none.
        check(0.0, &[[(power(-63), power(-63)), NOTHING]], power(-126));
        // Rounded to as many bits as any other number, this is less than those.
        check(0.0, &[[(power(-63), power(-63)), NOTHING], [(-power(-75), power(-75)), NOTHING]], 0.0);
    }

    #[test]
    fn random_tiles_give_the_sums_of_the_definition() {
        if !is_x86_feature_detected!("avx512f") {
            return;
        }
        let mut seed = 1;
        let any = |bits: u32| bits;
        // Exponents of -4 to 3, and both signs, so that much cancels.
        let near_one = |bits: u32| bits & 0x81ff_81ff | 0x3e00_3e00;
        // Exponents of -66 to -59, so that many products are denormals.
        let tiny = |bits: u32| bits & 0x81ff_81ff | 0x1e80_1e80;
        let zero = |_: u32| 0u32;
        for (rows, pairs) in [(16, 16), (16, 1), (1, 16), (7, 5)] {
            for _ in 0..20 {
                for element in [&any as &dyn Fn(u32) -> u32, &near_one, &tiny] {
                    for start in [&zero as &dyn Fn(u32) -> u32, element] {
                        let (left, right) = (random_tile(&mut seed, element), random_tile(&mut seed, element));
                        let mut got = random_tile(&mut seed, start);
                        let mut want = got;
                        add_product(&mut got, &left, &right, rows, pairs);
                        add_by_definition(&mut want, &left, &right, rows, pairs);
                        assert_same(&got, &want);
                    }
                }
            }
        }
    }

    #[test]
    fn the_program_keeps_its_own_denormals() {
        check(0.0, &[[(1.0, 1.0), NOTHING]], 1.0);
        assert!(black_box(f32::MIN_POSITIVE) / black_box(2.0) > 0.0);
    }
}
