//! Rows cut in any way, and rows in groups of their own, have the bits of one call.

use plimsoll_linear::{
    Group, Isa, Output, PackedWeight, Settings, WeightType, group_scratch_bytes, linear_groups, linear_until,
    scratch_bytes,
};
use std::sync::atomic::AtomicBool;

use crate::cases::{Random, assert_same_bits, packed, product, simple, stored, with_scratch};

const ROWS: usize = 129;

fn sizes(ty: WeightType) -> (usize, usize) {
    // Two full panels, and one that is not; `k` of several steps, not whole where the type allows it.
    (41, if ty.block_elements() == 1 { 75 } else { ty.block_elements().max(96) })
}

#[test]
fn every_row_count_up_to_129_gives_the_same_bits() {
    let mut random = Random::new(21);
    for ty in WeightType::ALL {
        let (n, k) = sizes(ty);
        let weight = packed(ty, n, k, &stored(ty, n, k, &mut random));
        let x = random.vector(ROWS * k);
        let want = simple(&x, ROWS, &weight, Isa::Scalar);
        for isa in Isa::available().filter(|&isa| isa != Isa::Scalar) {
            for rows in 1..=ROWS {
                let settings = Settings { isa, threads: [1, 2, 4][rows % 3] };
                let got = product(&x[..rows * k], rows, &[(&weight, None)], settings).remove(0);
                assert_same_bits(&got, &want[..rows * n], &format_args!("{ty}, {rows} rows, {settings:?}"));
            }
        }
    }
}

#[test]
fn a_thousand_random_splits_give_the_bits_of_one_call() {
    let mut random = Random::new(22);
    for (case, ty) in WeightType::ALL.into_iter().cycle().take(1000).enumerate() {
        let (n, k) = sizes(ty);
        let weight = packed(ty, n, k, &stored(ty, n, k, &mut random));
        let rows = 1 + random.below(ROWS);
        let x = random.vector(rows * k);
        let isas: Vec<Isa> = Isa::available().filter(|&isa| isa != Isa::Scalar || case % 16 == 0).collect();
        let isa = isas[random.below(isas.len())];
        let whole = simple(&x, rows, &weight, Isa::detect());
        let mut start = 0;
        while start < rows {
            let some = 1 + random.below(rows - start);
            let settings = Settings { isa, threads: [1, 2, 4][random.below(3)] };
            let got = product(&x[start * k..][..some * k], some, &[(&weight, None)], settings).remove(0);
            let case =
                format_args!("case {case}: {ty}, rows {start}..{} of {rows}, {settings:?}", start + some).to_string();
            assert_same_bits(&got, &whole[start * n..][..some * n], &case);
            start += some;
        }
    }
}

#[test]
fn groups_give_the_bits_of_their_own_products() {
    let mut random = Random::new(23);
    for ty in WeightType::ALL {
        let (n, k) = sizes(ty);
        // More groups than one pass takes.
        let counts: Vec<usize> = (0..70).map(|i| 1 + (i * i) % 5 + if i == 9 { 13 } else { 0 }).collect();
        let weights: Vec<PackedWeight> = (0..7).map(|_| packed(ty, n, k, &stored(ty, n, k, &mut random))).collect();
        let inputs: Vec<Vec<f32>> = counts.iter().map(|&rows| random.vector(rows * k)).collect();
        for isa in Isa::available() {
            for threads in [1, 2, 4] {
                let settings = Settings { isa, threads };
                let mut outputs: Vec<Vec<f32>> = counts.iter().map(|&rows| vec![f32::NAN; rows * n]).collect();
                let mut groups: Vec<Group<'_>> = inputs
                    .iter()
                    .zip(&mut outputs)
                    .enumerate()
                    .map(|(i, (x, out))| Group { weight: &weights[i % 7], x, out })
                    .collect();
                let bytes = group_scratch_bytes(counts.iter().sum(), k, n, ty, settings);
                with_scratch(bytes, |scratch| linear_groups(&mut groups, scratch, settings));
                for (i, (got, x)) in outputs.iter().zip(&inputs).enumerate() {
                    let want = simple(x, counts[i], &weights[i % 7], Isa::detect());
                    assert_same_bits(got, &want, &format_args!("{ty}, group {i}, {settings:?}"));
                }
            }
        }
    }
}

#[test]
fn a_product_that_is_stopped_computes_nothing_more_and_says_so() {
    let mut random = Random::new(24);
    let (n, k) = sizes(WeightType::Q4K);
    let weight = packed(WeightType::Q4K, n, k, &stored(WeightType::Q4K, n, k, &mut random));
    for (isa, rows) in Isa::available().flat_map(|isa| [1, 2, ROWS].map(|rows| (isa, rows))) {
        for threads in [1, 2, 4] {
            let settings = Settings { isa, threads };
            let x = random.vector(rows * k);
            let bytes = scratch_bytes(rows, k, &[(WeightType::Q4K, n)], settings);
            let until = |stop: bool| {
                let mut out = vec![f32::NAN; rows * n];
                let mut parts = [Output { weight: &weight, bias: None, out: &mut out }];
                let stop = AtomicBool::new(stop);
                let is_whole =
                    with_scratch(bytes, |scratch| linear_until(&x, rows, &mut parts, scratch, settings, &stop));
                (is_whole, out)
            };
            let (is_whole, out) = until(true);
            assert!(!is_whole, "{settings:?}, {rows} rows");
            assert!(out.iter().all(|value| value.is_nan()), "{settings:?}, {rows} rows");
            let (is_whole, out) = until(false);
            assert!(is_whole, "{settings:?}, {rows} rows");
            assert_same_bits(&out, &simple(&x, rows, &weight, Isa::detect()), &format_args!("{settings:?}"));
        }
    }
}
