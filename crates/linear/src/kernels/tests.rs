//! Every kernel of this machine against the definition, bit for bit.

use proptest::prelude::*;

use super::*;
use crate::layout;

/// Runs `$body` with every vector kernel this CPU has.
macro_rules! with_vector_kernels {
    ($kernel:ident => $body:block) => {{
        #[cfg(target_arch = "x86_64")]
        {
            if let Some($kernel) = Avx2::detect() $body
            if let Some($kernel) = Avx512::detect() $body
            if let Some($kernel) = Avx512::detect().map(Avx512::without_vbmi) $body
        }
        #[cfg(target_arch = "aarch64")]
        if let Some($kernel) = Neon::detect() $body
    }};
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
        with_vector_kernels!(kernel => {
            kernel.round(&x, &mut got);
            prop_assert_eq!(bits(&got), bits(&want));
        });
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
        with_vector_kernels!(kernel => {
            kernel.dequantize(ty, panel, start, len, got);
            prop_assert_eq!(operand_bits(&got[..rows]), operand_bits(&want[..rows]), "{}", ty);
        });
        #[cfg(target_arch = "x86_64")]
        if let Some(amx) = Amx::detect() {
            let tiles = len.div_ceil(32) * TILE * TILE;
            got[..tiles].fill(f32::NAN);
            amx.dequantize_to_tiles(ty, panel, start, len, &mut got[..tiles]);
            want[rows..].fill(0.0);
            prop_assert_eq!(operand_bits(&unpaired(&got[..tiles])), operand_bits(&want[..2 * tiles]), "{}", ty);
        }
    }

    #[test]
    fn tiles_equal_the_definition(
        rows in 1usize..=MAX_TILE_ROWS, pairs in 1usize..=128, gap in 0usize..5, first: bool, last: bool,
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
            let mut out = vec![0.5; MAX_TILE_ROWS * OUT_STRIDE];
            let tile = Tile {
                x: &x, x_stride: stride, rows, w, is_bf16: false, pairs, first, bias: last.then_some(bias),
                out: out.as_mut_ptr(), out_stride: OUT_STRIDE,
            };
            kernel(&tile);
            bits(&out)
        };
        // SAFETY: the output of `run` has room for all rows.
        let want = run(&|tile| unsafe { Scalar.tile(tile) });
        with_vector_kernels!(kernel => {
            let most = rows_of(kernel);
            let mut got = run(&|tile| {
                for row in (0..tile.rows).step_by(most) {
                    // SAFETY: as above: these are rows of the same output.
                    unsafe { kernel.tile(&rows_from(tile, row, most)) };
                }
            });
            prop_assert_eq!(&got, &want);
            if rows <= most.min(8) && kernel.fuses(WeightType::Bf16, rows) {
                // The weights as a packed panel: bf16 pairs. They are not all bf16 numbers, so both sides round first.
                let rounded: Vec<f32> = w.iter().map(|&w| crate::bf16_operand(w)).collect();
                let mut panel_lines = lines(2 * pairs * PANEL * 2);
                let panel: &mut [u16] = bytemuck::cast_slice_mut(&mut panel_lines);
                for (i, w) in rounded.iter().enumerate() {
                    let (k, column) = (i / PANEL, i % PANEL);
                    panel[(k / 2 * PANEL + column) * 2 + k % 2] = half::bf16::from_f32(*w).to_bits();
                }
                let mut rounded_lines = lines(2 * pairs * PANEL * 4);
                bytemuck::cast_slice_mut::<_, f32>(&mut rounded_lines)[..rounded.len()].copy_from_slice(&rounded);
                // SAFETY: as above.
                let want = run(&|tile| unsafe { Scalar.tile(&Tile { w: bytemuck::cast_slice(&rounded_lines), ..*tile }) });
                let panel: &[u8] = bytemuck::cast_slice(&panel_lines);
                // SAFETY: as above.
                got = run(&|tile| unsafe { kernel.fused(WeightType::Bf16, panel, 0, &Tile { w: &[], ..*tile }) });
                prop_assert_eq!(got, want);
            }
        });
    }
}

