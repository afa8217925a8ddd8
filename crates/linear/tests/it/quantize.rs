//! Quantizing at load: the bytes of others where there are such, bounds, and what is refused.

use plimsoll_linear::{Error, WeightType, quantize, reference};
use proptest::prelude::*;

use crate::cases::Random;
use crate::golden::floats;

const QUANTIZERS: [WeightType; 9] = [
    WeightType::F32,
    WeightType::F16,
    WeightType::Bf16,
    WeightType::Q4_0,
    WeightType::Q4_1,
    WeightType::Q5_0,
    WeightType::Q5_1,
    WeightType::Q8_0,
    WeightType::Q4K,
];

fn quantized(ty: WeightType, values: &[f32]) -> Vec<u8> {
    let mut out = vec![0xff; ty.row_bytes(values.len()).unwrap()];
    quantize(ty, values, &mut out).unwrap();
    out
}

fn round_trip(ty: WeightType, values: &[f32]) -> Vec<f32> {
    reference::dequantize(ty, &quantized(ty, values)).unwrap()
}

/// About normal: the sum of twelve uniform values, which no library function has touched.
fn normal(random: &mut Random) -> f32 {
    (0..12).fold(0.0, |sum, _| sum + random.unit()) * 0.5
}

/// Student's t with two degrees of freedom, by its inverse distribution function, times 0.02.
fn heavy_tailed(random: &mut Random) -> f32 {
    let u = random.unit();
    0.02 * (u * std::f32::consts::SQRT_2 / (1.0 - u * u).max(1e-6).sqrt())
}

fn relative_rms_error(ty: WeightType, values: &[f32]) -> f64 {
    let square = |v: f64| v * v;
    let errors = values.iter().zip(round_trip(ty, values));
    let error: f64 = errors.map(|(a, b)| square(f64::from(*a) - f64::from(b))).sum();
    (error / values.iter().map(|v| square(f64::from(*v))).sum::<f64>()).sqrt()
}

#[test]
fn blocks_of_32_are_those_of_the_gguf_package() {
    let values = floats(include_bytes!("../golden/blocks/values.f32"));
    for (ty, want) in [
        (WeightType::Q4_0, &include_bytes!("../golden/blocks/Q4_0.quantized")[..]),
        (WeightType::Q4_1, include_bytes!("../golden/blocks/Q4_1.quantized")),
        (WeightType::Q5_0, include_bytes!("../golden/blocks/Q5_0.quantized")),
        (WeightType::Q5_1, include_bytes!("../golden/blocks/Q5_1.quantized")),
        (WeightType::Q8_0, include_bytes!("../golden/blocks/Q8_0.quantized")),
    ] {
        let got = quantized(ty, &values);
        assert_eq!(got.len(), want.len(), "{ty}");
        let blocks = got.chunks_exact(ty.block_bytes()).zip(want.chunks_exact(ty.block_bytes()));
        for (index, (got, want)) in blocks.enumerate() {
            assert_eq!(got, want, "{ty} block {index} of {:?}", &values[index * 32..][..32]);
        }
    }
}

/// The bounds are what llama.cpp's `quantize_row_q4_K_ref` (of 2025) leaves on the same values: 0.070586 and 0.086620.
#[test]
fn q4_k_leaves_less_error_than_the_ggml_reference() {
    let mut measured = Vec::new();
    for (name, value, reference) in
        [("normal", normal as fn(&mut Random) -> f32, 0.070_586), ("heavy-tailed", heavy_tailed, 0.086_620)]
    {
        let mut random = Random::new(7);
        let values: Vec<f32> = (0..256 * 1024).map(|_| value(&mut random)).collect();
        let error = relative_rms_error(WeightType::Q4K, &values);
        assert!(error <= reference && error > 0.9 * reference, "{name}: {error:.6}, the reference {reference}");
        measured.push(error);
    }
    assert!((measured[0] - Q4_K_NORMAL).abs() < 1e-6 && (measured[1] - Q4_K_HEAVY).abs() < 1e-6, "{measured:?}");
}

