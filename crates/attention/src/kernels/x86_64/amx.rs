//! AMX: products over bf16 keys and values by tiles of 16 rows, 16 columns and 32 elements of the summed axis.
//!
//! KV blocks hold pairs of the summed axis side by side, which is how a tile wants its right-hand operand: tiles are loaded from the block
//! itself. `tdpbf16ps` sums in the contract's order (Intel Software Developer's Manual, volume 2); NaNs alone have other payloads.
//!
//! The intrinsics are not stable yet, so instructions on tiles are written as assembly. The compiler itself never uses a tile.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::OnceLock;

use super::Avx512;
use super::avx512::{Sink, check, is_whole};
use crate::kernels::{Kernels, Operand, RowState, Rows, Softmax};
use crate::math::Function;
use crate::{KvDtype, KvLayout};

/// Rows and columns of a tile.
const TILE: usize = 16;
/// Elements of the summed axis in a tile.
const STEP: usize = 32;
/// Longest summed axis: its tiles of 16 rows lie on the stack.
const MAX_K: usize = 256;
/// Fewest rows that tiles are used for.
const MIN_ROWS: usize = 6;

/// Proof that this CPU has AMX with bf16, AVX-512 with bf16, and that the system lets this process use tiles: `detect` is the only way to
/// make one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amx {
    vectors: Avx512,
}

impl Amx {
    /// Asks the system once.
    pub(crate) fn detect() -> Option<Self> {
        static FOUND: OnceLock<Option<Amx>> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let vectors = Avx512::detect().filter(|_| is_x86_feature_detected!("avx512bf16"))?;
            (cpu_has_tiles() && system_saves_tiles() && system_permits_tiles()).then_some(Self { vectors })
        })
    }
}

/// CPUID leaf 7: AMX-BF16 and AMX-TILE.
fn cpu_has_tiles() -> bool {
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).edx & (BF16 | TILE) == BF16 | TILE
}

/// XCR0: the system saves tile configuration and tile data.
fn system_saves_tiles() -> bool {
    const TILE_STATE: u64 = 0b11 << 17;
    // SAFETY: XSAVE was found, just before.
    is_x86_feature_detected!("xsave") && unsafe { _xgetbv(0) } & TILE_STATE == TILE_STATE
}

/// Asks Linux for tile data, once for all threads of the process.
#[cfg(target_os = "linux")]
fn system_permits_tiles() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: this call reads and writes no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Other systems have their own ways to ask, and none is written yet.
#[cfg(not(target_os = "linux"))]
fn system_permits_tiles() -> bool {
    false
}

/// The operand of `ldtilecfg`: palette 1, then bytes of a row and rows of each of eight tiles.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIG: Config = Config {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// 16 rows of operands as tiles, `[step][16 rows][16 pairs]`.
#[repr(align(64))]
struct Left([u32; MAX_K / STEP * TILE * TILE]);

/// Up to four tiles of sums.
#[repr(align(64))]
struct Sums([[f32; TILE * TILE]; 4]);

/// Whether this product goes by tiles: many rows, whole tiles, pairs of bf16.
fn by_tiles(a: Rows<'_>, b: Operand<'_>, k: &Range<usize>, columns: &Range<usize>) -> bool {
    matches!(b, Operand::Bf16 { .. })
        && a.rows >= MIN_ROWS
        && k.start == 0
        && (STEP..=MAX_K).contains(&k.end)
        && k.end.is_multiple_of(STEP)
        && is_whole(a.rows, columns)
}