/// A panel and rows of `x`: several steps and k blocks, several tiles of every kernel.
struct Case {
    ty: WeightType,
    k: usize,
    rows: usize,
    x: Vec<f32>,
    panel: Vec<Line>,
    panel_bytes: usize,
    bias: [f32; PANEL],
}

impl Case {
    /// `bytes` are repeated to stored rows, `values` to rows of `x` and the bias.
    fn new(ty: WeightType, k: usize, rows: usize, bytes: &[u8], values: &[f32]) -> Self {
        Self::with_weights(ty, k, rows, values, |column, row| {
            row.iter_mut().zip(bytes.iter().cycle().skip(column * 31)).for_each(|(to, &byte)| *to = byte);
        })
    }

    /// `fill` writes the stored row of each column.
    fn with_weights(ty: WeightType, k: usize, rows: usize, values: &[f32], fill: impl Fn(usize, &mut [u8])) -> Self {
        let k = k.next_multiple_of(ty.block_elements());
        let panel_bytes = layout::panel_bytes(ty, k).unwrap();
        let mut panel = lines(panel_bytes);
        let mut row = vec![0; ty.row_bytes(k).unwrap()];
        for column in 0..PANEL {
            fill(column, &mut row);
            layout::pack_row(ty, &row, &mut bytemuck::cast_slice_mut(&mut panel)[..panel_bytes], column);
        }
        let stride = k.next_multiple_of(2);
        let exact: Vec<f32> = values.iter().copied().cycle().take(rows * stride).collect();
        let mut x = vec![0.0; exact.len()];
        Scalar.round(&exact, &mut x);
        // The padding of an odd `k`.
        x.chunks_exact_mut(stride).for_each(|row| row[k..].fill(0.0));
        let bias = std::array::from_fn(|i| values[(i + 17) % values.len()]);
        Self { ty, k, rows, x, panel, panel_bytes, bias }
    }

    fn panel(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.panel)[..self.panel_bytes]
    }

    /// The product by dequantizing blocks of `k` and multiplying with tiles.
    fn tiled<K: Kernel>(&self, kernel: K) -> Vec<u32> {
        let mut out = vec![0.5; self.rows * OUT_STRIDE];
        let stride = self.k.next_multiple_of(2);
        let mut w_lines = lines(K_BLOCK * PANEL * 4);
        let w: &mut [f32] = bytemuck::cast_slice_mut(&mut w_lines);
        for start in (0..self.k).step_by(K_BLOCK) {
            let len = K_BLOCK.min(self.k - start);
            kernel.dequantize(self.ty, self.panel(), start, len, w);
            let (pairs, last) = (len.div_ceil(2), start + len == self.k);
            for row in (0..self.rows).step_by(K::TILE_ROWS) {
                let tile = Tile {
                    x: &self.x[row * stride + start..],
                    x_stride: stride,
                    rows: K::TILE_ROWS.min(self.rows - row),
                    w: &w[..2 * pairs * PANEL],
                    is_bf16: true,
                    pairs,
                    out: out[row * OUT_STRIDE..].as_mut_ptr(),
                    out_stride: OUT_STRIDE,
                    first: start == 0,
                    bias: last.then_some(&self.bias),
                };
                // SAFETY: `out` has room for all rows.
                unsafe { kernel.tile(&tile) };
            }
        }
        bits(&out)
    }

    /// The product without a stop in memory; `None` if the kernel cannot.
    fn fused<K: Kernel>(&self, kernel: K) -> Option<Vec<u32>> {
        let most = (1..=K::TILE_ROWS).rev().find(|&rows| kernel.fuses(self.ty, rows))?;
        let mut out = vec![0.5; self.rows * OUT_STRIDE];
        let stride = self.k.next_multiple_of(2);
        for row in (0..self.rows).step_by(most) {
            let tile = Tile {
                x: &self.x[row * stride..],
                x_stride: stride,
                rows: most.min(self.rows - row),
                w: &[],
                is_bf16: true,
                pairs: stride / 2,
                out: out[row * OUT_STRIDE..].as_mut_ptr(),
                out_stride: OUT_STRIDE,
                first: true,
                bias: Some(&self.bias),
            };
            // SAFETY: `out` has room for all rows.
            unsafe { kernel.fused(self.ty, self.panel(), 0, &tile) };
        }
        Some(bits(&out))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn products_of_every_type_equal_the_definition(
        k in 1usize..=700, rows in 1usize..=20,
        mut bytes in prop::collection::vec(any::<u8>(), 977), bits in prop::collection::vec(any::<u32>(), 613), wild: bool,
        finite: bool,
    ) {
        if finite {
            // No byte is the upper one of an infinite f16: one such scale sends a whole tile the long way.
            bytes.iter_mut().filter(|byte| **byte & 0x7c == 0x7c).for_each(|byte| *byte &= !0x40);
        }
        let values: Vec<f32> = bits
            .into_iter()
            .map(|bits| f32::from_bits(if wild { bits } else { (bits & 0x83ff_ffff) | 0x3c00_0000 }))
            .collect();
        for &ty in &WeightType::ALL[1..] {
            equals_the_definition(&Case::new(ty, k, rows, &bytes, &values))?;
        }
    }

    /// Scales and minimums as weights have them: what is exact with few bits between the two is exact here, and not with any bits.
    #[test]
    fn products_of_quantized_weights_equal_the_definition(
        k in 1usize..=700, rows in 1usize..=9, weights in prop::collection::vec(-1f32..1.0, 613), size in -10i32..10,
        shift in -8f32..8.0,
    ) {
        for ty in [WeightType::Q4_0, WeightType::Q4_1, WeightType::Q5_0, WeightType::Q5_1, WeightType::Q8_0, WeightType::Q4K] {
            let case = Case::with_weights(ty, k, rows, &weights, |column, row| {
                let len = row.len() / ty.block_bytes() * ty.block_elements();
                let values = weights.iter().cycle().skip(column * 31).map(|w| (w + shift) * 2f32.powi(size)).take(len);
                crate::quantize(ty, &values.collect::<Vec<_>>(), row).unwrap();
            });
            equals_the_definition(&case)?;
        }
    }
}

