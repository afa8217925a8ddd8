//! What happens to one row, sixteen values at a time, or to sixteen rows.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::KV_BLOCK_TOKENS;
use crate::kernels::lanes::{Values, combine};
use crate::kernels::{OPERAND_FLOOR, RowState, Softmax};
use crate::math::{Function, exp_of_score, exp_unbounded, softcap};

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
        // The opposite is asked: where `a` is zero, it then needs no instruction of its own.
        wide!(_mm512_mask_mov_ps(a.0, _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(self.0, limit.0), b.0))
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
    fn times_small_power_of_two(self, n: Self, _next: Self) -> Self {
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
            _mm512_castsi512_ps(_mm512_and_si512(sum, _mm512_set1_epi32(-0x1_0000)))
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
    let block_max = maximum(scores, &visible, how);
    let sum = match how.bf16 {
        true => probabilities::<true>(scores, &visible, how, block_max),
        false => probabilities::<false>(scores, &visible, how, block_max),
    };
    if sum.is_nan() {
        // One NaN makes the row's product NaN throughout; rounding did not take care of it.
        scores[visible.start] = f32::NAN;
    }
    state.fold(block_max, sum);
}

/// As [`crate::kernels::Kernels::softmax_whole`].
///
/// # Safety
/// As [`softmax`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
pub(super) unsafe fn softmax_whole(scores: &mut [f32], how: &Softmax, states: &mut [RowState]) {
    assert_eq!(scores.len(), KV_BLOCK_TOKENS * states.len(), "scores and states of as many rows");
    for (scores, states) in scores.chunks_mut(KV_BLOCK_TOKENS * ROWS).zip(states.chunks_mut(ROWS)) {
        let (rows, _) = scores.as_chunks_mut::<KV_BLOCK_TOKENS>();
        // SAFETY: the caller's promise.
        unsafe {
            match <&mut [[f32; KV_BLOCK_TOKENS]; ROWS]>::try_from(&mut *rows) {
                Ok(rows) => softmax_rows(rows, how, None, states, &mut InPlace(how.bf16)),
                Err(_) => {
                    let mut spare = [[0.0; KV_BLOCK_TOKENS]; ROWS];
                    spare[..rows.len()].copy_from_slice(rows);
                    softmax_rows(&mut spare, how, None, states, &mut InPlace(how.bf16));
                    rows.copy_from_slice(&spare[..rows.len()]);
                }
            }
        }
    }
}

/// Where the probabilities of [`softmax_rows`] go.
trait Probabilities {
    /// Takes those of one row.
    ///
    /// # Safety
    /// See [`Wide`].
    unsafe fn put(&mut self, row: usize, scores: &mut [f32; KV_BLOCK_TOKENS], values: [Wide; COUNT]);

    /// Makes the first one of a row NaN: then the row's product is, throughout. Rounding did not take care of it.
    fn poison(&mut self, row: usize, scores: &mut [f32; KV_BLOCK_TOKENS]);
}

/// In the place of the scores, rounded to operands of a bf16 product or not.
struct InPlace(bool);

impl Probabilities for InPlace {
    #[inline(always)]
    unsafe fn put(&mut self, _: usize, scores: &mut [f32; KV_BLOCK_TOKENS], values: [Wide; COUNT]) {
        for (to, value) in scores.chunks_exact_mut(16).zip(values) {
            let value = if self.0 { value.bf16_operand_of_number() } else { value };
            // SAFETY: see [`Wide`]; `to` is 16 values.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), value.0) };
        }
    }

    fn poison(&mut self, _: usize, scores: &mut [f32; KV_BLOCK_TOKENS]) {
        scores[0] = f32::NAN;
    }
}

/// Probabilities of 16 rows and 64 tokens: two tiles of pairs of bf16, of 32 tokens each.
#[repr(align(64))]
pub(in super::super) struct ProbabilityTiles([[[u32; 16]; ROWS]; 2]);

/// As two tiles of operands, for a CPU with AVX-512 BF16.
struct ToTiles<'a>(&'a mut MaybeUninit<ProbabilityTiles>);

