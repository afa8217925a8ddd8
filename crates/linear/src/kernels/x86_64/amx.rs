//! AMX: products of tiles of 16 rows, 16 columns and 32 bf16 of `k`.
//!
//! `tdpbf16ps` sums as the contract says: per output two chains of fused multiply-adds from +0, over the even and the odd words, then
//! `acc + (even + odd)`, all rounded to nearest even with denormals flushed (Intel Software Developer's Manual, volume 2, TDPBF16PS). With
//! operands of magnitude 0 or at least 2^-50 there is no denormal to flush, so its bits are those of the scalar kernel; NaNs alone have
//! other payloads, and become canonical at the end.
//!
//! The intrinsics are not stable yet, so instructions on tiles are written as assembly. The compiler itself never uses a tile.

mod micro;

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::sync::OnceLock;

pub(crate) use micro::Micro;

use super::Avx512;
use super::avx512::{check_panel, finish, is_operand, words};
use crate::WeightType;
use crate::kernels::{STEP_PAIRS, VECTOR_ALIGN};
use crate::layout::PANEL;

/// Rows and columns of a tile of sums.
pub(crate) const TILE: usize = 16;
/// `k` of one step.
pub(crate) const STEP: usize = 2 * STEP_PAIRS;
/// Pairs of bf16 in a tile of operands, f32 in a tile of sums: 1 KiB.
pub(crate) const TILE_ELEMENTS: usize = TILE * TILE;

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
            // Set by `cargo xtask amx`, whose emulator neither processor nor system knows of.
            if cfg!(plimsoll_emulated_amx) {
                return Some(Self { vectors });
            }
            (cpu_has_tiles() && system_saves_tiles() && system_permits_tiles()).then_some(Self { vectors })
        })
    }

    /// The vector kernels, for what tiles are not made for.
    pub(crate) fn vectors(self) -> Avx512 {
        self.vectors
    }

    /// Rounds rows of `x` (`[rows][in_features]`) to tiles of operands, `[pair of row blocks][step][2 blocks][16 rows][32 k]` bf16; `k` past
    /// the end becomes zeros. Rows past the end are zeros in a block that has a row, and are not written in one that has none. `out` is
    /// whole pairs.
    pub(crate) fn round_to_tiles(self, x: &[f32], in_features: usize, out: &mut [f32]) {
        let pair_elements = in_features.div_ceil(STEP) * 2 * TILE_ELEMENTS;
        let rows = x.len() / in_features;
        assert!(rows * in_features == x.len(), "not whole rows");
        assert!(out.len() == rows.div_ceil(2 * TILE) * pair_elements, "not whole pairs of row blocks");
        assert!(out.as_ptr().addr().is_multiple_of(VECTOR_ALIGN), "tiles are not aligned");
        for (x, pair) in x.chunks(2 * TILE * in_features).zip(out.chunks_exact_mut(pair_elements)) {
            for (block, x) in x.chunks(TILE * in_features).enumerate() {
                // SAFETY: an `Amx` exists only after `detect` found the instructions. This block of every step lies in `pair`.
                unsafe { round_block(x, in_features, pair[block * TILE_ELEMENTS..].as_mut_ptr()) };
            }
        }
    }

    /// Dequantizes rows `start..start + len` of `k` of a panel to tiles of operands, `[step][16 pairs][16 columns][2]` bf16, the last one
    /// filled up with zeros. `start` is whole steps, and so is `len` but at the end of `k`. `out` is as many tiles. Not called for f32 weights.
    pub(crate) fn dequantize_to_tiles(self, ty: WeightType, panel: &[u8], start: usize, len: usize, out: &mut [f32]) {
        check_panel(ty, panel, start, len, STEP);
        assert!(out.len() == len.div_ceil(STEP) * TILE_ELEMENTS, "not whole tiles");
        assert!(out.as_ptr().addr().is_multiple_of(VECTOR_ALIGN), "tiles are not aligned");
        let out: &mut [u32] = bytemuck::cast_slice_mut(out);
        // SAFETY: an `Amx` exists only after `detect` found the instructions. The panel was checked and `out` has room for every pair.
        unsafe { words(ty, panel.as_ptr(), start, len, out.as_mut_ptr()) };
        out[len.div_ceil(2) * PANEL..].fill(0);
    }

    /// Fetches the lines of `rows` rows of `columns` columns (1 to 16) of an output that is going to be written.
    pub(crate) fn fetch_output(self, out: *const f32, rows: usize, columns: usize, stride: usize) {
        let mut row = out;
        for _ in 0..rows {
            // SAFETY: every CPU with AMX has the instruction; a prefetch touches nothing, wherever it points.
            unsafe {
                asm!(
                    "prefetchw [{first}]",
                    "prefetchw [{last}]",
                    first = in(reg) row,
                    last = in(reg) row.wrapping_add(columns - 1),
                    options(nostack, readonly, preserves_flags),
                );
            }
            row = row.wrapping_add(stride);
        }
    }

    /// Writes `rows` rows of `columns` columns of a tile to `out`, `stride` apart.
    ///
    /// # Safety
    /// These elements of `out` are the caller's alone.
    pub(crate) unsafe fn store(
        self,
        tile: &[f32; TILE_ELEMENTS],
        (rows, columns): (usize, usize),
        out: *mut f32,
        stride: usize,
    ) {
        assert!(rows <= TILE && columns <= PANEL, "more than a tile");
        // SAFETY: an `Amx` exists only after `detect` found the instructions; the output is the caller's promise.
        unsafe { store_tile(tile, None, (rows, columns), out, stride) }
    }

    /// Adds `bias` to a tile of sums, makes NaNs canonical, and writes `rows` rows of `columns` columns to `out`, `stride` apart.
    ///
    /// # Safety
    /// These elements of `out` are the caller's alone.
    pub(crate) unsafe fn finish(
        self,
        sums: &[f32; TILE_ELEMENTS],
        bias: &[f32; PANEL],
        (rows, columns): (usize, usize),
        out: *mut f32,
        stride: usize,
    ) {
        assert!(rows <= TILE && columns <= PANEL, "more than a tile");
        // SAFETY: an `Amx` exists only after `detect` found the instructions; the output is the caller's promise.
        unsafe { store_tile(sums, Some(bias), (rows, columns), out, stride) }
    }
}

