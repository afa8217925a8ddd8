use super::*;
use crate::testing::Random;
use proptest::prelude::*;

fn route(k: usize, scoring: Scoring, normalize: bool) -> RouteSpec {
    RouteSpec { k, scoring, normalize, scale: 1.0 }
}

fn chosen(logits: &[f32], experts: usize, spec: &RouteSpec, isa: Isa, threads: usize) -> (Vec<u32>, Vec<u32>) {
    let rows = logits.len() / experts;
    let (mut ids, mut weights) = (vec![u32::MAX; rows * spec.k], vec![f32::NAN; rows * spec.k]);
    let mut scratch = vec![f32::NAN; usize::try_from(top_k_scratch_bytes(experts, threads)).unwrap() / 4];
    top_k(logits, experts, spec, (&mut ids, &mut weights), &mut scratch, isa, threads);
    (ids, weights.into_iter().map(f32::to_bits).collect())
}

#[test]
fn the_largest_scores_come_first_and_ties_go_to_the_lowest_expert() {
    let logits = [1.0, 3.0, 2.0, 3.0, -1.0];
    let (ids, weights) = chosen(&logits, 5, &route(3, Scoring::Softmax, false), Isa::Scalar, 1);
    assert_eq!(ids, [1, 3, 2]);
    let total: f32 = logits.iter().map(|x| x.exp()).sum();
    for (bits, logit) in weights.iter().zip([3.0f32, 3.0, 2.0]) {
        assert!((f32::from_bits(*bits) - logit.exp() / total).abs() < 1e-6);
    }
    let (_, normalized) = chosen(&logits, 5, &route(3, Scoring::Softmax, true), Isa::Scalar, 1);
    let sum: f32 = normalized.iter().map(|bits| f32::from_bits(*bits)).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    let scaled = RouteSpec { scale: 2.5, ..route(2, Scoring::Sigmoid, false) };
    let (ids, weights) = chosen(&logits, 5, &scaled, Isa::Scalar, 1);
    assert_eq!((ids[0], f32::from_bits(weights[0])), (1, 2.5 * math::sigmoid(3.0)));
}

#[test]
fn scores_that_are_no_numbers_are_chosen_last_and_no_expert_twice() {
    let logits = [f32::NAN, 1.0, f32::NAN, -2.0];
    let (ids, _) = chosen(&logits, 4, &route(4, Scoring::Sigmoid, false), Isa::Scalar, 1);
    assert_eq!(ids, [1, 3, 0, 2]);
    let (ids, _) = chosen(&[f32::NAN; 4], 4, &route(3, Scoring::Softmax, true), Isa::Scalar, 1);
    assert_eq!(ids, [0, 1, 2]);
}

#[test]
fn scores_of_zero_have_weights_of_zero() {
    let (_, weights) = chosen(&[-200.0; 3], 3, &route(2, Scoring::Sigmoid, true), Isa::Scalar, 1);
    assert_eq!(weights, [0, 0]);
}