impl Probabilities for ToTiles<'_> {
    #[inline(always)]
    unsafe fn put(&mut self, row: usize, _: &mut [f32; KV_BLOCK_TOKENS], values: [Wide; COUNT]) {
        // SAFETY: see [`Wide`]; who made this vouches for AVX-512 BF16. A row of a tile is 64 bytes.
        unsafe {
            // The rounding is that of operands, and nothing is below their floor.
            for (tile, pair) in values.as_chunks::<2>().0.iter().enumerate() {
                let words: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(pair[1].0, pair[0].0));
                _mm512_store_si512((&raw mut (*self.0.as_mut_ptr()).0[tile][row]).cast(), words);
            }
        }
    }

    fn poison(&mut self, row: usize, _: &mut [f32; KV_BLOCK_TOKENS]) {
        // SAFETY: inside of the tiles; a word is written, and none is read.
        unsafe { (*self.0.as_mut_ptr()).0[0][row][0] = 0x7fc0 };
    }
}

/// Rows that go through a softmax together: one for each value of a register.
const ROWS: usize = 16;

/// [`softmax_rows`] to tiles, all rows of which are written.
///
/// # Safety
/// The CPU has AVX-512 F, BW, VL and BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx2,fma")]
pub(in super::super) unsafe fn softmax_rows_to_tiles(
    scores: &mut [[f32; KV_BLOCK_TOKENS]; ROWS],
    how: &Softmax,
    cut: Option<&dyn Fn(usize) -> Range<usize>>,
    states: &mut [RowState],
    tiles: &mut MaybeUninit<ProbabilityTiles>,
) {
    // SAFETY: the caller's promise.
    unsafe { softmax_rows(scores, how, cut, states, &mut ToTiles(tiles)) }
}

/// Softmax of 16 rows, of which the first have a state and the others do not count. `cut`: what each row sees, unless that is all.
///
/// What is done once for each row is done for all of them at a time, with one row in each lane: row `4 j + i` in lane `4 i + j`, which is how
/// four transposed registers of four rows lie.
///
/// # Safety
/// See [`Wide`]; the CPU has what `to` asks for.
///
/// # Panics
/// If there are more than 16 states.
#[inline(always)]
unsafe fn softmax_rows<P: Probabilities>(
    scores: &mut [[f32; KV_BLOCK_TOKENS]; ROWS],
    how: &Softmax,
    cut: Option<&dyn Fn(usize) -> Range<usize>>,
    states: &mut [RowState],
    to: &mut P,
) {
    // A positive factor keeps the order of the scores, whatever it rounds: the largest one times the factor is the largest product.
    let is_scaled = how.softcap.is_some() || !(how.scale > 0.0 && how.scale < f32::INFINITY);
    if is_scaled {
        for value in scores.as_flattened_mut().chunks_exact_mut(16) {
            // SAFETY: see [`Wide`]; `value` is 16 values.
            unsafe {
                let mut s = Wide::splat(how.scale).times(Wide(_mm512_loadu_ps(value.as_ptr())));
                if let Some(cap) = how.softcap {
                    s = softcap(s, Wide::splat(cap));
                }
                _mm512_storeu_ps(value.as_mut_ptr(), s.0);
            }
        }
    }
    if let Some(visible) = cut {
        for (row, scores) in scores.iter_mut().enumerate().take(states.len()) {
            // SAFETY: see [`Wide`].
            unsafe { hide(scores, &visible(row)) };
        }
    }
    let scale = if is_scaled { 1.0 } else { how.scale };
    // SAFETY: see [`Wide`]; four registers are the 64 scores of a row.
    unsafe {
        let max = Wide::splat(scale).times(maxima(scores));
        let mut of_row = [0.0; ROWS];
        _mm512_storeu_ps(of_row.as_mut_ptr(), max.0);
        let sums = match is_exact(scale) {
            true => probabilities_of_rows::<true, P>(scores, scale, &of_row, to),
            false => probabilities_of_rows::<false, P>(scores, scale, &of_row, to),
        };
        let mut pairs = [_mm512_setzero_ps(); ROWS / 2];
        for (pair, sums) in pairs.iter_mut().zip(sums.as_chunks::<2>().0) {
            let (Wide(a), Wide(b)) = (sums[0], sums[1]);
            *pair = _mm512_add_ps(_mm512_shuffle_f32x4::<LOW_HALVES>(a, b), _mm512_shuffle_f32x4::<HIGH_HALVES>(a, b));
        }
        let sum = Wide(combined::<false>(pairs));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(sum.0, sum.0);
        if nan != 0 {
            for (row, scores) in scores.iter_mut().enumerate().filter(|(row, _)| nan & 1 << lane(*row) != 0) {
                to.poison(row, scores);
            }
        }
        fold(states, max, sum);
    }
}

