//! AMX: products over bf16 keys and values, and whole blocks of them, by tiles of 16 rows, 16 columns and 32 elements of the summed axis.
//!
//! KV blocks hold pairs of the summed axis side by side, which is how a tile wants its right-hand operand: tiles are loaded from the block
//! itself. `tdpbf16ps` sums in the contract's order (Intel Software Developer's Manual, volume 2); NaNs alone have other payloads.
//!
//! The intrinsics are not stable yet, so instructions on tiles are written as assembly. The compiler itself never uses a tile: sums stay in the
//! registers from one piece of assembly to the next, while vectors are at work.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::OnceLock;

use super::Avx512;
use super::avx512::{ProbabilityTiles, Sink, check, is_whole, softmax_rows_to_tiles};
use crate::kernels::{BlockOperands, Kernels, Operand, PREFETCH_ROWS, RowState, Rows, Softmax};
use crate::math::Function;
use crate::{KV_BLOCK_TOKENS, KvDtype, KvLayout};

/// Rows and columns of a tile.
const TILE: usize = 16;
/// Elements of the summed axis in a tile.
const STEP: usize = 32;
/// Pairs in a tile.
const TILE_PAIRS: usize = TILE * TILE;
/// Most tiles of columns of a product.
const MOST_COLUMNS: usize = 4;
/// Most bytes of keys and values of a block that stay in a first-level cache beside one group of rows.
const NEAR_BYTES: usize = 24 << 10;
/// Longest summed axis: its tiles of 32 rows lie on the stack.
const MAX_K: usize = 256;
/// Parts of a block's rows are as long as those that [`Kernels::fold_block`] is asked for.
const _: () = assert!(TILE == PREFETCH_ROWS);
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
            // Set by `cargo xtask amx`, whose emulator neither processor nor system knows of.
            if cfg!(plimsoll_emulated_amx) {
                return Some(Self { vectors });
            }
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

/// So many rows of tiles, written and read by address.
#[repr(align(64))]
struct Lines<const COUNT: usize>([[f32; TILE]; COUNT]);

/// Two groups of 16 rows of operands as tiles, `[2 groups][step][16 rows][16 pairs]`.
type Left = Lines<{ 2 * MAX_K / STEP * TILE }>;
/// Scores of two groups of 16 rows, `[2][16][64]`.
type Scores = Lines<{ 2 * TILE * KV_BLOCK_TOKENS / TILE }>;
/// Values of one product, `[16][64]` or `[2][16][32]`.
type Values = Lines<{ TILE * MOST_COLUMNS }>;

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
unsafe fn multiply(
    amx: Amx,
    a: Rows<'_>,
    (b, b_stride): (*const u32, usize),
    k: usize,
    columns: Range<usize>,
    sink: Sink,
) {
    // As in `fold_block`.
    let mut left = MaybeUninit::<Left>::uninit();
    let left = left.as_mut_ptr().cast::<u32>();
    if a.rows < TILE {
        // SAFETY: the array is longer.
        unsafe { left.write_bytes(0, k / STEP * TILE_PAIRS) };
    }
    let mut sums = [[0.0; MOST_COLUMNS * TILE]; TILE];
    let tiles = Tiles::configure(amx);
    for first_row in (0..a.rows).step_by(TILE) {
        let rows = TILE.min(a.rows - first_row);
        // SAFETY: these rows have `k` elements.
        unsafe { pack(a, first_row..first_row + rows, k, left) };
        let mut column = columns.start;
        while column < columns.end {
            let form = Form::new(1, columns.end - column);
            // SAFETY: `left` has `k / STEP` tiles, `b` has `k / 2` rows of pairs with these columns, `sums` 16 rows of four tiles.
            unsafe {
                tiles.product(form, (left, 0), (b.add(column), b_stride), k);
                tiles.store(form, sums.as_mut_ptr().cast(), MOST_COLUMNS * TILE);
            }
            for (r, row) in sums.iter().enumerate().take(rows) {
                for (t, values) in row.chunks_exact(TILE).enumerate().take(form.columns) {
                    // SAFETY: the caller's promise about `sink`.
                    unsafe { sink.put(first_row + r, column + t * TILE, _mm512_loadu_ps(values.as_ptr())) };
                }
            }
            column += form.columns * TILE;
        }
    }
}