/// The operand of `ldtilecfg`: palette 1, then bytes of a row and rows of each tile.
#[derive(PartialEq)]
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

/// Tiles of this thread, all eight configured as 16 rows of 64 bytes until this is dropped.
#[derive(Debug)]
pub(crate) struct Tiles {
    /// Registers belong to a thread.
    thread: PhantomData<*const ()>,
}

impl Tiles {
    pub(crate) fn configure(_: Amx) -> Self {
        // SAFETY: an `Amx` exists only where the system permits tiles; the operand is 64 valid bytes.
        unsafe { asm!("ldtilecfg [{config}]", config = in(reg) &raw const CONFIG, options(nostack, readonly)) };
        Self { thread: PhantomData }
    }

    /// Configures them again if code of others, which has run on this thread meanwhile, has used tiles too: it has released them then.
    pub(crate) fn restore(&self, amx: Amx) {
        let mut now = Config { palette: 0, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        // SAFETY: the instruction writes these 64 bytes.
        unsafe { asm!("sttilecfg [{now}]", now = in(reg) &raw mut now, options(nostack)) };
        if now != CONFIG {
            std::mem::forget(Self::configure(amx));
        }
    }
}

impl Drop for Tiles {
    /// Gives the registers back: the system saves them at each switch of threads while they are in use.
    fn drop(&mut self) {
        // SAFETY: `self` was made by `configure`, on this thread.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
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
    // SAFETY: callers found AVX-512, which needs an enabled XSAVE.
    is_x86_feature_detected!("xsave") && unsafe { _xgetbv(0) } & TILE_STATE == TILE_STATE
}

/// Asks Linux for tile data, once for all threads of the process; refused where an alternate signal stack is too small for it.
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

/// One to 16 rows; the others become zeros.
///
/// # Safety
/// `x` is whole rows; `out` has room for a tile for each step, two tiles apart.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn round_block(x: &[f32], in_features: usize, out: *mut f32) {
    for (step, at) in (0..in_features).step_by(STEP).enumerate() {
        // Lanes past the end are not read, and are zeros.
        let lanes = |len: usize| if len >= 16 { !0 } else { (1u16 << len) - 1 };
        let (low, high) = (lanes(in_features - at), lanes((in_features - at).saturating_sub(16)));
        let mut to = out.wrapping_add(step * 2 * TILE_ELEMENTS);
        for row in x.chunks_exact(in_features) {
            let load = |at: usize, lanes: __mmask16| {
                // SAFETY: the lanes named lie in `row`.
                let value = unsafe { _mm512_maskz_loadu_ps(lanes, row.as_ptr().wrapping_add(at)) };
                _mm512_maskz_mov_ps(is_operand(value), value)
            };
            // SAFETY: `__m512bh` is 64 bytes of bf16; `to` is a row of a tile.
            unsafe {
                let words: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(load(at + 16, high), load(at, low)));
                _mm512_store_si512(to.cast(), words);
            }
            to = to.wrapping_add(TILE);
        }
        for _ in x.len() / in_features..TILE {
            // SAFETY: a row of the same tile.
            unsafe { _mm512_store_si512(to.cast(), _mm512_setzero_si512()) };
            to = to.wrapping_add(TILE);
        }
    }
}

