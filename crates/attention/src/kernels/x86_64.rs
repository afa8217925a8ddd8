//! x86-64: AVX2 with FMA and F16C here, eight lanes in one register; AVX-512 and AMX in their own modules.

mod amx;
mod avx512;

use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::OnceLock;

pub(crate) use amx::Amx;
pub(crate) use avx512::Avx512;

use super::lanes::{Lanes, Values};
use super::{Kernels, LINE, OPERAND_FLOOR, Operand, RowState, Rows, Softmax, product, rows, unpack};
use crate::math::Function;

/// Proof that this CPU has AVX2, FMA and F16C: `detect` is the only way to make one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// `None` where a feature is missing.
    pub(crate) fn detect() -> Option<Self> {
        static FOUND: OnceLock<bool> = OnceLock::new();
        FOUND
            .get_or_init(|| {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            })
            .then_some(Self(()))
    }
}

/// Eight lanes in a register. Named only in this file, and its methods run only inside functions compiled for the features that
/// an [`Avx2`] proves: that is the safety argument of every intrinsic below.
#[derive(Debug, Clone, Copy)]
struct Register(__m256);

macro_rules! register {
    ($($instruction:tt)*) => {
        // SAFETY: only functions compiled for AVX2, FMA and F16C name `Register`, and no memory is touched.
        Self(unsafe { $($instruction)* })
    };
}

impl Values for Register {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        register!(_mm256_set1_ps(x))
    }
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        register!(_mm256_add_ps(self.0, other.0))
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        register!(_mm256_sub_ps(self.0, other.0))
    }
    #[inline(always)]
    fn times(self, other: Self) -> Self {
        register!(_mm256_mul_ps(self.0, other.0))
    }
    #[inline(always)]
    fn over(self, other: Self) -> Self {
        register!(_mm256_div_ps(self.0, other.0))
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        register!(_mm256_fmadd_ps(self.0, b.0, c.0))
    }
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        register!(_mm256_max_ps(self.0, other.0))
    }
    #[inline(always)]
    fn if_less(self, limit: Self, a: Self, b: Self) -> Self {
        register!(_mm256_blendv_ps(b.0, a.0, _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, limit.0)))
    }
    #[inline(always)]
    fn magnitude(self) -> Self {
        register!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0))
    }
    #[inline(always)]
    fn with_sign_of(self, sign: Self) -> Self {
        register!(_mm256_or_ps(
            _mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0),
            _mm256_and_ps(_mm256_set1_ps(-0.0), sign.0)
        ))
    }
    #[inline(always)]
    fn half_power_of_two(self) -> Self {
        register!(_mm256_castsi256_ps(_mm256_add_epi32(
            _mm256_slli_epi32::<23>(_mm256_castps_si256(self.0)),
            _mm256_set1_epi32(0x3f00_0000)
        )))
    }
    #[inline(always)]
    fn bf16_operand(self) -> Self {
        register!({
            let bits = _mm256_castps_si256(self.0);
            let high = _mm256_set1_epi32(-0x1_0000);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
            let rounded = _mm256_castsi256_ps(_mm256_and_si256(sum, high));
            let magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0);
            let kept = _mm256_cmp_ps::<_CMP_NLT_UQ>(magnitude, _mm256_set1_ps(OPERAND_FLOOR));
            let quiet = _mm256_and_si256(_mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000)), high);
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0);
            _mm256_blendv_ps(_mm256_and_ps(rounded, kept), _mm256_castsi256_ps(quiet), nan)
        })
    }
    #[inline(always)]
    fn bf16_operand_of_number(self) -> Self {
        register!({
            let bits = _mm256_castps_si256(self.0);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
            _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi32(-0x1_0000)))
        })
    }
}