/// Relative RMS errors that the documentation states.
const Q4_K_NORMAL: f64 = 0.069_901;
const Q4_K_HEAVY: f64 = 0.084_518;

/// Values over the whole range that weights have, with some zeros.
fn values(blocks: std::ops::Range<usize>) -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![8 => -1.0f32..1.0, 1 => Just(0.0f32), 1 => -30.0f32..30.0];
    let block = (prop::collection::vec(value, 256), -20i32..12)
        .prop_map(|(values, power)| values.into_iter().map(|v| v * 2f32.powi(power)).collect::<Vec<f32>>());
    prop::collection::vec(block, blocks).prop_map(|blocks| blocks.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Half a step (a whole one where the grid ends a step early), the scale's own rounding to f16, which moves the largest
    /// quant by 2^-11 of itself, and f16's denormal steps of 2^-24.
    #[test]
    fn the_error_of_a_block_of_32_is_bounded_by_its_step(values in values(1..4)) {
        for (ty, quant_max, steps) in [
            (WeightType::Q4_0, 8.0, 1.0),
            (WeightType::Q4_1, 15.0, 0.5),
            (WeightType::Q5_0, 16.0, 1.0),
            (WeightType::Q5_1, 31.0, 0.5),
            (WeightType::Q8_0, 127.0, 0.5),
        ] {
            let back = round_trip(ty, &values);
            for (x, y) in values.chunks_exact(32).zip(back.chunks_exact(32)) {
                let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                let range = x.iter().fold(f32::MIN, |m, v| m.max(*v)) - x.iter().fold(f32::MAX, |m, v| m.min(*v));
                let with_min = matches!(ty, WeightType::Q4_1 | WeightType::Q5_1);
                let step = if with_min { range } else { largest } / quant_max;
                let f16 = 2f32.powi(-11) * (step * quant_max + largest) + (quant_max + 1.0) * 2f32.powi(-25);
                let bound = 1.001 * (steps * step + f16);
                for (x, y) in x.iter().zip(y) {
                    prop_assert!((x - y).abs() <= bound, "{}: {:e} became {:e}, bound {:e}", ty, x, y, bound);
                }
            }
        }
    }

    /// A step of the super-block's whole range, with room for scales and minimums in 6 bits.
    #[test]
    fn the_error_of_a_q4_k_block_is_bounded_by_its_range(values in values(1..4)) {
        let back = round_trip(WeightType::Q4K, &values);
        for (x, y) in values.chunks_exact(256).zip(back.chunks_exact(256)) {
            let range = x.iter().fold(0.0f32, |m, v| m.max(*v)) - x.iter().fold(0.0f32, |m, v| m.min(*v));
            let bound = range / 10.0 + 63.0 * 16.0 * 2f32.powi(-24);
            for (x, y) in x.iter().zip(y) {
                prop_assert!((x - y).abs() <= bound, "{:e} became {:e}, bound {:e}", x, y, bound);
            }
        }
    }

    #[test]
    fn a_block_depends_on_its_own_values_alone(values in values(2..5)) {
        for ty in QUANTIZERS {
            let pieces: Vec<u8> = values.chunks_exact(256).flat_map(|piece| quantized(ty, piece)).collect();
            prop_assert_eq!(quantized(ty, &values), pieces, "{}", ty);
        }
    }

    #[test]
    fn quantizing_again_changes_no_value_of_q8_0(values in values(1..3)) {
        let once = round_trip(WeightType::Q8_0, &values);
        prop_assert_eq!(round_trip(WeightType::Q8_0, &once), once);
    }

    #[test]
    fn one_value_that_is_not_finite_is_found(values in values(1..3), at in 0usize..256, infinite: bool, negative: bool) {
        let bad = if infinite { f32::INFINITY } else { f32::NAN };
        let mut values = values;
        values[at] = if negative { -bad } else { bad };
        let found = if infinite { "infinite" } else { "NaN" };
        for ty in QUANTIZERS {
            let mut out = vec![0; ty.row_bytes(values.len()).unwrap()];
            let error = quantize(ty, &values, &mut out);
            prop_assert_eq!(error, Err(Error::NotFinite { index: at, found }), "{}", ty);
        }
    }
}

