//! Packing keeps every value.

use plimsoll_linear::{PackedWeight, Packer, WeightType, reference};
use proptest::prelude::*;

use crate::cases::{Random, garbage, packed, stored};

pub(crate) fn any_type() -> impl Strategy<Value = WeightType> {
    prop::sample::select(WeightType::ALL.as_slice())
}

/// `in_features` for a type: whole blocks, any length (odd too) for floats.
pub(crate) fn in_features(ty: WeightType, raw: usize) -> usize {
    match ty.block_elements() {
        1 => raw,
        32 => 32 * (1 + raw % 19),
        block => block * (1 + raw % 3),
    }
}

fn assert_rows_equal_the_stored_ones(weight: &PackedWeight, bytes: &[u8]) {
    let want = reference::dequantize(weight.weight_type(), bytes).unwrap();
    let mut row = vec![0.0; weight.in_features()];
    for (n, want) in want.chunks_exact(weight.in_features()).enumerate() {
        weight.dequantize_row(n, &mut row);
        for (k, (got, want)) in row.iter().zip(want).enumerate() {
            let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
            assert!(same, "{} row {n}, k {k}: {got:e}, want {want:e}", weight.weight_type());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_dequantized_row_equals_the_stored_row(ty in any_type(), n in 1usize..40, raw in 1usize..600, seed: u64, wild: bool) {
        let (k, mut random) = (in_features(ty, raw), Random::new(seed));
        let bytes = if wild { garbage(ty, n, k, &mut random) } else { stored(ty, n, k, &mut random) };
        assert_rows_equal_the_stored_ones(&packed(ty, n, k, &bytes), &bytes);
    }

    #[test]
    fn pieces_and_threads_pack_the_same_weight(
        ty in any_type(), n in 1usize..90, raw in 1usize..80, seed: u64, threads in 1usize..=4,
    ) {
        let (k, mut random) = (in_features(ty, raw), Random::new(seed));
        let bytes = stored(ty, n, k, &mut random);
        let row_bytes = ty.row_bytes(k).unwrap();
        let mut packer = Packer::new(ty, n, k).unwrap();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let rows = 1 + random.below(rest.len() / row_bytes);
            let (piece, others) = rest.split_at(rows * row_bytes);
            packer.push(piece, threads).unwrap();
            rest = others;
        }
        prop_assert_eq!(packer.pushed_rows(), n);
        assert_rows_equal_the_stored_ones(&packer.finish().unwrap(), &bytes);
        assert_rows_equal_the_stored_ones(&PackedWeight::pack(ty, n, k, &bytes, threads).unwrap(), &bytes);
    }

    #[test]
    fn packed_bytes_are_what_packing_allocates(ty in any_type(), n in 1usize..70, raw in 1usize..600) {
        let k = in_features(ty, raw);
        let bytes = vec![0; ty.row_bytes(k).unwrap() * n];
        let weight = packed(ty, n, k, &bytes);
        prop_assert_eq!(weight.bytes(), PackedWeight::packed_bytes(ty, n, k));
    }
}

#[test]
fn whole_panels_grow_by_at_most_6_percent_and_most_types_not_at_all() {
    for ty in WeightType::ALL {
        for (n, k) in [(16, 256), (576, 1536), (49152, 768)] {
            let stored = (ty.row_bytes(k).unwrap() * n) as f64;
            let packed = PackedWeight::packed_bytes(ty, n, k) as f64;
            let bound = match ty {
                WeightType::Mxfp4 => 1.06,
                WeightType::Q3K | WeightType::Q4K | WeightType::Q5K | WeightType::Iq4Xs => 1.037,
                _ => 1.0,
            };
            assert!(packed <= bound * stored + 64.0, "{ty} {n} x {k}: {packed} bytes for {stored}");
        }
    }
}