/// [`Amx::finish`] with a bias, [`Amx::store`] without.
///
/// # Safety
/// As theirs, with at most 16 rows and columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn store_tile(
    sums: &[f32; TILE_ELEMENTS],
    bias: Option<&[f32; PANEL]>,
    (rows, columns): (usize, usize),
    out: *mut f32,
    stride: usize,
) {
    let lanes = if columns == PANEL { !0 } else { (1u16 << columns) - 1 };
    // SAFETY: a tile has 16 rows of 16 sums, a bias has 16 floats; the output is the caller's promise.
    unsafe {
        let bias = bias.map(|bias| _mm512_loadu_ps(bias.as_ptr()));
        for r in 0..rows {
            let sum = _mm512_loadu_ps(sums.as_ptr().wrapping_add(r * PANEL));
            let sum = bias.map_or(sum, |bias| finish(sum, bias));
            _mm512_mask_storeu_ps(out.wrapping_add(r * stride), lanes, sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{K_BLOCK, Kernel, Scalar};

    /// The scalar definition, packed to pairs. What it gives is rounded, so its lower half is zero.
    fn dequantize_by_definition(ty: WeightType, panel: &[u8], start: usize, len: usize, out: &mut [u32]) {
        let mut floats = [0.0f32; K_BLOCK * PANEL];
        for (from, out) in (start..start + len).step_by(K_BLOCK).zip(out.chunks_mut(K_BLOCK / 2 * PANEL)) {
            let len = K_BLOCK.min(start + len - from);
            Scalar.dequantize(ty, panel, from, len, &mut floats);
            for (pair, out) in floats.chunks_exact(2 * PANEL).zip(out.chunks_exact_mut(PANEL)).take(len.div_ceil(2)) {
                let (even, odd) = pair.split_at(PANEL);
                for ((out, even), odd) in out.iter_mut().zip(even).zip(odd) {
                    *out = (even.to_bits() >> 16) | odd.to_bits();
                }
            }
        }
    }

    #[test]
    fn more_than_a_k_block_dequantizes_to_the_tiles_of_the_definition() {
        let Some(amx) = Amx::detect() else { return };
        let (ty, start, len) = (WeightType::Q8_0, 64, 544);
        let panel_bytes = crate::layout::panel_bytes(ty, start + len).unwrap();
        let mut panel: Vec<[u64; 8]> = bytemuck::zeroed_vec(panel_bytes.div_ceil(64) + 1);
        let panel: &mut [u8] = bytemuck::cast_slice_mut(&mut panel);
        let first = panel.as_ptr().align_offset(64);
        let panel = &mut panel[first..][..panel_bytes];
        let row: Vec<u8> = (0..ty.row_bytes(start + len).unwrap()).map(|i| (i * 37 % 113).to_le_bytes()[0]).collect();
        (0..PANEL).for_each(|column| crate::layout::pack_row(ty, &row[..], panel, column));
        let elements = len.div_ceil(STEP) * TILE_ELEMENTS;
        let mut memory = vec![f32::NAN; elements + 16];
        let first = memory.as_ptr().align_offset(64);
        let tiles = &mut memory[first..][..elements];
        amx.dequantize_to_tiles(ty, panel, start, len, tiles);
        let mut want = vec![0; elements];
        dequantize_by_definition(ty, panel, start, len, &mut want);
        assert_eq!(bytemuck::cast_slice::<f32, u32>(tiles), want);
    }
}
