//! The innermost loop: one or two blocks of 16 rows times one or two panels, over some steps of `k`.
//!
//! Four tiles of sums, two of rows and two of panels are all eight registers. Tiles of the next step are loaded between the products of this
//! one, and lines of `x` are fetched some steps ahead: where a sibling hyperthread takes half of the core's buffers, that is what still
//! keeps the matrix unit busy. One call is one piece of assembly, so nothing lives in a tile between two of them.

use std::arch::asm;

use super::{TILE_ELEMENTS, Tiles};

/// Bytes of a tile.
const TILE_BYTES: usize = TILE_ELEMENTS * size_of::<f32>();
/// Bytes from one row of a tile to the next.
const ROW_BYTES: usize = 64;
/// Steps from the fetch of a line of `x` to its use.
const AHEAD: usize = 4;

/// Operands and sums of one call.
#[derive(Debug)]
pub(crate) struct Micro<'a> {
    /// Tiles of `x`, `[step][2 blocks of 16 rows]`.
    pub(crate) x: &'a [f32],
    /// Whether the second block holds rows; it is not read otherwise.
    pub(crate) both_blocks: bool,
    /// Tiles of `x` of the call that follows, or `x` again.
    pub(crate) next_x: &'a [f32],
    /// Tiles of weights, `[step]`, of one or two panels.
    pub(crate) w: [Option<&'a [f32]>; 2],
    pub(crate) steps: usize,
    /// Sums so far of up to 2 x 2 tiles, `[row block][panel]`; `None` starts from zero.
    pub(crate) from: Option<*const f32>,
    /// Where the sums go, in the same order. May be `from`.
    pub(crate) to: *mut f32,
}