impl Lanes for Register {
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller gives 8 readable values; the features are there (see `Register`).
        Self(unsafe { _mm256_loadu_ps(from) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller gives 8 writable values; the features are there (see `Register`).
        unsafe { _mm256_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(from: *const u32) -> (Self, Self) {
        // SAFETY: the caller gives 8 readable values; the features are there (see `Register`).
        unsafe {
            let pairs = _mm256_loadu_si256(from.cast());
            let even = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs));
            let odd = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-0x1_0000)));
            (Self(even), Self(odd))
        }
    }
    #[inline(always)]
    unsafe fn load_f16_pairs(from: *const u32) -> (Self, Self) {
        // SAFETY: the caller gives 8 readable values; the features are there (see `Register`).
        unsafe {
            let pairs = _mm256_loadu_si256(from.cast());
            let low = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff));
            let high = _mm256_srli_epi32::<16>(pairs);
            // Within each 128-bit half: 4 low parts, then 4 high parts; the permutation brings equal parts together.
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
            let even = _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
            let odd = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(packed));
            (Self(even), Self(odd))
        }
    }
}

/// Declares `inner`, the body compiled for the features, and calls it.
macro_rules! with_features {
    (<$($f:ident)?> ($($name:ident: $ty:ty),*) $(-> $ret:ty)?, $body:expr) => {{
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inner$(<$f: Function>)?($($name: $ty),*) $(-> $ret)? {
            $body($($name),*)
        }
        // SAFETY: an `Avx2` exists only after `detect` found the features on this CPU.
        unsafe { inner($($name),*) }
    }};
}

impl Kernels for Avx2 {
    fn product(
        self,
        a: Rows<'_>,
        b: Operand<'_>,
        k: Range<usize>,
        columns: Range<usize>,
        out: &mut [f32],
        out_stride: usize,
    ) {
        with_features!(<> (a: Rows<'_>, b: Operand<'_>, k: Range<usize>, columns: Range<usize>, out: &mut [f32], out_stride: usize),
            product::product::<Register>)
    }
    fn product_fold(
        self,
        a: Rows<'_>,
        b: Operand<'_>,
        k: Range<usize>,
        columns: usize,
        states: &[RowState],
        out: &mut [f32],
        out_stride: usize,
    ) {
        with_features!(<> (a: Rows<'_>, b: Operand<'_>, k: Range<usize>, columns: usize, states: &[RowState], out: &mut [f32], out_stride: usize),
            product::product_fold::<Register>)
    }
    fn fold(self, product: &[f32], state: RowState, out: &mut [f32]) {
        with_features!(<> (product: &[f32], state: RowState, out: &mut [f32]), rows::fold_plain)
    }
    fn prefetch(self, bytes: &[u8]) {
        for line in bytes.chunks(LINE) {
            // SAFETY: every x86-64 CPU has SSE; a prefetch reads nothing that a program can see.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
        }
    }
    fn softmax(self, scores: &mut [f32], visible: Range<usize>, how: &Softmax, state: &mut RowState) {
        with_features!(<> (scores: &mut [f32], visible: Range<usize>, how: &Softmax, state: &mut RowState), rows::softmax::<Register>)
    }
    fn unpack(self, source: Operand<'_>, k: usize, columns: usize, panel_k: usize, panels: &mut [f32]) {
        with_features!(<> (source: Operand<'_>, k: usize, columns: usize, panel_k: usize, panels: &mut [f32]), unpack::unpack::<Register>)
    }
    fn round(self, row: &[f32], out: &mut [f32]) {
        with_features!(<> (row: &[f32], out: &mut [f32]), rows::round::<Register>)
    }
    fn finish(self, accumulated: &[f32], state: RowState, sink: Option<f32>, out: &mut [f32]) {
        with_features!(<> (accumulated: &[f32], state: RowState, sink: Option<f32>, out: &mut [f32]), rows::finish::<Register>)
    }
    fn map<F: Function>(self, f: F, x: &mut [f32]) {
        with_features!(<F> (f: F, x: &mut [f32]), rows::map::<Register, F>)
    }
    fn gate<F: Function>(self, f: F, gate: &mut [f32], up: &[f32]) {
        with_features!(<F> (f: F, gate: &mut [f32], up: &[f32]), rows::gate::<Register, F>)
    }
    fn sum(self, x: &[f32], squares: bool) -> f32 {
        with_features!(<> (x: &[f32], squares: bool) -> f32, rows::sum::<Register>)
    }
}
