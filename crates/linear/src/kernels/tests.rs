//! Every kernel of this machine against the definition, bit for bit.

use proptest::prelude::*;

use super::*;
use crate::layout;

/// Kernels other than the scalar one.
fn others() -> Vec<impl Kernel> {
    #[cfg(target_arch = "x86_64")]
    return Avx2::detect().into_iter().collect::<Vec<_>>();
    #[cfg(not(target_arch = "x86_64"))]
    return Vec::<Scalar>::new();
}

/// Aligned memory.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

fn lines(bytes: usize) -> Vec<Line> {
    bytemuck::zeroed_vec(bytes.div_ceil(64))
}

const OUT_STRIDE: usize = PANEL + 3;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Bits without what no product shows: the sign of a zero, and which NaN a NaN is.
fn operand_bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|&v| if v.is_nan() { f32::NAN.to_bits() } else { (v + 0.0).to_bits() }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn rounding_equals_the_definition(x in prop::collection::vec(any::<u32>(), 0..70)) {
        let x: Vec<f32> = x.into_iter().map(f32::from_bits).collect();
        let (mut got, mut want) = (vec![1.0; x.len()], vec![2.0; x.len()]);
        Scalar.round(&x, &mut want);
        for kernel in others() {
            kernel.round(&x, &mut got);
            prop_assert_eq!(bits(&got), bits(&want));
        }
    }

    #[test]
    fn dequantizing_equals_the_definition(
        ty in prop::sample::select(&WeightType::ALL[1..]), raw in 1usize..=256, second: bool,
        seed in prop::collection::vec(any::<u8>(), 977),
    ) {
        let start = if second { K_BLOCK } else { 0 };
        let len = raw.next_multiple_of(ty.block_elements());
        let panel_bytes = layout::panel_bytes(ty, start + len).unwrap();
        let mut panel_lines = lines(panel_bytes);
        let panel = &mut bytemuck::cast_slice_mut(&mut panel_lines)[..panel_bytes];
        let row_bytes = ty.row_bytes(start + len).unwrap();
        for column in 0..PANEL {
            let row: Vec<u8> = seed.iter().copied().cycle().skip(column * 31).take(row_bytes).collect();
            layout::pack_row(ty, &row, panel, column);
        }
        let rows = len.next_multiple_of(2) * PANEL;
        let mut got_lines = lines(K_BLOCK * PANEL * 4);
        let got: &mut [f32] = bytemuck::cast_slice_mut(&mut got_lines);
        got.fill(1.0);
        let mut want = vec![2.0; K_BLOCK * PANEL];
        Scalar.dequantize(ty, panel, start, len, &mut want);
        for kernel in others() {
            kernel.dequantize(ty, panel, start, len, got);
            prop_assert_eq!(operand_bits(&got[..rows]), operand_bits(&want[..rows]), "{}", ty);
        }
    }

    #[test]
    fn tiles_equal_the_definition(
        rows in 1usize..=TILE_ROWS, pairs in 1usize..=128, gap in 0usize..5, first: bool, last: bool,
        values in prop::collection::vec(-1e3f32..1e3, 613),
    ) {
        let stride = 2 * pairs + gap;
        let x: Vec<f32> = values.iter().copied().cycle().take(rows * stride).collect();
        let mut w_lines = lines(2 * pairs * PANEL * 4);
        let w: &mut [f32] = bytemuck::cast_slice_mut(&mut w_lines);
        for (w, value) in w.iter_mut().zip(values.iter().rev().cycle()) {
            *w = *value;
        }
        let bias: &[f32; PANEL] = values[17..].first_chunk().unwrap();
        let run = |kernel: &dyn Fn(&Tile<'_>)| {
            let mut out = vec![0.5; TILE_ROWS * OUT_STRIDE];
            let tile = Tile {
                x: &x, x_stride: stride, rows, w, pairs, first, bias: last.then_some(bias),
                out: out.as_mut_ptr(), out_stride: OUT_STRIDE,
            };
            kernel(&tile);
            bits(&out)
        };
        // SAFETY: the output of `run` has room for six rows.
        let want = run(&|tile| unsafe { Scalar.tile(tile) });
        for kernel in others() {
            // SAFETY: as above.
            prop_assert_eq!(run(&|tile| unsafe { kernel.tile(tile) }), want.clone());
        }
    }
}