/// Packs up to 16 rows, bf16 numbers already, into tiles; rows that a last tile lacks keep what they hold.
///
/// # Safety
/// The rows have `k` elements (whole steps), and `left` is `k / 32` tiles, aligned.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn pack(a: Rows<'_>, rows: Range<usize>, k: usize, left: *mut u32) {
    for step in 0..k / STEP {
        for (r, row) in rows.clone().enumerate() {
            // SAFETY: the row has `k` elements, and a row of a tile is 64 bytes. The operands are bf16 already: nothing is rounded.
            unsafe {
                let from = a.data.as_ptr().add(row * a.stride + step * STEP);
                let words = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from.add(16)), _mm512_loadu_ps(from));
                let to = left.add((step * TILE + r) * TILE).cast();
                _mm512_store_si512(to, std::mem::transmute::<__m512bh, __m512i>(words));
            }
        }
    }
}

/// Rows and columns of tiles that a product has at once, and keeps until they are stored.
#[derive(Debug, Clone, Copy)]
struct Form {
    /// Groups of 16 rows: 1 or 2.
    groups: usize,
    /// Tiles of columns: 1, 2, or for a single group 4.
    columns: usize,
}

impl Form {
    /// As many tiles as there are registers for, of `columns` columns that are left.
    fn new(groups: usize, columns: usize) -> Self {
        let most = MOST_COLUMNS / groups;
        Self { groups, columns: if columns >= most * TILE { most } else { 1 } }
    }
}

/// A block, folded into the outputs: scores, softmax and values of `GROUPS` groups of 16 rows at a time. While vectors are at the softmax of
/// some rows, tiles are at scores of the next ones; and while they are at some columns of values, vectors fold those before.
///
/// What is between the steps takes 10 KiB of the stack for one group and 16 KiB for two, for any shape. With one group it stays in a
/// first-level cache beside keys and values of [`NEAR_BYTES`]. Longer ones come from the second level, half as often where two groups go by.
///
/// # Safety
/// The system permits tiles; `by_tiles` holds for both products, and both fit their operands and the output.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx2,fma")]
unsafe fn fold_block<const GROUPS: usize>(
    amx: Amx,
    block: &BlockOperands<'_>,
    visible: &dyn Fn(usize) -> Range<usize>,
    states: &mut [RowState],
    (out, out_stride): (*mut f32, usize),
    ahead: &mut dyn FnMut(),
) {
    let BlockOperands { q, how, head_dim, v_head_dim, is_whole, .. } = *block;
    let (Operand::Bf16 { data: k, stride: k_stride }, Operand::Bf16 { data: v, stride: v_stride }) = (block.k, block.v)
    else {
        unreachable!("tiles multiply pairs of bf16")
    };
    let (k, v) = ((k.as_ptr(), k_stride), (v.as_ptr(), v_stride));
    // Written before it is read, all but the rows that a first tile lacks: clearing it would take as long as some rows.
    let mut left = MaybeUninit::<Left>::uninit();
    let mut scores = MaybeUninit::<Scores>::uninit();
    let mut p = [const { MaybeUninit::<ProbabilityTiles>::uninit() }; 2];
    let mut values = MaybeUninit::<Values>::uninit();
    let left = left.as_mut_ptr().cast::<u32>();
    let scores = scores.as_mut_ptr().cast::<[[f32; KV_BLOCK_TOKENS]; TILE]>();
    let values = values.as_mut_ptr().cast::<f32>();
    // Pairs of a group's tiles.
    let group_pairs = head_dim / STEP * TILE_PAIRS;
    if block.packed_q.is_none() && q.rows < GROUPS * TILE {
        // SAFETY: the array is as long.
        unsafe { left.write_bytes(0, GROUPS * group_pairs) };
    }
    let groups = q.rows.div_ceil(TILE);
    let rows_of = |group: usize| group * TILE..((group + 1) * TILE).min(q.rows);
    // Groups from this one on that go by at once.
    let groups_at = |first: usize| first..(first + GROUPS).min(groups);
    let tiles = Tiles::configure(amx);
    let width = MOST_COLUMNS / GROUPS * TILE;
    let form_at = |first: usize, columns: usize| {
        let Form { columns, .. } = Form::new(GROUPS, columns);
        Form { groups: groups_at(first).len(), columns }
    };
    // SAFETY: the caller's promise, throughout. A block of keys has 64 columns; two tiles of probabilities are 16 rows of them. A store
    // writes all 16 rows, and a softmax all rows of its tiles. Between a product and its store there are vectors alone, which know nothing of
    // tiles.
    unsafe {
        let queries = |first: usize| match block.packed_q {
            Some(tiles) => tiles.as_ptr().cast::<u32>().add(first * group_pairs),
            None => {
                for group in groups_at(first) {
                    pack(q, rows_of(group), head_dim, left.add((group - first) * group_pairs));
                }
                left.cast_const()
            }
        };
        let multiply_by_keys = |first: usize, queries: *const u32, column: usize| {
            tiles.product(form_at(first, width), (queries, group_pairs), (k.0.add(column), k.1), head_dim);
        };
        let store_scores = |first: usize, column: usize| {
            tiles.store(form_at(first, width), scores.cast::<f32>().add(column), KV_BLOCK_TOKENS);
        };
        let fold = |first: usize, column: usize, columns: usize, states: &[RowState]| {
            for group in groups_at(first) {
                let to = Sink {
                    out: out.add(group * TILE * out_stride + column),
                    stride: out_stride,
                    states: Some(states[rows_of(group)].as_ptr()),
                };
                fold_rows(
                    (values.add((group - first) * TILE * width), width),
                    (rows_of(group).len(), columns / TILE),
                    to,
                );
            }
        };
        // Columns of values that are stored and not yet folded, and the group that they begin with.
        let mut waiting = None;
        let fold_waiting = |waiting: &mut Option<(usize, usize, usize)>, states: &[RowState]| {
            if let Some((first, column, columns)) = waiting.take() {
                fold(first, column, columns, states);
            }
        };
        let first_queries = queries(0);
        for column in (0..KV_BLOCK_TOKENS).step_by(width) {
            multiply_by_keys(0, first_queries, column);
            store_scores(0, column);
        }
        for first in (0..groups).step_by(GROUPS) {
            let next = Some(first + GROUPS).filter(|&next| next < groups).map(|next| (next, queries(next)));
            if let Some((next, queries)) = next {
                multiply_by_keys(next, queries, 0);
            }
            // Two groups have a second half of the scores to do it beside.
            if GROUPS == 1 {
                fold_waiting(&mut waiting, states);
            }
            for group in groups_at(first) {
                let of_group = |row| visible(group * TILE + row);
                let cut = (!is_whole).then_some(&of_group as &dyn Fn(usize) -> Range<usize>);
                let scores = &mut *scores.add(group - first);
                softmax_rows_to_tiles(scores, how, cut, &mut states[rows_of(group)], &mut p[group - first]);
                ahead();
            }
            if let Some((next, queries)) = next {
                store_scores(next, 0);
                for column in (width..KV_BLOCK_TOKENS).step_by(width) {
                    multiply_by_keys(next, queries, column);
                    fold_waiting(&mut waiting, states);
                    store_scores(next, column);
                }
            }
            let mut column = 0;
            while column < v_head_dim {
                let form = form_at(first, v_head_dim - column);
                let between = size_of::<ProbabilityTiles>() / size_of::<u32>();
                tiles.product(form, (p.as_ptr().cast(), between), (v.0.add(column), v.1), KV_BLOCK_TOKENS);
                fold_waiting(&mut waiting, states);
                tiles.store(form, values, width);
                waiting = Some((first, column, form.columns * TILE));
                column += form.columns * TILE;
            }
        }
        fold_waiting(&mut waiting, states);
    }
}

