//! What is refused, and with which numbers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;

use plimsoll_linear::{
    Error, Isa, Output, PackedWeight, Packer, Settings, WeightType, linear, linear_gated_until, scratch_bytes,
};

use crate::cases::{AlignedBytes, Random, packed, stored};

const SETTINGS: Settings = Settings { isa: Isa::Scalar, threads: 2 };

#[test]
fn a_weight_of_the_wrong_length_is_refused() {
    let error = PackedWeight::pack(WeightType::Q4_1, 3, 64, &[0; 119], 1).unwrap_err();
    assert_eq!(
        error,
        Error::ByteLength {
            type_name: "Q4_1",
            out_features: 3,
            in_features: 64,
            expected_bytes: 120,
            actual_bytes: 119
        }
    );
    assert_eq!(error.to_string(), "Q4_1 3 x 64 takes 120 bytes, 119 given");
}

#[test]
fn a_weight_past_all_memory_is_an_error() {
    // 2^60 bytes: a number that an address can hold, and that no processor can address.
    let error = Packer::new(WeightType::F32, 1 << 40, 1 << 18).unwrap_err();
    assert_eq!(error, Error::OutOfMemory { bytes: 1 << 60 });
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    assert_eq!(
        PackedWeight::pack(WeightType::Q6K, 1, 128, &[0; 210], 1).unwrap_err(),
        Error::PartialBlock { type_name: "Q6_K", in_features: 128, block_elements: 256 }
    );
    assert_eq!(
        PackedWeight::pack(WeightType::F16, 0, 128, &[], 1).unwrap_err(),
        Error::Empty { out_features: 0, in_features: 128 }
    );
    let huge = usize::MAX / 4;
    assert_eq!(
        Packer::new(WeightType::F16, huge, 4).unwrap_err(),
        Error::TooLarge { type_name: "F16", out_features: huge, in_features: 4 }
    );
    assert_eq!(PackedWeight::packed_bytes(WeightType::F16, huge, 4), u64::MAX);
}

#[test]
fn pieces_must_be_whole_rows_and_neither_too_many_nor_too_few() {
    let mut packer = Packer::new(WeightType::Bf16, 3, 5).unwrap();
    assert_eq!(packer.push(&[0; 12], 1), Err(Error::PartialRow { row_bytes: 10, actual_bytes: 12 }));
    assert_eq!(packer.push(&[0; 40], 1), Err(Error::TooManyRows { pushed_rows: 4, out_features: 3 }));
    assert_eq!(packer.push(&[], 1), Ok(()));
    assert_eq!(packer.push(&[0; 20], 1), Ok(()));
    assert_eq!(packer.finish().unwrap_err(), Error::MissingRows { pushed_rows: 2, out_features: 3 });
}

#[test]
fn scratch_must_be_long_enough_and_aligned() {
    let (k, rows) = (64, 4);
    let weight = packed(WeightType::Q8_0, 16, k, &stored(WeightType::Q8_0, 16, k, &mut Random::new(1)));
    let bytes = usize::try_from(scratch_bytes(rows, k, &[(WeightType::Q8_0, 16)], SETTINGS)).unwrap();
    let (x, mut out) = (vec![1.0; rows * k], vec![0.0; rows * 16]);
    let mut memory = AlignedBytes::new(bytes + 64);
    let mut run = |range: std::ops::Range<usize>| {
        let scratch = &mut memory.bytes()[range];
        let mut parts = [Output { weight: &weight, bias: None, out: &mut out }];
        catch_unwind(AssertUnwindSafe(|| linear(&x, rows, &mut parts, scratch, SETTINGS)))
            .map_err(|panic| *panic.downcast::<String>().unwrap())
    };
    assert_eq!(run(0..bytes), Ok(()));
    assert_eq!(run(0..bytes - 1), Err(format!("{} bytes of scratch, {bytes} needed", bytes - 1)));
    assert_eq!(run(4..bytes + 4), Err("scratch is not 64-byte aligned".to_owned()));
}

#[test]
fn the_halves_of_a_gated_product_must_have_one_shape() {
    let weights = [16, 17].map(|n| packed(WeightType::F32, n, 2, &stored(WeightType::F32, n, 2, &mut Random::new(1))));
    let (mut gate, mut up) = ([0.0; 16], [0.0; 17]);
    let outputs = [
        Output { weight: &weights[0], bias: None, out: &mut gate },
        Output { weight: &weights[1], bias: None, out: &mut up },
    ];
    let run = || linear_gated_until(&[1.0; 2], 1, outputs, &|_, _| (), &mut [], SETTINGS, &AtomicBool::new(false));
    let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
    let message = panic.downcast::<String>().unwrap();
    assert!(message.contains("gate and up differ in out_features"), "{message}");
}

#[test]
fn scratch_grows_with_rows_and_threads_only() {
    let bytes = |rows, threads, parts: &[(WeightType, usize)]| {
        scratch_bytes(rows, 576, parts, Settings { isa: Isa::Avx2, threads })
    };
    let (q4, f32) = ((WeightType::Q4_1, 576), (WeightType::F32, 576));
    assert_eq!(bytes(10, 1, &[q4]), 10 * 592 * 4 + 16384);
    assert_eq!(bytes(10, 3, &[q4, q4, q4]), 10 * 592 * 4 + 3 * 16384);
    assert_eq!(bytes(10, 3, &[f32]), 0);
    assert_eq!(bytes(0, 3, &[q4]), 0);
}

#[test]
fn no_rows_and_no_parts_are_no_work() {
    let weight = packed(WeightType::F32, 1, 2, &[0; 8]);
    linear(&[], 0, &mut [Output { weight: &weight, bias: None, out: &mut [] }], &mut [], SETTINGS);
    linear(&[], 0, &mut [], &mut [], SETTINGS);
}

#[test]
fn an_instruction_set_that_is_missing_is_an_error_with_its_name() {
    for isa in Isa::ALL {
        assert_eq!(isa.name().parse(), Ok(isa));
        match isa.require() {
            Ok(same) => assert!(same == isa && Isa::available().any(|available| available == isa)),
            Err(error) => assert_eq!(
                error.to_string(),
                format!(
                    "this CPU has no {isa}, or the system does not permit it; the best it has is {}",
                    Isa::detect()
                )
            ),
        }
    }
    let error = "sse9".parse::<Isa>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "no instruction set is called \"sse9\"; there are amx, avx512, avx2, neon and scalar"
    );
}

#[test]
fn tiles_halve_the_scratch_of_rounded_rows() {
    let bytes = |rows, in_features, threads| {
        scratch_bytes(rows, in_features, &[(WeightType::Q8_0, 576)], Settings { isa: Isa::Amx, threads })
    };
    if cfg!(target_arch = "x86_64") {
        assert_eq!(bytes(32, 320, 1), 32 * 320 * 2 + 2 * 16 * 320 * 2);
        // Above 320, two panels of half of `k`, and the sums of two panels.
        assert_eq!(bytes(33, 576, 2), 64 * 576 * 2 + 2 * (2 * 16 * 288 * 2 + 64 * 2 * 16 * 4));
        // Rows that no cache holds: blocks of 13 to a `k`, the sums of 16 panels.
        assert_eq!(bytes(300, 4096, 1), 320 * 4096 * 2 + 2 * 16 * 320 * 2 + 256 * 16 * 16 * 4);
    }
}
