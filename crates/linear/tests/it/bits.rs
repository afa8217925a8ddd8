//! A row's bits belong to the row: instruction set, threads, row count and companions change nothing.

use plimsoll_linear::{Isa, PackedWeight, Settings, WeightType, reference};
use proptest::prelude::*;

use crate::cases::{Random, assert_same_bits, garbage, gated, packed, product, simple, stored};
use crate::packing::{any_type, in_features};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_product_equals_its_definition(
        ty in any_type(), n in 1usize..40, raw in 1usize..600, rows in 1usize..8, seed: u64, with_bias: bool, wild: bool,
    ) {
        let (k, mut random) = (in_features(ty, raw), Random::new(seed));
        let bytes = if wild { garbage(ty, n, k, &mut random) } else { stored(ty, n, k, &mut random) };
        let weight = packed(ty, n, k, &bytes);
        let (x, bias) = (random.vector(rows * k), random.vector(n));
        let bias = with_bias.then_some(bias.as_slice());
        let want = reference::linear_f32(ty, &x, rows, &reference::dequantize(ty, &bytes).unwrap(), n, bias);
        for isa in Isa::available() {
            let got = product(&x, rows, &[(&weight, bias)], Settings { isa, threads: 1 }).remove(0);
            assert_same_bits(&got, &want, &format_args!("{ty} {rows} x {k} x {n} on {}", isa.name()));
        }
    }

    #[test]
    fn instruction_sets_and_threads_agree_on_several_weights(
        types in prop::collection::vec((any_type(), 1usize..70, any::<bool>()), 1..=3),
        raw in 1usize..800, rows in 1usize..=70, threads in 1usize..=4, seed: u64,
    ) {
        let mut random = Random::new(seed);
        let block = types.iter().map(|(ty, ..)| ty.block_elements()).max().unwrap_or(1);
        let k = if block == 1 { raw } else { raw.next_multiple_of(block) };
        let weights: Vec<_> = types
            .iter()
            .map(|&(ty, n, with_bias)| {
                let weight = packed(ty, n, k, &stored(ty, n, k, &mut random));
                (weight, with_bias.then(|| random.vector(n)))
            })
            .collect();
        let parts: Vec<_> = weights.iter().map(|(weight, bias)| (weight, bias.as_deref())).collect();
        let x = random.vector(rows * k);
        let want = product(&x, rows, &parts, Settings { isa: Isa::Scalar, threads: 1 });
        for isa in Isa::available() {
            let got = product(&x, rows, &parts, Settings { isa, threads });
            for (part, (got, want)) in got.iter().zip(&want).enumerate() {
                let case = format_args!("part {part} of {types:?}, k {k}, {rows} rows, {threads} threads").to_string();
                assert_same_bits(got, want, &case);
            }
        }
    }

    #[test]
    fn a_gated_product_is_two_products_combined(
        types in [any_type(), any_type()], raw in 1usize..700, n in 1usize..90, rows in 1usize..=150, threads in 1usize..=4, biases: [bool; 2], seed: u64,
    ) {
        // Sees which is which, and whether an element was seen twice.
        fn combine(gate: &mut [f32], up: &[f32]) {
            assert_eq!(gate.len(), up.len());
            gate.iter_mut().zip(up).for_each(|(gate, up)| *gate = gate.mul_add(0.5, *up));
        }
        let mut random = Random::new(seed);
        let block = types.map(|ty| ty.block_elements()).into_iter().max().unwrap_or(1);
        let k = if block == 1 { raw } else { raw.next_multiple_of(block) };
        let weights = types.map(|ty| packed(ty, n, k, &stored(ty, n, k, &mut random)));
        let biases = biases.map(|with_bias| with_bias.then(|| random.vector(n)));
        let parts = [0, 1].map(|i| (&weights[i], biases[i].as_deref()));
        let x = random.vector(rows * k);
        for isa in Isa::available() {
            let outs = product(&x, rows, &parts, Settings { isa, threads: 1 });
            let mut want = outs[0].clone();
            combine(&mut want, &outs[1]);
            let got = gated(&x, rows, parts, combine, Settings { isa, threads });
            assert_same_bits(&got, &want, &format_args!("{types:?}, {rows} x {k} x {n}, {threads} threads on {isa}"));
        }
    }
}