impl Micro<'_> {
    /// Adds the products of all steps to the sums.
    ///
    /// # Safety
    /// `from` and `to` have four tiles of 1 KiB each, and are the caller's alone.
    pub(crate) unsafe fn run(&self, _: &Tiles) {
        assert!(self.steps > 0 && self.x.len() >= 2 * self.steps * TILE_ELEMENTS, "fewer tiles of x than steps");
        let w = self.w.map(|tiles| {
            assert!(tiles.is_none_or(|tiles| tiles.len() >= self.steps * TILE_ELEMENTS), "fewer tiles than steps");
            tiles.map_or(std::ptr::null(), |tiles| tiles.as_ptr())
        });
        assert!(self.w[0].is_some(), "no panel");
        let from = self.from.unwrap_or(std::ptr::null());
        // The forms differ in which tiles they load and multiply: first operands, the products of a step with the loads of the next one
        // between them, the products of the last step. A load names the register that holds the tile before its own.
        macro_rules! run {
            (first: $($first:literal)*; step: $($step:literal)*; last: $($last:literal)*;) => {
                // SAFETY: `Tiles` shows that all tiles of this thread are 16 rows of 64 bytes. Operands have `steps` tiles each, as just
                // checked, and those that are absent are not named by this form. Sums are the caller's promise. Prefetches do not fault.
                unsafe {
                    asm!(
                        "test {from}, {from}",
                        "jz 2f",
                        "tileloadd tmm0, [{from} + {row}]",
                        "tileloadd tmm1, [{from} + {row} + {tile}]",
                        "tileloadd tmm2, [{from} + {row} + 2 * {tile}]",
                        "tileloadd tmm3, [{from} + {row} + 3 * {tile}]",
                        "jmp 3f",
                        "2:",
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "tilezero tmm2",
                        "tilezero tmm3",
                        "3:",
                        $($first,)*
                        "dec {steps}",
                        "jz 5f",
                        "4:",
                        "cmp {steps}, {ahead}",
                        "cmove {fetch}, {next}",
                        $($step,)*
                        "add {x}, 2 * {tile}",
                        "add {fetch}, 2 * {tile}",
                        "add {w0}, {tile}",
                        "add {w1}, {tile}",
                        "dec {steps}",
                        "jnz 4b",
                        "5:",
                        $($last,)*
                        "tilestored [{to} + {row}], tmm0",
                        "tilestored [{to} + {row} + {tile}], tmm1",
                        "tilestored [{to} + {row} + 2 * {tile}], tmm2",
                        "tilestored [{to} + {row} + 3 * {tile}], tmm3",
                        x = inout(reg) self.x.as_ptr() => _,
                        fetch = inout(reg) self.x.as_ptr().wrapping_add(2 * AHEAD * TILE_ELEMENTS) => _,
                        next = in(reg) self.next_x.as_ptr(),
                        w0 = inout(reg) w[0] => _,
                        w1 = inout(reg) w[1] => _,
                        from = in(reg) from,
                        to = in(reg) self.to,
                        steps = inout(reg) self.steps => _,
                        row = in(reg) ROW_BYTES,
                        tile = const TILE_BYTES,
                        ahead = const AHEAD,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack),
                    );
                }
            };
        }
        match (self.both_blocks, self.w[1].is_some()) {
            (true, true) => run!(
                first: "tileloadd tmm4, [{x} + {row}]" "tileloadd tmm6, [{w0} + {row}]"
                    "tileloadd tmm5, [{x} + {row} + {tile}]" "tileloadd tmm7, [{w1} + {row}]";
                step: "tdpbf16ps tmm0, tmm4, tmm6"
                    "prefetcht0 [{fetch}]" "prefetcht0 [{fetch} + 64]" "prefetcht0 [{fetch} + 128]"
                    "prefetcht0 [{fetch} + 192]" "prefetcht0 [{fetch} + 256]" "prefetcht0 [{fetch} + 320]"
                    "prefetcht0 [{fetch} + 384]" "prefetcht0 [{fetch} + 448]" "prefetcht0 [{fetch} + 512]"
                    "prefetcht0 [{fetch} + 576]" "prefetcht0 [{fetch} + 640]" "prefetcht0 [{fetch} + 704]"
                    "prefetcht0 [{fetch} + 768]" "prefetcht0 [{fetch} + 832]" "prefetcht0 [{fetch} + 896]"
                    "prefetcht0 [{fetch} + 960]"
                    "tdpbf16ps tmm1, tmm4, tmm7" "tileloadd tmm4, [{x} + {row} + 2 * {tile}]"
                    "tdpbf16ps tmm2, tmm5, tmm6" "tileloadd tmm6, [{w0} + {row} + {tile}]"
                    "prefetcht0 [{fetch} + 1024]" "prefetcht0 [{fetch} + 1088]" "prefetcht0 [{fetch} + 1152]"
                    "prefetcht0 [{fetch} + 1216]" "prefetcht0 [{fetch} + 1280]" "prefetcht0 [{fetch} + 1344]"
                    "prefetcht0 [{fetch} + 1408]" "prefetcht0 [{fetch} + 1472]" "prefetcht0 [{fetch} + 1536]"
                    "prefetcht0 [{fetch} + 1600]" "prefetcht0 [{fetch} + 1664]" "prefetcht0 [{fetch} + 1728]"
                    "prefetcht0 [{fetch} + 1792]" "prefetcht0 [{fetch} + 1856]" "prefetcht0 [{fetch} + 1920]"
                    "prefetcht0 [{fetch} + 1984]"
                    "tdpbf16ps tmm3, tmm5, tmm7" "tileloadd tmm5, [{x} + {row} + 3 * {tile}]"
                    "tileloadd tmm7, [{w1} + {row} + {tile}]";
                last: "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm1, tmm4, tmm7"
                    "tdpbf16ps tmm2, tmm5, tmm6" "tdpbf16ps tmm3, tmm5, tmm7";
            ),
            (true, false) => run!(
                first: "tileloadd tmm4, [{x} + {row}]" "tileloadd tmm6, [{w0} + {row}]"
                    "tileloadd tmm5, [{x} + {row} + {tile}]";
                step: "tdpbf16ps tmm0, tmm4, tmm6" "tileloadd tmm4, [{x} + {row} + 2 * {tile}]"
                    "tdpbf16ps tmm2, tmm5, tmm6" "tileloadd tmm6, [{w0} + {row} + {tile}]"
                    "tileloadd tmm5, [{x} + {row} + 3 * {tile}]";
                last: "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm2, tmm5, tmm6";
            ),
            (false, true) => run!(
                first: "tileloadd tmm4, [{x} + {row}]" "tileloadd tmm6, [{w0} + {row}]" "tileloadd tmm7, [{w1} + {row}]";
                step: "tdpbf16ps tmm0, tmm4, tmm6" "tileloadd tmm6, [{w0} + {row} + {tile}]"
                    "tdpbf16ps tmm1, tmm4, tmm7" "tileloadd tmm4, [{x} + {row} + 2 * {tile}]"
                    "tileloadd tmm7, [{w1} + {row} + {tile}]";
                last: "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm1, tmm4, tmm7";
            ),
            (false, false) => run!(
                first: "tileloadd tmm4, [{x} + {row}]" "tileloadd tmm6, [{w0} + {row}]";
                step: "tdpbf16ps tmm0, tmm4, tmm6" "tileloadd tmm4, [{x} + {row} + 2 * {tile}]"
                    "tileloadd tmm6, [{w0} + {row} + {tile}]";
                last: "tdpbf16ps tmm0, tmm4, tmm6";
            ),
        }
    }
}
