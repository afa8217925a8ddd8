//! The innermost loop: one or two blocks of 16 rows times one or two panels, over some steps of `k`.
//!
//! Four tiles of sums, two of rows and two of panels are all eight registers. One call is one piece of assembly, so nothing lives in a tile
//! between two of them.

use std::arch::asm;

use super::{TILE_ELEMENTS, Tiles};

/// Bytes of a tile.
const TILE_BYTES: usize = TILE_ELEMENTS * size_of::<f32>();
/// Bytes from one row of a tile to the next.
const ROW_BYTES: usize = 64;

/// Operands and sums of one call.
#[derive(Debug)]
pub(crate) struct Micro<'a> {
    /// Tiles of `x`, `[step]`, of one or two blocks of 16 rows.
    pub(crate) x: [Option<&'a [f32]>; 2],
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
        let check = |operand: Option<&[f32]>| {
            assert!(operand.is_none_or(|tiles| tiles.len() >= self.steps * TILE_ELEMENTS), "fewer tiles than steps");
            operand.map_or(std::ptr::null(), |tiles| tiles.as_ptr())
        };
        assert!(self.steps > 0 && self.x[0].is_some() && self.w[0].is_some(), "no operands");
        let (x, w) = (self.x.map(check), self.w.map(check));
        let from = self.from.unwrap_or(std::ptr::null());
        macro_rules! run {
            ($($step:literal),* $(,)?) => {
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
                        $($step,)*
                        "add {x0}, {tile}",
                        "add {x1}, {tile}",
                        "add {w0}, {tile}",
                        "add {w1}, {tile}",
                        "dec {steps}",
                        "jnz 3b",
                        "tilestored [{to} + {row}], tmm0",
                        "tilestored [{to} + {row} + {tile}], tmm1",
                        "tilestored [{to} + {row} + 2 * {tile}], tmm2",
                        "tilestored [{to} + {row} + 3 * {tile}], tmm3",
                        x0 = inout(reg) x[0] => _,
                        x1 = inout(reg) x[1] => _,
                        w0 = inout(reg) w[0] => _,
                        w1 = inout(reg) w[1] => _,
                        from = in(reg) from,
                        to = in(reg) self.to,
                        steps = inout(reg) self.steps => _,
                        row = in(reg) ROW_BYTES,
                        tile = const TILE_BYTES,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack),
                    );
                }
            };
        }
        match (self.x[1].is_some(), self.w[1].is_some()) {
            (true, true) => run!(
                "tileloadd tmm4, [{x0} + {row}]",
                "tileloadd tmm6, [{w0} + {row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{w1} + {row}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{x1} + {row}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
            ),
            (true, false) => run!(
                "tileloadd tmm4, [{x0} + {row}]",
                "tileloadd tmm6, [{w0} + {row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{x1} + {row}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
            ),
            (false, true) => run!(
                "tileloadd tmm4, [{x0} + {row}]",
                "tileloadd tmm6, [{w0} + {row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{w1} + {row}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
            ),
            (false, false) => {
                run!("tileloadd tmm4, [{x0} + {row}]", "tileloadd tmm6, [{w0} + {row}]", "tdpbf16ps tmm0, tmm4, tmm6",)
            }
        }
    }
}