/// # Safety
/// The system permits tiles; every row of `a` has `k` elements (32 to [`MAX_K`], whole steps), all bf16 numbers; `b` has the columns, whole
/// tiles of them, and so has `sink`, for every row.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn multiply(a: Rows<'_>, (b, b_stride): (*const u32, usize), k: usize, columns: Range<usize>, sink: Sink) {
    let mut left = Left([0; MAX_K / STEP * TILE * TILE]);
    let mut sums = Sums([[0.0; TILE * TILE]; 4]);
    // SAFETY: the system permits tiles; the operand is 64 valid bytes.
    unsafe { asm!("ldtilecfg [{config}]", config = in(reg) &raw const CONFIG, options(nostack, readonly)) };
    for first_row in (0..a.rows).step_by(TILE) {
        let rows = TILE.min(a.rows - first_row);
        for (step, tile) in left.0.chunks_exact_mut(TILE * TILE).take(k / STEP).enumerate() {
            for (r, to) in tile.chunks_exact_mut(TILE).take(rows).enumerate() {
                // SAFETY: row `first_row + r` has `k` elements, and `to` is 64 bytes. The operands are bf16 already: nothing is rounded.
                unsafe {
                    let from = a.data.as_ptr().add((first_row + r) * a.stride + step * STEP);
                    let words = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from.add(16)), _mm512_loadu_ps(from));
                    _mm512_store_si512(to.as_mut_ptr().cast(), std::mem::transmute::<__m512bh, __m512i>(words));
                }
            }
        }
        let mut column = columns.start;
        while column < columns.end {
            let tiles = if columns.end - column >= 4 * TILE { 4 } else { 1 };
            // SAFETY: tiles are configured; `left` has `k / STEP` tiles, `b` has `k / 2` rows of pairs with these columns, `sums` four tiles.
            unsafe {
                let (left, b, sums) = (left.0.as_ptr(), b.add(column), sums.0.as_mut_ptr().cast::<f32>());
                if tiles == 4 { four_tiles(left, b, b_stride, k, sums) } else { one_tile(left, b, b_stride, k, sums) }
            }
            for (t, tile) in sums.0.iter().enumerate().take(tiles) {
                for (r, row) in tile.chunks_exact(TILE).enumerate().take(rows) {
                    // SAFETY: the caller's promise about `sink`.
                    unsafe { sink.put(first_row + r, column + t * TILE, _mm512_loadu_ps(row.as_ptr())) };
                }
            }
            column += tiles * TILE;
        }
    }
    // SAFETY: tiles were configured above, on this thread.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// Sums of 16 rows times 64 columns.
///
/// # Safety
/// All tiles are 16 rows of 64 bytes; operands and sums as in [`multiply`].
#[inline(always)]
unsafe fn four_tiles(left: *const u32, b: *const u32, b_stride: usize, k: usize, sums: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{left} + {row}]",
            "tileloadd tmm5, [{b} + {b_row}]",
            "tdpbf16ps tmm0, tmm4, tmm5",
            "tileloadd tmm6, [{b} + {b_row} + 64]",
            "tdpbf16ps tmm1, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {b_row} + 128]",
            "tdpbf16ps tmm2, tmm4, tmm7",
            "tileloadd tmm5, [{b} + {b_row} + 192]",
            "tdpbf16ps tmm3, tmm4, tmm5",
            "add {left}, 1024",
            "add {b}, {b_step}",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{sums} + {row}], tmm0",
            "tilestored [{sums} + {row} + 1024], tmm1",
            "tilestored [{sums} + {row} + 2048], tmm2",
            "tilestored [{sums} + {row} + 3072], tmm3",
            left = inout(reg) left => _,
            b = inout(reg) b => _,
            b_row = in(reg) b_stride * size_of::<u32>(),
            b_step = in(reg) b_stride * size_of::<u32>() * TILE,
            steps = inout(reg) k / STEP => _,
            sums = in(reg) sums,
            row = in(reg) 64usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Sums of 16 rows times 16 columns.