/// # Safety
/// `values` is so many rows of one, two or four registers, so far apart; `to` has room for them, and a state for each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx2,fma")]
unsafe fn fold_rows(values: (*const f32, usize), (rows, registers): (usize, usize), to: Sink) {
    // SAFETY: the caller's promise.
    unsafe {
        match registers {
            4 => fold_rows_of::<4>(values, rows, to),
            2 => fold_rows_of::<2>(values, rows, to),
            _ => fold_rows_of::<1>(values, rows, to),
        }
    }
}

/// # Safety
/// As [`fold_rows`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx2,fma")]
unsafe fn fold_rows_of<const REGISTERS: usize>((values, stride): (*const f32, usize), rows: usize, to: Sink) {
    for row in 0..rows {
        for column in (0..REGISTERS).map(|register| register * TILE) {
            // SAFETY: the caller's promise.
            unsafe { to.put(row, column, _mm512_loadu_ps(values.add(row * stride + column))) };
        }
    }
}

/// Tiles of this thread, all eight configured as 16 rows of 64 bytes until this is dropped.
struct Tiles {
    /// Registers belong to a thread.
    thread: PhantomData<*const ()>,
}

impl Tiles {
    fn configure(_: Amx) -> Self {
        // SAFETY: an `Amx` exists only where the system permits tiles; the operand is 64 valid bytes.
        unsafe { asm!("ldtilecfg [{config}]", config = in(reg) &raw const CONFIG, options(nostack, readonly)) };
        Self { thread: PhantomData }
    }

