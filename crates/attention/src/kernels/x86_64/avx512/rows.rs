//! What happens to one row, sixteen values at a time. Sums keep their eight lanes: the lower half of a register is added before the upper.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::KV_BLOCK_TOKENS;
use crate::kernels::lanes::{Values, combine};
use crate::kernels::{OPERAND_FLOOR, RowState, Softmax};
use crate::math::{exp_unbounded, softcap};

/// Registers that hold the scores of one block.
const COUNT: usize = KV_BLOCK_TOKENS / 16;

/// Sixteen values in a register. Named only in this file, and its methods run only inside functions compiled for AVX-512 F, BW and VL,
/// which an `Avx512` proves: that is the safety argument of every intrinsic below.
#[derive(Debug, Clone, Copy)]
struct Wide(__m512);

macro_rules! wide {
    ($($instruction:tt)*) => {
        // SAFETY: only functions compiled for AVX-512 name `Wide`, and no memory is touched.
        Self(unsafe { $($instruction)* })
    };
}

impl Values for Wide {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        wide!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        wide!(_mm512_add_ps(self.0, other.0))
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        wide!(_mm512_sub_ps(self.0, other.0))
    }
    #[inline(always)]
    fn times(self, other: Self) -> Self {
        wide!(_mm512_mul_ps(self.0, other.0))
    }
    #[inline(always)]
    fn over(self, other: Self) -> Self {
        wide!(_mm512_div_ps(self.0, other.0))
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        wide!(_mm512_fmadd_ps(self.0, b.0, c.0))
    }
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        wide!(_mm512_max_ps(self.0, other.0))
    }
    #[inline(always)]
    fn if_less(self, limit: Self, a: Self, b: Self) -> Self {
        wide!(_mm512_mask_mov_ps(b.0, _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, limit.0), a.0))
    }
    #[inline(always)]
    fn magnitude(self) -> Self {
        wide!(_mm512_abs_ps(self.0))
    }
    #[inline(always)]
    fn with_sign_of(self, sign: Self) -> Self {
        // Bit by bit: the first operand where the mask is set, else the second.
        wide!(_mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0b1110_0100>(
            _mm512_castps_si512(sign.0),
            _mm512_castps_si512(self.0),
            _mm512_set1_epi32(i32::MIN)
        )))
    }
    #[inline(always)]
    fn half_power_of_two(self) -> Self {
        wide!(_mm512_castsi512_ps(_mm512_add_epi32(
            _mm512_slli_epi32::<23>(_mm512_castps_si512(self.0)),
            _mm512_set1_epi32(0x3f00_0000)
        )))
    }
    #[inline(always)]
    fn times_power_of_two(self, n: Self, _shifted: Self) -> Self {
        wide!(_mm512_scalef_ps(self.0, n.0))
    }
    #[inline(always)]
    fn bf16_operand(self) -> Self {
        wide!({
            let bits = _mm512_castps_si512(self.0);
            let high = _mm512_set1_epi32(-0x1_0000);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
            let kept = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(_mm512_abs_ps(self.0), _mm512_set1_ps(OPERAND_FLOOR));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
            let rounded = _mm512_mask_mov_epi32(sum, nan, quiet);
            _mm512_castsi512_ps(_mm512_maskz_and_epi32(kept, rounded, high))
        })
    }
    #[inline(always)]
    fn bf16_operand_of_number(self) -> Self {
        wide!({
            let bits = _mm512_castps_si512(self.0);
            let odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x1_0000));
            let sum = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
            let sum = _mm512_mask_add_epi32(sum, odd, sum, _mm512_set1_epi32(1));
            let kept = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(self.0, _mm512_set1_ps(OPERAND_FLOOR));
            _mm512_castsi512_ps(_mm512_maskz_and_epi32(kept, sum, _mm512_set1_epi32(-0x1_0000)))
        })
    }
}

/// As [`crate::kernels::Kernels::softmax`].
///
/// # Safety
/// The CPU has AVX-512 F, BW and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
pub(super) unsafe fn softmax(scores: &mut [f32], visible: Range<usize>, how: &Softmax, state: &mut RowState) {
    let Ok(scores) = <&mut [f32; KV_BLOCK_TOKENS]>::try_from(scores) else {
        panic!("the scores of one block are {KV_BLOCK_TOKENS}");
    };
    assert!(visible.start < visible.end && visible.end <= KV_BLOCK_TOKENS, "tokens {visible:?} of a block");
    let block_max = maximum::<false>(scores, &visible, how);
    let sum = match how.bf16 {
        true => probabilities::<false, true>(scores, &visible, how, block_max),
        false => probabilities::<false, false>(scores, &visible, how, block_max),
    };
    if sum.is_nan() {
        // One NaN makes the row's product NaN throughout; rounding did not take care of it.
        scores[visible.start] = f32::NAN;
    }
    state.fold(block_max, sum);
}