///
/// # Safety
/// As [`four_tiles`].
#[inline(always)]
unsafe fn one_tile(left: *const u32, b: *const u32, b_stride: usize, k: usize, sums: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilezero tmm0",
            "2:",
            "tileloadd tmm4, [{left} + {row}]",
            "tileloadd tmm5, [{b} + {b_row}]",
            "tdpbf16ps tmm0, tmm4, tmm5",
            "add {left}, 1024",
            "add {b}, {b_step}",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{sums} + {row}], tmm0",
            left = inout(reg) left => _,
            b = inout(reg) b => _,
            b_row = in(reg) b_stride * size_of::<u32>(),
            b_step = in(reg) b_stride * size_of::<u32>() * TILE,
            steps = inout(reg) k / STEP => _,
            sums = in(reg) sums,
            row = in(reg) 64usize,
            out("tmm0") _, out("tmm4") _, out("tmm5") _,
            options(nostack),
        );
    }
}

impl Kernels for Amx {
    fn reads_pairs(self, layout: &KvLayout) -> bool {
        layout.dtype == KvDtype::Bf16
            && layout.head_dim.is_multiple_of(STEP)
            && layout.head_dim <= MAX_K
            && layout.v_head_dim.is_multiple_of(TILE)
    }
    fn product(
        self,
        a: Rows<'_>,
        b: Operand<'_>,
        k: Range<usize>,
        columns: Range<usize>,
        out: &mut [f32],
        out_stride: usize,
    ) {
        match b {
            Operand::Bf16 { data, stride } if by_tiles(a, b, &k, &columns) => {
                check(a, b, &k, &columns, out, out_stride);
                let sink = Sink { out: out.as_mut_ptr(), stride: out_stride, states: None };
                // SAFETY: an `Amx` exists only after `detect` found all of it; `check` and `by_tiles` cover every row, k and column.
                unsafe { multiply(a, (data.as_ptr(), stride), k.end, columns, sink) }
            }
            _ => self.vectors.product(a, b, k, columns, out, out_stride),
        }
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
        match b {
            Operand::Bf16 { data, stride } if by_tiles(a, b, &k, &(0..columns)) => {
                assert_eq!(states.len(), a.rows, "one state per row");
                check(a, b, &k, &(0..columns), out, out_stride);
                let sink = Sink { out: out.as_mut_ptr(), stride: out_stride, states: Some(states.as_ptr()) };
                // SAFETY: as in `product`.
                unsafe { multiply(a, (data.as_ptr(), stride), k.end, 0..columns, sink) }
            }
            _ => self.vectors.product_fold(a, b, k, columns, states, out, out_stride),
        }
    }
    fn softmax(self, scores: &mut [f32], visible: Range<usize>, how: &Softmax, state: &mut RowState) {
        self.vectors.softmax(scores, visible, how, state);
    }
    fn softmax_whole(self, scores: &mut [f32], how: &Softmax, states: &mut [RowState]) {
        self.vectors.softmax_whole(scores, how, states);
    }
    fn fold(self, product: &[f32], state: RowState, out: &mut [f32]) {
        self.vectors.fold(product, state, out);
    }
    fn prefetch(self, bytes: &[u8]) {
        self.vectors.prefetch(bytes);
    }
    fn unpack(self, source: Operand<'_>, k: usize, columns: usize, panel_k: usize, panels: &mut [f32]) {
        self.vectors.unpack(source, k, columns, panel_k, panels);
    }
    fn round(self, row: &[f32], out: &mut [f32]) {
        self.vectors.round(row, out);
    }
    fn finish(self, accumulated: &[f32], state: RowState, sink: Option<f32>, out: &mut [f32]) {
        self.vectors.finish(accumulated, state, sink, out);
    }
    fn map<F: Function>(self, f: F, x: &mut [f32]) {
        self.vectors.map(f, x);
    }
    fn gate<F: Function>(self, f: F, gate: &[f32], up: &[f32], out: &mut [f32]) {
        self.vectors.gate(f, gate, up, out);
    }
    fn sum(self, x: &[f32], squares: bool) -> f32 {
        self.vectors.sum(x, squares)
    }
}