#[test]
fn floats_round_to_nearest_and_f32_stays() {
    let values = [1.0f32, -0.0, 1.0 + 2f32.powi(-8) + 2f32.powi(-9), 1e-8, 65504.0];
    assert_eq!(round_trip(WeightType::F32, &values), values);
    assert_eq!(round_trip(WeightType::Bf16, &values)[2], 1.0 + 2f32.powi(-7));
    assert_eq!(round_trip(WeightType::F16, &values), [1.0, -0.0, values[2], 0.0, 65504.0]);
}

#[test]
fn a_block_of_zeros_and_one_too_small_for_f16_become_zeros() {
    for ty in QUANTIZERS.into_iter().filter(|ty| ty.block_elements() > 1) {
        assert_eq!(round_trip(ty, &[0.0; 256]), [0.0; 256], "{ty}");
        for tiny in [1e-12, 1e-30, 1e-39, -1e-45] {
            let mut values = [0.0; 256];
            values[17] = tiny;
            values[200] = -tiny;
            assert_eq!(round_trip(ty, &values), [0.0; 256], "{ty}");
        }
    }
}

#[test]
fn blocks_of_one_value_keep_it() {
    for value in [1.0, -1.0, 0.25, -100.0] {
        for ty in QUANTIZERS {
            for back in round_trip(ty, &[value; 256]) {
                assert!((back - value).abs() <= value.abs() * 2f32.powi(-9), "{ty}: {value} became {back}");
            }
        }
    }
}

#[test]
fn values_past_the_scale_are_refused_with_their_place() {
    for (ty, fits, too_large) in [
        (WeightType::F16, 65504.0, 65520.0),
        (WeightType::Bf16, 3.38e38, 3.4e38),
        (WeightType::Q4_0, 8.0 * 65504.0, 8.01 * 65520.0),
        (WeightType::Q4_1, 65504.0, 1e6),
        (WeightType::Q5_0, 16.0 * 65504.0, 16.01 * 65520.0),
        (WeightType::Q5_1, 65504.0, 1e7),
        (WeightType::Q8_0, 127.0 * 65504.0, 127.01 * 65520.0),
        (WeightType::Q4K, 63.0 * 15.0 * 65000.0, 63.0 * 15.1 * 65520.0),
    ] {
        let mut values = vec![0.0; 512];
        values[300] = fits;
        let back = round_trip(ty, &values);
        assert!((back[300] - fits).abs() <= 0.01 * fits, "{ty}: {fits} became {}", back[300]);
        for too_large in [too_large, -too_large, f32::MAX] {
            values[300] = too_large;
            let elements = ty.block_elements();
            let error = quantize(ty, &values, &mut vec![0; ty.row_bytes(512).unwrap()]).unwrap_err();
            let want = Error::PastF16 { type_name: ty.name(), index: 300 / elements * elements, elements };
            assert_eq!(error, want, "{ty} {too_large}");
        }
    }
}

#[test]
fn lengths_and_types_are_checked() {
    assert_eq!(
        quantize(WeightType::Q8_0, &[0.0; 33], &mut [0; 34]),
        Err(Error::PartialBlock { type_name: "Q8_0", in_features: 33, block_elements: 32 })
    );
    let error = quantize(WeightType::Q8_0, &[0.0; 64], &mut [0; 67]).unwrap_err();
    assert_eq!(error.to_string(), "64 elements take 68 bytes as Q8_0, 67 given");
    for ty in WeightType::ALL {
        let result = quantize(ty, &[0.0; 256], &mut vec![0; ty.row_bytes(256).unwrap()]);
        if QUANTIZERS.contains(&ty) {
            assert_eq!(result, Ok(()));
        } else {
            let message = result.unwrap_err().to_string();
            assert!(message.contains(ty.name()), "{message}");
            for made in QUANTIZERS {
                assert!(message.contains(made.name()), "{made} is not in: {message}");
            }
        }
    }
}