#[test]
fn what_combines_two_outputs_may_multiply_itself() {
    let (k, n, rows, mut random) = (64, 40, 70, Random::new(11));
    let weights = [(); 2].map(|()| packed(WeightType::Q8_0, n, k, &stored(WeightType::Q8_0, n, k, &mut random)));
    let parts = [(&weights[0], None), (&weights[1], None)];
    let x = random.vector(rows * k);
    for isa in Isa::available() {
        let settings = Settings { isa, threads: 1 };
        let outs = product(&x, rows, &parts, settings);
        let want: Vec<f32> = outs[0].iter().zip(&outs[1]).map(|(gate, up)| gate - up).collect();
        let combine = |gate: &mut [f32], up: &[f32]| {
            let inner = product(&x[..5 * k], 5, &parts[..1], settings).remove(0);
            assert_same_bits(&inner, &outs[0][..5 * n], &isa);
            gate.iter_mut().zip(up).for_each(|(gate, up)| *gate -= up);
        };
        assert_same_bits(&gated(&x, rows, parts, combine, settings), &want, &isa);
    }
}

#[test]
fn a_row_alone_equals_the_row_among_700() {
    const ROWS: usize = 700;
    for ty in WeightType::ALL {
        let (n, k, mut random) = (72, 512, Random::new(7));
        let weight = packed(ty, n, k, &stored(ty, n, k, &mut random));
        let x = random.vector(ROWS * k);
        let isa = Isa::detect();
        let whole = simple(&x, ROWS, &weight, isa);
        for threads in 2..=4 {
            let settings = Settings { isa, threads };
            let got = product(&x, ROWS, &[(&weight, None)], settings).remove(0);
            assert_same_bits(&got, &whole, &format_args!("{ty} with {threads} threads"));
        }
        for row in [0, 1, 5, 6, 383, 384, 695, 699] {
            let alone = simple(&x[row * k..][..k], 1, &weight, isa);
            assert_same_bits(&alone, &whole[row * n..][..n], &format_args!("{ty} row {row}"));
        }
        for (start, rows) in [(3, 2), (11, 3), (100, 4), (201, 5), (302, 7), (403, 64)] {
            let some = simple(&x[start * k..][..rows * k], rows, &weight, isa);
            assert_same_bits(&some, &whole[start * n..][..rows * n], &format_args!("{ty} {rows} rows from {start}"));
        }
    }
}

/// Says so past the harness, which would keep it from a passing test.
fn say_what_is_missing() {
    use std::io::Write;
    let missing: Vec<_> = Isa::ALL.into_iter().filter(|isa| !isa.is_available()).map(Isa::name).collect();
    if !missing.is_empty() {
        let _ = writeln!(std::io::stderr(), "not run, because this machine has no {}", missing.join(", "));
    }
}

/// Around the edges of tiles: 6, 12, 16 and 32 rows, 16 columns, steps of 32, blocks of 256 and 512.
#[test]
fn every_instruction_set_agrees_at_the_edges_of_tiles() {
    say_what_is_missing();
    let mut random = Random::new(11);
    for ty in WeightType::ALL {
        let block = ty.block_elements();
        for (n, k) in [(1, 1), (15, 31), (33, 257), (50, 801), (16, 512), (47, 1056)] {
            let k: usize = k;
            let k = if block == 1 { k } else { k.next_multiple_of(block) };
            let weight = packed(ty, n, k, &stored(ty, n, k, &mut random));
            let x = random.vector(129 * k);
            let bias = random.vector(n);
            let parts = [(&weight, Some(bias.as_slice()))];
            let want = product(&x, 129, &parts, Settings { isa: Isa::Scalar, threads: 1 }).remove(0);
            for isa in Isa::available() {
                let counts: &[usize] = match isa {
                    Isa::Scalar => &[1, 13],
                    _ => &[1, 2, 3, 5, 8, 9, 15, 16, 17, 31, 32, 33, 49, 97, 128, 129],
                };
                for (i, &rows) in counts.iter().enumerate() {
                    let settings = Settings { isa, threads: [1, 2, 4][i % 3] };
                    let got = product(&x[..rows * k], rows, &parts, settings).remove(0);
                    assert_same_bits(&got, &want[..rows * n], &format_args!("{ty} {rows} x {k} x {n}, {settings:?}"));
                }
            }
        }
    }
}