/// Makes the scores of tokens outside `visible` the lowest there are: their probability is 0 then.
///
/// # Safety
/// See [`Wide`].
#[inline(always)]
unsafe fn hide(scores: &mut [f32; KV_BLOCK_TOKENS], visible: &Range<usize>) {
    for i in 0..COUNT {
        // SAFETY: see [`Wide`]; each of the four registers is 16 of the 64 scores.
        unsafe {
            let lowest = _mm512_set1_ps(f32::NEG_INFINITY);
            _mm512_mask_storeu_ps(scores.as_mut_ptr().add(16 * i), !lanes(i, visible), lowest);
        }
    }
}

/// The lane of a row; see [`softmax_rows`].
const fn lane(row: usize) -> usize {
    row % 4 * 4 + row / 4
}

/// The scores of a row.
///
/// # Safety
/// See [`Wide`].
#[inline(always)]
unsafe fn load(scores: &[f32; KV_BLOCK_TOKENS]) -> [Wide; COUNT] {
    let at = |i: usize| scores.as_ptr().wrapping_add(16 * i);
    // SAFETY: see [`Wide`]; the four registers are the 64 scores.
    unsafe {
        [
            Wide(_mm512_loadu_ps(at(0))),
            Wide(_mm512_loadu_ps(at(1))),
            Wide(_mm512_loadu_ps(at(2))),
            Wide(_mm512_loadu_ps(at(3))),
        ]
    }
}

/// Whether a score times this scale is exact: powers of two up to 1. (What becomes a denormal is not; but a larger maximum swallows it, and `e` to
/// the difference from another denormal is 1.)
fn is_exact(scale: f32) -> bool {
    /// The bits of the mantissa.
    const MANTISSA: u32 = (1 << 23) - 1;
    scale.is_normal() && scale <= 1.0 && scale.to_bits() & MANTISSA == 0
}

/// Hands the probabilities of all rows on, and returns the 16 sums of each row. `EXACT`: see [`is_exact`]; the product need not be rounded then.
///
/// # Safety
/// See [`Wide`]; the CPU has what `to` asks for.
#[inline(always)]
unsafe fn probabilities_of_rows<const EXACT: bool, P: Probabilities>(
    scores: &mut [[f32; KV_BLOCK_TOKENS]; ROWS],
    scale: f32,
    max: &[f32; ROWS],
    to: &mut P,
) -> [Wide; ROWS] {
    let scale = <[Wide; COUNT]>::splat(scale);
    let mut sums = [Wide::splat(0.0); ROWS];
    for (row, (scores, sum)) in scores.iter_mut().zip(&mut sums).enumerate() {
        let max = [Wide::splat(max[lane(row)]); COUNT];
        // SAFETY: the caller's promise.
        let values = unsafe { load(scores) };
        let x = match EXACT {
            true => scale.fma(values, <[Wide; COUNT]>::splat(0.0).minus(max)),
            false => scale.times(values).minus(max),
        };
        let values = exp_of_score(x);
        let [a, b, c, d] = values;
        *sum = a.plus(b).plus(c).plus(d);
        // SAFETY: the caller's promise.
        unsafe { to.put(row, scores, values) };
    }
    sums
}

/// The largest score of each row, which is no NaN: one is passed over.
///
/// # Safety
/// See [`Wide`].
#[inline(always)]
unsafe fn maxima(scores: &[[f32; KV_BLOCK_TOKENS]; ROWS]) -> Wide {
    // SAFETY: see [`Wide`].
    unsafe {
        let mut pairs = [_mm512_setzero_ps(); ROWS / 2];
        for (pair, scores) in pairs.iter_mut().zip(scores.as_chunks::<2>().0) {
            let (a, b) = (largest(&scores[0]), largest(&scores[1]));
            *pair = _mm512_max_ps(_mm512_shuffle_f32x4::<LOW_HALVES>(a, b), _mm512_shuffle_f32x4::<HIGH_HALVES>(a, b));
        }
        Wide(combined::<true>(pairs))
    }
}

/// The largest scores of a row, each of some of them.
///
/// # Safety
/// See [`Wide`].
#[inline(always)]
unsafe fn largest(scores: &[f32; KV_BLOCK_TOKENS]) -> __m512 {
    // SAFETY: see [`Wide`].
    let values = unsafe { load(scores) };
    // The second operand is kept against a NaN in the first.
    values.into_iter().fold(Wide::splat(f32::NEG_INFINITY), |max, value| value.larger(max)).0
}

