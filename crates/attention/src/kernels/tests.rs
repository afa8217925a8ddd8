//! Products of every instruction set of this machine against the scalar ones, bit for bit.

use proptest::prelude::*;

use super::*;
use crate::{KvDtype, KvValues};

/// Runs `$body` with every kernel but the scalar one that this CPU has.
macro_rules! with_vector_kernels {
    ($kernels:ident => $body:block) => {{
        #[cfg(target_arch = "x86_64")]
        {
            if let Some($kernels) = Avx2::detect() $body
            if let Some($kernels) = Avx512::detect() $body
            if let Some($kernels) = Amx::detect() $body
        }
        #[cfg(target_arch = "aarch64")]
        if let Some($kernels) = Neon::detect() $body
    }};
}

/// Bits, with one NaN for all: payloads differ between instructions.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    /// Ordinary numbers, values that cancel, the largest and the smallest, or all of them with infinities and NaNs.
    fn operand(&mut self, kind: u8) -> f32 {
        let bits = self.next();
        bf16_operand(match kind {
            0 => f32::from_bits((bits & 0x80ff_ffff) | 0x3f00_0000),
            1 => f32::from_bits((bits & 0x8007_0000) | 0x3f80_0000),
            2 => f32::from_bits((bits & 0x807f_0000) | ((180 + bits % 16) << 23)),
            3 => f32::from_bits((bits & 0x807f_0000) | ((77 + bits % 4) << 23)),
            _ => f32::from_bits(bits),
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn products_equal_the_scalar_ones(
        kind in 0u8..5, rows in 1usize..40, k_steps in 1usize..=8, k_less in 0usize..32, k_start in 0usize..16,
        tiles in 1usize..=9, columns_less in 0usize..16, ragged: bool, source in 0u8..4, gap in 0usize..9, seed: u64,
    ) {
        let mut random = Random(seed | 1);
        let (k_end, k_start) = if ragged { (32 * k_steps - k_less, 2 * k_start) } else { (32 * k_steps, 0) };
        prop_assume!(k_start < k_end);
        let columns = if ragged && source != 0 { 16 * tiles - columns_less } else { 16 * tiles };
        let (stride, a_stride, out_stride) = (columns + gap, k_end + gap, columns + gap);
        let left: Vec<f32> = (0..rows * a_stride).map(|_| random.operand(kind)).collect();
        let a = Rows { data: &left, stride: a_stride, rows };
        let pairs: Vec<u32> = (0..k_end.div_ceil(2) * stride)
            .map(|_| {
                let (x, y) = (random.operand(kind), random.operand(kind));
                match source {
                    2 => (x.to_bits() >> 16) | y.to_bits(),
                    _ => u32::from(half::f16::from_f32(x).to_bits()) | (u32::from(half::f16::from_f32(y).to_bits()) << 16),
                }
            })
            .collect();
        let floats: Vec<f32> = (0..k_end * stride.next_multiple_of(16)).map(|_| random.operand(kind)).collect();
        let b = match source {
            0 => Operand::Panels { data: &floats[..k_end * columns], k: k_end },
            1 => Operand::F32 { data: &floats, stride },
            2 => Operand::Bf16 { data: &pairs, stride },
            _ => Operand::F16 { data: &pairs, stride },
        };
        let states: Vec<RowState> = (0..rows)
            .map(|r| RowState { max: 0.0, sum: 1.0, keep: if r % 3 == 0 { 1.0 } else { 0.25 }, take: 0.5 + r as f32 / 64.0 })
            .collect();
        let before: Vec<f32> = (0..rows * out_stride).map(|i| (i % 19) as f32 - 9.0).collect();
        let (mut want, mut want_folded) = (before.clone(), before.clone());
        Scalar.product(a, b, k_start..k_end, 0..columns, &mut want, out_stride);
        Scalar.product_fold(a, b, k_start..k_end, columns, &states, &mut want_folded, out_stride);
        with_vector_kernels!(kernels => {
            let mut got = before.clone();
            kernels.product(a, b, k_start..k_end, 0..columns, &mut got, out_stride);
            prop_assert_eq!(bits(&got), bits(&want));
            let mut got = before.clone();
            kernels.product_fold(a, b, k_start..k_end, columns, &states, &mut got, out_stride);
            prop_assert_eq!(bits(&got), bits(&want_folded));
        });
    }

    #[test]
    fn scalar_products_of_bf16_operands_equal_fused_ones(
        kind in 0u8..5, rows in 1usize..8, k_end in 1usize..=130, k_start in 0usize..16, narrow: bool, seed: u64,
    ) {
        let (mut random, k) = (Random(seed | 1), 2 * k_start.min((k_end - 1) / 2)..k_end);
        let left: Vec<f32> = (0..rows * k_end).map(|_| random.operand(kind)).collect();
        let a = Rows { data: &left, stride: k_end, rows };
        // One panel is also 16 columns of any f32: those keep fused operations.
        let floats: Vec<f32> = (0..k_end * PANEL).map(|_| random.operand(kind)).collect();
        let pairs: Vec<u32> = (0..k_end.div_ceil(2) * PANEL)
            .map(|i| {
                let at = i / PANEL * 2 * PANEL + i % PANEL;
                (floats[at].to_bits() >> 16) | floats.get(at + PANEL).map_or(0, |x| x.to_bits())
            })
            .collect();
        let columns = if narrow { 8 } else { PANEL };
        let product = |b, columns| {
            let mut out = vec![0.0; rows * PANEL];
            Scalar.product(a, b, k.clone(), 0..columns, &mut out, PANEL);
            bits(&out)
        };
        let want = product(Operand::F32 { data: &floats, stride: PANEL }, columns);
        prop_assert_eq!(product(Operand::Bf16 { data: &pairs, stride: PANEL }, columns), want.clone());
        if !narrow {
            prop_assert_eq!(product(Operand::Panels { data: &floats, k: k_end }, PANEL), want);
        }
    }

    #[test]
    fn softmaxes_and_folds_equal_the_scalar_ones(
        kind in 0u8..3, rows in 1usize..40, start in 0usize..63, len in 1usize..=64, softcap in prop::option::of(0.5f32..30.0), bf16: bool,
        scale in prop::sample::select(vec![0.7f32, 0.125, -0.3]), seed: u64,
    ) {
        let mut random = Random(seed | 1);
        // Scores of a model, all equal ones, and any number: what a NaN leaves in the other probabilities of its row is not defined.
        let mut score = || match kind {
            0 => (random.next() % 4001) as f32 / 100.0 - 20.0,
            1 => 3.0,
            _ => f32::from_bits(random.next() & 0xff7f_ffff),
        };
        let before: Vec<f32> = (0..rows * KV_BLOCK_TOKENS).map(|_| score()).collect();
        let how = Softmax { scale, softcap, bf16 };
        let visible = start..(start + len).min(KV_BLOCK_TOKENS);
        let empty = vec![RowState::EMPTY; rows];
        // Each row twice, so that a state meets a second block; then the fold of its probabilities, as if they were a product.
        macro_rules! run {
            ($kernels:expr) => {{
                let (mut whole, mut cut, mut states) = (before.clone(), before.clone(), empty.clone());
                $kernels.softmax_whole(&mut whole, &how, &mut states);
                let mut out = whole.clone();
                for (r, state) in states.iter_mut().enumerate() {
                    let row = r * KV_BLOCK_TOKENS..(r + 1) * KV_BLOCK_TOKENS;
                    $kernels.softmax(&mut cut[row.clone()], visible.clone(), &how, state);
                    $kernels.fold(&cut[row.clone()], *state, &mut out[row]);
                }
                let states: Vec<f32> = states.iter().flat_map(|s| [s.max, s.sum, s.keep, s.take]).collect();
                let mut rounded = vec![f32::NAN; before.len() - start];
                $kernels.round(&before[start..], &mut rounded);
                [bits(&whole), bits(&cut), bits(&out), bits(&states), bits(&rounded)]
            }};
        }
        let want = run!(Scalar);
        with_vector_kernels!(kernels => {
            prop_assert_eq!(run!(kernels), want.clone());
        });
    }

    #[test]
    fn blocks_taken_in_one_call_equal_the_scalar_steps(
        kind in 0u8..5, rows in 1usize..70, k_steps in 1usize..=8, v_tiles in 1usize..=16, gap in 0usize..9,
        softcap in prop::option::of(0.5f32..30.0), scale in prop::sample::select(vec![0.1f32, 0.125, -0.3]),
        first_end in 1usize..=64, window in prop::option::of(1usize..80), is_packed: bool, seed: u64,
    ) {
        let (head_dim, v_head_dim) = (32 * k_steps, PANEL * v_tiles);
        let layout = KvLayout { kv_heads: 1, head_dim, v_head_dim, dtype: KvDtype::Bf16, values: KvValues::Own };
        let mut random = Random(seed | 1);
        let queries: Vec<f32> = (0..rows * (head_dim + gap)).map(|_| random.operand(kind)).collect();
        let mut pairs = |len| -> Vec<u32> {
            (0..len).map(|_| (random.operand(kind).to_bits() >> 16) | random.operand(kind).to_bits()).collect()
        };
        let keys = [(); 3].map(|()| pairs(head_dim / 2 * KV_BLOCK_TOKENS));
        let values = [(); 3].map(|()| pairs(KV_BLOCK_TOKENS / 2 * v_head_dim));
        let q = Rows { data: &queries, stride: head_dim + gap, rows };
        let how = &Softmax { scale, softcap, bf16: true };
        let stride = v_head_dim + gap;
        // Hidden values are finite where this is asked for: kinds with infinities are left to blocks that are seen whole.
        let (first_end, window) = if kind == 4 { (KV_BLOCK_TOKENS, None) } else { (first_end, window) };
        // Each row sees one token more than the one before, and in a window one less at its other end.
        let visible = |r: usize| {
            let end = (first_end + r).min(KV_BLOCK_TOKENS);
            window.map_or(0, |window| (first_end + r).saturating_sub(window).min(end - 1))..end
        };
        // Blocks one after the other, so that outputs and states meet those of blocks before.
        let blocks = || keys.iter().zip(&values).map(|(k, v)| {
            (Operand::Bf16 { data: k, stride: KV_BLOCK_TOKENS }, Operand::Bf16 { data: v, stride: v_head_dim })
        });
        let of_states = |states: &[RowState]| -> Vec<f32> {
            states.iter().flat_map(|s| [s.max, s.sum, s.keep, s.take]).collect()
        };
        let (mut out, mut states) = (vec![0.0; rows * stride], vec![RowState::EMPTY; rows]);
        for (k, v) in blocks() {
            let mut p = vec![0.0; rows * KV_BLOCK_TOKENS];
            Scalar.product(q, k, 0..head_dim, 0..KV_BLOCK_TOKENS, &mut p, KV_BLOCK_TOKENS);
            for (r, (p, state)) in p.chunks_exact_mut(KV_BLOCK_TOKENS).zip(&mut states).enumerate() {
                Scalar.softmax(p, visible(r), how, state);
            }
            let p = Rows { data: &p, stride: KV_BLOCK_TOKENS, rows };
            Scalar.product_fold(p, v, 0..KV_BLOCK_TOKENS, v_head_dim, &states, &mut out, stride);
        }
        let want = [bits(&out), bits(&of_states(&states))];
        with_vector_kernels!(kernels => {
            if kernels.folds_blocks(&layout, rows) {
                let (mut out, mut states) = (vec![0.0; rows * stride], vec![RowState::EMPTY; rows]);
                let mut packed = vec![f32::NAN; rows.next_multiple_of(PREFETCH_ROWS) * head_dim / 2 + 16];
                let at = packed.as_ptr().align_offset(64);
                let has_packed = is_packed && kernels.pack_queries(q, head_dim, &mut packed[at..]);
                for (k, v) in blocks() {
                    let is_whole = (0..rows).all(|r| visible(r) == (0..KV_BLOCK_TOKENS));
                    let packed_q = has_packed.then_some(&packed[at..]);
                    let block = BlockOperands { q, packed_q, k, v, how, head_dim, v_head_dim, is_whole };
                    let mut parts = 0;
                    kernels.fold_block(&block, visible, &mut states, (&mut out, stride), || parts += 1);
                    prop_assert!(parts > 0);
                }
                prop_assert_eq!([bits(&out), bits(&of_states(&states))], want.clone());
            }
        });
    }
}

#[test]
fn a_scalar_chain_is_finite_where_one_of_its_products_is_not() {
    let (x, big) = (2f32.powi(64), 2f32.powi(63));
    // -1.5 * 2^127, then + 2^128 in the same chain.
    let mut floats = [0.0; 4 * PANEL];
    floats[..PANEL].fill(-1.5 * big);
    floats[2 * PANEL..][..PANEL].fill(x);
    let a = Rows { data: &[x, 0.0, x, 0.0], stride: 4, rows: 1 };
    let mut out = [0.0; PANEL];
    Scalar.product(a, Operand::Panels { data: &floats, k: 4 }, 0..4, 0..PANEL, &mut out, PANEL);
    assert_eq!(out, [2f32.powi(126); PANEL]);
}