fn equals_the_definition(case: &Case) -> Result<(), TestCaseError> {
    let (want, what) = (case.tiled(Scalar), format!("{} rows of {}, k {}", case.rows, case.ty, case.k));
    with_vector_kernels!(kernel => {
        prop_assert_eq!(&case.tiled(kernel), &want, "{}, tiled", what);
        if let Some(got) = case.fused(kernel) {
            prop_assert_eq!(&got, &want, "{}, fused", what);
        }
    });
    Ok(())
}

/// An operand of one of several kinds: any bits, near to each other (sums cancel), near the largest and the smallest, zeros and
/// infinities and NaNs among ordinary numbers.
fn operand(kind: u8, bits: u32) -> f32 {
    let exponent = |e: u32| f32::from_bits((bits & 0x807f_0000) | (e << 23));
    let rare = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.0, -0.0, 1.0, f32::MAX, f32::from_bits(0xffa0_0000)];
    crate::bf16_operand(match kind {
        0 => f32::from_bits(bits),
        1 => f32::from_bits((bits & 0x8007_0000) | 0x3f80_0000),
        2 => exponent(180 + bits % 16),
        3 => exponent(77 + bits % 4),
        4 => exponent(77 + bits % 170),
        5 if bits.is_multiple_of(8) => rare[bits as usize / 8 % 8],
        5 => exponent(127),
        _ => exponent(if bits.is_multiple_of(4) { 245 } else { 77 + bits % 20 }),
    })
}