/// Of two registers: the lower halves, the upper halves, and the quarters of even and of odd numbers.
const LOW_HALVES: i32 = 0b01_00_01_00;
const HIGH_HALVES: i32 = 0b11_10_11_10;
const EVEN_QUARTERS: i32 = 0b10_00_10_00;
const ODD_QUARTERS: i32 = 0b11_01_11_01;

/// The sum (`MAX`: the maximum) of each row's eight values, in the order of [`combine`]. A register holds a row in each half.
///
/// # Safety
/// See [`Wide`].
#[inline(always)]
unsafe fn combined<const MAX: bool>(pairs: [__m512; ROWS / 2]) -> __m512 {
    // SAFETY: see [`Wide`].
    unsafe {
        // Four values of each of four rows: a row in each quarter.
        let mut fours = [_mm512_setzero_ps(); ROWS / 4];
        for (four, pair) in fours.iter_mut().zip(pairs.as_chunks::<2>().0) {
            let (ab, cd) = (pair[0], pair[1]);
            *four = join::<MAX>(
                _mm512_shuffle_f32x4::<EVEN_QUARTERS>(ab, cd),
                _mm512_shuffle_f32x4::<ODD_QUARTERS>(ab, cd),
            );
        }
        // Then `(v0 + v2) + (v1 + v3)`, and one row in each lane.
        let [a, b, c, d] = fours;
        let ab = _mm512_castps_pd(join::<MAX>(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
        let cd = _mm512_castps_pd(join::<MAX>(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
        join::<MAX>(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)))
    }
}

/// The sum, or the maximum.
///
/// # Safety
/// See [`Wide`].
#[inline(always)]
unsafe fn join<const MAX: bool>(a: __m512, b: __m512) -> __m512 {
    // SAFETY: see [`Wide`].
    unsafe { if MAX { _mm512_max_ps(a, b) } else { _mm512_add_ps(a, b) } }
}

/// [`RowState::fold`] of up to 16 rows, whose maxima and sums lie as [`softmax_rows`] says.
///
/// # Safety
/// See [`Wide`].
#[inline(always)]
unsafe fn fold(states: &mut [RowState], block_max: Wide, block_sum: Wide) {
    if let Ok(all) = <&mut [RowState; ROWS]>::try_from(&mut *states) {
        // SAFETY: see [`Wide`].
        return unsafe { fold_all(all, block_max, block_sum) };
    }
    let mut all = [RowState::EMPTY; ROWS];
    all[..states.len()].copy_from_slice(states);
    // SAFETY: see [`Wide`].
    unsafe { fold_all(&mut all, block_max, block_sum) };
    states.copy_from_slice(&all[..states.len()]);
}

/// [`fold`] of 16 rows.
///
/// # Safety
/// See [`Wide`].
#[inline(always)]
unsafe fn fold_all(states: &mut [RowState; ROWS], block_max: Wide, block_sum: Wide) {
    let memory: &mut [f32; 4 * ROWS] = bytemuck::cast_mut(states);
    // SAFETY: see [`Wide`]; four registers are the states of 16 rows.
    unsafe {
        let four_rows = |j: usize| memory.as_ptr().wrapping_add(16 * j);
        let (a, b) = (_mm512_loadu_ps(four_rows(0)), _mm512_loadu_ps(four_rows(1)));
        let (c, d) = (_mm512_loadu_ps(four_rows(2)), _mm512_loadu_ps(four_rows(3)));
        // A state begins with its maximum and its sum.
        let ab = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
        let cd = _mm512_castps_pd(_mm512_unpacklo_ps(c, d));
        let old = Wide(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)));
        let sum = Wide(_mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));

        let grows = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(block_max.0, old.0);
        let one = _mm512_set1_ps(1.0);
        let keep = Wide(_mm512_mask_mov_ps(one, grows, exp_unbounded(old.minus(block_max)).0));
        let take = Wide(_mm512_mask_mov_ps(exp_unbounded(block_max.minus(old)).0, grows, one));
        let max = _mm512_mask_mov_ps(old.0, grows, block_max.0);
        let sum = sum.fma(keep, block_sum.times(take)).0;

        let max_sum = [_mm512_unpacklo_ps(max, sum), _mm512_unpackhi_ps(max, sum)];
        let keep_take = [_mm512_unpacklo_ps(keep.0, take.0), _mm512_unpackhi_ps(keep.0, take.0)];
        for (half, (max_sum, keep_take)) in max_sum.into_iter().zip(keep_take).enumerate() {
            let (max_sum, keep_take) = (_mm512_castps_pd(max_sum), _mm512_castps_pd(keep_take));
            let to = memory.as_mut_ptr().add(32 * half);
            _mm512_storeu_ps(to, _mm512_castpd_ps(_mm512_unpacklo_pd(max_sum, keep_take)));
            _mm512_storeu_ps(to.add(16), _mm512_castpd_ps(_mm512_unpackhi_pd(max_sum, keep_take)));
        }
    }
}