#[test]
fn rows_of_several_items_keep_their_bits() {
    // More rows than an item takes, and `k` in two blocks with several pairs of panels: sums wait in scratch.
    let (n, k, rows, mut random) = (170, 1024, 1100, Random::new(12));
    for ty in [WeightType::Q4K, WeightType::Bf16] {
        let weight = packed(ty, n, k, &stored(ty, n, k, &mut random));
        let x = random.vector(rows * k);
        for isa in Isa::available().filter(|&isa| isa != Isa::Scalar) {
            for threads in [1, 2] {
                let got = product(&x, rows, &[(&weight, None)], Settings { isa, threads }).remove(0);
                for row in [0, 1, 31, 527, 528, 543, 544, 551, 1023, 1024, 1056, 1099] {
                    let want = simple(&x[row * k..][..k], 1, &weight, Isa::Scalar);
                    let case = format_args!("{ty} row {row} on {isa}, {threads} threads").to_string();
                    assert_same_bits(&got[row * n..][..n], &want, &case);
                }
            }
        }
    }
}

/// The bits of a product with each of several types, as a number that must not change: from one machine to another, or with time.
#[test]
fn all_instruction_sets_give_one_hash() {
    use WeightType::{Bf16, F16, F32, Q4_1, Q4K, Q6K, Q8_0};
    say_what_is_missing();
    for isa in Isa::available() {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for ty in [F32, F16, Bf16, Q4_1, Q8_0, Q4K, Q6K] {
            let (n, k, rows, mut random) = (19, 512, 37, Random::new(13));
            let weight = packed(ty, n, k, &stored(ty, n, k, &mut random));
            for value in simple(&random.vector(rows * k), rows, &weight, isa) {
                hash = (hash ^ u64::from(value.to_bits())).wrapping_mul(0x100_0000_01b3);
            }
        }
        assert_eq!(hash, 0xe743b464fe4662e6, "on {isa}");
    }
}

#[test]
fn more_parts_than_one_pass_takes_are_all_computed() {
    let (k, rows, mut random) = (64, 5, Random::new(3));
    let weights: Vec<PackedWeight> =
        (0..19).map(|i| packed(WeightType::Q8_0, 3 + i, k, &stored(WeightType::Q8_0, 3 + i, k, &mut random))).collect();
    let x = random.vector(rows * k);
    let parts: Vec<_> = weights.iter().map(|weight| (weight, None)).collect();
    let settings = Settings { isa: Isa::detect(), threads: 2 };
    for (got, weight) in product(&x, rows, &parts, settings).iter().zip(&weights) {
        assert_same_bits(got, &simple(&x, rows, weight, Isa::Scalar), &"one of 19 parts");
    }
}

#[test]
fn a_pool_of_one_thread_runs_four_tasks() {
    let (n, k, rows, mut random) = (96, 300, 60, Random::new(4));
    let weight = packed(WeightType::F16, n, k, &stored(WeightType::F16, n, k, &mut random));
    let x = random.vector(rows * k);
    let want = simple(&x, rows, &weight, Isa::detect());
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let settings = Settings { isa: Isa::detect(), threads: 4 };
    let got = pool.install(|| product(&x, rows, &[(&weight, None)], settings)).remove(0);
    assert_same_bits(&got, &want, &"four tasks, one thread");
}