/// Products of bf16 operands by multiply and add, against fused multiply-adds.
mod steps_of_bf16 {
    use super::*;
    use crate::kernels::scalar::{step, step_of_bf16};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 2000 } else { 20_000 }))]

        #[test]
        fn equal_fused_steps(
            kinds in (0u8..7, 0u8..7), pairs in 1usize..=STEP_PAIRS, bits in prop::collection::vec(any::<u32>(), 613),
        ) {
            let operands = |kind, skip, count| -> Vec<f32> {
                bits.iter().cycle().skip(skip).take(count).map(|&bits| operand(kind, bits)).collect()
            };
            let (x, w) = (operands(kinds.0, 0, 2 * pairs), operands(kinds.1, 101, 2 * pairs * PANEL));
            prop_assert_eq!(operand_bits(&step_of_bf16(&x, &w)), operand_bits(&step(&x, &w, f32::mul_add)));
        }
    }

    #[test]
    fn are_finite_where_a_product_alone_is_not() {
        let (x, big) = (2f32.powi(64), 2f32.powi(63));
        let mut w = [0.0; 4 * PANEL];
        // -1.5 * 2^127, then + 2^128 in the same chain.
        w[..PANEL].fill(-1.5 * big);
        w[2 * PANEL..][..PANEL].fill(x);
        assert_eq!(step_of_bf16(&[x, 0.0, x, 0.0], &w), [2f32.powi(126); PANEL]);
    }

    #[test]
    fn are_not_asked_of_other_operands() {
        // (1 + 2^-23)^2 - 1 keeps its last bit only if the product is not rounded.
        let x = 1.0f32.next_up();
        let mut w = lines(4 * PANEL * 4);
        let weights: &mut [f32] = bytemuck::cast_slice_mut(&mut w);
        weights[..PANEL].fill(-1.0);
        weights[2 * PANEL..][..PANEL].fill(x);
        let mut out = [0.0; PANEL];
        let tile = Tile {
            x: &[1.0, 0.0, x, 0.0],
            x_stride: 4,
            rows: 1,
            w: weights,
            is_bf16: false,
            pairs: 2,
            out: out.as_mut_ptr(),
            out_stride: PANEL,
            first: true,
            bias: None,
        };
        // SAFETY: `out` has room for a row.
        unsafe { Scalar.tile(&tile) };
        assert_eq!(out, [2f32.powi(-22) + 2f32.powi(-46); PANEL]);
    }
}

fn rows_of<K: Kernel>(_: K) -> usize {
    K::TILE_ROWS
}

/// At most `most` rows of a tile, from `row` on.
fn rows_from<'a>(tile: &Tile<'a>, row: usize, most: usize) -> Tile<'a> {
    Tile {
        x: &tile.x[row * tile.x_stride..],
        rows: most.min(tile.rows - row),
        out: tile.out.wrapping_add(row * tile.out_stride),
        ..*tile
    }
}

/// Tiles of bf16 pairs as `[k][16]` f32.
#[cfg(target_arch = "x86_64")]
fn unpaired(tiles: &[f32]) -> Vec<f32> {
    let words: &[u32] = bytemuck::cast_slice(tiles);
    let row = |pairs: &[u32], odd: bool| -> Vec<f32> {
        pairs.iter().map(|&pair| f32::from_bits(if odd { pair & 0xffff_0000 } else { pair << 16 })).collect()
    };
    words.chunks_exact(PANEL).flat_map(|pairs| [row(pairs, false), row(pairs, true)].concat()).collect()
}

#[cfg(target_arch = "aarch64")]
mod neon;

