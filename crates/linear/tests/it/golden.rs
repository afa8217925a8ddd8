//! Stored blocks against the `gguf` package's answers, committed with the script that asked for them.

use plimsoll_linear::{WeightType, reference};

use crate::cases::packed;

macro_rules! golden {
    ($($variant:ident = $name:literal,)*) => {
        /// Type, stored blocks, their values.
        const GOLDEN: &[(WeightType, &[u8], &[u8])] = &[$((
            WeightType::$variant,
            include_bytes!(concat!("../golden/blocks/", $name, ".blocks")),
            include_bytes!(concat!("../golden/blocks/", $name, ".f32")),
        ),)*];
    };
}

golden! {
    Q4_0 = "Q4_0",
    Q4_1 = "Q4_1",
    Q5_0 = "Q5_0",
    Q5_1 = "Q5_1",
    Q8_0 = "Q8_0",
    Q2K = "Q2_K",
    Q3K = "Q3_K",
    Q4K = "Q4_K",
    Q5K = "Q5_K",
    Q6K = "Q6_K",
    Iq4Nl = "IQ4_NL",
    Iq4Xs = "IQ4_XS",
    Mxfp4 = "MXFP4",
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Equal bits, signs of zeros too; any NaN equals any other.
#[track_caller]
fn assert_golden(got: &[f32], want: &[f32], ty: WeightType) {
    assert_eq!(got.len(), want.len(), "{ty}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
        assert!(same, "{ty}: element {i} is {got:e}, the gguf package says {want:e}");
    }
}

#[test]
fn every_block_format_has_golden_blocks() {
    let with_blocks: Vec<WeightType> = WeightType::ALL.into_iter().filter(|ty| ty.block_elements() > 1).collect();
    assert_eq!(GOLDEN.iter().map(|case| case.0).collect::<Vec<_>>(), with_blocks);
    for &(ty, blocks, values) in GOLDEN {
        let count = blocks.len() / ty.block_bytes();
        assert!(count >= 20 && values.len() == 4 * count * ty.block_elements(), "{ty}: {count} blocks");
    }
}

#[test]
fn the_reference_equals_the_gguf_package() {
    for &(ty, blocks, values) in GOLDEN {
        assert_golden(&reference::dequantize(ty, blocks).unwrap(), &floats(values), ty);
    }
}

#[test]
fn packed_rows_equal_the_gguf_package() {
    for &(ty, blocks, values) in GOLDEN {
        let (block, want) = (ty.block_elements(), floats(values));
        let count = blocks.len() / ty.block_bytes();
        // Rows of one block, of three (an odd multiple of 32), and of all.
        for row_blocks in [1, 3, count] {
            let (n, k) = (count / row_blocks, row_blocks * block);
            let weight = packed(ty, n, k, &blocks[..n * row_blocks * ty.block_bytes()]);
            let mut row = vec![0.0; k];
            for (index, want) in want.chunks_exact(k).take(n).enumerate() {
                weight.dequantize_row(index, &mut row);
                assert_golden(&row, want, ty);
            }
        }
    }
}

#[test]
fn golden_blocks_hold_extreme_scales() {
    for &(ty, _, values) in GOLDEN {
        let values = floats(values);
        assert!(values.iter().any(|v| v.is_normal()) && values.iter().any(|v| *v < 0.0), "{ty}");
        assert!(values.iter().any(|v| v.is_infinite()), "{ty}: no infinite value");
        if ty != WeightType::Mxfp4 {
            assert!(values.iter().any(|v| v.is_nan()), "{ty}: no NaN");
        }
    }
}