/// As [`crate::kernels::Kernels::softmax_whole`]. In three passes, each with short chains of dependent operations.
///
/// # Safety
/// As [`softmax`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
pub(super) unsafe fn softmax_whole(scores: &mut [f32], how: &Softmax, states: &mut [RowState]) {
    const ROWS: usize = 16;
    assert_eq!(scores.len(), KV_BLOCK_TOKENS * states.len(), "scores and states of as many rows");
    let whole = &(0..KV_BLOCK_TOKENS);
    for (scores, states) in scores.chunks_mut(KV_BLOCK_TOKENS * ROWS).zip(states.chunks_mut(ROWS)) {
        let (scores, _) = scores.as_chunks_mut::<KV_BLOCK_TOKENS>();
        let (mut maxima, mut sums) = ([0.0; ROWS], [0.0; ROWS]);
        for (max, scores) in maxima.iter_mut().zip(&mut *scores) {
            *max = maximum::<true>(scores, whole, how);
        }
        for ((sum, &max), scores) in sums.iter_mut().zip(&maxima).zip(&mut *scores) {
            *sum = match how.bf16 {
                true => probabilities::<true, true>(scores, whole, how, max),
                false => probabilities::<true, false>(scores, whole, how, max),
            };
        }
        for (((&sum, &max), scores), state) in sums.iter().zip(&maxima).zip(scores).zip(states) {
            if sum.is_nan() {
                scores[0] = f32::NAN;
            }
            state.fold(max, sum);
        }
    }
}

/// Lanes of register `i` that `visible` holds.
#[inline(always)]
fn lanes(i: usize, visible: &Range<usize>) -> u16 {
    let below = |token: usize| (1u32 << token.saturating_sub(16 * i).min(16)) - 1;
    #[expect(clippy::cast_possible_truncation, reason = "at most 16 bits are set")]
    let lanes = (below(visible.end) & !below(visible.start)) as u16;
    lanes
}

/// The largest score, scaled and capped; capped scores are stored. A NaN is passed over.
#[inline(always)]
fn maximum<const WHOLE: bool>(scores: &mut [f32; KV_BLOCK_TOKENS], visible: &Range<usize>, how: &Softmax) -> f32 {
    // SAFETY: see [`Wide`]; each of the four registers is 16 of the 64 scores.
    unsafe {
        let lowest = _mm512_set1_ps(f32::NEG_INFINITY);
        let mut maxima = [lowest; COUNT];
        for (i, max) in maxima.iter_mut().enumerate() {
            let mut s = _mm512_mul_ps(_mm512_set1_ps(how.scale), _mm512_loadu_ps(scores.as_ptr().add(16 * i)));
            if let Some(cap) = how.softcap {
                s = softcap(Wide(s), Wide::splat(cap)).0;
                _mm512_storeu_ps(scores.as_mut_ptr().add(16 * i), s);
            }
            if !WHOLE {
                s = _mm512_mask_mov_ps(lowest, lanes(i, visible), s);
            }
            // The second operand is kept against a NaN in the first: no lane of the maxima is one.
            *max = _mm512_max_ps(s, lowest);
        }
        let [a, b, c, d] = maxima;
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d)))
    }
}

/// Replaces the scores by `e^(score - max)`, rounded where asked, and returns the sum before rounding.
#[inline(always)]
fn probabilities<const WHOLE: bool, const BF16: bool>(
    scores: &mut [f32; KV_BLOCK_TOKENS],
    visible: &Range<usize>,
    how: &Softmax,
    max: f32,
) -> f32 {
    // SAFETY: see [`Wide`]; each of the four registers is 16 of the 64 scores.
    unsafe {
        let mut sum = _mm256_setzero_ps();
        for i in 0..COUNT {
            let at = scores.as_mut_ptr().add(16 * i);
            let mut s = Wide(_mm512_loadu_ps(at));
            if how.softcap.is_none() {
                s = Wide::splat(how.scale).times(s);
            }
            let mut p = exp_unbounded(s.minus(Wide::splat(max)));
            if !WHOLE {
                p = Wide(_mm512_maskz_mov_ps(lanes(i, visible), p.0));
            }
            sum = _mm256_add_ps(sum, _mm512_castps512_ps256(p.0));
            let upper = _mm512_extracti64x4_epi64::<1>(_mm512_castps_si512(p.0));
            sum = _mm256_add_ps(sum, _mm256_castsi256_ps(upper));
            if BF16 {
                p = p.bf16_operand_of_number();
            }
            _mm512_storeu_ps(at, p.0);
        }
        let mut eight = [0.0; 8];
        _mm256_storeu_ps(eight.as_mut_ptr(), sum);
        combine(eight)
    }
}