/// What the contract rests on: the order in which the matrix instruction sums, and how it rounds, on this very CPU.
#[cfg(target_arch = "x86_64")]
mod hardware {
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 300 } else { 4000 }))]

        #[test]
        fn tiles_sum_in_the_order_of_the_contract(
            kind in 0u8..7, second_x: bool, second_w: bool, steps in 1usize..=7, more: bool, seed: u64,
        ) {
            let Some(amx) = Amx::detect() else {
                // Written past the harness, which would keep it from a passing test.
                use std::io::Write;
                let _ = writeln!(std::io::stderr(), "not run: no AMX on this machine");
                return Ok(());
            };
            let mut state = seed | 1;
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u32
            };
            let elements = TILE * TILE;
            let mut operands = || -> Vec<f32> { (0..steps * 2 * elements).map(|_| operand(kind, next())).collect() };
            // Rows `[row block][16][k]` and panels `[panel][k][16]`.
            let (x, w) = ([operands(), operands()], [operands(), operands()]);
            let k = steps * 32;
            let bf16 = |v: f32| u32::from(half::bf16::from_f32(v).to_bits());
            let mut memory = lines(4 * (4 * steps + 4) * elements);
            let tiles: &mut [f32] = bytemuck::cast_slice_mut(&mut memory);
            let (x_tiles, rest) = tiles.split_at_mut(2 * steps * elements);
            let (w_tiles, sums) = rest.split_at_mut(2 * steps * elements);
            for (i, pair) in x_tiles.iter_mut().enumerate() {
                let (step, block, row, pair_of_row) = (i / (2 * elements), i / elements % 2, i / TILE % TILE, i % TILE);
                let at = row * k + step * 32 + 2 * pair_of_row;
                *pair = f32::from_bits(bf16(x[block][at]) | (bf16(x[block][at + 1]) << 16));
            }
            for (i, pair) in w_tiles.iter_mut().enumerate() {
                let (panel, i) = (i / (steps * elements), i % (steps * elements));
                let at = i / PANEL * 2 * PANEL + i % PANEL;
                *pair = f32::from_bits(bf16(w[panel][at]) | (bf16(w[panel][at + PANEL]) << 16));
            }
            // Sums so far are what chains leave: zero or at least 2^-114.
            for sum in sums.iter_mut() {
                let value = f32::from_bits(next());
                *sum = if value.abs() < 2f32.powi(-114) { 0.0 } else { value };
            }
            let before = sums.to_vec();
            let micro = Micro {
                x: x_tiles,
                both_blocks: second_x,
                next_x: x_tiles,
                w: [Some(&w_tiles[..steps * elements]), second_w.then_some(&w_tiles[steps * elements..])],
                steps,
                from: more.then_some(sums.as_ptr()),
                to: sums.as_mut_ptr(),
            };
            // SAFETY: `sums` has four tiles.
            unsafe { micro.run(&Tiles::configure(amx)) };
            for (i, (got, before)) in sums.iter().zip(before).enumerate() {
                let (block, panel) = (i / (2 * elements), i / elements % 2);
                if (block == 1 && !second_x) || (panel == 1 && !second_w) {
                    continue;
                }
                let (row, column) = (i / TILE % TILE, i % TILE);
                let mut want = if more { before } else { 0.0 };
                for step in 0..steps {
                    let mut chains = [0.0f32; 2];
                    for at in step * 32..step * 32 + 32 {
                        chains[at % 2] = x[block][row * k + at].mul_add(w[panel][at * PANEL + column], chains[at % 2]);
                    }
                    want += chains[0] + chains[1];
                }
                let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
                prop_assert!(same, "kind {}, row {}, column {}: {:e}, want {:e}", kind, row, column, got, want);
            }
        }

        #[test]
        fn rows_become_tiles_by_the_definition(
            rows in 1usize..40, k in 1usize..100, values in prop::collection::vec(any::<u32>(), 211),
        ) {
            let Some(amx) = Amx::detect() else { return Ok(()) };
            let x: Vec<f32> = values.iter().cycle().take(rows * k).map(|&bits| f32::from_bits(bits)).collect();
            let steps = k.div_ceil(32);
            let mut memory = lines(rows.div_ceil(2 * TILE) * steps * 2 * TILE * TILE * 4);
            let tiles: &mut [f32] = bytemuck::cast_slice_mut(&mut memory);
            tiles.fill(f32::NAN);
            amx.round_to_tiles(&x, k, tiles);
            let words: &[u16] = bytemuck::cast_slice(tiles);
            for (i, &got) in words.iter().enumerate() {
                let (tile, row, at) = (i / 512, i / 32 % 16, i % 32);
                let (row, at) = (tile / (2 * steps) * 32 + tile % 2 * 16 + row, tile / 2 % steps * 32 + at);
                if row >= rows.next_multiple_of(TILE) {
                    continue;
                }
                let want = if row < rows && at < k { crate::bf16_operand(x[row * k + at]) } else { 0.0 };
                let got = half::bf16::from_bits(got).to_f32();
                prop_assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "row {}, k {}", row, at);
            }
        }
    }
}