fn packed(kind: WeightType, out_features: usize, in_features: usize, seed: u64) -> PackedWeight {
    let values = Random(seed).values(out_features * in_features);
    let bytes: Vec<u8> = match kind {
        WeightType::Bf16 => values.iter().flat_map(|&value| half::bf16::from_f32(value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    PackedWeight::pack(kind, out_features, in_features, &bytes, 1).unwrap()
}

/// Scratch of exactly the priced size, at a cache line.
fn aligned(bytes: u64) -> (Vec<u8>, usize) {
    let memory = vec![0xa5u8; usize::try_from(bytes).unwrap() + 64];
    let start = memory.as_ptr().align_offset(64);
    (memory, start)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn choices_have_the_same_bits_for_every_split_and_instruction_set(
        rows in 1usize..=130, experts in 1usize..=150, k in 1usize..=8, threads in 1usize..=4, seed in 0u64..1000,
    ) {
        let k = k.min(experts);
        let logits: Vec<f32> = Random(seed).values(rows * experts).iter().map(|x| (x * 40.0).round() / 4.0).collect();
        for scoring in [Scoring::Softmax, Scoring::Sigmoid] {
            let spec = route(k, scoring, true);
            let (ids, weights) = chosen(&logits, experts, &spec, Isa::detect(), threads);
            for (row, logits) in logits.chunks(experts).enumerate() {
                let alone = chosen(logits, experts, &spec, Isa::Scalar, 1);
                prop_assert_eq!(&ids[row * k..][..k], &alone.0[..]);
                prop_assert_eq!(&weights[row * k..][..k], &alone.1[..]);
                let mut sorted: Vec<u32> = (0..u32::try_from(experts).unwrap()).collect();
                // A softmax can tie where logits differ, so sort what is compared.
                let mut scores = logits.to_vec();
                score(&mut scores, scoring, Isa::Scalar);
                sorted.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]));
                prop_assert_eq!(&alone.0[..], &sorted[..k]);
            }
        }
    }

    #[test]
    fn a_slot_has_the_bits_of_a_product_of_its_own(
        rows in 0usize..=40, k in 1usize..=4, experts in 1usize..=6, shared in any::<bool>(), bf16 in any::<bool>(),
        threads in 1usize..=3, seed in 0u64..1000,
    ) {
        let (in_features, out_features, k) = (37, 21, k.min(experts));
        let kind = if bf16 { WeightType::Bf16 } else { WeightType::F32 };
        let weights: Vec<_> = (0..experts).map(|e| packed(kind, out_features, in_features, seed + e as u64)).collect();
        let slots = if shared { rows } else { rows * k };
        let x = Random(seed + 99).values(slots * in_features);
        // Skewed: most rows go to the first experts, some experts get none.
        let ids: Vec<u32> = (0..rows * k)
            .map(|slot| u32::try_from((slot * slot + 3 * slot) % (2 * experts + 1) % experts).unwrap())
            .collect();
        let settings = Settings { isa: plimsoll_linear::Isa::detect(), threads };
        let shape = ExpertShape { rows, k, experts, in_features, out_features, weight_type: kind };
        let (mut memory, start) = aligned(shape.scratch_bytes(settings));
        let mut out = vec![f32::NAN; rows * k * out_features];
        expert_linear(&shape, &x, &ids, &weights, &mut out, &mut memory[start..], settings, || false);
        let one = Settings { isa: plimsoll_linear::Isa::Scalar, threads: 1 };
        for (slot, got) in out.chunks(out_features).enumerate() {
            let row = if shared { slot / k } else { slot };
            let mut want = vec![f32::NAN; out_features];
            let bytes = plimsoll_linear::scratch_bytes(1, in_features, &[(kind, out_features)], one);
            let (mut memory, start) = aligned(bytes);
            let part = Output { weight: &weights[ids[slot] as usize], bias: None, out: &mut want };
            plimsoll_linear::linear(&x[row * in_features..][..in_features], 1, &mut [part], &mut memory[start..], one);
            prop_assert!(got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "slot {}", slot);
        }
    }

    #[test]
    fn slots_are_summed_in_ascending_order(rows in 1usize..=20, k in 1usize..=5, width in 1usize..=1000, threads in 1usize..=3) {
        let (x, weights) = (Random(1).values(rows * k * width), Random(2).values(rows * k));
        let mut out = vec![f32::NAN; rows * width];
        combine(&x, &weights, k, width, &mut out, threads);
        for (at, got) in out.iter().enumerate() {
            let (row, i) = (at / width, at % width);
            let term = |j: usize| weights[row * k + j] * x[(row * k + j) * width + i];
            let want = (1..k).fold(term(0), |sum, j| sum + term(j));
            prop_assert_eq!(got.to_bits(), want.to_bits());
        }
    }
}

#[test]
fn a_group_larger_than_a_tile_keeps_its_bits() {
    let (rows, features) = (2 * TILE_ROWS + 3, 16);
    let weights = [packed(WeightType::F32, features, features, 3), packed(WeightType::F32, features, features, 4)];
    let x = Random(5).values(rows * features);
    // All but two rows choose the second expert.
    let ids: Vec<u32> = (0..rows).map(|row| u32::from(row != 1 && row != 300)).collect();
    let settings = Settings { isa: plimsoll_linear::Isa::detect(), threads: 2 };
    let run = |x: &[f32], ids: &[u32]| {
        let rows = ids.len();
        let weight_type = WeightType::F32;
        let shape = ExpertShape { rows, k: 1, experts: 2, in_features: features, out_features: features, weight_type };
        let (mut memory, start) = aligned(shape.scratch_bytes(settings));
        let mut out = vec![f32::NAN; rows * features];
        expert_linear(&shape, x, ids, &weights, &mut out, &mut memory[start..], settings, || false);
        out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    let all = run(&x, &ids);
    for row in [0, 1, TILE_ROWS, 2 * TILE_ROWS, rows - 1] {
        let at = row * features..(row + 1) * features;
        assert_eq!(run(&x[at.clone()], &ids[row..=row]), all[at], "row {row}");
    }
}

#[test]
fn scratch_of_a_product_does_not_grow_with_the_gathered_rows() {
    let settings = Settings { isa: plimsoll_linear::Isa::Scalar, threads: 1 };
    let weight_type = WeightType::Bf16;
    let bytes = |rows| {
        ExpertShape { rows, k: 8, experts: 128, in_features: 2048, out_features: 768, weight_type }
            .scratch_bytes(settings)
    };
    // Eight slots of four bytes per row more, and nothing else.
    assert_eq!(bytes(4096) - bytes(2048), 2048 * 8 * 4);
}
