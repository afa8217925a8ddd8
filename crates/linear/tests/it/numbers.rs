//! Size of the error, and the values at the edge.

use half::{bf16, f16};
use plimsoll_linear::{Isa, Settings, WeightType, reference};
use proptest::prelude::*;

use crate::cases::{Random, assert_same_bits, packed, product, simple, stored};
use crate::packing::{any_type, in_features};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Rounding to bf16 moves each operand by at most 2^-9 of itself; a sum goes through at most 16 multiply-adds, one
    /// addition of the chains and `k / 32` additions of steps, each off by at most 2^-24 of the magnitudes summed.
    #[test]
    fn the_error_against_f64_is_bounded(ty in any_type(), n in 1usize..24, raw in 1usize..3000, seed: u64) {
        let (k, rows, mut random) = (in_features(ty, raw), 3, Random::new(seed));
        let bytes = stored(ty, n, k, &mut random);
        let (x, bias) = (random.vector(rows * k), random.vector(n));
        let w = reference::dequantize(ty, &bytes).unwrap();
        let want = reference::linear_f64(&x, rows, &w, n, Some(&bias));
        let magnitude = |v: &[f32]| v.iter().map(|v| v.abs()).collect::<Vec<_>>();
        let scale = reference::linear_f64(&magnitude(&x), rows, &magnitude(&w), n, Some(&magnitude(&bias)));
        let operands = if ty.multiplies_in_bf16() { 2f64.powi(-8) + 2f64.powi(-18) } else { 0.0 };
        let sums = (18 + k.div_ceil(32)) as f64 * 2f64.powi(-24);
        let weight = packed(ty, n, k, &bytes);
        let settings = Settings { isa: Isa::detect(), threads: 1 };
        let got = product(&x, rows, &[(&weight, Some(&bias))], settings).remove(0);
        for ((got, want), scale) in got.iter().zip(want).zip(scale) {
            let (error, bound) = ((f64::from(*got) - want).abs(), scale * (operands + 1.01 * sums));
            prop_assert!(error <= bound, "{} k {}: error {:e}, bound {:e}", ty, k, error, bound);
        }
    }
}

#[test]
fn a_nan_or_infinite_input_stays_in_its_row() {
    for ty in WeightType::ALL {
        let (n, k, rows, mut random) = (20, 256, 9, Random::new(1));
        let weight = packed(ty, n, k, &stored(ty, n, k, &mut random));
        let clean = random.vector(rows * k);
        for isa in Isa::available() {
            let want = simple(&clean, rows, &weight, isa);
            for (bad, at) in [(f32::from_bits(0xff80_1234), 3 * k + 7), (f32::INFINITY, 3 * k + 40)] {
                let mut x = clean.clone();
                x[at] = bad;
                let got = simple(&x, rows, &weight, isa);
                assert!(got[3 * n..4 * n].iter().all(|v| !v.is_finite()), "{ty}: {bad} vanished");
                for nan in got.iter().filter(|v| v.is_nan()) {
                    assert_eq!(nan.to_bits(), f32::NAN.to_bits(), "{ty}: a NaN that is not canonical");
                }
                assert_same_bits(&got[..3 * n], &want[..3 * n], &ty);
                assert_same_bits(&got[4 * n..], &want[4 * n..], &ty);
            }
        }
    }
}

#[test]
fn a_nan_scale_stays_in_its_column() {
    let (n, k, rows, mut random) = (18, 64, 2, Random::new(2));
    let mut bytes = stored(WeightType::Q8_0, n, k, &mut random);
    let x = random.vector(rows * k);
    let want = simple(&x, rows, &packed(WeightType::Q8_0, n, k, &bytes), Isa::Scalar);
    // Row 5, second block: a signalling NaN whose payload would overflow the rounding add.
    bytes[5 * 68 + 34..][..2].copy_from_slice(&0x7dff_u16.to_le_bytes());
    let weight = packed(WeightType::Q8_0, n, k, &bytes);
    for isa in Isa::available() {
        for (i, (got, want)) in simple(&x, rows, &weight, isa).iter().zip(&want).enumerate() {
            let want = if i % n == 5 { f32::NAN } else { *want };
            assert_eq!(got.to_bits(), want.to_bits(), "row {}, column {}", i / n, i % n);
        }
    }
}

#[test]
fn values_below_two_to_the_minus_50_count_for_f32_weights_only() {
    let tiny = 2f32.powi(-51);
    let (big, k) = (2f32.powi(40), 3);
    for isa in Isa::available() {
        for (ty, weight, expected) in [
            (WeightType::F32, big.to_le_bytes().to_vec(), tiny * big),
            (WeightType::Bf16, bf16::from_f32(big).to_le_bytes().to_vec(), 0.0),
        ] {
            let weight = packed(ty, 1, k, &weight.repeat(k));
            assert_eq!(simple(&[tiny, 0.0, 0.0], 1, &weight, isa), [expected], "{ty} on {}", isa.name());
            assert_eq!(simple(&[2.0 * tiny, 0.0, 0.0], 1, &weight, isa), [2.0 * tiny * big], "{ty} on {}", isa.name());
        }
        // The weight itself, too: it dequantizes as it is and multiplies as zero.
        let weight = packed(WeightType::Bf16, 1, 1, &bf16::from_f32(tiny).to_le_bytes());
        let mut row = [0.0];
        weight.dequantize_row(0, &mut row);
        assert_eq!(row, [tiny]);
        assert_eq!(simple(&[big], 1, &weight, isa), [0.0]);
    }
}

#[test]
fn denormal_sums_of_an_f32_product_are_kept() {
    let weight = packed(WeightType::F32, 1, 2, &[2f32.powi(-75).to_le_bytes(), 0f32.to_le_bytes()].concat());
    for isa in Isa::available() {
        assert_eq!(simple(&[2f32.powi(-70), 0.0], 1, &weight, isa), [2f32.powi(-145)]);
    }
}

#[test]
fn operands_are_rounded_to_bf16_once() {
    // 1 + 2^-8 + 2^-9 rounds to 1 + 2^-7 as a bf16; the f16 weight holds it exactly.
    let value = 1.0 + 2f32.powi(-8) + 2f32.powi(-9);
    let weight = packed(WeightType::F16, 1, 1, &f16::from_f32(value).to_le_bytes());
    let rounded = 1.0 + 2f32.powi(-7);
    for isa in Isa::available() {
        assert_eq!(simple(&[value], 1, &weight, isa), [rounded * rounded]);
    }
}