/// As [`crate::kernels::Kernels::round`].
///
/// # Safety
/// As [`softmax`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
pub(super) unsafe fn round(row: &[f32], out: &mut [f32]) {
    assert_eq!(row.len(), out.len(), "row lengths");
    for (x, out) in row.chunks(16).zip(out.chunks_mut(16)) {
        let lanes = first_lanes(x.len());
        // SAFETY: see [`Wide`]; the lanes are those of both.
        unsafe {
            let value = Wide(_mm512_maskz_loadu_ps(lanes, x.as_ptr())).bf16_operand();
            _mm512_mask_storeu_ps(out.as_mut_ptr(), lanes, value.0);
        }
    }
}

/// As [`crate::kernels::Kernels::map`].
///
/// # Safety
/// As [`softmax`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
pub(super) unsafe fn map<F: Function>(f: F, x: &mut [f32]) {
    for x in x.chunks_mut(16) {
        let lanes = first_lanes(x.len());
        // SAFETY: see [`Wide`]; the lanes are those of `x`.
        unsafe {
            let value = f.eval(Wide(_mm512_maskz_loadu_ps(lanes, x.as_ptr())));
            _mm512_mask_storeu_ps(x.as_mut_ptr(), lanes, value.0);
        }
    }
}

/// As [`crate::kernels::Kernels::gate`].
///
/// # Safety
/// As [`softmax`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
pub(super) unsafe fn gate<F: Function>(f: F, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up lengths");
    for (gate, up) in gate.chunks_mut(16).zip(up.chunks(16)) {
        let lanes = first_lanes(gate.len());
        // SAFETY: see [`Wide`]; the lanes are those of both.
        unsafe {
            let value = f.eval(Wide(_mm512_maskz_loadu_ps(lanes, gate.as_ptr())));
            let value = value.times(Wide(_mm512_maskz_loadu_ps(lanes, up.as_ptr())));
            _mm512_mask_storeu_ps(gate.as_mut_ptr(), lanes, value.0);
        }
    }
}

/// The first 1 to 16 lanes.
#[inline(always)]
fn first_lanes(len: usize) -> u16 {
    u16::MAX >> (16 - len)
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
fn maximum(scores: &mut [f32; KV_BLOCK_TOKENS], visible: &Range<usize>, how: &Softmax) -> f32 {
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
            s = _mm512_mask_mov_ps(lowest, lanes(i, visible), s);
            // The second operand is kept against a NaN in the first: no lane of the maxima is one.
            *max = _mm512_max_ps(s, lowest);
        }
        let [a, b, c, d] = maxima;
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d)))
    }
}

/// Replaces the scores by `e^(score - max)`, rounded where asked, and returns the sum before rounding.
#[inline(always)]
fn probabilities<const BF16: bool>(
    scores: &mut [f32; KV_BLOCK_TOKENS],
    visible: &Range<usize>,
    how: &Softmax,
    max: f32,
) -> f32 {
    // SAFETY: see [`Wide`]; each of the four registers is 16 of the 64 scores.
    unsafe {
        let mut sum = Wide::splat(0.0);
        for i in 0..COUNT {
            let at = scores.as_mut_ptr().add(16 * i);
            let mut s = Wide(_mm512_loadu_ps(at));
            if how.softcap.is_none() {
                s = Wide::splat(how.scale).times(s);
            }
            let p = exp_of_score(s.minus(Wide::splat(max)));
            let mut p = Wide(_mm512_maskz_mov_ps(lanes(i, visible), p.0));
            sum = sum.plus(p);
            if BF16 {
                p = p.bf16_operand_of_number();
            }
            _mm512_storeu_ps(at, p.0);
        }
        let upper = _mm256_castsi256_ps(_mm512_extracti64x4_epi64::<1>(_mm512_castps_si512(sum.0)));
        let mut eight = [0.0; 8];
        _mm256_storeu_ps(eight.as_mut_ptr(), _mm256_add_ps(_mm512_castps512_ps256(sum.0), upper));
        combine(eight)
    }
}