    /// Leaves the sums of a form in the first tiles, over `k` elements: tiles of `left`, one after the other, those of a second group so many pairs
    /// after the first's; and rows of pairs.
    ///
    /// # Safety
    /// `left` has `k / 32` tiles for each group, `b` is `k / 2` rows with these columns.
    #[inline(always)]
    unsafe fn product(
        &self,
        form: Form,
        (left, between): (*const u32, usize),
        (b, b_stride): (*const u32, usize),
        k: usize,
    ) {
        const PAIR: usize = size_of::<u32>();
        // The forms differ in the tiles of sums that they clear, and in what they load and multiply in a step.
        macro_rules! multiply {
            (clear: $($clear:literal)*; step: $($step:literal)*;) => {
                // SAFETY: the caller's promise; a form with one group does not name the second.
                unsafe {
                    asm!(
                        $($clear,)*
                        "2:",
                        $($step,)*
                        "add {left}, 1024",
                        "add {second}, 1024",
                        "add {b}, {b_step}",
                        "dec {steps}",
                        "jnz 2b",
                        left = inout(reg) left => _,
                        second = inout(reg) left.wrapping_add(between) => _,
                        b = inout(reg) b => _,
                        b_row = in(reg) b_stride * PAIR,
                        b_step = in(reg) b_stride * PAIR * TILE,
                        steps = inout(reg) k / STEP => _,
                        row = in(reg) 64usize,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack, readonly),
                    );
                }
            };
        }
        match (form.groups, form.columns) {
            (1, 4) => multiply!(
                clear: "tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3";
                step: "tileloadd tmm4, [{left} + {row}]"
                    "tileloadd tmm5, [{b} + {b_row}]" "tdpbf16ps tmm0, tmm4, tmm5"
                    "tileloadd tmm6, [{b} + {b_row} + 64]" "tdpbf16ps tmm1, tmm4, tmm6"
                    "tileloadd tmm7, [{b} + {b_row} + 128]" "tdpbf16ps tmm2, tmm4, tmm7"
                    "tileloadd tmm5, [{b} + {b_row} + 192]" "tdpbf16ps tmm3, tmm4, tmm5";
            ),
            (2, 2) => multiply!(
                clear: "tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3";
                step: "tileloadd tmm4, [{left} + {row}]"
                    "tileloadd tmm6, [{b} + {b_row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                    "tileloadd tmm7, [{b} + {b_row} + 64]" "tdpbf16ps tmm1, tmm4, tmm7"
                    "tileloadd tmm5, [{second} + {row}]" "tdpbf16ps tmm2, tmm5, tmm6" "tdpbf16ps tmm3, tmm5, tmm7";
            ),
            (2, 1) => multiply!(
                clear: "tilezero tmm0" "tilezero tmm2";
                step: "tileloadd tmm4, [{left} + {row}]"
                    "tileloadd tmm6, [{b} + {b_row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                    "tileloadd tmm5, [{second} + {row}]" "tdpbf16ps tmm2, tmm5, tmm6";
            ),
            (1, 2) => multiply!(
                clear: "tilezero tmm0" "tilezero tmm1";
                step: "tileloadd tmm4, [{left} + {row}]"
                    "tileloadd tmm6, [{b} + {b_row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                    "tileloadd tmm7, [{b} + {b_row} + 64]" "tdpbf16ps tmm1, tmm4, tmm7";
            ),
            _ => multiply!(
                clear: "tilezero tmm0";
                step: "tileloadd tmm4, [{left} + {row}]"
                    "tileloadd tmm6, [{b} + {b_row}]" "tdpbf16ps tmm0, tmm4, tmm6";
            ),
        }
    }

    /// Stores what [`Tiles::product`] left, as rows `stride` elements apart, all of the first group before those of the second.
    ///
    /// # Safety
    /// `to` has 16 rows of these columns for each group. Since the product, nothing on this thread has used, configured or released tiles: the
    /// compiler never does.
    #[inline(always)]
    unsafe fn store(&self, form: Form, to: *mut f32, stride: usize) {
        macro_rules! store {
            ($to:expr, $($tile:literal)*) => {
                // SAFETY: the caller's promise.
                unsafe { asm!($($tile,)* to = in(reg) $to, row = in(reg) stride * size_of::<f32>(), options(nostack)) }
            };
        }
        let second = to.wrapping_add(TILE * stride);
        store!(to, "tilestored [{to} + {row}], tmm0");
        if form.columns > 1 {
            store!(to, "tilestored [{to} + {row} + 64], tmm1");
        }
        if form.columns > 2 {
            store!(to, "tilestored [{to} + {row} + 128], tmm2" "tilestored [{to} + {row} + 192], tmm3");
        }
        if form.groups > 1 {
            store!(second, "tilestored [{to} + {row}], tmm2");
            if form.columns > 1 {
                store!(second, "tilestored [{to} + {row} + 64], tmm3");
            }
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
                unsafe { multiply(self, a, (data.as_ptr(), stride), k.end, columns, sink) }
            }
            _ => self.vectors.product(a, b, k, columns, out, out_stride),
        }
    }
    fn product_ahead(
        self,
        a: Rows<'_>,
        b: Operand<'_>,
        k: Range<usize>,
        columns: Range<usize>,
        out: &mut [f32],
        out_stride: usize,
        ahead: &[u8],
    ) {
        if matches!(b, Operand::Bf16 { .. }) && by_tiles(a, b, &k, &columns) {
            self.prefetch(ahead);
            self.product(a, b, k, columns, out, out_stride);
        } else {
            self.vectors.product_ahead(a, b, k, columns, out, out_stride, ahead);
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
                unsafe { multiply(self, a, (data.as_ptr(), stride), k.end, 0..columns, sink) }
            }
            _ => self.vectors.product_fold(a, b, k, columns, states, out, out_stride),
        }
    }
    fn score_columns(self, rows: usize) -> usize {
        // A call packs its rows, whatever the columns.
        if rows < MIN_ROWS { self.vectors.score_columns(rows) } else { KV_BLOCK_TOKENS }
    }
    fn folds_blocks(self, layout: &KvLayout, rows: usize) -> bool {
        self.reads_pairs(layout) && rows >= MIN_ROWS
    }
    fn pack_queries(self, q: Rows<'_>, head_dim: usize, tiles: &mut [f32]) -> bool {
        let group = TILE * head_dim / 2;
        let fits = (STEP..=MAX_K).contains(&head_dim)
            && head_dim.is_multiple_of(STEP)
            && q.rows.div_ceil(TILE) * group <= tiles.len()
            && tiles.as_ptr().addr().is_multiple_of(64);
        if fits {
            assert!(q.rows == 0 || (q.rows - 1) * q.stride + head_dim <= q.data.len(), "left operand too short");
            for (first, tiles) in (0..q.rows).step_by(TILE).zip(tiles.chunks_exact_mut(group)) {
                let rows = first..(first + TILE).min(q.rows);
                if rows.len() < TILE {
                    tiles.fill(0.0);
                }
                // SAFETY: an `Amx` exists only after `detect` found all of it; rows and tiles were just checked.
                unsafe { pack(q, rows, head_dim, tiles.as_mut_ptr().cast()) };
            }
        }
        fits
    }
    fn fold_block(
        self,
        block: &BlockOperands<'_>,
        visible: impl Fn(usize) -> Range<usize>,
        states: &mut [RowState],
        (out, out_stride): (&mut [f32], usize),
        mut ahead: impl FnMut(),
    ) {
        let BlockOperands { q, k, v, how, head_dim, v_head_dim, .. } = *block;
        let by_tiles = by_tiles(q, k, &(0..head_dim), &(0..KV_BLOCK_TOKENS))
            && by_tiles(q, v, &(0..KV_BLOCK_TOKENS), &(0..v_head_dim));
        assert!(by_tiles && how.bf16, "a block that tiles do not take");
        assert_eq!(states.len(), q.rows, "one state per row");
        assert!((q.rows - 1) * q.stride + head_dim <= q.data.len(), "left operand too short");
        assert!((q.rows - 1) * out_stride + v_head_dim <= out.len(), "output too short");
        let packed = q.rows.div_ceil(TILE) * TILE * head_dim / 2;
        assert!(block.packed_q.is_none_or(|tiles| tiles.len() >= packed), "queries too short");
        k.check(head_dim, KV_BLOCK_TOKENS);
        v.check(KV_BLOCK_TOKENS, v_head_dim);
        // SAFETY: an `Amx` exists only after `detect` found all of it; every operand was just checked.
        unsafe {
            let out = (out.as_mut_ptr(), out_stride);
            match KV_BLOCK_TOKENS * (head_dim + v_head_dim) * size_of::<u16>() <= NEAR_BYTES {
                true => fold_block::<1>(self, block, &visible, states, out, &mut ahead),
                false => fold_block::<2>(self, block, &visible, states, out, &mut ahead),
            }
        };
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
    fn gate<F: Function>(self, f: F, gate: &mut [f32], up: &[f32]) {
        self.vectors.gate(f, gate, up);
    }
    fn sum(self, x: &[f32], squares: bool) -> f32 {
        self.vectors.sum(x, squares)
    }
}
